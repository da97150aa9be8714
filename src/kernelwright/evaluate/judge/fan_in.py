"""How many inputs one element of a result is made of: the length of the sums that a kernel must round.

Shapes do not tell: `[rows, columns] -> [rows, columns]` may be an elementwise map, a softmax or a prefix sum. So the
reference is asked: one element of an input is changed and the elements of each output that react are counted. With
`c` of them, an element of that output depends on `c * input elements / output elements` inputs, on average:

```
elementwise              c = 1           1
[tokens, 2 * d] -> [tokens, d]   c = 1   2
softmax of rows          c = columns     columns
a[m, k] @ b[k, n]        c = n           k
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelwright.errors import ReferenceFailed
from kernelwright.evaluate.data.array_threads import ALONE, Crew
from kernelwright.problem.model import Argument, Problem, Workload

Array = npt.NDArray[Any]

_PART = 1 << 18
"""Elements looked at together."""
_NEAR = 4096
"""Elements to each side where another value is looked for first."""
REACTION = 1e-13
"""A change below this share of an output's scale is the reference's own rounding: a hundred times what another order
of summation costs float64."""


def fan_in(
    problem: Problem,
    workload: Workload,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    call: Callable[[dict[str, Array]], Mapping[str, Array]],
    *,
    rng: np.random.Generator,
    crew: Crew = ALONE,
) -> dict[str, int]:
    """By output, the most elements of any one input that one element of it depends on, on average; at least 1.

    Each input is changed in its first element (which a prefix sum hands to all others) and in a random one, each to
    the nearest other value that the input has, so that ranges and sorted indices stay valid. An input to which nothing
    reacts (a weight behind a closed gate, a row that no index names) counts by its shape: the extents that the output
    does not have.

    Args:
        problem: for the shapes.
        workload: for the sizes.
        inputs: data as declared, in storage dtypes.
        expected: the reference's result on it.
        call: the reference; may raise `ReferenceFailed`, which counts as no reaction. Cost: at most two calls of
            each input that could still raise a number, the largest first.
        rng: chooses the random elements.
        crew: threads that compare results.
    """
    found = dict.fromkeys(expected, 1)
    scales = {name: _root_mean_square(values) for name, values in expected.items()}
    positions = {each.name: _positions(inputs[each.name], rng) for each in problem.inputs}
    for argument in sorted(problem.inputs, key=lambda each: -inputs[each.name].size):
        values = inputs[argument.name]
        if values.size <= min(found.values(), default=values.size):
            break  # no element depends on more of an input than it has
        counts = dict.fromkeys(expected, 0)
        for position in positions[argument.name]:
            reaction = _reaction(argument.name, position, inputs, expected, scales, call, crew) or {}
            counts = {name: max(count, reaction.get(name, 0)) for name, count in counts.items()}
            if all(count == expected[name].size for name, count in counts.items()):
                break
        for output in (each for each in problem.outputs if each.name in expected):
            if count := counts[output.name]:
                length = math.ceil(count * values.size / expected[output.name].size)
            else:
                length = summed_extent(argument, output, workload)
            found[output.name] = max(found[output.name], min(length, values.size))
    return found


def summed_extent(source: Argument, output: Argument, workload: Workload) -> int:
    """The product of the extents of `source` that `output` does not have: what is summed over, as shapes tell it.

    An extent is there when its sizes are, whatever the expression: `2 * d` becomes `d` by no sum of length `d`.
    """
    kept = frozenset[str]().union(*(extent.names for extent in output.shape))
    numbers = [extent.evaluate({}) for extent in output.shape if not extent.names]
    length = 1
    for extent in source.shape:
        value = extent.evaluate(workload.sizes)
        if not extent.names and value in numbers:
            numbers.remove(value)
        elif not extent.names or not extent.names <= kept:
            length *= int(value)
    return length


def _root_mean_square(values: Array) -> float:
    total = sum(float(np.einsum("i,i->", part, part)) for part in _parts(values))
    return math.sqrt(total / max(values.size, 1))


def _parts(values: Array) -> Iterator[Array]:
    """Flat float64 pieces, so that no temporary has the size of the output."""
    flat = values.reshape(-1)
    for start in range(0, flat.size, _PART):
        yield flat[start : start + _PART].astype(np.float64, copy=False)


def _count_changes(before: Array, after: Array, scale: float, crew: Crew) -> int:
    """How many elements differ by more than rounding."""

    def count(pair: tuple[Array, Array]) -> int:
        is_other = np.not_equal(*pair)
        if not is_other.any():
            return 0
        old, new = (part[is_other] for part in pair)
        allowed = REACTION * np.maximum(np.abs(old), scale)
        return int(np.count_nonzero(~(np.abs(new - old) <= allowed)))

    return sum(crew.each(count, zip(_parts(before), _parts(after), strict=True)))


def _positions(values: Array, rng: np.random.Generator) -> list[int]:
    if not values.size:
        return []
    return list(dict.fromkeys((0, int(rng.integers(values.size)))))


def _reaction(
    name: str,
    position: int,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    scales: Mapping[str, float],
    call: Callable[[dict[str, Array]], Mapping[str, Array]],
    crew: Crew,
) -> dict[str, int] | None:
    """By output, how many elements react to one changed element; None where it cannot be changed or fails."""
    changed = _changed(inputs[name], position)
    if changed is None:
        return None
    try:
        results = call({**inputs, name: changed})
    except ReferenceFailed:
        return None
    return {
        output: _count_changes(values, results[output], scales[output], crew) for output, values in expected.items()
    }


def _changed(values: Array, position: int) -> Array | None:
    """A copy with one element set to the nearest other value beside it; of constants, only floats, doubled."""
    flat = values.reshape(-1)
    start = max(0, position - _NEAR)
    others = np.flatnonzero(flat[start : position + _NEAR] != flat[position]) + start
    if not others.size:
        others = np.flatnonzero(flat != flat[position])
    if not others.size and values.dtype.kind in "biu":
        return None
    result = values.copy()
    if others.size:
        place = int(np.searchsorted(others, position))
        near = others[max(0, place - 1) : place + 1]
        result.reshape(-1)[position] = flat[min(near, key=lambda index: abs(int(index) - position))]
    else:
        result.reshape(-1)[position] = 2 * float(flat[position]) or 1e-3
    return result
