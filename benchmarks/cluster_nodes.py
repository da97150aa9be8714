"""Evaluations per second on one, two and four simulated nodes of Ray on this machine, with a node killed, and by Slurm.

```
python benchmarks/cluster_nodes.py --out FILE [--cases waiting,killed,processor,slurm] [--slurm partition=gpu,cores=1]
```
`waiting`: each node has a simulated device of its own, whose evaluation waits for 0.2 s, so that nodes share no core:
what the transport and the queue cost. `killed`: the same with a node of four killed in the middle. `processor`: each
node has this machine's processor, whose lock lets one candidate on it at a time: no gain is expected. `slurm`: the same
by jobs.

All runs of a case have the same settings; the time is that of the whole call, without the cluster's own start.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runs"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import spool_runs
from spool_runs import NESTED, TILE, VECTOR, agent

from conftest import _write_saxpy
from kernelwright.evaluate.base import EvaluationFuture, EvaluationRequest
from kernelwright.optimization.optimize import optimize, replay_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.remote.client import SpoolMachine
from kernelwright.remote.folder import SpoolFolder
from kernelwright.store.view import RunView
from kernelwright.testing.simulated import SimulatedMachine, SimulatedRunner
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.worker.fleet import serve_cluster
from kernelwright.worker.ray_cluster import ray_slots

WAIT_S = 0.2
EVALUATIONS = 160


class WaitingRunner(SimulatedRunner):
    def submit(self, request: EvaluationRequest) -> EvaluationFuture:
        time.sleep(WAIT_S)
        return super().submit(request)


class WaitingMachine(SimulatedMachine):
    def __init__(self) -> None:
        super().__init__(spool_runs.cost, noise=0.005)

    def runner(self, problem: Any, device: Any, settings: Any) -> WaitingRunner:
        return WaitingRunner(problem, spool_runs.cost, noise=0.005)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--cases", default="waiting,killed,processor")
    words.add_argument("--slurm", default="local")
    given = words.parse_args()
    rows: list[dict[str, Any]] = []

    def add(**row: Any) -> None:
        rows.append({**row, "load": round(os.getloadavg()[0], 1)})
        given.out.write_text(json.dumps(rows, indent=1))
        print(json.dumps(rows[-1]), flush=True)

    for case in given.cases.split(","):
        match case:
            case "waiting":
                for count in (1, 2, 4):
                    add(case=case, nodes=count, **on_ray(count, WaitingMachine))
            case "killed":
                add(case=case, nodes=4, **on_ray(4, WaitingMachine, is_killed=True))
            case "processor":
                add(case=case, nodes=0, **real(""))
                for count in (1, 2):
                    add(case=case, nodes=count, **on_ray(count, None))
            case "slurm":
                for count in (1, 2):
                    add(case=case, nodes=count, **real(f"slurm:{given.slurm},jobs={count},time=10m"))


def on_ray(count: int, machine: type[SimulatedMachine] | None, *, is_killed: bool = False) -> dict[str, Any]:
    """A run on so many nodes; `machine` None: with the processor."""
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    for module in (spool_runs, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(count)]
        if machine is None:
            return real(f"ray:{cluster.address}")
        return waiting(cluster, nodes if is_killed else [], machine)
    finally:
        cluster.shutdown()


def waiting(cluster: Any, victims: list[Any], machine: type[SimulatedMachine]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, ray_slots(cluster.address, machine=machine) as slots:
        root, told, stop = Path(folder), list[str](), threading.Event()
        words = {"say": told.append, "stop": stop}
        arguments = (SpoolFolder(root / "spool"), slots)
        thread = threading.Thread(target=serve_cluster, args=arguments, kwargs=words, daemon=True)
        thread.start()
        while sum(line.endswith(": is there") for line in told) < len(slots()):
            time.sleep(0.1)
        if victims:
            threading.Timer(6.0, functools.partial(cluster.remove_node, victims[0], allow_graceful=False)).start()
        tune = TuneSettings(
            budget=Budget(evaluations=EVALUATIONS), searcher="random", data_seed=1, comparison_rounds=10
        )
        settings = OptimizeSettings(tune=tune, part_evaluations=8, in_flight=8, memory="off")
        start_s = time.monotonic()
        optimize(
            saxpy(root), settings=settings, run=root / "run", agent=agent(VECTOR, TILE, NESTED),
            machine=SpoolMachine(root / "spool", poll_s=0.05),
        )  # fmt: skip
        wall_s = time.monotonic() - start_s
        stop.set()
        thread.join(30)
        row = told_of(root, wall_s, agent(VECTOR, TILE, NESTED))
        return {**row, "lost": sum("begins anew" in line for line in told)}


def real(runner: str) -> dict[str, Any]:
    """A run with the processor of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tune = TuneSettings(budget=Budget(evaluations=30), searcher="random", data_seed=1, comparison_rounds=10)
        settings = OptimizeSettings(tune=tune, part_evaluations=8, in_flight=4, memory="off", runner=runner)
        os.chdir(root)
        start_s = time.monotonic()
        optimize(saxpy(root), settings=settings, run=root / "run")
        return told_of(root, time.monotonic() - start_s, None)


def saxpy(root: Path) -> Path:
    """A problem whose kernel has no parameters."""
    folder = _write_saxpy(root / "saxpy")
    source = (folder / "saxpy.cl").read_text()
    (folder / "saxpy.cl").write_text(source[source.index("#ifndef") :])
    return folder


def told_of(root: Path, wall_s: float, own: Any) -> dict[str, Any]:
    """What came out, and whether a replay decides the same."""
    again = replay_optimize(root / "run", run=root / "again", agent=own)
    every = [
        f"{node.name} {each.candidate_id}"
        for node in sorted((root / "run" / "nodes").iterdir())
        for each in RunView.read(node).evaluations
    ]
    return {
        "evaluations": len(every),
        "twice": len(every) - len(set(every)),
        "wall_s": round(wall_s, 1),
        "per_s": round(len(every) / wall_s, 2),
        "winner": dict(again.result.best_config or {}),
        "replays_the_same": not again.differences,
    }


if __name__ == "__main__":
    main()
