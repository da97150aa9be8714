"""What is done beside the baseline's checks disturbs no times, and does not outlive them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from traceback import walk_stack
from types import FrameType

import pytest

from busy import ignore_busy_machine
from kernelwright.evaluate.builds.scheduler import done_beside
from kernelwright.evaluate.device_queue.queue import DeviceLane
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.problem.outcome import Passed
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

LONG_S = 150.0
"""No wait takes so long unless a promise is broken."""


def test_all_is_done_in_order_behind_the_block() -> None:
    done: list[str] = []
    with done_beside([lambda: done.append("first"), lambda: done.append("second")]):
        pass
    assert done == ["first", "second"]


class UnderWay:
    """A work that ends once the thread that made it waits in a `join`."""

    def __init__(self) -> None:
        self.is_begun, self.is_done = threading.Event(), False
        self._waiting = threading.get_ident()

    def __call__(self) -> None:
        self.is_begun.set()
        while not self._is_joining():
            time.sleep(0.01)
        self.is_done = True

    def _is_joining(self) -> bool:
        return any(frame.f_code is threading.Thread.join.__code__ for frame, _ in walk_stack(self._frame()))

    def _frame(self) -> FrameType:
        return sys._current_frames()[self._waiting]


def test_the_end_waits_for_what_is_under_way_and_leaves_out_the_rest() -> None:
    late: list[str] = []
    first = UnderWay()
    with done_beside([first, lambda: late.append("second")]) as end:
        assert first.is_begun.wait(LONG_S)
        end()
        assert first.is_done
    assert not late


def test_so_does_an_error() -> None:
    late: list[str] = []
    first = UnderWay()

    def fail() -> None:
        with done_beside([first, lambda: late.append("second")]):
            assert first.is_begun.wait(LONG_S)
            raise ValueError("meanwhile")

    with pytest.raises(ValueError, match="meanwhile"):
        fail()
    assert first.is_done
    assert not late


@pytest.mark.parametrize("is_ending", [False, True])
def test_an_interrupt_waits_for_nothing(is_ending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit interrupts once, also what waits for the end of what is under way."""
    done: list[str] = []
    is_begun, may_end = threading.Event(), threading.Event()
    plain = threading.Thread.join

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "beside":
            monkeypatch.undo()
            raise KeyboardInterrupt
        plain(thread, timeout)

    def work() -> None:
        is_begun.set()
        may_end.wait(LONG_S)
        done.append("first")

    def interrupted() -> None:
        with done_beside([work, lambda: done.append("second")]) as end:
            assert is_begun.wait(LONG_S)
            if is_ending:
                monkeypatch.setattr(threading.Thread, "join", join)
                end()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not done
    (thread,) = (each for each in threading.enumerate() if each.name == "beside")
    may_end.set()
    thread.join(LONG_S)
    assert done == ["first"]


@contextmanager
def running(folder: Path, *, is_gpu: bool) -> Iterator[tuple[LocalRunner, TuningProblem]]:
    machine, subject = LocalMachine(), TuningProblem.load(folder)
    device = machine.device("opencl", "opencl")
    device = replace(device, kind="gpu") if is_gpu else device
    settings = replace(TuneSettings(data_seed=3).evaluation(is_cpu=not is_gpu, core_count=2), build_processes=1)
    with LocalRunner(subject.problem, device, settings) as runner:
        ignore_busy_machine(runner)
        yield runner, subject


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, threading.Event]:
    """What has happened to the baseline."""
    found = {"checked": threading.Event(), "measured": threading.Event()}

    def told(name: str, plain: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            result = plain(*arguments, **options)
            found[name].set()
            return result

        return call

    monkeypatch.setattr(DeviceLane, "calibrate", told("checked", DeviceLane.calibrate))
    monkeypatch.setattr(DeviceLane, "measure", told("measured", DeviceLane.measure))
    return found


@pytest.mark.opencl
def test_on_a_cpu_nothing_goes_on_beside_timed_launches(saxpy: Path, steps: dict[str, threading.Event]) -> None:
    done: list[str] = []

    def work() -> None:
        assert steps["checked"].wait(LONG_S)
        done.append("measured" if steps["measured"].wait(0.5) else "before")

    with running(saxpy, is_gpu=False) as (runner, subject):
        runner.do_beside([work])
        assert isinstance(runner.calibrate(subject.baseline)[0], Passed)
    assert done == ["before"]


@pytest.mark.opencl
def test_on_a_gpu_work_goes_on_beside_timed_launches(saxpy: Path, steps: dict[str, threading.Event]) -> None:
    done: list[bool] = []
    with running(saxpy, is_gpu=True) as (runner, subject):
        runner.do_beside([lambda: done.append(steps["measured"].wait(LONG_S))])
        assert isinstance(runner.calibrate(subject.baseline)[0], Passed)
    assert done == [True]
