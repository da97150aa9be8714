"""A budget of evaluations holds with several structures under way: what is begun is reckoned with from then on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import spool_runs

from interleaved import interleaved, told
from kernelwright.optimization.optimize import optimize, replay_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.store.view import RunView
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings

MACHINE = SimulatedMachine(spool_runs.cost, noise=0.01)


def evaluated(run: Path) -> int:
    return sum(len(RunView.read(node).evaluations) for node in (run / "nodes").iterdir())


@pytest.mark.few(1)
@pytest.mark.parametrize("in_flight", [2, 4])
@pytest.mark.parametrize("plans_ahead", [True, False])
def test_a_budget_of_evaluations_holds(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans_ahead: bool, in_flight: int
) -> None:
    tactics = (spool_runs.VECTOR, spool_runs.TILE, spool_runs.NESTED)
    tune = TuneSettings(searcher="random", data_seed=1, comparison_rounds=10)
    settings = OptimizeSettings(tune=tune, memory="off", in_flight=in_flight, proof_points=0)
    for count in (5, 8, 11):
        own = dataclasses.replace(settings, tune=dataclasses.replace(tune, budget=Budget(evaluations=count)))
        run = tmp_path / f"run-{count}"
        with interleaved(monkeypatch, count) as world:
            agent = spool_runs.agent(*tactics, plans_ahead=plans_ahead)
            optimize(plain, settings=own, run=run, machine=MACHINE, agent=agent)
            assert evaluated(run) <= count
            world.begin("")
            agent = spool_runs.agent(*tactics, plans_ahead=plans_ahead)
            replay_optimize(run, run=tmp_path / f"again-{count}", agent=agent)
            assert told(tmp_path / f"again-{count}") == told(run)
