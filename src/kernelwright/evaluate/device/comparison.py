"""Several candidates measured side by side, in the process that owns the device.

All run in the same memory, in rounds of random order, so that a ratio within a round says something of the kernels and
of nothing else. They are spread over sets of buffers, each in another place, one set after the other: were sets to take
turns, whoever is first in a round would find its memory out of the caches, and the next one in them.

Every launch has inputs that no candidate has seen before: two candidates on the same inputs could hand results to each
other. The baseline, which works for nobody, takes the inputs of a candidate that ran before it in the round, of another
one each time and in random order; then both results are compared on the device. Never the other way round: on a CPU the
baseline's results would lie where the candidate might find them. One launch of each candidate, picked after it ran, is
written out for the referee.

Parts of what every launch wrote are kept, at places that are drawn when it has ended; afterwards the baseline is
launched on the same inputs. On a CPU a kernel shares the process with what earlier launches left. There the parent is
told when a launch has ended, and only then draws the places, and whether this launch is the one to be written out. It
reads the places itself, so that nothing in the kernel's process can see it happen; and the baseline is launched in a
process in which no candidate has ever run.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from kernelwright.backend.base import DeviceSession, LaunchFailed, Module
from kernelwright.backend.redraw import Closeness
from kernelwright.evaluate.data.freshness import launch_secret
from kernelwright.evaluate.device.arena import Arena, BufferSpec, Job, results_of
from kernelwright.evaluate.device.conditions import Readings
from kernelwright.evaluate.device.fresh_launches import Picked, settle_cache
from kernelwright.problem.outcome import Conditions

RUNS = 64
RUN_BYTES = 256
"""So many runs of neighbours, or all. A launch that leaves out a share p of a result's runs is missed with a chance of
at most (1 - p)^64, and with this power of n where n launches do so. A gain in the median needs that in half of the
rounds: of 1.02, which is p = 0.02, in 10 of 20 rounds it is missed with 2.4e-6; of 1.1 with 3e-27. What lies in fewer
runs than its share of the work is, like one long row, is left to the launches that are judged whole."""

Places = Mapping[str, Mapping[int, bytes]]
"""By result and offset what a launch wrote there."""

Addresses = Mapping[str, int]
"""By result where its data lie in the worker's memory; empty: not in it."""

Parts = tuple[int, Places]
"""A launch's secret, and parts of what it wrote."""


@dataclass(frozen=True, slots=True)
class CompareJob:
    """Measure several candidates in interleaved rounds; the first is the baseline."""

    jobs: tuple[Job, ...]
    inputs: Mapping[str, Path]
    """The first values that each launch's are made from."""
    set_count: int
    """Places in memory that rounds are spread over."""
    rounds: int
    warmup_count: int
    """Rounds that do not count, spread over the sets, before those that do."""
    cache: Literal["hot", "cold"]
    seed: int
    """The seed of the order."""
    secret: int
    """This job's secret; each launch has its own, made from this one."""
    limits: Mapping[str, Closeness | None]
    """By output: how far a candidate's result may be from the baseline's on the same inputs."""
    out_folder: Path
    """What the picked launch of the k-th job wrote goes to `compared_folder(out_folder, k)`."""
    has_parts: bool = False
    """Whether the parent draws which parts of what every launch wrote are kept: see `PartsJob`."""


@dataclass(frozen=True, slots=True)
class PartsJob:
    """Give what the launch that ended wrote at the places that `seed` draws; or go on launching.

    A comparison with parts is answered with the job's place once a launch that counts has ended. It goes on where it is
    told to, and is answered so again until all are done.
    """

    seed: int | None = None
    """None: give addresses instead, or nothing where they are not asked for."""
    is_picked: bool = False
    """Whether the launch is to be written out for the referee."""
    goes_on: bool = True


@dataclass(frozen=True, slots=True)
class CompareDone:
    """`samples_ms[k][r]`: the k-th job in round r."""

    picked: tuple[Picked, ...]
    """By place, the launch that was written out."""
    samples_ms: tuple[tuple[float, ...], ...]
    failed: Mapping[int, str]
    """By place, why its launch ended the comparison; then there are no samples of any job."""
    wall_ms: tuple[tuple[float, ...], ...] = ()
    """As `samples_ms`, by the host's clock, until the device was idle."""
    seen_wrong: Picked | None = None
    """That launch, where the device found it wrong: what it left was written out as what is picked is."""
    conditions: Conditions | None = None
    """How the device was, from readings between rounds."""
    timer: str = ""
    parts: tuple[tuple[Parts, ...], ...] = ()
    """By place and round, parts of what each launch wrote; where the parent asked for them, it adds them."""
    spent_s: float = 0.0
    """What all of it took by the clock of the process that asked, which sets it."""


def compared_folder(out_folder: Path, place: int | str) -> Path:
    """Where the buffers of the comparison's job at `place` are written."""
    return out_folder.with_name(f"{out_folder.name}-{place}")


def current_file(out_folder: Path) -> Path:
    """Where the place of the job that runs is noted, for when it never comes back."""
    return out_folder.with_name(f"{out_folder.name}-current")


Look = int | Places | Addresses
"""The place of the launch that has ended, parts of what it wrote, or where they lie."""

Comparing = Generator[Look, PartsJob | None, CompareDone]
"""A comparison on its way."""


def compare(session: DeviceSession, modules: Sequence[Module], job: CompareJob) -> Comparing:
    """Measure; a launch that fails, or does what it must not, ends the comparison and is named."""
    with Arena(session, job.jobs, [job.inputs] * job.set_count, has_own_outputs=True) as arena:
        return (yield from _Rounds(session, arena, modules, job).run())


def continued(comparing: Comparing, asked: PartsJob | None) -> Look | CompareDone:
    """What comes next of a comparison; None begins it."""
    try:
        return comparing.send(asked)
    except StopIteration as end:
        done: CompareDone = end.value
        return done


def rounds_of(job: CompareJob) -> list[tuple[int, bool]]:
    """By round the set that it runs on, and whether it counts."""
    planned: list[tuple[int, bool]] = []
    for index in range(job.set_count):
        idle, counted = (
            count * (index + 1) // job.set_count - count * index // job.set_count
            for count in (job.warmup_count, job.rounds)
        )
        planned += [(index, False)] * idle + [(index, True)] * counted
    return planned


def secrets_of(job: CompareJob, place: int) -> list[int]:
    """By counted round the secret of a candidate's launch; the baseline, at place 0, takes a candidate's."""
    rounds = enumerate(rounds_of(job))
    return [launch_secret(job.secret, number * len(job.jobs) + place) for number, (_, counts) in rounds if counts]


class _Wrong(Exception):
    """What a launch did that it must not."""

    def __init__(self, place: int, why: str, seen: Picked) -> None:
        super().__init__(why)
        self.place, self.why, self.seen = place, why, seen


class _Rounds:
    def __init__(self, session: DeviceSession, arena: Arena, modules: Sequence[Module], job: CompareJob) -> None:
        self._session = session
        self._arena = arena
        self._modules = modules
        self._job = job
        self._order_rng = np.random.default_rng(job.seed)
        self._rng = np.random.default_rng()
        self._samples_ms: list[list[float]] = [[] for _ in job.jobs]
        self._wall_ms: list[list[float]] = [[] for _ in job.jobs]
        self._parts: list[list[Parts]] = [[] for _ in job.jobs]
        self._picked: list[Picked | None] = [None] * len(job.jobs)
        self._set = 0
        """Where the round runs."""
        self._partners: list[int] = []
        """Candidates whose inputs the baseline has not taken yet in this turn."""
        self._current = current_file(job.out_folder)
        self._readings = Readings(session.read_state)
        if job.has_parts:  # finding an address asks the driver, which a kernel may have changed: nothing is owed yet
            for each in job.jobs:
                for index in range(job.set_count):
                    arena.addresses(index, each)

    def run(self) -> Comparing:
        job = self._job
        backwards: list[int] = []
        for number, (self._set, is_counted) in enumerate(rounds_of(job)):
            order = backwards or self._order_rng.permutation(len(job.jobs)).tolist()
            if is_counted:  # backwards every other time: each runs as often before as after each other one
                backwards = [] if backwards else order[::-1]
            try:
                failed = yield from self._round(number, order, is_counted=is_counted)
            except _Wrong as error:
                return CompareDone((), (), {error.place: error.why}, seen_wrong=error.seen)
            if failed is not None:
                return CompareDone((), (), failed)
            self._readings.take()
        picked = tuple(each for each in self._picked if each is not None)
        samples_ms = tuple(tuple(row) for row in self._samples_ms)
        wall_ms = tuple(tuple(row) for row in self._wall_ms)
        conditions = self._readings.conditions
        parts = tuple(tuple(row) for row in self._parts)
        timer = self._session.timer
        return CompareDone(picked, samples_ms, {}, wall_ms, conditions=conditions, timer=timer, parts=parts)

    def _round(
        self, number: int, order: Sequence[int], *, is_counted: bool
    ) -> Generator[Look, PartsJob | None, Mapping[int, str] | None]:
        """One launch of each; which one failed and why, or None."""
        own = [launch_secret(self._job.secret, number * len(order) + place) for place in order]
        by_place = dict(zip(order, own, strict=True))
        partner = self._next_partner(order)
        by_place[0] = by_place[partner]
        for place in order:
            self._current.write_text(str(place))
            try:
                elapsed_ms, wall_ms = self._sample(place, by_place[place])
            except LaunchFailed as error:
                return {place: error.message}
            if is_counted and self._job.has_parts:  # before anything else looks, which could have filled what is owed
                look = yield place
                while look is not None and not look.goes_on:
                    look = yield self._looked_at(place, by_place[place], look)
            self._expect_untouched_by(place, by_place[place])
            if place in (0, partner) and partner:
                self._hold_against_other(place, partner, by_place[0])
            if is_counted:
                if not self._job.has_parts:
                    self._keep_parts(place, by_place[place])
                    if self._is_picked(place):
                        self._pick(place, by_place[place])
                self._samples_ms[place].append(elapsed_ms)
                self._wall_ms[place].append(wall_ms)
        return None

    def _next_partner(self, order: Sequence[int]) -> int:
        """The candidate whose inputs the baseline takes, of those that run before it; 0 where there is none."""
        if not self._partners:
            self._partners = secrets.SystemRandom().sample(range(1, len(self._job.jobs)), len(self._job.jobs) - 1)
        before = order[: order.index(0)]
        partner = next((place for place in self._partners if place in before), 0)
        if partner:
            self._partners.remove(partner)
        return partner

    def _sample(self, place: int, secret: int) -> tuple[float, float]:
        """The device's milliseconds, and those of the host's clock."""
        job, set_index = self._job.jobs[place], self._set
        self._arena.make_ready(set_index, job, rng=self._rng, secret=secret)
        launches = self._arena.launches(self._modules[place], set_index, job)
        settle_cache(self._session, self._arena, self._job.cache)
        self._session.synchronize()
        start_s = time.perf_counter()
        elapsed_ms = self._session.time(launches)
        self._session.synchronize()
        return elapsed_ms, (time.perf_counter() - start_s) * 1e3

    def _expect_untouched_by(self, place: int, secret: int) -> None:
        self._arena.expect_untouched_by(self._set, self._job.jobs[place], secret)
        if not self._session.as_expected():
            seen = Picked(secret, self._write(place), is_damaged=True)
            raise _Wrong(place, "it wrote outside of its buffers, or changed its inputs", seen)

    def _hold_against_other(self, place: int, partner: int, secret: int) -> None:
        """Keep the candidate's result; compare the baseline's on the same inputs with it."""
        job, set_index = self._job.jobs[place], self._set
        if place:
            self._arena.keep_results(set_index, job)
            return
        self._arena.expect_close_results(set_index, job, self._job.limits)
        if not self._session.as_expected():
            self._arena.put_back_results(set_index, self._job.jobs[partner])
            seen = Picked(secret, self._write(partner))
            raise _Wrong(partner, "its results are not the baseline's on the same inputs", seen)

    def _write(self, place: int) -> frozenset[str]:
        folder = compared_folder(self._job.out_folder, place)
        return self._arena.write(self._set, folder, self._job.jobs[place], is_all=True)

    def _keep_parts(self, place: int, secret: int) -> None:
        if place:
            places = places_of(self._job.jobs[place], secrets.randbits(64))
            self._parts[place].append((secret, _read(self._arena, self._set, self._job.jobs[place], places)))

    def _is_picked(self, place: int) -> bool:
        """Each round is picked as likely as any other, and none is known to be before it ran."""
        return self._picked[place] is None and is_drawn(self._job.rounds - len(self._samples_ms[place]))

    def _pick(self, place: int, secret: int) -> None:
        self._picked[place] = Picked(secret, self._write(place))

    def _looked_at(self, place: int, secret: int, look: PartsJob) -> Places | Addresses:
        job = self._job.jobs[place]
        found: Places | Addresses = (
            self._arena.addresses(self._set, job)
            if look.seed is None
            else _read(self._arena, self._set, job, places_of(job, look.seed))
        )
        if look.is_picked:
            self._pick(place, secret)
        return found


def is_drawn(left: int) -> bool:
    """Whether this one is drawn of those that are left, itself included."""
    return secrets.randbelow(left) == 0


# Every launch held against the baseline, elsewhere --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgainJob:
    """Launch on the inputs of other launches, whose parts these are; answered with the same places, in their order."""

    job: Job
    inputs: Mapping[str, Path]
    """The first values that each launch's are made from."""
    parts: Sequence[Parts]


def launch_again(session: DeviceSession, module: Module, job: AgainJob) -> tuple[Parts, ...]:
    """As launches of the comparison began, from the same inputs."""
    rng, found = np.random.default_rng(), []
    with Arena(session, [job.job], [job.inputs]) as arena:
        launches = arena.launches(module, 0, job.job)
        for each in job.parts:
            arena.make_ready(0, job.job, rng=rng, secret=each[0])
            session.time(launches)
            session.synchronize()
            found.append((each[0], _read(arena, 0, job.job, each[1])))
    return tuple(found)


def differing(parts: Parts, expected: Parts, limits: Mapping[str, Closeness | None]) -> str | None:
    """The result in which a launch is not within limits of another one on the same inputs; None: in none."""
    for name, limit in limits.items():
        one, other = (b"".join(each[1][name].values()) for each in (parts, expected))
        is_close = one == other or (limit is not None and len(one) == len(other) and _holds(limit, one, other))
        if not is_close:
            return name
    return None


def are_parts(found: object, job: Job, seed: int) -> bool:
    """Whether these are whole parts of every result at the places that `seed` draws; never an exception.

    Another process answered with them, perhaps a kernel in its place.
    """
    byte_counts = {spec.name: spec.byte_count for spec in results_of(job)}
    return (
        type(found) is dict
        and found.keys() == byte_counts.keys()
        and all(
            _are_runs(found[name], list(offsets), byte_counts[name]) for name, offsets in places_of(job, seed).items()
        )
    )


def _are_runs(runs: object, offsets: Sequence[int], byte_count: int) -> bool:
    """Whether these are the runs of a result of so many bytes at these offsets, in their order."""
    return (
        type(runs) is dict
        and all(type(offset) is int for offset in runs)
        and list(runs) == offsets
        and all(type(run) is bytes and len(run) == min(RUN_BYTES, byte_count - offset) for offset, run in runs.items())
    )


def _holds(limit: Closeness, one: bytes, other: bytes) -> bool:
    return limit.holds(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8))


def places_of(job: Job, seed: int) -> Places:
    """The offsets of each result that `seed` draws, without what is there yet."""
    return {spec.name: dict.fromkeys(_drawn_offsets(spec, seed), b"") for spec in results_of(job)}


def _drawn_offsets(spec: BufferSpec, seed: int) -> list[int]:
    count = -(-spec.byte_count // RUN_BYTES)
    drawn = random.Random(f"{seed}/{spec.name}").sample(range(count), min(RUNS, count))
    return [RUN_BYTES * each for each in sorted(drawn)]


def _read(arena: Arena, set_index: int, job: Job, places: Places) -> Places:
    return {name: arena.read(set_index, job, name, offsets, RUN_BYTES) for name, offsets in places.items()}
