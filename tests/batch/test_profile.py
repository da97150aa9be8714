"""Where a program's time goes, from what profilers write, and whose it is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kernelwright.batch.profile import plain_name, read_profile, shares_of
from kernelwright.errors import UsageError

NSYS = """Processing [report1.sqlite] with [/opt/nsys/reports/cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
75.0,7500000,100,75000.0,75000.0,1,2,0.1,"void gemm_kernel<float, 4>(const float *, int)"
20.0,2000000,50,40000.0,40000.0,1,2,0.1,"layer_norm(float *, int)"
5.0,500000,1,1.0,1.0,1,2,0.1,"void at::native::(anonymous namespace)::fill<1>(int)"
"""

TRACE = {
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "gemm_kernel", "ts": 1, "dur": 30.0},
        {"ph": "X", "cat": "kernel", "name": "gemm_kernel", "ts": 50, "dur": 30.0},
        {"ph": "X", "cat": "kernel", "name": "layer_norm", "ts": 90, "dur": 20.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 900.0},
        {"ph": "M", "name": "process_name"},
    ]
}

KERNELS = {"gemm": {"gemm_kernel"}, "norm": {"layer_norm"}}


def test_nsight_systems_tells_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "sum.csv"
    path.write_text(NSYS)
    shares, notes = shares_of(read_profile(path), KERNELS)
    assert shares == pytest.approx({"gemm": 0.75, "norm": 0.2})
    assert not notes


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_counts_kernels_alone(tmp_path: Path, pack: type[bytes]) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(pack(json.dumps(TRACE).encode()))
    assert shares_of(read_profile(path), KERNELS)[0] == pytest.approx({"gemm": 0.75, "norm": 0.25})


@pytest.mark.parametrize(
    "text", ["problem,time\ngemm,3\nnorm,1\n", "gemm,3\nnorm,1\n", "kernel,share\ngemm_kernel,30%\nnorm,10%\n"]
)
def test_a_plain_table_names_problems_or_kernels(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(text)
    assert shares_of(read_profile(path), KERNELS)[0] == pytest.approx({"gemm": 0.75, "norm": 0.25})


def test_a_kernel_of_two_problems_is_divided_and_an_absent_problem_told() -> None:
    shares, notes = shares_of({"norm": 3.0, "copy": 1.0}, {"small": {"norm"}, "large": {"norm"}, "other": {"add"}})
    assert shares == pytest.approx({"small": 0.375, "large": 0.375, "other": 0.0})
    assert any("divided evenly" in note for note in notes)
    assert any(note.startswith("other is not in the profile") for note in notes)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "tells of no time"),
        ("problem,time\ngemm,fast\n", "no time in the line 'gemm,fast'"),
        ("just words\n", "no time in the line"),
        ("{", "is no JSON"),
        ("{}", "no traceEvents"),
        ('{"traceEvents": []}', "tells of no time"),
    ],
)
def test_what_is_no_profile_says_so(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "profile"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_profile(path)


def test_a_profile_of_something_else_names_its_longest_kernels() -> None:
    with pytest.raises(UsageError, match="the longest there: sort, scan"):
        shares_of({"void scan<int>(int*)": 1.0, "sort": 2.0}, KERNELS)


def test_names_are_what_a_kernel_is_called_in_its_source() -> None:
    assert plain_name("void ns::(anonymous namespace)::k<a<b>, 4>(c<d>*) [clone .kd]") == "k"
    assert plain_name("triton_poi_fused_add_0") == "triton_poi_fused_add_0"
