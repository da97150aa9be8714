"""Kernels whose blocks stage data in shared memory, as kernels that read it where it came from.

`s[l] = a[x]; barrier(...); b[x] = s[l] + s[l + 1];` says the same as `b[x] = a[x] + a[x + 1];` where each element that
is read was copied there before the barrier. So shared reads become global ones, and copies and barriers go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

from kernelwright.analysis.facts import Access
from kernelwright.analysis.polynomial import Polynomial
from kernelwright.source import nodes
from kernelwright.source.edits import Edit, EditConflict, apply, insertion
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.editing import refuse_arranged, refuse_unread
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.common.launches import only_shape, refuse_aliases
from kernelwright.tactics.tiling.copies import Copy, Found, copy_of, found_by
from kernelwright.tactics.tiling.frame import MOST_PLACES, edited
from kernelwright.tactics.tiling.index_text import IndexText
from kernelwright.tactics.tiling.places import conditions_of_unsigned
from kernelwright.tactics.tiling.plain_places import (
    early_end,
    is_without_effect,
    plainest,
    refuse_disguised,
    storing_guards,
)
from kernelwright.tactics.tiling.tile_loops import CONVERSIONS, TileLoops, ratio_of

_WIDE = frozenset(("float", "double", "int"))
"""Types that a number 0 joins without changing them."""
_NUMBERS = frozenset(("float", "double", "int", "uint", "unsigned", "unsigned int", "char", "uchar", "short", "ushort",
                      "long", "half", "__half", "unsigned char"))  # fmt: skip


def direct(subject: Subject) -> Subject:
    """The kernel without shared memory and barriers.

    Raises:
        Unfit: it has none, or some read may find something else than one array's element; with the line.
    """
    found = _found(_Same(subject))
    if isinstance(found, Unfit):
        raise Unfit(found.reason)
    return found


class _Same:
    """A subject as itself: many tactics look at one and the same."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def __hash__(self) -> int:
        return id(self.subject)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.subject is self.subject


@lru_cache(maxsize=4)
def _found(same: _Same) -> Subject | Unfit:
    try:
        return _direct(same.subject)
    except Unfit as unfit:
        return Unfit(unfit.reason)


def _direct(subject: Subject) -> Subject:
    refuse_unread(subject)
    refuse_arranged(subject, "contraction-tiles", "stencil-tiles", "transpose-tiles", "join-steps")
    refuse_aliases(subject)
    refuse_disguised(subject)
    refuse_wide(subject)
    body = subject.analysis.function.body
    own = nodes.declared_names(body) | {each.name for each in subject.analysis.function.parameters}
    if others := sorted(nodes.assigned_names(body) - own):
        raise Unfit(f"it changes {others[0]}, which is no variable of its own")
    staged = _Staged(subject)
    try:
        source = apply(subject.source, staged.edits())
    except EditConflict as conflict:
        raise Unfit(f"two changes meet at one place ({conflict})") from conflict
    step = only_shape(subject)
    none = None if step.shared_bytes is None else "0"
    header = subject.header.relaunched(step.entry, grid=step.grid, block=step.block, shared_bytes=none)
    header = header if staged.whole is None else header.with_constraint("tiles", staged.whole)
    for condition in conditions_of_unsigned(subject):
        header = header.with_constraint("unsigned", condition)
    made = plainest(replace(subject, source=source, header=header))
    if made.analysis.facts.barriers or made.analysis.facts.opaque or any(
        each.space == "shared" and not each.is_parameter for each in made.analysis.facts.arrays.values()
    ):  # fmt: skip
        raise Unfit("something of what is staged would stay")
    gone = {each.partition("#")[0] for each, array in subject.analysis.facts.arrays.items() if array.space == "shared"}
    if any(isinstance(each, nodes.Name) and each.name in gone for each in nodes.walk(made.analysis.function.body)):
        raise Unfit("its shared memory is used in other ways")
    return made


def refuse_wide(subject: Subject) -> None:
    """Indices become `int`: neither arrays nor sizes may be larger than it counts.

    Raises:
        Unfit: saying which is.
    """
    counted = [each for each in subject.problem.arguments if each.role != "scalar" or "int" in each.dtype]
    for sizes in subject.sizes():
        for each in counted:
            told = (each.value,) if each.role == "scalar" else each.shape
            if prod(total_of(subject, one.text, sizes) or 0 for one in told if one is not None) > MOST_PLACES:
                raise Unfit(f"{each.name} is larger than an int counts")


@dataclass
class _Phases:
    """Which writes of shared memory each read may see, followed statement by statement. Used inside one call."""

    source: str
    waiting: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By array, writes that no barrier has followed yet."""
    ready: dict[str, tuple[int, ...]] = field(default_factory=dict)
    read: dict[str, Access] = field(default_factory=dict)
    """By array, a read since the last barrier."""
    seen: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By read, the writes."""

    def wait(self) -> None:
        """A barrier."""
        self.ready |= self.waiting
        self.waiting, self.read = {}, {}

    def latest(self) -> dict[str, tuple[int, ...]]:
        """By array, the writes that filled it last."""
        return self.ready | self.waiting

    def forget(self, before: Mapping[str, tuple[int, ...]]) -> None:
        """Behind a loop, which may make no step: arrays that it fills hold this or what they held before."""
        for array, writes in self.latest().items():
            if before.get(array) != writes:
                self.ready[array] = ()
                if array in self.waiting:
                    raise Unfit(f"{array} is filled at the end of a loop")

    def touch(self, access: Access) -> None:
        """An access of shared memory."""
        line, array = access.span.line(self.source), access.array
        if access.kind == "write":
            if array in self.read:
                raise Unfit(f"line {line}: {array} may be filled while another thread still reads it")
            self.waiting[array] = tuple(dict.fromkeys((*self.waiting.get(array, ()), access.index)))
        elif access.kind != "read":
            raise Unfit(f"line {line}: {array} is more than a copy")
        elif array in self.waiting or array not in self.ready:
            raise Unfit(f"line {line}: no barrier stands between filling {array} and reading it")
        elif not self.ready[array]:
            raise Unfit(f"line {line}: {array} is filled in a loop that may make no step")
        else:
            self.read[array] = access
            if self.seen.setdefault(access.index, self.ready[array]) != self.ready[array]:
                raise Unfit(f"line {line}: {array} holds something else in later steps")


class _Staged:
    """A kernel that stages data, and what it is without that."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._facts = subject.analysis.facts
        self._body = subject.analysis.function.body
        self._shared = [each for each in self._facts.accesses if each.space == "shared"]
        if not self._shared or not self._facts.barriers:
            raise Unfit("it stages nothing in shared memory")
        self._copies: dict[tuple[int, ...], Copy] = {}
        self._found: dict[int, Found] = {}
        self._ends = storing_guards(subject)
        self.whole: str | None = None
        """A condition on sizes that the plain kernel needs."""
        self._waits = [each.span for each in self._facts.barriers]
        self._refuse_other_ways()
        self._steps = frozenset(
            each.index for each in self._facts.loops if any(each.span.contains(wait) for wait in self._waits)
        )
        self._assigns = {
            each.place.span: each for each in nodes.walk(self._body) if isinstance(each, nodes.Assign)
        }  # fmt: skip
        self._globals = {each.span: each for each in self._facts.accesses
                         if each.space in ("global", "constant") and each.kind == "read"}  # fmt: skip

    def edits(self) -> list[Edit]:
        """What makes the plain kernel of the source."""
        phases = _Phases(self._subject.source)
        self._follow(self._body, phases)
        self._refuse_early_ends()
        self._refuse_other_memory()
        moved = sorted({load.array for write in self._of_kind("write") if (load := self._load(write)) is not None}
                       & nodes.assigned_names(self._body))  # fmt: skip
        arrays = {name: self._free(f"{name}_all") for name in moved}
        pairs = [pair for index in sorted(self._steps) if (pair := self._pair(index)) is not None]
        for pair in pairs:
            try:
                return self._edits(phases, arrays, pair)
            except Unfit:
                continue
        return self._edits(phases, arrays, None)

    def _edits(self, phases: _Phases, arrays: Mapping[str, str], pair: TileLoops | None) -> list[Edit]:
        """The same, with a pair of loops as one."""
        self.whole = None
        body = None if pair is None else pair.inner_node.body.place.span
        inside = [each for each in self._of_kind("read") if body is not None and body.contains(each.span)]
        if pair is not None and not inside:
            raise Unfit("the loop within a tile does not read it")
        found = {each.span: self._read(each, phases) for each in inside}
        last = None if pair is None else pair.last(found)
        texts = [
            Edit(self._element(each), self._text(each, phases, self._printer(each, arrays, pair, last)))
            for each in self._of_kind("read")
        ]
        edits = [*texts, *self._gone(self._body), *self._declarations(), *self._first(arrays)]
        if pair is None or body is None:
            return edits
        self.whole = pair.whole(found)
        is_rounded = not pair.is_whole() and self.whole is None
        self.whole = None if pair.is_whole() else self.whole
        head = pair.head(self._printer(inside[0], arrays, pair, last), last, is_rounded=is_rounded)
        text = edited(self._subject.source, body, [each for each in texts if body.contains(each.span)])
        loops = pair.outer_node.place.span
        edits = [each for each in edits if not loops.contains(each.span)]
        return [*edits, Edit(loops, f"{head}{text}"), *(Edit(mark.span, "") for mark in pair.outer_node.pragmas)]

    def _printer(
        self, read: Access, arrays: Mapping[str, str], pair: TileLoops | None, last: Polynomial | None
    ) -> IndexText:
        """What writes indices where a read happens; `last` is below 0 in the steps of a pair."""
        if pair is None or pair.inner.index not in read.loops:
            return IndexText(self._subject, read.loops, arrays)
        return pair.printer(read.loops, arrays, *(() if last is None else (last,)))

    def _pair(self, index: int) -> TileLoops | None:
        """A loop over tiles that does nothing but fill a tile and walk it, and the loop that walks; None for others."""
        outer = self._facts.loops[index]
        loops = {each.place.span: each for each in nodes.walk(self._body) if isinstance(each, nodes.Loop)}
        outer_node = loops.get(outer.span)
        if outer_node is None or not isinstance(outer_node.body, nodes.Block) or not outer_node.place.is_exact:
            return None
        rest = [each for each in outer_node.body.statements if not self._is_needless(each)]
        walks = [each for each in rest if isinstance(each, nodes.Loop)]
        inner = next((each for each in self._facts.loops if walks and each.span == walks[0].place.span), None)
        others = [_moved(each) for each in rest if each not in walks]
        if len(walks) != 1 or inner is None or None in others:
            return None
        ratio = ratio_of(self._subject, outer, inner)
        are_own = all(isinstance(each.initial, nodes.Declaration) for each in (outer_node, walks[0]))
        moved = {name for each in others if each is not None for name in each}
        moved |= _counted(outer_node) | _counted(walks[0])
        if not ratio or not are_own or self._is_used(moved, outer_node, walks[0]):
            return None
        return TileLoops(self._subject, outer, inner, outer_node, walks[0], ratio, self._free(f"{inner.variable}_all"))

    def _is_used(self, moved: set[str], outer: nodes.Loop, inner: nodes.Loop) -> bool:
        """Whether anything but copies uses what a loop over tiles moves, or its index, or that of the loop within."""
        reads = [each.span for each in self._of_kind("read")]
        own = (
            moved
            | nodes.declared_names(outer.initial or outer.body)
            | nodes.declared_names(inner.initial or inner.body)
        )
        around = [each.place.span for each in nodes.walk(self._body)
                  if isinstance(each, nodes.Loop) and each.body.place.span.contains(outer.place.span)]  # fmt: skip
        anew = {id(each.target) for each in nodes.walk(self._body)
                if isinstance(each, nodes.Assign) and each.operator == "="}  # fmt: skip
        for node in nodes.walk(self._body):
            if isinstance(node, nodes.Name):
                span = node.place.span
                is_within = inner.body.place.span.contains(span) and not any(each.contains(span) for each in reads)
                is_before = span.end <= outer.place.span.start and id(node) not in anew
                is_later = span.start >= outer.place.span.end or (is_before and any(e.contains(span) for e in around))
                if (is_within and node.name in own) or (is_later and node.name in moved):
                    return True
        return any(isinstance(each, nodes.Jump | nodes.Return) for each in nodes.walk(inner.body))

    # -- what must hold ------------------------------------------------------------------------------

    def _of_kind(self, kind: str) -> list[Access]:
        return [each for each in self._shared if each.kind == kind]

    def _refuse_other_ways(self) -> None:
        """Threads meet in whole blocks, in the kernel's own text, and in no other way."""
        if self._facts.exchanges or any(each.is_atomic for each in self._shared):
            raise Unfit("its threads share more than copies")
        for each in self._facts.barriers:
            if each.scope != "block" or each.inlined_in or each.guards:
                line = each.span.line(self._subject.source)
                raise Unfit(f"line {line}: its threads wait for each other in a way that is not followed")

    def _follow(self, statement: nodes.Statement, phases: _Phases) -> None:
        """Take the accesses of a statement in order; loops with barriers twice, as later steps meet earlier ones."""
        span = statement.place.span
        if not any(span.contains(wait) for wait in self._waits):
            inside = [each for each in self._shared if span.contains(each.span)]
            arrays = {each.array for each in inside if each.kind != "read"}
            if any(each.kind == "read" and each.array in arrays for each in inside):
                raise Unfit(f"line {span.line(self._subject.source)}: what is staged is made of what is staged")
            for each in inside:
                phases.touch(each)
        elif isinstance(statement, nodes.Block):
            for inner in statement.statements:
                self._follow(inner, phases)
        elif isinstance(statement, nodes.Loop):
            places = [*(each.span for each in self._shared), *self._waits]
            if any(span.contains(each) and not statement.body.place.span.contains(each) for each in places):
                raise Unfit(f"line {span.line(self._subject.source)}: its threads meet where a loop counts")
            before = phases.latest()
            for _ in range(2):
                self._follow(statement.body, phases)
            phases.forget(before)
        elif isinstance(statement, nodes.Evaluate):
            phases.wait()
        else:
            line = span.line(self._subject.source)
            raise Unfit(f"line {line}: its threads wait for each other under a condition")

    def _refuse_early_ends(self) -> None:
        """No thread may end, and no loop over tiles be left, before the last barrier."""
        last = max(each.end for each in self._waits)
        calm = [each.place.span for each in nodes.walk(self._body) if isinstance(each, nodes.Loop)
                and not any(each.place.span.contains(wait) for wait in self._waits)]  # fmt: skip
        for node in nodes.walk(self._body):
            is_calm = isinstance(node, nodes.Jump) and any(each.contains(node.place.span) for each in calm)
            if isinstance(node, nodes.Return | nodes.Jump) and node.place.span.start < last and not is_calm:
                line = node.place.span.line(self._subject.source)
                raise Unfit(f"line {line}: a thread may end before the others have what it copies")

    def _refuse_other_memory(self) -> None:
        """Barriers may order copies alone: nothing else is written before the last one and read by others.

        Raises:
            Unfit: saying what.
        """
        last = max(each.end for each in self._waits)
        outside = [each for each in self._facts.accesses if each.space not in ("shared", "private", "constant")]
        for each in outside:
            if each.kind == "read" and not each.is_atomic:
                continue
            line = each.span.line(self._subject.source)
            if each.kind == "unknown" or each.is_atomic:
                raise Unfit(f"line {line}: what it does with {each.array} is not followed")
            is_early = each.inlined_in or each.span.start < last
            if is_early or any(index in self._steps for index in each.loops):
                raise Unfit(f"line {line}: it stores results between barriers")
            if any(other.array == each.array and (other.inlined_in or other.span.start < last) for other in outside):
                raise Unfit(f"line {line}: {each.array} is read before a barrier and written behind it")

    # -- what lies where -----------------------------------------------------------------------------

    def _text(self, read: Access, phases: _Phases, printer: IndexText) -> str:
        """C text of the element that a read finds."""
        try:
            return self._read(read, phases)[2](printer)
        except Unfit as unfit:
            raise self._at(read, unfit) from unfit

    def _at(self, read: Access, unfit: Unfit) -> Unfit:
        reason = unfit.reason if unfit.reason.startswith("line ") else (
            f"line {read.span.line(self._subject.source)}: {unfit.reason}")  # fmt: skip
        return Unfit(reason)

    def _read(self, read: Access, phases: _Phases) -> Found:
        """What a read finds."""
        if read.index not in self._found:
            try:
                self._found[read.index] = self._found_by(read, phases)
            except Unfit as unfit:
                raise self._at(read, unfit) from unfit
        return self._found[read.index]

    def _found_by(self, read: Access, phases: _Phases) -> Found:
        writes = [self._facts.accesses[index] for index in phases.seen[read.index]]
        fillings = {each.index: text for each in writes if (text := self._filling(each)) is not None}
        copies = [self._copy(write, writes, fillings) for write in writes if write.index not in fillings]
        for each in fillings:
            self._refuse_alone(self._facts.accesses[each], writes, fillings)
        if not copies:
            raise Unfit(f"{read.array} holds no copies")
        guards = (self._facts.guards[each] for each in self._ends)
        held = [comparison for each in guards for comparison in each.comparisons]
        return found_by(self._subject, read, copies, self._steps, held)

    def _copy(self, write: Access, writes: Sequence[Access], fillings: Mapping[int, str]) -> Copy:
        """What a write copies."""
        key = (write.index, *fillings)
        if key not in self._copies:
            copied = self._copied(write, self._other_fillings(write, writes, fillings))
            self._copies[key] = copy_of(self._subject, write, *copied, self._steps)
        return self._copies[key]

    def _filling(self, write: Access) -> str | None:
        """The number that a write puts; None for a copy."""
        value = self._assigned(write)
        return value.place.span.text(self._subject.source) if _is_number(value) and value.place.is_exact else None

    def _assigned(self, write: Access) -> nodes.Expression:
        """What a write puts in its place."""
        assign = self._assigns.get(write.span)
        if assign is None or assign.operator != "=" or not isinstance(assign.target, nodes.Element):
            raise Unfit(f"line {write.span.line(self._subject.source)}: how {write.array} is filled is not followed")
        value = assign.value
        c_type = self._facts.arrays[write.array].c_type
        while isinstance(value, nodes.Name) and (initial := self._initial(value.name, c_type)) is not None:
            value = initial
        return value

    def _initial(self, name: str, c_type: str) -> nodes.Expression | None:
        """What a variable of a type is, that is set once."""
        if name in nodes.assigned_names(self._body):
            return None
        found = [each for each in nodes.walk(self._body) if isinstance(each, nodes.Declarator) and each.name == name]
        is_plain = len(found) == 1 and not found[0].extents and not found[0].is_reference and not found[0].is_pointer
        is_plain = is_plain and found[0].c_type == c_type
        return found[0].initial if is_plain else None

    def _load(self, write: Access) -> Access | None:
        """The element of global memory that a write copies; None where it copies none, or several."""
        loads = [self._globals[each.place.span] for each in nodes.walk(self._assigned(write))
                 if isinstance(each, nodes.Element | nodes.Unary) and each.place.span in self._globals]  # fmt: skip
        return loads[0] if len(loads) == 1 else None

    def _copied(
        self, write: Access, filling: tuple[str, frozenset[int]]
    ) -> tuple[Access, tuple[str, ...], frozenset[int]]:
        """The element that a write copies, what its value is besides, and the conditions that it has a filling for."""
        load = self._load(write)
        if load is None:
            raise Unfit(f"{write.array} holds more than copies")
        if any(each.array == load.array and each.kind != "read" for each in self._facts.accesses):
            raise Unfit(f"{load.array} is changed by the kernel itself")
        if load.array in nodes.declared_names(self._body) or load.array not in {
            each.name for each in self._subject.analysis.function.parameters
        } | {each.declarator.name for each in self._subject.analysis.tree.arrays}:
            raise Unfit(f"{load.array} is no argument")
        around, inner, otherwise = self._wrapped(self._assigned(write), load)
        kinds = [self._facts.arrays[each].c_type for each in (write.array, load.array)]
        if otherwise and not _joins(otherwise, kinds[1], inner[0]):
            raise Unfit(f"{write.array} is filled up with numbers of another type")
        if not otherwise:
            around, inner = ("", ""), (around[0] + inner[0], inner[1] + around[1])
        filling = (_plain_zero(filling[0]), filling[1])
        otherwise = _plain_zero(otherwise)
        if otherwise and filling[0] and (otherwise != filling[0] or otherwise != "0"):
            raise Unfit(f"{write.array} is filled up with different numbers")
        is_plain = kinds[0] == kinds[1] and not any((*around, *inner))
        if not is_plain or (otherwise or filling[0]) not in ("", "0") or kinds[0] not in _WIDE:
            if not set(kinds) <= _NUMBERS and not (is_plain and (otherwise or filling[0])[:1] in ("", "(")):
                raise Unfit(f"{write.array} has another type than what it is copied from")
            if set(kinds) <= _NUMBERS:
                around = (f"({kinds[0]})({around[0]}", f"{around[1]})")
                if filling[0] and not otherwise:
                    inner = (f"({kinds[0]})({inner[0]}", f"{inner[1]})")
                    filling = (f"({kinds[0]})({filling[0]})", filling[1])
        own = frozenset(load.guards) - frozenset(write.guards) if otherwise else frozenset()
        return load, (*around, *inner, otherwise or filling[0]), own | filling[1]

    def _wrapped(self, value: nodes.Expression, load: Access) -> tuple[tuple[str, str], tuple[str, str], str]:
        """Text around a value, text around the element in it, and what stands there under another condition."""
        text = self._subject.source
        match value:
            case nodes.Conditional(yes=yes, no=no):
                is_first = yes.place.span.contains(load.span)
                kept, other = (yes, no) if is_first else (no, yes)
                around, inner, otherwise = self._wrapped(kept, load)
                if not _is_number(other) or not kept.place.is_exact or not other.place.is_exact:
                    raise Unfit("a tile is filled up with more than numbers")
                told = other.place.span.text(text)
                if otherwise and otherwise != told:
                    raise Unfit("a tile is filled up with different numbers")
                if otherwise:
                    return around, inner, told
                return ("", ""), (around[0] + inner[0], inner[1] + around[1]), told
            case nodes.Cast(operands=(inside,)) if value.place.is_exact and not value.is_pointer:
                pass
            case nodes.Call(function=name, arguments=(inside,)) if name in CONVERSIONS and value.place.is_exact:
                pass
            case nodes.Call(function="__ldg", arguments=(nodes.Unary(operator="&"),)):
                return ("", ""), ("", ""), ""
            case nodes.Element() | nodes.Unary(operator="*") if value.place.span == load.span:
                return ("", ""), ("", ""), ""
            case _:
                raise Unfit("a tile holds more than copies")
        around, inner, otherwise = self._wrapped(inside, load)
        outside = (
            Span(value.place.span.start, inside.place.span.start),
            Span(inside.place.span.end, value.place.span.end),
        )
        before, after = (each.text(text) for each in outside)
        return (f"{before}{around[0]}", f"{around[1]}{after}"), inner, otherwise

    def _other_fillings(
        self, write: Access, writes: Sequence[Access], fillings: Mapping[int, str]
    ) -> tuple[str, frozenset[int]]:
        """The number that fills the place of a copy where one of its conditions does not hold, and that condition."""
        beside = [each for each in writes if each.index in fillings and each.element == write.element]
        if len(beside) > 1:
            raise Unfit(f"{write.array} is filled up several times")
        for each in beside:
            if each.loops == write.loops:
                guards = self._facts.guards
                own = [index for index in write.guards if index not in each.guards]
                others = [index for index in each.guards if index not in write.guards]
                is_else = len(own) == len(others) == 1 and guards[own[0]].span == guards[others[0]].span and {
                    guards[own[0]].kind, guards[others[0]].kind} == {"branch", "else"}  # fmt: skip
                if is_else or (not others and each.span.start < write.span.start):
                    return fillings[each.index], frozenset(own)
        return "", frozenset()

    def _refuse_alone(self, filling: Access, writes: Sequence[Access], fillings: Mapping[int, str]) -> None:
        """A number may only stand where a copy does not: it must have one."""
        if filling.element is None or not any(
            each.index not in fillings and each.element == filling.element and each.loops == filling.loops
            and self._other_fillings(each, [filling], fillings)[0] for each in writes
        ):  # fmt: skip
            raise Unfit(f"{filling.array} holds numbers beside copies")

    # -- text ----------------------------------------------------------------------------------------

    def _element(self, read: Access) -> Span:
        """The place of `s[i]` in a read of it, or of its component."""
        name = read.array.partition("#")[0]
        for node in nodes.walk(self._body):
            if not isinstance(node, nodes.Element) or not read.span.contains(node.place.span):
                continue
            is_whole = node.place.is_exact and node.place.span.start == read.span.start
            if is_whole and nodes.root_name(node) == name:
                if not is_without_effect(node):
                    break
                rest = Span(node.place.span.end, read.span.end).text(self._subject.source).strip()
                if not rest or rest.startswith("."):
                    return node.place.span
        raise Unfit(f"line {read.span.line(self._subject.source)}: it reads {name} in a way that is not followed")

    def _gone(self, statement: nodes.Statement) -> Iterator[Edit]:
        """Copies and barriers go."""
        for each in _below(statement):
            span = each.place.span
            is_touching = any(
                span.contains(one) for one in (*(each.span for each in self._of_kind("write")), *self._waits)
            )
            if not is_touching:
                continue
            if self._is_needless(each):
                if not each.place.is_exact:
                    raise Unfit(f"line {span.line(self._subject.source)}: a macro copies or waits")
                yield Edit(span, "" if isinstance(statement, nodes.Block) else ";")
                yield from (Edit(mark.span, "") for mark in (each.pragmas if isinstance(each, nodes.Loop) else ()))
            elif isinstance(each, nodes.Evaluate | nodes.Declaration | nodes.Return):
                line = span.line(self._subject.source)
                raise Unfit(f"line {line}: copies do more than copy")
            else:
                yield from self._gone(each)

    def _is_needless(self, statement: nodes.Statement) -> bool:
        """Whether a statement only copies into shared memory, or waits."""
        match statement:
            case nodes.Evaluate(expression=nodes.Assign(target=nodes.Element() as target, value=value)):
                is_copy = any(each.span == statement.expression.place.span for each in self._of_kind("write"))
                return is_copy and is_without_effect(target) and is_without_effect(value)
            case nodes.Evaluate(expression=nodes.Call()):
                return any(statement.place.span.contains(wait) for wait in self._waits)
            case nodes.If(condition=condition, yes=yes, no=no):
                return is_without_effect(condition) and all(
                    self._is_needless(each) for each in (yes, no) if each is not None
                )
            case nodes.Block(statements=statements):
                return all(
                    self._is_needless(each) or (isinstance(each, nodes.Declaration) and _is_scratch(each))
                    for each in statements
                )
            case nodes.Loop(word="for", initial=nodes.Declaration(), condition=condition, update=update, body=body):
                own = nodes.declared_names(statement.initial) if statement.initial is not None else frozenset()
                counts = update is not None and nodes.assigned_names(update) <= own
                return counts and condition is not None and is_without_effect(condition) and self._is_needless(body)
        return False

    def _free(self, word: str) -> str:
        """A name that the source does not have."""
        while word in self._subject.source:
            word += "_"
        return word

    def _declarations(self) -> Iterator[Edit]:
        """Declarations of shared memory."""
        for node in nodes.walk(self._body):
            if isinstance(node, nodes.Declaration) and any(each.is_shared for each in node.declarators):
                if not all(each.is_shared for each in node.declarators) or not node.place.is_exact:
                    raise Unfit("shared memory is declared beside something else")
                yield Edit(node.place.span, "")

    def _first(self, arrays: Mapping[str, str]) -> Iterator[Edit]:
        """Where arrays begin whose pointers the kernel moves, and the end of threads that store nothing."""
        given = {each.name: each for each in self._subject.analysis.function.parameters}
        spaces = {"global": "__global ", "constant": "__constant "} if self._subject.language == "opencl" else {}
        text = "".join(
            f"\n  const {spaces.get(given[name].space, '')}{given[name].c_type} *{kept} = {name};"
            for name, kept in arrays.items() if name in given
        )  # fmt: skip
        text += "".join(map(early_end, self._ends.values()))
        if text:
            yield insertion(self._body.place.span.start + 1, text)


def _counted(loop: nodes.Loop) -> set[str]:
    """Names that the head of a loop moves and that live beyond it."""
    own = frozenset() if loop.initial is None else nodes.declared_names(loop.initial)
    return set() if loop.update is None else set(nodes.assigned_names(loop.update)) - own


def _moved(statement: nodes.Statement) -> set[str] | None:
    """The local names that a statement sets and does nothing more; None for any other statement."""
    match statement:
        case nodes.Declaration(declarators=declarators) if all(each.is_shared for each in declarators):
            return set()
        case nodes.Declaration() if _is_scratch(statement):
            return {each.name for each in statement.declarators}
        case nodes.Evaluate(expression=nodes.Assign(target=nodes.Name(name=name), value=value)) if is_without_effect(
            value
        ):
            return {name}
        case nodes.Evaluate(expression=nodes.Update(operand=nodes.Name(name=name))):
            return {name}
    return None


def _below(statement: nodes.Statement) -> Iterator[nodes.Statement]:
    """The statements right below one."""
    match statement:
        case nodes.Block(statements=statements):
            yield from statements
        case nodes.If(yes=yes, no=no):
            yield from (each for each in (yes, no) if each is not None)
        case nodes.Loop(body=body):
            yield body


def _is_number(value: nodes.Expression) -> bool:
    match value:
        case nodes.Literal():
            return True
        case nodes.Unary(operator="-" | "+", operand=inner) | nodes.Cast(operands=(inner,), is_pointer=False):
            return _is_number(inner)
        case nodes.Cast(operands=operands, is_pointer=False):
            return bool(operands) and all(map(_is_number, operands))
    return False


def _joins(number: str, c_type: str, before: str) -> bool:
    """Whether an element stays what it is where `?:` joins it with a number; `before`: text of a conversion."""
    told = re.sub(r"^[\s(]*(?:__|convert_)?|2float\($", "", before) or c_type
    is_integer = c_type in _NUMBERS and not told.startswith(("float", "double", "half", "bfloat16"))
    return not is_integer or re.fullmatch(r"-?\d+", number) is not None


def _plain_zero(text: str) -> str:
    return "0" if text in ("0.0f", "0.f", "0.0", "0.", "0f", "0.0F", "0u") else text


def _is_scratch(declaration: nodes.Declaration) -> bool:
    values = [each.initial for each in declaration.declarators if each.initial is not None]
    return not any(each.is_shared for each in declaration.declarators) and all(map(is_without_effect, values))
