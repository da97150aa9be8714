"""Where a run happens: which device, and the runner that owns it."""

from __future__ import annotations

from typing import Protocol

from kernelwright.backend.base import DeviceInfo
from kernelwright.engine.environment import usable_core_count
from kernelwright.engine.settings import TuneSettings
from kernelwright.evaluate.base import MeasuringRunner
from kernelwright.evaluate.device_probe import probe_devices, select_device
from kernelwright.evaluate.local import LocalRunner
from kernelwright.problem.model import Language, Problem


class Machine(Protocol):
    """Gives the engine a device and a runner; the fake one is `kernelwright.testing.simulated.SimulatedMachine`."""

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

    def device(self, selector: str | None, language: Language) -> DeviceInfo:
        """Probe in a subprocess and select."""
        return select_device(probe_devices(), selector, language=language)

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> MeasuringRunner:
        """A build pool and a device lane."""
        evaluation = settings.evaluation(is_cpu=device.kind == "cpu", core_count=usable_core_count())
        return LocalRunner(problem, device, evaluation)
