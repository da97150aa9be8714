"""`tune --device interpreter`: configurations checked without a GPU, and nothing that looks like a time."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from triton_problems import KERNEL, PROBLEM, TWO, TWO_HEADER, TWO_PROBLEM

from kernelwright.backend.interpreter import backend
from kernelwright.backend.interpreter.session import _free_bytes
from kernelwright.cli.commands.tune import TuneWords, run_tune
from kernelwright.errors import BaselineFailed, MissingDependency, UsageError
from kernelwright.evaluate.device.probe import ProbeReport, select_device
from kernelwright.problem.outcome import Failed
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.untimed.interpret import NOT_CHECKED, NOTHING_TIMED, interpret

IN_PLACE = PROBLEM.replace('x = { role = "input"', 'x = { role = "inout"').replace(
    'y = { role = "output", dtype = "float32", shape = ["n"] }\n', ""
)
TWICE = """import triton
import triton.language as tl


@triton.jit
def scale(x, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * 128 + tl.arange(0, BLOCK)
    tl.store(x + at, factor * tl.load(x + at, mask=at < n), mask=at < n)
"""


@pytest.fixture(scope="module")
def installed():
    for name in ("triton", "torch"):
        pytest.importorskip(name, reason="not installed: pip install 'kernelwright[triton]'")


def words(problem, **changed):
    told = {
        "problem": problem, "budget": "20", "searcher": "auto", "options": (), "seed": 0, "device": "interpreter",
        "jobs": 1, "run": None, "replay": None, "priors": (), "cache": None, "finalists": 5, "rounds": 20,
        "is_json": True, "writes_report": True,
    }  # fmt: skip
    return TuneWords(**{**told, **changed})


def checked(problem, evaluations=20):
    budget = Budget(evaluations=evaluations)
    return interpret(problem, settings=TuneSettings(budget=budget, build_processes=1, data_seed=1))


def test_without_triton_it_says_what_to_install(triton_problem, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="needs triton and torch") as caught:
        run_tune(words(triton_problem()))
    assert "kernelwright[triton]" in caught.value.hint
    assert "triton" in backend.InterpreterBackend().unavailable_because()


def test_other_languages_are_refused(saxpy):
    with pytest.raises(UsageError, match="is no Triton kernel"):
        run_tune(words(saxpy))


@pytest.mark.parametrize("option", [{"run": "runs/x"}, {"priors": ("runs/x",)}, {"cache": "hot"}])
def test_what_only_a_run_has_is_refused(triton_problem, option):
    with pytest.raises(UsageError, match="nothing is timed, and no run is made"):
        run_tune(words(triton_problem(), **option))


def test_a_machine_without_a_gpu_is_told_of_it():
    with pytest.raises(MissingDependency) as caught:
        select_device(ProbeReport((), {"cuda": "no driver"}), language="triton")
    assert "--device interpreter" in caught.value.hint


def test_every_configuration_is_checked_and_ordered(installed, triton_problem, capsys):
    assert run_tune(words(triton_problem())) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["timed"] is False
    assert {NOT_CHECKED, NOTHING_TIMED} <= set(told["notes"])
    rows = told["configurations"]
    assert len(rows) == 4
    assert {each["outcome"] for each in rows} == {"right"}
    assert [each["estimate"] for each in rows] == sorted(each["estimate"] for each in rows)
    assert all(each["resources"]["registers_per_thread"] > 0 for each in rows)
    assert "ms" not in json.dumps([[*each] for each in rows])


def test_a_table_says_that_nothing_was_timed(installed, triton_problem, capsys):
    assert run_tune(words(triton_problem(), is_json=False)) == 0
    out = capsys.readouterr().out
    assert "4 of 4 feasible: 4 right" in out
    assert NOT_CHECKED in out
    assert NOTHING_TIMED in out
    assert " ms" not in out


def test_what_the_time_did_not_reach_is_told_with_the_reason(installed, triton_problem):
    settings = TuneSettings(budget=Budget(seconds=1e-3), build_processes=1, data_seed=1)
    found = interpret(triton_problem(), settings=settings)
    reached = [each for each in found.notes if each.startswith("the budget's seconds ended before")]
    assert [
        each.startswith("the budget's seconds ended before 4 of 4 configurations were run") for each in reached
    ] == [True]


def test_a_configuration_that_computes_something_else_is_found(installed, triton_problem):
    kernel = KERNEL.replace("program_id(0) * BLOCK", "program_id(0) * 128")  # right for one value alone
    found = checked(triton_problem(kernel=kernel))
    wrong = [each for each in found.rows if isinstance(each.outcome, Failed)]
    assert {each.config["BLOCK"] for each in wrong} == {256}
    assert {each.config["BLOCK"] for each in found.passed} == {128}
    assert {each.outcome.stage for each in wrong} == {"check"}


def test_a_template_writes_no_file_elsewhere(installed, triton_problem, tmp_path):
    target = tmp_path / "target"
    kernel = f"try:\n    open({str(target)!r}, 'w').close()\nexcept OSError:\n    pass\n\n\n"
    before, after = KERNEL.split("@triton.jit")
    found = checked(triton_problem(kernel=f"{before}{kernel}@triton.jit{after}"))
    assert len(found.passed) == 4
    if any("may write any file" in each for each in found.notes):
        pytest.skip("this system has no fence for writes, which a run's notes say")
    assert not target.exists()


def test_an_element_that_is_changed_twice_in_place_is_found(installed, triton_problem):
    found = checked(triton_problem(kernel=TWICE, problem=IN_PLACE))
    assert {each.config["BLOCK"] for each in found.rows if isinstance(each.outcome, Failed)} == {256}


def test_a_mask_that_is_missing_at_the_edge_fails_the_baseline(installed, triton_problem):
    kernel = KERNEL.replace(", mask=at < n), mask=at < n)", "))")
    with pytest.raises(BaselineFailed, match="odd"):
        checked(triton_problem(kernel=kernel))


def test_what_does_not_build_is_the_configurations_failure(installed, triton_problem):
    kernel = KERNEL.replace("    at = ", "    tl.static_assert(BLOCK != 256)\n    at = ")
    found = checked(triton_problem(kernel=kernel))
    failed = [each for each in found.rows if isinstance(each.outcome, Failed)]
    assert {each.config["BLOCK"] for each in failed} == {256}
    assert {each.outcome.stage for each in failed} == {"build"}


def test_two_kernels_are_launched_one_after_the_other(installed, triton_problem):
    found = checked(triton_problem(header=TWO_HEADER, kernel=TWO, problem=TWO_PROBLEM))
    assert {each.config["BLOCK"] for each in found.passed} == {128, 256}
    wrong = checked(
        triton_problem(
            header=TWO_HEADER, kernel=TWO.replace("found = 0.0", "found = 0.5 * BLOCK - 64"), problem=TWO_PROBLEM
        )
    )
    assert [each.config["BLOCK"] for each in wrong.passed] == [128]


def test_products_of_doubles_are_doubles_whatever_they_are_added_to(tmp_path):
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    (tmp_path / "product.py").write_text(
        "from kernelwright.backend.interpreter.session import launch_interpreted, start_interpreter\n"
        "start_interpreter()\n"
        "import torch, triton, triton.language as tl\n\n\n"
        "@triton.jit\ndef product(a, b, c, N: tl.constexpr):\n"
        "    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]\n"
        "    total = tl.zeros((N, N), dtype=tl.float32)\n"
        "    total = tl.dot(tl.load(a + at), tl.load(b + at), total)\n"
        "    tl.store(c + at, total.to(c.dtype.element_ty))\n\n\n"
        "a, b = (torch.randn(16, 16, dtype=torch.float64) for _ in range(2))\nc = torch.zeros_like(a)\n"
        "launch_interpreted(product, (1,), {'a': a, 'b': b, 'c': c, 'N': 16})\n"
        "torch.testing.assert_close(c, a @ b)\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "product.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


ROOM = """
from kernelwright.backend.base import BoundLaunch, LaunchFailed, PlanStep
from kernelwright.backend.interpreter import session
from kernelwright.errors import InfrastructureError

import resource

session._free_bytes = lambda: 512 << 20
before = resource.getrlimit(resource.RLIMIT_AS)
session._GPU_DRIVERS = ("/proc/self",)
session.limit_memory()
assert resource.getrlimit(resource.RLIMIT_AS) == before
session._GPU_DRIVERS = ()
opened = session.InterpreterSession()
import triton, triton.language as tl

try:
    opened.allocate(1 << 30)
except InfrastructureError as error:
    print(error)


@triton.jit
def grows():
    kept = [tl.zeros((1024, 1024), dtype=tl.float32) + i for i in range(1000)]


step = PlanStep(entry="grows", grid=(1, 1, 1), block=(1, 1, 1), shared_bytes=0, arguments=())
module = {"grows": session._Interpreted(grows, (), (), {})}
try:
    opened.launch([BoundLaunch(module=module, step=step, buffers={})])
except LaunchFailed as error:
    print(error.reason, error.message)
opened.allocate(64 << 20)[:] = 1
"""


def test_arrays_that_the_host_has_no_room_for_are_told_and_the_session_goes_on(installed, tmp_path):
    (tmp_path / "room.py").write_text(ROOM)
    done = subprocess.run([sys.executable, tmp_path / "room.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    allocated, launched = done.stdout.splitlines()
    assert allocated == "there is no room for 1,073,741,824 bytes"
    assert launched.startswith("out-of-memory 'grows' fails in Triton's interpreter: ")


def test_memory_that_files_fill_is_free_in_a_control_group(tmp_path):
    if _free_bytes(tmp_path) is None:
        pytest.skip("this system does not tell how much memory is free")
    limits = {"memory.max": 1000, "memory.current": 990, "memory.stat": "anon 90\ninactive_file 600\nactive_file 200\n"}
    for name, said in limits.items():
        (tmp_path / name).write_text(f"{said}\n")
    assert _free_bytes(tmp_path) == 810
    (tmp_path / "memory.max").write_text("max\n")
    assert _free_bytes(tmp_path) > 810
