"""How long the original kernel takes on sizes that nobody said, and what its device holds: asked in a worker process.

```
with trial_launches(folder) as launch:
    launched = launch(problem_file)             # seconds and bytes; None: it does not run
```
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from kernelwright.errors import InfrastructureError, ReferenceFailed
from kernelwright.evaluate.judge.kernel_reference import KernelReference
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.problem.load.problem import load_problem

FACTORY = f"{__name__}:make_trial"
TIMEOUT_S = 4.0
"""For a build and two launches."""


Launch = Callable[[Path], tuple[float, int | None] | None]
"""Launches on the first workload of a problem's file; None where that fails: the run says why.

Gives the seconds, at least so many where it did not end in time, and the device's memory in bytes, None: not known."""


@contextlib.contextmanager
def trial_launches(scratch: Path) -> Iterator[Launch]:
    """What launches, in a worker process that is started when it is first asked; `scratch` is the worker's."""
    worker = WorkerProcess(WorkerSettings("trial", FACTORY, None), scratch=scratch)

    def launch(problem_file: Path) -> tuple[float, int | None] | None:
        try:
            found = worker.call(problem_file, timeout_s=TIMEOUT_S)
        except JobTimeout:
            return TIMEOUT_S, None
        except (WorkerDied, InfrastructureError, ReferenceFailed):
            return None
        return found if isinstance(found, tuple) else None

    try:
        yield launch
    finally:
        worker.close()


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
