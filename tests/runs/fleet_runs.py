"""A cluster of threads: slots with a simulated device each, which can be lost or of another version."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from spool_runs import PATIENCE_S, agent, cost, settings

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError, UsageError
from kernelwright.evaluate.base import MeasuringRunner
from kernelwright.optimization.optimize import optimize
from kernelwright.problem.model import Problem
from kernelwright.remote.client import SpoolMachine
from kernelwright.remote.folder import SpoolFolder
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.source.language import Language
from kernelwright.testing.scripted_agent import ScriptedTactic
from kernelwright.testing.simulated import SIMULATED_DEVICE, SimulatedMachine
from kernelwright.tuning.listener import RunListener
from kernelwright.tuning.machine import Machine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.worker.fleet import serve_cluster
from kernelwright.worker.slot import DeviceSlot
from kernelwright.worker.worker import Ended


class NamedMachine(SimulatedMachine):
    """Its device has a name, which a selector must be a part of."""

    def __init__(self, name: str = SIMULATED_DEVICE.name) -> None:
        super().__init__(cost, noise=0.005)
        self.name = name
        self.runners = 0

    def device(self, selector: str | None, language: Language) -> DeviceInfo:
        if selector is not None and selector not in self.name:
            raise UsageError(f"no device is called {selector!r}; here is {self.name!r}")
        return dataclasses.replace(super().device(selector, language), name=self.name)

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> MeasuringRunner:
        self.runners += 1
        return super().runner(problem, device, settings)


@dataclasses.dataclass
class ThreadSlot:
    """A slot as a call."""

    slot: DeviceSlot
    version: str = ""
    is_lost: bool = False
    is_closed: bool = False
    files: list[str] = dataclasses.field(default_factory=list)
    answered: int = 0
    on_answer: Callable[[ThreadSlot], None] = lambda _slot: None

    def call(self, method: str, *arguments: object) -> bytes:
        if method == "answer":
            self.files += list(arguments[1])  # type: ignore[call-overload]
            self.on_answer(self)
        found: bytes = getattr(self.slot, method)(*arguments)
        if self.is_closed:
            raise KeyboardInterrupt
        if self.is_lost:
            raise InfrastructureError("it is lost")
        self.answered += method == "answer"
        if method == "about" and self.version:
            return json.dumps({**json.loads(found), "Kernelwright": self.version}).encode()
        return found

    def close(self) -> None:
        self.is_closed = True


class ThreadCluster:
    """`fleet.Slots`: nodes by name, each with the machine that its slot has."""

    def __init__(self, **machines: Callable[[], Machine]) -> None:
        self.machines = dict(machines)
        self.opened: dict[str, list[ThreadSlot]] = {}
        self.versions: dict[str, str] = {}
        self.on_answer: dict[str, Callable[[ThreadSlot], None]] = {}
        self.failure: InfrastructureError | None = None

    def __call__(self) -> Mapping[str, Callable[[], ThreadSlot]]:
        if self.failure is not None:
            raise self.failure
        return {name: self._opening(name) for name in self.machines}

    def _opening(self, name: str) -> Callable[[], ThreadSlot]:
        def opened() -> ThreadSlot:
            slot = ThreadSlot(DeviceSlot(self.machines[name]), self.versions.get(name, ""))
            slot.on_answer = self.on_answer.get(name, lambda _slot: None)
            self.opened.setdefault(name, []).append(slot)
            return slot

        return opened

    def every(self) -> list[ThreadSlot]:
        return [slot for slots in self.opened.values() for slot in slots]


def serve(
    spool: Path,
    slots: object,
    told: list[str] | None = None,
    *,
    stop: threading.Event | None = None,
    patience_s: float = 0.5,
) -> Ended:
    say = told.append if told is not None else lambda _text: None
    return serve_cluster(
        SpoolFolder(spool), slots, say=say, stop=stop, look_s=0.02, patience_s=patience_s, poll_s=0.01  # type: ignore[arg-type]
    )  # fmt: skip


@contextlib.contextmanager
def served(spool: Path, slots: object, told: list[str] | None = None) -> Iterator[None]:
    """A cluster serves until the end of the block."""
    stop = threading.Event()
    words = {"stop": stop, "patience_s": PATIENCE_S}
    thread = threading.Thread(target=serve, args=(spool, slots, told), kwargs=words, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=PATIENCE_S)
        assert not thread.is_alive(), "a lane hangs"


def run_on(
    plain: Path, folder: Path, spool: Path, *tactics: ScriptedTactic, device: str | None = None,
    listener: RunListener | None = None,
) -> OptimizeResult:  # fmt: skip
    chosen = settings()
    chosen = dataclasses.replace(chosen, tune=dataclasses.replace(chosen.tune, device=device))
    machine = SpoolMachine(spool, poll_s=0.01)
    return optimize(plain, settings=chosen, run=folder, machine=machine, agent=agent(*tactics), listener=listener)
