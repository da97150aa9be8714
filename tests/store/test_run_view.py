"""The view and the recording: pure functions of events, against slow and plain references."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.errors import StoreError
from kernelwright.problem.config import Config, Value
from kernelwright.problem.outcome import Cost, Failed, Measurement, Outcome, Passed, Stage
from kernelwright.store.event import (
    BaselineMeasured,
    Evaluated,
    Event,
    FinalistsCompared,
    Noted,
    RunFinished,
    RunStarted,
    SessionStarted,
)
from kernelwright.store.recording import Recording
from kernelwright.store.view import RunView, weighted_geometric_mean
from kernelwright.testing.sample_runs import PARAMETERS, sample_events, write_sample_run

if TYPE_CHECKING:
    from pathlib import Path

STARTED = RunStarted(
    "r", "2025-11-21T00:00:00Z", "0.1.0", "p", "i", {}, {}, {},
    {"parameters": {"B": [8, 4, 2], "U": [True, False]}},
    {"small": {"n": 1.0, "weight": 1.0}, "big": {"n": 2.0, "weight": 3.0}},
)  # fmt: skip


def passed(small: float | None, big: float | None, *, early: bool = False) -> Passed:
    times = {"small": small, "big": big}
    done = [(name, time) for name, time in times.items() if time is not None]
    return Passed(
        tuple(
            Measurement(name, (9 * time, time, 0.5 * time), "t", stopped_early=early and name == done[-1][0])
            for name, time in done
        )
    )


def evaluated(
    index: int, outcome: Outcome, value: float | None = None, config: dict[str, Value] | None = None
) -> Evaluated:
    return Evaluated(index, f"c{index}", config or {"B": 2 ** (index % 4)}, outcome, value, Cost(), float(index))


def test_view_of_a_sample_run_read_back_from_disk_is_the_same(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "run", evaluations=60)
    view, expected = RunView.read(run), RunView.of(sample_events(evaluations=60))
    assert view.folder == run
    assert view.evaluations == expected.evaluations
    assert view.fastest == expected.fastest
    assert view.winner_per_workload == expected.winner_per_workload


@pytest.mark.parametrize("seed", range(5))
def test_sample_runs_are_whole_runs(seed: int) -> None:
    view = RunView.of(sample_events(seed=seed))
    assert len(view.evaluations) == 200
    assert [e.index for e in view.evaluations] == list(range(200))
    assert len(view.passed) + len(view.failed) == 200
    assert len(view.failures_by_stage) >= 4
    assert list(view.failures_by_stage) == [s for s in STAGES_IN_ORDER if s in view.failures_by_stage]
    assert sum(sum(reasons.values()) for reasons in view.failures_by_stage.values()) == len(view.failed)
    assert any(e.outcome.stopped_early for e in view.passed if isinstance(e.outcome, Passed))
    assert view.count_known > 0
    assert view.fastest is not None
    assert view.fastest.is_compared
    assert view.fastest.ratio < 0.5
    assert view.comparison is not None
    assert {len(row) for rows in view.comparison.samples_ms.values() for row in rows} == {20}
    assert len(view.sessions) == 2
    elapsed = [e.elapsed_s for e in view.evaluations]
    assert elapsed == sorted(elapsed)


STAGES_IN_ORDER: tuple[Stage, ...] = ("render", "build", "resources", "launch", "check", "time")


@pytest.mark.parametrize(("evaluations", "workloads"), [(0, 1), (1, 2), (7, 5), (1500, 1)])
def test_sample_runs_of_any_size(evaluations: int, workloads: int) -> None:
    events = sample_events(evaluations=evaluations, workloads=workloads, failures=False)
    view = RunView.of(events)
    assert len(view.evaluations) == evaluations
    assert view.failed == ()
    assert len(view.baseline_ms) == workloads
    assert (view.fastest is None) == (evaluations == 0)
    assert events == sample_events(evaluations=evaluations, workloads=workloads, failures=False)


def test_run_that_never_began_or_is_two_runs_is_an_error() -> None:
    with pytest.raises(StoreError, match="holds no event yet"):
        RunView.of([])
    with pytest.raises(StoreError, match="begins with 'noted'"):
        RunView.of([Noted("info", "x"), STARTED])
    with pytest.raises(StoreError, match="two runs"):
        RunView.of([STARTED, dataclasses.replace(STARTED, run_id="s")])


def test_run_that_only_began_has_nothing_yet() -> None:
    view = RunView.of([STARTED])
    assert (view.best, view.fastest, view.baseline, view.finished) == (None, None, None, None)
    assert (view.spent_s, view.count_known) == (0.0, 0)
    assert not view.baseline_ms
    assert not view.failures_by_stage
    assert not view.winner_per_workload
    assert view.weights == {"small": 1.0, "big": 3.0}


def test_best_leaves_out_failures_and_estimates() -> None:
    view = RunView.of([
        STARTED,
        evaluated(0, Failed("build", "compile-error", "m")),
        evaluated(1, passed(1.0, None, early=True), 0.1),
        evaluated(2, passed(3.0, 3.0), 0.7),
        evaluated(3, passed(2.0, 4.0), 0.7),
    ])  # fmt: skip
    assert view.best is view.evaluations[2], "the earliest of equals"
    assert view.fastest is not None
    assert (view.fastest.candidate_id, view.fastest.is_compared, view.fastest.ratio) == ("c2", False, 0.7)
    assert {name: e.index for name, e in view.best_per_workload.items()} == {"small": 3, "big": 2}


def test_finished_workload_of_a_stopped_evaluation_counts_for_that_workload() -> None:
    view = RunView.of([
        STARTED,
        evaluated(0, passed(3.0, 3.0), 0.7),
        evaluated(1, passed(1.0, 2.0, early=True), 0.9),
    ])  # fmt: skip
    assert {name: e.index for name, e in view.best_per_workload.items()} == {"small": 1, "big": 0}


def test_failures_are_counted_by_stage_in_pipeline_order() -> None:
    failures: list[tuple[Stage, str]] = [("time", "x"), ("build", "a"), ("build", "b"), ("build", "b")]
    view = RunView.of([STARTED, *(evaluated(i, Failed(s, r, "m")) for i, (s, r) in enumerate(failures))])
    assert [(stage, list(reasons.items())) for stage, reasons in view.failures_by_stage.items()] == [
        ("build", [("b", 2), ("a", 1)]),
        ("time", [("x", 1)]),
    ]


def compared(rows: dict[str, list[list[float]]], **rejected: str) -> FinalistsCompared:
    count = len(next(iter(rows.values())))
    return FinalistsCompared(
        ("base", *(f"c{k}" for k in range(1, count))),
        ({}, *({"B": k} for k in range(1, count))),
        {name: tuple(tuple(row) for row in table) for name, table in rows.items()},
        rejected,
    )


ROWS = {
    "small": [[10.0, 10.0, 99.0], [4.0, 5.0, 50.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0]],
    "big": [[20.0, 20.0, 20.0], [5.0, 5.0, 5.0], [18.0, 18.0, 18.0], [1.0, 1.0, 1.0]],
}


def test_winner_is_the_finalist_with_the_lowest_weighted_geometric_mean() -> None:
    view = RunView.of([STARTED, evaluated(9, passed(0.1, 0.1), 0.01), compared(ROWS, c3="wrong on denormals")])
    assert view.fastest is not None
    assert (view.fastest.candidate_id, view.fastest.config, view.fastest.is_compared) == ("c1", Config({"B": 1}), True)
    assert view.fastest.ratio == pytest.approx(((5 / 10) * (5 / 20) ** 3) ** (1 / 4))
    assert view.fastest.medians_ms == {"small": 5.0, "big": 5.0}
    assert {name: w.candidate_id for name, w in view.winner_per_workload.items()} == {"small": "c2", "big": "c1"}
    assert view.winner_per_workload["small"].ratio == pytest.approx(2 / 10)


def test_no_winner_when_every_finalist_was_rejected() -> None:
    comparison = compared(ROWS, c1="r", c2="r", c3="r")
    view = RunView.of([STARTED, evaluated(1, passed(0.1, 0.1), 0.01), comparison])
    assert view.fastest is None
    assert view.winner_per_workload == {}
    assert view.best is not None


def test_latest_comparison_and_baseline_count_and_a_new_session_reopens_the_run() -> None:
    base = BaselineMeasured("base", passed(2.0, 4.0), Cost())
    events: list[Event] = [
        STARTED,
        SessionStarted(0.0, 1),
        BaselineMeasured("base", passed(9.0, 9.0), Cost()),
        evaluated(0, passed(1.0, 1.0), 0.5),
        compared({"small": [[1.0], [2.0]], "big": [[1.0], [2.0]]}),
        RunFinished("interrupted", 7.0),
        SessionStarted(9.0, 2, spent_s=7.0),
        base,
        compared(ROWS),
    ]
    view = RunView.of(events)
    assert view.finished is None
    assert view.spent_s == 7.0
    assert view.baseline_ms == {"small": 2.0, "big": 4.0}
    assert view.fastest is not None
    assert view.fastest.candidate_id == "c3"
    assert RunView.of([*events, RunFinished("budget", 30.0)]).spent_s == 30.0


def test_without_a_comparison_the_winner_per_workload_is_relative_to_the_baseline() -> None:
    base = BaselineMeasured("base", passed(2.0, 4.0), Cost())
    view = RunView.of([STARTED, base, evaluated(0, passed(1.0, 3.0), 0.6), evaluated(1, passed(1.5, 2.0), 0.55)])
    assert {n: (w.candidate_id, w.ratio) for n, w in view.winner_per_workload.items()} == {
        "small": ("c0", 0.5),
        "big": ("c1", 0.5),
    }


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=6))
def test_weighted_geometric_mean_is_that_of_repeated_values(pairs: list[tuple[float, float]]) -> None:
    values = {str(k): value for k, (value, _) in enumerate(pairs)}
    weights = {str(k): weight for k, (_, weight) in enumerate(pairs)}
    mean = weighted_geometric_mean(values, weights)
    assert min(values.values()) * (1 - 1e-9) <= mean <= max(values.values()) * (1 + 1e-9)
    doubled = weighted_geometric_mean(values, {name: 2 * weight for name, weight in weights.items()})
    assert math.isclose(mean, doubled, rel_tol=1e-9)
    whole = {name: 1 + int(weight) % 3 for name, weight in weights.items()}
    repeated = [values[name] for name, count in whole.items() for _ in range(count)]
    assert math.isclose(weighted_geometric_mean(values, whole), statistics.geometric_mean(repeated), rel_tol=1e-9)


def test_every_recorded_config_is_found_whatever_its_order(tmp_path: Path) -> None:
    recording = Recording.read(write_sample_run(tmp_path / "run", evaluations=150))
    assert len(recording.configs) == len(set(recording.configs)) == 150 - recording.view.count_known
    for event in recording.view.evaluations:
        found = recording.lookup(dict(reversed(list(event.config.items()))))
        assert found is not None
        assert (found.config, found.outcome) == (event.config, event.outcome)
    assert recording.lookup({**recording.configs[0], "BLOCK": 7}) is None
    assert recording.lookup({}) is None
    assert recording.baseline == recording.view.baseline


def test_recorded_values_span_every_recorded_config_in_the_declared_order() -> None:
    recording = Recording.of(RunView.of(sample_events(evaluations=150)))
    for name, values in recording.parameters.items():
        assert list(values) == [value for value in PARAMETERS[name] if value in values]
        assert {config[name] for config in recording.configs} == set(values)
    events = [evaluated(k, passed(1.0, 1.0), 1.0, {"B": b, "U": True}) for k, b in enumerate((2, 8, 16))]
    assert Recording.of(RunView.of([STARTED, *events])).parameters == {"B": (8, 2, 16), "U": (True,)}


def test_full_measurement_is_preferred_over_an_estimate_and_a_failure() -> None:
    config: dict[str, Value] = {"B": 8, "U": True}
    events = [
        evaluated(0, Failed("launch", "crash", "m"), None, config),
        evaluated(1, passed(1.0, None, early=True), 0.4, config),
        evaluated(2, passed(1.0, 1.0), 0.5, config),
        evaluated(3, passed(1.0, 1.0), 0.6, config),
    ]
    found = [Recording.of(RunView.of([STARTED, *events[: k + 1]])).lookup(config) for k in range(4)]
    assert [event.index for event in found if event is not None] == [0, 0, 2, 2]


def test_recording_without_evaluations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing to replay"):
        Recording.read(write_sample_run(tmp_path / "run", evaluations=0))


def comparison_of(*ids: str, rejected: dict[str, str] | None = None) -> FinalistsCompared:
    rows = {name: tuple((1.0,) * 3 for _ in ids) for name in ("small", "big")}
    return FinalistsCompared(ids, tuple({} for _ in ids), rows, rejected or {})


def test_a_later_session_without_time_undoes_no_comparison() -> None:
    first, short = comparison_of("base", "a", "b"), {"a": "not confirmed: the budget left no more time"}
    view = RunView.of([STARTED, first, comparison_of("base", rejected=short)])
    assert view.comparison == first


def test_what_a_later_session_found_wrong_stands_no_more() -> None:
    first, wrong = comparison_of("base", "a", "b"), {"a": "its first launch takes too long"}
    view = RunView.of([STARTED, first, comparison_of("base", rejected=wrong)])
    assert view.comparison == dataclasses.replace(first, rejected=wrong)


def test_a_later_comparison_that_left_something_counts_alone() -> None:
    later = comparison_of("base", "c", rejected={"a": "wrong"})
    assert RunView.of([STARTED, comparison_of("base", "a"), later]).comparison == later
