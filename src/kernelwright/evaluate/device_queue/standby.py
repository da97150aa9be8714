"""A device worker in reserve: started, and shown to run the baseline, while another one works.

```
standby = Standby(make)
standby.prepare(control, timeout_s=10.0)       # in a thread
worker = standby.take()                        # when the other one is lost
```
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from kernelwright.evaluate.process.worker_process import WorkerProcess


class Standby:
    """At most one process. One thread uses it, except that `close` may come from any."""

    def __init__(self, make: Callable[[], WorkerProcess]) -> None:
        """`make`: a worker that is not started; each has a scratch folder of its own."""
        self._make = make
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="standby")
        self._next: Future[WorkerProcess | None] | None = None
        self._made: WorkerProcess | None = None
        self._is_closed = False

    def prepare(self, control: object, *, timeout_s: float) -> None:
        """Begin to start one and have it run a job, unless one is there; one that failed is not replaced."""
        if self._next is None:
            with contextlib.suppress(RuntimeError):  # closed
                self._next = self._threads.submit(self._started, control, timeout_s)

    def settle(self) -> None:
        """Wait until nothing is being started."""
        if self._next is not None:
            self._next.result()

    def take(self) -> WorkerProcess | None:
        """The one in reserve, which is no longer this one's; waits while it starts. None where there is none."""
        if self._next is None:
            return None
        found = self._next.result()
        if found is not None:
            self._next = None
        return found

    def close(self) -> None:
        """End it, and start none any more; a second call ends what the first may have missed."""
        self._is_closed = True
        self._threads.shutdown(wait=False)
        if self._made is not None:
            self._made.kill()

    def _started(self, control: object, timeout_s: float) -> WorkerProcess | None:
        self._made = worker = self._make()
        try:
            if not self._is_closed:
                worker.call(control, timeout_s=timeout_s)
                return worker
        except Exception:  # a device may have room, or permission, for one process alone: work goes on as without
            worker.kill()
        return None
