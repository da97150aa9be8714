"""Steps of work that may run beside each other: each in a thread of its own, or one after the other where one is all.

Only the caller's thread takes results in, so decisions and records need no lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Any

PATIENCE_S = 30.0
"""An evaluation that is under way may end, so long at most."""

WAIT_S = 0.2
"""How often Ctrl-C is heard while everything runs in threads."""


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """Work that touches nothing of the caller's, and what the caller does with its result."""

    work: Callable[[], Any]
    then: Callable[[Any], BackgroundTask | None]
    """Gives what comes next, None: nothing."""
    is_recording: bool = False
    """Whether the work records measurements: then it must have ended before anybody else goes on with the run."""


class Steps:
    """Chains of steps under way."""

    def __init__(self, size: int) -> None:
        """At a `size` of 1 every step is done where it is begun, in the caller's thread."""
        self.size = size
        self._running: dict[object, tuple[BackgroundTask, Future[Any]]] = {}
        self._is_stopping = threading.Event()

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, key: object) -> bool:
        return key in self._running

    @property
    def is_stopping(self) -> bool:
        """Whether the threads should end."""
        return self._is_stopping.is_set()

    def begin(self, key: object, step: BackgroundTask) -> None:
        """Begin a chain; `key` names it."""
        if self.size == 1:
            done: Future[Any] = Future()
            self._running[key] = (step, done)
            with contextlib.ExitStack() as undo:
                undo.callback(self._running.pop, key)
                done.set_result(step.work())
                undo.pop_all()
            return
        future: Future[Any] = Future()
        self._running[key] = (step, future)
        threading.Thread(target=_run, args=(step, future), name=f"step-{key}", daemon=True).start()

    def take_one(self) -> object | None:
        """Wait for the next result, give it to its `then`, and begin what comes next; gives the key of a chain's end.

        Of several results that are there, that of the chain that began first.

        Raises:
            BaseException: whatever the work raised.
        """
        while True:
            futures = [future for _, future in self._running.values()]
            if wait(futures, timeout=WAIT_S, return_when=FIRST_COMPLETED).done or not futures:
                break
        for key, (step, future) in self._running.items():
            if future.done():
                following = step.then(future.result())
                del self._running[key]
                if following is None:
                    return key
                self.begin(key, following)
                return None
        return None

    def stop(self) -> None:
        """Have the threads end as soon as they can; those that record are waited for, `PATIENCE_S` at most."""
        self._is_stopping.set()
        wait([future for step, future in self._running.values() if step.is_recording], timeout=PATIENCE_S)


def _run(step: BackgroundTask, future: Future[Any]) -> None:
    """A thread's work: whatever it raises is the caller's to hear."""

    def hand_over(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        del kind, trace
        if error is not None:
            future.set_exception(error)
        return True

    with contextlib.ExitStack() as end:
        end.push(hand_over)
        future.set_result(step.work())
