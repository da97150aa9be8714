"""A reference in C: found without compiling it, compiled and called as a Python one is; wrong ones are named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernelwright.errors import KernelwrightError, ReferenceFailed, SpecError
from kernelwright.evaluate.judge.server import RefereeDesk
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.problem.c_reference import c_reference
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.reference import call_reference
from kernelwright.problem.reference_file import reference_files

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

SAXPY = """// void old(double *y) { } is in a comment
#include "numbers.h"
static long whole(long n) { return n; }
static inline void saxpy(const double *restrict x, double y[], float a, size_t n) {
  for (size_t i = 0; i < (size_t)whole(n); ++i) y[i] = ONE * a * x[i] + y[i];
}
"""


@pytest.fixture
def in_c(saxpy: Path) -> Callable[[str], Path]:
    """The saxpy problem with a reference in C."""

    def make(text: str, name: str = "reference.h:saxpy") -> Path:
        (saxpy / "numbers.h").write_text("#define ONE 1.0\n")
        (saxpy / "reference.h").write_text(text)
        file = saxpy / "problem.toml"
        lines = file.read_text().splitlines()
        lines = [f'reference = "{name}"' if each.startswith("reference") else each for each in lines]
        file.write_text("\n".join(lines) + "\n")
        return saxpy

    return make


@needs_compiler
def test_a_function_in_c_computes_what_one_in_python_does(in_c: Callable[[str], Path]) -> None:
    problem = load_problem(in_c(SAXPY))
    workload = problem.workloads[0]
    n = int(workload.sizes["n"])
    x, y = np.linspace(-1, 1, n), np.linspace(2, 3, n)
    found = call_reference(c_reference(problem), problem, workload, {"x": x, "y": y})
    (a,) = (each for each in problem.arguments if each.role == "scalar" and each.name == "a")
    assert a.value is not None
    factor = float(str(a.value.evaluate(dict(workload.sizes))))
    assert np.allclose(found["y"], factor * x + y, rtol=1e-7)
    assert y[0] == 2.0, "it works on a copy"


@needs_compiler
def test_its_headers_belong_to_the_problem(in_c: Callable[[str], Path]) -> None:
    problem = load_problem(in_c(SAXPY))
    assert {each.name for each in reference_files(problem.reference)} == {"reference.h", "numbers.h"}


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("void saxpi(double *y) { }", SpecError, "defines no function 'saxpy'; it has saxpi"),
        ("void saxpy(double *y);", SpecError, "it has no functions"),
        ("int main(void) { return 0; }", SpecError, "it has main"),
        ("\n\nvoid saxpy(struct numbers *y) { }", ReferenceFailed, "reference.h:3"),
        ("void saxpy(double **y) { }", ReferenceFailed, "no pointer to numbers"),
        ("void saxpy(double (*f)(double), double *y) { }", ReferenceFailed, "no pointer to numbers"),
    ],
)
def test_what_is_no_function_is_refused_before_anything_is_compiled(
    in_c: Callable[[str], Path], text: str, error: type[KernelwrightError], told: str
) -> None:
    with pytest.raises(error, match=told):
        load_problem(in_c(text))


@needs_compiler
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("void saxpy(double *y) { return y }", "does not compile"),
        ("void saxpy(double *x) { }", "takes no pointer 'y'"),
        ("void saxpy(double *x, double *y, double z) { }", "asks for 'z', which is no input, scalar or size"),
        ("void saxpy(double *y) { y[0] = 0.0 / 0.0; }", "returned nan"),
    ],
)
def test_what_is_wrong_with_it_is_said_when_it_is_used(in_c: Callable[[str], Path], text: str, told: str) -> None:
    problem = load_problem(in_c(text))
    workload = problem.workloads[0]
    ones = np.ones(int(workload.sizes["n"]))
    with pytest.raises(ReferenceFailed, match=told):
        call_reference(c_reference(problem), problem, workload, {"x": ones, "y": ones})


@needs_compiler
def test_one_that_leaves_its_arrays_is_blamed_and_ends_no_process_but_a_worker(
    in_c: Callable[[str], Path], tmp_path: Path
) -> None:
    problem = load_problem(in_c("void saxpy(double *y) { *(volatile double *)8 = y[0]; }"))
    desk = RefereeDesk(problem, EvaluationSettings(seed=3), scratch=tmp_path / "scratch")
    try:
        with pytest.raises(ReferenceFailed, match="ended its process by SIGSEGV"):
            desk.files("small", desk.datasets("small", is_thorough=False)[0])
    finally:
        desk.close()
