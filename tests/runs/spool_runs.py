"""A run and workers on both sides of one spool, with a simulated device: threads of this process."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Failed
from kernelwright.remote.client import SpoolMachine
from kernelwright.remote.folder import SpoolFolder
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.listener import RunListener
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.worker.server import Desk
from kernelwright.worker.worker import SpoolWorker

PATIENCE_S = 300.0
"""For a loaded machine; nothing waits that long when all is well."""

LIFT = ScriptedTactic("lift", 1.0, "launch")
VECTOR = ScriptedTactic("vector", 1.8, "map")
TILE = ScriptedTactic("tile", 3.0, "memory")
NESTED = ScriptedTactic("nested", 1.5, "memory", needs=("tile",))
WRONG = ScriptedTactic("wrong", 6.0, "reduction")

GAINS = {"LIFT": (1.0, 1.1, 1.2), "VECTOR": (1.0, 1.5, 2.0), "TILE": (0.8, 2.0, 3.0), "NESTED": (1.0, 1.2, 1.6)}


def cost(config: Config, workload: Workload) -> float | Failed:
    time_ms = workload.sizes["n"] * 1e-4
    for name, values in GAINS.items():
        if name in config:
            time_ms /= dict(zip((1, 2, 4), values, strict=True))[config[name]]  # type: ignore[index]
    if "WRONG" in config:
        return Failed("check", "mismatch", "output y is wrong at 17", log="expected 1, found 2")
    return time_ms


def settings(evaluations: int = 80, **changes: object) -> OptimizeSettings:
    tune = TuneSettings(budget=Budget(evaluations=evaluations), searcher="random", data_seed=1, comparison_rounds=10)
    chosen = OptimizeSettings(tune=tune, part_evaluations=6, in_flight=3)
    return dataclasses.replace(chosen, **changes)  # type: ignore[arg-type]


def agent(*tactics: ScriptedTactic, plans_ahead: bool = True) -> ScriptedAgent:
    return ScriptedAgent(tactics, lifted=LIFT, plans_ahead=plans_ahead)


def asking(spool: Path) -> SpoolMachine:
    return SpoolMachine(spool, poll_s=0.01)


def worker(
    spool: Path,
    machine: SimulatedMachine | None = None,
    *,
    device: str | None = None,
    listener: RunListener | None = None,
    **options: object,
) -> SpoolWorker:
    folder = SpoolFolder(spool)
    desk = Desk(folder, machine or SimulatedMachine(cost, noise=0.005), device=device, listener=listener)
    return SpoolWorker(folder, desk, poll_s=0.01, grace_s=0.05, **options)  # type: ignore[arg-type]


@contextmanager
def working(spool: Path, count: int = 1, **options: object) -> Iterator[list[SpoolWorker]]:
    """So many workers that serve until the end of the block."""
    stop = threading.Event()
    workers = [worker(spool, **options) for _ in range(count)]

    def serve(each: SpoolWorker) -> None:
        while not stop.is_set():
            each.run(until_idle=True)
            stop.wait(0.02)

    threads = [threading.Thread(target=serve, args=(each,), daemon=True) for each in workers]
    for thread in threads:
        thread.start()
    try:
        yield workers
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=PATIENCE_S)
            assert not thread.is_alive(), "a worker hangs"


def run(
    plain: Path,
    folder: Path,
    spool: Path,
    *tactics: ScriptedTactic,
    listener: RunListener | None = None,
    chosen: OptimizeSettings | None = None,
) -> OptimizeResult:
    return optimize(
        plain,
        settings=chosen or settings(),
        run=folder,
        machine=asking(spool),
        agent=agent(*tactics),
        listener=listener,
    )


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """`call` in a thread; what it gives, or raises, is put into the list."""
    found: list[object] = []

    def work() -> None:
        try:
            found.append(call())
        except BaseException as error:  # the test looks at it
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, found
