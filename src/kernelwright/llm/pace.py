"""How fast a service may be asked: requests a minute, requests at once, and waits that it asked for itself.

```
gates = Gates(Pace(requests_per_minute=60, in_flight=4))
with gates.of("openai:gpt-5").turn():        # waits for its turn
    ...
gates.of("openai:gpt-5").hold(20.0)          # the service said: not for 20 s; no thread begins before
```
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernelwright.errors import UsageError

MINUTE_S = 60.0

LONGEST_HOLD_S = 86_400.0
"""What a service may ask for at most; a longer wait is taken for this one."""


class NotYet(Exception):
    """A turn that would come too late.

    Attributes:
        wait_s: until it would come; 0: not known.
        is_held: whether the service asked for the wait.
    """

    def __init__(self, wait_s: float, *, is_held: bool = False) -> None:
        super().__init__(f"not for {wait_s:g} s")
        self.wait_s = wait_s
        self.is_held = is_held


class TimeLeft:
    """Seconds that a run has left for models: without end until somebody tells; safe to use from several threads."""

    def __init__(self) -> None:
        self._told: Callable[[], float | None] | None = None

    def is_told_by(self, seconds: Callable[[], float | None]) -> None:
        """From now on as this says; None: no limit."""
        self._told = seconds

    def __call__(self) -> float:
        """As of now; infinite where there is no limit, never below 0."""
        seconds = self._told() if self._told is not None else None
        return math.inf if seconds is None else max(0.0, seconds)


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as waiting sees it; tests bring their own."""

    now_s: Callable[[], float] = time.monotonic
    sleep_s: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits of each model of a run; None: none but what the service says."""

    requests_per_minute: int | None = None
    in_flight: int | None = None

    def __post_init__(self) -> None:
        """Refuse what would let nothing through."""
        for name in ("requests_per_minute", "in_flight"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"{name} is {value!r}, expected a whole number of at least 1")


class Gate:
    """Lets requests to one model through; safe to use from several threads."""

    def __init__(self, pace: Pace | None = None, clock: Clock | None = None) -> None:
        self._pace = pace or Pace()
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._begun: deque[float] = deque()
        self._not_before_s = float("-inf")
        self._places = threading.BoundedSemaphore(self._pace.in_flight) if self._pace.in_flight else None

    @contextlib.contextmanager
    def turn(self, most_s: float = math.inf, *, most_held_s: float = math.inf) -> Iterator[float]:
        """A place among the requests in flight, as soon as the pace allows; gives the seconds that it waited.

        Args:
            most_s: wait no longer than this in all.
            most_held_s: wait for no hold that lasts longer.

        Raises:
            NotYet: it would take longer; nothing was waited for but a place.
        """
        start_s = self._clock.now_s()
        with self._place(most_s):
            while (wait_s := self._wait_s()) > 0:
                waited_s, held_s = self._clock.now_s() - start_s, self.held_s
                if held_s > most_held_s or waited_s + wait_s > most_s:
                    raise NotYet(wait_s, is_held=held_s > most_held_s)
                self._clock.sleep_s(wait_s)
            yield max(0.0, self._clock.now_s() - start_s)

    @contextlib.contextmanager
    def _place(self, most_s: float) -> Iterator[None]:
        if self._places is None:
            yield
            return
        if not self._places.acquire(timeout=None if math.isinf(most_s) else min(most_s, threading.TIMEOUT_MAX)):
            raise NotYet(0.0)
        try:
            yield
        finally:
            self._places.release()

    def hold(self, seconds: float) -> None:
        """Begin no request for so long, a day at most; a longer hold stands."""
        with self._lock:
            until_s = self._clock.now_s() + min(seconds, LONGEST_HOLD_S)
            self._not_before_s = max(self._not_before_s, until_s)

    @property
    def held_s(self) -> float:
        """For how long no request may begin, whatever the pace; 0: it may."""
        with self._lock:
            return max(0.0, self._not_before_s - self._clock.now_s())

    def _wait_s(self) -> float:
        """How long to wait before asking again; 0: the request is counted, go."""
        with self._lock:
            now_s = self._clock.now_s()
            if self._not_before_s > now_s:
                return self._not_before_s - now_s
            limit = self._pace.requests_per_minute
            if limit is None:
                return 0.0
            while self._begun and self._begun[0] <= now_s - MINUTE_S:
                self._begun.popleft()
            if len(self._begun) >= limit:
                return self._begun[0] + MINUTE_S - now_s
            self._begun.append(now_s)
            return 0.0


class Gates:
    """The gates of a run, one for each model, whoever asks it."""

    def __init__(self, pace: Pace | None = None, clock: Clock | None = None) -> None:
        self._pace = pace
        self._clock = clock
        self._lock = threading.Lock()
        self._by_name: dict[str, Gate] = {}

    def of(self, name: str) -> Gate:
        """The gate of the model of that name, always the same one."""
        with self._lock:
            if name not in self._by_name:
                self._by_name[name] = Gate(self._pace, self._clock)
            return self._by_name[name]
