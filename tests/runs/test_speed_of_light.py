"""How far results are from what the device can do, and what is not believed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import BaselineFailed, UsageError
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.outcome import Failed
from kernelwright.roofline.profile import profile_lines, profile_of
from kernelwright.roofline.speed_of_light import (
    device_ceilings,
    doubt,
    floor_of,
    floors,
    pipe_of,
    recorded_floors,
    share_of_floor,
)
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings, parse_budget
from kernelwright.tuning.tune import resume, tune

GPU = DeviceInfo("cuda", "cuda:0", "a GPU", "gpu", {"last_level_cache": 1 << 20}, driver="1")
CPU = DeviceInfo("opencl", "opencl:0", "a CPU", "cpu", {"last_level_cache": 1 << 20})
RATES = {
    "copy_bytes_per_s": 1e9,
    "read_bytes_per_s": 1.2e9,
    "write_bytes_per_s": 0.9e9,
    "cache_bytes_per_s": 5e9,
    "fp32_operations_per_s": 1e10,
    "fp64_operations_per_s": 5e9,
    "tensor_fp16_operations_per_s": 1e11,
}


@pytest.fixture
def problem(saxpy):
    """n floats read, n read and written in each workload."""
    return load_problem(saxpy)


def with_work(saxpy, text):
    with (saxpy / "problem.toml").open("a") as file:
        file.write(f"[work]\n{text}\n")
    return load_problem(saxpy)


def test_result_that_cannot_be_is_a_failure_with_its_figures(saxpy, tmp_path):
    with_work(saxpy, 'bytes = "100000 * n"')

    def cost(config, workload):
        is_cheat = config.get("BLOCK") == 64 and config.get("ITEMS") == 4
        return workload.sizes["n"] * (1e-2 if is_cheat else 0.2)

    machine = SimulatedMachine(cost, ceilings={"copy_bytes_per_s": 1e9})
    chosen = TuneSettings(budget=Budget(), searcher="exhaustive")
    result = tune(saxpy, settings=chosen, run=tmp_path / "run", machine=machine)
    failed = [event.outcome for event in result.view.failed]
    assert len(failed) == 1
    assert isinstance(failed[0], Failed)
    assert (failed[0].stage, failed[0].reason) == ("time", "faster-than-possible")
    assert "at 1 GB/s" in failed[0].message
    assert result.best_config != {"BLOCK": 64, "ITEMS": 4}


def test_baseline_faster_than_declared_work_allows_is_the_problems_fault(saxpy, tmp_path):
    with_work(saxpy, 'bytes = "1000000 * n"')
    machine = SimulatedMachine(lambda config, workload: 1.0, ceilings={"copy_bytes_per_s": 1e9})
    with pytest.raises(BaselineFailed, match="faster than this device can be") as caught:
        tune(saxpy, settings=TuneSettings(budget=Budget(evaluations=3)), run=tmp_path / "run", machine=machine)
    assert "[work]" in caught.value.hint


def test_search_stops_close_enough_to_the_floor_and_resume_keeps_it(saxpy, tmp_path):
    n = {workload.name: workload.sizes["n"] for workload in load_problem(saxpy).workloads}
    with_work(saxpy, 'bytes = "1000 * n"')

    def cost(config, workload):  # the floor is 1e-3 ms for each n
        return workload.sizes["n"] * (1.02e-3 if config.get("BLOCK") == 32 and config.get("ITEMS") == 8 else 4e-3)

    machine = SimulatedMachine(cost, noise=0.001, ceilings={"copy_bytes_per_s": 1e9})
    chosen = TuneSettings(budget=parse_budget("floor>97%"), searcher="exhaustive")
    result = tune(saxpy, settings=chosen, run=tmp_path / "run", machine=machine)
    assert result.reason == "target"
    assert len(result.view.evaluations) < result.view.started.space["feasible_count"]
    recorded = result.view.started.floors
    assert {name: record["floor_ms"] for name, record in recorded.items()} == {
        name: pytest.approx(1e-3 * size) for name, size in n.items()
    }
    assert resume(tmp_path / "run", machine=machine).reason == "target"


@pytest.mark.parametrize("text", ["floor>0%", "floor>101%", "floor>97", "floor>x%"])
def test_floor_budget_that_is_no_share_is_refused(text):
    with pytest.raises(UsageError, match=r"share in percent"):
        parse_budget(text)


def test_floor_is_the_longest_of_traffic_and_arithmetic(saxpy):
    problem = load_problem(saxpy)
    workload = problem.workloads[0]
    n = workload.sizes["n"]
    floor = floor_of(problem, workload, GPU, RATES, cache="cold")
    assert floor.limited_by == "memory"
    declared = with_work(saxpy, 'operations = "1000 * n"\npipe = "fp64"')
    floor = floor_of(declared, workload, GPU, RATES, cache="cold")
    assert (floor.limited_by, floor.floor_ms) == ("arithmetic", pytest.approx(1e3 * 1000 * n / 5e9))


def test_empty_launch_is_a_part_of_every_floor_and_named_where_it_is_most_of_it(problem):
    workload = problem.workloads[0]
    without = floor_of(problem, workload, GPU, RATES, cache="cold")
    floor = floor_of(problem, workload, GPU, {**RATES, "launches_per_s": 250.0}, cache="cold")
    assert (without.launch_ms, without.longest) == (0.0, "memory")
    assert (floor.launch_ms, floor.floor_ms) == (4.0, pytest.approx(4.0 + without.floor_ms))
    assert (floor.limited_by, floor.longest) == ("memory", "launch")
    assert floor.least_ms == without.least_ms


def test_empty_launch_is_recorded_with_the_run_and_told_with_what_is_left(saxpy, tmp_path):
    machine = SimulatedMachine(
        lambda config, workload: 1.0, noise=0.0, ceilings={"copy_bytes_per_s": 1e9, "launches_per_s": 2000.0}
    )
    result = tune(saxpy, settings=TuneSettings(budget=Budget(evaluations=2)), run=tmp_path / "run", machine=machine)
    started, outcome = result.view.started, result.view.baseline.outcome
    assert {record["launch_ms"] for record in started.floors.values()} == {0.5}
    first = profile_lines(profile_of(started, outcome)[0])[0]
    share = recorded_floors(started)[outcome.measurements[0].workload].floor_ms / 1.0
    assert f"with the 0.5 ms of an empty launch: at most {1 / share:.2f}x is left here" in first


def test_traffic_that_stays_in_the_cache_is_set_against_the_cache(problem):
    workload = problem.workloads[0]
    floors_ms = {cache: floor_of(problem, workload, GPU, RATES, cache=cache).floor_ms for cache in ("hot", "cold")}
    n = workload.sizes["n"]  # 8 n bytes are read, 4 n written, which may stay in the cache
    assert floors_ms == {"hot": pytest.approx(1e3 * 12 * n / 5e9), "cold": pytest.approx(1e3 * 8 * n / 1e9)}


def test_memory_bounds_nothing_that_stays_in_a_cache_of_unknown_rate(problem):
    small = next(each for each in problem.workloads if 8 * each.sizes["n"] < 1 << 19)
    rates = {"copy_bytes_per_s": 1e9}
    assert floor_of(problem, small, CPU, rates, cache="hot") is None
    assert floor_of(problem, small, CPU, rates, cache="cold") is not None


def test_without_declared_bytes_only_outputs_are_certain(problem):
    """An input need not be read as a whole, so nothing may be concluded from its size."""
    large = dataclasses.replace(problem.workloads[0], sizes={"n": 1 << 24})
    as_output = tuple(
        dataclasses.replace(each, role="output") if each.name == "y" else each for each in problem.arguments
    )
    floor = floor_of(dataclasses.replace(problem, arguments=as_output), large, GPU, RATES, cache="cold")
    assert floor.least_ms == pytest.approx(1e3 * ((4 << 24) - (1 << 20)) / (1.05 * 1.2e9))
    assert floor.least_ms < floor.floor_ms
    assert floor_of(problem, large, GPU, RATES, cache="cold").least_ms == 0


def test_nothing_is_impossible_on_a_cpu_device(problem):
    """Its caches are large and a plain copy is no bound there."""
    assert floor_of(problem, problem.workloads[0], CPU, RATES, cache="hot").least_ms == 0


def test_unknown_rates_give_no_floor(problem):
    assert floors(problem, GPU, {}, cache="cold") == {}
    assert share_of_floor({}, {}, {workload.name: 1.0 for workload in problem.workloads}) is None


def test_pipe_follows_the_widest_float_type_unless_it_is_declared(saxpy):
    assert pipe_of(load_problem(saxpy)) == "fp32"
    assert pipe_of(with_work(saxpy, 'pipe = "tensor"')) == "tensor"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.integers(1, 1 << 30),
    rate=st.floats(1e6, 1e13),
    cache=st.sampled_from(["hot", "cold"]),
    cache_rate=st.floats(1.0, 20.0),
)
def test_what_cannot_be_beaten_lies_below_the_floor(problem, sizes, rate, cache, cache_rate):
    workload = dataclasses.replace(problem.workloads[0], sizes={"n": sizes})
    rates = {"copy_bytes_per_s": rate, "cache_bytes_per_s": cache_rate * rate}
    floor = floor_of(problem, workload, GPU, rates, cache=cache)
    assert 0 <= floor.least_ms <= floor.floor_ms
    found = {workload.name: floor}
    assert doubt(found, {workload.name: floor.floor_ms}) is None
    assert share_of_floor(found, {workload.name: floor.floor_ms}, {workload.name: 1.0}) == pytest.approx(1.0)


def test_ceilings_are_kept_by_device_and_driver(tmp_path: Path):
    asked = []

    def measure():
        asked.append(1)
        return {"copy_bytes_per_s": float(len(asked))}

    def ask(device, now=0.0):
        return device_ceilings(device, measure, folder=tmp_path, now=lambda: now)["copy_bytes_per_s"]

    assert [ask(GPU), ask(GPU), ask(GPU, 1e9)] == [1.0, 1.0, 2.0]
    assert ask(dataclasses.replace(GPU, driver="2"), 1e9) == 3.0
    assert [ask(CPU), ask(CPU)] == [4.0, 5.0]
    for damaged in ("", "{}", json.dumps({"measured_at_s": "x", "ceilings": 3}), json.dumps([1])):
        for file in tmp_path.iterdir():
            file.write_text(damaged)
        assert ask(GPU, 1e9) >= 6.0
