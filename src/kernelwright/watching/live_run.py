"""One run as it grows: its logs are read on, and its page is made again when something came."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from kernelwright.errors import KernelwrightError
from kernelwright.evaluate.words import factor_text
from kernelwright.problem.outcome import Failed
from kernelwright.report.html.writing import live_script
from kernelwright.report.page import render_report
from kernelwright.report.text import clean
from kernelwright.store.event import (
    ActionChosen,
    Evaluated,
    Event,
    FinalistsCompared,
    NodeJudged,
    NodeProposed,
    NodeTuned,
    Noted,
    RunFinished,
    RunStarted,
)
from kernelwright.store.log import LogTail
from kernelwright.store.run_folder import LOG_NAME, NODES_FOLDER
from kernelwright.store.view import RunView

LOG_LINES = 200
LEAST_PAUSE_S = 2.0
"""Between two pages of a run."""
PAUSE_SHARE = 4.0
"""So many times as long as making the page took: watching takes at most a fifth of a core for each run."""
MOST_LINE = 300


@dataclass(frozen=True, slots=True)
class _RunState:
    """What a run's page asks for every second."""

    version: int
    """Counts events, those of nodes too."""
    words: str
    log: tuple[str, ...]
    pause_ms: int
    """Until a further page is worth asking for."""


class LiveRun:
    """A run folder that another process may be writing. Reads only; any thread may ask."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet."""
        self.folder = folder
        self._tail = LogTail(folder / LOG_NAME)
        self._nodes: dict[str, LogTail] = {}
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._lock = threading.Lock()
        self._page = ""
        self._page_version = -1
        self._page_at_s = 0.0
        self._page_took_s = 0.0
        self._grown_s = time.monotonic()
        self._complaint = ""

    def state(self) -> _RunState:
        """Where it stands, once what came since was read."""
        with self._lock:
            self._read_on()
            pause_s = max(LEAST_PAUSE_S, PAUSE_SHARE * self._page_took_s)
            return _RunState(self._version, self._words(), tuple(self._log), round(1000 * pause_s))

    def report(self) -> str:
        """Its page; the one before where nothing came since, or it came too soon."""
        with self._lock:
            self._read_on()
            is_due = time.monotonic() - self._page_at_s >= PAUSE_SHARE * self._page_took_s
            if self._page_version != self._version and (is_due or not self._page):
                begin_s = time.monotonic()
                version = self._version
                self._page = render_report(RunView.of(self._tail.events, folder=self.folder), live=live_script())
                self._page_version, self._page_at_s = version, time.monotonic()
                self._page_took_s = self._page_at_s - begin_s
            return self._page

    def line(self, place: int) -> dict[str, object]:
        """What a list of runs shows of it."""
        with self._lock:
            self._read_on()
            started = next((each for each in self._tail.events if isinstance(each, RunStarted)), None)
            evaluations = [each for each in self._events() if isinstance(each, Evaluated)]
            best = min((each.value for each in evaluations if each.value), default=None)
            return {
                "place": place,
                "name": self.folder.name,
                "problem": started.problem_name if started is not None else "",
                "device": str(started.device.get("name", "")) if started is not None else "",
                "state": self._words(),
                "evaluated": len(evaluations),
                "best": factor_text(1 / best) if best else "",
            }

    # -- reading -------------------------------------------------------------------------------------------------

    def _events(self) -> list[Event]:
        return [*self._tail.events, *(each for tail in self._nodes.values() for each in tail.events)]

    @property
    def _version(self) -> int:
        return len(self._tail.events) + sum(len(tail.events) for tail in self._nodes.values())

    def _read_on(self) -> None:
        self._complaint = ""
        for path in sorted(self.folder.glob(f"{NODES_FOLDER}/*/{LOG_NAME}")):
            self._nodes.setdefault(path.parent.name, LogTail(path))
        for name, tail in (("", self._tail), *self._nodes.items()):
            try:
                fresh = tail.read_on()
            except KernelwrightError as error:
                self._complaint = error.message
                continue
            if fresh:
                self._grown_s = time.monotonic()
            head = f"node {int(name)}: " if name.isdecimal() else ""
            self._log.extend(f"{head}{clean(event_words(each))}"[:MOST_LINE] for each in fresh)

    def _words(self) -> str:
        if self._complaint:
            return f"cannot be read on: {self._complaint}"
        end = next((each for each in reversed(self._tail.events) if isinstance(each, RunFinished)), None)
        if end is not None and end is self._tail.events[-1]:
            return f"over: {end.reason}, after {end.spent_s:.0f} s"
        quiet_s = time.monotonic() - self._grown_s
        return "under way" if quiet_s < 10 else f"no event for {quiet_s:.0f} s: waiting, or ended"


def event_words(event: Event) -> str:
    """An event as a line of a log."""
    match event:
        case RunStarted():
            return f"run {event.run_id[:8]} of {event.problem_name} on {event.device.get('name')}"
        case Evaluated(outcome=Failed()):
            return f"#{event.index} failed at {event.outcome.stage}: {event.outcome.reason}"  # type: ignore[union-attr]
        case Evaluated():
            return f"#{event.index} {factor_text(1 / event.value)}" if event.value else f"#{event.index}"
        case FinalistsCompared():
            return f"final comparison of {len(event.candidate_ids) - 1} with the baseline"
        case Noted():
            return f"{event.level}: {event.text}"
        case NodeProposed():
            return f"node {event.index} from {event.parent}: {event.instruction or event.role}"
        case NodeJudged():
            return f"node {event.index} {event.status}{f': {event.reason}' if event.reason else ''}"
        case NodeTuned():
            best = f", best {factor_text(1 / event.best_value)}" if event.best_value else ""
            return f"node {event.index} tuned: {event.evaluated_count} evaluated{best}"
        case ActionChosen():
            return f"{event.action} node {event.node}: {event.reason}"
        case RunFinished():
            return f"over: {event.reason}, after {event.spent_s:.0f} s"
    return event.kind.replace("_", " ")
