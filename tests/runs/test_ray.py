"""Ray itself carries what `test_fleet.py` has threads carry: simulated nodes on this machine, real actors."""

from __future__ import annotations

import contextlib
import os
import signal
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

from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.base import EvaluationFuture, EvaluationRequest, MeasuringRunner
from kernelwright.optimization.optimize import optimize, replay_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.model import Problem
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.testing.simulated import SimulatedRunner
from kernelwright.worker.ray_cluster import ray_slots
from short_command import COMMAND

pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernelwright[ray]'")
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(400)]  # Ray's own start takes most of it
PATIENCE_S = 120.0


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


def test_an_address_without_a_cluster_is_told_at_once() -> None:
    with pytest.raises(InfrastructureError, match=r"no Ray cluster at 127\.0\.0\.1:9: Connection refused"):
        ray_slots("127.0.0.1:9").__enter__()


def test_a_run_tells_what_keeps_its_devices_away(saxpy: Path, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"no Ray cluster at 127\.0\.0\.1:9: Connection refused"):
        optimize(saxpy, settings=OptimizeSettings(runner="ray:127.0.0.1:9"), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def marked(mark: str) -> dict[int, str]:
    """Processes whose environment holds a text, with their words."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
    return found


@pytest.mark.opencl
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_however_a_run_ends_no_process_of_ray_is_left(saxpy: Path, tmp_path: Path, number: int) -> None:
    import subprocess

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [*COMMAND, "optimize", str(saxpy), "--runner", "ray", "--run", str(tmp_path / "run"), "--budget", "5m"]
    environment = {**os.environ, "KERNELWRIGHT_SCRATCH_DIR": str(scratch)}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            wait_until(lambda: "ray::DeviceSlot" in " ".join(marked(str(scratch)).values()), patience_s=PATIENCE_S)
            process.send_signal(number)
            _, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), err
    wait_until(lambda: not marked(str(scratch)), patience_s=30.0)
