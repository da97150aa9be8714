"""Live progress on a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from kernelwright.cli.words import is_quiet
from kernelwright.insights.forecast import duration_text, percent_text
from kernelwright.insights.verdict_words import is_caveat
from kernelwright.problem.outcome import NO_TIME, Failed, Passed
from kernelwright.store.event import (
    ActionChosen,
    BaselineMeasured,
    DispatchProbed,
    Evaluated,
    Event,
    FinalistsCompared,
    MemoryRecalled,
    NodeJudged,
    NodeProposed,
    NodeTuned,
    Noted,
    RunFinished,
    TemplateProven,
)
from kernelwright.tuning.listener import Progress, RunListener

PLAIN_INTERVAL_S = 5.0
"""Seconds between plain progress lines; gains are told at once."""

_PHASES = {
    "prepare": "reading the problem, looking for devices",
    "baseline": "checking what the baseline computes, then timing it",
    "search": "searching",
    "expand": "looking for another structure to try",
    "compare": "comparing the fastest with the baseline, in turns",
    "done": "done",
}


class _ProgressView(RunListener, Protocol):
    """A listener that owns a part of the screen while it is open."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def open_progress(*, is_json: bool) -> _ProgressView:
    """The view that fits: nothing, a live line, or plain lines. All of them write to standard error."""
    if is_json or is_quiet() or sys.stderr is None:  # None: it was closed before we began
        return _SilentView()
    return _ForgivingView(_LiveView() if sys.stderr.isatty() else PlainView())


def describe(event: Event, progress: Progress) -> str | None:
    """One line for an event worth telling, or None; what begins now says how much time is left."""
    match event:
        case BaselineMeasured(outcome=Passed(measurements=measurements)):
            times = ", ".join(
                f"{each.workload} {sorted(each.samples_ms)[len(each.samples_ms) // 2]:.3f} ms" for each in measurements
            )
            return f"baseline: {times}"
        case FinalistsCompared():
            count = len(event.candidate_ids) - 1
            late = sum(NO_TIME in why for why in event.rejected.values())
            left_out = {"rejected": len(event.rejected) - late, "without time to be confirmed": late}
            told = "".join(f", {number} {why}" for why, number in left_out.items() if number)
            finalists = "one finalist" if count == 1 else f"{count} finalists"
            return f"compared {finalists} with the baseline{told}"
        case DispatchProbed():
            count = len(event.candidate_ids) - 1
            return f"compared {count} configs with the baseline on {len(event.samples_ms)} shapes"
        case Noted():
            return None if is_caveat(event.text) else f"{event.level}: {event.text}"  # the result has it
        case MemoryRecalled():
            count = len(event.lessons)
            lessons = "1 lesson" if count == 1 else f"{count} lessons"
            return f"begins with {lessons} of earlier runs, of {event.library} (--no-memory leaves them out)"
        case TemplateProven():
            return _proof_line(event)
        case NodeProposed() | NodeJudged() | NodeTuned():
            return _node_line(event) if event.index > 0 else None  # 0 is the baseline
        case ActionChosen():
            return f"{_action_words(event)}{_left(progress)}"
    return None


def _action_words(event: ActionChosen) -> str:
    """What a policy has decided; its reason, with chances and forecasts, is on the page."""
    node = f"node {event.node}" if event.node else "the baseline"
    match event.action:
        case "expand":
            return f"trying {event.idea or 'a new idea'} on {node}"
        case "tune":
            return f"searching the parameters of {node}"
        case "lift":
            return f"making parameters of the numbers in {node}"
    return f"repairing {node}"


def _left(progress: Progress) -> str:
    left_s = time_left_s(progress, 0.0)
    return "" if left_s is None else f", {duration_text(left_s)} left"


def _proof_line(event: TemplateProven) -> str:
    """How a lifted template compares with its origin, and what its points showed."""
    how = {
        "bytes": "computes what it was made from, byte for byte",
        "tolerance": "agrees with what it was made from",
    }
    points = event.corner_count + event.random_count
    checked = f"{points} other settings of its parameters checked"
    if event.is_deferred:
        checked = "other settings of its parameters are checked before they are searched"
    told = [how.get(event.reproduces, "agrees with the reference"), checked]
    return f"node {event.index}: {'; '.join([*told, *event.findings])}"


def _node_line(event: NodeProposed | NodeJudged | NodeTuned) -> str:
    """What happened to a node of the tree."""
    match event:
        case NodeProposed():
            predicted = f", predicted {event.predicted_gain:.2f}x" if event.predicted_gain is not None else ""
            origin = f"node {event.parent}" if event.parent else "the baseline"
            return f"node {event.index}: {event.tactic or event.role} on {origin}{predicted}: {event.instruction}"
        case NodeJudged(status="working", value=value):
            return f"node {event.index}: works" + (f", about {1 / value:.2f}x at its default" if value else "")
        case NodeJudged():
            message = event.message.partition("\n")[0]
            return f"node {event.index}: {event.status} at {event.stage} ({event.reason}): {message}"
    if not event.best_value:
        return f"node {event.index}: none of {event.evaluated_count} configurations passed"
    best = f"{1 / event.best_value:.2f}x so far, to be confirmed"
    return f"node {event.index}: {best}, after {_configurations(event.evaluated_count)}"


def _configurations(count: int) -> str:
    return "1 configuration" if count == 1 else f"{count} configurations"


def status_line(progress: Progress) -> str:
    """Where the run stands, in words: what is happening, best so far, failures, rate, time left."""
    if progress.phase == "expand":
        return f"{progress.doing or _PHASES['expand']}{_left(progress)}"
    if progress.phase != "search":
        left = _left(progress) if progress.phase == "compare" else ""
        return f"{progress.step or _PHASES.get(progress.phase, progress.phase)}{left}"
    rate = progress.evaluated_count / progress.spent_s if progress.spent_s > 0 else 0.0
    parts = [f"{_configurations(progress.evaluated_count)} tried"]
    if progress.failed_count:
        parts.append(f"{progress.failed_count} failed")
    parts.append(f"{rate:.1f}/s")
    if progress.best_speedup is not None:
        parts.append(f"{progress.best_speedup:.2f}x so far, to be confirmed")
    left_s = time_left_s(progress, rate)
    if left_s is not None:
        parts.append(f"{duration_text(left_s)} left")
    where = progress.doing.partition(":")[0] or "between structures"
    told = f"{where}; in all {', '.join(parts)}" if progress.node_count else ", ".join(parts)
    prospect = _prospect(progress)
    return f"{told}; {prospect}" if prospect else told


def _prospect(progress: Progress) -> str:
    """What going on would bring, in words."""
    expected = progress.expected_gain
    if expected is None or expected.evaluation_count == 0:
        return ""
    duration = duration_text(max(1, progress.expected_gain_s))
    return (
        f"another {duration} would bring about {percent_text(expected.fraction)}, "
        f"at most {percent_text(expected.bound_fraction)}"
    )


def time_left_s(progress: Progress, rate: float) -> float | None:
    """Seconds until the first limit of the budget is reached, as far as one can tell."""
    estimates = []
    if progress.budget_s is not None:
        estimates.append(progress.budget_s - progress.spent_s)
    if progress.budget_evaluations is not None and rate > 0:
        estimates.append((progress.budget_evaluations - progress.evaluated_count) / rate)
    return max(0.0, min(estimates)) if estimates else None


class _SilentView:
    """Shows nothing (`--json`, `--quiet`)."""

    def on_event(self, event: Event, progress: Progress) -> None:
        """Ignore."""

    def on_progress(self, progress: Progress) -> None:
        """Ignore."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


class _ForgivingView:
    """Falls silent when its reader is gone (a closed pipe or terminal): a run is worth more than its progress."""

    def __init__(self, view: _ProgressView) -> None:
        self._view = view
        self._is_heard = True

    def on_event(self, event: Event, progress: Progress) -> None:
        """Pass it on."""
        self._say(lambda: self._view.on_event(event, progress))

    def on_progress(self, progress: Progress) -> None:
        """Pass it on."""
        self._say(lambda: self._view.on_progress(progress))

    def _say(self, action: Callable[[], object]) -> None:
        if self._is_heard:
            try:
                action()
            except OSError:
                self._is_heard = False

    def __enter__(self) -> Self:
        self._say(self._view.__enter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._say(lambda: self._view.__exit__(kind, error, traceback))


class _Course:
    """Which phase a run is in: an opening one is over once another has followed, whatever is still said of it.

    A replay says no phase but the first, and where a spool measures, both its sides open the run.
    """

    def __init__(self) -> None:
        self._reached = 0

    def told(self, progress: Progress, event: Event | None = None) -> Progress | None:
        """The progress to tell of; None: of a phase that is over."""
        if isinstance(event, RunFinished):
            self._reached = 0
            return dataclasses.replace(progress, phase="done")
        place = _OPENING.index(progress.phase) if progress.phase in _OPENING else len(_OPENING)
        if isinstance(event, BaselineMeasured):
            place = len(_OPENING)
        if place < self._reached:
            return None
        self._reached = 0 if progress.phase == "done" else place
        return progress


_OPENING = ("prepare", "baseline")


class PlainView:
    """Lines for logs and pipes: phases, gains, and a status line every few seconds."""

    def __init__(self) -> None:
        self._last_line_s = 0.0
        self._phase = ""
        self._step = ""
        self._last_line = ""
        self._best: float | None = None
        self._course = _Course()

    def on_event(self, event: Event, progress: Progress) -> None:
        """Tell of gains at once, of the rest from time to time."""
        told = self._course.told(progress, event)
        text = describe(event, progress)
        if text and not (isinstance(event, Noted) and event.text == self._step):  # told as it began
            self._print(text)
            if isinstance(event, ActionChosen):
                self._phase = "expand"  # whose own line would say the same
        elif isinstance(event, Evaluated) and self._is_gain(progress):
            self._best = progress.best_speedup
            self._phase = progress.phase
            self._print(status_line(progress))
        elif told is not None:
            self._move(told)

    def on_progress(self, progress: Progress) -> None:
        """A line for every new phase, and one every few seconds."""
        told = self._course.told(progress)
        if told is not None:
            self._move(told)

    def _move(self, progress: Progress) -> None:
        is_new = progress.phase != self._phase or progress.step != self._step
        self._step = progress.step
        if is_new or time.monotonic() - self._last_line_s > PLAIN_INTERVAL_S:
            self._phase = progress.phase
            self._print(status_line(progress))

    def _is_gain(self, progress: Progress) -> bool:
        if progress.best_speedup is None:
            return False
        return self._best is None or progress.best_speedup > self._best * 1.05

    def _print(self, text: str) -> None:
        """Write a line, unless it would say again what the last one said."""
        self._last_line_s = time.monotonic()
        if text == self._last_line:
            return
        self._last_line = text
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


class _LiveView:
    """One live line with a bar, and the telling events above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console = Console(stderr=True)
        self._bar = Bar(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(_PHASES["prepare"], total=None)
        self._failure: str | None = None
        self._course = _Course()

    def on_event(self, event: Event, progress: Progress) -> None:
        """Print what is worth a line, and move the bar."""
        told = self._course.told(progress, event)
        text = describe(event, progress)
        if text:
            self._console.print(text, highlight=False, markup=False)
        if isinstance(event, Evaluated) and isinstance(event.outcome, Failed):
            self._failure = f"{event.outcome.stage}: {event.outcome.reason}"
        if told is not None:
            self._move(told)

    def on_progress(self, progress: Progress) -> None:
        """Move the bar."""
        told = self._course.told(progress)
        if told is not None:
            self._move(told)

    def _move(self, progress: Progress) -> None:
        total, done = _bar_position(progress)
        text = status_line(progress)
        if self._failure and progress.phase == "search":
            text += f"  [last failure {self._failure}]".replace("[", r"\[")
        self._bar.update(self._task, description=text, total=total, completed=done)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _bar_position(progress: Progress) -> tuple[float | None, float]:
    if progress.phase not in ("search", "expand"):
        return None, 0.0
    fractions = []
    if progress.budget_s:
        fractions.append(progress.spent_s / progress.budget_s)
    if progress.budget_evaluations:
        fractions.append(progress.evaluated_count / progress.budget_evaluations)
    return (1.0, min(1.0, max(fractions))) if fractions else (None, 0.0)
