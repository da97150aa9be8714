"""`optimize --replay RUN`: the same events again, from the record alone; where it is not the same, that is said."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import spool_runs

from kernelwright.errors import StoreError
from kernelwright.optimization.nodes.run import evaluated_counts
from kernelwright.optimization.optimize import optimize, replay_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Failed
from kernelwright.replaying.record import ReplayDiverged, _apart, _difference
from kernelwright.store.event import NodePlanned, Noted
from kernelwright.store.run_folder import RunFolder
from kernelwright.testing.scripted_agent import ScriptedAgent
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings

TIMES = {"elapsed_s", "spent_s", "time_s", "run_id", "created", "process_id", "tree"}


def cost(config: Config, workload: Workload) -> float | Failed:
    """Slow alone, faster with more items and a block of middling size, wrong at the largest of both."""
    if not config:
        return 8.0
    numbers = [value for value in config.values() if isinstance(value, int)]
    if sum(numbers) % 7 == 0:
        return Failed("check", "mismatch", "y is wrong at 17: 3 of 4096 elements", "log", workload.name)
    return 2.0 + abs(sum(numbers) - 40) / 40


@pytest.fixture
def plain(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Path:
    folder = write_saxpy(tmp_path / "plain")
    source = (folder / "saxpy.cl").read_text()
    (folder / "saxpy.cl").write_text(source[source.index("__kernel") :].replace("ITEMS", "1"))
    return folder


def recorded(problem: Path, path: Path, **changes: object) -> Path:
    tune = TuneSettings(budget=Budget(evaluations=40, seconds=60), searcher="auto", seed=3)
    settings = OptimizeSettings(tune=tune, memory="off")
    settings = dataclasses.replace(settings, **changes)  # type: ignore[arg-type]
    optimize(problem, settings=settings, run=path, machine=SimulatedMachine(cost, noise=0.02))
    return path


def log(path: Path) -> list[object]:
    """Every event of a log as JSON, without times and ids."""

    def strip(value: object) -> object:
        if isinstance(value, dict):
            return {key: strip(each) for key, each in value.items() if key not in TIMES}
        return [strip(each) for each in value] if isinstance(value, list) else value

    with RunFolder.open(path, writable=False) as folder:
        return [strip(json.loads(json.dumps(dataclasses.asdict(event), default=str))) for event in folder.read()]


def test_a_run_by_rules_is_repeated_event_by_event(plain: Path, tmp_path: Path) -> None:
    run = recorded(plain, tmp_path / "run")
    replay = replay_optimize(run, run=tmp_path / "again")
    assert replay.differences == ()
    assert log(tmp_path / "again") == log(run)
    assert replay.event_count == len(log(run))
    nodes = sorted(each.name for each in (run / "nodes").iterdir())
    assert nodes == sorted(each.name for each in (tmp_path / "again" / "nodes").iterdir())
    assert len(nodes) > 2
    for name in nodes:
        assert log(tmp_path / "again" / "nodes" / name)[3:] == log(run / "nodes" / name)[3:]


@pytest.mark.parametrize("broken", ["memory/lessons.jsonl", "memory"])
def test_what_is_noted_behind_the_baseline_and_the_comparison_is_repeated(
    broken: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    if broken == "memory":
        home.mkdir()
        (home / broken).touch()
    else:
        (home / broken).mkdir(parents=True)
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(home))
    run = recorded(plain, tmp_path / "run", memory="on")
    with RunFolder.open(run, writable=False) as folder:
        notes = [event.text for event in folder.read() if isinstance(event, Noted)]
    assert any("nothing is re" in text for text in notes)
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path / "another-home"))
    replay_optimize(run, run=tmp_path / "again")
    assert log(tmp_path / "again") == log(run)


def test_a_copy_of_a_structures_folder_is_none_of_the_runs(plain: Path, tmp_path: Path) -> None:
    run = recorded(plain, tmp_path / "run")
    counts = evaluated_counts(run / "nodes")
    shutil.copytree(run / "nodes" / "001", run / "nodes" / "001.bak")
    assert evaluated_counts(run / "nodes") == counts
    replay_optimize(run, run=tmp_path / "again")


def test_a_tactic_that_came_later_is_no_difference() -> None:
    later = NodePlanned(1, (), {"rows": "no rows", "of tomorrow": "not there yet"})
    earlier = NodePlanned(1, (), {"rows": "no rows"})
    assert _difference(earlier, later) == ""
    assert "refused" in _difference(later, earlier)


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", ["gain", "stark"])
def test_every_policy_is_repeated(policy: str, plain: Path, tmp_path: Path) -> None:
    run = recorded(plain, tmp_path / "run", policy=policy)
    replay_optimize(run, run=tmp_path / "again")


@pytest.mark.few(1)
@pytest.mark.parametrize("plans_ahead", [True, False])
def test_a_run_through_a_spool_ends_its_structures_in_the_recorded_order(
    plans_ahead: bool, plain: Path, tmp_path: Path
) -> None:
    tactics = (spool_runs.VECTOR, spool_runs.TILE, spool_runs.NESTED, spool_runs.WRONG)

    def proposer() -> ScriptedAgent:
        return spool_runs.agent(*tactics, plans_ahead=plans_ahead)

    with spool_runs.working(tmp_path / "spool", count=2):
        optimize(
            plain,
            settings=spool_runs.settings(memory="off"),
            run=tmp_path / "run",
            machine=spool_runs.asking(tmp_path / "spool"),
            agent=proposer(),
        )
    replay = replay_optimize(tmp_path / "run", run=tmp_path / "again", agent=proposer())
    assert log(tmp_path / "again") == log(tmp_path / "run")
    assert len(replay.result.tree) > 4


def test_what_is_no_run_of_optimize_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        replay_optimize(tmp_path / "nothing", run=tmp_path / "again")


def test_another_problem_is_refused_before_anything_is_repeated(plain: Path, tmp_path: Path) -> None:
    run = recorded(plain, tmp_path / "run")
    problem = run / "problem" / "problem.toml"
    problem.write_text(problem.read_text().replace("weight = 2", "weight = 3"))
    with pytest.raises(StoreError, match=r"problem\.toml is not what this run recorded"):
        replay_optimize(run, run=tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_another_decision_is_named_with_both_sides(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded(plain, tmp_path / "run")
    monkeypatch.setattr("kernelwright.tree.gain.GainPerCost.choose", _choose_the_baseline)
    with pytest.raises(ReplayDiverged, match=r"recorded .*, now "):
        replay_optimize(run, run=tmp_path / "again")


def _choose_the_baseline(self: object, tree: object, left: object) -> object:
    from kernelwright.tree.base import Stop

    return Stop("exhausted", "nothing is worth it")


def test_a_replay_needs_no_device_and_writes_nothing_into_the_record(plain: Path, tmp_path: Path) -> None:
    run = recorded(plain, tmp_path / "run")
    before = {each: each.stat().st_mtime_ns for each in run.rglob("*") if each.is_file()}
    replay_optimize(run, run=tmp_path / "again")
    assert {each: each.stat().st_mtime_ns for each in run.rglob("*") if each.is_file()} == before


def test_of_two_long_tables_the_difference_is_told() -> None:
    same = {f"tactic-{index}": "why it does not apply" for index in range(40)}
    assert _apart({**same, "rows": "one"}, {**same, "rows": "two", "more": 1}) == (
        '{"rows": "one"}',
        '{"rows": "two", "more": 1}',
    )
