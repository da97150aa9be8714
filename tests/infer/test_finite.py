"""Inputs on which results are finite: ranges are narrowed where usual inputs give NaN or infinity, and nowhere else."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from kernelwright.evaluate.data.datasets import datasets_for, make_inputs
from kernelwright.evaluate.judge.kernel_reference import KernelReference
from kernelwright.infer import finite
from kernelwright.infer.finite import with_finite_results
from kernelwright.infer.inference import Given, infer
from kernelwright.infer.model import Inferred
from kernelwright.infer.problem_files import check_loads, files_of, write_files
from kernelwright.infer.program import infer_program
from kernelwright.infer.words import read_words
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.reference import call_reference

ONE = "__kernel void k(__global const float *a, __global const float *b, __global float *c, int n, int m) {{\n"
ONE += "  int i = get_global_id(0);\n  if (i < n) {{ {body} }}\n}}\n"
ADAM = """__kernel void adam(__global float *p, __global const float *g, __global float *m, __global float *v, int n) {
  int i = get_global_id(0);
  if (i >= n) return;
  float mi = 0.9f * m[i] + 0.1f * g[i], vi = 0.95f * v[i] + 0.05f * g[i] * g[i];
  m[i] = mi; v[i] = vi;
  p[i] -= 1e-3f * mi / (sqrt(vi) + 1e-8f);
}
"""


def inferred(folder: Path, source: str, *words: str, name: str = "k.cl") -> Inferred:
    (folder / name).write_text(source)
    found = infer(folder / name, Given(read_words(words)))
    assert found.questions == ()
    return found


def ranges(found: Inferred) -> dict[str, tuple[float, float] | None]:
    return {each.name: each.bounds for each in found.arguments if each.bounds is not None}


def narrowed(folder: Path, body: str) -> Inferred:
    return with_finite_results(inferred(folder, ONE.format(body=body), "n=500", "m=40"))


def test_what_no_range_helps_is_told_with_the_arrays_to_correct(tmp_path: Path) -> None:
    found = narrowed(tmp_path, "c[i] = sqrt(-1.0f - a[i] * a[i] - b[i] * b[i]);")
    assert ranges(found) == {}
    (note,) = found.notes
    assert note == "'c' is infinite or NaN on all inputs that were tried: write `range` or `file` of a or b"


def test_a_kernel_that_is_not_followed_stays_as_it_is(tmp_path: Path) -> None:
    body = "c[i] = sqrt(lgamma(a[i])) + b[i];"
    before = inferred(tmp_path, ONE.format(body=body), "n=500", "m=40")
    assert with_finite_results(before) is before


def test_no_range_is_written_where_the_steps_end_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite, "_MOST_STEPS", 10)
    before = inferred(tmp_path, ONE.format(body="c[i] = a[i] / b[i];"), "n=500", "m=40")
    assert ranges(with_finite_results(before)) == {}


@pytest.mark.parametrize(
    "body",
    [
        "c[i] = exp(a[i]) / (1.0f + exp(a[i]));",
        "float s = 0; for (int j = 0; j < m; j++) s += a[i * m + j] * b[j]; c[i] = s;",
        "float s = 0; for (int j = 0; j < m; j++) s += a[i * m + j] * a[i * m + j]; c[i] = b[i] * rsqrt(s + 1e-5f);",
        "float t = -INFINITY; for (int j = 0; j < m; j++) t = fmax(t, a[i * m + j]); c[i] = exp(a[i] - t) + b[i];",
        "c[i] = a[i] > 0 ? log(a[i]) : b[i];",
    ],
)
def test_a_kernel_that_is_finite_on_hostile_data_keeps_the_usual_inputs(body: str, tmp_path: Path) -> None:
    before = inferred(tmp_path, ONE.format(body=body), "n=500", "m=40")
    assert with_finite_results(before) == before


@pytest.mark.parametrize(
    ("body", "arrays"),
    [
        ("c[i] = a[i] / b[i];", {"b"}),
        ("c[i] = sqrt(a[i]) + b[i];", {"a"}),
        ("c[i] = b[i] + log(log(a[i]));", {"a"}),
        ("c[i] = exp(exp(a[i])) - b[i];", {"a"}),
        ("float t = a[i]; for (int j = 0; j < 300; j++) t = t * t + 0.25f * b[i]; c[i] = t;", {"a", "b"}),
        (
            "float t[2]; t[0] = a[i]; for (int j = 0; j < 4000; j++) t[0] = t[0] * t[0] + 0.1f; c[i] = t[0] + b[i];",
            {"a"},
        ),
        ("float s = 0; for (int j = 0; j < m; j++) s += sqrt(a[i * m + j] * b[j]); c[i] = sqrt(1 - s);", {"a", "b"}),
    ],
)
def test_only_arrays_that_make_results_infinite_are_narrowed(body: str, arrays: set[str], tmp_path: Path) -> None:
    found = narrowed(tmp_path, body)
    assert ranges(found).keys() <= arrays
    assert ranges(found)
    assert all(each.note == "other values make 'c' infinite or NaN" for each in found.arguments if each.bounds)
    assert found == narrowed(tmp_path, body), "the same text gives the same ranges"


@pytest.mark.parametrize("body", ["c[i] = a[i] > 0 ? exp(exp(a[i])) : b[i];", "c[i] = acos(a[i]) + b[i];"])
def test_numbers_keep_both_signs_where_results_are_finite_on_both(body: str, tmp_path: Path) -> None:
    """Else a candidate without the branch for one of them would be right."""
    ((array, (low, high)),) = ((name, bounds) for name, bounds in ranges(narrowed(tmp_path, body)).items() if bounds)
    assert array == "a"
    assert low < 0 < high


def test_a_product_does_not_vanish_where_a_range_keeps_it(tmp_path: Path) -> None:
    """Else whatever writes zeros would be right."""
    body = "float p = 1; for (int j = 0; j < m; j++) p *= a[i * m + j]; c[i] = p * b[i];"
    source = ONE.format(body=body)
    found = with_finite_results(inferred(tmp_path, source, "n=500", "m=300"))
    ((low, high),) = (bounds for bounds in ranges(found).values() if bounds)
    assert low**300 > 1e-38
    assert high**300 < 1e38
    nothing = with_finite_results(inferred(tmp_path, ONE.format(body="c[i] = 0 * a[i] / b[i];"), "n=500", "m=4"))
    assert ranges(nothing).keys() == {"b"}, "what is always 0 is narrowed as before"


@pytest.mark.parametrize("body", ["c[i] = max(a[i]) / b[i];", "c[i] = clamp(a[i]) / b[i];", "c[i] = fma(a[i], b[i]);"])
def test_a_function_with_too_few_values_is_not_followed(body: str, tmp_path: Path) -> None:
    before = inferred(tmp_path, ONE.format(body=f"{body} c[i] /= b[i];"), "n=500", "m=40")
    assert with_finite_results(before) is before


def test_more_blocks_than_any_grid_has_are_not_followed(tmp_path: Path) -> None:
    source = "__global__ void k(const float *a, float *c, int n) {\n"
    source += "  int i = blockIdx.x * 32 + threadIdx.x; if (i < n) c[i] = sqrtf(a[i]);\n}\n"
    source += "void f(float *a, float *c, int n) { k<<<99999999999999999999, 32>>>(a, c, n); }\n"
    before = inferred(tmp_path, source, "n=500", name="k.cu")
    assert with_finite_results(before) is before


def test_only_the_variance_of_an_optimiser_is_positive_and_the_file_says_so(tmp_path: Path) -> None:
    found = with_finite_results(inferred(tmp_path, ADAM, "n=1000"))
    assert ranges(found) == {"v": (0.25, 0.75)}
    text = files_of(found)[0]["problem.toml"].decode()
    assert "range = [0.25, 0.75] }  # guess: " in text
    assert "v (other values make 'p' infinite or NaN)" in "; ".join(found.guesses)


def test_what_a_second_launch_reads_is_what_the_first_has_written(tmp_path: Path) -> None:
    """Of a program: `sqrt` of a sum of squares is finite, although `sqrt` of a usual input is not."""
    begin = "int i = blockIdx.x * 64 + threadIdx.x;"
    first = f"__global__ void first(const float *x, float *s, int n) {{ {begin} s[i] = x[i] FACTOR; }}\n"
    second = f"__global__ void second(const float *s, float *y, int n) {{ {begin} y[i] = sqrtf(s[i]); }}\n"
    host = "int main() { int n = 512; float *x, *s, *y;\n"
    host += "first<<<n / 64, 64>>>(x, s, n); second<<<n / 64, 64>>>(s, y, n); }"
    for factor, expected in (("* x[i]", {}), ("* 2", {"x": (0.25, 0.75)})):
        (tmp_path / "main.cu").write_text(first.replace("FACTOR", factor) + second + host)
        found = with_finite_results(infer_program(tmp_path, (".cu",)))
        assert ranges(found) == expected


@pytest.mark.thorough
@pytest.mark.opencl
@pytest.mark.parametrize("body", ["c[i] = a[i] / b[i];", "c[i] = pow(a[i], b[i]);", ""])
def test_the_reference_is_finite_on_every_dataset_of_the_ranges(body: str, tmp_path: Path) -> None:
    source = ONE.format(body=body) if body else ADAM
    found = with_finite_results(inferred(tmp_path, source, "n=300", *(["m=40"] if body else [])))
    assert ranges(found)
    files, _ = files_of(found)
    check_loads(found.file, found.entry, files)
    write_files(tmp_path / "problem", files)
    problem = load_problem(tmp_path / "problem")
    reference = KernelReference(problem).as_reference()
    for dataset in datasets_for(problem, seed=7, is_thorough=True):
        inputs = make_inputs(problem, problem.workloads[0], dataset)
        results = call_reference(reference, problem, problem.workloads[0], inputs)
        assert all(np.isfinite(each).all() for each in results.values()), dataset.name


def test_ranges_are_plain_numbers_that_narrow_types_hold() -> None:
    for low, high in finite.RANGES:
        assert -math.inf < low < high < math.inf
        assert np.float16(low) != np.float16(high)
