"""What a run has spent of its budget in seconds, by purpose: kept while it goes on, recorded at its end.

```
ledger = Ledger()
with ledger.on(SEARCH):
    ...
RunFinished(reason, spent_s, ledger.seconds)
```
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from kernelwright.store.view import RunView
from kernelwright.tuning.finals.time_plan import baseline_s

SET_UP = "set-up"
"""Starting workers, and measuring what the device can do where that is not known: beside the budget."""

LONG_SET_UP = "long set-up"
"""What it takes beyond what is free: that counts."""

BASELINE = "baseline"
STRUCTURES = "new structures"
PROOFS = "proofs of templates"
SEARCH = "parameters"
PROPOSALS = "proposals"
FINALS = "final comparison"
KILLED = "sessions that were killed"
"""What they went into beside the baseline is not known: nothing was recorded of it."""


class Ledger:
    """Seconds by purpose. Thread-safe; work that goes on at the same time counts each."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def on(self, purpose: str) -> Iterator[None]:
        """Whatever is done inside is for this purpose."""
        start_s = self._now()
        try:
            yield
        finally:
            self.add(purpose, self._now() - start_s)

    def add(self, purpose: str, seconds: float) -> None:
        """So many seconds more."""
        with self._lock:
            self._seconds[purpose] = self._seconds.get(purpose, 0.0) + seconds

    def take_over(self, view: RunView, *, spent_s: float) -> None:
        """Begin with what earlier sessions of a run have spent, `spent_s` in all."""
        end, told_s = view.last_end, 0.0
        if end is not None and end.spent_on:
            told_s = end.spent_s
            for purpose, seconds in end.spent_on.items():
                self.add(purpose, seconds)
        rest_s = max(0.0, spent_s - told_s)
        if view.baseline is not None and BASELINE not in self.seconds:
            of_baseline_s = min(baseline_s(view.baseline.cost), rest_s)
            self.add(BASELINE, of_baseline_s)
            rest_s -= of_baseline_s
        if rest_s > 0:
            self.add(KILLED, rest_s)

    @property
    def seconds(self) -> Mapping[str, float]:
        """So far."""
        with self._lock:
            return {purpose: round(seconds, 3) for purpose, seconds in self._seconds.items()}


def time_words(view: RunView) -> str:
    """What was asked for, what was used, and on what; empty where the run has no end or no limit in time.

    `time: 20 s asked, 21 s used (baseline 4 s, parameters 11 s, final comparison 6 s); before that 3 s of set-up, ...`
    """
    finished, asked_s = view.finished, view.settings.get("budget", {}).get("seconds")
    if finished is None or not asked_s or not finished.spent_on:
        return ""
    shown = {purpose: seconds for purpose, seconds in finished.spent_on.items() if purpose != SET_UP}
    other_s = finished.spent_s - sum(shown.values())
    parts = [f"{purpose} {_seconds_text(seconds)}" for purpose, seconds in shown.items() if seconds >= LEAST_SHOWN_S]
    parts += [f"other {_seconds_text(other_s)}"] if other_s >= LEAST_SHOWN_S else []
    words = f"time: {asked_s:g} s asked, {_seconds_text(finished.spent_s)} used"
    words += f" ({', '.join(parts)})" if parts else ""
    set_up_s = finished.spent_on.get(SET_UP, 0.0)
    set_up = f"; before that {_seconds_text(set_up_s)} of set-up, which the budget does not cover"
    return words + (set_up if set_up_s >= LEAST_SHOWN_S else "")


LEAST_SHOWN_S = 0.05


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
