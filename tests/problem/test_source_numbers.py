"""Numbers of sources, near which one dataset of each problem lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.source_numbers import numbers_in_c, numbers_in_options, numbers_in_python

PROBLEM = """
name = "clip"
kernel = "kernel.cl"
entry = "clip"
reference = "kernel.cl:clip"
include_paths = ["limits"]
options = ["-DLIMIT=1000", "-cl-std=CL1.2"]
[arguments]
x = { role = "inout", dtype = "int32", shape = ["n"] }
[launch]
grid = ["n"]
block = [64]
[[workloads]]
n = 5
"""


def test_numbers_of_c_are_read_in_every_spelling() -> None:
    text = '#define LIMIT 1000u\nif (x > 6.5f || x == 0x20 || y < 1e-3) z = 010; // 77\n const char *s = "99"; 0x1p4f'
    assert numbers_in_c(text) == {1000.0, 6.5, 32.0, 0.001, 8.0, 16.0}


def test_a_product_or_shift_of_numbers_counts_as_its_value() -> None:
    text = "#define DAY (60 * 60 * 24)\n"
    text += "if (x > 1 << 10 || x < DAY || x == 5 + 7 || x > 3 * n || x < 1 << 900) y = 2e300 * 2e300;"
    assert numbers_in_c(text) == {60, 24, 3600, 86400, 1, 10, 1024, 5, 7, 3, 900, 2e300}


def test_extents_and_parameters_are_no_thresholds() -> None:
    text = "#ifndef BLOCK\n#define BLOCK 128\n#endif\n#define LIMIT 7\n"
    text += "__local float part[256]; if (x > LIMIT) y[512 + i] = 3;"
    assert numbers_in_c(text) == {7.0, 3.0}


def test_numbers_of_python_are_those_of_its_code() -> None:
    assert numbers_in_python('def f(x):\n    "5"\n    return x if x > 300 else -2.5 * True  # 9\n') == {300.0, 2.5}


@pytest.mark.parametrize("text", ["def f(:", "(" * 100_000, "x = " + "9" * 5000, "\0"])
def test_a_text_that_python_does_not_read_names_none(text: str) -> None:
    assert numbers_in_python(text) == frozenset()


def test_numbers_of_options_are_those_of_the_macros_that_they_define() -> None:
    options = ["-DLIMIT=1000", "-D", "SHARE=0.25f", "-cl-std=CL1.2", "-DBLOCK={block}", "-O3"]
    assert numbers_in_options(options) == {1000.0, 0.25}


def test_numbers_of_headers_and_options_count_and_a_header_of_tables_hides_none(tmp_path: Path) -> None:
    (tmp_path / "limits").mkdir()
    (tmp_path / "limits" / "limits.h").write_text('#define HIGHEST 4321\n#include "table.h"\n')
    (tmp_path / "limits" / "table.h").write_text("int t[] = {" + ", ".join(str(9000 + k) for k in range(200)) + "};")
    (tmp_path / "kernel.cl").write_text(
        '#include "limits.h"\n__kernel void clip(__global int *x) '
        "{ int i = get_global_id(0); if (x[i] > LIMIT && x[i] < HIGHEST) x[i] = 77; }"
    )
    (tmp_path / "problem.toml").write_text(PROBLEM)
    assert {1000.0, 4321.0, 77.0} <= set(load_problem(tmp_path).numbers)
    assert 9000.0 not in load_problem(tmp_path).numbers
