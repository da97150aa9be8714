"""The whole loop without a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelwright.errors import SpecError, UsageError
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Failed
from kernelwright.store.event import Evaluated, Event
from kernelwright.store.view import RunView
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.listener import Progress, SilentListener
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import replay, resume, tune


def cost(config: Config, workload: Workload) -> float | Failed:
    """Best at BLOCK=64, ITEMS=4; the baseline (and default) is BLOCK=32, ITEMS=1."""
    block, items = config.get("BLOCK", 32), config.get("ITEMS", 1)
    assert isinstance(block, int)
    assert isinstance(items, int)
    if block == 128 and items == 8:
        return Failed("launch", "out-of-resources", "too much")
    return workload.sizes["n"] * 1e-4 * (1 + abs(block - 64) / 32 + abs(items - 4))


def machine(**options: float) -> SimulatedMachine:
    return SimulatedMachine(cost, noise=options.get("noise", 0.01))


def settings(evaluations: int | None = None, searcher: str = "exhaustive", patience: int | None = None) -> TuneSettings:
    return TuneSettings(budget=Budget(evaluations=evaluations, patience=patience), searcher=searcher)


def test_the_best_configuration_wins_with_an_interval(saxpy: Path, tmp_path: Path) -> None:
    result = tune(saxpy, settings=settings(), run=tmp_path / "run", machine=machine())
    assert result.reason == "exhausted"
    assert result.best_config == Config({"BLOCK": 64, "ITEMS": 4})
    assert result.speedup is not None
    assert result.speedup.low < 5.0 < result.speedup.high
    assert result.is_gain
    assert [row.workload for row in result.workloads] == ["small", "large"]


def test_no_gain_is_said_when_there_is_none(saxpy: Path, tmp_path: Path) -> None:
    flat = SimulatedMachine(lambda config, workload: 1.0, noise=0.02)
    result = tune(saxpy, settings=settings(), run=tmp_path / "run", machine=flat)
    assert result.speedup is not None
    assert not result.is_gain


def test_a_failure_is_recorded_and_the_run_goes_on(saxpy: Path, tmp_path: Path) -> None:
    view = tune(saxpy, settings=settings(), run=tmp_path / "run", machine=machine()).view
    assert len(view.evaluations) == view.started.space["feasible_count"] == 16
    assert view.failures_by_stage == {"launch": {"out-of-resources": 1}}
    assert [event.value for event in view.failed] == [None]


def test_when_everything_fails_there_is_no_winner(saxpy: Path, tmp_path: Path) -> None:
    """With a plain baseline of its own, which has no parameters."""
    source = (saxpy / "saxpy.cl").read_text()
    (saxpy / "plain.cl").write_text(source[source.index("#ifndef") :])
    with (saxpy / "problem.toml").open("a") as file:
        file.write('[baseline]\nkernel = "plain.cl"\nentry = "saxpy"\n')

    def only_baseline(config: Config, workload: Workload) -> float | Failed:
        return Failed("check", "mismatch", "wrong") if config else 1.0

    result = tune(saxpy, settings=settings(), run=tmp_path / "run", machine=SimulatedMachine(only_baseline))
    assert result.best_config is None
    assert result.speedup is None
    assert not result.is_gain
    assert result.view.failures_by_stage == {"check": {"mismatch": 16}}


def test_the_budget_in_evaluations_is_exact(saxpy: Path, tmp_path: Path) -> None:
    result = tune(saxpy, settings=settings(evaluations=7, searcher="random"), run=tmp_path / "run", machine=machine())
    assert len(result.view.evaluations) == 7
    assert result.reason == "budget"


def test_patience_ends_a_search_without_gain(saxpy: Path, tmp_path: Path) -> None:
    flat = SimulatedMachine(lambda config, workload: 1.0, noise=0.0)
    result = tune(saxpy, settings=settings(patience=5, searcher="random"), run=tmp_path / "run", machine=flat)
    assert result.reason == "no-gain"
    assert len(result.view.evaluations) < 16


def test_a_search_ends_when_little_more_is_expected(saxpy: Path, tmp_path: Path) -> None:
    template = saxpy / "saxpy.cl"
    source = template.read_text()
    changes = {
        "[16, 32, 64, 128]": str(list(range(16, 129))),
        "[1, 2, 4, 8]": str(list(range(1, 33))),
        "n % (BLOCK * ITEMS) == 0": "BLOCK * ITEMS <= n",
    }
    for before, after in changes.items():
        assert before in source
        source = source.replace(before, after)
    template.write_text(source)
    heard: list[Progress] = []

    class Hearing(SilentListener):
        def on_progress(self, progress: Progress) -> None:
            heard.append(progress)

    budget = Budget(min_expected_gain_fraction=0.02)
    chosen = TuneSettings(budget=budget, searcher="surrogate")
    result = tune(saxpy, settings=chosen, run=tmp_path / "run", machine=machine(), listener=Hearing())
    assert result.reason == "no-gain"
    assert 20 <= len(result.view.evaluations) < result.view.started.space["feasible_count"]
    assert any(progress.expected_gain is not None and progress.expected_gain_s > 0 for progress in heard)


@pytest.mark.parametrize("searcher", ["random", "local", "evolution", "surrogate", "exhaustive"])
def test_resume_ends_like_an_undisturbed_run(saxpy: Path, tmp_path: Path, searcher: str) -> None:
    class Interrupting:
        def __init__(self, after: int) -> None:
            self.after = after

        def on_event(self, event: Event, progress: Progress) -> None:
            if isinstance(event, Evaluated) and event.index == self.after:
                raise KeyboardInterrupt

        def on_progress(self, progress: Progress) -> None: ...

    wanted = settings(evaluations=10, searcher=searcher)
    whole = tune(saxpy, settings=wanted, run=tmp_path / "whole", machine=machine(noise=0.0))
    first = tune(saxpy, settings=wanted, run=tmp_path / "cut", machine=machine(noise=0.0), listener=Interrupting(4))
    assert first.reason == "interrupted"
    assert first.best_config is not None
    rest = resume(tmp_path / "cut", machine=machine(noise=0.0))
    assert rest.reason == whole.reason
    configs = [event.config for event in whole.view.evaluations]
    assert [event.config for event in rest.view.evaluations] == configs
    assert rest.best_config == whole.best_config


def test_a_finished_run_is_only_shown_by_resume(saxpy: Path, tmp_path: Path) -> None:
    done = tune(saxpy, settings=settings(evaluations=5), run=tmp_path / "run", machine=machine())
    events = (tmp_path / "run" / "events.jsonl").read_bytes()
    assert resume(tmp_path / "run", machine=machine()).view == done.view
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == events


def test_replay_gives_the_recorded_values_to_any_searcher(saxpy: Path, tmp_path: Path) -> None:
    recorded = tune(saxpy, settings=settings(), run=tmp_path / "run", machine=machine())
    values = {Config(event.config): event.value for event in recorded.view.evaluations}
    for searcher in ("random", "local"):
        again = replay(tmp_path / "run", settings=settings(8, searcher), run=tmp_path / searcher)
        assert len(again.view.evaluations) == 8
        for event in again.view.evaluations:
            assert event.value == values[Config(event.config)]


def test_replay_of_a_config_that_was_not_recorded_is_a_failure_of_its_own_kind(saxpy: Path, tmp_path: Path) -> None:
    tune(saxpy, settings=settings(evaluations=3), run=tmp_path / "run", machine=machine())
    again = replay(tmp_path / "run", settings=settings(), run=tmp_path / "again")
    assert again.view.failures_by_stage["time"]["not-recorded"] == 13


def test_a_copied_run_folder_is_the_run(saxpy: Path, tmp_path: Path) -> None:
    import shutil

    done = tune(saxpy, settings=settings(evaluations=5), run=tmp_path / "run", machine=machine())
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere" / "copy")
    shutil.rmtree(tmp_path / "run")
    shutil.rmtree(saxpy)
    view = RunView.read(tmp_path / "elsewhere" / "copy")
    assert view.evaluations == done.view.evaluations
    replay(tmp_path / "elsewhere" / "copy", settings=settings(3), run=tmp_path / "replayed")


def test_a_kernel_without_parameters_says_what_to_do(saxpy: Path, tmp_path: Path) -> None:
    source = (saxpy / "saxpy.cl").read_text()
    (saxpy / "saxpy.cl").write_text(source[source.index("#ifndef") :])
    with pytest.raises(SpecError, match="nothing to tune") as caught:
        tune(saxpy, run=tmp_path / "run", machine=machine())
    assert "init" in (caught.value.hint or "")
    assert "kernelwright optimize" in (caught.value.hint or "")
    assert not (tmp_path / "run").exists()


def test_an_unknown_searcher_names_the_nearest(saxpy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="surogate") as caught:
        tune(saxpy, settings=settings(5, "surogate"), run=tmp_path / "run", machine=machine())
    assert "surrogate" in str(caught.value)


def test_every_event_is_durable_before_it_is_told(saxpy: Path, tmp_path: Path) -> None:
    told: list[str] = []

    class Checking:
        def on_event(self, event: Event, progress: Progress) -> None:
            records = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
            told.append(event.kind)
            kinds = [record["kind"] for record in records]
            assert kinds.count(event.kind) >= told.count(event.kind)

        def on_progress(self, progress: Progress) -> None: ...

    tune(saxpy, settings=settings(5), run=tmp_path / "run", machine=machine(), listener=Checking())
    assert {"run_started", "baseline_measured", "evaluated", "finalists_compared", "run_finished"} <= set(told)
