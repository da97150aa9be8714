"""Which other values the constants of a launch may have: those with which it was tried, and wrote the same.

Three kinds are tried: what cuts loops into tiles, what the launching function computes the grid from, and what a
program's number is multiplied with where no code computes the grid. For the last the grid is guessed: a size is cut
into blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelwright.source.triton.reading import OPTIONS
from kernelwright.source.triton.tiles import block_constants, tile_constants

_LEAST_BLOCK = 16
"""What `tl.dot` takes."""
_MOST_CUTS = 6
"""Of a grid, to be tried for one constant: each is a launch in the interpreter."""

_Grid = tuple[int, ...]
_Grids = Callable[[int], _Grid | None]
"""The grid for a value of a constant; None: it is not known."""
Launch = Callable[[Mapping[str, int], _Grid], bool | None]
"""Whether a launch with these constants and this grid writes the same; None: it fails."""
Computed = Mapping[tuple[tuple[str, int], ...], _Grid]
"""By constants and their values, the grid that a launching function computes."""


@dataclass(slots=True)
class _Tried:
    """What was found."""

    values: dict[str, list[int]] = field(default_factory=dict)
    """By constant; one value alone: no other one gave the same."""
    grids: list[tuple[dict[str, int], _Grid]] = field(default_factory=list)
    """Those that were guessed, for the constants that they are for."""
    coupled: dict[str, str] = field(default_factory=dict)
    """By constant, another one that has its value in each launch that was tried."""


def tried_values(
    launch: Launch, text: str, kernel: str, *, whole: Mapping[str, int], grid: _Grid, computed: Computed,
    sizes: Collection[int],
) -> dict[str, Any]:  # fmt: skip
    """Try other values.

    Args:
        launch: tries one.
        text: of the file.
        kernel: its function.
        whole: constants that may be numbers of elements, with their values.
        grid: of the launch.
        computed: grids with other constants; empty: no code computes the grid.
        sizes: extents of tensors, and whole arguments.

    Returns:
        The fields `tried`, `tried_grids` and `coupled` of a `WatchedCall`.
    """
    found = _Tried()
    for name in tile_constants(text, kernel):
        if name in whole:
            found.values[name] = sorted([whole[name], *_same(launch, name, whole[name], lambda _: grid)])
    _try_computed(launch, found, whole, grid, computed)
    for name in block_constants(text, kernel) if not computed else ():
        if name in whole and name not in found.values:
            _try_cuts(launch, found, (name, whole[name]), grid, sizes)
    return {"tried": found.values, "tried_grids": found.grids, "coupled": found.coupled}


def other_values(constants: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Whole constants doubled and divided, each alone, then two at a time: blocks may cover all there is together."""
    whole = {name: each for name, each in constants.items() if isinstance(each, int) and each is not True and each > 1}
    for name, value in whole.items():
        yield from (
            {name: other} for other in (2 * value, 4 * value, *(value >> by for by in range(1, value.bit_length())))
        )
    for (first, one), (second, other) in itertools.combinations(whole.items(), 2):
        yield {first: max(1, one // 8), second: max(1, other // 4)}


def other_sizes(given: Mapping[str, Any], constants: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Each whole argument a little larger and smaller, doubled, halved, and such that some blocks divide it."""
    for name, value in given.items():
        if type(value) is int and value > 1 and name not in constants and name not in OPTIONS:
            divided = (odd << by for odd in (1, 3) for by in range(2, 12))
            yield from ({name: other} for other in (value + 1, value - 1, 2 * value, value // 2, 1 << 16, *divided))


def is_block(value: object) -> bool:
    """Whether a constant is a power of two that may be a number of elements."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 2 and value & (value - 1) == 0


def _same(
    launch: Launch, name: str, value: int, of: _Grids, *, also: Sequence[str] = (), is_strict: bool = True
) -> list[int]:
    """Values for a constant, and `also` for others, with which a launch writes the same, the nearest first.

    With `is_strict` one that writes something else is the end: it decides what is computed.
    """
    found = []
    for others in ([value // 2, value // 4], [2 * value, 4 * value]):
        for other in others:
            numbers = of(other) if other >= min(_LEAST_BLOCK, value) else None
            is_same = launch(dict.fromkeys((name, *also), other), numbers) if numbers is not None else None
            if is_same is False and is_strict:
                return []
            if not is_same:
                break
            found.append(other)
    return found


def _try_computed(launch: Launch, found: _Tried, whole: Mapping[str, int], grid: _Grid, computed: Computed) -> None:
    deciding = {pairs[0][0] for pairs, numbers in computed.items() if len(pairs) == 1 and numbers != grid}
    for name in [each for each in whole if each in deciding and each not in found.values]:
        grids = {pairs[0][1]: numbers for pairs, numbers in computed.items() if [each for each, _ in pairs] == [name]}
        same = _same(launch, name, whole[name], grids.get, is_strict=False)
        for other in [each for each in whole if each not in (*deciding, *found.values) and whole[each] == whole[name]]:
            if not same and other not in found.coupled:
                same = _same(launch, name, whole[name], grids.get, also=(other,), is_strict=False)
                found.coupled |= {other: name} if same else {}
        found.values[name] = sorted([whole[name], *same])


def _try_cuts(launch: Launch, found: _Tried, constant: tuple[str, int], grid: _Grid, sizes: Collection[int]) -> None:
    name, value = constant
    for cut in _cuts(value, grid, sizes):
        same = _same(launch, name, value, cut)
        if same and min(same) < value:  # smaller blocks need the programs that were guessed
            found.values[name] = sorted([value, *same])
            found.grids += [({name: each}, cut(each)) for each in same]
            return


def _cuts(value: int, grid: _Grid, sizes: Collection[int]) -> list[Callable[[int], _Grid]]:
    """What the grid may be with another value of a constant, the fewest programs with half of it first."""
    found: dict[_Grid, Callable[[int], _Grid]] = {}
    for size in sorted(each for each in sizes if each > 1):
        for axis, extent in enumerate(grid):
            times, rest = divmod(extent, -(-size // value))

            def cut(other: int, *, size: int = size, axis: int = axis, times: int = times) -> _Grid:
                return (*grid[:axis], times * -(-size // other), *grid[axis + 1 :])

            if not rest and value // 2 >= _LEAST_BLOCK:
                found.setdefault(cut(value // 2), cut)
    found.pop(grid, None)
    return [found[each] for each in sorted(found, key=math.prod)][:_MOST_CUTS]
