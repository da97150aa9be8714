"""The referee: every way of being wrong is found and named, and what is right passes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelwright.errors import BaselineFailed, InfrastructureError, ReferenceFailed, ScratchFull, UserError
from kernelwright.evaluate.data.datasets import Dataset, datasets_for, make_inputs
from kernelwright.evaluate.data.freshness import fresh_inputs
from kernelwright.evaluate.data.layout import GUARD_BYTES, BufferLayout, guarded_image, layouts_for
from kernelwright.evaluate.data.tolerance import Allowance
from kernelwright.evaluate.judge.jobs import ToleranceJob
from kernelwright.evaluate.judge.judgement import LaunchFolder, examine_output
from kernelwright.evaluate.judge.referee import (
    FRESH_FACTOR,
    REFEREE_FACTORY,
    CalibrateJob,
    Calibration,
    JudgeJob,
    Judgement,
    Prepared,
    PrepareJob,
    RefereeArgument,
    RestoreJob,
    make_referee,
)
from kernelwright.evaluate.process.worker_process import WorkerProcess, WorkerSettings
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.outcome import Failed, OutputError

Array = np.ndarray[Any, Any]
DECLARED = Dataset("declared-0", 1, "declared")
LARGE = Dataset("large", 2, "large")
SPECIAL = Dataset("special", 3, "special")

MATRIX = """
name = "scaled"
kernel = "k.cl"
entry = "scaled"
reference = "reference.py:scaled"
[arguments]
out = { role = "output", dtype = "float32", shape = ["rows", "columns"] }
x = { role = "input", dtype = "float32", shape = ["rows", "columns"] }
[launch]
grid = ["rows"]
block = ["1"]
[[workloads]]
rows = 5
columns = 40
"""
KERNEL = "__kernel void scaled(__global float *out, __global const float *x) {}"
DOUBLE = "def scaled(x):\n    return 2 * x\n"


class Bench:
    """A problem in a folder, a referee for it, and launches written as the device worker writes them."""

    def __init__(self, folder: Path, *, problem: str = MATRIX, kernel: str = KERNEL, reference: str = DOUBLE) -> None:
        (folder / "problem.toml").write_text(problem)
        (folder / "k.cl").write_text(kernel)
        (folder / "reference.py").write_text(reference)
        self.problem = load_problem(folder / "problem.toml")
        self.workload = self.problem.workloads[0]
        self.argument = RefereeArgument(self.problem.file, folder / "inputs", 1)
        self.out = folder / "out"
        self.referee = make_referee(self.argument)

    def inputs(self, dataset: Dataset = DECLARED) -> dict[str, Array]:
        return make_inputs(self.problem, self.workload, dataset)

    def launch(self, outputs: Mapping[str, Array], dataset: Dataset = DECLARED, **changes: Array) -> Path:
        """What a launch leaves: the dataset's inputs with `changes`, and `outputs`."""
        self.out.mkdir(exist_ok=True)
        left = {**self.inputs(dataset), **changes, **outputs}
        for layout in layouts_for(self.problem, self.workload):
            data = np.ascontiguousarray(left[layout.argument]).reshape(-1).view(np.uint8)
            assert data.size == layout.byte_count
            guarded_image(data).tofile(self.out / f"{layout.argument}.bin")
        return self.out

    def calibrate(self, outputs: Mapping[str, Array], dataset: Dataset = DECLARED, **changes: Array) -> Calibration:
        folder = self.launch(outputs, dataset, **changes)
        result = self.referee(CalibrateJob(self.workload.name, dataset, folder))
        assert isinstance(result, Calibration)
        return result

    def judge(self, outputs: Mapping[str, Array], dataset: Dataset = DECLARED, **changes: Array) -> Judgement:
        return self.verdict(self.launch(outputs, dataset, **changes), dataset)

    def verdict(self, folder: Path, dataset: Dataset = DECLARED) -> Judgement:
        result = self.referee(JudgeJob(self.workload.name, dataset, folder))
        assert isinstance(result, Judgement)
        return result


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A calibrated elementwise problem."""
    made = Bench(tmp_path)
    made.calibrate({"out": 2 * made.inputs()["x"]})
    return made


def poke(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def failure(verdict: Judgement) -> Failed:
    assert verdict.failure is not None
    assert verdict.errors == ()
    assert verdict.failure.stage == "check"
    return verdict.failure


def poisoned(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    filled: Array = np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype)
    return filled.reshape(shape)


# Wrong in each way


@pytest.mark.parametrize(
    ("name", "offset", "expected"),
    [
        ("out", GUARD_BYTES + 800, "'out' of shape (5, 40): 1 element past its end; 4 guard bytes"),
        ("out", GUARD_BYTES + 800 + 40, "'out' of shape (5, 40): 11 elements past its end"),
        ("x", GUARD_BYTES - 12, "'x' of shape (5, 40): 3 elements before its start"),
        ("x", 0, "'x' of shape (5, 40): 16384 elements before its start"),
    ],
)
def test_a_write_outside_of_any_buffer_is_out_of_bounds(bench: Bench, name: str, offset: int, expected: str) -> None:
    folder = bench.launch({"out": 2 * bench.inputs()["x"]})
    poke(folder / f"{name}.bin", offset, b"\0\0\0\0")
    found = failure(bench.verdict(folder))
    assert found.reason == "out-of-bounds"
    assert expected in found.message
    assert found.workload == bench.workload.name
    assert "declared-0" in found.message


def test_scratch_that_only_the_candidate_knows_is_guarded_too(bench: Bench) -> None:
    folder = bench.launch({"out": 2 * bench.inputs()["x"]})
    guarded_image(np.zeros(33, np.uint8)).tofile(folder / "partial.bin")
    assert bench.verdict(folder).failure is None
    poke(folder / "partial.bin", GUARD_BYTES + 33, b"\0")
    found = failure(bench.verdict(folder))
    assert found.reason == "out-of-bounds"
    assert "'partial'" in found.message


def test_a_changed_input_is_found_even_when_the_output_fits_it(bench: Bench) -> None:
    x = bench.inputs()["x"].copy()
    x[3, 7] = 4.0
    found = failure(bench.judge({"out": 2 * x}, x=x))
    assert found.reason == "input-changed"
    assert "x[3, 7]" in found.message
    assert "1 of 200" in found.message


def test_input_bytes_count_not_values(tmp_path: Path) -> None:
    problem = MATRIX.replace('"columns"] }\n[launch]', '"columns"], distribution = "constant", value = 0.0 }\n[launch]')
    bench = Bench(tmp_path, problem=problem)
    bench.calibrate({"out": np.zeros((5, 40), np.float32)})
    minus_zero = np.full((5, 40), -0.0, np.float32)
    assert failure(bench.judge({"out": minus_zero}, x=minus_zero)).reason == "input-changed"


def test_elements_that_were_never_written_are_counted(bench: Bench) -> None:
    out = 2 * bench.inputs()["x"]
    out[4, 30:] = poisoned((10,))
    found = failure(bench.judge({"out": out}))
    assert found.reason == "unwritten"
    assert "10 of 200" in found.message
    assert "out[4, 30]" in found.message


@pytest.mark.parametrize(("value", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_a_value_that_is_not_finite_is_named(bench: Bench, value: float, shown: str) -> None:
    out = 2 * bench.inputs()["x"]
    out[1, 2] = value
    found = failure(bench.judge({"out": out}))
    assert found.reason == "not-finite"
    assert f"out[1, 2] = {shown}" in found.message


def test_a_mismatch_names_the_worst_element_and_lists_others(bench: Bench) -> None:
    out = 2 * bench.inputs()["x"]
    out[0, 0] += np.float32(0.01)
    out[2, 39] = 7.25
    found = failure(bench.judge({"out": out}))
    assert found.reason == "mismatch"
    assert "2 of 200" in found.message
    assert "out[2, 39] = 7.25" in found.message
    assert found.log.splitlines()[0].startswith("out[2, 39]")
    assert found.log.splitlines()[1].startswith("out[0, 0]")
    assert "allowed:" in found.log


@pytest.mark.parametrize(
    "cheat",
    [
        np.zeros_like,
        lambda x: x,
        lambda x: np.vstack([2 * x[:1], np.zeros_like(x[1:])]),
        lambda x: (2 * x).astype(np.float16).astype(np.float32),
        lambda x: np.float32(2) * np.roll(x, 1, axis=1),
    ],
    ids=["zeros", "input-returned", "first-row-only", "half-precision", "shifted"],
)
def test_cheats_are_mismatches(bench: Bench, cheat: Callable[[Array], Array]) -> None:
    assert failure(bench.judge({"out": cheat(bench.inputs()["x"])})).reason == "mismatch"


def test_the_result_for_another_dataset_does_not_pass(bench: Bench) -> None:
    other = Dataset("declared-1", 99, "declared")
    bench.calibrate({"out": 2 * bench.inputs(other)["x"]}, other)
    assert failure(bench.judge({"out": 2 * bench.inputs()["x"]}, other)).reason == "mismatch"


# The machine's failures are no verdict


def test_missing_short_and_linked_files_are_the_machines_failure(bench: Bench) -> None:
    folder = bench.launch({"out": 2 * bench.inputs()["x"]})
    good = (folder / "out.bin").read_bytes()
    (folder / "out.bin").unlink()
    with pytest.raises(InfrastructureError, match="out"):
        bench.verdict(folder)
    (folder / "out.bin").write_bytes(good[:-4])
    with pytest.raises(InfrastructureError, match="expected 131872"):
        bench.verdict(folder)
    (folder / "out.bin").unlink()
    (folder / "elsewhere").write_bytes(good)
    (folder / "out.bin").symlink_to(folder / "elsewhere")
    with pytest.raises(InfrastructureError):
        bench.verdict(folder)
    (folder / "out.bin").unlink()
    os.mkfifo(folder / "out.bin")
    with pytest.raises(InfrastructureError):
        bench.verdict(folder)


def test_a_dataset_that_was_not_calibrated_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(InfrastructureError, match="not calibrated"):
        bench.judge({"out": 2 * bench.inputs()["x"]})


def test_a_scratch_that_cannot_be_written_is_the_machines_failure(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "inputs").write_text("a file where the folder should be")
    with pytest.raises(ScratchFull, match="is full"):
        bench.referee(PrepareJob(bench.workload.name, DECLARED))


# The baseline and the reference


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("def scaled(x):\n    return 2 * x[:3]\n", "shape"),
        ("def scaled(x):\n    return x / 0\n", "finite"),
        ("def scaled(x):\n    raise KeyError('no')\n", "KeyError"),
    ],
)
def test_a_broken_reference_is_the_users_to_fix(tmp_path: Path, reference: str, complaint: str) -> None:
    bench = Bench(tmp_path, reference=reference)
    with pytest.raises(ReferenceFailed, match=complaint):
        bench.referee(PrepareJob(bench.workload.name, DECLARED))


def test_a_reference_that_fails_on_hostile_inputs_only_drops_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, reference="import numpy as np\ndef scaled(x):\n    return np.exp(x * x)\n")
    prepared = bench.referee(PrepareJob(bench.workload.name, LARGE))
    assert isinstance(prepared, Prepared)
    assert prepared.dropped is not None
    assert prepared.files["x"].is_file()
    calibration = bench.calibrate({"out": np.zeros((5, 40), np.float32)}, LARGE)
    assert calibration.dropped is not None
    assert "'large'" in calibration.dropped
    with pytest.raises(UserError):
        bench.judge({"out": np.zeros((5, 40), np.float32)}, LARGE)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda x: 3 * x, "not what the reference computes"),
        (lambda x: np.vstack([2 * x[:4], 2 * x[:1]]), "not what the reference computes"),
        (lambda x: np.where(x == x.max(), np.float32("nan"), 2 * x), "not finite"),
        (lambda x: np.vstack([2 * x[:4], poisoned((1, 40))]), "never written"),
    ],
    ids=["other-function", "one-row-wrong", "nan", "unwritten"],
)
def test_a_wrong_baseline_is_the_users_to_fix(tmp_path: Path, spoil: Callable[[Array], Array], complaint: str) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(BaselineFailed, match=complaint) as caught:
        bench.calibrate({"out": spoil(bench.inputs()["x"])})
    assert caught.value.hint
    assert "out[" in str(caught.value)


def test_a_baseline_that_is_a_little_wrong_everywhere_or_at_one_place_is_wrong(tmp_path: Path) -> None:
    bench = Bench(tmp_path, problem=MATRIX.replace("columns = 40", "columns = 4000"))
    right = 2 * bench.inputs()["x"]
    assert bench.calibrate({"out": right * np.float32(1 + 3e-4)}).dropped is None
    with pytest.raises(BaselineFailed, match=r"relative error 0\.005"):
        bench.calibrate({"out": right * np.float32(1.005)})
    right[4, 3999] += np.float32(0.1)
    with pytest.raises(BaselineFailed, match=r"1 of 20000 elements differ.*out\[4, 3999\]"):
        bench.calibrate({"out": right})


def test_a_baseline_that_changes_its_inputs_is_wrong_even_on_hostile_data(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    x = bench.inputs(LARGE)["x"]
    with pytest.raises(BaselineFailed, match="were changed"):
        bench.calibrate({"out": 2 * x}, LARGE, x=x + 1)


def test_a_baseline_that_overflows_on_hostile_data_drops_them_with_a_note(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    x = bench.inputs(LARGE)["x"]
    calibration = bench.calibrate({"out": np.where(x > 30, np.float32("inf"), 2 * x)}, LARGE)
    assert calibration.errors == ()
    assert calibration.dropped is not None
    assert "not finite" in calibration.dropped


def test_an_output_too_large_for_its_dtype_says_so(tmp_path: Path) -> None:
    problem = MATRIX.replace('"output", dtype = "float32"', '"output", dtype = "float16"')
    kernel = KERNEL.replace("float *out", "half *out")
    bench = Bench(tmp_path, problem=problem, kernel=kernel, reference="def scaled(x):\n    return 1e6 * x\n")
    with np.errstate(over="ignore"), pytest.raises(BaselineFailed, match="float16 ends at 65504"):
        bench.calibrate({"out": (1e6 * bench.inputs()["x"]).astype(np.float16)})


def test_an_inexact_baseline_widens_the_tolerance_with_a_note(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    x = bench.inputs()["x"]
    rough = 2 * x * np.float32(1 + 2e-4)
    calibration = bench.calibrate({"out": rough})
    assert calibration.factors["out"] > 10
    assert "declare one" in calibration.notes[0]
    assert calibration.errors[0].tolerance_fraction == pytest.approx(1 / 3, rel=1e-3)
    assert bench.judge({"out": 2 * x * np.float32(1 - 4e-4)}).failure is None
    assert failure(bench.judge({"out": 2 * x * np.float32(1 + 9e-4)})).reason == "mismatch"


@pytest.mark.parametrize("columns", [40, 30000])
def test_an_elementwise_kernel_with_an_error_of_a_few_units_is_wrong_however_long_its_rows(
    tmp_path: Path, columns: int
) -> None:
    bench = Bench(tmp_path, problem=MATRIX.replace("columns = 40", f"columns = {columns}"))
    right = 2 * bench.inputs()["x"]
    bench.calibrate({"out": right})
    assert bench.judge({"out": right * np.float32(1 + 2e-7)}).failure is None
    for error in (1e-4, 4e-6):
        found = failure(bench.judge({"out": right * np.float32(1 + error)}))
        assert found.reason == "mismatch"
        assert "for sums of 1" in found.log


@pytest.fixture
def special_bench(tmp_path: Path) -> Bench:
    """relu on inputs that ask for special values."""
    problem = MATRIX.replace('"columns"] }\n[launch]', '"columns"], special = true }\n[launch]')
    assert "special" in problem
    reference = "import numpy as np\ndef scaled(x):\n    return np.where(x < 0, 0 * x, x)\n"
    return Bench(tmp_path, problem=problem, reference=reference)


def relu(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(x < 0, 0 * x, x))


def test_a_kernel_that_swallows_nan_is_wrong_where_special_values_are_asked_for(special_bench: Bench) -> None:
    bench, x = special_bench, special_bench.inputs(SPECIAL)["x"]
    assert np.isnan(x).any()
    assert bench.calibrate({"out": relu(x)}, SPECIAL).dropped is None
    assert bench.judge({"out": relu(x)}, SPECIAL).failure is None
    swallowed = np.fmax(x, np.float32(0))
    found = failure(bench.judge({"out": swallowed}, SPECIAL))
    assert found.reason == "mismatch"
    assert "expected nan" in found.message
    assert "'special'" in found.message


@pytest.mark.parametrize("declares", [False, True])
def test_infinite_results_of_usual_inputs_are_right_where_the_output_says_so(tmp_path: Path, declares: bool) -> None:
    problem = MATRIX.replace('["rows", "columns"] }', '["rows", "columns"], special = true }', int(declares))
    reference = "import numpy as np\ndef scaled(x):\n    return np.where(x < 0, -np.inf, 2 * x)\n"
    bench = Bench(tmp_path, problem=problem, reference=reference)
    (declared, *_) = datasets_for(bench.problem, seed=1, is_thorough=False)
    assert not declared.is_hostile
    x = bench.inputs(declared)["x"]
    right = np.where(x < 0, -np.inf, 2 * x).astype(np.float32)
    if not declares:
        with pytest.raises(ReferenceFailed, match="not finite"):
            bench.calibrate({"out": right}, declared)
        return
    assert bench.calibrate({"out": right}, declared).dropped is None
    assert bench.judge({"out": right}, declared).failure is None
    for wrong in (np.where(x < 0, -1e30, 2 * x), np.where(x < 0, -np.inf, 2.01 * x), np.where(x < 0, np.inf, 2 * x)):
        assert failure(bench.judge({"out": wrong.astype(np.float32)}, declared)).reason == "mismatch"


def test_a_restored_referee_judges_special_values_without_the_baseline(special_bench: Bench) -> None:
    x = special_bench.inputs(SPECIAL)["x"]
    assert special_bench.judge({"out": relu(x)}, SPECIAL).failure is None


def test_special_values_that_the_baseline_gets_wrong_are_dropped_with_a_reason(special_bench: Bench) -> None:
    x = special_bench.inputs(SPECIAL)["x"]
    calibration = special_bench.calibrate({"out": np.fmax(x, np.float32(0))}, SPECIAL)
    assert calibration.dropped is not None
    assert "'special' inputs" in calibration.dropped
    assert "expected nan" in calibration.dropped


def test_results_that_are_not_finite_are_a_mistake_on_all_other_data(special_bench: Bench) -> None:
    x = special_bench.inputs()["x"]
    assert np.isfinite(x).all()
    special_bench.calibrate({"out": relu(x)})
    wrong = relu(x).copy()
    wrong[0, 0] = np.nan
    assert failure(special_bench.judge({"out": wrong})).reason == "not-finite"


DIFFERENCES = """
name = "differences"
kernel = "k.cl"
entry = "differences"
reference = "reference.py:differences"
[arguments]
out = { role = "output", dtype = "float32", shape = ["rows"] }
x = { role = "input", dtype = "float32", shape = ["rows"] }
y = { role = "input", dtype = "float32", shape = ["rows"] }
[launch]
grid = ["rows"]
block = ["1"]
[[workloads]]
rows = 600
"""


def test_small_outputs_are_perturbed_more_often_only_where_once_does_not_do(tmp_path: Path) -> None:
    """Within the tolerance by the first of four perturbations is within that by all; what lies between passes, too."""
    calls = tmp_path / "calls"
    reference = f"def differences(x, y):\n    open({str(calls)!r}, 'a').write('.')\n    return x - y\n"
    bench = Bench(tmp_path, problem=DIFFERENCES, kernel=KERNEL.replace("scaled", "differences"), reference=reference)

    def right(dataset: Dataset) -> Array:
        data = bench.inputs(dataset)
        return np.asarray(data["x"] - data["y"])

    bench.calibrate({"out": right(DECLARED)})  # with the lengths of sums
    before = calls.stat().st_size
    assert bench.calibrate({"out": right(LARGE)}, LARGE).factors == {"out": 1.0}
    assert calls.stat().st_size - before == 2, "what is expected, and one perturbation"
    assert bench.judge({"out": right(LARGE)}, LARGE).failure is None
    assert calls.stat().st_size - before == 2

    referee: Any = bench.referee.__self__  # type: ignore[attr-defined]
    key = (bench.workload.name, LARGE)
    layout = referee._layouts[bench.workload.name][0]
    least = referee._allowances[*key, "out"]
    whole = referee._base(
        bench.workload.name, layout, referee._scales(*key, referee._entry(*key), is_whole=True)["out"]
    )
    assert np.all(least.atol <= whole.atol)
    at = int(np.argmax(whole.atol / least.atol))
    for error, is_right in ((0.5 * (least.atol[at] + whole.atol[at]), True), (3 * whole.atol[at], False)):
        got = right(LARGE)
        got[at] += np.float32(error + whole.rtol * abs(got[at]))
        assert (bench.judge({"out": got}, LARGE).failure is None) == is_right
        assert not referee._least & {(*key, "out")}, "all perturbations were asked"


def test_what_a_device_compares_with_knows_all_perturbations(tmp_path: Path) -> None:
    """A candidate beyond it is out without another look, and one perturbation of a single number may change nothing."""
    problem = DIFFERENCES.replace('"float32", shape = ["rows"] }\nx', '"float32", shape = ["1"] }\nx')
    reference = "def differences(x, y):\n    total = (x * y).sum(keepdims=True)\n    return total - total.round(3)\n"
    kernel = KERNEL.replace("scaled", "differences")
    bench = Bench(tmp_path, problem=problem, kernel=kernel, reference=reference)
    data = bench.inputs(DECLARED)
    total = (data["x"].astype(np.float64) * data["y"]).sum(keepdims=True)
    bench.calibrate({"out": (total - total.round(3)).astype(np.float32)})
    limits: Any = bench.referee(ToleranceJob(bench.workload.name, DECLARED, "limits"))

    referee: Any = bench.referee.__self__  # type: ignore[attr-defined]
    key = (bench.workload.name, DECLARED)
    layout = referee._layouts[bench.workload.name][0]
    whole = referee._scales(*key, referee._entry(*key), is_whole=True)["out"]
    assert limits["out"].atol == pytest.approx(2 * FRESH_FACTOR * referee._base(key[0], layout, whole).atol.max())


def test_a_restored_calibration_judges_as_the_original(bench: Bench) -> None:
    out = 2 * bench.inputs()["x"] * np.float32(1 + 3e-7)
    calibration = bench.calibrate({"out": 2 * bench.inputs()["x"]})
    first = bench.judge({"out": out})
    bench.referee = make_referee(bench.argument)
    bench.referee(RestoreJob(bench.workload.name, DECLARED, calibration.factors))
    again = bench.judge({"out": out})
    assert first.errors == again.errors
    assert first.errors[0].tolerance_fraction > 0


def test_a_declared_tolerance_wins_over_the_derived_one(tmp_path: Path) -> None:
    problem = MATRIX.replace("[launch]", '[tolerance]\nout = { rtol = 0.0, atol = 0.5, because = "test" }\n[launch]')
    bench = Bench(tmp_path, problem=problem)
    x = bench.inputs()["x"]
    assert bench.judge({"out": 2 * x + np.float32(0.4)}).failure is None
    assert failure(bench.judge({"out": 2 * x + np.float32(0.6)})).reason == "mismatch"
    with pytest.raises(BaselineFailed, match="wrong"):
        bench.calibrate({"out": 2 * x + np.float32(0.6)})


# What is right passes


def test_a_right_launch_passes_with_its_error(bench: Bench) -> None:
    verdict = bench.judge({"out": 2 * bench.inputs()["x"]})
    assert verdict.failure is None
    assert [each.output for each in verdict.errors] == ["out"]
    assert 0 <= verdict.errors[0].tolerance_fraction < 0.5
    assert verdict.judge_ms > 0
    assert pickle.loads(pickle.dumps(verdict)) == verdict


def test_every_dataset_is_judged_against_its_own_reference(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for dataset in datasets_for(bench.problem, seed=5, is_thorough=True):
        right = 2 * bench.inputs(dataset)["x"]
        assert bench.calibrate({"out": right}, dataset).dropped is None
        assert bench.judge({"out": right}, dataset).failure is None
        assert failure(bench.judge({"out": np.full_like(right, 1e4)}, dataset)).reason == "mismatch"


def test_prepared_files_hold_the_inputs_and_cannot_be_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    prepared = bench.referee(PrepareJob(bench.workload.name, DECLARED))
    assert isinstance(prepared, Prepared)
    assert set(prepared.files) == {"x"}
    assert np.array_equal(np.fromfile(prepared.files["x"], np.float32).reshape(5, 40), bench.inputs()["x"])
    assert prepared.files["x"].stat().st_mode & 0o222 == 0
    again = bench.referee(PrepareJob(bench.workload.name, DECLARED))
    assert again == prepared


@pytest.mark.parametrize(("cache_bytes", "calls"), [(1, 4), (1 << 20, 2)])
def test_expected_values_are_kept_within_the_memory_limit(tmp_path: Path, cache_bytes: int, calls: int) -> None:
    reference = (
        "from pathlib import Path\ndef scaled(x):\n    with open(FILE, 'a') as f: f.write('.')\n    return 2 * x\n"
    )
    bench = Bench(tmp_path, reference=reference.replace("FILE", repr(str(tmp_path / "calls"))))
    argument = RefereeArgument(bench.problem.file, tmp_path / "inputs", 1, cache_bytes=cache_bytes)
    bench.referee = make_referee(argument)
    for dataset in (DECLARED, LARGE, DECLARED, LARGE):
        bench.referee(PrepareJob(bench.workload.name, dataset))
    assert len((tmp_path / "calls").read_text()) == calls


def test_evicted_expectations_are_computed_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.referee = make_referee(RefereeArgument(bench.problem.file, tmp_path / "inputs", 1, cache_bytes=1))
    datasets = datasets_for(bench.problem, seed=5, is_thorough=True)[:3]
    for dataset in datasets:
        bench.calibrate({"out": 2 * bench.inputs(dataset)["x"]}, dataset)
    for dataset in datasets:
        assert bench.judge({"out": 2 * bench.inputs(dataset)["x"]}, dataset).failure is None
        assert failure(bench.judge({"out": 3 * bench.inputs(dataset)["x"]}, dataset)).reason == "mismatch"


MANY = """
name = "many"
kernel = "k.cl"
entry = "many"
reference = "reference.py:many"
[arguments]
count = { role = "output", dtype = "int64", shape = ["1"] }
flags = { role = "output", dtype = "bool", shape = ["n"] }
narrow = { role = "output", dtype = "float8_e4m3fn", shape = ["n"] }
brain = { role = "output", dtype = "bfloat16", shape = ["n", "2"] }
state = { role = "inout", dtype = "float32", shape = ["n"] }
x = { role = "input", dtype = "float32", shape = ["n"], range = [-2, 2] }
ids = { role = "input", dtype = "uint8", shape = ["n"] }
[launch]
grid = ["1"]
block = ["1"]
[[workloads]]
n = 65
"""
MANY_KERNEL = (
    "__kernel void many(__global long *count, __global uchar *flags, __global uchar *narrow, __global ushort *brain, "
    "__global float *state, __global const float *x, __global const uchar *ids) {}"
)
MANY_REFERENCE = """
import numpy as np
def many(state, x, ids):
    pair = np.stack([x, -x], axis=-1)
    return {"count": [2**53 + 1 + ids.sum()], "flags": x > 0, "narrow": x, "brain": pair,
            "state": state + x}
"""


@pytest.fixture
def many(tmp_path: Path) -> tuple[Bench, dict[str, Array]]:
    """Every kind of output, with a right launch of them."""
    made = Bench(tmp_path, problem=MANY, kernel=MANY_KERNEL, reference=MANY_REFERENCE)
    given = made.inputs()
    x = given["x"]
    fp8, bf16 = (DTYPES[name].numpy_dtype for name in ("float8_e4m3fn", "bfloat16"))
    right = {
        "count": np.array([2**53 + 1 + int(given["ids"].sum(dtype=np.int64))]),
        "flags": x > 0,
        "narrow": x.astype(fp8),
        "brain": np.stack([x, -x], axis=-1).astype(bf16),
        "state": given["state"] + x,
    }
    made.calibrate(right)
    return made, right


def test_every_kind_of_output_passes_when_right(many: tuple[Bench, dict[str, Array]]) -> None:
    bench, right = many
    verdict = bench.judge(right)
    assert verdict.failure is None
    assert [each.output for each in verdict.errors] == list(right)


@pytest.mark.parametrize(
    ("name", "index", "value", "reason"),
    [
        ("count", (0,), 2**53, "mismatch"),
        ("flags", (64,), None, "mismatch"),
        ("flags", (3,), 0xFF, "unwritten"),
        ("narrow", (64,), 400.0, "mismatch"),
        ("narrow", (0,), "poison", "unwritten"),
        ("brain", (64, 1), 9.0, "mismatch"),
        ("brain", (0, 0), "poison", "unwritten"),
        ("brain", (0, 1), np.inf, "not-finite"),
        ("state", (5,), 50.0, "mismatch"),
        ("state", (5,), "poison", "not-finite"),
    ],
)
def test_every_kind_of_output_fails_when_wrong(
    many: tuple[Bench, dict[str, Array]],
    name: str,
    index: tuple[int, ...],
    value: Any,
    reason: str,
) -> None:
    bench, right = many
    wrong = right[name].copy()
    if name == "flags":
        wrong = wrong.view(np.uint8)
        value = 1 - wrong[index] if value is None else value
    if isinstance(value, str):
        wrong[index] = poisoned((1,), wrong.dtype)[0]
    else:
        wrong[index] = value
    found = failure(bench.judge({**right, name: wrong}))
    assert found.reason == reason
    assert f"{name}[{', '.join(map(str, index))}]" in found.message


def test_an_in_place_argument_left_alone_is_wrong(many: tuple[Bench, dict[str, Array]]) -> None:
    bench, right = many
    assert failure(bench.judge({**right, "state": bench.inputs()["state"]})).reason == "mismatch"


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_buffers_are_read_and_examined(tmp_path: Path, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape))
    layout = BufferLayout("out", "output", "float32", shape, 4 * count)
    guarded_image(np.full(count, 1.5, np.float32).view(np.uint8)).tofile(tmp_path / "out.bin")
    launch = LaunchFolder(tmp_path, [layout])
    assert launch.find_out_of_bounds() is None
    got, expected = launch.read(layout), np.full(shape, 1.5)
    allowance = Allowance(0.0, 0.0, "declared", "")
    assert examine_output(layout, got, expected, allowance) == OutputError("out", 0.0, 0.0)
    if count:
        found = examine_output(layout, got, expected + 1, allowance)
        assert isinstance(found, Failed)
        assert "the worst is out = 1.5, expected 2.5" in found.message
    poke(tmp_path / "out.bin", GUARD_BYTES + 4 * count, b"\0")
    damage = launch.find_out_of_bounds()
    assert damage is not None
    assert "1 element past its end" in damage.message


def test_integers_that_the_output_cannot_hold_are_the_references_fault(tmp_path: Path) -> None:
    problem = MATRIX.replace('"output", dtype = "float32"', '"output", dtype = "uint8"')
    kernel = KERNEL.replace("float *out", "uchar *out")
    for reference, complaint in (("300 + 0 * x", "uint8"), ("0 * x + 0.5", "uint8")):
        bench = Bench(tmp_path, problem=problem, kernel=kernel, reference=f"def scaled(x):\n    return {reference}\n")
        with pytest.raises(ReferenceFailed, match=complaint):
            bench.referee(PrepareJob(bench.workload.name, DECLARED))


def test_the_referee_works_in_its_own_process(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    settings = WorkerSettings("referee", REFEREE_FACTORY, bench.argument)
    with WorkerProcess(settings, scratch=tmp_path / "worker") as worker:

        def ask(job: object) -> object:
            return worker.call(job, timeout_s=300)

        bench.referee = ask
        x = bench.inputs()["x"]
        prepared = ask(PrepareJob(bench.workload.name, DECLARED))
        assert isinstance(prepared, Prepared)
        assert np.array_equal(np.fromfile(prepared.files["x"], np.float32), x.reshape(-1))
        assert bench.calibrate({"out": 2 * x}).dropped is None
        assert bench.judge({"out": 2 * x}).failure is None
        assert failure(bench.judge({"out": 3 * x})).reason == "mismatch"
        with pytest.raises(BaselineFailed, match="not what the reference computes"):
            bench.calibrate({"out": 3 * x})


SUMS = MATRIX.replace('out = { role = "output", dtype = "float32", shape = ["rows", "columns"] }', "").replace(
    "[launch]", 'out = { role = "output", dtype = "float32", shape = ["rows"] }\n[launch]'
)


def test_a_sequential_sum_of_the_same_number_passes_and_one_without_a_hundredth_of_its_terms_does_not(
    tmp_path: Path,
) -> None:
    bench = Bench(
        tmp_path,
        problem=SUMS.replace("columns = 40", "columns = 65536"),
        kernel="__kernel void scaled(__global const float *x, __global float *out) {}",
        reference="def scaled(x):\n    return x.sum(axis=1)\n",
    )
    constant = Dataset("constant", 4, "constant")
    x = bench.inputs(constant)["x"]
    bench.calibrate({"out": x.sum(axis=1, dtype=np.float64).astype(np.float32)}, constant)
    assert bench.judge({"out": np.add.accumulate(x, axis=1)[:, -1]}, constant).failure is None
    short = failure(bench.judge({"out": x[:, 655:].sum(axis=1, dtype=np.float64).astype(np.float32)}, constant))
    assert short.reason == "mismatch"


CENTRED = MATRIX.replace("columns = 40", "columns = 8").replace("rows = 5", "rows = 2000").replace(
    'x = { role = "input", dtype = "float32",', 'x = { role = "input", dtype = "float32", range = [0.0, 1.0], '
    'distribution = "uniform",'
)  # fmt: skip


def test_a_timed_launch_may_round_where_its_dataset_had_a_zero_and_no_more(tmp_path: Path) -> None:
    """Where a maximum with 0 hid a place, the dataset knows nothing of how sensitive it is; rows are too short."""
    bench = Bench(
        tmp_path,
        problem=CENTRED,
        reference="import numpy as np\n"
        "def scaled(x):\n    x = np.array(x)\n    return np.maximum(x - x.mean(axis=0), 0)\n",
    )

    def computed(x: Array) -> Array:
        total = np.add.accumulate(x, axis=0)[-1]  # one term after the other in float32
        return np.maximum(x - total / np.float32(2000), np.float32(0))

    def judged(out: Array, x: Array, secret: int) -> Judgement:
        folder = bench.launch({"out": out}, x=x)
        result = bench.referee(JudgeJob(bench.workload.name, DECLARED, folder, secret=secret))
        assert isinstance(result, Judgement)
        return result

    bench.calibrate({"out": computed(bench.inputs()["x"])})
    for secret in range(1, 5):
        x = fresh_inputs(bench.problem, bench.inputs(), secret)["x"]
        out = computed(x)
        assert judged(out, x, secret).failure is None
        assert failure(judged(out + np.float32(1e-4), x, secret)).reason == "mismatch"
