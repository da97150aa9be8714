"""Matrix times matrix in whatever style, as a plain kernel with one output a thread.

Register tiles, vector loads, stages of shared memory: a text has them in a hundred ways, and what it computes stays one
sum of products. Blocks are run (`replay`) at small sizes; a product is what all outputs of whole launches agree with,
at sizes that are multiples of the tiles and at others. Sizes at which the kernel computes something else are refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kernelwright.source.edits import Edit, apply
from kernelwright.source.span import Span
from kernelwright.tactics.base import NotApplicable, Rewrite, Subject, Tactic, Unfit, Wrapped
from kernelwright.tactics.common.editing import refuse_arranged, refuse_unread
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.common.launches import only_shape, refuse_aliases
from kernelwright.tactics.recognised.places import Launched, integers_up_to, launched, replay
from kernelwright.tactics.recognised.product_limits import refuse_limits
from kernelwright.tactics.recognised.replay.values import Numbers, arbitrary, is_float_type
from kernelwright.tactics.recognised.trials import floats, length_sizes, once
from kernelwright.tactics.tiling.direct import refuse_wide
from kernelwright.tactics.tiling.places import instance_of
from kernelwright.tactics.tiling.store import plain_type

_MOST_STEPS = 200_000
"""That a block may take: a tile of 128 x 128 outputs with 96 products each takes half of them."""
_MANY = 107_520
"""A size that every usual tile divides."""
_DEPTHS = (32, 96, 64, 160)
"""Products of a sum in the first trials: what tiles take at a time divides them."""
_LARGE = 1e9
"""By what elements are multiplied in a trial that meets limits of numbers: `fminf(x, 100)`."""
_UNITS = (1, 4, 8, 16, 32, 64)
"""What the length of sums may have to be a multiple of."""
_LOADED = {"float": "{}", "double": "{}", "__half": "__half2float({})", "half": "__half2float({})",
           "__nv_bfloat16": "__bfloat162float({})"}  # fmt: skip
_STORED = {"float": "{}", "double": "{}", "__half": "__float2half({})", "half": "__float2half({})",
           "__nv_bfloat16": "__float2bfloat16({})"}  # fmt: skip
_NONE = "no output is made of a sum of products of two matrices"


def also_recognised(tactic: Tactic) -> Tactic:
    """A tactic that also looks at the plain product that a kernel computes, where it does not apply as it is."""
    return Wrapped(tactic, _apply_recognised)


def _apply_recognised(tactic: Tactic, subject: Subject) -> Rewrite | NotApplicable:
    first = tactic.apply(subject)
    if isinstance(first, Rewrite):
        return first
    try:
        plain = plain_product(subject)
    except Unfit:
        return first
    made = tactic.apply(plain)
    if not isinstance(made, Rewrite):
        return first
    return replace(made, anchors=(Span(0, len(subject.source.encode("utf-8", "surrogatepass"))),))


@dataclass(frozen=True)
class _Walk:
    """A size that the grid walks along one axis."""

    size: str
    name: str
    """The kernel's parameter that says it; empty where none does."""
    tile: int
    """What a block takes of it."""


@dataclass(frozen=True)
class _Operand:
    """A matrix: the element of row or column `own`, step `k`."""

    array: str
    by_own: str
    """C text of strides, `1` and `0` too."""
    by_k: str
    by_batch: str


@dataclass(frozen=True)
class _Product:
    """`out[...] = scale * sum over k of left * right + old * out[...] + bias[...]`, and no less than 0 if `is_cut`."""

    rows: _Walk
    columns: _Walk
    batch: _Walk | None
    depth: str
    """The size that a sum runs over, and the parameter that says it."""
    depth_name: str
    out: str
    by_row: str
    out_by_batch: str
    left: _Operand = field(default_factory=lambda: _Operand("", "", "", ""))
    right: _Operand = field(default_factory=lambda: _Operand("", "", "", ""))
    scale: str = ""
    old: str = ""
    biases: tuple[tuple[str, str], ...] = ()
    """Arrays with what they are of: `rows` or `columns`."""
    is_cut: bool = False


@once
def plain_product(subject: Subject) -> Subject:
    """The kernel as a plain product, one output a thread.

    Raises:
        Unfit: it is none, or that is not certain.
    """
    refuse_arranged(subject, "contraction-tiles", "stencil-tiles", "transpose-tiles", "join-steps", "matrix-rows")
    refuse_unread(subject)
    refuse_aliases(subject)
    refuse_wide(subject)
    if subject.language != "cuda":
        raise Unfit("blocks of CUDA are run")
    trials = _Trials(subject)
    found = next(trials.found(), None)
    if found is None:
        raise Unfit(_NONE)
    refuse_limits(subject, max(_DEPTHS[0], found.rows.tile, found.columns.tile))
    units = trials.units(found)
    return _written(subject, found, units)


@dataclass
class _Trials:
    """Runs of a kernel at small sizes. Used inside one call."""

    subject: Subject
    runs: dict[object, tuple[Launched, Mapping[int, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.out, self.read = _arrays(self.subject)
        given = [each.name for each in self.subject.analysis.function.parameters
                 if not each.is_pointer and is_float_type(each.c_type) is False]  # fmt: skip
        self.names = tuple(each for each in given if self.subject.scalar(each) is not None)
        self.walks = self._walks()

    # -- sizes ---------------------------------------------------------------------------------------

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The extents of a launch, 0 for one that is empty."""
        names = {each.name: each.default for each in self.subject.header.parameters} | dict(sizes)
        values = [each.evaluate(names) for each in only_shape(self.subject).grid]
        if not all(isinstance(each, int) for each in values):
            raise Unfit("an extent of its launch is no whole number")
        return tuple(int(each) for each in values)

    def _walks(self) -> dict[int, _Walk]:
        """By axis, the size that the grid walks along it."""
        base = dict.fromkeys(self.subject.sizes()[0], _MANY)
        whole, found = self.grid(base), dict[int, _Walk]()
        for size in base:
            other = self.grid({**base, size: 2 * _MANY})
            moved = [axis for axis, (one, two) in enumerate(zip(whole, other, strict=True)) if one != two]
            if not moved:
                continue
            axis = moved[0]
            if len(moved) > 1 or axis in found or other[axis] != 2 * whole[axis] or _MANY % whole[axis]:
                raise Unfit("how its grid walks is not followed")
            found[axis] = _Walk(size, self._name_of(size), _MANY // whole[axis])
        if any(extent != 1 and axis not in found for axis, extent in enumerate(whole)) or not 2 <= len(found) <= 3:
            raise Unfit("its grid does not walk the rows and columns of a matrix")
        return found

    def _name_of(self, size: str) -> str:
        """The kernel's parameter that is a size; empty where none is."""
        scalars = ((each, self.subject.scalar(each)) for each in self.names)
        return next((name for name, scalar in scalars if scalar is not None and scalar.text == size), "")

    def sizes(self, found: Mapping[str, int]) -> dict[str, int]:
        """Of the first workload, with some others."""
        return {**self.subject.sizes()[0], **found}

    def numbers(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """By C text, what strides may be: parameters, products of two, and 1."""
        known = {each: total_of(self.subject, scalar.text, sizes) for each in self.names
                 if (scalar := self.subject.scalar(each)) is not None}  # fmt: skip
        single = {name: value for name, value in known.items() if value is not None}
        pairs = itertools.combinations_with_replacement(sorted(single), 2)
        return {"1": 1, **single, **{f"{one} * {two}": single[one] * single[two] for one, two in pairs}}

    # -- runs ----------------------------------------------------------------------------------------

    def run(self, sizes: Mapping[str, int], block: int, seed: int, content: str = "") -> Mapping[int, float]:
        """What a block stores.

        Args:
            sizes: of the launch.
            block: its number.
            seed: of what arrays hold.
            content: `""`, or names of arrays that hold zeros, with blanks; `+` among them for no numbers below 0, `*`
                for large ones.

        Raises:
            Unfit: it does something that is not followed.
        """
        key = tuple(sorted(sizes.items())), block, seed, content
        if key not in self.runs:
            launch = launched(self.subject, sizes, floats(self.subject, seed))
            made = replay(self.subject, launch, np.full(launch.threads, block), np.arange(launch.threads), seed)
            made.floats, made.most_steps, made.integers = held(seed, content), _MOST_STEPS, integers_up_to(8)
            made.numbers |= {name: each.constant for name, each in instance_of(self.subject).items()
                             if each.constant is not None}  # fmt: skip
            made.run()
            if made.answers or set(made.written) != {self.out}:
                raise Unfit("what it stores depends on what its arrays hold")
            self.runs[key] = launch, made.written[self.out]
        return self.runs[key][1]

    # -- what it may be ------------------------------------------------------------------------------

    def found(self) -> Iterator[_Product]:
        """Products that whole launches agree with."""
        free = [each for each in length_sizes(self.subject) if each not in {walk.size for walk in self.walks.values()}]
        for depth in free:
            name = self._name_of(depth)
            if name:
                for axes in itertools.permutations(self.walks, len(self.walks)):
                    yield from self._with_axes(depth, name, [self.walks[axis] for axis in axes], axes)

    def _with_axes(self, depth: str, name: str, walks: Sequence[_Walk], axes: Sequence[int]) -> Iterator[_Product]:
        rows, columns, *rest = walks
        if (rest and rest[0].tile != 1) or not rows.name or not columns.name:
            return
        own = {rows.size: 2 * rows.tile, columns.size: 3 * columns.tile, **({rest[0].size: 2} if rest else {})}
        sizes = self.sizes({**own, depth: next(each for each in _DEPTHS if each not in own.values())})
        numbers, grid = self.numbers(sizes), self.grid(sizes)
        places = self.run(sizes, 0, 0, "+").keys()
        second = 0
        if rest:
            second = min(self.run(sizes, int(np.prod(grid[: axes[2]], dtype=np.int64)), 0, "+"))
        for by_row, by_batch in itertools.product(numbers, ("0", *numbers) if not rest else numbers):
            tile = np.arange(rows.tile)[:, None] * numbers[by_row] + np.arange(columns.tile)
            if places == set(tile.ravel().tolist()) and (numbers[by_batch] if rest else 0) == second:
                made = _Product(rows, columns, rest[0] if rest else None, depth, name, self.out, by_row,
                                by_batch if rest else "0")  # fmt: skip
                yield from self._with_operands(made, sizes)
                return

    def _with_operands(self, made: _Product, sizes: Mapping[str, int]) -> Iterator[_Product]:
        """The same with two matrices, whatever else is added."""
        for left, right in itertools.permutations([each for each in self.read if each != self.out], 2):
            sums, rest = (self._matrix(made, sizes, self.run(sizes, 0, 0, each)) for each in ("+", f"+ {right}"))
            numbers, data = self.numbers(sizes), held(0, "+")
            steps = np.arange(sizes[made.depth])
            for by_row, by_k, other_k, by_column in itertools.product(numbers, repeat=4):
                if "1" not in (by_row, by_k) or "1" not in (other_k, by_column):
                    continue
                a = data(left, np.arange(made.rows.tile)[:, None] * numbers[by_row] + steps * numbers[by_k])
                b = data(right, steps[:, None] * numbers[other_k] + np.arange(made.columns.tile) * numbers[by_column])
                ratio = (sums[0, :3] - rest[0, :3]) / (a[:1] @ b[:, :3])[0]
                if np.ptp(ratio) > 1e-9 or not np.allclose(sums - rest, ratio[0] * (a @ b), rtol=1e-6, atol=1e-9):
                    continue
                with_both = replace(made, left=_Operand(left, by_row, by_k, "0"),
                                    right=_Operand(right, by_column, other_k, "0"))  # fmt: skip
                yield from self._with_rest(with_both, sizes, float(ratio[0]), rest)
                return

    def _matrix(self, made: _Product, sizes: Mapping[str, int], stored: Mapping[int, float]) -> Numbers:
        """What the first block stores, as rows and columns."""
        places = np.arange(made.rows.tile)[:, None] * self.numbers(sizes)[made.by_row] + np.arange(made.columns.tile)
        return np.array([stored[each] for each in places.ravel().tolist()]).reshape(places.shape)

    def _with_rest(self, made: _Product, sizes: Mapping[str, int], scale: float, rest: Numbers) -> Iterator[_Product]:
        """The same with what the sum is multiplied with, and what is added to it."""
        factor, old, biases = self._factor(scale), "", []
        if self.out in self.read:
            without = self._matrix(made, sizes, self.run(sizes, 0, 0, f"+ {made.right.array} {self.out}"))
            before = self._matrix(made, sizes, {at: float(held(0, "+")(self.out, np.array([at]))[0])
                                                for at in self.run(sizes, 0, 0, "+")})  # fmt: skip
            ratio = (rest - without)[0, 0] / before[0, 0]
            if not np.allclose(rest - without, ratio * before):
                return
            old, rest = self._factor(float(ratio)) or "1", without
        for name in self.read:
            if name in (made.left.array, made.right.array, self.out):
                continue
            of = {"rows": held(0, "+")(name, np.arange(made.rows.tile))[:, None],
                  "columns": held(0, "+")(name, np.arange(made.columns.tile))[None, :]}  # fmt: skip
            without = self._matrix(made, sizes, self.run(sizes, 0, 0, f"+ {made.right.array} {self.out} {name}"))
            own = [each for each, data in of.items() if np.allclose(rest - without, data + np.zeros(rest.shape))]
            if not own:
                return
            biases.append((name, own[0]))
            rest = without if len(biases) == 1 else rest - of[own[0]]
        if factor is None or not np.allclose(rest, 0):
            return
        for each in self._with_batches(replace(made, scale=factor, old=old, biases=tuple(biases)), sizes):
            for is_cut in (False, True):
                candidate = replace(each, is_cut=is_cut)
                if self.agrees(candidate, sizes, 1, whole=False):
                    yield candidate

    def _factor(self, value: float) -> str | None:
        """The by-value float that a number is; empty for 1, None for another."""
        if abs(value - 1) < 1e-9:
            return ""
        given = floats(self.subject, 0)
        return next((name for name, each in given.items() if abs(each - value) < 1e-9), None)

    def _with_batches(self, made: _Product, sizes: Mapping[str, int]) -> Iterator[_Product]:
        if made.batch is None:
            yield made
            return
        numbers = {"0": 0, **{each: value for each, value in self.numbers(sizes).items() if each != "1"}}
        for left, right in itertools.product(numbers, repeat=2):
            each = replace(made, left=replace(made.left, by_batch=left), right=replace(made.right, by_batch=right))
            if self.agrees(each, sizes, 0, whole=False, content="+"):
                yield each

    # -- whether it is that --------------------------------------------------------------------------

    def agrees(
        self, made: _Product, sizes: Mapping[str, int], seed: int, *, whole: bool, content: str = ""
    ) -> bool:  # fmt: skip
        """Whether launches store what a product says: their last block, or all."""
        sizes = self.sizes(sizes)
        try:
            blocks = self._blocks(made, sizes, whole=whole)
            places, values = self._expected(made, sizes, seed, content)
            expected = dict(zip(places.tolist(), values.tolist(), strict=True))
            count = 0
            for block in blocks:
                stored = self.run(sizes, block, seed, content)
                told = np.array([expected.get(each, np.nan) for each in stored])
                if not np.allclose(told, list(stored.values()), rtol=1e-6, atol=1e-9):
                    return False
                count += len(stored)
        except Unfit:
            return False
        return not whole or count == len(expected)

    def _blocks(self, made: _Product, sizes: Mapping[str, int], *, whole: bool) -> Sequence[int]:
        """The numbers of blocks to run, the last one first.

        Raises:
            Unfit: they are too few for all outputs.
        """
        count = int(np.prod(self.grid(sizes), dtype=np.int64))
        tiles = made.rows.tile * made.columns.tile
        outputs = sizes[made.rows.size] * sizes[made.columns.size]
        outputs *= 1 if made.batch is None else sizes[made.batch.size]
        if count * tiles < outputs or not count:
            raise Unfit("its launch does not reach all outputs")
        return range(count - 1, -1, -1) if whole else (count - 1,)

    def _expected(self, made: _Product, sizes: Mapping[str, int], seed: int, content: str) -> tuple[Numbers, Numbers]:
        """Where a product stores, and what."""
        numbers, data, given = {"0": 0, **self.numbers(sizes)}, held(seed, content), floats(self.subject, seed)
        rows, columns, steps = (np.arange(sizes[each]) for each in (made.rows.size, made.columns.size, made.depth))
        found = []
        for batch in range(1 if made.batch is None else sizes[made.batch.size]):
            a, b = (
                data(each.array, batch * numbers[each.by_batch] + own[:, None] * numbers[each.by_own]
                     + steps * numbers[each.by_k])
                for each, own in ((made.left, rows), (made.right, columns))
            )  # fmt: skip
            at = batch * numbers[made.out_by_batch] + rows[:, None] * numbers[made.by_row] + columns
            value = given.get(made.scale, 1.0) * (a @ b.T)
            if made.old:
                value = value + given.get(made.old, 1.0) * data(made.out, at)
            for name, of in made.biases:
                value = value + (data(name, rows)[:, None] if of == "rows" else data(name, columns))
            found.append((at.ravel(), (np.maximum(value, 0) if made.is_cut else value).ravel()))
        return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])

    def units(self, made: _Product) -> dict[str, int]:
        """By size, what it must be a multiple of.

        Raises:
            Unfit: whole launches do not store the product.
        """
        least = {made.rows.size: made.rows.tile, made.columns.size: made.columns.tile, made.depth: 0}
        found = {made.depth: self._unit(made, made.depth, _UNITS, least)}
        least[made.depth] = 2 * found[made.depth]
        for walk in (made.rows, made.columns):
            units = sorted({1, 4, walk.tile} - {each for each in (4,) if walk.tile % each})
            found[walk.size] = self._unit(made, walk.size, units, least)
        batch, one = ({} if made.batch is None else {made.batch.size: each} for each in (2, 1))
        long = next(each for each in range(_DEPTHS[0], 4 * _UNITS[-1]) if each % found[made.depth] == 0 and each % 3)
        tried = [{size: start + found[size] for size, start in least.items()} | batch, {**found, **batch},
                 {**least, **one, made.depth: long + found[made.depth]}]  # fmt: skip
        is_product = all(self.agrees(made, each, 2, whole=True) for each in tried)
        if not is_product or not self.agrees(made, {**found, **one}, 3, whole=False, content="*"):
            raise Unfit(_NONE)
        if any(sizes[size] % unit for sizes in self.subject.sizes() for size, unit in found.items()):
            raise Unfit("a workload has sizes at which it computes no product")
        return found

    def _unit(self, made: _Product, size: str, units: Sequence[int], least: Mapping[str, int]) -> int:
        """Which of `units` one size must be a multiple of, where others are `least`."""
        one = {} if made.batch is None else {made.batch.size: 1}
        for unit in units:
            tried = (unit, least[size] + unit) if least[size] else (unit, 3 * unit)
            if all(self.agrees(made, {**least, **one, size: each}, 3, whole=True) for each in tried):
                return unit
        raise Unfit(_NONE)


def held(seed: int, content: str) -> Callable[[str, Numbers], Numbers]:
    """What arrays hold; see `_Trials.run`."""
    words = content.split()

    def data(name: str, offsets: Numbers) -> Numbers:
        if name in words:
            return np.zeros(offsets.shape)
        found = arbitrary(name, offsets, seed)
        found = found * _LARGE if "*" in words else found
        return np.abs(found) if "+" in words else found

    return data


def _arrays(subject: Subject) -> tuple[str, tuple[str, ...]]:
    """The one array that is stored, and those that are read."""
    facts = subject.analysis.facts
    if any(each.is_atomic or each.kind == "unknown" for each in facts.accesses):
        raise Unfit("it changes memory in a way that is not followed")
    touched = [each for each in facts.accesses if each.space in ("global", "constant")]
    names = {each.array.partition("#")[0] for each in touched}
    written = {each.array.partition("#")[0] for each in touched if each.kind != "read"}
    types = {each: plain_type(_type_of(subject, each)) for each in names}
    in_loops = {each.array.partition("#")[0] for each in touched if each.kind == "read" and each.loops}
    if len(written) != 1 or len(in_loops - written) < 2 or not set(types.values()) <= set(_LOADED):
        raise Unfit("it does not make one array of floats of two others in a loop")
    read = {each.array.partition("#")[0] for each in touched if each.kind != "write"}
    return written.pop(), tuple(sorted(read))


def _type_of(subject: Subject, array: str) -> str:
    return next((each.c_type for each in subject.analysis.function.parameters if each.name == array), "")


# Text


def _written(subject: Subject, made: _Product, units: Mapping[str, int]) -> Subject:
    """The kernel as a plain product."""
    body = subject.analysis.function.body.place.span
    source = apply(subject.source, [Edit(body, _body(subject, made))])
    step = only_shape(subject)
    grid = [f"ceil_div({made.columns.size}, 16)", f"ceil_div({made.rows.size}, 16)"]
    grid += [] if made.batch is None else [made.batch.size]
    header = subject.header.relaunched(
        step.entry, grid=grid, block=("16", "16"), shared_bytes=None if step.shared_bytes is None else "0"
    )
    told = [f"{size} % {unit} == 0" for size, unit in units.items() if unit > 1]
    header = header.with_constraint("tiles", " and ".join(told)) if told else header
    return replace(subject, source=source, header=header)


def _body(subject: Subject, made: _Product) -> str:
    row, column, batch, k, total = (_free(subject, each) for each in ("row", "column", "batch", "step", "total"))
    types = {each: plain_type(_type_of(subject, each)) for each in (made.left.array, made.right.array, made.out)}
    kept = "double" if "double" in types.values() else "float"

    def element(array: str, *parts: tuple[str, str]) -> str:
        terms = [name if by == "1" else f"{name} * {by}" for name, by in parts if by != "0"]
        return f"{array}[{' + '.join(terms)}]"

    def loaded(array: str, *parts: tuple[str, str]) -> str:
        return _LOADED[plain_type(_type_of(subject, array))].format(element(array, *parts))

    left = loaded(made.left.array, (batch, made.left.by_batch), (row, made.left.by_own), (k, made.left.by_k))
    right = loaded(made.right.array, (batch, made.right.by_batch), (k, made.right.by_k), (column, made.right.by_own))
    place = (batch, made.out_by_batch), (row, made.by_row), (column, "1")
    value = f"{made.scale} * {total}" if made.scale else total
    if made.old:
        value += " + " + ("" if made.old == "1" else f"{made.old} * ") + loaded(made.out, *place)
    for name, of in made.biases:
        value += f" + {loaded(name, (row if of == 'rows' else column, '1'))}"
    value = f"fmax({value}, ({kept})0)" if made.is_cut else value
    queries = [f"const int {name} = blockIdx.{axis} * blockDim.{axis} + threadIdx.{axis};\n"
               for name, axis in ((column, "x"), (row, "y"))]  # fmt: skip
    queries += [] if made.batch is None else [f"const int {batch} = blockIdx.z;\n"]
    return (
        f"{{\n{''.join(queries)}if ({row} >= {made.rows.name} || {column} >= {made.columns.name}) return;\n"
        f"{kept} {total} = 0;\nfor (int {k} = 0; {k} < {made.depth_name}; ++{k}) {total} += {left} * {right};\n"
        f"{element(made.out, *place)} = {_STORED[types[made.out]].format(value)};\n}}"
    )


def _free(subject: Subject, word: str) -> str:
    """A name that the source does not have."""
    while word in subject.source:
        word += "_"
    return word
