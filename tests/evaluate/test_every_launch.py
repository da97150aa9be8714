"""Every launch of a claimed candidate in the comparison is held against the baseline, on any device."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace as Stub
from typing import Any, cast

import numpy as np
import pytest

from kernelwright.backend.base import Artifact, PlanStep
from kernelwright.backend.redraw import Closeness, Redraw
from kernelwright.evaluate.data.layout import GUARD_BYTES
from kernelwright.evaluate.device.arena import BufferSpec, Job
from kernelwright.evaluate.device.comparison import (
    RUN_BYTES,
    RUNS,
    AgainJob,
    CompareDone,
    CompareJob,
    Comparing,
    PartsJob,
    are_parts,
    compare,
    continued,
    differing,
    launch_again,
    places_of,
)
from kernelwright.evaluate.device.fresh_launches import Picked
from kernelwright.evaluate.device_queue import final_comparison
from kernelwright.evaluate.device_queue.processes import DeviceProcess
from kernelwright.testing.memory_session import Kernel, LaunchSeen, MemorySession

COUNT, ROUNDS = 1 << 15, 12
STEP = PlanStep("kernel", (1, 1, 1), (1, 1, 1), 0, ())
JOB = Job(
    "w", cast("Artifact", None), (STEP,),
    (BufferSpec("x", "input", COUNT, b"\xff" * 4, Redraw("integers", 1, low=0, span=200)),
     BufferSpec("z", "inout", COUNT, b"\xff" * 4, Redraw("integers", 1, low=0, span=200)),
     BufferSpec("y", "output", COUNT, b"\xff" * 4)),
)  # fmt: skip


@dataclass
class Launcher:
    """Right, as fast as it is told, and wrong in those of its launches that `spoil` spoils, by their number."""

    time_ms: float
    spoil: Callable[[int, LaunchSeen], object] = lambda _number, _seen: None
    count: int = 0

    def __call__(self, seen: LaunchSeen) -> float:
        self.count += 1
        seen.arrays["y"][:] = seen.arrays["x"] + seen.arrays["z"]
        seen.arrays["z"][:] += 1
        self.spoil(self.count, seen)
        return self.time_ms


@dataclass
class Process:
    """What a comparison asks of the device's process, on kernels that are functions; the referee sees one launch."""

    folder: Path
    kernels: list[Launcher]
    left_s: float = 100.0
    notes: list[str] = field(default_factory=list)
    ended_count: int = 0
    spoken: Callable[[Any, PartsJob | None], object] = lambda answer, _asked: answer
    """Puts another answer in the worker's place, of the answer and what parts it is for; the baseline's is its own."""
    answers: list[object] = field(default_factory=list)
    comparing: Comparing | None = None
    has_company: bool = False
    shares_host_cores: bool = True
    process_id: int | None = None
    """Whose memory is read; None: the worker is asked what is in it."""
    session: Callable[[], MemorySession] = MemorySession
    looks: list[PartsJob] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return {
            "standby": Stub(settle=lambda: None), "device": Stub(shares_host_cores=self.shares_host_cores),
            "problem": Stub(workloads=[Stub(name="w", weight=1.0)]), "out_folder": self.folder / "out",
            "scratch": self.folder / "scratch", "worker": Stub(start_s=0.1, kill=lambda: None),
            "settings": Stub(cache="hot", seed=0, launch_timeout_s=1.0),
            "desk": Stub(judges_slowly=lambda _: True, limits=lambda _: {"y": None, "z": None}),
        }[name]  # fmt: skip

    def say(self, _: str) -> None: ...
    def refuse_when_closed(self) -> None: ...
    def files(self, *_: object) -> dict[str, Path]:
        files = {name: self.folder / f"{name}.first" for name in ("x", "z")}
        for file in files.values():
            file.write_bytes(bytes(COUNT))
        return files

    def timed_dataset(self, _: str) -> None: ...
    def set_count(self, _: str) -> int:
        return 3

    def judge_timed(self, *_: object) -> Any:
        return Stub(failure=None)  # the picked launch is right

    def failure_of(self, *_: object) -> None: ...
    def has_time(self, seconds: float) -> bool:
        return seconds <= self.left_s

    def readable_process(self) -> int | None:
        return self.process_id

    def end_worker(self) -> None:
        self.ended_count += 1

    def unless_killed(self, ask: Callable[[], object]) -> object:
        return ask()

    def call_worker(self, job: CompareJob | PartsJob, *_: object) -> object:
        if isinstance(job, CompareJob):
            kernels = [self.kernels[0], *self.kernels[1 - len(job.jobs) :]] if len(job.jobs) > 1 else self.kernels[:1]
            self.has_company = len(job.jobs) > 1
            self.comparing = compare(self.session(), cast("list[Kernel]", kernels), job)
        assert self.comparing is not None
        answer = continued(self.comparing, None if isinstance(job, CompareJob) else job)
        if isinstance(answer, CompareDone):  # the clock outside sees what kernels say
            answer = replace(answer, wall_ms=answer.samples_ms)
        look = job if isinstance(job, PartsJob) and not job.goes_on else None
        self.looks += [look] if look else []
        return self.spoken(answer, look) if self.has_company else answer

    def try_worker(self, job: AgainJob, _: float) -> object:
        assert bool(self.ended_count) == self.shares_host_cores, "nothing else has run where a kernel reaches it"
        return self.answers.pop(0) if self.answers else launch_again(MemorySession(), Launcher(1.0), job)


def refused(process: Process) -> str | None:
    candidates = [[JOB]] * len(process.kernels)
    wrong = final_comparison.compare(
        cast("DeviceProcess", process), candidates, rounds=ROUNDS, wrong={}, check=lambda _: None
    )[1]
    return wrong.get(1)


def process_of(folder: Path, spoil: Callable[[int, LaunchSeen], object], **changed: Any) -> Process:
    others = [Launcher(2.0), Launcher(2.0)]  # rounds in which the baseline takes another one's inputs
    return Process(folder, [Launcher(1.0), Launcher(0.95, spoil), *others], **changed)


SHARES = pytest.mark.parametrize("shares_host_cores", [True, False], ids=["cpu", "gpu"])


READ = pytest.mark.parametrize("process_id", [None, os.getpid()], ids=["asked", "read"])


def half(seen: LaunchSeen) -> bool:
    seen.arrays["y"][COUNT // 2 :] = 7
    return True


@READ
@SHARES
@pytest.mark.parametrize("number", [4, 7, 15], ids=["the first that counts", "one between", "the last"])
def test_one_launch_that_is_wrong_is_seen_whichever_was_picked(
    tmp_path: Path, number: int, shares_host_cores: bool, process_id: int | None
) -> None:
    spoil = lambda count, seen: count == number and half(seen)  # noqa: E731
    reason = refused(process_of(tmp_path, spoil, shares_host_cores=shares_host_cores, process_id=process_id))
    assert reason is not None
    assert reason.startswith(
        ("wrong in 1 of 12 launches of the comparison on workload 'w': 'y'", "failed in the comparison: its results")
    )


@READ
@SHARES
def test_a_right_candidate_is_told_nothing(tmp_path: Path, shares_host_cores: bool, process_id: int | None) -> None:
    process = process_of(tmp_path, lambda *_: None, shares_host_cores=shares_host_cores, process_id=process_id)
    assert refused(process) is None
    asked = shares_host_cores and process_id is None
    assert process.notes == [final_comparison.NOT_OUTSIDE.format("driver")] * asked
    assert bool(process.looks) == shares_host_cores, "elsewhere the device's process draws the places"


def test_a_system_that_shows_no_process_anothers_memory_is_told(tmp_path: Path) -> None:
    process = process_of(tmp_path, lambda *_: None, process_id=1 << 30)  # which no process has
    assert refused(process) is None
    assert process.notes == [final_comparison.NOT_OUTSIDE.format("system")]


@SHARES
def test_in_out_arguments_count_too(tmp_path: Path, shares_host_cores: bool) -> None:
    def forgets(_: int, seen: LaunchSeen) -> None:
        seen.arrays["z"][::2] -= 1

    assert refused(process_of(tmp_path, forgets, shares_host_cores=shares_host_cores))


@SHARES
def test_without_time_it_is_noted(tmp_path: Path, shares_host_cores: bool) -> None:
    spoil = lambda count, seen: count > 90 and half(seen)  # noqa: E731
    process = process_of(tmp_path, spoil, left_s=1e-9, shares_host_cores=shares_host_cores)
    assert refused(process) is None
    assert final_comparison.NOT_AGAIN in process.notes


@SHARES
def test_a_process_that_ends_is_asked_again(tmp_path: Path, shares_host_cores: bool) -> None:
    process = process_of(tmp_path, lambda *_: None, answers=[None], shares_host_cores=shares_host_cores)
    assert refused(process) is None
    assert not process.answers


def test_places_are_drawn_by_who_asks_once_the_launch_has_ended(tmp_path: Path) -> None:
    process = process_of(tmp_path, lambda *_: None)
    refused(process)
    launches = ROUNDS * len(process.kernels)
    seeds = [look.seed for look in process.looks if look.seed is not None]
    assert len(set(seeds)) == len(seeds) == launches
    assert sum(look.is_picked for look in process.looks) == len(process.kernels)
    offsets = [tuple(places_of(JOB, seed)["y"]) for seed in seeds]
    assert len(set(offsets)) == launches
    assert {offset for each in offsets for offset in each} == set(range(0, COUNT, RUN_BYTES))
    assert {len(each) for each in offsets} == {RUNS}


@dataclass
class Healing(MemorySession):
    """Has what a launch owes filled when somebody reads it through the driver."""

    owed: LaunchSeen | None = None

    def time(self, launches: Any) -> float:
        self.owed = None
        return super().time(launches)

    def download(self, buffer: Any, out: Any, offset_bytes: int = 0) -> None:
        if offset_bytes < GUARD_BYTES + COUNT and offset_bytes + out.size > GUARD_BYTES:
            self._heal(buffer)
        super().download(buffer, out, offset_bytes)

    def copy(self, source: Any, target: Any, byte_count: int) -> None:
        self._heal(source)
        super().copy(source, target, byte_count)

    def _heal(self, buffer: Any) -> None:
        if self.owed is not None and self.owed.memory["y"] is buffer.data:
            self.owed.arrays["y"][:] = self.owed.arrays["x"] + self.owed.arrays["z"] - 1


@READ
def test_what_is_filled_when_it_is_read_is_seen_from_outside(tmp_path: Path, process_id: int | None) -> None:
    session = Healing()

    def owes(_: int, seen: LaunchSeen) -> None:
        half(seen)
        session.owed = seen

    process = process_of(tmp_path, owes, process_id=process_id, session=lambda: session)
    reason = refused(process)
    assert bool(reason) == (process_id is not None), "the worker itself cannot see it"
    assert reason is None or reason.startswith("wrong in 12 of 12 launches of the comparison")


@dataclass
class Asked(MemorySession):
    """Counts buffers whose addresses it was first asked for after launches."""

    known: list[Any] = field(default_factory=list)
    launch_count: int = 0
    late_count: int = 0

    def time(self, launches: Any) -> float:
        self.launch_count += 1
        return super().time(launches)

    def address_of(self, buffer: Any) -> int | None:
        if not any(buffer is each for each in self.known):
            self.known.append(buffer)
            self.late_count += self.launch_count > 0
        return super().address_of(buffer)


def test_addresses_are_asked_for_before_anything_is_owed(tmp_path: Path) -> None:
    session = Asked()
    assert refused(process_of(tmp_path, lambda *_: None, process_id=os.getpid(), session=lambda: session)) is None
    assert session.known
    assert session.late_count == 0, "a driver's function that a kernel has changed could fill what it owes"


@pytest.mark.parametrize(
    "told",
    [None, {}, {"y": 4096}, {"y": 8, "z": 8}, {"y": "a", "z": "b"}, {"y": -1, "z": 1 << 70}, {"y": 1.0, "z": 2.0}],
)
def test_addresses_that_are_none_are_no_reason_to_ask_the_worker(tmp_path: Path, told: object) -> None:
    def tells(answer: Any, asked: PartsJob | None) -> object:
        return told if asked is not None else answer

    reason = refused(process_of(tmp_path, lambda *_: None, spoken=tells, process_id=os.getpid()))
    assert reason is not None
    assert "a kernel has spoken in its place" in reason


def other_places(answer: object, asked: PartsJob | None) -> object:
    """Right bytes of places that it has chosen itself."""
    if asked is None or asked.seed is None:
        return answer
    chosen = places_of(JOB, asked.seed + 1)
    return {name: dict(zip(places, cast("Any", answer)[name].values(), strict=True)) for name, places in chosen.items()}


def no_places(answer: object, asked: PartsJob | None) -> object:
    return answer if asked is None else {"y": {}, "z": {}}


def no_launches(answer: object, _: PartsJob | None) -> object:
    """Times at once, as if no launch had parts to be asked for."""
    rows = ((1.0,) * ROUNDS,) * 4
    return CompareDone((Picked(1),) * 4, rows, {}, rows) if type(answer) is int else answer


def endless_launches(answer: object, asked: PartsJob | None) -> object:
    return answer if asked else 1


def nobodys_launch(answer: object, _: PartsJob | None) -> object:
    return len(JOB.buffers) + 1 if type(answer) is int else answer


def picks_itself(answer: object, _: PartsJob | None) -> object:
    """The referee is told another launch than the one that it asked for."""
    return replace(answer, picked=(Picked(1),) * 4) if isinstance(answer, CompareDone) else answer


@pytest.mark.parametrize(
    "speaks", [other_places, no_places, no_launches, endless_launches, nobodys_launch, picks_itself]
)
def test_a_kernel_that_answers_in_the_workers_place_must_tell_all(
    tmp_path: Path, speaks: Callable[[Any, PartsJob | None], object]
) -> None:
    reason = refused(process_of(tmp_path, lambda *_: None, spoken=speaks))
    assert reason is not None
    assert "a kernel has spoken in its place" in reason


SEED = 7
RUN = bytes(RUN_BYTES)
PLACES: dict[Any, Any] = dict.fromkeys(places_of(JOB, SEED)["y"], RUN)
ALSO: dict[Any, Any] = dict.fromkeys(places_of(JOB, SEED)["z"], RUN)
LAST = list(PLACES)[-1]
LEFT: dict[Any, Any] = dict(list(PLACES.items())[:-1])


@pytest.mark.parametrize(
    "places",
    [
        LEFT,
        {**LEFT, COUNT: b""},
        {-RUN_BYTES: RUN, **LEFT},
        {**LEFT, LAST + 1: RUN},
        {**LEFT, float(LAST): RUN},
        {**LEFT, "last": RUN},
        {**LEFT, LAST: RUN[1:]},
        {**LEFT, LAST: bytearray(RUN)},
        {**LEFT, LAST: None},
        dict(reversed(list(PLACES.items()))),
        list(PLACES),
        None,
    ],
)
def test_parts_at_other_places_or_of_other_kinds_are_none(places: object) -> None:
    assert are_parts({"y": PLACES, "z": ALSO}, JOB, SEED)
    assert not are_parts({"y": places, "z": ALSO}, JOB, SEED)
    assert not are_parts({"y": PLACES, "z": ALSO}, JOB, SEED + 1)


@pytest.mark.parametrize("parts", [None, 7, (), {}, {"y": PLACES}, [PLACES, ALSO], {"y": PLACES, "z": ALSO, 0: ALSO}])
def test_what_is_no_parts_at_all_is_no_exception(parts: object) -> None:
    assert not are_parts(parts, JOB, SEED)


@pytest.mark.parametrize(
    "changed", [{"picked": 7}, {"picked": (None,) * 4}, {"samples_ms": 7}, {"wall_ms": (("x",),) * 4}]
)
def test_an_answer_of_another_kind_refuses_the_candidate(tmp_path: Path, changed: dict[str, Any]) -> None:
    def speaks(answer: Any, _: PartsJob | None) -> object:
        return replace(answer, **changed) if isinstance(answer, CompareDone) else answer

    reason = refused(process_of(tmp_path, lambda *_: None, spoken=speaks))
    assert reason is not None
    assert "a kernel has spoken in its place" in reason


def test_times_that_the_worker_tells_do_not_leave_the_check_out(tmp_path: Path) -> None:
    def tells(answer: Any, _: PartsJob | None) -> object:
        if not isinstance(answer, CompareDone):
            return answer
        return replace(answer, wall_ms=((1e12,) * ROUNDS, *answer.wall_ms[1:]), spent_s=1e12)

    process = process_of(tmp_path, lambda *_: None, spoken=tells)
    refused(process)
    assert final_comparison.NOT_AGAIN not in process.notes


def test_rounding_is_no_difference() -> None:
    one, other = (np.array([1.0, value, 3.0], np.float32).tobytes() for value in (2.0, 2.0 + 1e-6))
    parts, expected = (1, {"y": {0: one}}), (1, {"y": {0: other}})
    assert differing(parts, expected, {"y": Closeness("float32", 1e-5, 0.0)}) is None
    assert differing(parts, expected, {"y": Closeness("float32", 1e-8, 0.0)}) == "y"
    assert differing(parts, expected, {"y": None}) == "y"
