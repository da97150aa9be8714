"""What is left to record when a person stops a run."""

from __future__ import annotations

from collections.abc import Sequence

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
