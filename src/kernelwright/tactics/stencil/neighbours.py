"""A stencil taken apart: which neighbours of an element it reads, and where all of its conditions surely hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kernelwright.analysis.facts import Access, Atom, Relation
from kernelwright.analysis.patterns.indices import Touch
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, number
from kernelwright.source import nodes
from kernelwright.source.edits import Edit, insertion
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.tiling.frame import Frame, Limit
from kernelwright.tactics.tiling.store import StorePlace

MAX_RADIUS = 16  # guess: beyond that a window fits no registers

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One read of the window: how far it is from the element, both ends included."""

    touch: Touch
    across: Range
    down: Range
    across_text: str
    """C text in the kernel's own loops."""
    down_text: str


@dataclass(frozen=True, slots=True)
class Window:
    """The neighbours in one array that go through registers or local memory."""

    array: str
    start: Polynomial
    """The element's index, without what the two indices of the window add."""
    pitch: Polynomial
    """Elements from a row to the next; 0 in one dimension."""
    neighbours: tuple[Neighbour, ...]

    @property
    def left(self) -> int:
        """Columns before the element."""
        return max(0, *(-each.across[0] for each in self.neighbours))

    @property
    def right(self) -> int:
        """Columns behind it."""
        return max(0, *(each.across[1] for each in self.neighbours))

    @property
    def above(self) -> int:
        """Rows before it."""
        return max(0, *(-each.down[0] for each in self.neighbours))

    @property
    def below(self) -> int:
        """Rows behind it."""
        return max(0, *(each.down[1] for each in self.neighbours))


@dataclass(frozen=True, slots=True)
class Inside:
    """The part of the index space where all conditions of the window hold."""

    lows: Mapping[str, tuple[Polynomial, ...]]
    """By index: values that it is at least."""
    highs: Mapping[str, tuple[Polynomial, ...]]
    """By index: values that it stays below."""
    guards: frozenset[int]
    """The conditions that hold there."""
    is_shared: bool
    """Whether every read of the window happens exactly there."""


def window_of(frame: Frame, store: StorePlace, across: str, down: str | None) -> tuple[Window, Inside]:
    """The window of a stencil, around the element that a store writes, and where it applies.

    Args:
        frame: the kernel.
        store: the store whose value the neighbours make.
        across: the index that walks along memory.
        down: the one that walks rows; None in one dimension.

    Raises:
        Unfit: no array is read at neighbouring elements, or what decides on the reads is not followed.
    """
    groups: dict[tuple[str, Polynomial, Polynomial], list[Neighbour]] = {}
    limits: dict[int, tuple[Limit, ...]] = {}
    for touch in frame.subject.indices.feeding(store.touch):
        made = neighbour_of(frame, touch, across, down)
        known, kept_in_range = _limits(frame, touch.access), clamped_limits(frame, touch)
        if made is not None and known is not None and kept_in_range is not None:
            key, neighbour = made
            limits[touch.access.index] = (*known, *(each for each in kept_in_range if each not in known))
            groups.setdefault((touch.array, *key), []).append(neighbour)
    own = _limits(frame, store.touch.access)
    if own is None:
        raise Unfit("what decides on its store is not followed")
    several = {key: found for key, found in groups.items() if _is_wide(found)}
    if not several:
        raise Unfit("no neighbours are read whose place is certain")
    (array, start, pitch), found = max(several.items(), key=lambda item: len(item[1]))
    chosen = [each for each in found if each.across != (0, 0) or each.down != (0, 0) or each.touch.is_clamped]
    accesses = [store.touch.access, *(each.touch.access for each in chosen)]
    inside = _inside(frame, accesses, [own, *(limits[each.touch.access.index] for each in chosen)])
    kept = [each for each in found if set(each.touch.access.guards) <= inside.guards]
    conditions = {frozenset(limits[each.touch.access.index]) for each in kept} | {frozenset(own)}
    return Window(array, start, pitch, tuple(kept)), replace(inside, is_shared=len(conditions) == 1)


def _is_wide(found: list[Neighbour]) -> bool:
    places = {(each.across, each.down) for each in found}
    return len(places) > 1 or any(a[0] != a[1] or d[0] != d[1] for a, d in places)


def neighbour_of(
    frame: Frame, touch: Touch, across: str, down: str | None
) -> tuple[tuple[Polynomial, Polynomial], Neighbour] | None:
    """A read as a neighbour, with the rest of its index and the pitch of its rows; None for any other read."""
    is_plain = touch.access.is_exact and not touch.access.inlined_in
    if not is_plain or touch.access.width != ONE or touch.access.space != "global":
        return None
    try:
        terms = dict(frame.form(touch).terms)
    except Unfit:
        return None
    if terms.pop(across, ZERO) != ONE:
        return None
    pitch = ZERO if down is None else terms.pop(down, ZERO)
    if down is not None and not pitch.terms:
        return None
    start, (dx, dy) = _split(touch.form.offset, pitch)
    sides = [(dx, dx), (dy, dy)]
    texts = [[str(dx)], [str(dy)]]
    own = set(frame.atoms())
    loops = {loop.atom: loop for loop in frame.subject.analysis.facts.loops if loop.atom}
    outer = set() if not frame.subject.indices.writes else set(frame.subject.indices.writes[0].access.loops)
    for name, coefficient in terms.items():
        loop = loops.get(name)
        if name in own or (loop is not None and loop.index in outer):
            start = start + coefficient * Polynomial((((name,), 1),))
            continue
        reach = None if loop is None else range_of(frame, name)
        if loop is None or reach is None or not loop.variable:
            return None
        side, factor = _side(coefficient, pitch)
        if side is None:
            return None
        ends = sorted((factor * reach[0], factor * reach[1]))
        sides[side] = (sides[side][0] + ends[0], sides[side][1] + ends[1])
        texts[side].append(f"{factor} * {loop.variable}")
    if max(abs(end) for side in sides for end in side) > MAX_RADIUS:
        return None
    words = [" + ".join(each) for each in texts]
    return (start, pitch), Neighbour(touch, sides[0], sides[1], words[0], words[1])


def _split(offset: Polynomial, pitch: Polynomial) -> tuple[Polynomial, tuple[int, int]]:
    """An offset as so many columns and rows, and a rest of sizes."""
    found = []
    for dy in range(-MAX_RADIUS, MAX_RADIUS + 1) if pitch.terms else (0,):
        rest = offset - number(dy) * pitch
        constant = dict(rest.terms).get((), 0)
        left = rest - number(constant)
        found.append((len(left.terms), abs(constant), abs(dy), constant, dy, left))
    best = min(found, key=lambda each: each[:5])
    return best[5], (best[3], best[4])


def _side(coefficient: Polynomial, pitch: Polynomial) -> tuple[int | None, int]:
    if coefficient.constant is not None:
        return 0, coefficient.constant
    for factor in (1, -1, 2, -2):
        if coefficient == number(factor) * pitch:
            return 1, factor
    return None, 0


def range_of(frame: Frame, atom: str) -> Range | None:
    """The first and last value of a loop that counts up by one between constants; None for any other."""
    facts = frame.subject.analysis.facts
    loop = next((each for each in facts.loops if each.atom == atom), None)
    if loop is None or loop.start is None or loop.bound is None or loop.step is None or loop.ends_early:
        return None
    if loop.step.kind != "add" or loop.step.amount != ONE or loop.operator not in ("<", "<="):
        return None
    first, last = _constant(frame, loop.start), _constant(frame, loop.bound)
    if first is None or last is None:
        return None
    last -= loop.operator == "<"
    return (first, last) if first <= last else None


def _constant(frame: Frame, value: Polynomial) -> int | None:
    """A value that is the same in every config."""
    facts, header = frame.subject.analysis.facts, frame.subject.header
    fixed = {name: default for name, default in facts.defaults.items() if header.parameter(name) is None}
    return value.replaced(fixed).constant


# Where conditions hold


def _limits(frame: Frame, access: Access) -> tuple[Limit, ...] | None:
    """What holds of indices wherever an access happens; None where that is not all that decides on it."""
    found: list[Limit] = []
    for index in access.guards:
        limits = _limits_of_guard(frame, index)
        if limits is None:
            return None
        found += limits
    return tuple(dict.fromkeys(found))


def _limits_of_guard(frame: Frame, index: int) -> list[Limit] | None:
    guard = frame.subject.analysis.facts.guards[index]
    if not guard.is_complete:
        return None
    found: list[Limit] = []
    for comparison in guard.comparisons:
        if comparison.operator == "==":
            return None
        limits = frame.limits_of(comparison) or _worst(frame, comparison)
        if not limits:
            return None
        found += limits
    return found


def clamped_limits(frame: Frame, touch: Touch) -> tuple[Limit, ...] | None:
    """Where `min` and `max` in a read's index change nothing; None where that is not certain."""
    atoms = frame.subject.analysis.facts.atoms
    found: list[Limit] = []
    assert touch.access.element is not None
    waiting = list(touch.access.element.names) if touch.is_clamped else []
    while waiting:
        name = waiting.pop()
        atom = atoms[name]
        if atom.kind == "select":
            if atom.usual is None:
                return None
            of_select = _limits_of_select(frame, name, atom)
            if not of_select:
                return None
            found += of_select
            waiting += atom.usual.names
        elif atom.kind == "remainder" and name not in touch.form.terms:
            whole, length = atom.parts
            usual = min(whole, whole - length, key=lambda each: len(each.terms))
            for comparison in (Relation(usual, ">=", ZERO), Relation(usual, "<", length)):
                limits = frame.limits_of(comparison)
                if not limits:
                    return None
                found += limits
    return tuple(found)


def _limits_of_select(frame: Frame, name: str, atom: Atom) -> list[Limit]:
    """Where a `min`, `max` or `clamp` changes nothing; nothing where that is not certain."""
    assert atom.usual is not None
    others = list(atom.parts)
    if atom.usual not in others:
        return []
    others.remove(atom.usual)
    operators = {"max(": (">=",), "min(": ("<=",), "clamp(": (">=", "<=")}.get(name.partition("(")[0] + "(", ())
    if len(operators) != len(others) or (len(others) == 2 and atom.parts[0] != atom.usual):
        return []
    found: list[Limit] = []
    for operator, other in zip(operators, others, strict=True):
        comparison = Relation(_without_limits(frame, atom.usual), operator, other)  # type: ignore[arg-type]
        limits = frame.limits_of(comparison) or _worst(frame, comparison)
        if not limits:
            return []
        found += limits
    return found


def _without_limits(frame: Frame, value: Polynomial) -> Polynomial:
    """An index as it is where its own `min` and `max` change nothing."""
    atoms = frame.subject.analysis.facts.atoms
    for _ in range(4):
        usual = {name: atom.usual for name in value.names if (atom := atoms[name]).kind == "select" and atom.usual}
        if not usual:
            break
        value = value.replaced(usual)
    return value


def _worst(frame: Frame, comparison: Relation) -> tuple[Limit, ...]:
    """A comparison with loops of known ranges in it: what must hold of the one other index for all iterations."""
    value = comparison.left - comparison.right
    for name in sorted(value.names):
        reach = range_of(frame, name)
        coefficient = value.coefficient(name)
        if reach is None:
            continue
        if coefficient not in (ONE, -ONE) or comparison.operator in ("==", "!="):
            return ()
        is_upper = comparison.operator in ("<", "<=")
        worst = reach[1] if is_upper == (coefficient == ONE) else reach[0]
        value = value.replaced({name: number(worst)})
    return frame.limits_of(Relation(value, comparison.operator, ZERO, comparison.needs))


def _inside(frame: Frame, accesses: Iterable[Access], limits: Iterable[tuple[Limit, ...]]) -> Inside:
    every = list(dict.fromkeys(limit for each in limits for limit in each))
    lows: dict[str, list[Polynomial]] = {}
    highs: dict[str, list[Polynomial]] = {}
    for limit in every:
        if limit.kind == "from":
            lows.setdefault(limit.atom, []).append(limit.value)
        elif limit.kind == "below":
            highs.setdefault(limit.atom, []).append(limit.value)
    for limit in every:
        if limit.kind != "not":
            continue
        if limit.value == ZERO:
            lows.setdefault(limit.atom, []).append(ONE)
        elif limit.value + ONE in highs.get(limit.atom, []):
            highs[limit.atom].append(limit.value)
        else:
            raise Unfit(f"where {frame.name(limit.atom)} is not {limit.value} is no one range")
    guards = frozenset(index for access in accesses for index in access.guards)
    return Inside({k: tuple(v) for k, v in lows.items()}, {k: tuple(v) for k, v in highs.items()}, guards, False)


def inside_edits(subject: Subject, inside: Inside) -> tuple[Edit, ...]:
    """Write conditions that hold anyway as the constants that they are there."""
    facts = subject.analysis.facts
    exact = {node.place.span for node in nodes.walk(subject.analysis.function.body) if node.place.is_exact}
    found: dict[tuple[int, int], Edit] = {}
    for index in sorted(inside.guards):
        guard = facts.guards[index]
        if guard.kind == "expression" or guard.span not in exact:
            continue
        word = "1" if guard.kind == "branch" else "0"
        found[guard.span.start, guard.span.end] = Edit(guard.span, word)
    return tuple(found.values())


def window_edits(subject: Subject, window: Window) -> tuple[Edit, ...]:
    """Let reads of the window come from `KW_AT`, and ask for the loops in it to be written out."""
    edits = [
        Edit(each.touch.access.span, f"KW_AT({each.across_text}, {each.down_text})") for each in window.neighbours
    ]  # fmt: skip
    loops = {index for each in window.neighbours for index in each.touch.access.loops}
    outer = {index for write in subject.indices.writes for index in write.access.loops}
    for index in sorted(loops - outer):
        loop = subject.analysis.facts.loops[index]
        if loop.is_exact and not loop.pragmas and not loop.inlined_in:
            edits.append(insertion(loop.span.start, "\n#pragma unroll\n"))
    return tuple(edits)
