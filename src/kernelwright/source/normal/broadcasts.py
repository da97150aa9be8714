"""One thread's value for all threads of the block: the value is shared before anything is made of it, not after.

`if (threadIdx.x == 0) inv = rsqrtf(sum / n); __syncthreads();` becomes `sum` for all, and `rsqrtf` in each thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import barrier_scope
from kernelwright.source.edits import Edit, insertion
from kernelwright.source.normal.draft import KernelText, LeftAsIs, in_one_line, renamed
from kernelwright.source.normal.inlining import is_value, meets


@dataclass(frozen=True)
class _Broadcast:
    """A shared variable that one thread gives its value, once."""

    declaration: nodes.Declaration
    own: nodes.Declarator
    assign: nodes.Assign
    index: int
    """The statement of the kernel's body that the value is given in."""
    barrier: int
    """The one behind it at which all threads wait."""
    value: str
    """The variable that the value is made of; everything else in it is the same for all threads."""


def share_early(draft: KernelText) -> list[Edit]:
    """The first such variable, as a share of what its value is made of."""
    body = draft.kernel.body
    for statement in body.statements:
        if isinstance(statement, nodes.Declaration) and len(statement.declarators) == 1:
            own = statement.declarators[0]
            if own.is_shared and not own.extents and not own.is_pointer and own.initial is None:
                try:
                    found = _broadcast(draft, statement, own)
                    return _of_call(draft, found) or _in_place(draft, found)
                except LeftAsIs:
                    continue
    return []


def _broadcast(draft: KernelText, declaration: nodes.Declaration, own: nodes.Declarator) -> _Broadcast:
    statements = draft.kernel.body.statements
    touching = [index for index, each in enumerate(statements) if each is not declaration and _mentions(each, own.name)]
    assigns = [each for statement in statements for each in nodes.walk(statement)
               if isinstance(each, nodes.Assign) and nodes.root_name(each.target) == own.name]  # fmt: skip
    if len(assigns) != 1 or assigns[0].operator != "=" or not isinstance(assigns[0].target, nodes.Name):
        raise LeftAsIs("it is not given one value")
    index = touching[0]
    barrier = next((i for i in range(index + 1, len(statements)) if is_barrier(statements[i])), None)
    is_before = any(each is assigns[0] for each in nodes.walk(statements[index]))
    uses = sum(isinstance(each, nodes.Name) and each.name == own.name for each in nodes.walk(statements[index]))
    if barrier is None or not is_before or uses != 1 or (len(touching) > 1 and touching[1] < barrier):
        raise LeftAsIs("it is read before all threads wait")
    if not isinstance(statements[index], nodes.If):
        raise LeftAsIs("all threads give it a value")
    moving = sorted(_names(assigns[0].value) - uniform_names(draft))
    variable = draft.variables(draft.kernel).get(moving[0]) if len(moving) == 1 else None
    if variable is None or variable.c_type != own.c_type or variable.is_pointer or not is_value(assigns[0].value):
        raise LeftAsIs("its value is made of several")
    return _Broadcast(declaration, own, assigns[0], index, barrier, moving[0])


def uniform_names(draft: KernelText) -> set[str]:
    """Variables that are the same for all threads: arguments, and what is made of them alone; names of functions."""
    function = draft.kernel
    changed = nodes.assigned_names(function.body)
    found = {each.name for each in function.parameters if not each.is_pointer} - changed
    for each in nodes.walk(function.body):
        if isinstance(each, nodes.Declarator) and each.initial is not None and each.name not in changed:
            is_plain = not each.is_pointer and not each.extents and not each.is_shared
            if is_plain and _names(each.initial) <= found and not any(
                isinstance(n, nodes.Call | nodes.Element | nodes.Member | nodes.Unary) for n in nodes.walk(each.initial)
            ):  # fmt: skip
                found.add(each.name)
    local = {each.name for each in nodes.walk(function.body) if isinstance(each, nodes.Declarator)}
    parameters = {each.name for each in function.parameters}
    return found | (_names(function.body) - local - parameters - {"threadIdx"})


def _names(node: nodes.Node) -> set[str]:
    return {each.name for each in nodes.walk(node) if isinstance(each, nodes.Name)}


def _mentions(node: nodes.Node, name: str) -> bool:
    return name in _names(node)


def is_barrier(node: nodes.Node) -> bool:
    """Whether all threads of a block wait at a statement."""
    match node:
        case nodes.Evaluate(expression=nodes.Call(function=name)):
            return barrier_scope(name) == "block"
    return False


def _made(draft: KernelText, found: _Broadcast, value: str) -> str:
    """What the variable is in each thread, of a value that all have."""
    return renamed(in_one_line(draft.text(found.assign.value)), {found.value: value})


def _reads(draft: KernelText, found: _Broadcast, text: str) -> list[Edit]:
    later: Sequence[nodes.Statement] = draft.kernel.body.statements[found.barrier :]
    return [draft.edit(each, text) for statement in later for each in nodes.walk(statement)
            if isinstance(each, nodes.Name) and each.name == found.own.name]  # fmt: skip


def _of_call(draft: KernelText, found: _Broadcast) -> list[Edit]:
    """Where a function has just made the value: a function that gives it to all threads; nothing for other values."""
    statements = draft.kernel.body.statements
    before = statements[found.index - 1] if found.index else None
    match before:
        case nodes.Evaluate(
            expression=nodes.Assign(operator="=", target=nodes.Name(name=name), value=nodes.Call() as call)
        ):
            pass
        case nodes.Declaration(declarators=[nodes.Declarator(name=name, initial=nodes.Call() as call)]):
            pass
        case _:
            return []
    helper = draft.helpers.get(call.function)
    is_alone = isinstance(statements[found.index], nodes.If) and found.barrier == found.index + 1
    if name != found.value or helper is None or not meets(draft, helper) or helper.template_parameters or not is_alone:
        return []
    own, first = draft.fresh(f"{helper.name}_all"), draft.fresh("first")
    c_type, shared = helper.c_type, "__shared__"
    if draft.language == "opencl" or len(call.arguments) != len(helper.parameters):
        return []
    parameters = ", ".join(in_one_line(draft.text(each)) for each in helper.parameters)
    given = ", ".join(each.name for each in helper.parameters)
    text = (
        f" static __device__ __forceinline__ {c_type} {own}({parameters}) {{ {shared} {c_type} {first}[1]; "
        f"const {c_type} one = {helper.name}({given}); if (threadIdx.x == 0) {first}[0] = one; __syncthreads(); "
        f"return {first}[0]; }}"
    )
    arguments = ", ".join(draft.text(each) for each in call.arguments)
    result = draft.fresh(f"{found.own.name}_all")
    return [
        insertion(draft.span(helper).end, text),
        draft.edit(call, f"{own}({arguments})"),
        draft.edit(found.declaration, ""),
        _blank(draft, statements[found.index], f"const {found.own.c_type} {result} = {_made(draft, found, name)};"),
        draft.edit(statements[found.barrier], ""),
        *_reads(draft, found, result),
    ]


def _in_place(draft: KernelText, found: _Broadcast) -> list[Edit]:
    """The variable holds the value itself, and each thread makes of it what it was."""
    shared = f"{found.own.name}[0]"
    barrier = draft.kernel.body.statements[found.barrier]
    result = draft.fresh(f"{found.own.name}_all")
    return [
        draft.edit(found.own, f"{found.own.name}[1]"),
        draft.edit(found.assign, f"{shared} = {found.value}"),
        insertion(draft.span(barrier).end, f" const {found.own.c_type} {result} = {_made(draft, found, shared)};"),
        *_reads(draft, found, result),
    ]


def _blank(draft: KernelText, node: nodes.Statement, text: str) -> Edit:
    return draft.edit(node, text + "\n" * draft.text(node).count("\n"))
