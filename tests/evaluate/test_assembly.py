"""Inline assembly in OpenCL kernels: refused, unless the problem allows it, and then every claim says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from busy import ignore_busy_machine, ignore_busy_machine_in_runs
from kernelwright.cli.main import app, main
from kernelwright.errors import SpecError
from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.evaluate.builds.persistent_state import ALLOW_ASSEMBLY, NOTHING, kept_by
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.export.run import export_run
from kernelwright.insights.verdict_words import caveats
from kernelwright.problem.config import Config
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.report.page import render_report
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem, tune

NOP = '__asm__ volatile("" : "+r"(n) : : "memory");'
KERNEL = """// /// kernelwright
// [parameters]
// MODE = { values = [0, 1, 2, 3, 4], default = 0 }
// [launch]
// grid = ["ceil_div(n, 64)"]
// block = ["64"]
// ///
#include "more.h"
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
__kernel void f(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
#if MODE == 1
  NOP
#elif MODE == 2
  JOIN(__as, m__) volatile("" : "+r"(n) : : "memory");
#elif MODE == 3
  n = from_a_header(n);
#elif MODE == 4
  n = as_it_is(n);
#endif
  BASE
  if (i < n) y[i] = 2.0f * x[i];
}
"""
MORE = f"""static int from_a_header(int n) {{ {NOP} return n; }}
static int as_it_is(int n) {{ return n; }}
"""
PROBLEM = """{allowed}
kernel = "kernel.cl"
entry = "f"
reference = "reference.py:f"
[arguments]
x = {{ role = "input", dtype = "float32", shape = ["n"] }}
y = {{ role = "output", dtype = "float32", shape = ["n"] }}
n = {{ role = "scalar", dtype = "int32", value = "n" }}
[[workloads]]
n = 4096
"""


def write(folder: Path, *, allowed: str = "", base: str = "") -> Path:
    folder.mkdir()
    (folder / "problem.toml").write_text(PROBLEM.format(allowed=allowed))
    (folder / "kernel.cl").write_text(KERNEL.replace("NOP", NOP).replace("BASE", base))
    (folder / "more.h").write_text(MORE)
    (folder / "reference.py").write_text("def f(x):\n    return 2 * x\n")
    return folder


@pytest.fixture(scope="module", params=["", "assembly = false", "assembly = true"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalRunner, TuningProblem, bool]]:
    folder = write(tmp_path_factory.mktemp("assembly") / "problem", allowed=request.param)
    machine, subject = LocalMachine(), TuningProblem.load(folder)
    settings = TuneSettings(build_processes=1, data_seed=3, seconds_per_measurement=0.1)
    with machine.runner(subject.problem, machine.device("opencl:cpu", "opencl"), settings) as runner:
        ignore_busy_machine(runner)
        runner.calibrate(subject.baseline)
        yield runner, subject, "true" in request.param


@pytest.mark.few(4)
@pytest.mark.opencl
@pytest.mark.parametrize("mode", [1, 2, 3])
def test_a_candidate_with_assembly_is_refused_unless_the_problem_allows_it(
    running: tuple[LocalRunner, TuningProblem, bool], mode: int
) -> None:
    runner, subject, is_allowed = running
    candidate = Candidate(subject.template, Config({"MODE": mode}))
    found, _ = runner.submit(EvaluationRequest(candidate)).result(timeout=300)
    if is_allowed:
        assert isinstance(found, Passed)
        return
    assert isinstance(found, Failed)
    assert (found.stage, found.reason) == ("build", "assembly")
    assert "assembly = true" in found.message
    comparison = runner.compare([subject.baseline, candidate], rounds=6)
    assert comparison is not None
    assert "assembly = true" in comparison.rejected[candidate.id]


@pytest.mark.opencl
def test_functions_that_hold_none_pass_and_what_is_allowed_is_noted(
    running: tuple[LocalRunner, TuningProblem, bool],
) -> None:
    runner, subject, is_allowed = running
    candidate = Candidate(subject.template, Config({"MODE": 4}))
    assert isinstance(runner.submit(EvaluationRequest(candidate)).result(timeout=300)[0], Passed)
    assert any("inline assembly was allowed" in note for note in runner.notes) == is_allowed


@pytest.mark.opencl
def test_a_baseline_with_assembly_is_a_person_s_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "problem", base=NOP)
    with pytest.raises(SystemExit) as exit_:
        main(["tune", "problem", "--device", "opencl:cpu", "--budget", "1", "--jobs", "1"])
    assert exit_.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "the baseline cannot be used: its program holds inline assembly" in told
    assert "problem.toml:2" in told
    assert ALLOW_ASSEMBLY in told
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_what_the_problem_says_is_a_truth_value(tmp_path: Path) -> None:
    assert load_problem(write(tmp_path / "yes", allowed="assembly = true")).allows_assembly
    assert not load_problem(write(tmp_path / "unsaid")).allows_assembly
    with pytest.raises(SpecError, match="assembly"):
        load_problem(write(tmp_path / "wrong", allowed='assembly = "true"'))


def test_nothing_is_allowed_where_no_program_was_seen() -> None:
    assert kept_by([]) == NOTHING
    assert not NOTHING.allows_assembly


@pytest.mark.thorough
@pytest.mark.opencl
def test_every_claim_of_such_a_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_busy_machine_in_runs(monkeypatch)
    settings = TuneSettings(
        budget=Budget(evaluations=5), build_processes=1, comparison_rounds=6, device="opencl:cpu", searcher="exhaustive"
    )
    told = "inline assembly was allowed by the problem"
    for allowed in ("", "assembly = true"):
        run = tmp_path / f"run-{bool(allowed)}"
        tune(write(tmp_path / f"problem-{bool(allowed)}", allowed=allowed), settings=settings, run=run)
        view = RunView.read(run)
        shown = CliRunner().invoke(app, ["show", "run", str(run)]).output
        data = json.loads(CliRunner().invoke(app, ["show", "run", str(run), "--json"]).output)
        written = export_run(run, tmp_path / f"export-{bool(allowed)}", formats=("source", "header", "json"))
        said = [
            *caveats(view), *data["caveats"], render_report(view).split("</header>")[0], shown,
            *(path.read_text() for path in written),
        ]  # fmt: skip
        assert all((told in text.lower()) == bool(allowed) for text in said)
        assert len(caveats(view)) == int(bool(allowed))
        refused = {event.config["MODE"] for event in view.failed if event.outcome.reason == "assembly"}  # type: ignore[union-attr]
        assert refused == (set() if allowed else {1, 2, 3})
