"""Calls of a reference take turns, and each thread knows what it has waited for others."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable


def one_at_a_time(function: Callable[..., object]) -> tuple[Callable[..., object], Callable[[], float]]:
    """The user's function, which may not expect to be called by two threads at once, so that threads take turns.

    Gives with it what tells the seconds that the calling thread has waited for others so far.
    """
    lock, of_thread = threading.Lock(), threading.local()

    def waited_s() -> float:
        return float(getattr(of_thread, "waited_s", 0.0))

    @functools.wraps(function)
    def locked(*arguments: object, **named: object) -> object:
        start_s = time.perf_counter()
        with lock:
            of_thread.waited_s = waited_s() + time.perf_counter() - start_s
            return function(*arguments, **named)

    return locked, waited_s
