"""How long the original kernel takes on sizes that nobody said, and what its device holds: asked in a worker process.

```
with TrialLaunches(folder) as trials:
    launched = trials.launch(problem_file)      # seconds and bytes; None: it does not run
```
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from kernelwright.errors import InfrastructureError, ReferenceFailed
from kernelwright.evaluate.judge.kernel_reference import KernelReference
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.problem.load.problem import load_problem

FACTORY = f"{__name__}:make_trial"
TIMEOUT_S = 4.0
"""For a build and two launches."""


class TrialLaunches:
    """Owns the worker process."""

    def __init__(self, scratch: Path) -> None:
        """Starts nothing yet; `scratch` is the worker's."""
        self._worker = WorkerProcess(WorkerSettings("trial", FACTORY, None), scratch=scratch)

    def launch(self, problem_file: Path) -> tuple[float, int | None] | None:
        """A launch on the first workload; None where it fails: the run says why.

        Gives its seconds, at least so many where it did not end in time, and the device's memory in bytes, None: not
        known.
        """
        try:
            found = self._worker.call(problem_file, timeout_s=TIMEOUT_S)
        except JobTimeout:
            return TIMEOUT_S, None
        except (WorkerDied, InfrastructureError, ReferenceFailed):
            return None
        return found if isinstance(found, tuple) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._worker.close()


def make_trial(argument: object) -> Callable[[object], object]:
    """The handler of the worker: a problem's file, whose reference is the original kernel."""
    del argument

    def handle(job: object) -> object:
        problem = load_problem(Path(str(job)))
        original = KernelReference(problem)
        try:
            return original.launch_s(problem.workloads[0]), original.memory_bytes
        except Exception:  # whatever a driver says of a kernel: the run itself says it in words
            return None

    return handle
