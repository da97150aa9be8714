"""A kernel taken apart as a stencil: its axes, its window of neighbours, and where the conditions of its reads hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.analysis.polynomial import ZERO, Polynomial, named
from kernelwright.source.edits import Edit
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder
from kernelwright.tactics.stencil.neighbours import Inside, Window, window_of
from kernelwright.tactics.tiling.frame import Frame, Index
from kernelwright.tactics.tiling.index_space import frame_of
from kernelwright.tactics.tiling.store import LoopIndex, StorePlace, loop_indices, plain_type, stores_of

_NO_ROWS = Index("", "1", "1", "")


@dataclass(frozen=True, slots=True)
class Stencil:
    """A kernel that makes each element of neighbours."""

    frame: Frame
    stores: tuple[StorePlace, ...]
    main: StorePlace
    """The one that the neighbours make."""
    window: Window
    inside: Inside
    loops: tuple[LoopIndex, ...]
    across: Index
    down: Index
    batch: tuple[Index, ...]
    type_in: str
    type_out: str
    bytes_in: int
    bytes_out: int

    @property
    def names(self) -> dict[str, str]:
        """How indices are called in the text."""
        names = {self.across.atom: "kw_x", self.down.atom: "kw_y"}
        return names | {index.atom: index.text(f"kw_batch_{number}") for number, index in enumerate(self.batch)}

    @property
    def has_edge(self) -> bool:
        """Whether points near the ends of a row can be made from a window too."""
        is_ordered = all(coefficient > 0 for _, coefficient in self.window.pitch.terms)
        return self.inside.is_shared and is_ordered

    @property
    def element_in(self) -> Polynomial:
        """The index in the window's array, at the element itself."""
        own = self.window.start + named(self.across.atom)
        return own + self.window.pitch * named(self.down.atom) if self.down.atom else own

    @property
    def element_out(self) -> Polynomial:
        """The index in the output."""
        form = self.frame.form(self.main.touch)
        total = form.offset
        for name, coefficient in form.terms.items():
            total = total + coefficient * named(name)
        return total

    def text(self, value: Polynomial) -> str:
        """C text with the indices' names."""
        return self.frame.text(value, self.names, cast=f"({self.frame.dialect.signed_64})")

    def call(self, name: str, *extra: str) -> str:
        """A call of one of the kernel's functions."""
        names = self.names
        loops = tuple(names[loop.index.atom] for loop in self.loops)
        return self.frame.call(name, self.frame.place(names), *loops, *extra)


def stencil_of(subject: Subject, plan: RewriteBuilder) -> Stencil:
    """A kernel taken apart as a stencil.

    Raises:
        Unfit: it is none, or not one that is followed.
    """
    pattern = subject.pattern
    if pattern.kind not in ("stencil", "elementwise", "generic") or subject.indices.unplaced:
        raise Unfit("its elements are not made of neighbours")
    if pattern.variant == "tiled":
        raise Unfit("its neighbours already come from a tile", is_already_so=True)
    frame = frame_of(subject)
    stores = stores_of(subject)
    if len({(each.touch.array, str(frame.form(each.touch))) for each in stores}) != 1:
        raise Unfit("it stores at several places")
    main = max(stores, key=lambda each: len(subject.indices.feeding(each.touch)))
    around = tuple(subject.analysis.facts.loops[index] for index in main.touch.access.loops)
    loops = loop_indices(frame, main) if around else ()
    of_loops = {loop.index.atom: loop.index for loop in loops}
    across, down, (window, inside) = _axes(frame, main)
    ends = ends_of(frame)
    every = {
        atom: of_loops.get(atom) or frame.index(plan, atom, ends.get(atom)) for atom in (*frame.atoms(), *of_loops)
    }
    if any(every[atom].start for atom in (across, down) if atom is not None):
        raise Unfit("its rows are walked by a loop that counts from another number than 0")
    arrays = subject.analysis.facts.arrays
    array_in, array_out = arrays[window.array], arrays[main.touch.array]
    if array_in.width != 1 or array_out.width != 1:
        raise Unfit("its arrays hold vectors already")
    return Stencil(
        frame, stores, main, window, inside, loops, every[across], _NO_ROWS if down is None else every[down],
        tuple(index for atom, index in every.items() if atom not in (across, down)), plain_type(array_in.c_type),
        plain_type(array_out.c_type), array_in.element_bytes or 8, array_out.element_bytes or 8,
    )  # fmt: skip


def _axes(frame: Frame, main: StorePlace) -> tuple[str, str | None, tuple[Window, Inside]]:
    """The index along memory, the one down the rows, and the window that they give; the widest one wins."""
    terms = frame.form(main.touch).terms
    across = [name for name, coefficient in terms.items() if coefficient.constant == 1]
    if len(across) != 1:
        raise Unfit(f"no single index walks along {main.touch.array}")
    found: list[tuple[int, str | None, tuple[Window, Inside]]] = []
    reason = "no neighbours are read whose place is certain"
    for down in (*(name for name in terms if name not in across), None):
        try:
            made = window_of(frame, main, across[0], down)
        except Unfit as unfit:
            reason = unfit.reason
            continue
        found.append((len({(each.across, each.down) for each in made[0].neighbours}), down, made))
    if not found:
        raise Unfit(reason)
    most = max(count for count, _, _ in found)
    best = [each for each in found if each[0] == most]
    choice = min(best, key=lambda each: (each[1] is None, _degree(terms.get(each[1] or "", ZERO))))
    if choice[1] is None and len(terms) > 1:
        others = [name for name in terms if name not in across]
        small = min(others, key=lambda name: _degree(terms[name]))
        for _, down, made in found:
            if down == small:
                choice = (most, down, made)
    return across[0], choice[1], choice[2]


def _degree(value: Polynomial) -> tuple[int, int]:
    return max((len(m) for m, _ in value.terms), default=0), max((abs(c) for _, c in value.terms), default=0)


def ends_of(frame: Frame) -> dict[str, Polynomial]:
    """Ends that every access of global memory has."""
    found: dict[str, list[Polynomial]] | None = None
    for access in frame.subject.analysis.facts.accesses:
        if access.space not in ("global", "constant"):
            continue
        own: dict[str, list[Polynomial]] = {}
        for limit in frame.limits(access)[0]:
            if limit.kind == "below":
                own.setdefault(limit.atom, []).append(limit.value)
        if found is None:
            found = own
        else:
            found = {atom: [end for end in ends if end in own.get(atom, [])] for atom, ends in found.items()}
    return {atom: ends[0] for atom, ends in (found or {}).items() if ends}


# Conditions


def inside_text(found: Stencil, ranges: Mapping[str, tuple[str, str]], *, without: str = "") -> str:
    """That the conditions hold from the first to the last of ranges (last excluded); other indices are single."""
    parts = []
    names = found.names
    for atom, lows in found.inside.lows.items():
        if atom == without:
            continue
        first = ranges.get(atom, (names.get(atom, ""), ""))[0]
        parts += [f"{first} >= {found.frame.text(low)}" for low in lows if low != ZERO or "-" in first]
    for atom, highs in found.inside.highs.items():
        if atom == without:
            continue
        last = ranges[atom][1] if atom in ranges else f"{names[atom]} + 1"
        parts += [f"{last} <= {found.frame.text(high)}" for high in highs]
    return " && ".join(dict.fromkeys(parts)) or "1"


def narrow_text(found: Stencil) -> str:
    """Statements that keep `kw_first` and `kw_last`, columns of a row, to where the conditions hold."""
    atom = found.across.atom
    lines = [f"kw_first = max(kw_first, (int)({found.frame.text(low)}));" for low in found.inside.lows.get(atom, ())]
    lines += [f"kw_last = min(kw_last, (int)({found.frame.text(high)}));" for high in found.inside.highs.get(atom, ())]
    return "\n".join(lines)


def apart(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Edits without those inside of another one."""
    return tuple(
        each for each in edits
        if not any(other.span != each.span and other.span.contains(each.span) and other.span.end > other.span.start
                   for other in edits)
    )  # fmt: skip
