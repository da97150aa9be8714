"""Joins in a kernel's own body as functions: trees in shared memory, shuffles, two levels of them, one thread's loop.

Tactics that replace a join want it as a function with one value a thread going in, and either the result coming out
or the result stored by one thread. Here the statements that join become such a function. Whether they really join is
not guessed: whoever uses the function runs it (`block_functions.joining_calls`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import atomic_operation, barrier_scope, is_exchange
from kernelwright.source.edits import Edit
from kernelwright.source.span import Span
from kernelwright.tactics.base import Rewrite, Subject, Unfit
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder, declaration_start
from kernelwright.tactics.common.thread_queries import QUERY_VARIABLES, query_text
from kernelwright.tactics.tiling.frame import edited

_FIRST_THREAD = ("threadIdx.x", "get_local_id(0)")


def over_joins(rule: Callable[[Subject], Rewrite]) -> Callable[[Subject], Rewrite]:
    """A rule that also takes kernels that join in their own bodies."""

    def apply(subject: Subject) -> Rewrite:
        try:
            return rule(subject)
        except Unfit as unfit:
            try:
                other, name, text = outlined(subject)
            except Unfit:
                raise unfit from None
        made = rule(other)
        is_gone = len(re.findall(rf"\b{name}\b", made.source)) == 1  # its definition: nobody calls it any more
        function = subject.analysis.function
        changed = Span(declaration_start(subject.source, function), function.place.span.end)
        return replace(made, source=made.source.replace(text, "") if is_gone else made.source, anchors=(changed,))

    return apply


@dataclass(frozen=True)
class _Join:
    """The statements that join, and what goes in and out of them."""

    region: tuple[nodes.Statement, ...]
    after: tuple[nodes.Statement, ...]
    shared: tuple[nodes.Declaration, ...]
    places: tuple[tuple[nodes.Declaration, nodes.Declarator], ...]
    """Variables made of the thread's place that the statements use."""
    value: nodes.Expression | None
    """What the first statement stores for each thread; None where a variable goes in."""
    own: str
    """That variable."""
    c_type: str
    stored: nodes.Expression | None
    """Where one thread stores the result; None where others read it."""
    result: nodes.Element | None
    """Where others read it."""


def outlined(subject: Subject) -> tuple[Subject, str, str]:
    """The subject with what joins in the kernel's own body as a function before it; its name and text.

    Raises:
        Unfit: no such statements are found, or they do more than joining one value a thread.
    """
    found = _find(subject)
    name = RewriteBuilder(subject, "outline", "reduction").fresh(f"{subject.entry}_join")
    source, function = subject.source, subject.analysis.function
    edits = [Edit(span, text) for span, text in _kernel_edits(subject, found, name)]
    whole = Span(declaration_start(source, function), function.place.span.end)
    data = source.encode("utf-8", "surrogatepass")
    function_text, kernel_text = _function(subject, found, name), edited(source, whole, edits)
    before, behind = (part.decode("utf-8", "surrogatepass") for part in (data[: whole.start], data[whole.end :]))
    return replace(subject, source=before + function_text + kernel_text + behind), name, function_text


# Finding


def _find(subject: Subject) -> _Join:
    body = subject.analysis.function.body
    if any(isinstance(each, nodes.Return | nodes.Jump) for each in nodes.walk(body)):
        raise Unfit("threads may leave before they meet")
    shared = _shared(body)
    names = {each.name for declaration in shared for each in declaration.declarators}
    touching = [index for index, each in enumerate(body.statements) if each not in shared and _touches(each, names)]
    meeting = [index for index in touching if _meets(body.statements[index], names)]
    if not meeting:
        raise Unfit("its threads do not meet")
    first, last = touching[0], meeting[-1]
    result = _result(body.statements[last + 1 :], names)
    if result is None:
        last = touching[-1]
    value, own, c_type = _input(body, first, last, names)
    if result is None and value is None:
        last = _last_use(body.statements, last, own)
    region = body.statements[first : last + 1]
    stored = None if result is not None else _stored(subject, region)
    if any(isinstance(each, nodes.Name) and each.name in names for s in body.statements[:first] if s not in shared
           for each in nodes.walk(s)):  # fmt: skip
        raise Unfit("shared memory is used before")
    places = _places(subject, body.statements[:first], region, names | {own}, value, stored)
    return _Join(region, body.statements[last + 1 :], shared, places, value, own, c_type, stored, result)


def _shared(body: nodes.Block) -> tuple[nodes.Declaration, ...]:
    found = []
    for each in body.statements:
        if isinstance(each, nodes.Declaration) and any(d.is_shared for d in each.declarators):
            is_plain = all(d.is_shared and d.extents and None not in d.extents and d.initial is None
                           for d in each.declarators)  # fmt: skip
            if not is_plain or not each.place.is_exact:
                raise Unfit("how much shared memory there is is not known")
            found.append(each)
    return tuple(found)


def _touches(node: nodes.Node, names: set[str]) -> bool:
    return any(
        (isinstance(each, nodes.Name) and each.name in names)
        or (isinstance(each, nodes.Call) and (barrier_scope(each.function) or is_exchange(each.function)))
        for each in nodes.walk(node)
    )


def _meets(node: nodes.Node, names: set[str]) -> bool:
    """Whether threads wait, exchange, or store in shared memory."""
    return any(
        (isinstance(each, nodes.Assign) and nodes.root_name(each.target) in names)
        or (isinstance(each, nodes.Call) and (barrier_scope(each.function) or is_exchange(each.function)))
        for each in nodes.walk(node)
    )


def _result(after: Sequence[nodes.Statement], names: set[str]) -> nodes.Element | None:
    """The one element of shared memory that is read behind the join; None where none or others are."""
    elements = [
        each for statement in after for each in nodes.walk(statement)
        if isinstance(each, nodes.Element) and nodes.root_name(each) in names
    ]  # fmt: skip
    plain = [each for each in elements if isinstance(each.index, nodes.Literal) and each.index.value == 0]
    if not elements or len(plain) != len(elements) or len({nodes.root_name(each) for each in plain}) != 1:
        return None
    return plain[0]


def _input(body: nodes.Block, first: int, last: int, names: set[str]) -> tuple[nodes.Expression | None, str, str]:
    """What goes in: an expression or a variable, and its type."""
    start = body.statements[first]
    declared = {d.name: d for s in body.statements if isinstance(s, nodes.Declaration) for d in s.declarators}
    match start:
        case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Element() as target, value=value)):
            root = nodes.root_name(target)
            if root in names and not _touches(value, names) and root is not None:
                return value, "", declared[root].c_type
    region = body.statements[first : last + 1]
    inside = {name for each in region for name in nodes.declared_names(each)}
    changed = {name for each in region for name in nodes.assigned_names(each)} & declared.keys() - inside - names
    if len(changed) != 1:
        raise Unfit("what each thread gives is not one value")
    own = changed.pop()
    if declared[own].is_pointer or declared[own].extents:
        raise Unfit("what each thread gives is not one value")
    return None, own, declared[own].c_type


def _last_use(statements: Sequence[nodes.Statement], last: int, own: str) -> int:
    """The join with the statement behind it in which one thread stores the result."""
    uses = [
        index for index in range(last + 1, len(statements))
        if any(isinstance(each, nodes.Name) and each.name == own for each in nodes.walk(statements[index]))
    ]  # fmt: skip
    if not uses:
        return last
    if uses != [last + 1] or not isinstance(statements[last + 1], nodes.If):
        raise Unfit(f"what a thread has in {own} is used by itself")
    return last + 1


def _stored(subject: Subject, region: Sequence[nodes.Statement]) -> nodes.Expression:
    pointers = {each.name for each in subject.analysis.function.parameters if each.is_pointer}
    found = [
        each for statement in region for each in nodes.walk(statement)
        if isinstance(each, nodes.Assign) and nodes.root_name(each.target) in pointers
    ]  # fmt: skip
    if len(found) != 1 or found[0].operator != "=" or not isinstance(found[0].target, nodes.Element | nodes.Unary):
        raise Unfit("where the result is stored is not known")
    return found[0].target


def _places(
    subject: Subject, before: Sequence[nodes.Statement], region: Sequence[nodes.Statement], known: set[str],
    value: nodes.Expression | None, stored: nodes.Expression | None,
) -> tuple[tuple[nodes.Declaration, nodes.Declarator], ...]:  # fmt: skip
    """The variables that the region needs; they may be made of the thread's place alone."""
    left_out = [each.place.span for each in (value, stored) if each is not None]
    known = known | {name for each in region for name in nodes.declared_names(each)} | QUERY_VARIABLES | {"warpSize"}
    known |= {each.name for each in subject.analysis.tree.constants}
    if stored is not None and any(query_text(each).startswith(("threadIdx", "get_local_id", "get_global_id"))
                                  for each in nodes.walk(stored)):  # fmt: skip
        raise Unfit("where the result is stored depends on the thread")
    needed, changed = _free(region, known, left_out), nodes.assigned_names(subject.analysis.function.body)
    found: list[tuple[nodes.Declaration, nodes.Declarator]] = []
    pairs = [(s, d) for s in before if isinstance(s, nodes.Declaration) for d in s.declarators]
    for statement, each in reversed(pairs):
        if each.name not in needed:
            continue
        is_place = each.initial is not None and not each.is_pointer and not each.extents and each.name not in changed
        if not is_place or not statement.place.is_exact or not each.place.is_exact:
            raise Unfit("threads join by more than their places")
        needed = (needed - {each.name}) | _free([each], known | {each.name}, [])
        found.append((statement, each))
    if needed:
        raise Unfit(f"threads join by {sorted(needed)[0]}, which is no place of theirs")
    return tuple(reversed(found))


def _free(region: Sequence[nodes.Node], known: set[str], left_out: Sequence[Span]) -> set[str]:
    found = set()
    for statement in region:
        for each in nodes.walk(statement):
            if isinstance(each, nodes.OpaqueExpression | nodes.OpaqueStatement):
                raise Unfit(f"something is not understood: {each.reason}")
            if isinstance(each, nodes.Call) and atomic_operation(each.function):
                raise Unfit("threads join by atomics")
            is_new = isinstance(each, nodes.Name) and each.name not in known
            if is_new and not any(span.contains(each.place.span) for span in left_out):
                found.add(each.name)  # type: ignore[union-attr]
    return found


# Text


def _function(subject: Subject, found: _Join, name: str) -> str:
    """The function that joins."""
    words, source = dialect(subject.language), subject.source
    span = Span(found.region[0].place.span.start, found.region[-1].place.span.end)
    edits = [] if found.value is None else [Edit(found.value.place.span, "kw_value")]
    if found.stored is not None:
        edits.append(Edit(found.stored.place.span, "*kw_to"))
    parameters = [f"{found.c_type} {found.own or 'kw_value'}"]
    if found.stored is not None:
        parameters.append(f"{words.space}{found.c_type} *kw_to")
    arrays = [each.place.span.text(source) for each in found.shared]
    if words.is_opencl:
        parameters += [f"__local {d.c_type} *{d.name}" for each in found.shared for d in each.declarators]
        arrays = []
    places = [
        f"{Span(statement.place.span.start, statement.declarators[0].place.span.start).text(source)}"
        f"{each.place.span.text(source)};"
        for statement, each in found.places
    ]
    end = [] if found.result is None else [words.barrier, f"return {found.result.place.span.text(source)};"]
    returned = "void" if found.result is None else found.c_type
    lines = [*arrays, *places, edited(source, span, edits), *end]
    text = "\n  ".join(lines)
    head = "static" if words.is_opencl else "static __device__"
    return f"{head} {returned} {name}({', '.join(parameters)}) {{\n  {text}\n}}\n\n"


def _kernel_edits(subject: Subject, found: _Join, name: str) -> list[tuple[Span, str]]:
    """What changes in the kernel."""
    words, source = dialect(subject.language), subject.source
    given = found.own or (found.value.place.span.text(source) if found.value is not None else "")
    arguments = [given]
    if found.stored is not None:
        arguments.append(f"&({found.stored.place.span.text(source)})")
    edits: list[tuple[Span, str]] = []
    if words.is_opencl:
        arguments += [d.name for each in found.shared for d in each.declarators]
    else:
        edits += [(each.place.span, "") for each in found.shared]
    call = f"{name}({', '.join(arguments)});"
    if found.result is not None:
        call = f"const {found.c_type} kw_joined = {call}"
    edits.append((Span(found.region[0].place.span.start, found.region[-1].place.span.end), call))
    aliases = {each.name: query_text(each.initial) for _, each in found.places if each.initial is not None}
    for statement in found.after:
        for each in nodes.walk(statement):
            match each:
                case nodes.Element() if found.result is not None and nodes.same(each, found.result):
                    edits.append((_exact(each), "kw_joined"))
                case nodes.Binary(operator="==", left=nodes.Name(name=alias) as left, right=nodes.Literal(value=0)):
                    if aliases.get(alias) in _FIRST_THREAD:
                        edits.append((_exact(left), aliases[alias]))
    return edits


def _exact(node: nodes.Node) -> Span:
    if not node.place.is_exact:
        raise Unfit("a macro makes a part of what would change")
    return node.place.span
