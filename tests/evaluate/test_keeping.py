"""A kernel that keeps results in variables of its program is no candidate, however right and quick it is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from busy import believe_every_gain, ignore_busy_machine, ignore_busy_machine_in_runs
from kernelwright.agent.base import Context, Declined, Draft, TemplateContext
from kernelwright.backend.base import Artifact, BuildUnit, StateVariable
from kernelwright.backend.opencl.driver import is_pocl
from kernelwright.evaluate.base import EvaluationRequest, Reproducing
from kernelwright.evaluate.builds.persistent_state import NOTHING, Kept, kept_by
from kernelwright.evaluate.device_queue.jobs import shares_memory
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Outcome, Passed
from kernelwright.template.model import Candidate
from kernelwright.testing.scripted_agent import ScriptedAgent
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem, tune

# ---- the rule ----


def kept(*sizes: int | None) -> Kept:
    return Kept(tuple(StateVariable(f"v{index}", size) for index, size in enumerate(sizes)), is_known=True)


@pytest.mark.parametrize("mine", [(), (4,), (4, 8)])
def test_as_much_as_the_baseline_keeps_is_allowed(mine: tuple[int, ...]) -> None:
    assert kept(*mine).failure(kept(12)) is None


@pytest.mark.parametrize(("mine", "allowed"), [((4,), ()), ((4, 9), (12,)), ((None,), (1 << 40,)), ((4, None), (4,))])
def test_more_than_the_baseline_keeps_is_a_failure_that_names_it(
    mine: tuple[int | None, ...], allowed: tuple[int, ...]
) -> None:
    failure = kept(*mine).failure(kept(*allowed))
    assert failure is not None
    assert (failure.stage, failure.reason) == ("build", "keeps-state")
    assert "v0" in failure.message
    assert "`scratch`" in failure.message


def test_what_is_not_known_is_refused_where_the_baseline_keeps_nothing_for_sure() -> None:
    unknown = Kept((), is_known=False)
    failure = unknown.failure(NOTHING)
    assert failure is not None
    assert failure.reason == "keeps-state"
    assert unknown.failure(unknown) is None
    assert NOTHING.failure(unknown) is None


def test_a_heap_is_allowed_where_the_baseline_has_one() -> None:
    assert kept(None).failure(kept(None)) is None


def test_of_several_programs_the_one_that_keeps_most_counts() -> None:
    unit = BuildUnit("opencl", "", "k.cl", (), (), ())
    states = [(), (StateVariable("a", 4),), (StateVariable("b", 8), StateVariable("c", 8)), None]
    found = kept_by([Artifact(unit, "d", Path(), {}, state=each) for each in states])
    assert (found.byte_count, found.is_known) == (16, False)
    assert kept_by([]) == NOTHING
    assert math.isinf(kept(3, None).byte_count)


def test_a_person_is_told_of_what_nothing_sets_back() -> None:
    assert "v0 (8 bytes)" in kept(8).note(is_set_back=False)
    assert kept(8).note(is_set_back=True) == ""
    assert "asks for" in kept(None).note(is_set_back=True)
    assert "cannot be told" in Kept((), is_known=False).note(is_set_back=True)
    assert NOTHING.note(is_set_back=False) == ""


def test_local_memory_that_only_the_driver_tells_of_is_forgotten() -> None:
    unit = BuildUnit("opencl", "static __global float f_W[8];", "k.cl", (), (), ("f",))
    assert not shares_memory(Artifact(unit, "d", Path(), {"f": {"local_memory_bytes": 0.0}}))
    assert shares_memory(Artifact(unit, "d", Path(), {"f": {"local_memory_bytes": 32.0}}))


# ---- a kernel that looks up what it computed before ----

BODY = "for (int k = 0; k < 400; ++k) v = 0.5f * v + 0.25f / (1.0f + v * v);"
BASELINE = f"""
#if BASE
__global uint count[4];
#endif
__kernel void f(__global const float *x, __global float *y, int n) {{
  int i = get_global_id(0);
  if (i >= n) return;
  float v = x[i];
  {BODY}
#if BASE
  if (i == 0) count[0]++;
#endif
  y[i] = v;
}}
"""
KERNEL = f"""// /// kernelwright
// [parameters]
// MODE = {{ values = [0, 1, 2, 3], default = 0, why = "how" }}
// [launch]
// grid = ["ceil_div(n, 64)"]
// block = ["64"]
// ///
#define SLOTS 16
#if MODE == 1
__global uint K[SLOTS * 4096];
__global float V[SLOTS * 4096];
__global uint T[4096];
#elif MODE == 2
__global const float half_[4] = {{0.5f, 0.5f, 0.5f, 0.5f}};
#elif MODE == 3
static __global uint ticket;
#endif
__constant float quarter[4] = {{0.25f, 0.25f, 0.25f, 0.25f}};
__kernel void f(__global const float *x, __global float *y, int n) {{
  int i = get_global_id(0);
  if (i >= n) return;
#if MODE == 1
  uint key = as_uint(x[i]) ^ 0x80000001u;
  for (int s = 0; s < SLOTS; ++s) if (K[s * 4096 + i] == key) {{ y[i] = V[s * 4096 + i]; return; }}
#endif
  float v = x[i];
#if MODE == 2
  for (int k = 0; k < 400; ++k) v = half_[i & 3] * v + quarter[i & 3] / (1.0f + v * v);
#else
  {BODY}
#endif
#if MODE == 1
  uint s = T[i]++ % SLOTS;
  K[s * 4096 + i] = key; V[s * 4096 + i] = v;
#elif MODE == 3
  if (i == 0) atomic_inc(&ticket);
#endif
  y[i] = v;
}}
"""
PROBLEM = """
name = "iterated"
kernel = "kernel.cl"
entry = "f"
reference = "reference.py:f"
options = ["-cl-std=CL2.0"]
[arguments]
x = { role = "input", dtype = "float32", shape = ["n"] }
y = { role = "output", dtype = "float32", shape = ["n"] }
n = { role = "scalar", dtype = "int32", value = "n" }
[launch]
grid = ["ceil_div(n, 64)"]
block = ["64"]
[baseline]
kernel = "baseline.cl"
entry = "f"
[baseline.launch]
grid = ["ceil_div(n, 64)"]
block = ["64"]
[[workloads]]
n = 4096
"""
REFERENCE = """
def f(x):
    v = x
    for _ in range(400):
        v = 0.5 * v + 0.25 / (1.0 + v * v)
    return v
"""


def write(folder: Path, *, keeps: bool) -> Path:
    folder.mkdir()
    files = {"problem.toml": PROBLEM, "reference.py": REFERENCE, "kernel.cl": KERNEL}
    files["baseline.cl"] = f"#define BASE {int(keeps)}\n{BASELINE}"
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["baseline-keeps-nothing", "baseline-keeps-16-bytes"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalRunner, TuningProblem, bool]]:
    folder = write(tmp_path_factory.mktemp("keeping") / "problem", keeps=request.param)
    machine, subject = LocalMachine(), TuningProblem.load(folder)
    settings = TuneSettings(build_processes=1, data_seed=3, seconds_per_measurement=0.1)
    with machine.runner(subject.problem, machine.device("opencl:cpu", "opencl"), settings) as runner:
        ignore_busy_machine(runner)
        runner.calibrate(subject.baseline)
        yield runner, subject, request.param


def candidate(subject: TuningProblem, mode: int) -> Candidate:
    return Candidate(subject.template, Config({"MODE": mode}))


def outcome(running: tuple[LocalRunner, TuningProblem, bool], mode: int) -> Outcome:
    runner, subject, _ = running
    return runner.submit(EvaluationRequest(candidate(subject, mode))).result(timeout=300)[0]


@pytest.mark.opencl
def test_a_kernel_that_looks_its_results_up_is_refused(running: tuple[LocalRunner, TuningProblem, bool]) -> None:
    found = outcome(running, 1)
    assert isinstance(found, Failed)
    assert (found.stage, found.reason) == ("build", "keeps-state")
    for name in ("K (262,144 bytes)", "V (262,144 bytes)", "T (16,384 bytes)", "540,672 bytes between launches"):
        assert name in found.message


@pytest.mark.opencl
@pytest.mark.parametrize("mode", [0, 2])
def test_tables_of_constants_are_no_state(running: tuple[LocalRunner, TuningProblem, bool], mode: int) -> None:
    assert isinstance(outcome(running, mode), Passed)


@pytest.mark.opencl
def test_a_counter_is_allowed_where_the_baseline_has_one_and_set_back(
    running: tuple[LocalRunner, TuningProblem, bool],
) -> None:
    runner, _, keeps = running
    assert isinstance(outcome(running, 3), Passed if keeps else Failed)
    is_said = any("count (16 bytes)" in note and "nothing sets it back" in note for note in runner.notes)
    assert is_said == (keeps and not is_pocl(LocalMachine().device("opencl:cpu", "opencl")))


@pytest.mark.opencl
def test_it_reproduces_nothing_and_is_compared_with_nothing(
    running: tuple[LocalRunner, TuningProblem, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    believe_every_gain(monkeypatch)
    runner, subject, _ = running
    memoises = candidate(subject, 1)
    assert isinstance(runner, Reproducing)
    found = runner.reproduce(subject.baseline, memoises)
    assert isinstance(found, Failed)
    assert found.reason == "keeps-state"
    comparison = runner.compare([subject.baseline, memoises, candidate(subject, 2)], rounds=6)
    assert comparison is not None
    assert set(comparison.rejected) == {memoises.id}
    assert "K (262,144 bytes)" in comparison.rejected[memoises.id]
    assert comparison.candidate_ids == (subject.baseline.id, candidate(subject, 2).id)


@pytest.mark.opencl
def test_a_run_never_recommends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_busy_machine_in_runs(monkeypatch)
    settings = TuneSettings(
        budget=Budget(),
        searcher="exhaustive",
        build_processes=1,
        finalists=1,
        comparison_rounds=6,
        seconds_per_measurement=0.1,
    )
    result = tune(write(tmp_path / "problem", keeps=False), settings=settings, run=tmp_path / "run")
    found = {event.config["MODE"]: event.outcome for event in result.view.evaluations}
    refused = {mode for mode, each in found.items() if isinstance(each, Failed) and each.reason == "keeps-state"}
    assert refused == {1, 3}
    assert result.best_config is None or result.best_config["MODE"] in (0, 2)


class Memoiser(ScriptedAgent):
    """Writes the kernel that looks its results up as a structure of its own."""

    def template(self, context: TemplateContext) -> Draft | Declined:
        if context.written.tactics:
            return Declined("nothing to lift")
        text = KERNEL.replace("values = [0, 1, 2, 3], default = 0", "values = [1], default = 1")
        return Draft(dataclasses.replace(context.written, text=text, tactics=("memo",)), "it looks results up")

    def debug(self, context: Context, failure: Failed) -> Draft | Declined:
        return Declined("it needs its table")


@pytest.mark.thorough
@pytest.mark.opencl
def test_a_structure_that_looks_its_results_up_never_works(tmp_path: Path) -> None:
    folder = write(tmp_path / "problem", keeps=False)
    (folder / "kernel.cl").write_text(f"#define BASE 0\n{BASELINE}")
    text = PROBLEM[: PROBLEM.index("[baseline]")] + PROBLEM[PROBLEM.index("[[workloads]]") :]
    (folder / "problem.toml").write_text(text)
    settings = OptimizeSettings(
        tune=TuneSettings(budget=Budget(evaluations=4), build_processes=1, comparison_rounds=6, device="opencl:cpu")
    )
    result = optimize(folder, settings=settings, run=tmp_path / "run", agent=Memoiser())
    (memo,) = (node for node in result.tree if "memo" in node.tactics)
    assert not memo.is_working
    assert memo.failure is not None
    assert (memo.failure.stage, memo.failure.reason) == ("build", "keeps-state")
    assert result.winner is None
