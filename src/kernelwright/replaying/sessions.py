"""The sessions of a recorded run: what each of them recorded, and what was known of every node when it began.

A session that was killed had structures under way. What it had measured of them is known from the next session's first
event, which tells how many evaluations each node had by then; what it had begun beside that came to nothing. So a
replay ends each session where the recorded one ended, and goes on as the recorded one was resumed.

Runs from before that was recorded are repeated as if they had been one session: what resuming added is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.store.event import CUT_SHORT, Event, FinalistsCompared, Noted, RunFinished, SessionStarted

RESUMED_ON = "resumed on "
"""How the note begins that a run was resumed on another device."""


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """One session, or several of before it was recorded what one begins with."""

    events: tuple[Event, ...]
    begin: int
    """Place of its first event among all."""
    evaluated: Mapping[int, int] = field(default_factory=dict)
    """By node that had a log when it began: evaluations in it."""
    left: Mapping[int, int] | None = None
    """The same at its end; None: it is the last one."""
    joined_count: int = 0
    """Later sessions whose beginning is not recorded, and whose events are among these."""

    @property
    def end(self) -> int:
        """Place behind its last event."""
        return self.begin + len(self.events)

    @property
    def is_last(self) -> bool:
        """Whether the run was not resumed after it."""
        return self.left is None

    @property
    def started(self) -> SessionStarted | None:
        """What it began with; None: it was killed before that was recorded."""
        return next((event for event in self.events if isinstance(event, SessionStarted)), None)

    def is_over(self, place: int) -> bool:
        """Whether the session was killed or interrupted at `place`: nothing was decided any more."""
        rest = [event for event in self.events[place - self.begin :] if not isinstance(event, Noted)]
        return not rest or (isinstance(rest[0], RunFinished) and rest[0].reason in CUT_SHORT)


def sessions_of(events: Sequence[Event]) -> tuple[RecordedSession, ...]:
    """The sessions of a run, in order."""
    parts: list[list[Event]] = [[]]
    for event in events:
        if isinstance(event, SessionStarted) and event.evaluated is not None:
            parts.append([])
        parts[-1].append(event)
    known = [_known(part[0]) for part in parts]
    found: list[RecordedSession] = []
    for at, part in enumerate(parts):
        begin = found[-1].end if found else 0
        left = known[at + 1] if at + 1 < len(parts) else None
        joined = sum(isinstance(event, SessionStarted) for event in part) - 1
        found.append(RecordedSession(_of_one_session(part), begin, known[at], left, max(0, joined)))
    return tuple(found)


def _known(first: Event) -> Mapping[int, int]:
    counts = first.evaluated if isinstance(first, SessionStarted) else None
    return {int(index): count for index, count in (counts or {}).items()}


def _of_one_session(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events as one session would have made them: without interruptions and what resuming added."""
    first = next((at for at, event in enumerate(events) if isinstance(event, SessionStarted)), 0)
    last = max((at for at, event in enumerate(events) if isinstance(event, FinalistsCompared)), default=0)
    kept: list[Event] = []
    for at, event in enumerate(events):
        if isinstance(event, SessionStarted) and at != first:
            if kept and isinstance(kept[-1], RunFinished):
                kept.pop()
            continue
        if isinstance(event, Noted) and event.text.startswith(RESUMED_ON):
            continue
        if isinstance(event, FinalistsCompared) and at != last:
            continue  # a session that was killed in its final comparisons; the next one has made them again
        kept.append(event)
    return tuple(kept)
