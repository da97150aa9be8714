"""What is left to record when a person stops a run; and the clock that stops it when its time is over."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from kernelwright.errors import BudgetTooShort
from kernelwright.results.verdict import NOT_ENOUGH
from kernelwright.store.event import Event, RunFinished
from kernelwright.store.log import EventLog


def closing_events(
    log: EventLog, pending: Sequence[Event], finished: RunFinished, *, is_finished: bool
) -> Sequence[Event] | None:
    """The events that complete the record of an interrupted run; None where it had not begun.

    An interrupt can come while events are being written: what is on the disk then is taken back, and written again.

    Args:
        log: where the run is recorded.
        pending: what was handed to the log last, as long as it has not answered.
        finished: the end to record, where none is.
        is_finished: whether an end was recorded before `pending`.
    """
    again = pending if log.is_cut else ()
    if not again and not log.count:
        return None
    has_end = is_finished or any(isinstance(event, RunFinished) for event in pending)
    return again if has_end else (*again, finished)


class HardLimit:
    """Ends what a budget's own plan did not end in time: a hung reference or compiler, a device that others hold.

    ```
    with HardLimit(hard_limit_s(60.0), stop=runner.stop) as limit:
        ...                                 # KeyboardInterrupt in the main thread, or an error of what was stopped
    limit.is_over                           # whether that is why
    ```
    In other threads than the main one nothing is interrupted; what waits for the runner fails all the same.
    """

    def __init__(self, seconds: float | None, stop: Callable[[], None]) -> None:
        """Nothing counts yet; None: there is no limit."""
        self._seconds = seconds
        self._stop = stop
        self._lock = threading.Lock()
        self._is_armed = False
        self._timer: threading.Timer | None = None
        self._before: Any = None
        self.is_over = False
        """Whether the limit was reached before `release`."""

    def __enter__(self) -> Self:
        self._is_armed = True
        if threading.current_thread() is threading.main_thread() and self._seconds is not None:
            self._before = signal.signal(signal.SIGALRM, self._interrupt)
        if self._seconds is not None:
            self._timer = threading.Timer(max(0.0, self._seconds), self._end)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        if self._before is not None:
            signal.signal(signal.SIGALRM, self._before)

    def release(self) -> None:
        """What comes now takes no time any more: nothing interrupts it."""
        with self._lock:
            self._is_armed = False
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        with self._lock:
            if not self._is_armed:
                return
            self.is_over = True
            if self._before is not None:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        self._stop()

    def _interrupt(self, number: int, frame: object) -> None:
        del number, frame
        if self._is_armed:
            self._is_armed = False
            raise KeyboardInterrupt


HARD_SHARE = 1.2
HARD_S = 2.5
"""What ends at `HARD_SHARE` times its budget and these seconds has some left for the report, and for Python's start."""

FREE_SET_UP_S = 3.0
"""Starting processes and finding devices takes so long beside the budget; more counts."""


def hard_limit_s(seconds: float | None) -> float | None:
    """When a command with a budget in seconds is ended, from its beginning on."""
    return None if seconds is None else HARD_SHARE * seconds + HARD_S


def too_short(seconds: float, doing: str) -> BudgetTooShort:
    """The complaint about a budget that was over before there was anything to improve on."""
    return BudgetTooShort(
        f"the budget of {seconds:g} s was over before the baseline was proven ({doing or 'its build'})",
        hint="give more time (--budget), smaller workloads or a faster reference",
    )


def over_words(seconds: float, doing: str, phase: str) -> str:
    """That a budget was over before there was a claim, and what went on then."""
    what = doing or ("the final comparison" if phase == "compare" else "the search")
    return f"{NOT_ENOUGH}. The budget of {seconds:g} s was over during {what}: give more time"
