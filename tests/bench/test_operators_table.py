"""The suite's table, and what the command says where it cannot measure."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kernelwright.backend.base import DeviceInfo
from kernelwright.cli.main import main
from kernelwright.errors import UsageError
from kernelwright.evaluate.device.probe import probe_devices
from kernelwright.evaluate.statistics import ConfidenceInterval
from kernelwright.problem.load.problem import load_problem
from kernelwright_bench.operators.run import OperatorResult, Row, SuiteResult, table_floor
from kernelwright_bench.operators.suite import SUITE, choose_operators, find_suite
from kernelwright_bench.operators.table import HEADINGS, cells, document, markdown


def interval(value):
    return ConfidenceInterval(value, 0.9 * value, 1.1 * value, 0.95)


def row(own_us=10.0, *, goal=None, notes=None, has_clean_goal=False, **times_us):
    times = {"baseline": 30.0, "general": 12.0, "special": own_us, **times_us}
    return Row(
        operator="rmsnorm", label="8 x 4096", dtype="bfloat16", sizes={"rows": 8, "d": 4096}, floor_us=9.0,
        limited_by="memory", upstream_us=11.0, goal=goal, has_clean_goal=has_clean_goal,
        times_us={name: interval(value) for name, value in times.items()},
        speedups={"baseline": interval(3.0)}, notes=notes or {}, configs={"special": {"VEC": 8}}, tried_count=5,
        failed={}, samples_ms={"special": (0.01,) * 5}, timer="cuda-cupti",
    )  # fmt: skip


def suite(*rows, error=""):
    device = DeviceInfo("cuda", "cuda:0", "H100", "gpu", {})
    return SuiteResult(device, {"copy_bytes_per_s": 3e12}, (OperatorResult("rmsnorm", rows, error),))


def shown(row):
    return dict(zip(HEADINGS, cells(row), strict=True))


def test_row_shows_times_with_intervals_and_the_share_of_the_floor():
    found = shown(row())
    assert found["operator"] == "rmsnorm bf16"
    assert found["shape's own us [95 %]"] == "**10.00** [9.00, 11.00]"
    assert found["of floor"] == "90%"
    assert found["upstream us"] == "11"
    assert found["over baseline [95 %]"] == "3.00 [2.70, 3.30]"


@pytest.mark.parametrize(
    ("own_us", "goal", "expected"), [(10.0, 0.95, "95%, missed"), (9.2, 0.95, "95%"), (9.2, None, "")]
)
def test_a_missed_goal_is_called_missed(own_us, goal, expected):
    assert shown(row(own_us, goal=goal))["goal"] == expected


def test_a_goal_for_a_clean_cache_is_judged_by_the_clean_time():
    assert shown(row(12.0, goal=0.95, has_clean_goal=True, clean=9.1))["goal"] == "95%"


def test_missing_pytorch_stands_in_the_table_and_is_said_once_below():
    notes = {"eager": "torch not installed", "compiled": "torch not installed"}
    text = markdown(suite(row(notes=notes), row(notes=notes)))
    assert shown(row(notes=notes))["eager us"] == "torch not installed"
    assert text.count("eager: torch not installed") == 1


def test_an_operator_without_rows_says_why():
    assert "rmsnorm could not be measured: the device fell over" in markdown(suite(error="the device fell over"))


def test_document_is_json_with_samples_and_configs():
    data = json.loads(json.dumps(document(suite(row()))))
    first = data["operators"][0]["rows"][0]
    assert first["configs"]["special"] == {"VEC": 8}
    assert first["samples_ms"]["special"] == [0.01] * 5
    assert first["times_us"]["special"]["low"] == 9.0


def test_an_unknown_operator_is_refused_with_the_nearest_one():
    with pytest.raises(UsageError, match="transposed") as caught:
        choose_operators(["transposed"])
    assert "transpose" in str(caught.value.hint)


def test_operators_come_in_the_order_of_the_suite():
    assert [each.name for each in choose_operators(["stencil", "softmax"])] == ["softmax", "stencil"]
    assert choose_operators([]) == SUITE


def test_a_folder_without_the_operators_is_refused(tmp_path):
    with pytest.raises(UsageError, match="operators' folders are not in"):
        find_suite(tmp_path)


def test_the_command_says_why_it_cannot_run_without_a_gpu(capfd):
    if any(device.backend == "cuda" for device in probe_devices(backends=["cuda"]).devices):
        pytest.skip("there is an NVIDIA device here")
    with pytest.raises(SystemExit) as caught:
        main(["bench", "operators", "--only", "transpose"])
    told = capfd.readouterr().err
    assert caught.value.code == 2
    assert "no device here runs cuda kernels" in told
    assert "cuda" in told.partition("hint:")[2]


@pytest.mark.parametrize(
    ("name", "expected_ms", "limited_by"),
    [
        ("softmax", 1e3 * 4 * 256 * 4096 / 3e12, "memory"),  # read and written once, two bytes each
        ("reduction", 1e3 * 4 * 4194304 / 4e12, "memory"),  # only read
        ("matmul", 1e3 * 2 * 1024**3 / 60e12, "arithmetic"),
    ],
)
def test_the_floor_is_all_traffic_at_the_measured_rate_or_the_arithmetic(name, expected_ms, limited_by):
    problem = load_problem(find_suite(None) / name)
    problem = dataclasses.replace(problem, workloads=problem.workloads[:1])
    rates = {"copy_bytes_per_s": 3e12, "read_bytes_per_s": 4e12, "fp32_operations_per_s": 60e12}
    floor_ms, because = table_floor(problem, rates)
    assert floor_ms == pytest.approx(expected_ms, rel=1e-3)
    assert because == limited_by
