"""A node of Ray that is lost. `test_ray.py` runs this file in a process of its own.

Ray's threads live as long as the process and never rest, and tests of an OpenCL driver wait until all threads do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spool_runs
from fleet_runs import NamedMachine, run_on, served
from spool_runs import NESTED, TILE, VECTOR, agent, in_thread
from test_fleet import recorded
from test_spool_runs import wait_until

from kernelwright.evaluate.base import EvaluationFuture, EvaluationRequest, MeasuringRunner
from kernelwright.optimization.optimize import replay_optimize
from kernelwright.problem.model import Problem
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.testing.simulated import SimulatedRunner
from kernelwright.worker.ray_cluster import ray_slots

PATIENCE_S = 300.0


class SlowRunner(SimulatedRunner):
    def submit(self, request: EvaluationRequest) -> EvaluationFuture:
        time.sleep(0.2)
        return super().submit(request)


class SlowMachine(NamedMachine):
    """Takes long enough for a node to be killed in the middle."""

    def runner(self, problem: Problem, device: object, settings: object) -> MeasuringRunner:
        return SlowRunner(problem, spool_runs.cost, noise=0.005)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without a device; nodes are added by the test."""
    import fleet_runs
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    modules = [spool_runs, fleet_runs, __import__(__name__)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # which nodes cannot import
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def is_at_a_node(told: list[str], lane: str) -> bool:
    """Whether the last that a lane has told is that it begins with a structure."""
    last = [line for line in told if line.startswith(f"{lane}: ")][-1:]
    return "".join(last).endswith(": begins") and ": node " in last[0]


def test_a_node_of_ray_is_killed_and_the_run_finds_what_one_machine_finds(
    plain: Path, tmp_path: Path, nodes: Any
) -> None:
    spool, told = tmp_path / "spool", list[str]()
    first, _ = nodes.add_node(num_cpus=1), nodes.add_node(num_cpus=1)
    with ray_slots(nodes.address, machine=SlowMachine) as slots:
        wait_until(lambda: len(slots()) == 2, patience_s=PATIENCE_S)
        assert all(name.endswith("-cpu") for name in slots())
        (lost,) = [name for name in slots() if f"-{first.node_id[:6]}-" in name]
        with served(spool, slots, told):
            thread, found = in_thread(lambda: run_on(plain, tmp_path / "run", spool, VECTOR, TILE, NESTED))
            wait_until(lambda: is_at_a_node(told, lost) or bool(found), patience_s=PATIENCE_S)
            nodes.remove_node(first, allow_graceful=False)
            thread.join(PATIENCE_S)
        assert len(slots()) == 1
    (result,) = found
    assert isinstance(result, OptimizeResult), (result, told)
    assert result.is_gain
    assert result.best_config is not None
    assert result.best_config["TILE"] == 4
    assert any(line.startswith((f"{lost}: it is lost", f"{lost}: its node is gone")) for line in told)
    evaluations = recorded(tmp_path / "run")
    assert len(evaluations) == len(set(evaluations))
    again = replay_optimize(tmp_path / "run", run=tmp_path / "again", agent=agent(VECTOR, TILE, NESTED))
    assert again.differences == ()
    assert recorded(tmp_path / "again") == evaluations
