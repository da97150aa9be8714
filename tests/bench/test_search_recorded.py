from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from recordings import A_VALUES, cache_document, t4_document, write_recording

from kernelwright.errors import SpecError
from kernelwright.problem.config import Config
from kernelwright_bench.search.command import read_t4
from kernelwright_bench.search.recordings import load_recorded, select


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(SpecError, match="no recorded space"):
        load_recorded(tmp_path)
    with pytest.raises(SpecError, match="no such file"):
        load_recorded(tmp_path / "absent")


def test_constraints_that_do_not_match_the_recording_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"the constraints give \d+ configs, the recording has \d+"):
        load_recorded(write_recording(tmp_path / "a", condition="A * B <= 4000"))
    with pytest.raises(SpecError, match="are in both"):
        load_recorded(write_recording(tmp_path / "b", drop_count=1))


def test_missing_and_broken_constraints_are_refused(tmp_path: Path) -> None:
    t1 = write_recording(tmp_path) / "toy.json"
    t1.write_text("[1, 2]")
    with pytest.raises(SpecError, match="not a T1 file"):
        load_recorded(tmp_path)
    t1.unlink()
    with pytest.raises(SpecError, match="no constraints for 'toy'"):
        load_recorded(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 torn", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "toy__Sim.npz").write_bytes(content)
    with pytest.raises(SpecError, match="recorded space"):
        load_recorded(tmp_path)


def _change(file: Path, **changes: object) -> None:
    with np.load(file) as arrays:
        content = {name: arrays[name] for name in arrays}
    np.savez(file, **{name: value for name, value in {**content, **changes}.items() if value is not None})


def test_wrong_arrays_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    file = write_recording(tmp_path) / "toy__Sim.npz"
    count = len(np.load(file)["time_ms"])
    for change, message in (
        ({"config_index": None}, "no array 'config_index'"),
        ({"meta": np.array("{")}, "JSONDecodeError"),
        ({"time_ms": np.ones(count - 1)}, f"{count - 1} times"),
        ({"config_index": np.full((count, 2), 200)}, "beyond its parameter's values"),
        ({"time_ms": np.full(count, np.nan)}, "every recorded configuration failed"),
        ({"time_ms": np.zeros(count)}, "not positive"),
        ({"compile_ms": np.full(count, np.inf)}, "not recorded"),
    ):
        write_recording(tmp_path)
        _change(file, **change)
        with pytest.raises(SpecError, match=message):
            load_recorded(file)


def test_what_is_observed_is_what_was_recorded(tmp_path: Path) -> None:
    (recorded,) = load_recorded(write_recording(tmp_path))
    assert recorded.name == "toy__Sim"
    assert recorded.default == Config({"A": 1, "B": 0})
    for config in recorded.space.iterate():
        observation = recorded.observe(config)
        exponent = A_VALUES.index(int(config["A"]))
        if exponent == 1:
            assert observation.value is None
            assert observation.failure == "check:RuntimeFailedConfig"
            assert observation.cost_s == pytest.approx(0.9)
        else:
            smooth = 1 + (exponent - 4.0) ** 2 + 0.004 * (int(config["B"]) - 90.0) ** 2
            assert observation.value == pytest.approx(smooth, abs=0.011)
            assert observation.cost_s == pytest.approx(1.0)
    assert select([recorded], ["Si"]) == [recorded]
    assert select([recorded], ["other"]) == []


def test_a_cache_file_is_a_space_of_exactly_what_it_holds(tmp_path: Path) -> None:
    document = cache_document()
    (tmp_path / "cache.json").write_text(json.dumps(document))
    (recorded,) = load_recorded(tmp_path)
    assert recorded.name == "blur__Some_Device"
    assert [p.values for p in recorded.space.parameters][:2] == [("fast", "exact"), tuple(A_VALUES)]
    assert recorded.space.feasible_count == len(document["cache"])
    for entry in document["cache"].values():
        config = Config({name: entry[name] for name in ("mode", "A", "B")})
        observation = recorded.observe(config)
        failed = isinstance(entry["time"], str)
        assert observation.value == (None if failed else pytest.approx(entry["time"]))
        assert observation.cost_s == pytest.approx(0.75 if failed else 1.0)
        assert config in recorded.space
    absent = [c for c in recorded.space.neighbours(config) if c not in recorded.space]
    assert absent == []
    sampled = recorded.space.sample(50, np.random.default_rng(0))
    assert len(set(sampled)) == 50
    assert recorded.space.nearest({"mode": "fast", "A": 7, "B": 1000}) in recorded.space


def test_an_interrupted_tuners_cache_file_is_read(tmp_path: Path) -> None:
    whole = json.dumps(cache_document())
    for place, text in enumerate((whole[:-2], whole[:-2] + ",\n", whole)):
        file = tmp_path / f"{place}.json"
        file.write_text(text)
        assert load_recorded(file)[0].space.feasible_count == 400


def test_wrong_cache_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "cache.json"
    base = cache_document(20)
    key = next(iter(base["cache"]))
    for document, message in (
        ({**base, "cache": []}, "no 'cache'"),
        ({**base, "cache": {}}, "nothing is recorded"),
        ({**base, "cache": {key: {"mode": "fast"}}}, "lacks a parameter's value"),
        ({**base, "cache": {key: {"mode": "fast", "A": 1, "B": 1, "GFLOP/s": 3.0}}}, "no 'time'"),
        ({**base, "cache": {key: {"mode": "fast", "A": 1, "B": 1, "time": 3.0}}}, "cost was not recorded"),
    ):
        file.write_text(json.dumps(document))
        with pytest.raises(SpecError, match=message):
            load_recorded(file)
    file.write_text('{"tune_params_keys": [oops')
    with pytest.raises(SpecError, match="not a cache file"):
        load_recorded(file)


def test_t4_results_are_a_space_and_the_first_of_repeated_ones_counts(tmp_path: Path) -> None:
    (tmp_path / "blur__Mine.json").write_text(json.dumps(t4_document(300)))
    (recorded,) = load_recorded(tmp_path, read_results=read_t4)
    assert recorded.name == "blur__Mine"
    assert recorded.space.feasible_count == 300
    assert set(np.round(recorded.cost_s, 3)) == {0.75, 1.0}
    assert set(recorded.failures) == {"", "launch:runtime-error"}


def test_t4_files_are_left_alone_without_a_reader_and_t1_files_are_no_recordings(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps(t4_document(20)))
    with pytest.raises(SpecError, match="expected a recorded space"):
        load_recorded(file)
    with pytest.raises(SpecError, match="describes a space and records nothing"):
        load_recorded(write_recording(tmp_path / "a") / "toy.json", read_results=read_t4)


def test_the_same_space_twice_is_refused(tmp_path: Path) -> None:
    folder = write_recording(tmp_path)
    with pytest.raises(SpecError, match="given twice"):
        load_recorded(folder, folder)
