"""Inputs that stay on the device: what is kept is what the file says, and what a kernel changed is always seen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.backend.base import Artifact, DeviceReading, PlanStep
from kernelwright.evaluate.data.layout import GUARD_BYTES, GUARD_PATTERN
from kernelwright.evaluate.device.arena import Arena, BufferSpec, Job
from kernelwright.evaluate.device.conditions import Readings, summarise
from kernelwright.evaluate.device.input_store import InputStore
from kernelwright.testing.memory_session import MemorySession

COUNT = 64
WHOLE = 2 * GUARD_BYTES + COUNT
STEP = PlanStep("kernel", (1, 1, 1), (1, 1, 1), 0, ())
JOB = Job(
    "w",
    cast("Artifact", None),
    (STEP,),
    (
        BufferSpec("x", "input", COUNT, b"\xff"),
        BufferSpec("z", "inout", COUNT, b"\xff"),
        BufferSpec("y", "output", COUNT, b"\xff"),
    ),
)


@pytest.fixture
def files(tmp_path):
    made = {name: tmp_path / f"{name}.bin" for name in ("x", "z")}
    for number, path in enumerate(made.values()):
        path.write_bytes(bytes([number + 1] * COUNT))
    return made


def launched(session, arena, kernel):
    session.time(arena.launches(kernel, 0, JOB))


def harm(place):
    """A kernel that changes one byte of the input, counted from its first; outside is its guard."""

    def kernel(seen):
        seen.memory["x"][GUARD_BYTES + place] ^= 1
        return 1.0

    return kernel


@pytest.mark.parametrize("place", [0, COUNT - 1, -1, COUNT, -GUARD_BYTES, COUNT + GUARD_BYTES - 1])
def test_input_that_was_changed_is_written_and_comes_back_whole_for_the_next(files, tmp_path, place):
    session = MemorySession()
    store = InputStore(session, limit_bytes=10 * WHOLE)
    with Arena(session, [JOB], [files], store=store) as arena:
        launched(session, arena, harm(place))
        assert arena.write(0, tmp_path / "out", JOB) == frozenset()
    damaged = np.fromfile(tmp_path / "out" / "x.bin", np.uint8)
    with Arena(session, [JOB], [files], store=store) as arena:
        assert arena.write(0, tmp_path / "out", JOB) == {"x"}
        assert not (tmp_path / "out" / "x.bin").exists()
        launched(session, arena, lambda seen: float(seen.arrays["x"].tobytes() == bytes([1] * COUNT)))
    with Arena(session, [JOB], [files]) as arena:
        assert arena.write(0, tmp_path / "out", JOB) == frozenset()
    right = np.fromfile(tmp_path / "out" / "x.bin", np.uint8)
    assert np.flatnonzero(damaged != right).tolist() == [GUARD_BYTES + place]


def test_in_out_arguments_are_restored_from_what_is_kept_and_always_written(files, tmp_path):
    session = MemorySession()
    store = InputStore(session, limit_bytes=10 * WHOLE)

    def overwrite(seen):
        seen.arrays["z"][:] = 9
        return 1.0

    with Arena(session, [JOB], [files], store=store) as arena:
        launched(session, arena, overwrite)
        assert arena.write(0, tmp_path / "out", JOB) == {"x"}
        arena.restore_inputs(0)
        arena.write(0, tmp_path / "out2", JOB)
    middle = slice(GUARD_BYTES, GUARD_BYTES + COUNT)
    assert set(np.fromfile(tmp_path / "out" / "z.bin", np.uint8)[middle]) == {9}
    assert set(np.fromfile(tmp_path / "out2" / "z.bin", np.uint8)[middle]) == {2}


def test_without_a_store_everything_is_written(files, tmp_path):
    session = MemorySession()
    with Arena(session, [JOB], [files]) as arena:
        assert not arena.has_kept
        assert arena.write(0, tmp_path / "out", JOB) == frozenset()
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"x", "y", "z"}
    assert not session.living


def test_device_that_does_not_tell_its_memory_keeps_nothing(files, tmp_path):
    store = InputStore(MemorySession())
    assert store.get(files["x"], WHOLE) is None
    assert store.used_bytes == 0


def test_kept_buffer_holds_the_guards_and_the_file(files):
    store = InputStore(MemorySession(), limit_bytes=WHOLE)
    data = store.get(files["x"], WHOLE).data
    guard = np.resize(np.frombuffer(GUARD_PATTERN, np.uint8), WHOLE)
    assert (data[:GUARD_BYTES] == guard[:GUARD_BYTES]).all()
    assert (data[GUARD_BYTES:-GUARD_BYTES] == 1).all()
    assert (data[-GUARD_BYTES:] == guard[-GUARD_BYTES:]).all()


def test_file_that_was_replaced_is_read_again(files):
    store = InputStore(MemorySession(), limit_bytes=10 * WHOLE)
    first = store.get(files["x"], WHOLE)
    files["x"].unlink()
    files["x"].write_bytes(bytes([7] * COUNT))
    os.utime(files["x"], ns=(1, 1))
    second = store.get(files["x"], WHOLE)
    assert first is not second
    assert second.data[GUARD_BYTES] == 7


@given(
    limit=st.integers(0, 6),
    rounds=st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=12),
)
def test_store_keeps_to_its_limit_and_never_takes_back_what_the_round_uses(tmp_path_factory, limit, rounds):
    folder = tmp_path_factory.mktemp("files")
    paths: list[Path] = [folder / str(number) for number in range(6)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number] * COUNT))
    session = MemorySession()
    store = InputStore(session, limit_bytes=limit * WHOLE)
    for wanted in rounds:
        store.begin()
        given_out = {}
        for number in wanted:
            buffer = store.get(paths[number], WHOLE)
            if buffer is None:
                assert len(set(given_out)) == limit
                continue
            given_out[number] = buffer
        assert store.used_bytes <= limit * WHOLE
        assert store.used_bytes == WHOLE * len(session.living)
        for number, buffer in given_out.items():
            assert buffer in session.living
            assert buffer.data[GUARD_BYTES] == number
    store.clear()
    assert not session.living


# ---- readings ----


def test_readings_are_taken_at_their_interval_and_say_the_worst():
    now = [0.0]
    told = iter(
        [
            DeviceReading(1900.0, 2600.0, 50.0, 300.0),
            DeviceReading(1500.0, None, 61.0, 500.0, ("power cap",)),
            DeviceReading(1800.0, 2600.0, 60.0, None, ("power cap", "temperature (hardware)")),
        ]
    )
    readings = Readings(lambda: next(told), now=lambda: now[0])
    for time_s in (0.0, 0.001, 0.03, 0.04, 0.06):
        now[0] = time_s
        readings.take()
    found = readings.conditions
    assert found.reading_count == 3
    assert (found.clock_mhz_min, found.clock_mhz_median) == (1500.0, 1800.0)
    assert (found.temperature_c_max, found.power_w_median) == (61.0, 400.0)
    assert found.throttled_by == ("power cap", "temperature (hardware)")


def test_device_that_tells_nothing_is_asked_once():
    asked = []
    readings = Readings(lambda: asked.append(1))
    for _ in range(5):
        readings.take()
    assert readings.conditions is None
    assert len(asked) == 1
    assert summarise([]) is None
