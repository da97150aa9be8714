"""Several problems under one budget: whose turn it is, what failures stop, what a kill loses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelwright.batch.run import LEAST_S, BatchListener, BatchParts, next_slice, optimize_batch, resume_batch
from kernelwright.batch.view import BatchView
from kernelwright.errors import InfrastructureError, SpecError, UsageError
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.report.html.batch import write_batch_report
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings

LIFT = ScriptedTactic("lift", 1.0, "launch")
TILE = ScriptedTactic("tile", 3.0, "memory")


def cost(config: Config, workload: Workload) -> float:
    time_ms = workload.sizes["n"] * 1e-4
    for name, gain in (("LIFT", 1.1), ("TILE", 2.0)):
        time_ms /= gain ** (config[name] - 1) if name in config else 1.0  # type: ignore[operator]
    return time_ms


class FailingMachine(SimulatedMachine):
    """A machine that has no device."""

    def device(self, *_: object) -> None:  # type: ignore[override]
        raise InfrastructureError("the device has fallen off the bus")


def parts(machines: Callable[[], SimulatedMachine] = lambda: SimulatedMachine(cost, noise=0.005)) -> BatchParts:
    clock = iter(range(0, 10_000, 15))
    return BatchParts(
        machines, lambda: ScriptedAgent([TILE], lifted=LIFT, plans_ahead=True), lambda: float(next(clock))
    )


def settings(seconds: float | None = 120.0, **limits: int) -> OptimizeSettings:
    budget = Budget(seconds=seconds, **limits)  # type: ignore[arg-type]
    tune = TuneSettings(budget=budget, searcher="random", data_seed=1, comparison_rounds=10)
    return OptimizeSettings(tune=tune, memory="off")


class Told(BatchListener):
    """Keeps whose turn it was; ends the process, as it were, behind so many slices."""

    def __init__(self, most: int = 1000) -> None:
        self.names: list[str] = []
        self._most = most

    def on_slice(self, view: BatchView, name: str, seconds: float) -> None:
        self.names.append(name)

    def on_slice_end(self, view: BatchView, name: str) -> None:
        if len(self.names) >= self._most:
            raise SystemExit(9)


def test_every_problem_has_a_run_with_a_claim_of_its_own(problems: list[Path], tmp_path: Path) -> None:
    view = optimize_batch(problems, settings=settings(), run=tmp_path / "batch", parts=parts())
    assert [each.status for each in view.members] == ["done"] * 3
    assert all(each.speedup is not None for each in view.members)
    assert view.speedup is not None
    assert view.speedup.low > 1
    doubts = [1 - each.speedup.confidence for each in view.members if each.speedup is not None]
    assert 1 - view.speedup.confidence == pytest.approx(sum(doubts))
    assert {each.folder.name for each in view.members} == {"first", "second", "third"}


def test_the_longest_comes_first_and_the_absent_last(problems: list[Path], tmp_path: Path) -> None:
    told, notes = Told(), list[str]()
    times = {"third": 70.0, "first": 10.0, "something else": 20.0}
    view = optimize_batch(
        problems, settings=settings(), times=times, run=tmp_path / "b", parts=parts(), listener=told, tell=notes.append
    )
    assert list(dict.fromkeys(told.names)) == ["third", "first", "second"]
    assert [each.share for each in view.members] == pytest.approx([0.1, 0.0, 0.7])
    assert notes == ["second is not in the profile: it comes last"]
    assert view.speedup is not None
    assert view.speedup.estimate < 5  # a fifth of the time is nobody's


def test_a_problem_that_fails_stops_no_other(problems: list[Path], tmp_path: Path) -> None:
    (problems[1] / "problem.toml").write_text("name = 3")
    failed = {tmp_path / "asked.cl": SpecError("asked.cl does not say everything")}
    machines = iter([FailingMachine(cost), *(SimulatedMachine(cost) for _ in range(20))])
    done = parts(lambda: next(machines))
    view = optimize_batch(problems, failed=failed, settings=settings(), run=tmp_path / "batch", parts=done)
    assert [each.status for each in view.members] == ["done", "failed", "done", "failed"]
    assert "'workloads' is missing" in view["second"].failure
    assert "asked.cl does not say everything" in view["asked.cl"].failure
    assert [bool(each.failure) for each in view["first"].slices] == [True, False]  # tried again


def test_a_machine_that_keeps_failing_gives_up(problems: list[Path], tmp_path: Path) -> None:
    view = optimize_batch(problems, settings=settings(), run=tmp_path / "b", parts=parts(lambda: FailingMachine(cost)))
    assert [each.status for each in view.members] == ["failed"] * 3
    assert [len(each.slices) for each in view.members] == [2, 2, 2]


def test_a_killed_batch_goes_on_with_what_is_left(problems: list[Path], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        optimize_batch(problems, settings=settings(), run=tmp_path / "batch", parts=parts(), listener=Told(1))
    before, told = BatchView.read(tmp_path / "batch"), Told()
    with (tmp_path / "batch" / "slices.jsonl").open("a") as file:
        file.write('{"member": "fir')  # the line that was being written
    after = resume_batch(tmp_path / "batch", parts=parts(), listener=told)
    assert set(told.names) == {"second", "third"}
    assert after["first"].slices == before["first"].slices
    assert [each.status for each in after.members] == ["done"] * 3
    resume_batch(tmp_path / "batch", parts=parts(), listener=(again := Told()))
    assert not again.names


def test_the_next_slice_goes_where_most_is_expected(problems: list[Path], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        optimize_batch(problems, settings=settings(600.0), run=tmp_path / "batch", parts=parts(), listener=Told(1))
    view = BatchView.read(tmp_path / "batch")
    chosen = next_slice(view)
    assert chosen is not None
    assert chosen == (view["second"], 100.0)
    shares = {"first": 0.05, "second": 0.05, "third": 0.9}
    shared = [
        dataclasses.replace(each, member=dataclasses.replace(each.member, share=shares[each.name]))
        for each in view.members
    ]
    chosen = next_slice(dataclasses.replace(view, members=tuple(shared)))
    assert chosen is not None
    assert chosen[0].name == "third"


def spent(view: BatchView, seconds: Iterator[float]) -> BatchView:
    members = [
        dataclasses.replace(each, result=None, slices=(dataclasses.replace(view["first"].slices[0], seconds=s),))
        for each, s in zip(view.members, seconds, strict=True)
    ]
    return dataclasses.replace(view, members=tuple(members))


def test_slices_grow_and_the_budget_is_kept(problems: list[Path], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        optimize_batch(problems, settings=settings(600.0), run=tmp_path / "batch", parts=parts(), listener=Told(1))
    view = BatchView.read(tmp_path / "batch")
    chosen = next_slice(spent(view, iter([150.0, 200.0, 200.0])))
    assert chosen is not None
    assert chosen[1] == pytest.approx(50.0)  # what is left is less than as much again
    assert next_slice(spent(view, iter([190.0, 200.0, 200.0]))) is None  # less than LEAST_S
    assert LEAST_S > 10


@pytest.mark.parametrize(
    ("limits", "told"),
    [({"seconds": None, "patience": 50}, "need a budget in time"), ({"evaluations": 50}, "cannot be added up")],
)
def test_a_budget_that_cannot_be_shared_is_refused(
    problems: list[Path], tmp_path: Path, limits: dict[str, int], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        optimize_batch(problems, settings=settings(**limits), run=tmp_path / "batch")
    assert not (tmp_path / "batch").exists()


def test_two_problems_of_one_name_have_two_runs(write_saxpy: Callable[..., Path], tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    same = [write_saxpy(tmp_path / place / "saxpy") for place in ("a", "b")]
    view = optimize_batch(same, settings=settings(), run=tmp_path / "batch", parts=parts())
    assert [each.name for each in view.members] == ["saxpy", "saxpy-2"]
    assert all(each.speedup is not None for each in view.members)


def test_one_page_tells_of_all_and_leads_nowhere_else(problems: list[Path], tmp_path: Path) -> None:
    (problems[1] / "problem.toml").write_text("name = 3 # <script>alert(1)</script>")
    view = optimize_batch(problems, settings=settings(), run=tmp_path / "batch", parts=parts())
    (tmp_path / "batch" / "first" / "report.html").write_text("")
    page = write_batch_report(view, tmp_path / "batch" / "report.html").read_text()
    assert 'href="first/report.html"' in page
    assert 'href="third/report.html"' not in page
    assert f"with {view.speedup.confidence:.0%} confidence" in page  # type: ignore[union-attr]
    assert "<script>" not in page
    assert "http" not in page.partition("<body>")[2]


def test_a_folder_that_holds_something_is_left_alone(problems: list[Path], tmp_path: Path) -> None:
    optimize_batch(problems, settings=settings(), run=tmp_path / "batch", parts=parts())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="holds something already"):
        optimize_batch(problems, settings=settings(), run=tmp_path / "batch", parts=parts())
    assert sorted(tmp_path.rglob("*")) == before


def test_the_record_is_plain_json(problems: list[Path], tmp_path: Path) -> None:
    optimize_batch(problems, settings=settings(), run=tmp_path / "batch", parts=parts())
    record = json.loads((tmp_path / "batch" / "batch.json").read_text())
    assert [each["name"] for each in record["members"]] == ["first", "second", "third"]
    assert record["settings"]["budget"]["seconds"] == 120
