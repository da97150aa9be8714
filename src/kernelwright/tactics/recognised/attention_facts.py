"""Attention of one token, in whatever style: keys weighted by their products with a query, values summed by them.

Whether a kernel is that is found out by running blocks of it (`block_replay`): each output must be what the formula
gives, with the rows, keys and lengths that the source's own indices say, for several sizes, blocks and numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernelwright.analysis.facts import Array
from kernelwright.errors import SpecError
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source import nodes
from kernelwright.source.loop_headers import read_header
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import only_shape, refuse_aliases
from kernelwright.tactics.recognised.block_replay import BlockReplay, Numbers, arbitrary
from kernelwright.tactics.recognised.places import Launched, QuotedIndex, launched, run_block, slice_of, values_of

_SHORT = (6, 13, 37)
"""Keys while a kernel is tried: fewer than a warp has threads, and more."""
_CLOSE = 1e-6


@dataclass(frozen=True)
class Keys:
    """Where the rows of an array start: one for each output row, or for each of its keys."""

    array: str
    place: QuotedIndex
    along: str
    """The index that counts keys; empty for an array with one row for each output row."""


@dataclass(frozen=True)
class Attention:
    """What a kernel that is attention of one token does."""

    query: Keys
    key: Keys
    value: Keys
    out: Keys
    length: QuotedIndex
    """How many keys a row has."""
    threads: int
    """That work on one row."""
    dim: str
    """Numbers of a row, as an expression in sizes."""
    scale: str
    """What products are multiplied with, as C text."""
    rows: str
    """How many rows there are, as an expression in sizes."""


def attention_of(subject: Subject) -> Attention:
    """What it does.

    Raises:
        Unfit: it is no attention of one token, or that is not certain.
    """
    names = _arrays(subject)
    refuse_aliases(subject)
    last: Unfit = Unfit("no output is a sum of values weighted by the exponentials of products")
    for size in (*_length_sizes(subject), ""):
        try:
            return _Trials(subject, names, size).found()
        except Unfit as unfit:
            last = unfit
    raise last


def _arrays(subject: Subject) -> tuple[tuple[str, ...], str]:
    """The arrays of floats that are read, and the one that is written.

    Raises:
        Unfit: there are not three and one, or no exponential is taken.
    """
    facts = subject.analysis.facts
    if any(each.is_atomic or each.kind == "unknown" for each in facts.accesses):
        raise Unfit("it changes memory in a way that is not followed")
    touched = [each for each in facts.accesses if each.space in ("global", "constant")]
    written = {each.array for each in touched if each.kind != "read"}
    read = {each.array for each in touched if each.kind != "write" and _is_float(facts.arrays.get(each.array))}
    if len(written) != 1 or len(read) != 3 or written & read:
        raise Unfit("it does not make one array of three others")
    if not any(each.name in ("exp", "exp2") for each in facts.math):
        raise Unfit("it takes no exponentials")
    return tuple(sorted(read)), written.pop()


def _is_float(array: Array | None) -> bool:
    return array is not None and array.is_float and array.width == 1


def _length_sizes(subject: Subject) -> tuple[str, ...]:
    """Sizes that loops end at."""
    found: dict[str, None] = {}
    for loop in subject.analysis.facts.loops:
        for name in loop.bound.names if loop.bound is not None else ():
            scalar = subject.scalar(name)
            for each in sorted(scalar.names) if scalar is not None else ():
                found[each] = None
    return tuple(found)


@dataclass
class _Trials:
    """Trials of one kernel in which a size says how many keys there are; none where an array does."""

    subject: Subject
    names: tuple[tuple[str, ...], str]
    size: str

    def found(self) -> Attention:
        """What all trials agree on.

        Raises:
            Unfit: nothing.
        """
        launch, run = self._run(_SHORT[0], 0)
        for candidate in self._candidates(launch, run):
            if self._holds(candidate):
                return self._finished(candidate)
        raise Unfit("no output is a sum of values weighted by the exponentials of products")

    # Candidates

    def _candidates(self, launch: Launched, run: BlockReplay) -> Iterator[Attention]:
        """What could be meant, as far as it touches the same elements as a block did."""
        read, written = self.names
        for threads in _shares(launch):
            if not _dim(launch, run, written, threads):
                continue
            out = next(self._rows(launch, run, written, threads), None)
            if out is None:
                continue
            lengths = self._lengths(launch, threads)
            for query in read:
                place = next(self._rows(launch, run, query, threads), None)
                if place is None:
                    continue
                others = [each for each in read if each != query]
                for length in lengths:
                    found = [list(self._keys(launch, run, each, threads, length)) for each in others]
                    for one, other in itertools.product(*found):
                        for key, value in ((one, other), (other, one)):
                            made = Attention(place, key, value, out, length, threads, "", "", "")
                            scale = self._scale(made, launch, run)
                            if scale:
                                yield replace(made, scale=scale)

    def _slices(self, array: str) -> list[QuotedIndex]:
        """The places where an array is touched, as far as they can be quoted."""
        accesses = {each.span for each in self.subject.analysis.facts.accesses if each.array == array}
        found = []
        for node in nodes.walk(self.subject.analysis.function.body):
            place = node.target if isinstance(node, nodes.Assign) else node
            if isinstance(place, nodes.Element | nodes.Unary) and node.place.span in accesses:
                try:
                    found.append(slice_of(self.subject, place))
                except Unfit:
                    continue
        return found

    def _rows(self, launch: Launched, run: BlockReplay, array: str, threads: int) -> Iterator[Keys]:
        dim = _dim(launch, run, self.names[1], threads)
        touched = _touched(run, array)
        for place in self._slices(array):
            rows = _row_threads(launch, threads)
            try:
                starts = values_of(self.subject, launch, place, np.full(len(rows), 0), rows, {})
            except Unfit:
                continue
            if _spread(starts, dim) == touched:
                yield Keys(array, place, "")

    def _keys(
        self, launch: Launched, run: BlockReplay, array: str, threads: int, length: QuotedIndex
    ) -> Iterator[Keys]:
        dim = _dim(launch, run, self.names[1], threads)
        touched = _touched(run, array)
        for place in self._slices(array):
            for along in _indices(place):
                each = Keys(array, place if any(f.name == along for f in place.free) else place.without(along), along)
                try:
                    starts = np.concatenate(list(self._starts(launch, each, threads, length, 0)))
                except (Unfit, ValueError):
                    continue
                if _spread(starts, dim) == touched:
                    yield each

    def _starts(self, launch: Launched, keys: Keys, threads: int, length: QuotedIndex, block: int) -> Iterator[Numbers]:
        """For each row of a block: where its keys start."""
        rows = _row_threads(launch, threads)
        counts = values_of(self.subject, launch, length, np.full(len(rows), block), rows, {})
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            if not 0 < count < 512:
                raise Unfit("a row has no keys, or too many to be tried")
            index = np.arange(int(count))
            yield values_of(self.subject, launch, keys.place, np.full(len(index), block), np.full(len(index), row),
                            {keys.along: index})  # fmt: skip

    def _lengths(self, launch: Launched, threads: int) -> list[QuotedIndex]:
        """Where loops end, that need not be the same for all rows."""
        found: dict[object, QuotedIndex] = {}
        rows = _row_threads(launch, threads)
        for loop in nodes.walk(self.subject.analysis.function.body):
            header = read_header(loop) if isinstance(loop, nodes.Loop) else None
            if header is None or header.operator != "<":
                continue
            try:
                made = slice_of(self.subject, header.bound)
                values_of(self.subject, launch, made, np.zeros(len(rows), np.int64), rows, {})
            except Unfit:
                continue
            if not made.free:
                found.setdefault(nodes.shape(header.bound), made)
        return list(found.values())

    # Whether one holds

    def _run(self, keys: int, block: int, more: Mapping[str, int] | None = None) -> tuple[Launched, BlockReplay]:
        launch = self._launched(keys, keys, more)
        return launch, run_block(self.subject, launch, block if block >= 0 else launch.blocks + block, keys)

    def _launched(self, keys: int, seed: int, more: Mapping[str, int] | None = None) -> Launched:
        sizes = {**self.subject.sizes()[0], **({self.size: keys} if self.size else {}), **(more or {})}
        return launched(self.subject, sizes, _floats(self.subject, seed))

    def _expected(self, found: Attention, launch: Launched, block: int, seed: int, dim: int) -> dict[int, float]:
        """What the block must leave in memory, by place."""
        rows = _row_threads(launch, found.threads)
        whole = np.full(len(rows), block)
        at = np.arange(dim)
        outs = values_of(self.subject, launch, found.out.place, whole, rows, {})
        queries = values_of(self.subject, launch, found.query.place, whole, rows, {})
        keys = self._starts(launch, found.key, found.threads, found.length, block)
        values = self._starts(launch, found.value, found.threads, found.length, block)
        scale = _scales(launch, dim)[found.scale]
        result: dict[int, float] = {}
        for out, query, key, value in zip(outs.tolist(), queries.tolist(), keys, values, strict=True):
            ones = arbitrary(found.query.array, query + at, seed)
            products = arbitrary(found.key.array, key[:, None] + at, seed) @ ones * scale
            weights = np.exp(products - products.max())
            sums = weights @ arbitrary(found.value.array, value[:, None] + at, seed) / weights.sum()
            result.update(zip((out + at).tolist(), sums.tolist(), strict=True))
        return result

    def _holds(self, found: Attention) -> bool:
        blocks = (0, -1, 1)
        for keys, block in zip(_SHORT, blocks, strict=True):
            launch, run = self._run(keys, block)
            number = block % launch.blocks
            dim = _dim(launch, run, self.names[1], found.threads)
            try:
                expected = self._expected(found, launch, number, keys, dim)
            except Unfit:
                return False
            if not _same(run.written.get(found.out.array, {}), expected):
                return False
        return True

    def _scale(self, found: Attention, launch: Launched, run: BlockReplay) -> str:
        """What products are multiplied with; empty where that is nothing known."""
        dim = _dim(launch, run, self.names[1], found.threads)
        for text in _scales(launch, dim):
            try:
                expected = self._expected(replace(found, scale=text), launch, 0, _SHORT[0], dim)
            except Unfit:
                return ""
            if _same(run.written.get(found.out.array, {}), expected):
                return text
        return ""

    # Sizes

    def _finished(self, found: Attention) -> Attention:
        return replace(found, dim=self._dim_text(found), rows=self._rows_text(found))

    def _dim_text(self, found: Attention) -> str:
        """A row's numbers as an expression: a size that changes with them, else a number."""
        launch, run = self._run(_SHORT[0], 0)
        dim = _dim(launch, run, found.out.array, found.threads)
        for name, size in self.subject.sizes()[0].items():
            if size != dim or name == self.size:
                continue
            try:
                other, again = self._run(_SHORT[0], 0, {name: 2 * size})
                threads = found.threads if other.threads == launch.threads else _scaled(found.threads, launch, other)
                if _dim(other, again, found.out.array, threads) == 2 * size:
                    return name
            except Unfit:
                continue
        if any(self._dim_at(found, sizes) != dim for sizes in self.subject.sizes()):
            raise Unfit("how many numbers a row has is not known in sizes")
        return str(dim)

    def _dim_at(self, found: Attention, sizes: Mapping[str, int]) -> int:
        own = {name: value for name, value in sizes.items() if name != self.size}
        launch, run = self._run(_SHORT[0], 0, own)
        return _dim(launch, run, found.out.array, found.threads)

    def _rows_text(self, found: Attention) -> str:
        """How many rows there are, which all launches must have threads for."""
        arguments = {binding.get(found.out.array) for binding in self.subject.bindings}
        argument = arguments.pop() if len(arguments) == 1 else None
        if argument is None:
            raise Unfit("how large its output is, is not known")
        text = " * ".join(f"({extent.text})" for extent in argument.shape)
        dim = self._dim_text(found)
        whole = f"({text}) // ({dim})"
        step = only_shape(self.subject)
        for sizes in self.subject.sizes():
            launch = launched(self.subject, sizes, _floats(self.subject, 0))
            try:
                rows = Expression.parse(whole).evaluate(sizes)
            except SpecError as error:
                raise Unfit(f"how many rows it has is not known: {error}") from error
            if launch.blocks * (launch.threads // found.threads) != rows or step.cluster:
                raise Unfit("its launch has more threads than rows")
        return whole


def _scaled(threads: int, launch: Launched, other: Launched) -> int:
    """Threads of a row in another launch: all of a block, or as many."""
    return other.threads if threads == launch.threads else threads


def _shares(launch: Launched) -> Sequence[int]:
    """How many threads may work on a row."""
    return tuple(n for n in dict.fromkeys((launch.threads, 32, 16, 8, 4, 1)) if launch.threads % n == 0)


def _row_threads(launch: Launched, threads: int) -> Numbers:
    """The first thread of each row of a block."""
    return np.arange(0, launch.threads, threads)


def _dim(launch: Launched, run: BlockReplay, out: str, threads: int) -> int:
    """Numbers of a row: all that a block writes, divided by its rows; 0 where that is no whole number."""
    count, rows = len(run.written.get(out, {})), launch.threads // threads
    return 0 if count % rows or count // rows < 2 else count // rows


def _touched(run: BlockReplay, array: str) -> frozenset[int]:
    if array in run.written:
        return frozenset(run.written[array])
    parts = run.read.get(array)
    return frozenset(np.unique(np.concatenate(parts)).tolist()) if parts else frozenset()


def _spread(starts: Numbers, dim: int) -> frozenset[int]:
    """All elements of rows that start there."""
    return frozenset((np.unique(starts)[:, None] + np.arange(dim)).reshape(-1).tolist())


def _indices(place: QuotedIndex) -> list[str]:
    """What could count keys: indices of loops, and whole numbers that are made of them."""
    return [each.name for each in (*place.free, *place.declared) if not each.is_pointer]


def _floats(subject: Subject, seed: int) -> dict[str, float]:
    """Numbers for by-value floats: others in each trial."""
    names = [
        each.name for each in subject.analysis.function.parameters
        if not each.is_pointer and ("float" in each.c_type or "double" in each.c_type)
    ]  # fmt: skip
    return {name: 0.3 + 0.11 * index + 0.017 * seed for index, name in enumerate(names)}


def _scales(launch: Launched, dim: int) -> dict[str, float]:
    """What products may be multiplied with, by C text."""
    given = {name: value for name, value in launch.arguments.items() if isinstance(value, float)}
    root = 1.0 / float(np.sqrt(dim))
    found = {"1.0f": 1.0, "rsqrtf((float)KW_DIM)": root, **given}
    return {**found, **{f"{name} * rsqrtf((float)KW_DIM)": value * root for name, value in given.items()},
            **{f"1.0f / {name}": 1.0 / value for name, value in given.items()}}  # fmt: skip


def _same(left: Mapping[int, float], right: Mapping[int, float]) -> bool:
    if left.keys() != right.keys():
        return False
    ones = np.array([left[key] for key in right])
    return bool(np.allclose(ones, np.array(list(right.values())), rtol=_CLOSE, atol=_CLOSE))
