"""Calls of a reference take turns, and each thread knows what it has waited for others."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable


class OneAtATime:
    """The user's function, which may not expect to be called by two threads at once."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._lock = threading.Lock()
        self._of_thread = threading.local()

        @functools.wraps(function)
        def locked(*arguments: object, **named: object) -> object:
            start_s = time.perf_counter()
            with self._lock:
                self._of_thread.waited_s = self.waited_s + time.perf_counter() - start_s
                return function(*arguments, **named)

        self.locked = locked

    @property
    def waited_s(self) -> float:
        """What this thread has waited for others so far."""
        return float(getattr(self._of_thread, "waited_s", 0.0))
