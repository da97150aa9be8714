"""Arithmetic that a loop repeats although nothing in it changes: once, before the loop.

Compilers do this where they may: not for what might fail (a division by zero in a loop that does not run) and not for
functions that branch. Only what every step computes for certain is taken out, and only where the first step happens,
so nothing is computed that was not. Sums and products of floats stay: whether a compiler fuses them depends on where
they stand, and results must not change by a bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import math_function
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_hidden_branches
from kernelwright.tactics.common.launches import refuse_aliases
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.scalar.invariants import (
    can_end_early,
    changing_names,
    declare_before,
    exposed_names,
    first_step_condition,
    require_understood,
    unconditional,
)
from kernelwright.tactics.scalar.scalar_types import Scalar, ScalarTypes

NAME = "hoist-arithmetic"
_DEAR = 8
"""Operations, about, that a division or a function takes (guess)."""
_CHEAP_CALLS = frozenset(("min", "max", "fabs", "fmax", "fmin", "fma", "floor", "ceil", "trunc", "rint", "round"))
_ARITHMETIC = frozenset(("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"))


@dataclass(frozen=True, slots=True)
class _Value:
    """One expression that does not change in a loop."""

    node: nodes.Expression
    scalar: Scalar
    operations: int
    may_fail: bool
    """Whether it must not be computed where the loop would not: a division by what may be 0, a load."""
    is_certain: bool
    """Whether it is computed even if the loop does not run: in its condition."""


@dataclass
class _Hoisted:
    """What leaves one loop: by text, its value and where it stands."""

    loop: nodes.Loop
    values: dict[str, tuple[_Value, list[Span]]] = field(default_factory=dict)


def _hoist(subject: Subject) -> Rewrite:
    if NAME in subject.history:
        raise Unfit("what does not change in its loops was taken out before", is_already_so=True)
    refuse_hidden_branches(subject)
    require_understood(subject)
    finder = _Finder(subject)
    found = [each for each in map(finder.of, finder.loops()) if each.values]
    if not found:
        raise Unfit(finder.reason(), is_already_so=not finder.refused)
    plan = RewriteBuilder(subject, NAME, "arithmetic")
    count = operations = 0
    for each in found:
        lines = []
        for text, (value, spans) in each.values.items():
            name, c_type = plan.fresh("kw_same"), finder.types.text(value.scalar)
            guard = "" if value.is_certain else first_step_condition(each.loop, subject.source)
            lines.append(f"const {c_type} {name} = {f'({guard}) ? ({text}) : ({c_type})0' if guard else text};")
            count, operations = count + 1, operations + value.operations
            for span in spans:
                plan.replace(span, name)
        declare_before(plan, each.loop, lines)
    what = "value that does not change in a loop is" if count == 1 else "values that do not change in their loops are"
    return plan.finish(
        f"{count} {what} computed once, before it.",
        Effect(1.06 if operations >= _DEAR else 1.02, f"about {operations} operations less in each step"),
        properties=subject.properties,
    )


class _Finder:
    """Looks for values that do not change in the loops of one kernel."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.exposed = exposed_names(subject)
        self.types = ScalarTypes(subject, _unchanged_arrays(subject))
        self.constants = [
            each.place.span for each in nodes.walk(subject.analysis.function.body)
            if isinstance(each, nodes.Declaration) and "constexpr" in each.place.span.text(subject.source)
        ]  # fmt: skip
        self.refused = ""
        """Why the last value that does not change stayed where it is."""

    def loops(self) -> Sequence[nodes.Loop]:
        """Every loop of the kernel itself."""
        loops = [each for each in nodes.walk(self.subject.analysis.function.body) if isinstance(each, nodes.Loop)]
        return [each for each in loops if each.place.is_exact and each.body.place.is_exact]

    def reason(self) -> str:
        """Why nothing leaves a loop."""
        return self.refused or "no loop repeats arithmetic that costs something and does not change"

    def of(self, loop: nodes.Loop) -> _Hoisted:
        """What leaves a loop: the largest parts of what each step computes for certain."""
        changing = changing_names(loop) | self.exposed
        guard, is_left = first_step_condition(loop, self.subject.source), can_end_early(loop)
        hoisted = _Hoisted(loop)
        taken: list[Span] = []
        for node, is_certain in _every_step(loop):
            span = node.place.span
            if any(each.contains(span) for each in taken):
                continue
            value = self._value(node, changing, is_certain=is_certain)
            if value is None:
                continue
            if value.may_fail and not is_certain and (not guard or is_left):
                self.refused = "what does not change in its loops might fail where they do not run"
                continue
            taken.append(span)
            known = hoisted.values.setdefault(span.text(self.subject.source), (value, []))
            known[1].append(span)
        return hoisted

    def _value(self, node: nodes.Expression, changing: frozenset[str], *, is_certain: bool) -> _Value | None:
        """An expression as a value that may leave its loop and is worth it; None for any other."""
        if not isinstance(node, nodes.Binary | nodes.Call) or query_text(node) or not node.place.is_exact:
            return None
        if not self._is_same(node, changing) or not self._is_computed(node):
            return None
        scalar = self.types.of(node)
        if scalar is None or self.types.text(scalar) is None:
            self.refused = "the type of what does not change in its loops is not certain"
            return None
        is_float = scalar in ("float", "double")
        if is_float and not (isinstance(node, nodes.Call) or node.operator == "/"):
            return None  # sums and products may be fused with what they stand in
        operations = self._operations(node)
        if operations < (_DEAR if is_float else 2):
            return None
        return _Value(node, scalar, operations, self._may_fail(node), is_certain)

    def _is_same(self, node: nodes.Expression, changing: frozenset[str]) -> bool:
        """Whether a value is made of numbers, variables that stay, the thread's place, and memory that stays."""
        if query_text(node):
            return True
        match node:
            case nodes.Literal():
                return True
            case nodes.Name(name=name):
                return name not in changing and name in self.types.names
            case nodes.Binary(operator=operator) if operator not in _ARITHMETIC:
                return False
            case nodes.Unary(operator=operator) if operator not in ("-", "+", "~"):
                return False
            case nodes.Element(base=nodes.Name(name=name), index=index):
                return name in self.types.loads and name not in changing and self._is_same(index, changing)
            case nodes.Call() if self.types.of(node) is None:
                return False
            case nodes.Binary() | nodes.Unary() | nodes.Call() | nodes.Cast(is_pointer=False):
                return all(self._is_same(each, changing) for each in nodes.children(node))  # type: ignore[arg-type]
        return False

    def _is_computed(self, node: nodes.Expression) -> bool:
        """Whether a value is known only when the kernel runs, and need not be known before."""
        constants = {each.name for each in self.subject.header.parameters}
        if any(each.contains(node.place.span) for each in self.constants):
            return False
        return any(
            query_text(each) or (isinstance(each, nodes.Name) and each.name not in constants)
            for each in nodes.walk(node)
        )

    def _operations(self, node: nodes.Expression) -> int:
        """About how many operations a value takes."""
        count = 0
        for each in nodes.walk(node):
            match each:
                case nodes.Call(function=name) if not query_text(each):
                    known = math_function(name)
                    count += 1 if known is not None and known[0] in _CHEAP_CALLS else 2 * _DEAR
                case nodes.Binary(operator="/" | "%", right=right):
                    is_easy = isinstance(right, nodes.Literal) and right.value is not None
                    count += 2 if is_easy else _DEAR
                case nodes.Binary():
                    count += 1
        return count

    def _may_fail(self, node: nodes.Expression) -> bool:
        for each in nodes.walk(node):
            match each:
                case nodes.Element():
                    return True
                case nodes.Binary(operator="/" | "%", right=right) if self.types.of(each) not in ("float", "double"):
                    if not (isinstance(right, nodes.Literal) and right.value):
                        return True
        return False


def _every_step(loop: nodes.Loop) -> Iterator[tuple[nodes.Expression, bool]]:
    """What every step computes, and whether that is so even if there is no step; what is certain comes first."""
    if loop.word != "do" and loop.condition is not None:
        yield from ((each, True) for each in unconditional(loop.condition))
    yield from ((each, False) for each in unconditional(loop.body))


def _unchanged_arrays(subject: Subject) -> dict[str, str]:
    """Element types, by parameter, of arrays that the kernel never changes; none where two pointers share one."""
    facts = subject.analysis.facts
    try:
        refuse_aliases(subject)
    except Unfit:
        return {}
    changed = {access.array for access in facts.accesses if access.kind != "read" or access.is_atomic}
    body = subject.analysis.function.body
    moved = nodes.assigned_names(body) | nodes.declared_names(body)
    return {
        name: array.c_type for name, array in facts.arrays.items()
        if array.is_parameter and array.space in ("global", "constant") and array.width == 1
        and name not in changed and name not in moved
    }  # fmt: skip


HOIST_ARITHMETIC = RuleTactic(
    NAME, "arithmetic", "Arithmetic that a loop repeats unchanged: once, before the loop.", _hoist
)
