"""Sizes that nobody says: small enough in memory and in work, in proportion to each other."""

from __future__ import annotations

from pathlib import Path

from kernelwright.infer.inference import Given, infer
from kernelwright.infer.model import Inferred
from kernelwright.infer.words import read_words
from kernelwright.infer.work import MOST_BYTES, MOST_STEPS


def guessed(folder: Path, source: str) -> Inferred:
    (folder / "k.cl").write_text(source)
    found = infer(folder / "k.cl", Given(read_words(()), asks=False))
    assert found.array_bytes <= MOST_BYTES
    assert found.steps <= MOST_STEPS
    assert found.guessed_sizes == set(found.sizes)
    return found


def test_all_pairs_get_few_elements(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *x, __global float *y, int n) {\n  int i = get_global_id(0);\n"
    source += "  if (i >= n) return;\n  float s = 0;\n  for (int j = 0; j < n; ++j) s += x[i] - x[j];\n  y[i] = s;\n}\n"
    assert 1000 <= guessed(tmp_path, source).sizes["n"] <= 1 << 14


def test_a_window_is_small_and_a_pitch_holds_its_row(tmp_path: Path) -> None:
    source = "__kernel void k(__global const float *x, __global float *y, int w, int h, int pitch, int r) {\n"
    source += "  int i = get_global_id(0), j = get_global_id(1);\n  if (i >= w || j >= h) return;\n  float s = 0;\n"
    source += "  for (int d = -r; d <= r; ++d) if (i + d >= 0 && i + d < w) s += x[j * pitch + i + d];\n"
    source += "  y[j * pitch + i] = s;\n}\n"
    sizes = guessed(tmp_path, source).sizes
    assert sizes["r"] <= 8
    assert sizes["pitch"] >= sizes["w"]


def test_leading_zeros_do_not_change_a_number() -> None:
    words = read_words(["rows=007", "mask=0x1F", "least=-010"])
    assert words.numbers == {"rows": 7, "mask": 31, "least": -10}
