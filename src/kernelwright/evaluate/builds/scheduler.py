"""Keeps builds and measurements apart on a device that shares the host's cores.

On a GPU, builds run ahead of the device all the time. On a CPU device a compiler beside a measurement would disturb
it, so the two take turns in batches: all waiting builds start together, then all that they made ready is measured.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence


class Turns:
    """Grants starts to builds and to measurements. Thread-safe.

    ```
    turns.request_builds(start)          # runs `start` now or when the measurements are done
    turns.builds_finished(makes_ready=True)
    turns.begin_measurement(); ...; turns.end_measurement()
    ```
    """

    def __init__(self, *, is_exclusive: bool) -> None:
        self._is_exclusive = is_exclusive
        self._changed = threading.Condition()
        self._waiting: list[Callable[[], None]] = []
        self._building_count = 0
        self._ready_count = 0

    def request_builds(self, start: Callable[[], None]) -> None:
        """Have `start` called once builds may run; it must lead to one `builds_finished`."""
        with self._changed:
            self._waiting.append(start)
        self._release()

    def builds_finished(self, *, makes_ready: bool) -> None:
        """The builds of one `start` are done; `makes_ready`: a measurement will follow."""
        with self._changed:
            self._building_count -= 1
            if makes_ready:
                self._ready_count += 1
            self._changed.notify_all()
        self._release()

    def begin_measurement(self) -> None:
        """Block until no build disturbs (at once on a device with its own cores)."""
        with self._changed:
            if self._is_exclusive:
                self._changed.wait_for(lambda: self._building_count == 0)

    def end_measurement(self) -> None:
        """One ready evaluation is through."""
        with self._changed:
            self._ready_count -= 1
        self._release()

    def _release(self) -> None:
        with self._changed:
            is_blocked = self._is_exclusive and (self._building_count > 0 or self._ready_count > 0)
            if is_blocked:
                return
            starts, self._waiting = self._waiting, []
            self._building_count += len(starts)
        for start in starts:
            start()


@contextlib.contextmanager
def done_beside(works: Sequence[Callable[[], None]]) -> Iterator[Callable[[], None]]:
    """Inside, `works` are done in another thread, one after the other; behind the block they are over.

    Gives what ends them early: it leaves out those that have not begun, and waits for the one under way. So does an
    error. An interrupt, which may be a time limit's, waits for nothing.
    """
    is_stopping = threading.Event()

    def work_off() -> None:
        for work in works:
            if not is_stopping.is_set():
                work()

    thread = threading.Thread(target=work_off, name="beside", daemon=True)

    def end() -> None:
        is_stopping.set()
        thread.join()

    thread.start()
    try:
        yield end
        thread.join()
    except BaseException as error:
        is_stopping.set()
        if not isinstance(error, KeyboardInterrupt):
            thread.join()
        raise
