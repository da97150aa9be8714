"""Matrix times vector, in whatever style: each output is made of the sum of products of two rows, as the source says.

Blocks of the kernel are run (`replay`): what they store must be what the source's own last expression makes of
the sum, with whatever it loads beside it (scales, biases).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kernelwright.source import nodes
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import refuse_aliases
from kernelwright.tactics.recognised.places import (
    Launched,
    QuotedIndex,
    integers_up_to,
    numbers_of,
    slice_of,
    values_of,
)
from kernelwright.tactics.recognised.replay.block import BlockReplay
from kernelwright.tactics.recognised.replay.values import Numbers, arbitrary
from kernelwright.tactics.recognised.trials import (
    Trials,
    first_found,
    length_sizes,
    once,
    row_count,
    row_threads,
    same_numbers,
    shares,
    shortened,
)

_LENGTHS = (64, 192, 96)
_MOST_STEPS = 30_000
"""That a block may take on short rows; sums of products take a few for each element."""

_NONE = "no output is made of the sum of products of two rows"


@dataclass(frozen=True)
class Product:
    """What a kernel that multiplies a matrix with a vector does."""

    matrix: str
    matrix_place: QuotedIndex
    """Where a row starts."""
    vector: str
    vector_place: QuotedIndex
    out: str
    out_place: QuotedIndex
    length: str
    """Elements of a row, as an expression in sizes."""
    result: QuotedIndex
    """What is stored, of the sum and more."""
    sums: tuple[nodes.Expression, ...]
    """Where the sum stands in it."""
    threads: int
    rows: str


@once
def product_of(subject: Subject) -> Product:
    """What it does.

    Raises:
        Unfit: it is no matrix times vector, or that is not certain.
    """
    read, out = _arrays(subject)
    refuse_aliases(subject)
    trials = (
        Trials(subject, out, size, shortened(subject, size, _LENGTHS)[0], _MOST_STEPS) for size in length_sizes(subject)
    )
    return first_found(trials, lambda each: _Hypotheses(each, read).found(), _NONE)


def _arrays(subject: Subject) -> tuple[tuple[str, ...], str]:
    facts = subject.analysis.facts
    if any(each.is_atomic or each.kind == "unknown" for each in facts.accesses):
        raise Unfit("it changes memory in a way that is not followed")
    touched = [each for each in facts.accesses if each.space in ("global", "constant")]
    written = {each.array for each in touched if each.kind != "read"}
    read = {each.array for each in touched if each.kind != "write" and each.loops}
    known = facts.arrays
    wide = [name for name in (*read, *written) if name not in known or known[name].width != 1]
    if len(written) != 1 or len(read) < 2 or written & read or wide or not known[next(iter(written))].is_float:
        raise Unfit("it does not make one array of floats of two others in a loop")
    return tuple(sorted(read)), written.pop()


@dataclass
class _Hypotheses:
    """What a kernel could be, as far as trials of it tell."""

    trials: Trials
    read: tuple[str, ...]

    def __post_init__(self) -> None:
        self.lengths = shortened(self.trials.subject, self.trials.size, _LENGTHS)

    def found(self) -> Product:
        """What all trials agree on.

        Raises:
            Unfit: nothing.
        """
        launch, run = self.trials.run(self.lengths[0], 0)
        tried = [*zip(self.lengths, (0, -1, 1), strict=True), *((each, 0) for each in self.trials.beyond(self.lengths))]
        for candidate, length in self._candidates(launch, run):
            if all(self._holds(candidate, length, *each) for each in tried):
                return replace(candidate, rows=self.trials.rows_text(candidate.threads, "1"), length=self.trials.size)
        raise Unfit(_NONE)

    def _candidates(self, launch: Launched, run: BlockReplay) -> Iterator[tuple[Product, QuotedIndex]]:
        trials = self.trials
        results = list(self._results())
        for threads in shares(launch):
            if row_count(launch, run, trials.out, threads) != 1:
                continue
            out = trials.rows(launch, run, trials.out, threads, 1)
            for length in trials.lengths(launch, threads) if out is not None else ():
                numbers = numbers_of(trials.subject, launch, length, *_rows_of(launch, threads, 0))
                if (numbers != self.lengths[0]).any():
                    continue
                places = {each: trials.rows(launch, run, each, threads, self.lengths[0]) for each in self.read}
                for one, other in itertools.permutations([each for each in self.read if places[each]], 2):
                    for result, sums in results:
                        assert out is not None
                        made = Product(one, places[one], other, places[other], trials.out, out, "", result, sums,  # type: ignore[arg-type]
                                       threads, "")  # fmt: skip
                        if self._is_matrix(launch, made) and self._holds(made, length, self.lengths[0], 0):
                            yield made, length

    def _is_matrix(self, launch: Launched, made: Product) -> bool:
        """Whether each row of a block has a matrix row of its own."""
        rows = _rows_of(launch, made.threads, 0)
        starts = values_of(self.trials.subject, launch, made.matrix_place, *rows, {})
        return len(set(starts.tolist())) == len(starts)

    def _results(self) -> Iterator[tuple[QuotedIndex, tuple[nodes.Expression, ...]]]:
        """What is stored, with every part of it that could be the sum."""
        subject = self.trials.subject
        floats = {each.name for each in nodes.walk(subject.analysis.function.body)
                  if isinstance(each, nodes.Declarator) and not each.is_pointer}  # fmt: skip
        for node in nodes.walk(subject.analysis.function.body):
            if not isinstance(node, nodes.Assign) or nodes.root_name(node.target) != self.trials.out:
                continue
            inside = list(nodes.walk(node.value))
            for leaf in inside:
                root = nodes.root_name(leaf) if isinstance(leaf, nodes.Name | nodes.Element) else None
                if root is None or root not in floats or node.operator != "=":
                    continue
                same = tuple(each for each in inside if type(each) is type(leaf) and nodes.same(each, leaf))
                try:
                    yield slice_of(subject, node.value, frozenset((root,))), same  # type: ignore[misc]
                except Unfit:
                    continue

    def _holds(self, found: Product, length: QuotedIndex, size: int, block: int) -> bool:
        """Whether a block stores what the sums say."""
        launch, run = self.trials.run(size, block)
        subject, number = self.trials.subject, block % launch.blocks
        rows = self.trials.live_rows(launch, found.threads, number, size, 1)
        whole = np.full(len(rows), number)
        try:
            if (numbers_of(subject, launch, length, whole, rows) != size).any():
                return False
            starts = [values_of(subject, launch, place, whole, rows, {})
                      for place in (found.matrix_place, found.vector_place, found.out_place)]  # fmt: skip
            sums = (self._data(found.matrix, starts[0], size) * self._data(found.vector, starts[1], size)).sum(1)
            given = {id(each): sums for each in found.sums}
            results = numbers_of(subject, launch, found.result, whole, rows, given, size)
        except Unfit:
            return False
        expected = dict(zip(starts[2].tolist(), results.tolist(), strict=True))
        return same_numbers(run.written.get(found.out, {}), expected)

    def _data(self, array: str, starts: Numbers, size: int) -> Numbers:
        """The elements of rows that start there."""
        places = starts[:, None] + np.arange(size)
        if self.trials.subject.analysis.facts.arrays[array].is_float:
            return arbitrary(array, places, size)
        return integers_up_to(size)(array, places)


def _rows_of(launch: Launched, threads: int, block: int) -> tuple[Numbers, Numbers]:
    rows = row_threads(launch, threads)
    return np.full(len(rows), block), rows
