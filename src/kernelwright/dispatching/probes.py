"""Shapes that were not tuned, to measure a dispatch table on: between the tuned ones, beyond them, and ragged.

```
space = ShapeSpace.of(problem)                   # which sizes may vary, which follow from others
probes = spread(space, 6, is_usable)             # far from everything known, inside and outside in turn
ragged = space.ragged(is_usable)                 # one for each size, off the tuned sizes' common factor
problem = with_shapes(problem, probes, folder)   # the same problem with these workloads, in another folder
```
"""

from __future__ import annotations

import itertools
import math
import random
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import SpecError, UsageError
from kernelwright.evaluate.data.layout import layouts_for
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.toml.file import read_text
from kernelwright.problem.toml.writing import to_toml
from kernelwright.roofline.work import floor_bytes, operations

Sizes = Mapping[str, int]

BEYOND = 2
"""How far beyond the tuned sizes probes go, as a factor."""

MOST_CANDIDATES = 4096
"""Combinations of sizes to choose probes from; a larger grid is sampled."""


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The values of one size that are wanted."""

    low: int
    high: int
    step: int = 1
    """Values are multiples of it."""

    def __post_init__(self) -> None:
        """Refuse ranges without a value."""
        if not (0 < self.low <= self.high and self.step > 0 and self.high // self.step * self.step >= self.low):
            raise UsageError(
                f"the range {self.low}..{self.high} in steps of {self.step} holds no size",
                hint="sizes are positive: --range n=64..4096 or --range n=64..4096:64",
            )

    def contains(self, value: int) -> bool:
        """Whether `value` is one of them."""
        return self.low <= value <= self.high and value % self.step == 0

    def nearest(self, value: int) -> int:
        """The value of the range nearest to `value`."""
        least, most = -(-self.low // self.step) * self.step, self.high // self.step * self.step
        return min(max((value + self.step // 2) // self.step * self.step, least), most)


def parse_range(text: str) -> tuple[str, SizeRange]:
    """`n=64..4096` or `n=64..4096:64` as a name and a range.

    Raises:
        UsageError: it is written otherwise.
    """
    name, _, rest = text.partition("=")
    bounds, _, step = rest.partition(":")
    low, _, high = bounds.partition("..")
    try:
        return name.strip(), SizeRange(int(low), int(high), int(step or "1"))
    except ValueError:
        raise UsageError(f"{text!r} is no range of sizes", hint="write NAME=LOW..HIGH or NAME=LOW..HIGH:STEP") from None


def derived_sizes(problem: Problem) -> dict[str, Expression]:
    """Sizes that the problem file computes from others, by name."""
    table = _document(problem).get("sizes", {})
    return {name: Expression.parse(text) for name, text in table.items() if isinstance(text, str)}


def _document(problem: Problem) -> dict[str, Any]:
    """The problem file as data, read as `load_problem` reads it."""
    return tomllib.loads(read_text(problem.file, what="the problem file"))


@dataclass(frozen=True, slots=True)
class ShapeSpace:
    """What shapes of a problem there are to choose from."""

    problem: Problem
    derived: Mapping[str, Expression]
    ranges: Mapping[str, SizeRange]
    """Declared by a person, by size."""
    most: tuple[float, float]
    """Bytes and operations of the largest shape that is measured."""

    @classmethod
    def of(cls, problem: Problem, ranges: Mapping[str, SizeRange] | None = None) -> ShapeSpace:
        """The shapes of a problem.

        Raises:
            UsageError: a range is of no size that may be chosen.
        """
        derived = derived_sizes(problem)
        free = [name for name in problem.size_names if name not in derived]
        for name in ranges or {}:
            if name not in free:
                raise UsageError(f"{name!r} is no size that may be chosen", hint=f"sizes are {', '.join(free)}")
        work = [_work(problem, workload) for workload in problem.workloads]
        most = (BEYOND * max(each[0] for each in work), BEYOND * max(each[1] for each in work))
        return cls(problem, derived, ranges or {}, (math.inf, math.inf) if ranges else most)

    @property
    def free(self) -> tuple[str, ...]:
        """Sizes that follow from no other."""
        return tuple(name for name in self.problem.size_names if name not in self.derived)

    @property
    def varying(self) -> tuple[str, ...]:
        """Sizes that probes vary: those with a declared range or several tuned values; with one workload, all."""
        if len(self.problem.workloads) == 1 and not self.ranges:
            return self.free
        return tuple(name for name in self.free if name in self.ranges or len(self.tuned_values(name)) > 1)

    def tuned_values(self, name: str) -> list[int]:
        """The tuned values of a size, ascending."""
        return sorted({workload.sizes[name] for workload in self.problem.workloads})

    def workload(self, free: Sizes) -> Workload | None:
        """The whole shape for these free sizes; None when something has no extent there, or it is too big."""
        sizes = dict(free)
        try:
            for name in _in_order(self.derived):
                value = self.derived[name].evaluate(sizes)
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    return None
                sizes[name] = value
            ordered = {name: sizes[name] for name in self.problem.size_names}
            label = ",".join(f"{name}={free[name]}" for name in self.varying)
            shape = Workload(f"probe {label}", ordered)
            layouts_for(self.problem, shape)
            work = _work(self.problem, shape)
            return shape if work[0] <= self.most[0] and work[1] <= self.most[1] else None
        except SpecError:
            return None

    def values(self, name: str) -> list[int]:
        """Values of a size to choose probes from: tuned ones, several between neighbours, one beyond each end."""
        tuned = self.tuned_values(name)
        if name in self.ranges:
            wanted = self.ranges[name]
            ladder = [wanted.low * (wanted.high / wanted.low) ** (place / 8) for place in range(9)]
            known = [value for value in tuned if wanted.contains(value)]
            return sorted({*known, *(wanted.nearest(round(value)) for value in ladder)})
        step = math.gcd(*tuned)
        grid = SizeRange(step, tuned[-1] * BEYOND, step)
        between = [
            grid.nearest(round(a ** (1 - share) * b**share))
            for a, b in itertools.pairwise(tuned)
            for share in (eighth / 8 for eighth in range(1, 8))
        ]
        beyond = [tuned[-1] * BEYOND, *([tuned[0] // BEYOND] if tuned[0] % BEYOND == 0 else [])]
        return sorted({*tuned, *between, *beyond})

    def is_inside(self, sizes: Sizes) -> bool:
        """Whether each size lies between tuned ones."""
        return all(self.tuned_values(n)[0] <= sizes[n] <= self.tuned_values(n)[-1] for n in self.free)

    def ragged(self, is_usable: Callable[[Workload], bool]) -> list[Workload]:
        """A tuned shape with one size off by one, for each varying size whose tuned values have a common factor."""
        found = []
        middle = self.problem.workloads[len(self.problem.workloads) // 2].sizes
        for name in self.varying:
            if name in self.ranges or math.gcd(*self.tuned_values(name)) == 1:
                continue
            free = {each: middle[each] for each in self.free} | {name: middle[name] - 1}
            shape = self.workload(free) if free[name] > 0 else None
            if shape is not None and is_usable(shape):
                found.append(shape)
        return found

    def between(self, one: Sizes, other: Sizes) -> Workload | None:
        """The shape halfway between two, in ratios; None when there is none but these."""
        free = {}
        for name in self.free:
            low, high = sorted((one[name], other[name]))
            step = math.gcd(low, high)
            middle = (math.isqrt(low * high) + step // 2) // step * step
            free[name] = min(max(middle, low), high)
        is_new = any(all(free[name] == known[name] for name in self.free) for known in (one, other))
        return None if is_new else self.workload(free)


def spread(
    space: ShapeSpace, count: int, is_usable: Callable[[Workload], bool], known: Iterable[Workload] = ()
) -> list[Workload]:
    """Up to `count` shapes, each as far (in ratios of sizes) from all known and chosen ones as there is.

    Shapes between the tuned sizes and shapes beyond them are taken in turn.
    """
    taken = [workload.sizes for workload in (*space.problem.workloads, *known)]
    shapes = [shape for shape in _grid(space) if shape.sizes not in taken and is_usable(shape)]
    chosen: list[Workload] = []
    while shapes and len(chosen) < count:
        wants_inside = len(chosen) % 2 == 0
        pool = [shape for shape in shapes if space.is_inside(shape.sizes) == wants_inside] or shapes
        best = max(pool, key=lambda shape: min(_distance(space.varying, shape.sizes, other) for other in taken))
        chosen.append(best)
        taken.append(best.sizes)
        shapes.remove(best)
    return chosen


def _grid(space: ShapeSpace) -> list[Workload]:
    fixed = {name: space.tuned_values(name)[0] for name in space.free if name not in space.varying}
    axes = [space.values(name) for name in space.varying]
    total = math.prod(len(axis) for axis in axes)
    if total <= MOST_CANDIDATES:
        combinations: Iterable[tuple[int, ...]] = itertools.product(*axes)
    else:
        generator = random.Random(0)
        combinations = [tuple(generator.choice(axis) for axis in axes) for _ in range(MOST_CANDIDATES)]
    shapes = (space.workload(fixed | dict(zip(space.varying, values, strict=True))) for values in combinations)
    return list({shape.name: shape for shape in shapes if shape is not None}.values())


def _distance(names: Sequence[str], one: Sizes, other: Sizes) -> float:
    return math.hypot(*(math.log2(one[name] / other[name]) for name in names))


def _work(problem: Problem, workload: Workload) -> tuple[int, int]:
    """Bytes and operations of a shape; 0 operations where the problem does not tell."""
    return floor_bytes(problem, workload), operations(problem, workload) or 0


def _in_order(derived: Mapping[str, Expression]) -> list[str]:
    """Computed sizes, each after those that it is computed from; the problem has no circles."""
    order: list[str] = []
    while len(order) < len(derived):
        order += [
            name
            for name, expression in derived.items()
            if name not in order and all(other in order for other in expression.names & derived.keys())
        ]
    return order


def with_shapes(problem: Problem, shapes: Sequence[Workload], folder: Path) -> Problem:
    """The same problem with other workloads, its files copied into the new folder `folder`.

    Raises:
        SpecError: the problem is not right for one of the shapes.
    """
    shutil.copytree(problem.file.parent, folder)
    document = _document(problem)
    derived = derived_sizes(problem)
    document["workloads"] = [
        {"name": shape.name, "weight": shape.weight}
        | {name: value for name, value in shape.sizes.items() if name not in derived}
        for shape in shapes
    ]
    file = folder / problem.file.name
    file.write_text(to_toml(document), encoding="utf-8")
    return load_problem(file)
