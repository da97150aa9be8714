"""Joins in a kernel's own body as functions: trees in shared memory, shuffles, two levels of them, one thread's loop.

Tactics that replace a join want it as a function with one value a thread going in, and either the result coming out
or the result stored by one thread. Here the statements that join become such a function. Whether they really join is
not guessed: whoever uses the function runs it (`block_functions.joining_calls`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import atomic_operation, barrier_scope, is_exchange
from kernelwright.source.edits import Edit
from kernelwright.source.span import Span
from kernelwright.tactics.base import Rewrite, Subject, Unfit
from kernelwright.tactics.common.block_functions import EXTREMES
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
            other, functions = outlined(subject)
            if not functions:
                raise unfit from None
        made = rule(other)
        source = made.source
        for name, text in functions.items():
            if len(re.findall(rf"\b{name}\b", source)) == 1:  # its definition: nobody calls it any more
                source = source.replace(text, "")
        function = subject.analysis.function
        changed = Span(declaration_start(subject.source, function), function.place.span.end)
        return replace(made, source=source, anchors=(changed,))

    return apply


@dataclass(frozen=True)
class _Join:
    """The statements that join, and what goes in and out of them."""

    region: tuple[nodes.Statement, ...]
    after: tuple[nodes.Statement, ...]
    readers: tuple[nodes.Statement, ...]
    """The statements of `after` up to the next join: they read this one's result."""
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
    named: str = ""
    """The variable of its own that the result is, where it is not the one that went in."""

    @property
    def is_returned(self) -> bool:
        """Whether each thread goes on with the variable that went in."""
        return self.result is None and self.stored is None


def outlined(subject: Subject) -> tuple[Subject, Mapping[str, str]]:
    """The subject with each join in the kernel's own body as a function before it; their texts by name.

    Statements that do more than join one value a thread stay where they are.
    """
    functions: dict[str, str] = {}
    while True:
        try:
            subject, name, text = _with_one_outlined(subject, functions)
        except Unfit:
            return subject, functions
        functions[name] = text


def _with_one_outlined(subject: Subject, known: Collection[str]) -> tuple[Subject, str, str]:
    found = _find(subject, known)
    names = RewriteBuilder(subject, "outline", "reduction")
    name = names.fresh(f"{subject.entry}_join")
    source, function = subject.source, subject.analysis.function
    edits = [Edit(span, text) for span, text in _kernel_edits(subject, found, name, names.fresh("kw_joined"))]
    whole = Span(declaration_start(source, function), function.place.span.end)
    data = source.encode("utf-8", "surrogatepass")
    function_text, kernel_text = _function(subject, found, name), edited(source, whole, edits)
    before, behind = (part.decode("utf-8", "surrogatepass") for part in (data[: whole.start], data[whole.end :]))
    return replace(subject, source=before + function_text + kernel_text + behind), name, function_text


# Finding


def _find(subject: Subject, known: Collection[str]) -> _Join:
    """The first join that no function of `known` makes, with the store of its result where that is plain."""
    try:
        return _found(subject, known, is_storing=True)
    except Unfit:
        return _found(subject, known, is_storing=False)


def _found(subject: Subject, known: Collection[str], *, is_storing: bool) -> _Join:
    body = subject.analysis.function.body
    if any(isinstance(each, nodes.Return | nodes.Jump) for each in nodes.walk(body)):
        raise Unfit("threads may leave before they meet")
    shared = _shared(body)
    names = {each.name for declaration in shared for each in declaration.declarators}
    names |= _exchanging(subject, known) if names else set()
    touching = [
        index for index, each in enumerate(body.statements)
        if each not in shared and _touches(each, names) and not _calls(each, known)
    ]  # fmt: skip
    with contextlib.suppress(Unfit):
        return _in_one_variable(subject, body.statements, touching, names)
    first, last, following = _bounds(body.statements, touching, names)
    result = _result(body.statements[last + 1 : following], names)
    if following is None and result is None:
        last = touching[-1]
    elif result is None:
        last = _reading_end(body.statements, last, following, names)
    value, own, c_type = _input(body, first, last, names)
    is_stored = result is None and following is None
    if is_stored and value is None:
        end = _store_end(body.statements, last, own) if is_storing else None
        is_stored, last = end is not None, last if end is None else end
    if result is None and not is_stored and value is not None:
        raise Unfit("where the result is read is not known")
    region = body.statements[first : last + 1]
    stored = _stored(subject, region) if is_stored else None
    used = tuple(each for each in shared if any(_mentions(s, {d.name for d in each.declarators}) for s in region))
    before = [each for each in body.statements[:first] if each not in shared and not _calls(each, known)]
    _refuse_other_uses(before, body.statements[following:] if following is not None else (), used)
    places = _places(subject, body.statements[:first], region, names | {own}, value, stored)
    after = body.statements[last + 1 :]
    readers = after if following is None else body.statements[last + 1 : following]
    return _Join(region, after, readers, used, places, value, own, c_type, stored, result)


def _in_one_variable(
    subject: Subject, statements: tuple[nodes.Statement, ...], touching: Sequence[int], names: set[str]
) -> _Join:
    """The first join where each thread's value goes in and the result comes out in one variable, over two levels.

    `x = warp_sum(x); if (lane == 0) part[warp] = x; __syncthreads(); x = part[lane]; x = warp_sum(x);`

    Raises:
        Unfit: the first join is another one.
    """
    body = subject.analysis.function.body
    first = next((index for index in touching if not _is_barrier(statements[index])), None)
    own = None if first is None else _joined_into(statements[first])
    if first is None or own is None:
        raise Unfit("threads do not join one variable")
    kept, last, named, is_met = {own, *names}, first, "", False
    for index in range(first + 1, len(statements)):
        each = statements[index]
        changed = {nodes.root_name(a.target) for a in _assigns(each)} | nodes.assigned_names(each)
        changed -= nodes.declared_names(each)
        named = _named_result(each, own, names) if is_met else ""
        is_place = isinstance(each, nodes.Declaration) and not _mentions(each, kept) and not changed
        if not (named or is_place or _is_barrier(each) or (changed and changed <= kept)):
            break
        is_met = is_met or any(isinstance(c, nodes.Call) and barrier_scope(c.function) for c in nodes.walk(each))
        last = index if named or own in changed else last
        if named:
            break
    inside = {d.name for each in statements[first : last + 1] for d in _declared_in(each)} - {named}
    behind = statements[last + 1 :]
    is_read = bool(named) or any(_mentions(each, {own}) for each in behind)
    if not is_met or last == first or not is_read or any(_mentions(each, inside) for each in behind):
        raise Unfit("threads do not go on with the variable that they join")
    region, later = statements[first : last + 1], [index for index in touching if index > last]
    _, own, c_type = _input(body, first, last, names)
    if named and c_type != next(d.c_type for d in _declared_in(statements[last]) if d.name == named):
        raise Unfit("the result has another type")
    declared = _shared(body)
    used = tuple(each for each in declared if any(_mentions(s, {d.name for d in each.declarators}) for s in region))
    following = later[0] if later else len(statements)
    before = [each for each in statements[:first] if each not in declared]
    _refuse_other_uses(before, statements[following:], used)
    places = _places(subject, statements[:first], region, names | {own}, None, None)
    return _Join(region, behind, statements[last + 1 : following], used, places, None, own, c_type, None, None, named)


def _declared_in(node: nodes.Statement) -> Sequence[nodes.Declarator]:
    return node.declarators if isinstance(node, nodes.Declaration) else ()


def _named_result(node: nodes.Statement, own: str, names: set[str]) -> str:
    """`y` of `const float y = warp_sum(x);`; empty for another statement."""
    match node:
        case nodes.Declaration(declarators=[nodes.Declarator(
            name=name, is_pointer=False, is_reference=False, extents=(),
            initial=nodes.Call(function=function, arguments=[nodes.Name(name=argument)]),
        )]):  # fmt: skip
            return name if argument == own and function in names else ""
    return ""


def _joined_into(node: nodes.Statement) -> str | None:
    """`x` of `x = warp_sum(x);` and of a loop of `x += __shfl_xor_sync(mask, x, o);`."""
    match node:
        case nodes.Loop(body=body):
            changed = nodes.assigned_names(node) - nodes.declared_names(node)
            calls = [each for each in nodes.walk(body) if isinstance(each, nodes.Call) and is_exchange(each.function)]
            return next(iter(changed)) if len(changed) == 1 and calls else None
        case nodes.Evaluate(
            expression=nodes.Assign(operator="=", target=nodes.Name(name=own), value=nodes.Call(arguments=arguments))
        ):
            return own if any(isinstance(each, nodes.Name) and each.name == own for each in arguments) else None
    return None


def _assigns(node: nodes.Node) -> list[nodes.Assign]:
    return [each for each in nodes.walk(node) if isinstance(each, nodes.Assign)]


def _bounds(
    statements: Sequence[nodes.Statement], touching: Sequence[int], names: set[str]
) -> tuple[int, int, int | None]:
    """Where the first join starts and ends, and where the next one starts, if there is one.

    A join in shared memory ends where the first element alone is read; one of shuffles is one statement.
    """
    starting = [index for index in touching if not _is_barrier(statements[index])]
    if not any(_meets(statements[index], names) for index in starting):
        raise Unfit("its threads do not meet")
    first = starting[0]
    if not names:
        return first, first, starting[1] if len(starting) > 1 else None
    read = next((index for index in starting[1:] if not _meets(statements[index], names)), None)
    meeting = [index for index in touching if index >= first and _meets(statements[index], names)]
    if read is None:
        return first, meeting[-1], None
    following = next((index for index in starting if index > read and _meets(statements[index], names)), None)
    if following is None:
        return first, meeting[-1], None
    before = [index for index in meeting if index < read]
    if not before:
        raise Unfit("its threads do not meet before they read")
    return first, before[-1], following


def _reading_end(statements: Sequence[nodes.Statement], last: int, following: int | None, names: set[str]) -> int:
    """The last statement in which each thread joins what all have left in shared memory: `for (...) s += part[w];`."""
    end, own = last, set[str]()
    for index in range(last + 1, len(statements) if following is None else following):
        each = statements[index]
        own |= nodes.assigned_names(each) - nodes.declared_names(each)
        is_reading = isinstance(each, nodes.Loop) and _touches(each, names)
        if isinstance(each, nodes.Declaration) or len(own) != 1 or not (is_reading or isinstance(each, nodes.Evaluate)):
            break
        end = index if is_reading else end
    return end


def _refuse_other_uses(
    before: Sequence[nodes.Statement], later: Sequence[nodes.Statement], shared: Sequence[nodes.Declaration]
) -> None:
    """Shared memory of a join may be used outside of it only where the next join, the first of `later`, stores in it.

    Raises:
        Unfit: it is used before, or what is left in it may be read later.
    """
    names = {each.name for declaration in shared for each in declaration.declarators}
    if any(_mentions(each, names) for each in before):
        raise Unfit("shared memory is used before")
    if not any(_mentions(each, names) for each in later):
        return
    first = _first_of(later, names)
    match first:
        case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Element() as target, value=value)):
            if names == {nodes.root_name(target)} and not _mentions(value, names):
                return
    raise Unfit("shared memory is used after the next join")


def _first_of(statements: Sequence[nodes.Statement], names: Collection[str]) -> nodes.Statement:
    """The first statement that mentions names, inside of conditions; whoever reads more is refused where it is run."""
    first = next(each for each in statements if _mentions(each, names))
    while isinstance(first, nodes.If | nodes.Block):
        if isinstance(first, nodes.If) and (first.no is not None or _mentions(first.condition, names)):
            break
        inner = first.yes if isinstance(first, nodes.If) else first
        inside = inner.statements if isinstance(inner, nodes.Block) else (inner,)
        first = next(each for each in inside if _mentions(each, names))
    return first


def _calls(node: nodes.Node, functions: Collection[str]) -> bool:
    return any(isinstance(each, nodes.Call) and each.function in functions for each in nodes.walk(node))


def _mentions(node: nodes.Node, names: Collection[str]) -> bool:
    return any(isinstance(each, nodes.Name) and each.name in names for each in nodes.walk(node))


def _is_barrier(node: nodes.Statement) -> bool:
    match node:
        case nodes.Evaluate(expression=nodes.Call(function=name)):
            return barrier_scope(name) is not None
    return False


def _shared(body: nodes.Block) -> tuple[nodes.Declaration, ...]:
    found = []
    for each in body.statements:
        if isinstance(each, nodes.Declaration) and any(d.is_shared for d in each.declarators):
            is_plain = all(d.is_shared and d.extents and d.initial is None
                           for d in each.declarators)  # fmt: skip
            if not is_plain or not each.place.is_exact:
                raise Unfit("how much shared memory there is is not known")
            found.append(each)
    return tuple(found)


def _exchanging(subject: Subject, known: Collection[str]) -> set[str]:
    """Functions of the file in which the threads of a warp exchange values, and do not wait for the block."""
    found = set()
    for each in subject.helpers:
        calls = [call.function for call in nodes.walk(each.body) if isinstance(call, nodes.Call)]
        if each.name not in known and any(map(is_exchange, calls)) and not any(map(barrier_scope, calls)):
            found.add(each.name)
    return found


def _is_meeting(function: str, names: set[str]) -> bool:
    return barrier_scope(function) is not None or is_exchange(function) or function in names


def _touches(node: nodes.Node, names: set[str]) -> bool:
    return any(
        (isinstance(each, nodes.Name) and each.name in names)
        or (isinstance(each, nodes.Call) and _is_meeting(each.function, names))
        for each in nodes.walk(node)
    )


def _meets(node: nodes.Node, names: set[str]) -> bool:
    """Whether threads wait, exchange, or store in shared memory."""
    return any(
        (isinstance(each, nodes.Assign) and nodes.root_name(each.target) in names)
        or (isinstance(each, nodes.Call) and _is_meeting(each.function, names))
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


def _store_end(statements: Sequence[nodes.Statement], last: int, own: str) -> int | None:
    """The last statement of the join with the store of its result by one thread; None where all threads go on with it.

    That is the join itself where nothing behind it uses the result.
    """
    uses = [index for index in range(last + 1, len(statements)) if _mentions(statements[index], {own})]
    if not uses:
        return last
    return last + 1 if uses == [last + 1] and isinstance(statements[last + 1], nodes.If) else None


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
    known = (
        known
        | {name for each in region for name in nodes.declared_names(each)}
        | QUERY_VARIABLES
        | {"warpSize"}
        | EXTREMES
    )
    tree, start = subject.analysis.tree, subject.analysis.function.place.span.start
    known |= {each.name for each in tree.constants}
    known |= {each.name for each in tree.expanded.macros.values() if each.is_parameter and each.span.end <= start}
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
    end = [f"return {found.named or found.own};"] if found.is_returned else []
    if found.result is not None:  # a second barrier: the next join may store in the same memory
        read = f"const {found.c_type} kw_result = {found.result.place.span.text(source)};"
        end = [words.barrier, read, words.barrier, "return kw_result;"]
    returned = "void" if found.stored is not None else found.c_type
    lines = [*arrays, *places, edited(source, span, edits), *end]
    text = "\n  ".join(lines)
    head = "static" if words.is_opencl else "static __device__"
    return f"{head} {returned} {name}({', '.join(parameters)}) {{\n  {text}\n}}\n\n"


def _kernel_edits(subject: Subject, found: _Join, name: str, joined: str) -> list[tuple[Span, str]]:
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
        later = found.after[len(found.readers) :]
        edits += [
            (each.place.span, "") for each in found.shared
            if not any(_mentions(s, {d.name for d in each.declarators}) for s in later)
        ]  # fmt: skip
    call = f"{name}({', '.join(arguments)});"
    taken = _taken_back(found)
    if taken is not None:
        call = f"{given} = {call}"
        edits.append((taken.place.span, ""))
    elif found.result is not None:
        call = f"const {found.c_type} {joined} = {call}"
    elif found.named:
        call = f"const {found.c_type} {found.named} = {call}"
    elif found.is_returned and (uses := _uses_behind(found)) is not None:
        call = f"const {found.c_type} {joined} = {call}"
        edits += [(each, joined) for each in uses]
    elif found.is_returned:
        call = f"{found.own} = {call}"
    edits.append((Span(found.region[0].place.span.start, found.region[-1].place.span.end), call))
    if taken is None and found.result is not None:
        edits += [
            (_exact(each), joined) for statement in found.readers for each in nodes.walk(statement)
            if isinstance(each, nodes.Element) and nodes.same(each, found.result)
        ]  # fmt: skip
    edits += [(each.place.span, "") for each in _needless_barriers(subject, found)]
    return edits + _first_thread_edits(found)


def _uses_behind(found: _Join) -> list[Span] | None:
    """Where the variable that goes in is read behind the join; None where it changes there, or a macro has a part."""
    if any(found.own in nodes.assigned_names(each) | nodes.declared_names(each) for each in found.after):
        return None
    inside = (each for statement in found.after for each in nodes.walk(statement))
    uses = [each.place for each in inside if isinstance(each, nodes.Name) and each.name == found.own]
    return [each.span for each in uses] if all(each.is_exact for each in uses) else None


def _first_thread_edits(found: _Join) -> list[tuple[Span, str]]:
    """Names for the thread's place in `== 0`, spelled out."""
    edits = []
    aliases = {each.name: query_text(each.initial) for _, each in found.places if each.initial is not None}
    for statement in found.after:
        for each in nodes.walk(statement):
            match each:
                case nodes.Binary(operator="==", left=nodes.Name(name=alias) as left, right=nodes.Literal(value=0)):
                    if aliases.get(alias) in _FIRST_THREAD:
                        edits.append((_exact(left), aliases[alias]))
    return edits


def _taken_back(found: _Join) -> nodes.Statement | None:
    """The only reader of the result, where it puts the result into the variable that went in."""
    readers = [each for each in found.readers if _reads(each, found.result)]
    own = found.value.name if isinstance(found.value, nodes.Name) else found.own
    match readers:
        case [nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(name=to), value=value))] if (
            own and to == own and found.result is not None and nodes.same(value, found.result)
        ):
            between = found.readers[: found.readers.index(readers[0])]
            return None if any(_mentions(each, {own}) for each in between) else readers[0]
    return None


def _reads(node: nodes.Node, element: nodes.Element | None) -> bool:
    return element is not None and any(
        isinstance(each, nodes.Element) and nodes.same(each, element) for each in nodes.walk(node)
    )


def _needless_barriers(subject: Subject, found: _Join) -> list[nodes.Statement]:
    """Barriers behind a join which guard nothing but the shared memory of joins, or repeat the function's last one."""
    accesses = [each for each in subject.analysis.facts.accesses if each.space != "shared"]
    written = {each.array for each in accesses if each.kind != "read"}
    is_last = len(found.readers) == len(found.after)
    if is_last or written & {each.array for each in accesses if each.kind != "write"}:
        return _repeated_barriers(subject, found)
    return [each for each in found.readers if _is_barrier(each)]


def _repeated_barriers(subject: Subject, found: _Join) -> list[nodes.Statement]:
    """Barriers of shared memory with nothing between them and the one that ends the function but names for values."""
    repeated: list[nodes.Statement] = []
    result = found.result
    for each in found.readers if result is not None else ():
        if _is_barrier(each):
            text = re.sub(r"\s", "", each.place.span.text(subject.source))
            repeated += [each] if each.place.is_exact and text == dialect(subject.language).barrier else []
            continue
        reached = [inner for inner in nodes.walk(each) if isinstance(inner, nodes.Element | nodes.Unary | nodes.Call)]
        is_plain = isinstance(each, nodes.Declaration | nodes.Evaluate)
        if result is None or not is_plain or not all(nodes.same(inner, result) for inner in reached):
            break
    return repeated


def _exact(node: nodes.Node) -> Span:
    if not node.place.is_exact:
        raise Unfit("a macro makes a part of what would change")
    return node.place.span
