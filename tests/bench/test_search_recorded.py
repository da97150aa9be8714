from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import A_VALUES, cache_document, t4_document, write_recording

from kernelwright.errors import SpecError
from kernelwright.problem.config import Config
from kernelwright_bench.search.command import read_t4
from kernelwright_bench.search.objective import parse_objectives
from kernelwright_bench.search.recordings import load_recorded, select
from kernelwright_bench.search.repeats import Strategy, run_space


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
        ({**base, "cache": {key: {"mode": "fast", "A": 1, "B": 1, "GFLOP/s": 3.0}}}, "no number 'time'"),
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


def compress(file: Path) -> Path:
    """The file with gzip's ending and content, as the community's hub has it."""
    packed = file.with_name(file.name + ".gz")
    packed.write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    return packed


def hub_t4(count: int) -> dict[str, Any]:
    """Results as the hub has them: the unit's spelling, no device, no benchmark times."""
    results = t4_document(count)["results"][:-1]  # the last repeats the first
    for result in results:
        del result["times"]["benchmark"]
    return {"metadata": {"timeunit": "miliseconds"}, "results": results}


def test_the_hubs_folder_is_read_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "blur_milo"
    folder.mkdir()
    for name, document in (("A1", cache_document()), ("A1_T4", hub_t4(400)), ("B2_T4", hub_t4(300))):
        (folder / f"{name}.json").write_text(json.dumps(document))
        compress(folder / f"{name}.json")
    cache, results = load_recorded(folder, read_results=read_t4)
    assert (cache.name, results.name) == ("blur__Some_Device", "blur_milo__B2")
    assert (cache.space.feasible_count, results.space.feasible_count) == (400, 300)
    assert (results.cost_s > 0.75).any()  # the runtimes stand in for the benchmark's time
    (alone,) = load_recorded(folder / "A1_T4.json.gz", read_results=read_t4)
    assert alone.name == "blur_milo__A1"
    np.testing.assert_allclose(np.sort(alone.time_ms), np.sort(cache.time_ms))


@pytest.mark.parametrize("cut", [2, 30, -1])
def test_a_compressed_recording_that_is_damaged_is_named(tmp_path: Path, cut: int) -> None:
    (tmp_path / "A1.json").write_text(json.dumps(cache_document(60)))
    file = compress(tmp_path / "A1.json")
    file.write_bytes(file.read_bytes()[:cut])
    for path in (file, tmp_path):
        with pytest.raises(SpecError, match="compressed and damaged") as caught:
            load_recorded(path)
        assert caught.value.location is not None
        assert caught.value.location.file == file


def tuned_for(objective: str, value: Callable[[float], float]) -> dict[str, Any]:
    """A cache file of another objective than time; failed configurations say so in its place."""
    document = {**cache_document(200), "objective": objective}
    for entry in document["cache"].values():
        time_ms = entry.pop("time")
        entry[objective] = time_ms if isinstance(time_ms, str) else value(time_ms)
    return document


@pytest.mark.parametrize(
    ("objective", "value"),
    [
        ("GFLOP/s", lambda ms: 500 / ms),
        ("score", lambda ms: 2 - ms),
        ("energy", lambda ms: 3 * ms),
        ("nvml_energy", lambda ms: ms - 4),
    ],
)
def test_another_objective_ranks_as_it_is_meant(
    tmp_path: Path, objective: str, value: Callable[[float], float]
) -> None:
    (tmp_path / "time.json").write_text(json.dumps({**cache_document(200), "kernel_name": "timed"}))
    (tmp_path / "tuned.json").write_text(json.dumps(tuned_for(objective, value)))
    timed, tuned = load_recorded(tmp_path)
    assert tuned.objective == objective
    assert tuned.failures == timed.failures
    valid = ~np.isnan(timed.time_ms)
    np.testing.assert_array_equal(valid, ~np.isnan(tuned.time_ms))
    np.testing.assert_array_equal(np.argsort(timed.time_ms[valid]), np.argsort(tuned.time_ms[valid]))
    assert (tuned.time_ms[valid] > 0).all()


def test_a_linear_objective_has_the_score_of_time(tmp_path: Path) -> None:
    (tmp_path / "time.json").write_text(json.dumps({**cache_document(200), "kernel_name": "timed"}))
    (tmp_path / "tuned.json").write_text(json.dumps(tuned_for("score", lambda ms: 2 - ms)))
    timed, tuned = (run_space(one, Strategy("random"), repeats=4).score for one in load_recorded(tmp_path))
    assert tuned == pytest.approx(timed, abs=0.02)


def test_an_objective_that_nobody_knows_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps(tuned_for("goodness", lambda ms: 2 - ms)))
    with pytest.raises(SpecError, match="'goodness' is best is not known") as caught:
        load_recorded(file)
    assert "--objective goodness=highest" in (caught.value.hint or "")
    best = {}
    for which in ("lowest", "highest"):
        (one,) = load_recorded(file, objectives=parse_objectives((f"goodness={which}",)))
        best[which] = int(np.nanargmin(one.time_ms))
    assert best["lowest"] != best["highest"]


def test_t4_results_of_another_objective_and_of_several(tmp_path: Path) -> None:
    document = hub_t4(300)
    for result in document["results"]:
        result["objectives"] = ["score"]
        result["measurements"] = [{**line, "name": "score", "value": -line["value"]} for line in result["measurements"]]
    file = tmp_path / "blur__Mine.json"
    file.write_text(json.dumps(document))
    (recorded,) = load_recorded(file, read_results=read_t4)
    assert recorded.objective == "score"
    times = {tuple(e[n] for n in ("mode", "A", "B")): e["time"] for e in cache_document(300)["cache"].values()}
    fastest = min((time, key) for key, time in times.items() if not isinstance(time, str))[1]
    assert tuple(recorded.space.config_at(int(np.nanargmin(recorded.time_ms))).values()) == fastest
    document["results"][3]["objectives"] = ["time"]
    document["results"][3]["measurements"] = [{"name": "time", "value": 1.0, "unit": "ms"}]
    file.write_text(json.dumps(document))
    with pytest.raises(SpecError, match="different objectives: score, time"):
        load_recorded(file, read_results=read_t4)


def test_the_same_space_twice_is_refused(tmp_path: Path) -> None:
    folder = write_recording(tmp_path)
    with pytest.raises(SpecError, match="given twice"):
        load_recorded(folder, folder)
