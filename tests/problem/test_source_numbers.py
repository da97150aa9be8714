"""Numbers of sources, near which one dataset of each problem lies."""

from __future__ import annotations

import pytest

from kernelwright.problem.source_numbers import numbers_in_c, numbers_in_python


def test_numbers_of_c_are_read_in_every_spelling() -> None:
    text = '#define LIMIT 1000u\nif (x > 6.5f || x == 0x20 || y < 1e-3) z = 010; // 77\n const char *s = "99"; 0x1p4f'
    assert numbers_in_c(text) == {1000.0, 6.5, 32.0, 0.001, 8.0, 16.0}


def test_extents_and_parameters_are_no_thresholds() -> None:
    text = "#ifndef BLOCK\n#define BLOCK 128\n#endif\n#define LIMIT 7\n"
    text += "__local float part[256]; if (x > LIMIT) y[512 + i] = 3;"
    assert numbers_in_c(text) == {7.0, 3.0}


def test_numbers_of_python_are_those_of_its_code() -> None:
    assert numbers_in_python('def f(x):\n    "5"\n    return x if x > 300 else -2.5 * True  # 9\n') == {300.0, 2.5}


@pytest.mark.parametrize("text", ["def f(:", "(" * 100_000, "x = " + "9" * 5000, "\0"])
def test_a_text_that_python_does_not_read_names_none(text: str) -> None:
    assert numbers_in_python(text) == frozenset()
