"""A stop at any moment of a record being written leaves a record that is whole and has an end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelwright.store.event import Event, Noted, RunFinished
from kernelwright.store.log import EventLog
from kernelwright.tuning.interruption import closing_events

END = RunFinished("interrupted", 1.0)
BEGIN: list[Event] = [Noted("info", "begin")]


def interrupt_the_next_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdatasync
    coming = [KeyboardInterrupt()]

    def sync(descriptor: int) -> None:
        real(descriptor)
        if coming:
            raise coming.pop()

    monkeypatch.setattr(os, "fdatasync", sync)


def cut(log: EventLog, events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of `events` can be read from the disk, and the log has not said so."""
    before = len(list(log.read()))
    interrupt_the_next_sync(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        log.append(events)
    assert len(list(log.read())) == before + len(events)


def test_before_the_first_event_there_is_nothing_to_close(tmp_path: Path) -> None:
    with EventLog(tmp_path / "log") as log:
        assert closing_events(log, (), END, is_finished=False) is None
        assert closing_events(log, BEGIN, END, is_finished=False) is None, "asked for, not begun"


def test_a_stop_while_the_first_events_are_written_records_them_and_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventLog(tmp_path / "log") as log:
        cut(log, BEGIN, monkeypatch)
        events = closing_events(log, BEGIN, END, is_finished=False)
        assert events is not None
        log.append(events)
        assert list(log.read()) == [*BEGIN, END]


def test_a_stop_while_others_write_takes_theirs_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EventLog(tmp_path / "log") as log:
        log.append(BEGIN)
        cut(log, [Noted("info", "of the search loop, which tells what it has lost")], monkeypatch)
        events = closing_events(log, (), END, is_finished=False)
        assert events is not None
        log.append(events)
        assert list(log.read()) == [*BEGIN, END]


@pytest.mark.parametrize("is_cut", [True, False])
def test_there_is_one_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_cut: bool) -> None:
    last: list[Event] = [Noted("info", "late"), RunFinished("budget", 2.0)]
    with EventLog(tmp_path / "log") as log:
        log.append(BEGIN)
        if is_cut:
            cut(log, last, monkeypatch)
        else:
            log.append(last)
        events = closing_events(log, last, END, is_finished=False)
        assert events is not None
        log.append(events)
        assert list(log.read()) == [*BEGIN, *last]
        assert closing_events(log, (), END, is_finished=True) == ()
