"""Attention of one token, in whatever style: keys weighted by their products with a query, values summed by them.

Whether a kernel is that is found out by running blocks of it (`replay`): each output must be what the formula
gives, with the rows, keys and lengths that the source's own indices say, for several sizes, blocks and numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from kernelwright.analysis.facts import Array
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import refuse_aliases
from kernelwright.tactics.recognised.places import Launched, QuotedIndex, numbers_of, values_of
from kernelwright.tactics.recognised.replay.block import MAX_STEPS, BlockReplay
from kernelwright.tactics.recognised.replay.values import Numbers, arbitrary
from kernelwright.tactics.recognised.trials import (
    Trials,
    covers,
    elements,
    first_found,
    indices,
    length_sizes,
    once,
    row_count,
    row_threads,
    same_numbers,
    shares,
    shortened,
)

_SHORT = (6, 13, 37)
"""Keys while a kernel is tried: fewer than a warp has threads, and more."""
_MOST_KEYS = 512
_SHORTER = (6, 9, 13)
"""The same where threads take many steps for each."""


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
    more: tuple[tuple[Keys, str], ...] = ()
    """Arrays with one number for each row, and what that is, as C text of the row's largest product and sum."""


_MORE: Mapping[str, Callable[[float, float], float]] = MappingProxyType({
    "kw_most * 0.69314718f + logf(kw_whole)": lambda top, total: top + math.log(total),
    "kw_most + log2f(kw_whole)": lambda top, total: (top + math.log(total)) / math.log(2.0),
    "kw_most * 0.69314718f": lambda top, total: top,
    "kw_most": lambda top, total: top / math.log(2.0),
    "kw_whole": lambda top, total: total,
})  # fmt: skip
"""By C text, what a row may leave beside its values: `kw_most` is its largest product by powers of two."""


@once
def attention_of(subject: Subject) -> Attention:
    """What it does.

    Raises:
        Unfit: it is no attention of one token, or that is not certain.
    """
    read, written = _arrays(subject)
    refuse_aliases(subject)
    trials = (
        Trials(subject, out, size, shortened(subject, size, _SHORT)[0])
        for size in (*length_sizes(subject), "") for out in written
    )  # fmt: skip
    return first_found(
        trials, lambda each: _Hypotheses(each, read, tuple(n for n in written if n != each.out)).found(), _NONE
    )


_NONE = "no output is a sum of values weighted by the exponentials of products"


def _arrays(subject: Subject) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arrays of floats that are read, and those that are written.

    Raises:
        Unfit: there are not three, and one to three, or no exponential is taken.
    """
    facts = subject.analysis.facts
    if any(each.is_atomic or each.kind == "unknown" for each in facts.accesses):
        raise Unfit("it changes memory in a way that is not followed")
    touched = [each for each in facts.accesses if each.space in ("global", "constant")]
    written = {each.array for each in touched if each.kind != "read"}
    read = {each.array for each in touched if each.kind != "write" and _is_float(facts.arrays.get(each.array))}
    is_of_floats = all(_is_float(facts.arrays.get(each)) for each in written)
    if not 1 <= len(written) <= 3 or len(read) != 3 or written & read or not is_of_floats:
        raise Unfit("it does not make one array of three others")
    if not any(each.name in ("exp", "exp2") for each in facts.math):
        raise Unfit("it takes no exponentials")
    return tuple(sorted(read)), tuple(sorted(written))


def _is_float(array: Array | None) -> bool:
    return array is not None and array.is_float and array.width == 1


@dataclass
class _Hypotheses:
    """What a kernel could be, as far as trials of it tell."""

    trials: Trials
    read: tuple[str, ...]
    written: tuple[str, ...]
    """Beside the values."""

    def found(self) -> Attention:
        """What all trials agree on.

        Raises:
            Unfit: nothing.
        """
        launch, run = self.trials.run(self.trials.shortest, 0)
        for candidate in self._candidates(launch, run):
            if self._holds(candidate):
                count = row_count(launch, run, self.trials.out, candidate.threads)
                dim = self.trials.count_text(launch, candidate.threads, count)
                return replace(candidate, dim=dim, rows=self.trials.rows_text(candidate.threads, dim))
        raise Unfit(_NONE)

    def _candidates(self, launch: Launched, run: BlockReplay) -> Iterator[Attention]:
        """What could be meant, as far as it touches the same elements as a block did."""
        trials = self.trials
        for threads in shares(launch):
            dim = row_count(launch, run, trials.out, threads)
            out = trials.rows(launch, run, trials.out, threads, dim) if dim > 1 else None
            if out is None:
                continue
            for length, query in itertools.product(trials.lengths(launch, threads), self.read):
                place = trials.rows(launch, run, query, threads, dim)
                if place is None:
                    continue
                others = [each for each in self.read if each != query]
                found = [list(self._keys(launch, run, each, threads, length, dim)) for each in others]
                for one, other in itertools.product(*found):
                    for key, value in ((one, other), (other, one)):
                        made = Attention(Keys(query, place, ""), key, value, Keys(trials.out, out, ""), length, threads,
                                         "", "", "")  # fmt: skip
                        scale = self._scale(made, launch, run, dim)
                        whole = self._with_more(replace(made, scale=scale), launch, run, dim) if scale else None
                        if whole is not None:
                            yield whole

    def _with_more(self, found: Attention, launch: Launched, run: BlockReplay, dim: int) -> Attention | None:
        """What else the first block leaves for each row; None where that is not known of an array."""
        more: list[tuple[Keys, str]] = []
        for array in self.written:
            place = self.trials.rows(launch, run, array, found.threads, 1)
            if place is None:
                return None
            tried = (replace(found, more=((Keys(array, place, ""), text),)) for text in _MORE)
            holds = (each for each in tried
                     if self._leaves(each, launch, run, 0, self.trials.shortest, dim))  # fmt: skip
            one = next(holds, None)
            if one is None:
                return None
            more += one.more
        return replace(found, more=tuple(more))

    def _leaves(
        self, found: Attention, launch: Launched, run: BlockReplay, block: int, length: int, dim: int
    ) -> bool:  # fmt: skip
        """Whether a block leaves what the formula says."""
        try:
            expected = self._expected(found, launch, block, length, dim)
        except Unfit:
            return False
        return all(same_numbers(run.written.get(array, {}), numbers) for array, numbers in expected.items())

    def _keys(
        self, launch: Launched, run: BlockReplay, array: str, threads: int, length: QuotedIndex, dim: int
    ) -> Iterator[Keys]:
        touched = elements(run, array)
        rows = row_threads(launch, threads)
        for place in self.trials.slices(array):
            for along in indices(place):
                each = Keys(array, place if any(f.name == along for f in place.free) else place.without(along), along)
                try:
                    starts = np.concatenate(list(self._starts(launch, each, length, 0, rows)))
                except (Unfit, ValueError):
                    continue
                if covers(starts, dim, touched):
                    yield each

    def _starts(
        self, launch: Launched, keys: Keys, length: QuotedIndex, block: int, rows: Numbers
    ) -> Iterator[Numbers]:  # fmt: skip
        """For each row of a block: where its keys start."""
        subject = self.trials.subject
        counts = numbers_of(subject, launch, length, np.full(len(rows), block), rows)
        if not len(counts) or counts.min() < 1 or counts.max() > _MOST_KEYS:
            raise Unfit("a row has no keys, or too many to be tried")
        index = np.concatenate([np.arange(count) for count in counts.tolist()])
        threads = np.repeat(rows, counts)
        starts = values_of(subject, launch, keys.place, np.full(len(index), block), threads, {keys.along: index})
        yield from np.split(starts, np.cumsum(counts)[:-1])

    def _expected(
        self, found: Attention, launch: Launched, block: int, length: int, dim: int
    ) -> dict[str, dict[int, float]]:
        """What the block must leave in memory, by array and place."""
        rows = self.trials.live_rows(launch, found.threads, block, length, dim)
        subject, whole, at = self.trials.subject, np.full(len(rows), block), np.arange(dim)
        outs = values_of(subject, launch, found.out.place, whole, rows, {})
        queries = values_of(subject, launch, found.query.place, whole, rows, {})
        keys = self._starts(launch, found.key, found.length, block, rows)
        values = self._starts(launch, found.value, found.length, block, rows)
        scale = _scales(launch, dim)[found.scale]
        result: dict[int, float] = {}
        tops: list[tuple[float, float]] = []
        for out, query, key, value in zip(outs.tolist(), queries.tolist(), keys, values, strict=True):
            ones = arbitrary(found.query.array, query + at, length)
            products = arbitrary(found.key.array, key[:, None] + at, length) @ ones * scale
            weights = np.exp(products - products.max())
            sums = weights @ arbitrary(found.value.array, value[:, None] + at, length) / weights.sum()
            result.update(zip((out + at).tolist(), sums.tolist(), strict=True))
            tops.append((float(products.max()), float(weights.sum())))
        left = {found.out.array: result}
        for each, text in found.more:
            places = values_of(subject, launch, each.place, whole, rows, {}).tolist()
            left[each.array] = {at: _MORE[text](*top) for at, top in zip(places, tops, strict=True)}
        return left

    def _holds(self, found: Attention) -> bool:
        """Whether the formula gives what other blocks leave at other lengths."""
        dim = 0
        first = self.trials.run(self.trials.shortest, 0)[1]
        lengths: tuple[int, ...] = _SHORT if first.steps * _SHORT[-1] < MAX_STEPS * _SHORT[0] else _SHORTER
        lengths = shortened(self.trials.subject, self.trials.size, lengths)
        others = [(each, 0) for each in self.trials.beyond(lengths)]
        for length, block in (*zip(lengths, (0, -1, 1), strict=True), *others):
            launch, run = self.trials.run(length, block)
            dim = dim or row_count(launch, run, found.out.array, found.threads)
            if not self._leaves(found, launch, run, block % launch.blocks, length, dim):
                return False
        return True

    def _scale(self, found: Attention, launch: Launched, run: BlockReplay, dim: int) -> str:
        """What products are multiplied with; empty where that is nothing known."""
        for text in _scales(launch, dim):
            if self._leaves(replace(found, scale=text), launch, run, 0, self.trials.shortest, dim):
                return text
        return ""


def _scales(launch: Launched, dim: int) -> dict[str, float]:
    """What products may be multiplied with, by C text."""
    given = {name: value for name, value in launch.arguments.items() if isinstance(value, float)}
    root = 1.0 / float(np.sqrt(dim))
    found = {"1.0f": 1.0, "rsqrtf((float)KW_DIM)": root, **given}
    for name, value in given.items():
        found |= {f"{name} * rsqrtf((float)KW_DIM)": value * root, f"1.0f / {name}": 1.0 / value,
                  f"{name} * 0.69314718f": value * float(np.log(2.0))}  # fmt: skip
    return found
