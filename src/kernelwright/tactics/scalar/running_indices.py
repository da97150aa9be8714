"""Quotients and remainders of a loop's index become counters that run along: additions in place of divisions.

`for (i = first; i < n; i += step)` with `i / width` and `i % width` inside divides twice in each step. Where the index
starts at 0 or above and walks upwards, and the width stays and is at least 1, both follow from those of the step
before. What that takes of the sizes becomes conditions of the template.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelwright.analysis.facts import LoopFact
from kernelwright.analysis.polynomial import Polynomial, named, number
from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader, read_header
from kernelwright.source.span import Span
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_hidden_branches
from kernelwright.tactics.common.iteration_domain import expression_of
from kernelwright.tactics.common.launches import extents, only_shape
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.scalar.invariants import (
    changing_names,
    declare_before,
    exposed_names,
    is_repeatable,
    require_understood,
)
from kernelwright.tactics.scalar.scalar_types import Scalar, ScalarTypes

NAME = "running-indices"
MOST = 2**31 - 1
_INTEGERS = ("int", "uint", "long", "ulong", "size")


@dataclass
class _Radix:
    """One width that a loop's index is divided by."""

    node: nodes.Expression
    scalar: Scalar
    """The type that index and width are divided in."""
    quotients: list[Span] = field(default_factory=list)
    remainders: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Walk:
    """A loop whose index starts at 0 or above and walks upwards."""

    loop: nodes.Loop
    header: LoopHeader
    index: nodes.Declarator
    fact: LoopFact
    conditions: tuple[tuple[str, str], ...]
    """What sizes must be, by name."""


def _run(subject: Subject) -> Rewrite:
    if NAME in subject.history:
        raise Unfit("its indices run along", is_already_so=True)
    refuse_hidden_branches(subject)
    require_understood(subject)
    reader = _Reader(subject)
    plan = RewriteBuilder(subject, NAME, "arithmetic")
    count, reason = 0, ""
    for loop in (each for each in nodes.walk(subject.analysis.function.body) if isinstance(each, nodes.Loop)):
        try:
            count += _rewrite(plan, reader, loop)
        except Unfit as unfit:
            reason = unfit.reason
    if not count:
        raise Unfit(reason or "no loop divides its index by what stays the same", is_already_so=not reason)
    return plan.finish(
        f"{count} divisions of loop indices become counters that run along.",
        Effect(1.1, "a division of integers takes as long as ten to thirty additions"),
        properties=subject.properties,
    )


class _Reader:
    """What is known of one kernel's integers."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.types = ScalarTypes(subject)
        self.exposed = exposed_names(subject)
        self.facts = {each.span: each for each in subject.analysis.facts.loops if not each.inlined_in}
        body = subject.analysis.function.body
        self.assigned = nodes.assigned_names(body)
        declared = [each for each in nodes.walk(body) if isinstance(each, nodes.Declarator)]
        self.fixed = {
            each.name: each.initial for each in declared
            if each.initial is not None and each.name in self.types.names and each.name not in self.assigned
        }  # fmt: skip
        self.declared = {each.name for each in declared}

    def value(self, node: nodes.Expression, depth: int = 0) -> Polynomial | None:
        """An integer made of parameters, sizes of the launch and numbers by sums and products; None for any other."""
        if text := query_text(node):
            return _launch_size(text)
        match node:
            case nodes.Literal(value=value) if value is not None:
                return number(value)
            case nodes.Name(name=name) if name in self.fixed and depth < 8:
                return self.value(self.fixed[name], depth + 1)
            case nodes.Name(name=name) if name in self.types.names and name not in self.assigned | self.declared:
                return named(name)
            case nodes.Binary(operator="+" | "*" as operator, left=left, right=right):
                first, second = self.value(left, depth + 1), self.value(right, depth + 1)
                if first is None or second is None:
                    return None
                return first + second if operator == "+" else first * second
            case nodes.Cast(operands=(inner,), is_pointer=False) if self.types.of(node) is not None:
                return self.value(inner, depth + 1)
        return None

    def at_least(self, value: Polynomial | None, least: int, what: str) -> tuple[tuple[str, str], ...]:
        """Conditions on sizes under which a value is at least `least`.

        Raises:
            Unfit: there are none that are known.
        """
        if value is None or any(coefficient < 0 for _, coefficient in value.terms):
            raise Unfit(f"that {what} is at least {least} is not certain")
        names = {name for name in value.names if not name.startswith(("block_size.", "grid_size."))}
        conditions = []
        for name in sorted(names):
            text = expression_of(self.subject, named(name))
            if text is None:
                raise Unfit(f"that {what} is at least {least} is not certain")
            conditions.append((f"least_{name}", f"{text} >= {least}"))
        if least and not any(coefficient > 0 for _, coefficient in value.terms):
            raise Unfit(f"{what} is 0")
        return tuple(conditions)


def _launch_size(text: str) -> Polynomial | None:
    for axis, letter in enumerate("xyz"):
        if text in (f"blockDim.{letter}", f"get_local_size({axis})"):
            return named(f"block_size.{letter}")
        if text in (f"gridDim.{letter}", f"get_num_groups({axis})"):
            return named(f"grid_size.{letter}")
        if text == f"get_global_size({axis})":
            return named(f"block_size.{letter}") * named(f"grid_size.{letter}")
    return None


def _rewrite(plan: RewriteBuilder, reader: _Reader, loop: nodes.Loop) -> int:
    """Change one loop; how many divisions are gone.

    Raises:
        Unfit: it divides its index, and something is not certain.
    """
    header = read_header(loop)
    if header is None or loop.word != "for" or not isinstance(loop.initial, nodes.Declaration):
        return 0
    changing = changing_names(loop) | reader.exposed
    radices = _radices(reader, loop, header.variable, changing)
    if not radices:
        return 0
    walk = _walk(reader, loop, header, changing)
    conditions = dict(walk.conditions)
    lines: list[str] = []
    updates: list[str] = []
    for radix in radices.values():
        conditions |= dict(reader.at_least(reader.value(radix.node), 1, "what a loop divides its index by"))
        _count_along(plan, walk, radix, lines, updates)
    for name, condition in conditions.items():
        plan.constraint(name, condition)
    assert loop.update is not None
    plan.insert(loop.update.place.span.end, "".join(f", {each}" for each in updates))
    declare_before(plan, loop, lines)
    return sum(len(each.quotients) + len(each.remainders) for each in radices.values())


def _radices(reader: _Reader, loop: nodes.Loop, index: str, changing: frozenset[str]) -> dict[str, _Radix]:
    """By text, what the loop divides its index by."""
    found: dict[str, _Radix] = {}
    hidden = [each for each in nodes.walk(loop.body) if isinstance(each, nodes.Declarator) and each.name == index]
    if hidden or not loop.place.is_exact:
        return found
    for node in nodes.walk(loop.body):
        match node:
            case nodes.Binary(operator="/" | "%" as operator, left=nodes.Name(name=name), right=right) if name == index:
                scalar = reader.types.common(_index_type(reader, loop), reader.types.of(right))
                if not node.place.is_exact or scalar not in _INTEGERS or not _stays(reader, right, changing):
                    continue
                radix = found.setdefault(right.place.span.text(reader.subject.source), _Radix(right, scalar))
                if not nodes.same(radix.node, right):
                    continue
                (radix.quotients if operator == "/" else radix.remainders).append(node.place.span)
    return found


def _index_type(reader: _Reader, loop: nodes.Loop) -> Scalar | None:
    assert isinstance(loop.initial, nodes.Declaration)
    found = reader.types.spelled(loop.initial.declarators[0].c_type)
    return found if found in _INTEGERS else None


def _stays(reader: _Reader, node: nodes.Expression, changing: frozenset[str]) -> bool:
    """Whether a width is an integer that does not change in a loop and is not known before the kernel runs."""
    names = {each.name for each in nodes.walk(node) if isinstance(each, nodes.Name)}
    is_constant = not any(query_text(each) for each in nodes.walk(node)) and all(
        reader.subject.header.parameter(name) is not None for name in names
    )
    return not is_constant and not names & changing and is_repeatable(node)


def _walk(reader: _Reader, loop: nodes.Loop, header: LoopHeader, changing: frozenset[str]) -> _Walk:
    """A loop that walks upwards from 0 or above, with what sizes must be for that.

    Raises:
        Unfit: it is none, as far as is known.
    """
    assert isinstance(loop.initial, nodes.Declaration)
    fact = reader.facts.get(loop.place.span)
    index = loop.initial.declarators[0]
    if fact is None or fact.start is None or fact.step is None or len(loop.initial.declarators) != 1:
        raise Unfit("how a loop that divides its index counts is not followed")
    is_plain = header.step_kind == "add" and header.operator in ("<", "<=") and not header.is_in_body
    if not is_plain or index.name != header.variable or index.initial is None or loop.update is None:
        raise Unfit("a loop that divides its index does not count upwards to a bound")
    if not (loop.update.place.is_exact and is_repeatable(index.initial)) or index.name in reader.exposed:
        raise Unfit("how a loop that divides its index counts is not followed")
    if header.step is not None:
        names = {each.name for each in nodes.walk(header.step) if isinstance(each, nodes.Name)}
        if names & changing or not is_repeatable(header.step) or reader.types.of(header.step) is None:
            raise Unfit("the step of a loop that divides its index may change")
    step = number(1) if header.step is None else reader.value(header.step)
    conditions = reader.at_least(step, 1, "a loop's step")
    conditions += _start_conditions(reader, fact) + _end_conditions(reader, loop, header, fact)
    return _Walk(loop, header, index, fact, conditions)


def _start_conditions(reader: _Reader, fact: LoopFact) -> tuple[tuple[str, str], ...]:
    """What makes a loop start at 0 or above.

    Raises:
        Unfit: nothing that is known.
    """
    assert fact.start is not None
    atoms = reader.subject.analysis.facts.atoms
    places = [name for name in fact.start.names if atoms[name].kind == "thread"]
    rest = fact.start
    conditions: tuple[tuple[str, str], ...] = ()
    for name in sorted(places):
        part = rest.coefficient(name)
        if part is None or part.names & set(places):
            raise Unfit("where a loop that divides its index starts is not certain")
        conditions += reader.at_least(part, 0, "a loop's start")
        rest = rest - part * named(name)
    conditions += reader.at_least(rest, 0, "a loop's start")
    covered = extents(only_shape(reader.subject)) if places else ()
    for axis, each in zip("xyz", covered, strict=False):
        if any(name.endswith(f".{axis}") for name in places):
            conditions += ((f"threads_{axis}", f"({each.grid}) * ({each.block}) <= {MOST}"),)
    return conditions


def _end_conditions(
    reader: _Reader, loop: nodes.Loop, header: LoopHeader, fact: LoopFact
) -> tuple[tuple[str, str], ...]:  # fmt: skip
    """What keeps an index of 32 bits from wrapping around before its loop ends; signed ones do not, by the language.

    Raises:
        Unfit: nothing that is known.
    """
    index, step = _index_type(reader, loop), None if header.step is None else reader.types.of(header.step)
    if index not in ("int", "uint") or (index == "int" and step in (None, "int", "small")):
        return ()
    assert fact.step is not None
    bound = None if fact.bound is None else expression_of(reader.subject, fact.bound)
    apart = _with_launch(reader.subject, fact.step.amount)
    if bound is None or apart is None:
        raise Unfit("an index of 32 bits might wrap around")
    return ((f"ends_{header.variable}", f"{bound} + {apart} <= {MOST}"),)


def _with_launch(subject: Subject, value: Polynomial) -> str | None:
    """A polynomial as an expression in sizes, with the launch's own; None: not possible."""
    covered = dict(zip("xyz", extents(only_shape(subject)), strict=True))
    terms = []
    for monomial, coefficient in value.terms:
        factors = [str(coefficient)]
        for name in monomial:
            level, _, axis = name.partition(".")
            sizes = {"block_size": "block", "grid_size": "grid"}
            known = getattr(covered[axis], sizes[level]) if level in sizes else expression_of(subject, named(name))
            if known is None:
                return None
            factors.append(f"({known})")
        terms.append(" * ".join(factors))
    return " + ".join(terms) or "0"


def _count_along(plan: RewriteBuilder, walk: _Walk, radix: _Radix, lines: list[str], updates: list[str]) -> None:
    """Counters for one width: declared before the loop, moved behind its update, read where it divided."""
    subject = plan.subject
    c_type = ScalarTypes(subject).text(radix.scalar)
    assert c_type is not None
    assert walk.index.initial is not None
    source = subject.source
    width, by, left = plan.fresh("kw_width"), plan.fresh("kw_by"), plan.fresh("kw_left")
    first = f"({c_type})({walk.index.c_type})({walk.index.initial.place.span.text(source)})"
    step = "1" if walk.header.step is None else walk.header.step.place.span.text(source)
    lines.append(f"const {c_type} {width} = {radix.node.place.span.text(source)};")
    lines.append(f"const {c_type} {left} = {width} - ({c_type})({step}) % {width};")
    remainder = plan.fresh("kw_remainder")
    if radix.quotients:
        quotient = plan.fresh("kw_quotient")
        lines.append(f"const {c_type} {by} = ({c_type})({step}) / {width};")
        lines.append(f"{c_type} {quotient} = {first} / {width};")
        updates.append(f"{quotient} += {by} + ({remainder} >= {left})")
        for span in radix.quotients:
            plan.replace(span, quotient)
    lines.append(f"{c_type} {remainder} = {first} % {width};")
    updates.append(f"{remainder} = {remainder} >= {left} ? {remainder} - {left} : {remainder} + ({width} - {left})")
    for span in radix.remainders:
        plan.replace(span, remainder)


RUNNING_INDICES = RuleTactic(
    NAME, "arithmetic", "Quotients and remainders of a loop's index as counters: additions in place of divisions.", _run
)
