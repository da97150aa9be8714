"""Lines and events: exact both ways, whatever is in them."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.errors import StoreError
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import STAGES, Cost, Failed, Measurement, OutputError, Passed
from kernelwright.store.codec import RecordDamaged, decode, encode, verify
from kernelwright.store.event import Evaluated, Event, FinalistsCompared, Noted, RunStarted
from kernelwright.testing.sample_runs import sample_events

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
number = st.floats(allow_nan=False, allow_infinity=False)
value = st.booleans() | st.integers() | number | text
config = st.dictionaries(text, value, max_size=4)
measurement = st.builds(
    Measurement,
    text,
    st.lists(number, min_size=1, max_size=4).map(tuple),
    text,
    st.none() | number,
    st.integers(0, 9),
    st.booleans(),
)
passed = st.builds(
    Passed,
    st.lists(measurement, max_size=3).map(tuple),
    st.lists(st.builds(OutputError, text, number, number), max_size=2).map(tuple),
    st.dictionaries(text, st.dictionaries(text, number, max_size=2), max_size=2),
)
failed = st.builds(Failed, st.sampled_from(STAGES), text, text, text, st.none() | text)
cost = st.builds(Cost, number, number, number, number, number, st.booleans())
evaluated = st.builds(
    Evaluated,
    st.integers(0, 10**9),
    text,
    config,
    passed | failed,
    st.none() | number,
    cost,
    number,
    st.sampled_from(["measured", "known", "replayed"]),
)


def exactly(content: object) -> str:
    """Distinguishes 1, 1.0 and True, 0.0 and -0.0, lists and tuples."""
    return repr(content)


# No deadline: the first example pays for building the decoders, on a machine that may be busy.
@settings(deadline=None)
@given(evaluated, st.integers(0, 10**12))
def test_any_evaluation_comes_back_exactly(event: Event, index: int) -> None:
    line = encode(event, index)
    assert line.count(b"\n") == 1
    record = verify(line)
    assert record.index == index
    assert exactly(decode(record)) == exactly(event)


@settings(deadline=None)
@given(st.recursive(st.none() | value, lambda deeper: st.lists(deeper) | st.dictionaries(text, deeper), max_leaves=8))
def test_settings_of_any_shape_come_back_exactly(content: Any) -> None:
    table = {"x": content}
    event = RunStarted("r", "t", "v", "p", "i", table, table, {"a": "b"}, table, {"w": {"n": 1.0}})
    assert exactly(decode(verify(encode(event, 0)))) == exactly(event)


def test_line_is_plain_json_with_a_checksum_that_anyone_can_check() -> None:
    for index, event in enumerate(sample_events(evaluations=20)):
        line = encode(event, index)
        content = json.loads(line)
        assert list(content)[:3] == ["crc", "i", "kind"]
        assert (content["i"], content["kind"]) == (index, event.kind)
        rest = line.rstrip(b"\n").replace(f'"crc":"{content["crc"]}",'.encode(), b"", 1)
        assert int(content["crc"], 16) == zlib.crc32(rest)


def test_config_and_numpy_numbers_are_recorded_as_plain_values() -> None:
    outcome = Passed((Measurement("w", tuple(np.array([1.5, 2.5])), "t", warmup_count=int(np.int64(3))),))
    config: Any = {"B": np.int64(8), "U": np.bool_(True)}
    event = Evaluated(int(np.int64(4)), "c", Config(config), outcome, np.float64(0.5), Cost(), 1.0)
    found = decode(verify(encode(event, 1)))
    assert isinstance(found, Evaluated)
    assert exactly(found.config) == "{'B': 8, 'U': True}"
    assert exactly(found.value) == "0.5"
    single = Noted("info", "x")
    assert decode(verify(encode(single, 2))) == single


def test_stray_bytes_in_a_log_do_not_stop_a_run() -> None:
    log = b"error: \xff\xfe caf\xc3\xa9".decode("utf-8", "surrogateescape")
    event = Evaluated(0, "c", {}, Failed("build", "compile-error", "m", log=log), None, Cost(), 0.0)
    found = decode(verify(encode(event, 0)))
    assert isinstance(found, Evaluated)
    assert isinstance(found.outcome, Failed)
    assert found.outcome.log == "error: ?? café"


@pytest.mark.parametrize(
    "event",
    [
        Noted("info", 7),  # type: ignore[arg-type]
        FinalistsCompared(("a",), ({},), {"w": ((float("nan"),),)}),
        Evaluated(0, "c", {"B": object()}, Failed("build", "r", "m"), None, Cost(), 0.0),  # type: ignore[dict-item]
        Evaluated(0, "c", {"B": None}, Failed("build", "r", "m"), None, Cost(), 0.0),  # type: ignore[dict-item]
        Evaluated(0, "c", {}, Failed("compile", "r", "m"), None, Cost(), 0.0),  # type: ignore[arg-type]
    ],
)
def test_event_that_could_not_come_back_is_refused(event: Event) -> None:
    with pytest.raises(StoreError, match=event.kind) as raised:
        encode(event, 0)
    assert raised.value.hint


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"null",
        b"\x00" * 40,
        b'{"crc":"00000000","i":0}',
        b'{"i":0,"kind":"noted","level":"info","text":""}',
    ],
)
def test_anything_else_is_not_a_record(line: bytes) -> None:
    with pytest.raises(RecordDamaged):
        verify(line)


def test_reading_the_store_package_loads_pydantic_only_when_a_run_is_read() -> None:
    script = "import sys, kernelwright.store.run_folder, kernelwright.store.view; print('pydantic' in sys.modules)"
    source = str(Path(__file__).parents[2] / "src")
    child = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": source}
    )
    assert child.stdout == "False\n"
