"""What is decided, or said in a roundabout way: conditions without variables, references, types named in a body.

Pointers to one of two arrays, too: what is done with them stands in both branches, with one array in each.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import is_exchange
from kernelwright.source.edits import Edit
from kernelwright.source.lexer import masked, matching, words_of
from kernelwright.source.normal.broadcasts import is_barrier
from kernelwright.source.normal.draft import KernelText, LeftAsIs, in_one_line, in_parentheses, is_pure, renamed
from kernelwright.source.normal.inlining import meets
from kernelwright.source.span import Span

_ALIAS = re.compile(
    r"\s*(?:using\s+(?P<new>\w+)\s*=\s*(?P<old>[^;]+)|typedef\s+(?P<old_>[^;]+?)\s+(?P<new_>\w+))\s*;\s*"
)

_INT = 2**31
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = MappingProxyType({
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod,
})  # fmt: skip
"""Of numbers that are not negative."""
_MEMORY = re.compile(rb"\b(?:__)?(?:global|local|constant|private)\s+$")
_MOST_COPIED = 4000
"""The longest text that is written twice, in bytes (guess)."""


def decide_branches(draft: KernelText) -> list[Edit]:
    """Conditions that are the same for all threads and sizes, as the branch that is taken; parts of them, as the rest.

    `1024 > 32 && x < n` is `x < n`.
    """
    for function in draft.reached:
        for each in nodes.walk(function.body):
            try:
                match each:
                    case nodes.If(condition=condition, yes=yes, no=no) if (truth := _truth(condition)) is not None:
                        taken = yes if truth else no
                        text = "{ }" if taken is None else _flat(draft, function, taken)
                        return [draft.edit(each, text + "\n" * (draft.text(each).count("\n") - text.count("\n")))]
                    case nodes.Conditional(condition=condition, yes=yes, no=no) if (
                        truth := _truth(condition)
                    ) is not None:
                        return [draft.edit(each, in_parentheses(draft.text(yes if truth else no)))]
                    case nodes.If(condition=nodes.Binary() as condition) if (rest := _undecided(condition)) is not None:
                        return [draft.edit(condition, draft.text(rest))]
            except LeftAsIs:
                continue
    return []


def _undecided(node: nodes.Binary) -> nodes.Expression | None:
    """The other side of a condition one side of which is decided, and decides nothing."""
    for own, other in ((node.left, node.right), (node.right, node.left)):
        if node.operator in ("&&", "||") and _truth(own) is (node.operator == "&&"):
            return other
    return None


def _truth(node: nodes.Expression) -> bool | None:
    """What a condition of numbers alone is; None where it has variables, or is not followed."""
    match node:
        case nodes.Unary(operator="!", operand=operand):
            inner = _truth(operand)
            return None if inner is None else not inner
        case nodes.Binary(operator="&&" | "||" as sign, left=left, right=right):
            deciding = sign == "||"
            sides = (_truth(left), _truth(right))
            return deciding if sides[0] is deciding else None if None in sides else sides[1]
    value = _number(node)
    return None if value is None else bool(value)


def _number(node: nodes.Expression) -> int | None:
    """The value of an `int` expression of literals alone."""
    match node:
        case nodes.Literal(value=value, text=text):
            return value if value is not None and 0 <= value < _INT and text[-1] not in "'\"" else None
        case nodes.Binary(operator=sign, left=left, right=right) if sign in _OPERATIONS:
            sides = (_number(left), _number(right))
            if sides[0] is None or sides[1] is None or (sign in ("/", "%") and not 0 < sides[1] <= sides[0]):
                return None
            value = int(_OPERATIONS[sign](sides[0], sides[1]))
            return value if 0 <= value < _INT else None
    return None


def _flat(draft: KernelText, function: nodes.Function, statement: nodes.Statement) -> str:
    """A branch without its braces, where these hide no names that others have."""
    if isinstance(statement, nodes.Block):
        own = {d.name for s in statement.statements if isinstance(s, nodes.Declaration) for d in s.declarators}
        span = statement.place.span
        outside = draft.at(Span(draft.span(function).start, span.start)) + draft.at(
            Span(span.end, function.place.span.end)
        )
        is_opaque = any(isinstance(each, nodes.OpaqueStatement) for each in statement.statements)
        if is_opaque or own & set(words_of(outside)):
            return draft.text(statement)
    return draft.inside(statement) or "{ }"


def replace_references(draft: KernelText) -> list[Edit]:
    """Second names for something, as the first one."""
    for function in draft.reached:
        changed = nodes.assigned_names(function.body)
        for each in nodes.walk(function.body):
            if not isinstance(each, nodes.Declaration) or len(each.declarators) != 1:
                continue
            (own,) = each.declarators
            initial = own.initial
            if not own.is_reference or own.is_const or initial is None or not is_pure(initial):
                continue
            names = {n.name for n in nodes.walk(initial) if isinstance(n, nodes.Name)}
            is_place = isinstance(initial, nodes.Element | nodes.Member | nodes.Name)
            if not is_place or names & (changed - ({nodes.variable_of(initial)} | {own.name})):
                continue
            try:
                text = in_parentheses(draft.text(initial))
                uses = [draft.edit(n, text) for n in nodes.walk(function.body)
                        if isinstance(n, nodes.Name) and n.name == own.name]  # fmt: skip
                return [draft.edit(each, ""), *uses]
            except LeftAsIs:
                continue
    return []


def resolve_aliases(draft: KernelText) -> list[Edit]:
    """Types that a body names anew, as what they are."""
    for function in draft.reached:
        for each in nodes.walk(function.body):
            found = _ALIAS.fullmatch(draft.at(each.place.span)) if isinstance(each, nodes.OpaqueStatement) else None
            if found is None or not each.place.is_exact:
                continue
            new, old = found["new"] or found["new_"], (found["old"] or found["old_"]).strip()
            span = function.body.place.span
            before = draft.at(type(span)(span.start, each.place.span.start))
            after = draft.at(type(span)(each.place.span.end, span.end))
            old = _of_trait(draft, old)
            if not function.body.place.is_exact or "typename" in old:
                continue
            return [Edit(span, before + renamed(after, {new: old}))]
    return []


def _of_trait(draft: KernelText, name: str) -> str:
    """The type that `typename Trait<half>::type` is by a full specialisation in the file; any other as it is."""
    told = re.fullmatch(r"typename\s+(?:\w+\s*::\s*)*(\w+)\s*<([\w\s,]*)>\s*::\s*(\w+)", name)
    if told is None:
        return name
    trait, arguments, member = told[1], "".join(told[2].split()), told[3]
    code = masked(draft.source)
    for each in re.finditer(rf"\btemplate\s*<\s*>\s*(?:struct|class)\s+{trait}\s*<([^<>{{}};]*)>\s*\{{", code):
        end = matching(code, each.end() - 1)
        body = code[each.end() : end]
        said = re.search(rf"\btypedef\s+([\w\s]+?)\s+{member}\s*;|\busing\s+{member}\s*=\s*([\w\s]+?)\s*;", body)
        if "".join(each[1].split()) == arguments and said is not None:
            return said[1] or said[2]
    return name


def separate_arrays(draft: KernelText) -> list[Edit]:
    """The first pointer that is one of two, chosen by a condition, as one in each of two branches.

    `T *p = c ? a : b; REST` becomes `if (c) { T *p = a; REST } else { T *p = b; REST }`; so does an `if` around.
    """
    for function in draft.reached:
        for block in nodes.walk(function.body):
            for index, each in enumerate(block.statements if isinstance(block, nodes.Block) else ()):
                assert isinstance(block, nodes.Block)
                try:
                    edits = _separated(draft, function, block, index, each)
                except LeftAsIs:
                    continue
                if edits:
                    return edits
    return []


def _separated(
    draft: KernelText, function: nodes.Function, block: nodes.Block, index: int, node: nodes.Statement
) -> list[Edit]:
    pointers = _pointers(function)
    start = _start(draft, node)
    rest = block.statements[index + 1 :]
    match node:
        case nodes.Declaration(
            declarators=[nodes.Declarator(is_pointer=True, initial=nodes.Conditional() as choice) as own]
        ):
            text = draft.at(Span(start, draft.span(choice).start)).rstrip().rstrip("(")
            yes, no = (f"{text}{draft.text(each)};" for each in (choice.yes, choice.no))
            condition, chosen = choice.condition, {own.name}
        case nodes.If(condition=condition, yes=first, no=second) if second is not None:
            yes, no = draft.inside(first), draft.inside(second)
            chosen = {each.name for each in _given(first)} & {each.name for each in _given(second)} & pointers
            if any(
                isinstance(each, nodes.Return | nodes.Jump) for part in (first, second) for each in nodes.walk(part)
            ):
                return []
            if (nodes.declared_names(first) | nodes.declared_names(second)) & _names(rest):
                return []
        case _:
            return []
    if not chosen & _names(rest) or not is_pure(condition) or _has_threads_meet(draft, rest):
        return []
    span = Span(draft.span(rest[0]).start, draft.span(rest[-1]).end)
    if span.end - span.start > _MOST_COPIED:
        raise LeftAsIs("too much would be written twice")
    if re.search(r"(?:^|[;{}])\s*(?!default\b)\w+\s*:(?!:)", draft.at(span)):
        raise LeftAsIs("a label would stand twice")
    tail = in_one_line(draft.at(Span(_start(draft, rest[0]), span.end)))
    text = f"if ({draft.text(condition)}) {{ {in_one_line(yes)} {tail} }} else {{ {in_one_line(no)} {tail} }}"
    whole = Span(start, span.end)
    return [Edit(whole, text + "\n" * draft.at(whole).count("\n"))]


def _start(draft: KernelText, node: nodes.Statement) -> int:
    """Where a statement starts, with OpenCL's word for its memory, which trees leave out."""
    start = draft.span(node).start
    found = _MEMORY.search(draft.data, max(0, start - 24), start) if draft.language == "opencl" else None
    return start if found is None else start - len(found[0])


def _names(statements: Sequence[nodes.Statement]) -> set[str]:
    return {each.name for part in statements for each in nodes.walk(part) if isinstance(each, nodes.Name)}


def _pointers(function: nodes.Function) -> set[str]:
    return {each.name for each in nodes.walk(function.body) if isinstance(each, nodes.Declarator) and each.is_pointer}


def _given(node: nodes.Node) -> Iterator[nodes.Name]:
    """Variables that are assigned to as a whole."""
    for each in nodes.walk(node):
        if isinstance(each, nodes.Assign) and each.operator == "=" and isinstance(each.target, nodes.Name):
            yield each.target


def _has_threads_meet(draft: KernelText, statements: tuple[nodes.Statement, ...]) -> bool:
    """Whether threads wait for each other or exchange values there: branches would part them."""
    for statement in statements:
        for each in nodes.walk(statement):
            helper = draft.helpers.get(each.function) if isinstance(each, nodes.Call) else None
            is_exchanging = isinstance(each, nodes.Call) and is_exchange(each.function)
            if is_barrier(each) or is_exchanging or (helper is not None and meets(draft, helper)):
                return True
    return False
