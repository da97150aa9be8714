"""Time steps of a stencil, one launch after another: which launches make a chain, and why others make none."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from kernelwright.errors import SpecError
from kernelwright.problem.model import Argument, LaunchStep
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import only_shape, steps_of

MOST_STEPS = 8
"""One launch makes at most so many; a guess: each step more widens what tiles share with their neighbours."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Launches of one kernel, each of which reads what the one before it has written."""

    step: LaunchStep
    """The first launch; the others differ from it in `taken` and `given` alone."""
    taken: str
    """The kernel's parameter that a step reads."""
    given: str
    """The one that it writes."""
    buffers: tuple[str, ...]
    """What the first launch reads, then what each one writes: one more than there are launches."""
    counts: tuple[int, ...]
    """How many steps one launch may make, most first."""
    together: int
    """How many it makes."""

    @property
    def length(self) -> int:
        """Launches."""
        return len(self.buffers) - 1

    @property
    def between(self) -> tuple[str, ...]:
        """What is neither where it starts nor where it ends, each once."""
        return tuple(dict.fromkeys(self.buffers[1:-1]))

    def launches(self, names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """The arguments of each launch that is left, by the kernel's parameters: what lies between takes turns."""
        count = self.length // self.together
        ends = [self.buffers[0], *(self.between[number % len(self.between)] for number in range(count - 1))]
        ends.append(self.buffers[-1])
        own = dict(zip(names, self.step.arguments or (), strict=True))
        return tuple(
            tuple((own | {self.taken: ends[number], self.given: ends[number + 1]})[name] for name in names)
            for number in range(count)
        )


def chain_of(subject: Subject, taken: str, given: str) -> Chain:
    """The launches of a kernel as a chain from one array to the next.

    Args:
        subject: the kernel.
        taken: its parameter that a launch reads neighbours from.
        given: the one that it writes.

    Raises:
        Unfit: they are none, saying why.
    """
    steps = steps_of(subject)
    if len(steps) < 2:
        raise Unfit("it is launched once: there are no steps to join")
    step = only_shape(subject)
    first = subject.header.steps.index(steps[0])
    if subject.header.steps[first : first + len(steps)] != steps:
        raise Unfit("another kernel is launched between its steps")
    names = tuple(each.name for each in subject.analysis.facts.parameters)
    if any(len(each.arguments or ()) != len(names) for each in steps):
        raise Unfit("its launches pass another number of arguments than it has")
    passed = [dict(zip(names, each.arguments or (), strict=True)) for each in steps]
    for before, after in itertools.pairwise(passed):
        if before[given] != after[taken]:
            raise Unfit(f"a launch does not read what the one before it wrote ({before[given]})")
        changed = next((name for name in names if name not in (taken, given) and before[name] != after[name]), None)
        if changed is not None:
            raise Unfit(f"its launches differ in {changed}")
    counts = _counts(len(steps))
    chain = Chain(step, taken, given, (passed[0][taken], *(each[given] for each in passed)), counts, counts[0])
    others = {passed[0][name] for name in names if name not in (taken, given)}
    _refuse_seen(subject, chain, steps, others)
    _refuse_unlike(subject, chain)
    return chain


def _counts(length: int) -> tuple[int, ...]:
    found = tuple(count for count in range(min(length, MOST_STEPS), 1, -1) if length % count == 0)
    if not found:
        raise Unfit(f"{length} steps cannot be parted evenly")
    return found


def _refuse_seen(subject: Subject, chain: Chain, steps: tuple[LaunchStep, ...], others: set[str]) -> None:
    """What lies between must be scratch that nothing else touches, and no array may be there twice.

    Raises:
        Unfit: it is not.
    """
    first, last, between = chain.buffers[0], chain.buffers[-1], set(chain.between)
    roles: dict[str, str] = {each.name: each.role for each in subject.problem.arguments}
    roles |= {each.name: each.role for each in subject.header.scratch}
    for name in chain.between:
        if roles.get(name) != "scratch":
            raise Unfit(f"{name}, between two steps, is no scratch: others may read it")
    if first == last or {first, last} & between:
        raise Unfit("its last step writes what its first one reads")
    if any(before == after for before, after in itertools.pairwise(chain.buffers)):
        raise Unfit("a launch reads and writes one array")
    if others & {first, last, *between}:
        raise Unfit("a launch passes one array twice")
    for each in subject.header.steps:
        used = between & set(each.arguments or ())
        if each not in steps and used:
            raise Unfit(f"{each.entry} uses {sorted(used)[0]}, which lies between two steps")


def _refuse_unlike(subject: Subject, chain: Chain) -> None:
    """All arrays must have the same shape and type on every workload.

    Raises:
        Unfit: they have not.
    """
    known: dict[str, Argument] = {each.name: each for each in subject.problem.arguments}
    known |= {each.name: each for each in subject.header.scratch}
    if any(name not in known for name in chain.buffers):
        raise Unfit("an array of its steps is not declared")
    arrays = {name: known[name] for name in chain.buffers}
    if len({each.dtype for each in arrays.values()}) != 1:
        raise Unfit("the arrays of its steps have different types")
    for sizes in subject.sizes():
        if len({_shape(subject, each, sizes) for each in arrays.values()}) != 1:
            raise Unfit("the arrays of its steps have different shapes")


def _shape(subject: Subject, array: Argument, sizes: Mapping[str, int]) -> tuple[object, ...]:
    defaults = {each.name: each.default for each in subject.header.parameters}
    try:
        return tuple(each.evaluate({**defaults, **sizes}) for each in array.shape)
    except SpecError as error:
        raise Unfit(f"the shape of {array.name} is not known") from error
