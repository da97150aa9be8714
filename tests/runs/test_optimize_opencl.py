"""Both stages on a real device: a plain kernel becomes a proven, faster template, with no model and no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kernelwright
from busy import ignore_busy_machine_in_runs
from kernelwright.export.run import export_run
from kernelwright.export.subject import ExportedRun
from kernelwright.optimization.optimize import replay_optimize
from kernelwright.results.optimize_result import OptimizeResult

pytestmark = [pytest.mark.opencl, pytest.mark.thorough]

COLUMN_WALK = """__kernel void saxpy(__global const float *x, __global float *y, float a, int n)
{
    const int i = get_global_id(0);
    if (i >= n) {
        return;
    }
    y[i] = a * x[i] + y[i];
}
"""


@pytest.fixture(scope="module")
def optimised(tmp_path_factory: pytest.TempPathFactory, write_saxpy: Callable[..., Path]) -> OptimizeResult:
    folder = tmp_path_factory.mktemp("optimised")
    problem = write_saxpy(folder / "saxpy")
    (problem / "saxpy.cl").write_text(COLUMN_WALK)
    text = (problem / "problem.toml").read_text()
    (problem / "problem.toml").write_text(text.replace("n // 32", "ceil_div(n, 32)").replace("65536", "262144"))
    with pytest.MonkeyPatch.context() as patch:
        ignore_busy_machine_in_runs(patch)
        return kernelwright.optimize(problem, budget="14", run=folder / "run")


def test_a_plain_kernel_gets_a_structure_that_works(optimised: OptimizeResult) -> None:
    working = [node for node in optimised.tree if node.is_working and node.parent is not None]
    assert working
    assert all(node.tactics for node in working)


def test_no_rewrite_computes_anything_else(optimised: OptimizeResult) -> None:
    wrong = [node for node in optimised.tree if node.failure is not None and node.failure.stage == "check"]
    assert wrong == []


def test_the_claim_stands_on_interleaved_rounds_or_the_baseline_is_kept(optimised: OptimizeResult) -> None:
    assert optimised.view.comparison is not None
    assert optimised.speedup is not None
    assert (optimised.winner is not None) == (optimised.speedup.low > 1.0)


def test_the_run_is_repeated_from_its_record_without_a_device(optimised: OptimizeResult, tmp_path: Path) -> None:
    assert optimised.folder is not None
    replay = replay_optimize(optimised.folder, run=tmp_path / "again")
    assert replay.differences == ()
    assert replay.result.speedup == optimised.speedup


def test_the_winner_is_exported_from_its_own_run(optimised: OptimizeResult, tmp_path: Path) -> None:
    if optimised.winner is None:
        pytest.skip("no significant gain on this machine at this moment, so the baseline is kept")
    assert optimised.folder is not None
    files = export_run(optimised.folder, tmp_path / "export", formats=["source"])
    assert "__kernel" in files[0].read_text()
    exported = ExportedRun.read(optimised.folder)  # of the node's own run, whose fastest finalist need not be sure
    assert exported.config == optimised.best_config
    assert exported.result.speedup == optimised.speedup
