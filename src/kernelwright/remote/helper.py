"""A process beside a run that brings devices to its spool: `kernelwright worker --spool DIR --runner RUNNER`.

```
with helped(folder, "ray") as check:
    check()          # raises what has ended it
```
It is the only one that loads Ray. It ends with the run, however that ends, and takes with it what it has started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.process.child import tied, without_secrets
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.messages import Refused, error_of

NAME = "helper"
"""Of its message in `workers/`: why it ends."""

LOG = "helper.log"

CLUSTER_PREFIXES = ("RAY_", "SLURM_")
"""Variables of what brings the devices."""

END_S = 20.0
"""How long it has to end actors and jobs."""

POLL_S = 0.05

MOST_SHOWN = 300


@contextlib.contextmanager
def helped(folder: SpoolFolder, runner: str) -> Iterator[Callable[[], None]]:
    """Inside, it brings devices; at the end it is asked to cancel its jobs and actors, then its group is killed.

    Gives what raises a `KernelwrightError` once it has ended: why.
    """
    words = ["worker", "--spool", str(folder.path.absolute()), "--runner", runner]
    command = [sys.executable, "-P", "-m", "kernelwright", *words]
    with contextlib.suppress(OSError):
        (folder.path / "workers" / f"{NAME}.json").unlink()  # it says why an earlier one has ended
    with (
        (folder.path / LOG).open("wb") as log,
        tied(command, stdout=log.fileno(), environment=_environment()) as process,
    ):
        helper = _Helper(folder, runner, process.pid)
        try:
            yield helper.check
        finally:
            os.kill(process.pid, signal.SIGTERM)  # `terminate` would take its exit status out of the kernel
            end_s = time.monotonic() + END_S
            while helper.how_it_ended() is None and time.monotonic() < end_s:
                time.sleep(POLL_S)


def _environment() -> dict[str, str]:
    """Keys of models' services and the like stay here; a cluster's own tokens do not, since it is what reaches it."""
    own = {name: value for name, value in os.environ.items() if name.startswith(CLUSTER_PREFIXES)}
    return {**without_secrets(os.environ), **own}


@dataclass(frozen=True, slots=True)
class _Helper:
    """The process."""

    folder: SpoolFolder
    runner: str
    process_id: int

    def check(self) -> None:
        """Nothing, while it works.

        Raises:
            KernelwrightError: it has ended, and why.
        """
        ended = self.how_it_ended()
        if ended is None:
            return
        told = self.folder.message("workers", NAME)
        if isinstance(told, Refused):
            raise error_of(told)
        raise InfrastructureError(f"what brings the devices of {self.runner} has ended ({ended}): {self._last_line()}")

    def how_it_ended(self) -> int | None:
        """Its exit status or signal; None: it runs. It stays in the kernel, so that its group keeps its number."""
        found = os.waitid(os.P_PID, self.process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if found is None else found.si_status

    def _last_line(self) -> str:
        try:
            lines = (self.folder.path / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        return next((line.strip()[:MOST_SHOWN] for line in reversed(lines) if line.strip()), "it has said nothing")
