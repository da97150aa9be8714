"""The promises of `RunStore`, as tests that every store is held to.

```
class TestMyStore(RunStoreContract):
    @pytest.fixture
    def place(self, tmp_path): return MyPlace(tmp_path)
```
"""

from __future__ import annotations

import math
import threading
import zlib
from typing import TYPE_CHECKING, Protocol

import pytest

from kernelwright.errors import StoreError
from kernelwright.problem.outcome import Cost, Failed, Measurement, Passed
from kernelwright.store.codec import encode
from kernelwright.store.event import FORMAT, Evaluated, Noted, SessionStarted
from kernelwright.testing.sample_runs import sample_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelwright.store.base import RunStore
    from kernelwright.store.event import Event


class StoreLocation(Protocol):
    """Where a store keeps its bytes, under the control of a test."""

    def writer(self) -> RunStore:
        """The store opened for appending, after the last writer has gone without a word."""
        ...

    def reader(self) -> RunStore:
        """The store as another process sees it."""
        ...

    def content(self) -> bytes:
        """The bytes of the log."""
        ...

    def replace(self, content: bytes) -> None:
        """Make `content` the bytes of the log, as a crash or a bad disk would; the writer is gone."""
        ...


class RunStoreContract:
    """Append, read, survive, complain."""

    @pytest.fixture
    def place(self) -> Iterator[StoreLocation]:
        """Where the store under test lives; each implementation gives its own."""
        raise NotImplementedError

    def test_new_store_is_empty(self, place: StoreLocation) -> None:
        """Nothing happened yet."""
        place.writer()
        assert list(place.reader().read()) == []

    def test_every_kind_of_event_comes_back_as_it_was_in_order(self, place: StoreLocation) -> None:
        """What was appended one by one and in batches is read as one sequence of equal events."""
        events = sample_events(evaluations=40)
        store = place.writer()
        for event in events[:5]:
            store.append([event])
        store.append(events[5:])
        assert list(store.read()) == events
        assert list(place.reader().read()) == events
        assert {event.kind for event in events} >= {"run_started", "finalists_compared", "run_finished"}

    def test_reading_twice_gives_the_same_and_changes_nothing(self, place: StoreLocation) -> None:
        """Reading is no event."""
        place.writer().append(_notes(3))
        before = place.content()
        assert list(place.reader().read()) == list(place.reader().read()) == _notes(3)
        assert place.content() == before

    def test_reading_can_begin_anywhere(self, place: StoreLocation) -> None:
        """`from_index` counts events from 0; beyond the end there is nothing."""
        place.writer().append(_notes(4))
        for index in range(6):
            assert list(place.reader().read(index)) == _notes(4)[index:]

    def test_acknowledged_events_survive_a_writer_that_just_vanishes(self, place: StoreLocation) -> None:
        """And the next writer goes on after them."""
        for count in range(4):
            store = place.writer()
            assert list(store.read()) == _notes(count)
            store.append(_notes(count + 1)[count:])
        assert list(place.reader().read()) == _notes(4)

    def test_appending_nothing_changes_nothing(self, place: StoreLocation) -> None:
        """An empty batch is fine."""
        store = place.writer()
        store.append([])
        assert place.content() == b""
        store.append(_notes(1))
        assert list(place.reader().read()) == _notes(1)

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_number_that_is_not_finite_is_refused_with_its_whole_batch(
        self, place: StoreLocation, number: float
    ) -> None:
        """And the store takes the next batch."""
        store = place.writer()
        store.append(_notes(1))
        with pytest.raises(StoreError, match="evaluated"):
            store.append([Noted("info", "note 1"), _evaluated(number)])
        store.append(_notes(2)[1:])
        assert list(place.reader().read()) == _notes(2)

    def test_event_that_could_not_be_read_again_is_refused(self, place: StoreLocation) -> None:
        """A wrong type is found by the one who writes it, not by the one who resumes."""
        store = place.writer()
        with pytest.raises(StoreError, match="level"):
            store.append([Noted("loud", "x")])  # type: ignore[arg-type]
        assert list(place.reader().read()) == []

    @pytest.mark.parametrize("tail", ["cut", "zeros", "garbage", "cut then zeros", "bad last line"])
    def test_torn_last_record_is_not_an_event(self, place: StoreLocation, tail: str) -> None:
        """Whatever a crash leaves of a record that nobody was promised."""
        place.writer().append(_notes(3))
        good = place.content()
        whole = encode(_evaluated(1.0), 3)
        place.replace(
            good
            + {
                "cut": whole[:-20],
                "zeros": bytes(5000),
                "garbage": b"\xff\x00{[",
                "cut then zeros": whole[:60] + bytes(4096),
                "bad last line": whole[:60] + b"0" + whole[61:],
            }[tail]
        )
        before = place.content()
        assert list(place.reader().read()) == _notes(3)
        assert place.content() == before
        place.writer().append(_notes(5)[3:])
        assert list(place.reader().read()) == _notes(5)

    def test_record_cut_at_any_byte_is_not_an_event(self, place: StoreLocation) -> None:
        """Every length that a write may have reached, in a batch as well."""
        place.writer().append([*_notes(2), _evaluated(0.5)])
        whole = place.content()
        last = whole.rindex(b"\n", 0, -1) + 1
        for end in range(last, len(whole)):
            place.replace(whole[:end])
            assert list(place.reader().read()) == _notes(2)
        for end in range(last, len(whole), 37):
            place.replace(whole[:end])
            place.writer().append(_notes(3)[2:])
            assert list(place.reader().read()) == _notes(3)

    def test_damage_before_the_last_record_is_an_error_that_names_the_line(self, place: StoreLocation) -> None:
        """Never a shorter run. Every byte of the middle line counts, its newline too."""
        place.writer().append(_notes(3))
        whole = place.content()
        first, second, _ = whole.splitlines(keepends=True)
        for offset in range(len(first), len(first) + len(second)):
            place.replace(whole[:offset] + bytes([whole[offset] ^ 0x15]) + whole[offset + 1 :])
            with pytest.raises(StoreError, match=":2: ") as raised:
                list(place.reader().read())
            assert raised.value.hint
        with pytest.raises(StoreError, match=":2: "):
            place.writer().append(_notes(1))

    def test_two_records_on_one_line_are_damage_and_not_a_torn_tail(self, place: StoreLocation) -> None:
        """A lost newline before the last record must not take two acknowledged events away."""
        place.writer().append(_notes(3))
        lines = place.content().splitlines(keepends=True)
        for tail in (b"\n", b""):
            place.replace(lines[0] + lines[1].rstrip(b"\n") + b" " + lines[2].rstrip(b"\n") + tail)
            with pytest.raises(StoreError, match=":2: "):
                list(place.reader().read())

    def test_missing_or_doubled_record_is_an_error(self, place: StoreLocation) -> None:
        """The checksums hold, the count does not."""
        place.writer().append(_notes(4))
        lines = place.content().splitlines(keepends=True)
        for wrong in ([0, 1, 3], [0, 1, 1, 2, 3], [1, 2, 3], [0, 2, 1, 3]):
            place.replace(b"".join(lines[index] for index in wrong))
            with pytest.raises(StoreError, match="was expected"):
                list(place.reader().read())

    def test_newer_format_is_refused(self, place: StoreLocation) -> None:
        """Whether the run began in it or a newer version took the run up."""
        place.writer().append([Noted("info", "x"), SessionStarted(1.0, 2), Noted("info", "y")])
        lines = place.content().splitlines(keepends=True)
        old, new = b'"format":%d' % FORMAT, b'"format":%d' % (FORMAT + 1)
        for index in (0, 1):
            changed = [_resealed(line.replace(old, new)) if k == index else line for k, line in enumerate(lines)]
            assert changed != lines
            place.replace(b"".join(changed))
            with pytest.raises(StoreError, match="newer format"):
                list(place.reader().read())
            with pytest.raises(StoreError, match="newer format"):
                place.writer().append(_notes(1))

    def test_newer_format_is_recognised_even_if_it_is_checked_or_written_otherwise(self, place: StoreLocation) -> None:
        """The complaint is the format, not damage."""
        place.writer().append(_notes(2))
        first, second = place.content().splitlines(keepends=True)
        newer = first.replace(b'"format":%d' % FORMAT, b'"format":%d' % (FORMAT + 1))
        for line in (newer, b'{"format":%d,"whatever":true}\n' % (FORMAT + 1)):
            place.replace(line + second)
            with pytest.raises(StoreError, match="newer format"):
                list(place.reader().read())

    def test_additions_of_a_newer_minor_version_are_tolerated(self, place: StoreLocation) -> None:
        """Fields and kinds that this version does not know are left out."""
        place.writer().append(_notes(3))
        lines = place.content().splitlines(keepends=True)
        lines[1] = _resealed(lines[1].replace(b'"level"', b'"colour":{"a":[1,null]},"level"'))
        place.replace(b"".join(lines))
        assert list(place.reader().read()) == _notes(3)
        lines[1] = _resealed(lines[1].replace(b'"noted"', b'"admired"'))
        place.replace(b"".join(lines))
        assert list(place.reader().read()) == [_notes(3)[0], _notes(3)[2]]
        place.writer().append(_notes(4)[3:])
        assert list(place.reader().read(2)) == _notes(4)[2:]

    def test_reader_beside_a_writer_sees_a_growing_prefix(self, place: StoreLocation) -> None:
        """Never an error, never a gap, never fewer than before."""
        store, expected = place.writer(), _notes(300)
        seen: list[list[Event]] = []
        is_done = threading.Event()

        def read_on() -> None:
            while not is_done.is_set():
                seen.append(list(place.reader().read()))

        reader = threading.Thread(target=read_on)
        reader.start()
        try:
            for event in expected:
                store.append([event])
        finally:
            is_done.set()
            reader.join()
        assert seen
        assert all(events == expected[: len(events)] for events in seen)
        assert [len(events) for events in seen] == sorted(len(events) for events in seen)
        assert list(place.reader().read()) == expected


def _notes(count: int) -> list[Event]:
    return [Noted("info", f"note {index}: 世界 \u2028 \x00 \r\n \"{{'") for index in range(count)]


def _evaluated(value: float) -> Evaluated:
    samples = (value,) if math.isfinite(value) else (1.0, value)
    outcome: Passed | Failed = Passed((Measurement("n=4", samples, "clock"),), resources={"k": {"registers": 8}})
    return Evaluated(0, "0" * 16, {"B": 1, "F": 1.0, "S": "a", "T": True}, outcome, 1.0, Cost(build_s=1.0), 2.0)


def _resealed(line: bytes) -> bytes:
    """A line whose content was changed by one who knows how to count the checksum."""
    body = b"{" + line.rstrip(b"\n").split(b",", 1)[1]
    return b'{"crc":"%08x",' % zlib.crc32(body) + body[1:] + b"\n"
