"""What a run needs whatever its device turns out to be: begun while drivers are still asked for devices.

```
with EarlyStart(problem, settings) as early:         # a scratch folder, and the referee starts
    report = probe_devices(backends=["cuda"], hosts=early.hosts)
    runner = LocalRunner(problem, device, settings, early=early)      # which takes it over
```
What no runner has taken over by the end of the `with` is ended and removed.
"""

from __future__ import annotations

import shutil
from types import TracebackType
from typing import Self

from kernelwright.evaluate.device.probe import DeviceHosts
from kernelwright.evaluate.judge.server import RefereeDesk
from kernelwright.evaluate.process.scratch import make_scratch
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.problem.model import Problem


class EarlyStart:
    """A scratch folder, a referee that has begun, and the processes that know drivers."""

    def __init__(self, problem: Problem, settings: EvaluationSettings) -> None:
        """Starts the referee; `settings` need not be the device's: the seed and the time for the reference count."""
        self.scratch = make_scratch()
        self.desk = RefereeDesk(problem, settings, scratch=self.scratch)
        self.hosts = DeviceHosts(self.scratch)
        self._is_taken = False
        self.desk.warm()

    def make_data(self, workloads: list[str]) -> None:
        """Have the referee make the essential data from now on: only where nothing else may be disturbed by it."""
        self.desk.prefetch(workloads, is_essential=True)

    def take(self) -> None:
        """Whoever asks is the one to close the desk and to remove the scratch folder. Hosts not taken by now end."""
        self._is_taken = True
        self.hosts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.hosts.close()
        if not self._is_taken:
            self.desk.close()
            shutil.rmtree(self.scratch, ignore_errors=True)
