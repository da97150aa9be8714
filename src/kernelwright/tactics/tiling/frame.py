"""What tiling needs of a kernel whose threads do not meet: its index space, its limits, its body as a function.

The body becomes a function of the thread's place: the kernel's own words for it (`get_global_id`, `blockIdx`) are
macros there, so that the body stays byte for byte but for what a tactic edits. Where a kernel knows only its place
among all threads, blocks have one thread there; where it asks for more, the place is taken apart by the block that it
was launched with. Both are exact for threads that do not meet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kernelwright.analysis.affine import AffineForm
from kernelwright.analysis.facts import Access, Relation
from kernelwright.analysis.patterns.indices import Touch
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, named, number
from kernelwright.errors import SpecError
from kernelwright.problem.dtypes import dtype_of_c_type
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source.edits import Edit, EditConflict, apply
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.c_text import c_text
from kernelwright.tactics.common.dialect import AXES, Dialect
from kernelwright.tactics.common.editing import RewriteBuilder, declaration_start, line_start
from kernelwright.tactics.common.launches import Extent
from kernelwright.tactics.common.launches import number as plain_number
from kernelwright.tactics.common.thread_index_words import CUDA_WORDS, KINDS_OF_PLACE, cuda_word, place_words

MOST_PLACES = 2**31 - 2**24
"""The largest index that is counted in `int`, with room for a tile and its border."""
_SIZED = re.compile(
    r"launch_bounds|reqd_work_group_size|work_group_size|cluster_dims|sub_group_size|max_blocks|waves_per_eu"
)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a condition says of one index: it is below `value`, at least `value`, or another."""

    atom: str
    kind: str
    """`below`, `from` or `not`."""
    value: Polynomial


@dataclass(frozen=True, slots=True)
class Index:
    """One index of the kernel's space."""

    atom: str
    end: str
    """C text, in the kernel: the first value that it has not."""
    host: str
    """The same as an expression in sizes, for the launch."""
    axis: str
    """The launch axis that it walks."""
    start: str = ""
    """C text of its first value where that is not 0; `end` and `host` count from there."""

    def text(self, name: str) -> str:
        """Its value, for a variable that counts from 0."""
        return f"({name} + {self.start})" if self.start else name


@dataclass(frozen=True)
class Frame:
    """The index space of one kernel."""

    subject: Subject
    dialect: Dialect
    axes: tuple[str, ...]
    """The launch axes that it asks for."""
    extents: Mapping[str, Extent]
    blocks: Mapping[str, str]
    """By axis, the threads of a block that the kernel itself was written for; only where it asks for them."""
    splits: Mapping[str, tuple[tuple[str, Polynomial], ...]]
    """By axis that the kernel takes apart: the remainders with their divisors, fastest first; the last has none."""
    _cache: dict[str, object] = field(default_factory=dict, compare=False)

    # Values

    def normal(self, value: Polynomial) -> Polynomial:
        """A value with places in blocks written as places among all threads.

        Raises:
            Unfit: it uses the one without the other.
        """
        for axis in self.axes:
            thread, block = f"thread.{axis}", f"block.{axis}"
            if value.names.isdisjoint((thread, block)):
                continue
            by_thread, by_block = value.coefficient(thread), value.coefficient(block)
            size = self._block_size(axis)
            if by_thread is None or by_block is None or size is None or (by_block != by_thread * size and size != ONE):
                raise Unfit("an index uses the place in the block alone")
            new = {thread: ZERO, block: named(f"global.{axis}")} if size == ONE else {
                thread: named(f"global.{axis}"), block: ZERO}  # fmt: skip
            value = value.replaced(new)
        return value

    def _block_size(self, axis: str) -> Polynomial | None:
        text = self.extents[axis].block
        value = plain_number(text)
        if value is not None:
            return number(value)
        return named(text) if text.isidentifier() else None

    def form(self, touch: Touch) -> AffineForm:
        """An access's element as affine form in indices of the space.

        Raises:
            Unfit: as `normal`.
        """
        terms = dict(touch.form.terms)
        for axis in self.axes:
            thread, block = terms.pop(f"thread.{axis}", ZERO), terms.pop(f"block.{axis}", ZERO)
            if not thread.terms and not block.terms:
                continue
            size = self._block_size(axis)
            if size == ONE:
                thread = block
            elif size is None or block != thread * size:
                raise Unfit(f"an index of {touch.array} uses the place in the block alone")
            terms[f"global.{axis}"] = terms.get(f"global.{axis}", ZERO) + thread
        return AffineForm(MappingProxyType({name: c for name, c in terms.items() if c.terms}), touch.form.offset)

    def text(self, value: Polynomial, names: Mapping[str, str] = MappingProxyType({}), *, cast: str = "") -> str:
        """A value as C text in the kernel; sizes must be parameters, macros or constants of the source.

        What is subtracted from sizes is signed: `w - 2` of an unsigned `w` is below 0 where `w` is 1.

        Raises:
            Unfit: something in it has no text.
        """
        self._check_sizes(value, names)
        if not cast and not names and any(factor < 0 for _, factor in value.terms) and not self._is_int(value):
            cast = f"({self.dialect.signed_64})"
        return c_text(value, self.subject.analysis.facts.atoms, names, cast=cast)

    def _is_int(self, value: Polynomial) -> bool:
        """Whether C calculates a value of sizes as `int`, as far as its parameters' types go."""
        facts = self.subject.analysis.facts
        types = {each.name: each.c_type for each in facts.parameters if not each.is_pointer}
        names, waiting = set[str](), list(value.names)
        while waiting:
            name = waiting.pop()
            if name in names:
                continue
            names.add(name)
            atom = facts.atoms.get(name)
            waiting += [each for part in (atom.parts if atom is not None else ()) for each in part.names]
        return all(is_at_most_int(types[name], self.subject) for name in names & set(types))

    def _check_sizes(self, value: Polynomial, names: Mapping[str, str]) -> None:
        facts = self.subject.analysis.facts
        known = {each.name for each in facts.parameters if not each.is_pointer} | set(facts.template_parameters)
        known |= set(facts.defaults) | set(self.subject.analysis.tree.expanded.macros)
        known |= {each.name for each in self.subject.analysis.tree.constants}
        for name in value.names - set(names):
            atom = facts.atoms.get(name)
            if atom is not None and atom.parts:
                for part in atom.parts:
                    self._check_sizes(part, names)
            elif name not in known:
                raise Unfit(f"{name} is not known at the kernel's start")

    def host(self, value: Polynomial) -> str:
        """A value of sizes as an expression for the header.

        Raises:
            Unfit: a by-value parameter is not known in sizes.
        """
        terms = []
        for monomial, coefficient in value.terms:
            factors = [str(coefficient)] if coefficient != 1 or not monomial else []
            terms.append(" * ".join([*factors, *(self._host_name(name) for name in monomial)]))
        return " + ".join(terms) if terms else "0"

    def _host_name(self, name: str) -> str:
        subject = self.subject
        if subject.header.parameter(name) is not None:
            return name
        scalar = subject.scalar(name)
        if scalar is not None:
            return scalar.text if re.fullmatch(r"\w+", scalar.text) else f"({scalar.text})"
        default = subject.analysis.facts.defaults.get(name)
        if default is not None and default.constant is not None:
            return str(default.constant)
        atom = subject.analysis.facts.atoms.get(name)
        if atom is not None and len(atom.parts) == 2 and "/" in name:
            return f"(({self.host(atom.parts[0])}) // ({self.host(atom.parts[1])}))"
        raise Unfit(f"{name} is not known in sizes")

    # Limits

    def limits(self, access: Access) -> tuple[tuple[Limit, ...], bool]:
        """What holds of indices wherever an access happens, and whether that is all that decides on it."""
        facts = self.subject.analysis.facts
        found: list[Limit] = []
        is_all = True
        for index in access.guards:
            guard = facts.guards[index]
            is_all &= guard.is_complete
            for comparison in guard.comparisons:
                limits = self.limits_of(comparison)
                is_all &= bool(limits) or self._is_of_sizes(comparison)
                found += limits
        return tuple(dict.fromkeys(found)), is_all

    def _is_of_sizes(self, comparison: Relation) -> bool:
        atoms = self.subject.analysis.facts.atoms
        return all(atoms[name].kind == "size" for side in (comparison.left, comparison.right) for name in side.names)

    def limits_of(self, comparison: Relation) -> tuple[Limit, ...]:
        """A comparison of one index with sizes; nothing for any other."""
        if not self.subject.is_as_said(comparison):
            return ()
        try:
            value = self.normal(comparison.left - comparison.right)
        except Unfit:
            return ()
        atoms = self.subject.analysis.facts.atoms
        moving = [name for name in value.names if name not in atoms or atoms[name].kind != "size"]
        if len(moving) != 1:
            return ()
        coefficient = value.coefficient(moving[0])
        if coefficient not in (ONE, -ONE):
            return ()
        rest, operator = value.without(moving), comparison.operator
        if coefficient == ONE:
            rest = -rest
        else:
            operator = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)  # type: ignore[assignment]
        table = {"<": (("below", ZERO),), "<=": (("below", ONE),), ">=": (("from", ZERO),), ">": (("from", ONE),),
                 "==": (("below", ONE), ("from", ZERO)), "!=": (("not", ZERO),)}  # fmt: skip
        return tuple(Limit(moving[0], kind, rest + more) for kind, more in table[operator])

    def only_bounds(self, accesses: Iterable[Access], atoms: Iterable[str]) -> dict[str, Polynomial | None]:
        """By atom, the end that all accesses have; None where none of them has one.

        Raises:
            Unfit: accesses have different ends, or something else decides on them.
        """
        found: dict[str, set[Polynomial | None]] = {atom: set() for atom in atoms}
        for access in accesses:
            limits, is_all = self.limits(access)
            if not is_all:
                raise Unfit(f"{access.array} is touched only where a condition says so")
            for limit in limits:
                is_start = limit.kind == "from" and limit.value == ZERO
                if limit.kind != "below" and not is_start:
                    raise Unfit(f"{access.array} is touched in a part of the range only")
            for atom, ends in found.items():
                own = {limit.value for limit in limits if limit.atom == atom and limit.kind == "below"}
                ends.update(own or {None})
        several = [atom for atom, ends in found.items() if len(ends) > 1]
        if several:
            raise Unfit(f"the range of {self.name(several[0])} is not the same everywhere")
        return {atom: next(iter(ends), None) for atom, ends in found.items()}

    def name(self, atom: str) -> str:
        """An index as the source calls it."""
        return self.subject.indices.name(atom)

    def index(self, plan: RewriteBuilder, atom: str, end: Polynomial | None) -> Index:
        """One index of the space; without an end that the kernel checks, the end is what the launch covered.

        Raises:
            Unfit: it is no index of a launch axis.
        """
        for axis in self.axes:
            if atom == f"global.{axis}" and axis not in self.splits:
                covered = self.extents[axis]
                if end is not None:
                    self._check_covered(axis, end)
                    self._keep_in_int(plan, axis, end)
                    return Index(atom, self.text(end), covered.total, axis)
                for sizes in self.subject.sizes():
                    if (value_at(self.subject, covered.total, sizes) or 0) > MOST_PLACES:
                        raise Unfit(f"the launch has more threads along {axis} than an int counts")
                return Index(atom, self._covered(plan, axis), _whole(covered), axis)
            for level, (name, divisor) in enumerate(self.splits.get(axis, ())):
                if name == atom and divisor.terms:
                    self._keep_in_int(plan, axis, divisor)
                    return Index(atom, f"(int)({self.text(divisor)})", self.host(divisor), axis)
                if name == atom:
                    return self._last_part(plan, axis, level)
        raise Unfit(f"{self.name(atom)} does not walk the launch")

    def _keep_in_int(self, plan: RewriteBuilder, axis: str, end: Polynomial) -> None:
        """Places are `int` in what is written: a constraint says so where the types of sizes do not."""
        if not self._is_int(end):
            plan.constraint(f"range_{axis}", f"{self.host(end)} <= {MOST_PLACES}")

    def _check_covered(self, axis: str, end: Polynomial) -> None:
        for sizes in self.subject.sizes():
            last, total = self.subject.evaluate(end, sizes), value_at(self.subject, self.extents[axis].total, sizes)
            if last is None or total is None or last > total:
                raise Unfit(f"the launch is not known to cover the range along {axis}")

    def _last_part(self, plan: RewriteBuilder, axis: str, level: int) -> Index:
        """The slowest part of an axis that the kernel takes apart."""
        parts = self.splits[axis]
        divisors = number(1)
        for _, divisor in parts[:level]:
            divisors = divisors * divisor
        whole = self._whole_end(axis)
        end = None if whole is None else whole.divided(divisors)
        covered = self.extents[axis]
        total = _whole(covered) if end is None else covered.total
        host = f"ceil_div({total}, {self.host(divisors)})"
        if whole is not None:
            self._check_covered(axis, whole)
            self._keep_in_int(plan, axis, whole)
        if end is None:
            text = f"(int)(((size_t)({self._covered(plan, axis)}) - 1) / ({self.text(divisors, cast='(size_t)')}) + 1)"
            return Index(parts[level][0], text, host, axis)
        return Index(parts[level][0], f"(int)({self.text(end)})", host, axis)

    def _whole_end(self, axis: str) -> Polynomial | None:
        facts = self.subject.analysis.facts
        ends = set()
        for access in facts.accesses:
            if access.space in ("global", "constant"):
                limits, _ = self.limits(access)
                own = [each.value for each in limits if each.atom == f"global.{axis}" and each.kind == "below"]
                ends.add(own[0] if own else None)
        return ends.pop() if len(ends) == 1 else None

    def _covered(self, plan: RewriteBuilder, axis: str) -> str:
        """A macro with the number of threads that the launch had along an axis."""
        name = plan.fresh(f"COVERED_{axis.upper()}")
        plan.header = plan.header.with_define(name, _whole(self.extents[axis]))
        return name

    # Text

    def place(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The place for values of indices (C text by atom), one text for each axis of `axes`."""
        found = []
        for axis in self.axes:
            parts = self.splits.get(axis)
            if parts is None:
                found.append(values[f"global.{axis}"])
                continue
            text = f"(size_t)({values[parts[-1][0]]})"
            for name, divisor in reversed(parts[:-1]):
                text = f"({text} * ({self.text(divisor)}) + ({values[name]}))"
            found.append(text)
        return tuple(found)

    def atoms(self) -> tuple[str, ...]:
        """All indices of the space, fastest first, axis by axis."""
        found: list[str] = []
        for axis in self.axes:
            parts = self.splits.get(axis)
            found += [f"global.{axis}"] if parts is None else [name for name, _ in parts]
        return tuple(found)

    def body(self, edits: Sequence[Edit] = ()) -> str:
        """The kernel's body, with braces, after edits that are given in places of the source.

        Raises:
            Unfit: edits collide.
        """
        span = self.subject.analysis.function.body.place.span
        return edited(self.subject.source, span, edits)

    def function(self, name: str, *, edits: Sequence[Edit] = (), extra: str = "", is_restrict: bool = True) -> str:
        """The kernel as a function of its place, which gives nothing back.

        Args:
            name: the function's name.
            edits: changes of the body.
            extra: more parameters, behind the place.
            is_restrict: whether its pointers promise that nothing else leads to what is behind them.
        """
        wide = {axis: "size_t" if axis in self.splits else "int" for axis in self.axes}
        places = ", ".join(f"const {wide[axis]} kw_{axis}" for axis in self.axes)
        own = self.parameters(is_restrict=is_restrict)
        joined = ", ".join(part for part in (own, places, extra) if part)
        defines, undefines = self._words()
        head = f"{self.template_head()}{self.dialect.helper} void {name}({joined}) "
        return f"{defines}{head}{self.body(edits)}\n{undefines}"

    def call(self, name: str, place: Sequence[str], *extra: str) -> str:
        """A call of such a function from the kernel, without the semicolon."""
        facts = self.subject.analysis.facts
        arguments = [each.name for each in facts.parameters] + list(place) + list(extra)
        template = f"<{', '.join(facts.template_parameters)}>" if facts.template_parameters else ""
        return f"{name}{template}({', '.join(arguments)})"

    def parameters(self, *, is_restrict: bool) -> str:
        """The kernel's parameters as written, with `restrict` where it lacks and is wanted."""
        subject, function = self.subject, self.subject.analysis.function
        start, end = parameter_span(subject)
        edits = []
        for each in function.parameters:
            span = each.place.span
            is_here = each.place.is_exact and start <= span.start and span.end <= end
            if not is_restrict or not each.is_pointer or each.is_restrict or not is_here:
                continue
            matches = list(re.finditer(rf"\b{re.escape(each.name)}\b", span.text(subject.source)))
            text = span.text(subject.source)
            if matches and text.isascii() and "[" not in text:
                at = span.start + matches[-1].start()
                edits.append(Edit(Span(at, at), f"{self.dialect.restrict} "))
        return edited(subject.source, Span(start, end), edits).strip()

    def template_head(self) -> str:
        """`template <...>` with its line end; empty for a plain kernel."""
        function = self.subject.analysis.function
        if not function.template_parameters:
            return ""
        start = declaration_start(self.subject.source, function)
        data = self.subject.source.encode("utf-8", "surrogatepass")
        text = data[start : function.place.span.start].decode("utf-8", "surrogatepass")
        if not text.lstrip().startswith("template"):
            raise Unfit("its template parameters are written in a way that is not understood")
        return text

    def _words(self) -> tuple[str, str]:
        """Macros for the kernel's words for its place, and their end."""
        used = place_words(self.subject.analysis.function.body)
        lines, ends = [], []
        for word in dict.fromkeys(word for word, _ in used):
            if self.dialect.is_opencl:
                values = [self._word(word, axis) for axis in AXES]
                lines.append(f"#define {word}(kw_axis) ((size_t)((kw_axis) == 0 ? {values[0]} : (kw_axis) == 1 ? "
                             f"{values[1]} : {values[2]}))\n")  # fmt: skip
            elif word in CUDA_WORDS:
                values = [f"(unsigned)({self._word(word, axis)})" for axis in AXES]
                lines.append(f"#define {word} (uint3{{{', '.join(values)}}})\n")
            else:
                axis = word[-1]
                lines.append(f'#pragma push_macro("{word}")\n#undef {word}\n'
                             f"#define {word} ((unsigned)({self._word(cuda_word(word), axis)}))\n")  # fmt: skip
                ends.append(f'#undef {word}\n#pragma pop_macro("{word}")\n')
                continue
            ends.append(f"#undef {word}\n")
        return "".join(lines), "".join(ends)

    def _word(self, word: str, axis: str) -> str:
        kind = KINDS_OF_PLACE[word]
        if axis not in self.axes:
            return "1" if kind in ("size", "groups") else "0"
        block = self.blocks.get(axis)
        place = f"kw_{axis}"
        match kind:
            case "global":
                return place
            case "local":
                return "0" if block is None else f"({place} % ({block}))"
            case "group":
                return place if block is None else f"({place} / ({block}))"
            case "size":
                return "1" if block is None else f"({block})"
        return "0"


def _whole(covered: Extent) -> str:
    """All threads that the launch starts along an axis: no guard says that the last ones do nothing."""
    return f"({covered.grid}) * ({covered.block})"


def is_at_most_int(c_type: str, subject: Subject) -> bool:
    """Whether all values of a type are values of `int`."""
    types = subject.analysis.tree.types
    for _ in range(10):
        c_type = types.get(c_type, c_type)
    dtype = dtype_of_c_type(c_type, subject.language)
    return dtype is not None and (dtype.item_bytes < 4 or dtype.name == "int32")


def edited(source: str, span: Span, edits: Sequence[Edit]) -> str:
    """The text of a span after edits inside of it.

    Raises:
        Unfit: edits collide or leave the span.
    """
    moved = []
    for edit in edits:
        if not span.contains(edit.span):
            raise Unfit("a change lies outside of the kernel")
        moved.append(Edit(Span(edit.span.start - span.start, edit.span.end - span.start), edit.replacement))
    try:
        return apply(span.text(source), moved)
    except EditConflict as conflict:
        raise Unfit(f"two changes meet at one place ({conflict})") from conflict


def parameter_span(subject: Subject) -> tuple[int, int]:
    """Where the kernel's parameters stand, without the parentheses."""
    function = subject.analysis.function
    data = subject.source.encode("utf-8", "surrogatepass")
    at, end = function.name_place.span.end, function.body.place.span.start
    start = data.find(b"(", at, end)
    depth = 0
    for place in range(start, end):
        depth += (data[place : place + 1] == b"(") - (data[place : place + 1] == b")")
        if depth == 0 and start >= 0:
            if data[at:start].strip() or b"/" in data[start:place]:
                break
            return start + 1, place
    raise Unfit("its parameters are written in a way that is not understood")


def drop_sized_attributes(subject: Subject, plan: RewriteBuilder) -> None:
    """Remove what promises the old size of a block; text before the kernel starts on a line of its own."""
    at = declaration_start(subject.source, subject.analysis.function)
    if subject.source.encode("utf-8", "surrogatepass")[line_start(subject.source, at) : at].strip():
        plan.prelude.append("\n")
    for mark in subject.analysis.facts.attributes:
        if _SIZED.search(mark.text):
            plan.replace(mark.span, "")


def value_at(subject: Subject, text: str, sizes: Mapping[str, int]) -> int | None:
    """The value of a launch expression on one workload, parameters at their defaults."""
    defaults = {each.name: each.default for each in subject.header.parameters}
    try:
        value = Expression.parse(text).evaluate({**defaults, **sizes})
    except SpecError:
        return None
    return value if isinstance(value, int) else None


def place_attribute(subject: Subject, plan: RewriteBuilder, text: str) -> None:
    """Put an attribute behind `__kernel`, or before the kernel's name, where that is written in the source itself."""
    for mark in subject.analysis.facts.attributes:
        if mark.text in ("__kernel", "kernel") and mark.span.text(subject.source) == mark.text:
            plan.insert(mark.span.end, f" {text}")
            return
    place = subject.analysis.function.name_place
    if place.is_exact and place.span.text(subject.source) == subject.entry:
        plan.insert(place.span.start, f"{text} ")
