"""The verdict on each workload: a clear gain is kept where another workload's noise hides it, and nothing more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kernelwright.dispatching.table import dispatch_table
from kernelwright.evaluate.statistics import confidence_for
from kernelwright.export.run import export_run
from kernelwright.insights.verdict_words import verdict_text as verdict
from kernelwright.results.tune_result import TuneResult
from kernelwright.results.workload_gains import partial_gain, workload_verdicts
from kernelwright.store.event import Event, FinalistsCompared
from kernelwright.store.view import RunView
from kernelwright.testing.sample_runs import sample_events
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem, tune

if TYPE_CHECKING:
    from kernelwright.problem.config import Config
    from kernelwright.problem.model import Workload

Rows = list[list[float]]


def result_of(samples: list[Rows], *, finalist_count: int = 0) -> TuneResult:
    """A run whose comparison has these samples: by workload, the baseline's row first."""
    events: list[Event] = []
    count = len(samples[0])
    for event in sample_events(evaluations=60, workloads=len(samples)):
        if isinstance(event, FinalistsCompared):
            names = list(event.samples_ms)
            ids = ("base", *(f"c{k}" for k in range(1, count)))
            table = {name: tuple(tuple(row) for row in rows) for name, rows in zip(names, samples, strict=True)}
            configs = tuple(event.configs[min(k, 1)] for k in range(count))
            events.append(
                replace(
                    event,
                    candidate_ids=ids,
                    configs=configs,
                    samples_ms=table,
                    rejected={},
                    finalist_count=finalist_count,
                )
            )
        else:
            events.append(event)
    return TuneResult(RunView.of(events))


def times(level_ms: float, spread: float, *, rounds: int = 20, seed: int = 0) -> list[float]:
    return [float(each) for each in level_ms * np.exp(np.random.default_rng(seed).normal(0, spread, rounds))]


LARGE = [times(90.0, 0.02, seed=1), times(30.0, 0.02, seed=2)]
"""Three times as fast."""
TINY = [times(0.005, 2.5, seed=3), times(0.005, 2.5, seed=4)]
"""A few microseconds that scatter wildly."""


def test_a_clear_gain_beside_a_noisy_workload_is_kept_where_it_is() -> None:
    result = result_of([LARGE, TINY])
    assert result.speedup is not None
    assert result.speedup.low < 1
    assert not result.is_gain
    assert result.partial is not None
    (gain,) = result.partial.faster
    assert 2.8 < gain.speedup.low < 3 < gain.speedup.high < 3.2
    assert result.partial.others == (result.workloads[1].workload,)
    assert [row.finding for row in result.workloads] == ["faster", "no claim"]
    words = verdict(result)
    assert words.startswith("No gain over all workloads")
    assert "over all finalists and workloads" in words
    assert f"use the baseline on {result.workloads[1].workload}" in words


def test_a_gain_over_all_workloads_is_claimed_as_before() -> None:
    result = result_of([LARGE, [times(0.05, 0.02, seed=3), times(0.04, 0.02, seed=4)]])
    assert result.is_gain
    assert result.partial is None


def test_a_slower_workload_is_told_and_left_to_the_baseline() -> None:
    result = result_of([LARGE, [times(10.0, 0.02, seed=3), times(300.0, 0.02, seed=4)]])
    assert not result.is_gain
    assert result.partial is not None
    assert [each.finding for each in result.partial.verdicts] == ["faster", "slower"]


def test_without_a_clear_gain_anywhere_nothing_is_kept() -> None:
    assert result_of([[times(9.0, 0.3, seed=1), times(8.9, 0.3, seed=2)], TINY]).partial is None


def test_one_workload_has_no_part() -> None:
    assert partial_gain(result_of([[times(9.0, 0.02), times(3.0, 0.02, seed=1)]]).view) is None


def test_the_finalist_that_gains_most_where_it_is_sure_is_kept() -> None:
    large = [*LARGE, times(20.0, 0.02, seed=7)]
    tiny = [*TINY, times(0.02, 2.5, seed=8)]
    partial = result_of([large, tiny]).partial
    assert partial is not None
    assert partial.candidate_id == "c2"


def test_intervals_are_for_all_finalists_on_all_workloads_also_in_a_part_of_the_comparison() -> None:
    whole = workload_verdicts(result_of([LARGE, TINY, TINY]).view, 1)
    assert {each.speedup.confidence for each in whole} == {confidence_for(3)}
    part = result_of([LARGE, TINY, TINY], finalist_count=5)
    assert {each.speedup.confidence for each in workload_verdicts(part.view, 1)} == {confidence_for(15)}
    assert part.speedup is not None
    assert part.speedup.confidence == confidence_for(5)


def test_too_few_rounds_make_no_claim_on_a_workload() -> None:
    few = [[row[:6] for row in rows] for rows in (LARGE, TINY)]
    result = result_of(few)
    assert {each.finding for each in workload_verdicts(result.view, 1)} == {"no claim"}
    assert result.partial is None


def test_a_claim_needs_the_confidence_that_so_many_finalists_ask_for() -> None:
    """Nine rounds are enough for five finalists, not for twenty."""
    few = [[row[:9] for row in rows] for rows in (LARGE, LARGE)]
    assert result_of(few, finalist_count=5).is_gain
    result = result_of(few, finalist_count=20)
    assert not result.is_gain
    assert verdict(result).startswith("No claim: ")


@pytest.mark.thorough
def test_equal_kernels_are_hardly_ever_called_faster_on_some_workload() -> None:
    """Five finalists on three workloads that are the baseline's equals: one false gain in 40 runs, or fewer."""
    rng, false_gains, runs = np.random.default_rng(5), 0, 200
    for _ in range(runs):
        samples: list[Rows] = [
            [[float(each) for each in np.exp(rng.normal(0, 0.1, 20))] for _ in range(6)] for _ in range(3)
        ]
        false_gains += partial_gain(result_of(samples).view) is not None
    assert false_gains / runs <= 0.05


# -- what is done with it


@pytest.fixture
def partly_faster(beatable_saxpy: Path, tmp_path: Path) -> Path:
    """A run whose every config is three times as fast on the first workload and five times slower on the others."""
    first: list[str] = []

    def cost(config: Config, workload: Workload) -> float:
        first[:] = first or [workload.name]
        if not config:
            return 1.0
        return 0.33 if workload.name == first[0] else 5.0

    settings = TuneSettings(budget=Budget(evaluations=8), searcher="random", data_seed=1, comparison_rounds=20)
    tune(beatable_saxpy, settings=settings, run=tmp_path / "run", machine=SimulatedMachine(cost, noise=0.01))
    return tmp_path / "run"


def test_the_export_uses_the_winner_where_it_is_faster_and_the_baseline_elsewhere(
    partly_faster: Path, tmp_path: Path
) -> None:
    view = RunView.read(partly_faster)
    result = TuneResult(view)
    assert not result.is_gain
    assert result.partial is not None
    subject = TuningProblem.load(partly_faster / "problem" / "problem.toml")
    table = dispatch_table(view, subject)
    faster = {each.workload for each in result.partial.faster}
    assert faster
    for workload in subject.problem.workloads:
        wanted = result.partial.config if workload.name in faster else None
        assert table.select(workload.sizes) == wanted
    written = export_run(partly_faster, tmp_path / "export", formats=("header",))
    assert "no gain over all workloads" in written[0].read_text()


def test_what_is_exported_of_a_gain_over_all_workloads_is_as_before(beatable_saxpy: Path, tmp_path: Path) -> None:
    settings = TuneSettings(budget=Budget(evaluations=8), searcher="random", data_seed=1, comparison_rounds=20)
    machine = SimulatedMachine(lambda config, _workload: 0.5 if config else 1.0, noise=0.01)
    result = tune(beatable_saxpy, settings=settings, run=tmp_path / "run", machine=machine)
    assert result.is_gain
    table = dispatch_table(result.view, TuningProblem.load(tmp_path / "run" / "problem" / "problem.toml"))
    assert None not in table.configs
