"""A finalist's many launches: pairs that differ, and pairs that are alike and not what the baseline writes."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace as Stub
from typing import Any, cast

import numpy as np
import pytest

from kernelwright.backend.base import Artifact, PlanStep
from kernelwright.backend.redraw import Redraw
from kernelwright.evaluate.data.layout import GUARD_BYTES
from kernelwright.evaluate.device.arena import BufferSpec, Job
from kernelwright.evaluate.device.stress import StressDone, StressJob, stress
from kernelwright.evaluate.device.worker import CheckDone, CheckJob
from kernelwright.evaluate.device_queue import baseline
from kernelwright.evaluate.device_queue import stress as queue_stress
from kernelwright.evaluate.device_queue.processes import DeviceProcess
from kernelwright.problem.outcome import Failed
from kernelwright.testing.memory_session import Kernel, LaunchSeen, MemorySession

COUNT, LAUNCHES = 256, 200
STEP = PlanStep("kernel", (1, 1, 1), (1, 1, 1), 0, ())
ANEW = Redraw("integers", 1, low=0, span=200)
JOB = Job(
    "w", cast("Artifact", None), (STEP,),
    (BufferSpec("x", "input", COUNT, b"\xff" * 4, ANEW), BufferSpec("z", "inout", COUNT, b"\xff" * 4, ANEW),
     BufferSpec("y", "output", COUNT, b"\xff" * 4)),
)  # fmt: skip
Spoil = Callable[[LaunchSeen], object]


class Stressed:
    """One finalist's launches, and what the kernels saw."""

    def __init__(self, folder: Path, spoil: Spoil, *, baseline_s: float = 0.0) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self._spoil = spoil
        files = {name: folder / f"{name}.first" for name in ("x", "z")}
        for file in files.values():
            file.write_bytes(bytes(COUNT))
        job = StressJob(JOB, JOB, baseline_s, {"y": None, "z": None}, files, 7, LAUNCHES, 60.0, 3, folder / "out")
        modules = self._kernel("candidate", spoil), self._kernel("baseline", lambda _: None)
        self.done: StressDone = stress(MemorySession(), cast("Any", modules), job)

    def _kernel(self, name: str, spoil: Spoil) -> Kernel:
        def call(seen: LaunchSeen) -> float:
            self.seen.append((name, seen.arrays["x"].tobytes()))
            seen.arrays["y"][:] = seen.arrays["x"] + seen.arrays["z"]
            seen.arrays["z"][:] += 1
            spoil(seen)
            return 1.0

        return call

    @property
    def names(self) -> list[str]:
        """Folders that the referee is to look at."""
        return [folder.name for folder, _ in self.done.written]


def wrong_where_the_first_is_small(seen: LaunchSeen) -> None:
    """Both launches of a pair are, and so is neither of most pairs."""
    if seen.arrays["x"][0] < 50:
        seen.arrays["y"][:] = 1


def test_a_right_finalist_is_held_against_the_baseline_on_inputs_that_it_had(tmp_path: Path) -> None:
    stressed = Stressed(tmp_path, lambda _: None)
    assert (stressed.done.launch_count, stressed.done.differing_count) == (LAUNCHES, 0)
    assert stressed.names == ["out-stress-picked"]
    held = [index for index, (name, _) in enumerate(stressed.seen) if name == "baseline"]
    assert held, "some pairs are"
    assert len(held) < LAUNCHES // 2, "which ones, nobody knows before"
    for index in held:
        assert [stressed.seen[index - back][0] for back in (1, 2)] == ["candidate"] * 2
        assert len({inputs for _, inputs in stressed.seen[index - 2 : index + 1]}) == 1
    assert len({inputs for _, inputs in stressed.seen}) == LAUNCHES // 2, "each pair has inputs of its own"


def test_a_baseline_that_takes_too_long_is_left_out(tmp_path: Path) -> None:
    stressed = Stressed(tmp_path, lambda _: None, baseline_s=math.inf)
    assert [name for name, _ in stressed.seen] == ["candidate"] * LAUNCHES


def test_pairs_that_are_alike_and_wrong_are_written_out_as_they_were(tmp_path: Path) -> None:
    stressed = Stressed(tmp_path, lambda seen: seen.arrays["y"].fill(1))
    assert stressed.done.differing_count == 0
    assert stressed.names == [f"out-stress-strange-{number}" for number in (1, 2, 3)] + ["out-stress-picked"]
    folder, picked = stressed.done.written[0]
    written = np.fromfile(folder / "y.bin", np.uint8)[GUARD_BYTES : GUARD_BYTES + COUNT]
    assert set(written.tolist()) == {1}, "the candidate's, not the baseline's"
    inputs = np.fromfile(folder / "x.bin", np.uint8)[GUARD_BYTES : GUARD_BYTES + COUNT].tobytes()
    assert ("candidate", inputs) in stressed.seen
    assert picked.unchanged == frozenset()


@pytest.mark.parametrize("is_wrong", [True, False])
def test_what_is_not_the_baselines_is_wrong_only_where_the_referee_says_so(tmp_path: Path, is_wrong: bool) -> None:
    stressed = Stressed(tmp_path, wrong_where_the_first_is_small)
    found = Failed("check", "mismatch", "y is wrong") if is_wrong else None
    looked: list[str] = []

    def failure_of(_workload: str, folder: Path, _picked: object) -> Failed | None:
        looked.append(folder.name)
        return found if "strange" in folder.name else None

    process = Stub(
        baseline={"w": JOB}, baseline_s={"w": 0.1}, desk=Stub(limits=lambda _: {}),
        timed_dataset=lambda _: None, out_folder=tmp_path / "out",
        files=lambda *_: {}, settings=Stub(launch_timeout_s=1.0), run=lambda *_: stressed.done, failure_of=failure_of,
    )  # fmt: skip
    assert queue_stress.stress(cast("DeviceProcess", process), [JOB]) == found
    assert looked == (stressed.names[:1] if is_wrong else stressed.names)
    assert not any(folder.exists() for folder, _ in stressed.done.written[: len(looked)])


def test_waits_for_other_runs_are_no_time_of_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [5.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        now_s[0] += 100.0
        yield

    def launched(*_: object, **__: object) -> object:
        now_s[0] += 3.0
        return CheckDone(1.0)

    process = object.__new__(DeviceProcess)
    vars(process).update(
        turn=turn(), worker=Stub(call=launched), worker_seconds=0.0, waited_s=0.0, baseline_s={}, _is_closed=False,
        _opening=None, settings=Stub(launch_timeout_s=9.0),
    )  # fmt: skip
    assert baseline._why_not_launched(process, CheckJob(JOB, {}, tmp_path)) is None
    assert process.baseline_s == {"w": 3.0}
    assert process.waited_s == 100.0
