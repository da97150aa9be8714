"""A process beside a run that brings devices to its spool: `kernelwright worker --spool DIR --runner RUNNER`.

```
with SpoolHelper(folder, "ray") as helper:
    helper.check()          # raises what has ended it
```
It is the only one that loads Ray. It ends with the run, however that ends, and takes with it what it has started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from types import TracebackType
from typing import Self

from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.process.child import tied
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.messages import Refused, error_of

NAME = "helper"
"""Of its message in `workers/`: why it ends."""

LOG = "helper.log"

END_S = 20.0
"""How long it has to end actors and jobs."""

POLL_S = 0.05

MOST_SHOWN = 300


class SpoolHelper:
    """See the module."""

    def __init__(self, folder: SpoolFolder, runner: str) -> None:
        """Start it."""
        self._folder = folder
        self.runner = runner
        words = ["worker", "--spool", str(folder.path.absolute()), "--runner", runner]
        with contextlib.ExitStack() as opened:
            log = opened.enter_context((folder.path / LOG).open("wb"))
            command = [sys.executable, "-P", "-m", "kernelwright", *words]
            process = tied(command, stdout=log.fileno(), environment=os.environ)
            self._process = opened.enter_context(process)
            self._open = opened.pop_all()

    def check(self) -> None:
        """Nothing, while it works.

        Raises:
            KernelwrightError: it has ended, and why.
        """
        ended = self._how_it_ended()
        if ended is None:
            return
        told = self._folder.message("workers", NAME)
        if isinstance(told, Refused):
            raise error_of(told)
        raise InfrastructureError(f"what brings the devices of {self.runner} has ended ({ended}): {self._last_line()}")

    def _how_it_ended(self) -> int | None:
        """Its exit status or signal; None: it runs. It stays in the kernel, so that its group keeps its number."""
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if found is None else found.si_status

    def _last_line(self) -> str:
        try:
            lines = (self._folder.path / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        return next((line.strip()[:MOST_SHOWN] for line in reversed(lines) if line.strip()), "it has said nothing")

    def close(self) -> None:
        """End it: first by asking, so that it cancels jobs and ends actors on other machines."""
        with self._open:  # which kills what is left of its group
            os.kill(self._process.pid, signal.SIGTERM)  # `terminate` would take its exit status out of the kernel
            end_s = time.monotonic() + END_S
            while self._how_it_ended() is None and time.monotonic() < end_s:
                time.sleep(POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
