"""Grid and block from the kernel's own text: guards, strides and local arrays say how many threads it needs.

Along each axis, in this order: what the source requires of a block (`reqd_work_group_size`, `__launch_bounds__`), what
strides and tiles agree with, else a usual block; and as many blocks as the widest guard, or the walk over the grid,
asks for. An axis without either is one block where only threads of a block are told apart; else it must be asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernelwright.analysis.analysis import Analysis
from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.polynomial import ONE, Polynomial, named, number
from kernelwright.infer.bounds import AXES, Bounds, Inequality, Unbounded
from kernelwright.infer.model import InferredLaunch, Question
from kernelwright.infer.symbols import Symbols
from kernelwright.problem.source_scan import KernelSignature
from kernelwright.source.lexer import definitions_of, masked

USUAL_BLOCKS = {1: (256,), 2: (16, 16), 3: (8, 8, 4)}
"""By axes in use: what many kernels are launched with."""
FEW_THREADS = 1 << 15
SMALL_BLOCK = 64
"""The block of a launch of few threads along one axis, so that there are blocks for all cores."""
MOST_THREADS = 1024
"""The most in a block, on any device."""
MOST_WALKING = 1024
"""Blocks of a launch in which all of them walk over the data: enough for any device."""


@dataclass(frozen=True, slots=True)
class _Along:
    """What is known of one axis."""

    blocks: Polynomial | None = None
    """None: nothing says how many."""
    items: Polynomial | None = None
    """Threads that are needed; None: they are counted in blocks."""
    note: str = ""
    walks: bool = False


class LaunchReader:
    """The launch of one kernel, from its facts."""

    def __init__(
        self, analysis: Analysis, signature: KernelSignature, symbols: Symbols, spare: tuple[str, ...]
    ) -> None:
        """`spare`: by-value integers that the kernel's body never names."""
        self._analysis = analysis
        self._facts = analysis.facts
        self._signature = signature
        self._symbols = symbols
        self._spare = spare
        self._atoms = frozenset(self._facts.atoms)
        self._taken: set[str] = set()
        """Spare sizes that an axis has got."""

    def axes(self) -> tuple[str, ...]:
        """The axes that the kernel tells threads apart by, from x to the last one in use."""
        last = max((index for index, axis in enumerate(AXES) if self._uses(axis)), default=0)
        return tuple(AXES[: last + 1])

    def _uses(self, axis: str, *kinds: str) -> bool:
        linear = axis == "x" and any(f"{kind}.linear" in self._atoms for kind in kinds or ("thread", "global"))
        lane = axis == "x" and not kinds and "warp.lane" in self._atoms
        return linear or lane or any(f"{kind}.{axis}" in self._atoms for kind in kinds or ("thread", "block", "global"))

    def block(self) -> tuple[tuple[int, ...], str]:
        """The block's extents, and why they are a guess (empty: they are not)."""
        axes = self.axes()
        required = self._required()
        if required:
            return (*required, 1, 1, 1)[: max(len(axes), 1)], ""
        found = [self._fixed_extent(axis) for axis in axes]
        told = [axis for axis in axes if self._uses(axis, "thread", "global")]
        usual = iter(USUAL_BLOCKS[max(1, sum(1 for axis in told if found[AXES.index(axis)] is None) or 1)])
        extents = []
        notes = []
        for axis, extent in zip(axes, found, strict=True):
            if extent is not None:
                extents.append(extent)
            elif axis in told:
                extents.append(next(usual))
                notes.append(axis)
            else:
                extents.append(1)
        bound = self._launch_bounds()
        if bound is not None and notes and len(axes) == 1:
            return (bound,), "block: as many as __launch_bounds__ allows"
        if not notes:
            return tuple(extents), ""
        while not self.fits_local_arrays(tuple(extents)) and max(extents) > 1:
            widest = extents.index(max(extents))
            extents[widest] //= 2
        return tuple(extents), "a usual block"

    def fits_local_arrays(self, block: tuple[int, ...]) -> bool:
        """Whether no thread of such a block leaves an array in local memory whose extents are in the source."""
        return not self.overrun(block)

    def overrun(self, block: tuple[int, ...]) -> str:
        """The array in local memory that a thread of such a block leaves; empty where none is known to."""
        before = dict(self._symbols.fixed)
        for axis, extent in zip(AXES, (*block, 1, 1, 1)[:3], strict=True):
            self._symbols.fixed[f"block_size.{axis}"] = extent
        try:
            bounds = Bounds(self._facts, self._symbols, has_launch=False)
            for access in self._facts.accesses:
                array = self._facts.arrays.get(access.array)
                if array is None or array.space != "shared" or not array.extents or access.element is None:
                    continue
                total = ONE
                for each in array.extents:
                    total = total * (ONE if each is None else self._symbols.plain(each))
                size = None if None in array.extents else self._symbols.number(total)
                try:
                    last = self._symbols.number(bounds.largest(access))
                except Unbounded:
                    continue
                if size is not None and last is not None and last >= size:
                    return access.array
        finally:
            self._symbols.fixed.clear()
            self._symbols.fixed.update(before)
        return ""

    def _required(self) -> tuple[int, ...]:
        before = masked(self._analysis.source)[: self._signature.body[0]]
        found = list(re.finditer(r"reqd_work_group_size\s*\(([^()]*)\)", before))
        if not found or re.search(r"[;}]", before[found[-1].end() :]):
            return ()
        extents = [self._constant(part) for part in found[-1][1].split(",")]
        return tuple(each for each in extents if each) if all(extents) else ()

    def _launch_bounds(self) -> int | None:
        before = masked(self._analysis.source)[: self._signature.body[0]]
        found = list(re.finditer(r"__launch_bounds__\s*\(\s*([^(),]*)", before))
        if not found or re.search(r"[;}]", before[found[-1].end() :]):
            return None
        return self._constant(found[-1][1])

    def _constant(self, text: str) -> int | None:
        word = text.strip()
        if word.isdigit():
            return int(word)
        known = self._symbols.fixed.get(word)
        if known is not None:
            return known
        bodies = (each.body.strip() for each in definitions_of(masked(self._analysis.source)) if each.name == word)
        macro = next(filter(None, (re.fullmatch(r"\(?(\d+)\)?", each) for each in bodies)), None)
        constant = re.search(rf"\b{re.escape(word)}\s*=\s*(\d+)\s*;", self._analysis.source)
        return int(macro[1]) if macro else int(constant[1]) if constant else None

    def _fixed_extent(self, axis: str) -> int | None:
        """The extent that strides, tiles or local arrays agree with; None where any would do."""
        for loop in self._facts.loops:
            stride = self._stride(loop, axis)
            if stride is not None:
                return stride
        for tile, values in self._tiles(axis):
            extent = self._threads_of(tile, values)
            if extent is not None:
                return extent
        return min(filter(None, (self._row_extent(axis), self._local_extent(axis))), default=None)

    def _row_extent(self, axis: str) -> int | None:
        """As many threads as a row has elements, where each thread of a block has one of them and none walks."""
        thread = named(f"thread.{axis}")
        walks = any(loop.start is not None and f"thread.{axis}" in loop.start.names for loop in self._facts.loops)
        if walks or self._uses(axis, "global"):
            return None
        found = []
        bounds = Bounds(self._facts, self._symbols, has_launch=False)
        for access in self._facts.accesses:
            if access.space not in ("global", "constant") or access.element is None:
                continue
            asked = [each.right + ONE for each in bounds.of_access(access) if each.left == thread]
            element = self._symbols.plain(access.element)
            if not asked and element.coefficient(f"thread.{axis}") == ONE:
                apart = [element.coefficient(f"block.{each}") for each in AXES]
                asked = [each for each in apart if each is not None and each.names]
            sizes = [self._symbols.number(each) for each in asked if each.names and not self._symbols.moving(each)]
            found += [min(size for size in sizes if size is not None)] if any(sizes) else []
        return max(found) if found and 1 <= max(found) <= MOST_THREADS else None

    def _stride(self, loop: LoopFact, axis: str) -> int | None:
        """The stride of a loop that a block's threads share: `for (i = thread; ...; i += 64)`."""
        if loop.start is None or loop.step is None or loop.step.kind != "add" or not self._uses(axis, "thread"):
            return None
        start = self._symbols.plain(loop.start)
        if start.coefficient(f"thread.{axis}") != ONE or f"block.{axis}" in start.names:
            return None
        return self._symbols.plain(loop.step.amount).constant

    def _tiles(self, axis: str) -> Iterator[tuple[int, Polynomial]]:
        """Where blocks are so many times as far apart as threads of a block: how many times, with the index."""
        for value in self._indices():
            own = value.coefficient(f"thread.{axis}")
            if own is None or len(own.terms) != 1:
                continue
            for block in AXES:
                apart = value.coefficient(f"block.{block}")
                ratio = None if apart is None or not apart.terms else apart.divided(own)
                distance = None if ratio is None else ratio.constant
                if distance is not None and distance > 1:
                    yield distance, value

    def _indices(self) -> Iterator[Polynomial]:
        """Sums that conditions and accesses are about."""
        for guard in self._facts.guards:
            for comparison in guard.comparisons:
                yield self._symbols.plain(comparison.left)
                yield self._symbols.plain(comparison.right)
        for access in self._facts.accesses:
            if access.element is not None and access.space in ("global", "constant"):
                yield self._symbols.plain(access.element)

    def _threads_of(self, tile: int, value: Polynomial) -> int | None:
        """Threads of a tile: all of it, or the step of the loop in which they walk over it."""
        for loop in self._facts.loops:
            if loop.atom in value.names and value.coefficient(loop.atom) == ONE and loop.step is not None:
                amount = self._symbols.plain(loop.step.amount).constant
                bound = None if loop.bound is None else self._symbols.plain(loop.bound).constant
                if amount is not None and bound == tile and 1 < amount < tile:
                    return amount
                if amount == 1 and bound is not None and tile % bound == 0:
                    return tile // bound
        return tile

    def _local_extent(self, axis: str) -> int | None:
        """The extent of a local array that the threads of a block index by themselves alone."""
        found = []
        for access in self._facts.accesses:
            array = self._facts.arrays.get(access.array)
            if array is None or array.space != "shared" or access.element is None or len(array.extents) != 1:
                continue
            extent = None if array.extents[0] is None else self._symbols.plain(array.extents[0]).constant
            if extent is not None and access.element == named(f"thread.{axis}") and not access.guards:
                found.append(extent)
        return min(found) if found else None

    # -- blocks --------------------------------------------------------------------------------------

    def launch(self, block: tuple[int, ...], note: str, *, is_block_given: bool) -> InferredLaunch | Question:
        """Grid and block; a question where the grid is in nothing that the kernel says.

        A `block` that leaves out axes has one thread along them.
        """
        notes = [note] if note else []
        axes = AXES[: max(len(self.axes()), len(block))]
        block = (*block, 1, 1, 1)[: len(axes)]
        found = [self._along(axis, extent) for axis, extent in zip(axes, block, strict=True)]
        missing = [axis for axis, each in zip(axes, found, strict=True) if each.blocks is None and each.items is None]
        if missing:
            return Question(
                f"--grid {','.join('XYZ'[: len(found)])}",
                f"how many blocks along {' and '.join(missing)}: no guard of the kernel says it",
            )
        shrunk = self._shrunk(found, block) if note and not is_block_given else block
        grid = []
        for each, extent in zip(found, shrunk, strict=True):
            text = self._blocks_text(each, extent)
            if text is None:
                return Question(f"--grid {','.join('XYZ'[: len(found)])}", "how many blocks: it is in no size")
            grid.append(text)
            if each.note and each.note not in notes:
                notes.append(each.note)
        return InferredLaunch(tuple(grid), tuple(map(str, shrunk)), "from the kernel's guards", "; ".join(notes))

    def _shrunk(self, found: list[_Along], block: tuple[int, ...]) -> tuple[int, ...]:
        """Smaller blocks for few threads; where nothing guards the edge, such as divide the threads."""
        extents = []
        for each, extent in zip(found, block, strict=True):
            threads = None if each.items is None else self._symbols.number(each.items)
            if threads is not None and each.note == UNGUARDED:
                extents.append(math.gcd(threads, extent))
            elif threads is not None and len(block) == 1 and threads < FEW_THREADS:
                extents.append(min(extent, SMALL_BLOCK))
            elif threads is not None and len(block) > 1:
                extents.append(min(extent, 1 << (threads - 1).bit_length()))
            else:
                extents.append(extent)
        return tuple(extents)

    def _blocks_text(self, along: _Along, extent: int) -> str | None:
        if along.items is not None:
            text = self._symbols.text(along.items)
            if text is None:
                return None
            blocks = text if extent == 1 else f"ceil_div({text}, {extent})"
            return f"min({blocks}, {MOST_WALKING})" if along.walks else blocks
        assert along.blocks is not None
        return self._symbols.text(along.blocks)

    def _along(self, axis: str, extent: int) -> _Along:
        if not self._uses(axis, "block", "global"):
            return _Along(blocks=ONE)
        symbols = self._symbols
        symbols.fixed[f"block_size.{axis}"] = extent
        bounds = Bounds(self._facts, symbols, has_launch=False)
        found: list[tuple[int, _Along]] = []
        for access in self._facts.accesses:
            if access.space in ("global", "constant"):
                found += self._needs(axis, extent, bounds, access)
        for loop in self._facts.loops:
            found += self._walk(axis, loop)
        if found:
            return max(found, key=lambda each: each[0])[1]
        return self._unguarded(axis)

    def _needs(self, axis: str, extent: int, bounds: Bounds, access: Access) -> Iterator[tuple[int, _Along]]:
        """What the conditions around one access say of an axis: the tightest of them."""
        least: tuple[int, _Along] | None = None
        for constraint in bounds.of_access(access):
            along = self._asked(axis, extent, constraint)
            size = None if along is None else self._threads(along, extent)
            if along is not None and size is not None and (least is None or size < least[0]):
                least = size, along
        if least is not None:
            yield least

    def _threads(self, along: _Along, extent: int) -> int | None:
        if along.items is not None:
            return self._symbols.number(along.items)
        blocks = None if along.blocks is None else self._symbols.number(along.blocks)
        return None if blocks is None else blocks * extent

    def _asked(self, axis: str, extent: int, constraint: Inequality) -> _Along | None:
        """What one condition says: `global.x < n`, `block.x < rows`, `32*block.x + thread.x < width`."""
        count = constraint.right + ONE
        value = self._symbols.number(count)
        if value is None or value < 1:
            return None
        whole = constraint.left.coefficient(f"global.{axis}")
        if whole is not None and whole.terms:
            if constraint.left == named(f"global.{axis}"):
                return _Along(items=count)
            factor = None if self._symbols.moving(whole) else self._symbols.number(whole)
            if factor is not None and factor > 0 and self._is_other_small(constraint.left, f"global.{axis}"):
                return _Along(items=self._symbols.floor(constraint.right, whole) + ONE)
            return None
        apart = constraint.left.coefficient(f"block.{axis}")
        distance = None if apart is None else apart.constant
        if distance is None or distance < 1:
            return None
        if distance == 1 and constraint.left == named(f"block.{axis}"):
            return _Along(blocks=count)
        return _Along(blocks=self._symbols.floor(constraint.right, number(distance)) + ONE)

    def _is_other_small(self, value: Polynomial, name: str) -> bool:
        """Whether what a thread's own index is added to only says which of its elements it is."""
        rest = value.without((name,))
        return all(self._facts.atoms[each].kind == "loop" for each in self._symbols.moving(rest))

    def _walk(self, axis: str, loop: LoopFact) -> Iterator[tuple[int, _Along]]:
        """What a loop says in which all blocks walk over the data together."""
        if loop.start is None or loop.step is None or loop.bound is None:
            return
        amount, start = self._symbols.plain(loop.step.amount), self._symbols.plain(loop.start)
        if f"grid_size.{axis}" not in amount.names or self._symbols.moving(loop.bound):
            return
        items = self._symbols.plain(loop.bound)
        size = self._symbols.number(items)
        if size is None:
            return
        apart = start.coefficient(f"block.{axis}")
        is_line = apart == number(self._symbols.fixed.get(f"block_size.{axis}", 0)) != ONE
        if f"global.{axis}" in start.names or is_line:
            yield size, _Along(items=items, walks=True, note="blocks walk over the data, so any number is right")
        elif f"block.{axis}" in start.names:
            yield size, _Along(blocks=items, note="blocks walk over the data, so any number is right")

    def _unguarded(self, axis: str) -> _Along:
        """An axis without guards: a row's length, a size that nothing else names, or the only one that there is."""
        is_threads = self._uses(axis, "global")
        sizes = [name for name in self._symbols.values if name in self._atoms or name in self._spare]
        left = [name for name in self._spare if name not in self._taken]
        tile = 1 if is_threads else self._tile(axis)
        candidate = self._row_length(axis, tile) if is_threads or tile > 1 else self._digit(axis)
        if not candidate and len(left) == 1:
            candidate = left[0]
            self._taken.add(candidate)
        if not candidate and is_threads and len(sizes) == 1:
            candidate = sizes[0]
        value = self._symbols.values.get(candidate, 0)
        if not candidate or value % tile:
            return _Along()
        if is_threads:
            return _Along(items=named(candidate), note=UNGUARDED)
        return _Along(blocks=self._symbols.floor(named(candidate), number(tile)), note=UNGUARDED)

    def _tile(self, axis: str) -> int:
        """How many elements along an axis a block has of its own: `16*block.x + thread.x`; 1 where it has one."""
        found: dict[bool, list[int]] = {True: [], False: []}
        for access in self._facts.accesses:
            if access.element is None or access.space != "global":
                continue
            for names, factor in self._symbols.plain(access.element).terms:
                if f"block.{axis}" in names:
                    found[access.kind != "read"].append(factor)
        return max((1, *(found[True] or found[False])))  # a block may read rows of weights, and store one element

    def _row_length(self, axis: str, tile: int) -> str:
        """The size that rows are apart where this axis moves along them: `c[y * n + x]`."""
        own, kind = (f"global.{axis}", "global") if tile == 1 else (f"block.{axis}", "block")
        for access in self._facts.accesses:
            if access.element is None or access.space != "global" or access.kind == "read":
                continue
            element = self._symbols.plain(access.element)
            if element.coefficient(own) != number(tile):
                continue
            for other in AXES:
                apart = None if other == axis else element.coefficient(f"{kind}.{other}")
                if apart is None or len(apart.terms) != 1 or len(apart.terms[0][0]) != 1:
                    continue
                name = apart.terms[0][0][0]
                if name in self._symbols.values:
                    return name
        return ""

    def _digit(self, axis: str) -> str:
        """The size that blocks along this axis count to, a digit of an index: `(block.x * heads + block.y) * dim`."""
        for access in self._facts.accesses:
            if access.element is None or access.space != "global" or access.kind == "read":
                continue
            element = self._symbols.plain(access.element)
            own = element.coefficient(f"block.{axis}")
            if own is None or not own.terms:
                continue
            for other in AXES:
                apart = None if other == axis else element.coefficient(f"block.{other}")
                ratio = None if apart is None or not apart.terms else apart.divided(own)
                if ratio is not None and ratio.single_name in self._symbols.values:
                    return str(ratio.single_name)
        return ""


UNGUARDED = "no guard says how many threads; the size that fits is taken"
