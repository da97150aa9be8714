"""A batch as it goes: its table and the run under way on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kernelwright.batch.run import BatchListener
from kernelwright.batch.view import BatchView, MemberView
from kernelwright.cli.output.progress import PlainView, describe, status_line
from kernelwright.cli.words import is_quiet
from kernelwright.evaluate.words import interval_text
from kernelwright.insights.forecast import duration_text, percent_text
from kernelwright.store.event import Event
from kernelwright.tuning.listener import Progress

HEADINGS = ("problem", "share", "state", "time", "speedup", "still expected")


def open_batch_progress(*, is_json: bool) -> BatchListener:
    """The view that fits, on standard error."""
    if is_json or is_quiet() or sys.stderr is None:
        return BatchListener()
    return _Live() if sys.stderr.isatty() else _Plain()


def member_row(member: MemberView) -> tuple[str, ...]:
    """A problem's line of the table."""
    gain = interval_text(member.speedup) if member.speedup is not None else "-"
    return (
        member.name,
        percent_text(member.share),
        member.status,
        duration_text(member.spent_s),
        gain,
        percent_text(member.still) if member.status in ("waiting", "open") else "-",
    )


def slice_words(view: BatchView, name: str, seconds: float) -> str:
    """Whose turn it is, and why."""
    worth = percent_text(view[name].worth)
    return f"{name}: {duration_text(seconds)}, expected to save {worth} of all time; {duration_text(view.left_s)} left"


class _Plain(PlainView, BatchListener):
    """Lines for logs and pipes."""

    def on_slice(self, view: BatchView, name: str, seconds: float) -> None:
        """Say whose turn it is."""
        _write(slice_words(view, name, seconds))

    def on_slice_end(self, view: BatchView, name: str) -> None:
        """Say what came of it."""
        member = view[name]
        told = ", ".join(f"{head} {text}" for head, text in zip(HEADINGS[2:], member_row(member)[2:], strict=True))
        _write(f"{name}: {f'failed: {member.failure}' if member.failure else told}")


class _Live(BatchListener):
    """The table, and below it where the run under way stands."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, transient=True, refresh_per_second=4)
        self._view: BatchView | None = None
        self._names: list[str] = []
        self._status = ""

    def on_slice(self, view: BatchView, name: str, seconds: float) -> None:
        """Mark whose turn it is."""
        self._view, self._status = view, ""
        self._names.append(name)
        self._say(lambda: self._console.print(slice_words(view, name, seconds), highlight=False, markup=False))

    def on_slice_end(self, view: BatchView, name: str) -> None:
        """Show what came of it."""
        self._view, failure = view, view[name].failure
        self._names.remove(name)
        if failure:
            self._say(lambda: self._console.print(f"{name} failed: {failure}", highlight=False, markup=False))
        self._show()

    def on_event(self, event: Event, progress: Progress) -> None:
        """Print what is worth a line."""
        if text := describe(event, progress):
            self._say(lambda: self._console.print(text, highlight=False, markup=False))
        self.on_progress(progress)

    def on_progress(self, progress: Progress) -> None:
        """Tell where the run stands."""
        self._status = status_line(progress)
        self._show()

    def _show(self) -> None:
        self._say(lambda: self._live.update(self._table()))

    @staticmethod
    def _say(action: Callable[[], object]) -> None:
        try:
            action()
        except OSError:  # its reader is gone, and runs are worth more than their progress
            sys.stderr = None

    def _table(self) -> RenderableType:
        if self._view is None:
            return ""
        table = Table(*HEADINGS, box=SIMPLE_HEAD)
        for member in self._view.members:
            table.add_row(*map(Text, member_row(member)), style="bold" if member.name in self._names else "")
        return Group(table, Text(f"{', '.join(self._names)}: {self._status}" if self._names else ""))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def _write(text: str) -> None:
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:  # as above
        sys.stderr = None
