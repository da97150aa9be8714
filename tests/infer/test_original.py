"""The original kernel as the reference: launched in float64, and told with the claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace as Stub

import numpy as np
import pytest
from kernel_truths import FOLDER, infer_case

from kernelwright.backend.base import BoundLaunch, LocalArgument
from kernelwright.backend.opencl.session import OpenclSession
from kernelwright.errors import InfrastructureError, ReferenceFailed
from kernelwright.evaluate.data.datasets import Dataset, datasets_for
from kernelwright.evaluate.judge import referee
from kernelwright.evaluate.judge.kernel_reference import KernelReference
from kernelwright.evaluate.judge.referee import Prepared, PrepareJob, RefereeArgument, make_referee
from kernelwright.infer.problem_files import check_loads, files_of, write_files
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem
from kernelwright.problem.reference import call_reference

pytestmark = pytest.mark.opencl


def problem_of(folder: Path, name: str, *words: str) -> Problem:
    inferred = infer_case("seen", name, {"words": words})
    files, _ = files_of(inferred)
    check_loads(FOLDER / "seen" / name, inferred.entry, files)
    write_files(folder, files)
    return load_problem(folder)


def test_floats_are_computed_as_doubles(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "layer_norm.cl", "rows=7", "hidden=50", "eps=1e-5")
    rng = np.random.default_rng(1)
    x, gamma, beta = rng.standard_normal((7, 50)), rng.standard_normal(50), rng.standard_normal(50)
    original = KernelReference(problem)
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    found = call_reference(original.as_reference(), problem, problem.workloads[0], inputs)
    mean, mean_square = x.mean(1, keepdims=True), (x * x).mean(1, keepdims=True)
    expected = (x - mean) / np.sqrt(mean_square - mean * mean + 1e-5) * gamma + beta
    assert np.abs(found["y"] - expected).max() < 1e-12
    assert "in float64" in original.note


def test_integers_are_exact_and_what_is_read_and_written_is_given(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "argmax.cl", "rows=33", "cols=10")
    scores = np.random.default_rng(2).standard_normal((33, 10))
    original = KernelReference(problem)
    found = call_reference(original.as_reference(), problem, problem.workloads[0], {"scores": scores})
    assert (found["best"] == scores.astype(np.float32).argmax(1)).all()
    assert "in its own types, since integers that come of floats" in original.note


def test_in_place_arguments_start_from_their_values(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "rank1_update.cl", "m=5", "n=6", "lda=8", "alpha=0.5")
    rng = np.random.default_rng(3)
    x, y, a = rng.standard_normal(5), rng.standard_normal(6), rng.standard_normal((5, 8))
    reference = KernelReference(problem).as_reference()
    found = call_reference(reference, problem, problem.workloads[0], {"x": x, "y": y, "A": a.copy()})
    expected = a.copy()
    expected[:, :6] += 0.5 * np.outer(x, y)
    assert np.abs(found["A"] - expected).max() < 1e-14


def test_the_first_call_which_builds_the_kernel_is_not_what_calls_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(tmp_path, "argmax.cl", "rows=33", "cols=10")
    first_s, later_s = 2 * referee.LONG_FIRST_CALL_S, 0.01
    calls_s: list[float] = []  # a clock that only calls move

    def counted(*given: object, **named: object) -> object:
        calls_s.append(later_s if calls_s else first_s)
        return call_reference(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(referee, "call_reference", counted)
    monkeypatch.setattr(referee, "time", Stub(perf_counter=lambda: sum(calls_s)))
    prepared = make_referee(RefereeArgument(problem.file, tmp_path / "inputs", 1))(
        PrepareJob(problem.workloads[0].name, Dataset("declared-0", 1, "declared"))
    )
    assert isinstance(prepared, Prepared)
    assert calls_s == [first_s, later_s]
    assert prepared.reference_s <= later_s + 1e-9


SUM = """
// /// kernelwright
// [scratch]
// part = { role = "local", dtype = "float32", shape = ["64"] }
// [launch]
// entry = "sum_rows"
// grid = ["rows"]
// block = ["64"]
// ///
__kernel void sum_rows(__global const float *x, __global float *y, int n, __local float *part) {
  const int t = get_local_id(0);
  float s = 0.0f;
  for (int i = t; i < n; i += 64) s += x[get_group_id(0) * n + i];
  part[t] = s;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (t == 0) {
    for (int i = 1; i < 64; ++i) s += part[i];
    y[get_group_id(0)] = s;
  }
}
"""
SUM_PROBLEM = """
name = "sums"
kernel = "sums.cl"
reference = "original.cl:sum_rows"
[arguments]
x = { role = "input", dtype = "float32", shape = ["rows", "n"] }
y = { role = "output", dtype = "float32", shape = ["rows"] }
n = { role = "scalar", dtype = "int32", value = "n" }
[[workloads]]
rows = 3
n = 200
"""


def test_memory_of_a_group_holds_doubles_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("sums.cl", SUM), ("original.cl", SUM), ("problem.toml", SUM_PROBLEM)):
        (tmp_path / name).write_text(text)
    problem = load_problem(tmp_path)
    original = KernelReference(problem)
    given: list[int] = []
    x = np.random.default_rng(4).standard_normal((3, 200))

    launch = OpenclSession.launch

    def seen(self: OpenclSession, launches: Sequence[BoundLaunch]) -> None:
        local = (each for one in launches for each in one.step.arguments if isinstance(each, LocalArgument))
        given.extend(each.byte_count for each in local)
        launch(self, launches)

    monkeypatch.setattr(OpenclSession, "launch", seen)
    found = call_reference(original.as_reference(), problem, problem.workloads[0], {"x": x})
    assert np.abs(found["y"] - x.sum(1)).max() < 1e-12
    assert "in float64" in original.note
    assert given == [64 * 8, 64 * 4]  # and once as it is, which must be about the same


def test_a_kernel_that_computes_something_else_in_doubles_runs_as_it_is(tmp_path: Path) -> None:
    text = "__kernel void turn(__global const float *x, __global float *y, int n) {\n  int i = get_global_id(0);\n"
    text += "  if (i < n) y[i] = x[4 * (n - 1 - i) / (int)sizeof(float)];\n}\n"
    header = '// /// kernelwright\n// [launch]\n// entry = "turn"\n// grid = ["n"]\n// block = ["1"]\n// ///\n'
    toml = SUM_PROBLEM.replace('["rows", "n"]', '["n"]').replace('["rows"]', '["n"]').replace("rows = 3\n", "")
    for name, content in (("sums.cl", header + text), ("original.cl", header + text)):
        (tmp_path / name).write_text(content)
    (tmp_path / "problem.toml").write_text(toml.replace("sum_rows", "turn"))
    problem = load_problem(tmp_path)
    original = KernelReference(problem)
    x = np.random.default_rng(5).standard_normal(200)
    found = call_reference(original.as_reference(), problem, problem.workloads[0], {"x": x})
    assert (found["y"] == x[::-1].astype(np.float32)).all()
    assert "since with doubles it computes something else" in original.note


def lose_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on each launch ends, and then the device fails."""
    wait = OpenclSession.synchronize

    def lost(session: OpenclSession) -> None:
        wait(session)
        raise InfrastructureError("waiting for the device: ILLEGAL_ADDRESS")

    monkeypatch.setattr(OpenclSession, "synchronize", lost)


def test_a_device_that_the_original_kernel_makes_unusable_is_told_as_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(tmp_path, "layer_norm.cl", "rows=7", "hidden=50", "eps=1e-5")

    lose_device(monkeypatch)
    reference = KernelReference(problem).as_reference()
    x = np.ones((7, 50))
    inputs = {"x": x, "gamma": x[0], "beta": x[0]}
    with pytest.raises(
        ReferenceFailed, match=r"with doubles for floats and the device failed.*ILLEGAL_ADDRESS"
    ) as told:
        call_reference(reference, problem, problem.workloads[0], inputs)
    assert "shapes, sizes and launches" in (told.value.hint or "")


def test_a_device_that_was_lost_is_no_reason_to_judge_without_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(tmp_path, "layer_norm.cl", "rows=7", "hidden=50", "eps=1e-5")
    handle = make_referee(RefereeArgument(problem.file, tmp_path / "inputs", 1))
    hostile = [each for each in datasets_for(problem, seed=1, is_thorough=True) if each.is_hostile]
    name = problem.workloads[0].name
    first = handle(PrepareJob(name, hostile[0]))
    assert isinstance(first, Prepared)

    lose_device(monkeypatch)
    for dataset in hostile[1:3]:
        with pytest.raises(ReferenceFailed, match="ILLEGAL_ADDRESS"):
            handle(PrepareJob(name, dataset))


def test_a_device_that_cannot_be_opened_is_not_told_as_the_kernels_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(tmp_path, "argmax.cl", "rows=33", "cols=10")

    def busy(*_: object) -> None:
        raise InfrastructureError("opening the device: OUT_OF_MEMORY")

    monkeypatch.setattr(OpenclSession, "__init__", busy)
    reference = KernelReference(problem).as_reference()
    with pytest.raises(ReferenceFailed, match="raised InfrastructureError: opening the device: OUT_OF_MEMORY"):
        call_reference(reference, problem, problem.workloads[0], {"scores": np.ones((33, 10))})
