"""Where a run happens: which device, and the runner that owns it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from kernelwright.backend.base import DeviceInfo
from kernelwright.backend.registry import BACKENDS, get_backend
from kernelwright.errors import MissingDependency, UsageError
from kernelwright.evaluate.base import MeasuringRunner
from kernelwright.evaluate.device.probe import DeviceHosts, probe_devices, select_devices
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.evaluate.prestart import EarlyStart
from kernelwright.problem.model import Problem
from kernelwright.source.language import Language
from kernelwright.tuning.environment import usable_core_count
from kernelwright.tuning.settings import TuneSettings

GPU_LANGUAGES: tuple[Language, ...] = ("cuda", "triton")
"""No device of these shares the host's cores, so data can be made before the device is known."""


class Machine(Protocol):
    """Gives a run a device and a runner; the fake one is `kernelwright.testing.simulated.SimulatedMachine`."""

    def device(self, selector: str | None, language: Language) -> DeviceInfo:
        """The device to use.

        Raises:
            UsageError: no device fits the selector.
            MissingDependency: nothing here runs this language.
        """
        ...

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> MeasuringRunner:
        """A runner for one session on `device`."""
        ...


class LocalMachine:
    """This machine, with real devices."""

    def __init__(self, begun: DeviceHosts | None = None) -> None:
        """`begun`: of `begun_probes`, for languages that share the host's cores."""
        self._begun = begun
        self._early: EarlyStart | None = None
        self._peers: dict[str, tuple[DeviceInfo, ...]] = {}
        """By the first device of a selection, the others."""

    def device(self, selector: str | None, language: Language) -> DeviceInfo:
        """Probe in a subprocess and select; of several devices the first, whose peers the runner uses too."""
        try:
            own = [name for name in BACKENDS if language in get_backend(name).languages]
            hosts = self._early.hosts if self._early is not None and language in GPU_LANGUAGES else None
            begun = None if language in GPU_LANGUAGES else self._begun
            report = probe_devices(backends=own, hosts=hosts, begun=begun)
            first, *others = select_devices(report, selector, language=language)
        except (MissingDependency, UsageError):  # which say more when all are asked
            first, *others = select_devices(probe_devices(), selector, language=language)
        self._peers[first.id] = tuple(others)
        return first

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> MeasuringRunner:
        """A build pool and a lane for each device."""
        evaluation = settings.evaluation(is_cpu=device.kind == "cpu", core_count=usable_core_count())
        early, self._early = self._early, None
        return LocalRunner(problem, device, evaluation, peers=self._peers.get(device.id, ()), early=early)

    @contextlib.contextmanager
    def expecting(self, problem: Problem, settings: TuneSettings, language: Language) -> Iterator[None]:
        """Begin what a run of `problem` needs whatever its device is; the first runner made within it takes it over."""
        evaluation = settings.evaluation(is_cpu=False, core_count=usable_core_count())
        with EarlyStart(problem, evaluation) as early:
            if language in GPU_LANGUAGES:
                early.make_data([workload.name for workload in problem.workloads])
            self._early = early
            try:
                yield
            finally:
                self._early = None


def expecting(
    machine: Machine, problem: Problem, settings: TuneSettings, language: Language
) -> contextlib.AbstractContextManager[None]:
    """`LocalMachine.expecting`; nothing on other machines."""
    if isinstance(machine, LocalMachine):
        return machine.expecting(problem, settings, language)
    return contextlib.nullcontext()
