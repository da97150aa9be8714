"""Runs that were killed while several structures were under way: resumed to their end, and repeated from the record.

A replay must make the same events as all sessions of the run together, in the same order. Where and in which order
structures went on is a matter of chance here, and the same at every start.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import spool_runs

from interleaved import World, interleaved, interrupted, killed, told
from kernelwright.optimization.optimize import ReplayedRun, optimize, replay_optimize, resume_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.remote import client
from kernelwright.remote.client import SpoolMachine, _Mailbox
from kernelwright.remote.site import LocalSite
from kernelwright.replaying.record import ReplayDiverged
from kernelwright.store.event import RunFinished, SessionStarted
from kernelwright.store.log import EventLog
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tree.base import Stop
from kernelwright.tuning.machine import Machine
from kernelwright.tuning.settings import Budget, TuneSettings

TACTICS = (spool_runs.VECTOR, spool_runs.TILE, spool_runs.NESTED, spool_runs.WRONG)
DECLINED = ScriptedTactic("declined", 2.5, declines="there is no room for it")
EMPTY = ScriptedTactic("empty", 2.2, constraint="EMPTY > 9")
PARTS = 6
"""Tests that share the points of one run."""

MACHINE = SimulatedMachine(spool_runs.cost, noise=0.01)


def chosen(budget: Budget, **changes: object) -> OptimizeSettings:
    tune = TuneSettings(budget=budget, searcher="random", data_seed=1, comparison_rounds=10)
    settings = OptimizeSettings(tune=tune, memory="off", in_flight=3, proof_points=4)
    return dataclasses.replace(settings, **changes)  # type: ignore[arg-type]


class Runs:
    """Begins, resumes and repeats runs with one agent and machine, each session in an order of its own."""

    def __init__(
        self,
        world: World,
        *,
        plans_ahead: bool,
        tactics: Sequence[ScriptedTactic] = TACTICS,
        machine: Callable[[Path], Machine | SpoolMachine] = lambda _run: MACHINE,
    ) -> None:
        self.world = world
        self._plans_ahead = plans_ahead
        self._tactics = tactics
        self._machine = machine

    def agent(self) -> ScriptedAgent:
        return spool_runs.agent(*self._tactics, plans_ahead=self._plans_ahead)

    def begin(self, problem: Path, run: Path, settings: OptimizeSettings) -> None:
        optimize(problem, settings=settings, run=run, machine=self._machine(run), agent=self.agent())

    def resume(self, run: Path, session: object = "") -> None:
        self.world.begin(f"{run.name} {session}")
        resume_optimize(run, machine=self._machine(run), agent=self.agent())

    def replay(self, run: Path) -> ReplayedRun:
        self.world.begin("")
        return replay_optimize(run, run=run.with_name(f"{run.name}-again"), agent=self.agent())

    def holds(self, run: Path) -> None:
        """The run has come to its end, and its replay makes every event of it."""
        again = self.replay(run)
        assert again.result.reason != "interrupted", run.name
        assert again.differences == ()
        assert told(folder_of(again)) == told(run), run.name
        assert again.event_count == len(told(run))


def folder_of(again: ReplayedRun) -> Path:
    folder = again.result.folder
    assert folder is not None
    return folder


def is_begun(run: Path) -> bool:
    """Whether the run's first event is there: without it there is nothing to resume."""
    return bool((run / "events.jsonl").read_bytes().count(b"\n"))


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("plans_ahead", [True, False])
def test_killed_behind_any_record_the_run_replays(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans_ahead: bool, part: int
) -> None:
    with interleaved(monkeypatch, 1) as world:
        runs = Runs(world, plans_ahead=plans_ahead, tactics=(DECLINED, EMPTY, spool_runs.TILE, spool_runs.WRONG))
        points = slice(part, None, PARTS if plans_ahead else 2 * PARTS)
        with killed(world, tmp_path / "run", tmp_path / "copies", points=points) as copies:
            runs.begin(plain, tmp_path / "run", chosen(Budget(evaluations=8), proof_points=2))
        for copy in filter(is_begun, copies):
            runs.resume(copy)
            runs.holds(copy)
    assert len(copies) > 1


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again_the_run_replays(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    with interleaved(monkeypatch, seed) as world:
        runs = Runs(world, plans_ahead=bool(seed % 2))
        with killed(world, tmp_path / "run", tmp_path / "copies", points=slice(seed, None, 7)) as copies:
            runs.begin(plain, tmp_path / "run", chosen(Budget(evaluations=24)))
        run = copies[len(copies) // 3]
        for session in range(3):
            with killed(world, run, tmp_path / f"copies-{session}", points=slice(seed, None, 7)) as copies:
                runs.resume(run, session)
            if not copies:
                break
            run = copies[len(copies) // 2]
        runs.resume(run, "last")
        runs.holds(run)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_session_that_was_interrupted_replays(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run = tmp_path / "run"
    with interleaved(monkeypatch, seed) as world:
        runs = Runs(world, plans_ahead=bool(seed % 2))
        with interrupted(world, run, at=12 + 7 * seed):
            runs.begin(plain, run, chosen(Budget(evaluations=24)))
        runs.replay(run)
        with interrupted(world, run, at=4):
            runs.resume(run)
        assert sum(isinstance(event, RunFinished) for event in EventLog(run / "events.jsonl").read()) == 2
        runs.resume(run, "last")
        replay_optimize(run, run=tmp_path / "all-again", agent=runs.agent())
        assert told(tmp_path / "all-again") == told(run)


@pytest.mark.thorough
@pytest.mark.parametrize("plans_ahead", [True, False])
def test_time_that_runs_out_does_so_in_the_replay(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans_ahead: bool
) -> None:
    """Each look at the clock takes a moment: what was decided at the limit is decided again."""
    ticks = itertools.count()
    monkeypatch.setattr(LocalSite, "now_s", lambda _: 0.01 * next(ticks))
    with interleaved(monkeypatch, 2) as world:
        runs = Runs(world, plans_ahead=plans_ahead)
        with killed(world, tmp_path / "run", tmp_path / "copies", points=slice(5, None, 80)) as copies:
            runs.begin(plain, tmp_path / "run", chosen(Budget(seconds=6.0)))
        runs.holds(tmp_path / "run")
        for copy in copies:
            runs.resume(copy)
            runs.holds(copy)


@pytest.mark.few(1)
@pytest.mark.parametrize("plans_ahead", [True, False])
def test_killed_while_another_machine_works_the_run_replays(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans_ahead: bool
) -> None:
    """The spool is as it was at the kill; whoever waits for it works through it."""
    spool = tmp_path / "spool"
    working: list[str] = []
    with interleaved(monkeypatch, 3) as world:

        class Answering(_Mailbox):
            def wait(self, identity: str, kind: type[Any]) -> Any:
                world.pause()
                while self._result(identity) is None:
                    if not working:
                        working.append(identity)
                        spool_runs.worker(self.folder.path, lease_s=0.5).run(until_idle=True)
                        working.clear()
                    world.pause()
                return super().wait(identity, kind)

        monkeypatch.setattr(client, "_Mailbox", Answering)
        runs = Runs(
            world,
            plans_ahead=plans_ahead,
            machine=lambda run: SpoolMachine(run / "spool" if (run / "spool").is_dir() else spool),
        )
        with killed(world, tmp_path / "run", tmp_path / "copies", spool, points=slice(7, None, 40)) as copies:
            runs.begin(plain, tmp_path / "run", spool_runs.settings(18, memory="off"))
        for copy in copies:
            working.clear()  # of threads of the killed session
            runs.resume(copy)
            runs.holds(copy)


@pytest.mark.thorough
def test_what_was_killed_and_not_resumed_is_repeated_as_far_as_it_came(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with interleaved(monkeypatch, 4) as world:
        runs = Runs(world, plans_ahead=False)
        with killed(world, tmp_path / "run", tmp_path / "copies", points=slice(11, None, 12)) as copies:
            runs.begin(plain, tmp_path / "run", chosen(Budget(evaluations=24)))
        for copy in copies:
            again = runs.replay(copy)
            assert told(folder_of(again))[: again.event_count] == told(copy)


def test_where_a_resumed_session_did_not_tell_how_it_began_the_divergence_says_so(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As runs were resumed before: what had been measured of structures under way is not known of them."""
    monkeypatch.setattr("kernelwright.optimization.session.evaluated_counts", lambda _nodes: None)
    with interleaved(monkeypatch, 5) as world:
        runs = Runs(world, plans_ahead=False)
        with killed(world, tmp_path / "run", tmp_path / "copies", points=slice(20, None, 1000)) as copies:
            runs.begin(plain, tmp_path / "run", chosen(Budget(evaluations=24)))
        runs.resume(copies[0])
        log = EventLog(copies[0] / "events.jsonl")
        assert [event.evaluated for event in log.read() if isinstance(event, SessionStarted)] == [None, None]
        monkeypatch.setattr("kernelwright.tree.gain.GainPerCost.choose", lambda *_: Stop("exhausted", "it is enough"))
        with pytest.raises(ReplayDiverged) as found:
            runs.replay(copies[0])
    assert "did not record what was known of structures under way" in (found.value.hint or "")
