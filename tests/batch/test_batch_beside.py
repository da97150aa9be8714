"""On a cluster several problems are under way at once, each with a run and a claim of its own, under one budget."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_batch import LIFT, TILE, cost, settings

from kernelwright.batch.run import BatchListener, BatchParts, next_slice, optimize_batch, resume_batch
from kernelwright.batch.view import BatchView
from kernelwright.errors import InfrastructureError
from kernelwright.remote.client import SpoolMachine
from kernelwright.remote.folder import SpoolFolder
from kernelwright.testing.scripted_agent import ScriptedAgent
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.worker.server import Desk
from kernelwright.worker.worker import SpoolWorker

PATIENCE_S = 300.0


class Beside(BatchListener):
    """Keeps how many problems were under way at most."""

    def __init__(self, on_second: Callable[[], None] = lambda: None) -> None:
        self.now: set[str] = set()
        self.most = 0
        self._on_second = on_second

    def on_slice(self, view: BatchView, name: str, seconds: float) -> None:
        self.now.add(name)
        self.most = max(self.most, len(self.now))
        if len(self.now) == 2:
            self._on_second()

    def on_slice_end(self, view: BatchView, name: str) -> None:
        self.now.remove(name)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With three workers, which have said that they are there, however long ago."""
    monkeypatch.setattr("kernelwright.remote.client.SEEN_S", 1e6)
    path, stop = tmp_path / "spool", threading.Event()
    folder, threads = SpoolFolder(path), []
    for number in range(3):
        desk = Desk(folder, SimulatedMachine(cost, noise=0.005))
        worker = SpoolWorker(folder, desk, name=f"device-{number}", stop=stop, poll_s=0.01)
        threads.append(threading.Thread(target=worker.run, kwargs={"until_idle": False}, daemon=True))
        threads[-1].start()
    while len(list((path / "workers").glob("*.json"))) < 3:
        time.sleep(0.01)
    yield path
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)


def beside(spool: Path) -> BatchParts:
    def agent() -> ScriptedAgent:
        return ScriptedAgent([TILE], lifted=LIFT, plans_ahead=True)

    return BatchParts(lambda: SpoolMachine(spool, poll_s=0.01), agent)


def chosen(spool: Path, seconds: float = 120.0):  # type: ignore[no-untyped-def]
    return dataclasses.replace(settings(seconds), runner=f"spool:{spool}", part_evaluations=6, in_flight=2)


def test_each_device_has_a_problem_and_each_problem_its_claim(
    problems: list[Path],
    tmp_path: Path,
    spool: Path,
) -> None:
    told = Beside()
    view = optimize_batch(
        problems, settings=chosen(spool, 600.0), run=tmp_path / "batch", parts=beside(spool), listener=told
    )
    assert told.most == 3
    assert [each.status for each in view.members] == ["done"] * 3
    assert all(each.speedup is not None for each in view.members)
    assert view.spent_s <= 600


def test_no_more_is_given_out_than_the_budget_has(problems: list[Path], tmp_path: Path, spool: Path) -> None:
    optimize_batch(problems[:2], settings=chosen(spool), run=tmp_path / "batch", parts=beside(spool))
    view = BatchView.read(tmp_path / "batch")
    fresh = dataclasses.replace(
        view, members=tuple(dataclasses.replace(each, slices=(), result=None) for each in view.members)
    )
    first = next_slice(fresh)
    assert first is not None
    second = next_slice(fresh, {first[0].name: first[1]})
    assert second is not None
    assert second[0].name != first[0].name
    assert first[1] + second[1] <= 120
    assert next_slice(fresh, {each.name: 60.0 for each in fresh.members}) is None
    assert next_slice(fresh, {first[0].name: 110.0}) is None  # what is left is too short


def test_a_batch_that_is_stopped_stops_every_run_and_goes_on(
    problems: list[Path],
    tmp_path: Path,
    spool: Path,
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    view = optimize_batch(
        problems, settings=chosen(spool, 600.0), run=tmp_path / "batch", parts=beside(spool), listener=Beside(stop)
    )
    assert view.is_interrupted
    view = resume_batch(tmp_path / "batch", parts=beside(spool))
    assert [each.status for each in view.members] == ["done"] * 3


def test_an_interrupt_while_a_slice_is_noted_leaves_it_noted_once(
    problems: list[Path],
    tmp_path: Path,
    spool: Path,
) -> None:
    class Interrupting(Beside):
        def on_slice_end(self, view: BatchView, name: str) -> None:
            super().on_slice_end(view, name)
            if not self.has_raised:
                self.has_raised = True
                raise KeyboardInterrupt

        has_raised = False

    view = optimize_batch(
        problems, settings=chosen(spool, 600.0), run=tmp_path / "batch", parts=beside(spool), listener=Interrupting()
    )
    assert max(len(each.slices) for each in view.members) == 1
    view = resume_batch(tmp_path / "batch", parts=beside(spool))
    assert [each.status for each in view.members] == ["done"] * 3


def test_what_brings_no_device_ends_the_batch_with_its_words(
    problems: list[Path],
    tmp_path: Path,
    spool: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(_machine: SpoolMachine) -> int:
        raise InfrastructureError("no Ray cluster at head:6379")

    monkeypatch.setattr(SpoolMachine, "device_count", gone)
    with pytest.raises(InfrastructureError, match="no Ray cluster at head:6379"):
        optimize_batch(problems, settings=chosen(spool), run=tmp_path / "batch", parts=beside(spool))
