"""What one thread does for its block, said so that joins are seen: what it joins is shared, then it stores.

`if (threadIdx.x == 0) { float s = 0; for (...) s += part[i]; y[row] = f(s); }` becomes the sum, kept in shared memory
for all threads, and a store by the first one behind it. Shared arrays stand at the kernel's start.
"""

from __future__ import annotations

from itertools import pairwise

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import is_exchange
from kernelwright.source.edits import Edit, insertion
from kernelwright.source.normal.broadcasts import is_barrier, uniform_names
from kernelwright.source.normal.draft import KernelText, LeftAsIs, in_one_line, renamed
from kernelwright.source.normal.inlining import is_value, meets

_MOST_THREADS = 1024
_PLACE = "threadIdx.x"
_OF_BLOCK = ("threadIdx", "blockDim")


def gather_shared(draft: KernelText) -> list[Edit]:
    """Declarations of shared arrays behind other statements, at the start of the kernel."""
    body = draft.kernel.body
    own = nodes.declared_names(body)
    is_late = False
    for each in body.statements:
        is_declared = isinstance(each, nodes.Declaration) and all(d.is_shared for d in each.declarators)
        is_late = is_late or not isinstance(each, nodes.Declaration)
        if not is_declared or not is_late or not isinstance(each, nodes.Declaration):
            continue
        if {n.name for n in nodes.walk(each) if isinstance(n, nodes.Name)} & own or not body.place.is_exact:
            continue
        try:
            text = in_one_line(draft.text(each))
            return [insertion(body.place.span.start + 1, f" {text}"), draft.edit(each, "")]
        except LeftAsIs:
            continue
    return []


def share_sums(draft: KernelText) -> list[Edit]:
    """What the first thread sums up of shared arrays before it does more, as a value that all threads could read."""
    statements = draft.kernel.body.statements
    if draft.language == "opencl" or _leaves(draft):
        return []
    for each in statements:
        if isinstance(each, nodes.If) and each.no is None and isinstance(each.yes, nodes.Block):
            try:
                edits = _summed(draft, each, each.yes)
            except LeftAsIs:
                continue
            if edits:
                return edits
    return []


def _summed(draft: KernelText, node: nodes.If, block: nodes.Block) -> list[Edit]:
    shared = _shared(draft)
    known = uniform_names(draft) | shared
    own: dict[str, nodes.Declarator] = {}
    count = 0
    for each in block.statements:
        names = nodes.declared_names(each)
        used = {n.name for n in nodes.walk(each) if isinstance(n, nodes.Name)}
        is_quiet = isinstance(each, nodes.Declaration | nodes.Loop) and not _acts(draft, each)
        changed = nodes.assigned_names(each) - names
        if not is_quiet or not used <= known | own.keys() | names or not changed <= own.keys():
            break
        own |= {d.name: d for d in each.declarators} if isinstance(each, nodes.Declaration) else {}
        count += 1
    first, rest = block.statements[:count], block.statements[count:]
    live = [name for name in own if any(_mentions(each, name) for each in rest)]
    if not any(isinstance(each, nodes.Loop) for each in first) or len(live) != 1 or _stores(block, shared):
        return []
    _refuse_others(draft, node.condition)
    (name,) = live
    kept = draft.fresh(f"{name}_kept")
    head = " ".join(in_one_line(draft.text(each)) for each in first)
    tail = renamed(" ".join(in_one_line(draft.text(each)) for each in rest), {name: f"{kept}[0]"})
    condition, lines = draft.text(node.condition), "\n" * draft.text(node).count("\n")
    return [
        insertion(draft.kernel.body.place.span.start + 1, f" __shared__ {own[name].c_type} {kept}[1];"),
        draft.edit(node, f"if ({condition}) {{ {head} {kept}[0] = {name}; }} __syncthreads(); "
                         f"if ({condition}) {{ {tail} }}{lines}"),
    ]  # fmt: skip


def _leaves(draft: KernelText) -> bool:
    """Whether a thread may end before others: it would not wait for them."""
    return any(isinstance(each, nodes.Return) for each in nodes.walk(draft.kernel.body))


def _mentions(node: nodes.Node, name: str) -> bool:
    return any(isinstance(each, nodes.Name) and each.name == name for each in nodes.walk(node))


def _refuse_others(draft: KernelText, *conditions: nodes.Expression) -> None:
    """Conditions that together hold for the first thread alone pass.

    Raises:
        LeftAsIs: they hold for another one, or are of something else.
    """
    for each in (each for function in draft.reached for each in nodes.walk(function.body)):
        if isinstance(each, nodes.Member) and each.name in ("y", "z") and nodes.root_name(each) in _OF_BLOCK:
            raise LeftAsIs("a block may have a first thread in every row")
    changed = nodes.assigned_names(draft.kernel.body)
    places = {
        each.name: each.initial
        for statement in draft.kernel.body.statements
        if isinstance(statement, nodes.Declaration)
        for each in statement.declarators
        if each.initial is not None and each.name not in changed
    }
    threads = [x for x in range(_MOST_THREADS) if all(_number(each, x, places, 0) for each in conditions)]
    if threads != [0]:
        raise LeftAsIs("it is for other threads")


def _acts(draft: KernelText, node: nodes.Node) -> bool:
    """Whether it may do anything but change variables: store, leave, wait, ask for the thread's place."""
    for each in nodes.walk(node):
        match each:
            case nodes.Return() | nodes.Jump() | nodes.OpaqueStatement() | nodes.OpaqueExpression():
                return True
            case nodes.Call(function=name) if name in draft.helpers or is_exchange(name):
                return True
            case nodes.Assign(target=target) if not isinstance(target, nodes.Name):
                return True
            case nodes.Member(base=nodes.Name(name="threadIdx")):
                return True
    return is_barrier(node)


def _stores(node: nodes.Node, arrays: set[str]) -> bool:
    return any(isinstance(each, nodes.Assign) and nodes.root_name(each.target) in arrays for each in nodes.walk(node))


def _shared(draft: KernelText) -> set[str]:
    return {each.name for each in nodes.walk(draft.kernel.body)
            if isinstance(each, nodes.Declarator) and each.is_shared and each.extents}  # fmt: skip


def store_by_first(draft: KernelText) -> list[Edit]:
    """A result that the first thread makes of a joined value and stores, at the end, behind a share of the value."""
    statements = draft.kernel.body.statements
    last = statements[-1] if statements else None
    if draft.language == "opencl" or not isinstance(last, nodes.If) or last.no is not None:
        return []
    inner = last.yes.statements[-1] if isinstance(last.yes, nodes.Block) and last.yes.statements else None
    if not isinstance(inner, nodes.If) or inner.no is not None or not _joins(draft, last):
        return []
    stores = inner.yes.statements if isinstance(inner.yes, nodes.Block) else (inner.yes,)
    try:
        return _shared_store(draft, last, inner, stores)
    except LeftAsIs:
        return []


def _joins(draft: KernelText, node: nodes.Node) -> bool:
    for each in nodes.walk(node):
        helper = draft.helpers.get(each.function) if isinstance(each, nodes.Call) else None
        if (isinstance(each, nodes.Call) and is_exchange(each.function)) or (helper and meets(draft, helper)):
            return True
    return False


def _shared_store(
    draft: KernelText, last: nodes.If, inner: nodes.If, stores: tuple[nodes.Statement, ...]
) -> list[Edit]:
    changed = nodes.assigned_names(last) - nodes.declared_names(last)
    own = {each.name: each for s in draft.kernel.body.statements if isinstance(s, nodes.Declaration)
           for each in s.declarators}  # fmt: skip
    if len(changed) != 1 or not changed <= own.keys() or _leaves(draft):
        raise LeftAsIs("more than one value is joined")
    (name,) = changed
    for each in stores:
        match each:
            case nodes.Evaluate(expression=nodes.Assign(operator="=", target=target, value=value)):
                is_plain = isinstance(value, nodes.Name) and len(stores) == 1
                names = {n.name for n in nodes.walk(each) if isinstance(n, nodes.Name)}
                if is_plain or nodes.root_name(target) in own or names & nodes.declared_names(last):
                    raise LeftAsIs("it is stored as it is")
                if not is_value(value):
                    raise LeftAsIs("what is stored does more")
            case _:
                raise LeftAsIs("it does more than store")
    _refuse_others(draft, last.condition, inner.condition)
    kept = draft.fresh(f"{name}_kept")
    text = renamed(" ".join(in_one_line(draft.text(each)) for each in stores), {name: f"{kept}[0]"})
    return [
        insertion(draft.kernel.body.place.span.start + 1, f" __shared__ {own[name].c_type} {kept}[1];"),
        draft.edit(inner.yes, f"{kept}[0] = {name};" + "\n" * draft.text(inner.yes).count("\n")),
        insertion(draft.span(last).end, f" __syncthreads(); if ({_PLACE} == 0) {{ {text} }}"),
    ]


def store_behind(draft: KernelText) -> list[Edit]:
    """What the first thread stores of a shared variable that it has just given its value, behind the next barrier."""
    statements = draft.kernel.body.statements
    if draft.language == "opencl" or _leaves(draft):
        return []
    for each, barrier in pairwise(statements):
        if isinstance(each, nodes.If) and is_barrier(barrier):
            try:
                edits = _stored_behind(draft, each, barrier)
            except LeftAsIs:
                continue
            if edits:
                return edits
    return []


def _stored_behind(draft: KernelText, node: nodes.If, barrier: nodes.Statement) -> list[Edit]:
    conditions, block = _innermost(node)
    for index, each in enumerate(block):
        match each:
            case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(name=own))):
                stores = block[index + 1 :]
                names = {n.name for s in stores for n in nodes.walk(s) if isinstance(n, nodes.Name)}
                if names & nodes.declared_names(node):
                    raise LeftAsIs("a store needs what is declared beside it")
                if _is_scalar_shared(draft, own) and stores and all(_is_store(draft, s, own) for s in stores):
                    _refuse_others(draft, *conditions)
                    text = " ".join(in_one_line(draft.text(s)) for s in stores)
                    gone = [draft.edit(s, "\n" * draft.text(s).count("\n")) for s in stores]
                    return [*gone, insertion(draft.span(barrier).end, f" if ({_PLACE} == 0) {{ {text} }}")]
    return []


def _innermost(node: nodes.If) -> tuple[list[nodes.Expression], tuple[nodes.Statement, ...]]:
    """The conditions of an `if` and of those that end its body, and the body of the last."""
    conditions = []
    statements: tuple[nodes.Statement, ...] = (node,)
    while statements and isinstance(last := statements[-1], nodes.If) and last.no is None:
        conditions.append(last.condition)
        statements = last.yes.statements if isinstance(last.yes, nodes.Block) else (last.yes,)
    return conditions, statements


def _is_scalar_shared(draft: KernelText, name: str) -> bool:
    """Whether it is a shared variable that is given a value once."""
    own = draft.variables(draft.kernel).get(name)
    inside = list(nodes.walk(draft.kernel.body))
    changes = sum(isinstance(e, nodes.Assign | nodes.Update) and name in nodes.assigned_names(e) for e in inside)
    is_taken = any(isinstance(e, nodes.Unary) and e.operator == "&" and nodes.root_name(e) == name for e in inside)
    is_shared = isinstance(own, nodes.Declarator) and own.is_shared and not own.extents
    return is_shared and changes == 1 and not is_taken and not _is_hidden(draft, name)


def _is_hidden(draft: KernelText, name: str) -> bool:
    """Whether something that is not followed names a variable, or a function is given a reference to it."""
    for each in nodes.walk(draft.kernel.body):
        match each:
            case nodes.OpaqueStatement(names=names) | nodes.OpaqueExpression(names=names) if name in names:
                return True
            case nodes.Call(function=function, arguments=arguments) if helper := draft.helpers.get(function):
                given = zip(helper.parameters, arguments, strict=False)
                if any(own.is_reference and nodes.root_name(value) == name for own, value in given):
                    return True
    return False


def _is_store(draft: KernelText, node: nodes.Statement, own: str) -> bool:
    """Whether a statement only stores what any thread could make, in an array that nothing else touches."""
    match node:
        case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Element() as target, value=value)):
            array = nodes.root_name(target)
            uses = sum(isinstance(e, nodes.Name) and e.name == array for e in nodes.walk(draft.kernel.body))
            names = {e.name for part in (target, value) for e in nodes.walk(part) if isinstance(e, nodes.Name)}
            is_given = any(each.is_pointer and each.name == array for each in draft.kernel.parameters)
            places = {n.name for n in nodes.walk(node) if isinstance(n, nodes.Name)} & {"threadIdx"}
            is_given = is_given and not _is_hidden(draft, str(array))
            return is_given and uses == 1 and not places and names - {own, str(array)} <= uniform_names(draft) | {
                e.name for e in _of_the_block(draft)
            }  # fmt: skip
    return False


def _of_the_block(draft: KernelText) -> list[nodes.Declarator]:
    """Variables that are made of the block's place and of arguments alone: `const int row = blockIdx.x;`."""
    changed = nodes.assigned_names(draft.kernel.body)
    known = uniform_names(draft) | {"blockIdx"}
    return [
        each for statement in draft.kernel.body.statements if isinstance(statement, nodes.Declaration)
        for each in statement.declarators
        if each.initial is not None and each.name not in changed and not (each.is_pointer or each.extents)
        and {n.name for n in nodes.walk(each.initial) if isinstance(n, nodes.Name)} <= known
        and not any(isinstance(n, nodes.Call | nodes.Element | nodes.Unary) for n in nodes.walk(each.initial))
    ]  # fmt: skip


def _number(node: nodes.Expression, thread: int, places: dict[str, nodes.Expression], depth: int) -> int:
    """The value of arithmetic on the thread's place along x.

    Raises:
        LeftAsIs: it is made of anything else.
    """
    match node:
        case nodes.Literal(value=value) if value is not None:
            return int(value)
        case nodes.Member(base=nodes.Name(name="threadIdx"), name="x"):
            return thread
        case nodes.Name(name=name) if name in places and depth < 8:
            return _number(places[name], thread, places, depth + 1)
        case nodes.Name(name="warpSize"):
            return 32
        case nodes.Unary(operator="!", operand=operand):
            return int(not _number(operand, thread, places, depth))
        case nodes.Cast(operands=(operand,), is_pointer=False):
            return _number(operand, thread, places, depth)
        case nodes.Binary(operator=operator, left=left, right=right):
            return _computed(operator, _number(left, thread, places, depth), _number(right, thread, places, depth))
    raise LeftAsIs("a condition that is not of the thread's place")


def _computed(operator: str, left: int, right: int) -> int:
    match operator:
        case "==":
            return int(left == right)
        case "<":
            return int(left < right)
        case "&&":
            return int(bool(left and right))
        case "&":
            return left & right
        case ">>" if 0 <= right < 32:
            return left >> right
        case "/" if right > 0:
            return left // right
        case "%" if right > 0:
            return left % right
    raise LeftAsIs("a condition that is not followed")
