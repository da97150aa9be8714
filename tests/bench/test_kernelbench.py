"""KernelBench's problems: which are asked for, what the table says, and what the official evaluator is told and says.

The checkouts are of our own writing; a fake evaluator stands where the official one does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import threading
from collections.abc import Generator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from busy import ignore_busy_machine_in_runs
from kernelwright.backend.base import DeviceInfo
from kernelwright.cli.main import main
from kernelwright.errors import BudgetTooShort, InfrastructureError, StoreError, UsageError
from kernelwright.modules.graph import read_graph
from kernelwright.modules.lowering import lower
from kernelwright.modules.problem_files import files_of
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem
from kernelwright_bench.modules import solving, unsearched
from kernelwright_bench.modules.checkout import problems_of
from kernelwright_bench.modules.kernelbench import KernelBenchWords, run_kernelbench
from kernelwright_bench.modules.official import ask_official
from kernelwright_bench.modules.solving import Interrupted, SolveWorkers
from kernelwright_bench.modules.table import disagreements, document, markdown, summary
from kernelwright_bench.modules.unsearched import by_rules
from kernelwright_bench.modules.worker import _made, _Timer

SQUARE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(24)
    def forward(self, x):
        return torch.softmax(self.norm(x), dim=1)

def get_inputs():
    return [torch.randn(40, 24)]

def get_init_inputs():
    return []
"""
SORTED = SQUARE.replace("torch.softmax(self.norm(x), dim=1)", "torch.sort(self.norm(x))[0]")
FORWARDS = {
    "3_Maps": "torch.tanh(x) * torch.sigmoid(x + 1)",
    "4_Scan": "torch.cumsum(x, dim=1)",
    "5_Product": "torch.relu(x @ x.t())",
    "6_Places": "x.max(dim=1)[1]",
    "7_Window": "nn.functional.max_pool2d(x.view(1, 1, 40, 24), 3, 2)",
}
EVALUATOR = """
import litellm

class Result:
    compiled, runtime, ref_runtime = True, 2.0, 3.0
    metadata = {"hardware": "made up", "build": __import__("os").environ["TORCH_EXTENSIONS_DIR"]}

def eval_kernel_against_ref(source, answer, **settings):
    assert "class Model(" in source, source
    if "raises" in answer:
        raise RuntimeError("no such lock")
    if "retry" in answer:
        return None
    if "hangs" in answer:
        while True:
            continue
    found = Result()
    found.correctness = "right" in answer
    found.metadata = {**Result.metadata, "trials": str(settings["num_correct_trials"])}
    return found
"""
CHECKER = """
def validate_kernel_static(code, backend, precision):
    return "pass" not in code, ["word pass"] if "pass" in code else [], []
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    level, package = tmp_path / "kb" / "KernelBench" / "level1", tmp_path / "kb" / "src" / "kernelbench"
    level.mkdir(parents=True)
    package.mkdir(parents=True)
    (level / "2_Softmax.py").write_text(SQUARE)
    for name, forward in FORWARDS.items():
        (level / f"{name}.py").write_text(SQUARE.replace("torch.softmax(self.norm(x), dim=1)", forward))
    (level / "11_Sort.py").write_text(SORTED)
    (level / "notes.txt").write_text("no problem")
    (package / "__init__.py").write_text("from openai import OpenAI\nfrom tqdm import tqdm\n")
    (package / "eval.py").write_text(EVALUATOR)
    (package / "kernel_static_checker.py").write_text(CHECKER)
    return tmp_path / "kb"


def asked(checkout: Path, text: str, *, timeout_s: float = 600.0) -> dict[str, Any]:
    answer = checkout / "answer.py"
    answer.write_text(text)
    module = checkout / "KernelBench" / "level1" / "2_Softmax.py"
    with SolveWorkers.started(is_early=False) as workers:
        return ask_official(
            checkout, module, answer, timeout_s=timeout_s, evaluator=workers.evaluator, needs_cuda=False
        )


def test_a_folder_without_problems_is_refused(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "kernelbench", "nowhere", "--level", "3"])
    assert left.value.code == 2
    assert "nowhere/KernelBench/level3 has no problems" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("ids", "reason"),
    [("2,8", "no problem 8"), ("2,x", "'x' is no number"), ("2,3-1", "'3-1' ends before"), (",", "names no problem")],
)
def test_numbers_that_are_no_problems_are_refused(checkout: Path, ids: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        problems_of(checkout, 1, ids)


def test_a_mode_that_is_not_known_is_refused(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "kernelbench", str(checkout), "--modes", "max-autotun"])
    assert left.value.code == 2
    assert "did you mean 'max-autotune'" in " ".join(capsys.readouterr().err.split())


def test_problems_are_taken_by_number_and_in_the_order_that_is_said(checkout: Path) -> None:
    assert [*problems_of(checkout, 1, "")] == [2, 3, 4, 5, 6, 7, 11]
    assert [*problems_of(checkout, 1, "11, 2,11")] == [11, 2]


@pytest.mark.thorough
def test_an_evaluator_that_raises_gives_no_verdict_and_one_that_hangs_is_ended(checkout: Path) -> None:
    assert asked(checkout, "raises") == {"is_asked": True, "error": "RuntimeError: no such lock"}
    assert "asked 2 times" in asked(checkout, "retry")["error"]
    assert "ended without a result" in asked(checkout, "hangs", timeout_s=3.0)["error"]


def test_an_evaluator_that_is_not_there_gives_no_verdict(tmp_path: Path, checkout: Path) -> None:
    (checkout / "src" / "kernelbench" / "eval.py").unlink()
    assert "No module named 'kernelbench.eval'" in asked(checkout, "right")["error"]


def test_the_evaluator_is_called_as_its_own_scripts_call_it(checkout: Path) -> None:
    found = asked(checkout, "right, does pass")
    assert (found["compiled"], found["is_correct"]) == (True, True)
    assert found["metadata"]["trials"] == "5"
    assert Path(found["metadata"]["build"]).name == "extensions"
    assert found["static"] == {"is_valid": False, "errors": ["word pass"], "warnings": []}
    assert asked(checkout, "another")["is_correct"] is False


def test_an_evaluator_has_checked_an_answer_and_times_it_when_it_is_told_to(checkout: Path) -> None:
    package, timed = checkout / "src" / "kernelbench", checkout / "timed"
    (package / "timing.py").write_text(f"def get_timing_function(): open({str(timed)!r}, 'x').close()\n")
    waits = "    found = Result()\n    from kernelbench import timing; timing.get_timing_function()\n"
    (package / "eval.py").write_text(EVALUATOR.replace("    found = Result()\n", waits))
    module, answer = checkout / "KernelBench" / "level1" / "2_Softmax.py", checkout / "answer.py"
    answer.write_text("right")
    with SolveWorkers.started(is_early=False) as workers:
        ask = partial(ask_official, checkout, module, answer, evaluator=workers.evaluator, needs_cuda=False)
        assert ask(parts=["check"], timeout_s=600.0) == {}
        assert not timed.exists()
        assert ask(parts=["time"], timeout_s=600.0)["is_correct"]
        assert timed.exists()


def record(name: str, ratio: float | None, **more: Any) -> dict[str, Any]:
    """Of an answer that is `ratio` times as fast as eager; None: there is no answer."""
    found: dict[str, Any] = {"name": name, "stage": "official", "why": "", "seconds": {}, "kernels": 1}
    if ratio is None:
        return {**found, "stage": "lower", "why": "aten.sort is not lowered yet", **more}
    row = {"median_ms": 2.0, "answer_speedup": ratio, "low": 0.9 * ratio, "high": 1.1 * ratio}
    compared = {"differs": "", "notes": [], "refused": {}, "rows": {"answer": {"median_ms": 1.0}, "eager": row}}
    return {**found, "compared": compared, **more}


def official(**more: Any) -> dict[str, Any]:
    static = {"is_valid": True, "errors": [], "warnings": []}
    found = {"is_asked": True, "compiled": True, "is_correct": True, "runtime": 1.0, "ref_runtime": 2.0}
    return {**found, "is_excessive": False, "metadata": {}, "static": static, **more}


def test_what_has_no_answer_counts_as_a_problem_and_not_in_the_mean() -> None:
    told = summary([record("a", 2.0), record("b", 0.5), record("c", None), record("d", 2.0)])
    assert (told["problems"], told["correct"]) == (4, 3)
    assert told["all"]["eager"]["fast_p"] == {"0.8": 0.5, "1": 0.5, "1.5": 0.5, "2": 0.0}
    assert told["all"]["eager"]["geometric_mean"]["estimate"] == pytest.approx(2.0 ** (1 / 3))
    assert "compiled" not in told["all"]


def test_an_answer_that_differs_is_neither_correct_nor_fast() -> None:
    wrong = record("a", 9.0)
    wrong["compared"]["differs"] = "result 0 differs"
    told = summary([wrong])
    assert told["correct"] == 0
    assert "eager" not in told["all"]


def test_degenerate_problems_are_in_the_table_and_beside_it() -> None:
    empty = record("a", 4.0)
    empty["compared"]["notes"] = ["degenerate: zeros pass as the result"]
    records = [empty, record("b", 2.0)]
    told = summary(records)
    assert told["all"]["eager"]["geometric_mean"]["estimate"] == pytest.approx(8**0.5)
    assert told["without_degenerate"]["eager"]["geometric_mean"]["estimate"] == pytest.approx(2.0)
    assert "degenerate: zeros pass" in markdown(records, {})


def test_scores_are_told_with_and_without_what_algebra_changed() -> None:
    records = [record("1_A", 4.0, algebra=["sum: a rule"]), record("2_B", 1.0), record("3_C", None)]
    found = summary(records)
    assert [found[key]["problems"] for key in ("all", "without_algebra")] == [3, 2]
    means = [found[key]["eager"]["geometric_mean"]["estimate"] for key in ("all", "without_algebra")]
    assert means == [pytest.approx(2.0), pytest.approx(1.0)]
    text = markdown(records, {})
    assert "exact algebra, sum: a rule" in text
    assert "- Without those that exact algebra changed, to eager: 1x" in text
    assert "- Without those that exact algebra changed, nothing was timed\n" in markdown(records[:1], {})
    assert "exact algebra" not in markdown(records[1:], {})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"is_correct": False, "metadata": {"max_difference": "3"}}, "says wrong: max_difference: 3"),
        ({"compiled": False, "is_correct": False}, "says not compiled"),
        ({"ref_runtime": 2.5}, r"its ratio 2.5 is outside of \[1.8, 2.2\]"),
        ({"is_excessive": True}, "excessive"),
        ({"static": {"is_valid": False, "errors": ["try"], "warnings": []}}, "static checker refuses: try"),
    ],
)
def test_each_disagreement_is_told(changed: dict[str, Any], reason: str) -> None:
    (found,) = disagreements(record("a", 2.0, official=official(**changed)))
    assert re.search(reason, found)


def test_where_both_agree_nothing_is_told() -> None:
    both = record("a", 2.0, official=official())
    assert disagreements(both) == []
    assert document([both], {})["summary"]["official"]["fast_p"]["1.5"] == 1.0
    assert disagreements(record("a", 2.0, official={"is_asked": False, "why": "no GPU"})) == []


def words(checkout: Path, out: Path, ids: str = "") -> KernelBenchWords:
    return KernelBenchWords(checkout, 1, ids, "5", "rules", None, out, 6, "", 60.0, False)


@pytest.mark.thorough
@pytest.mark.opencl
def test_what_has_a_record_is_not_run_again(checkout: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyopencl")
    run: list[str] = []

    def solved(problems: list[tuple[Path, Path]], settings: object, *, tell: object) -> Generator[dict[str, Any]]:
        for file, _ in problems:
            run.append(file.stem)
            yield record(file.stem, None)

    assert run_kernelbench(words(checkout, tmp_path / "out", "11"), solved=solved) == 0
    assert run_kernelbench(words(checkout, tmp_path / "out", "2,11"), solved=solved) == 0
    assert run == ["11_Sort", "2_Softmax"]
    told = json.loads((tmp_path / "out" / "level1.json").read_text())
    assert [each["name"] for each in told["problems"]] == ["2_Softmax", "11_Sort"]
    assert run_kernelbench(words(checkout, tmp_path / "out", "11"), solved=solved) == 0
    assert len(json.loads((tmp_path / "out" / "level1.json").read_text())["problems"]) == 2
    assert "aten.sort is not lowered yet" in (tmp_path / "out" / "level1.md").read_text()
    with pytest.raises(UsageError, match="--together: compilers beside a measurement on a CPU disturb it"):
        run_kernelbench(dataclasses.replace(words(checkout, tmp_path / "out"), together=2), solved=solved)
    with pytest.raises(UsageError, match="was made with the budget '5', and now it is '7'"):
        run_kernelbench(dataclasses.replace(words(checkout, tmp_path / "out"), budget="7"), solved=solved)
    with pytest.raises(UsageError, match="was made with the rounds '6', and now it is '7'"):
        run_kernelbench(dataclasses.replace(words(checkout, tmp_path / "out"), rounds=7), solved=solved)
    file = tmp_path / "out" / "level1" / "002" / "record.json"
    before = file.read_text()
    file.write_text(before.replace("2_Softmax", "2_Other"))
    with pytest.raises(UsageError, match="is of 2_Other, and now it is 2_Softmax"):
        run_kernelbench(words(checkout, tmp_path / "out", "2,11"), solved=solved)
    for damaged in ("{}", json.dumps({**json.loads(before), "compared": {}})):
        file.write_text(damaged)
        with pytest.raises(StoreError, match="no record of a problem"):
            run_kernelbench(words(checkout, tmp_path / "out", "2,11"), solved=solved)


@pytest.mark.opencl
@pytest.mark.parametrize("error", [AttributeError("no such field"), Interrupted()])
def test_a_fault_in_one_problem_is_its_record_and_a_person_who_stops_it_is_obeyed(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    pytest.importorskip("pyopencl")

    def failing(*args: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(solving, "import_module", failing)
    status = run_kernelbench(words(checkout, tmp_path / "out", "11"))
    if isinstance(error, Interrupted):
        assert status == 130
        return
    assert status == 0
    (told,) = json.loads((tmp_path / "out" / "level1.json").read_text())["problems"]
    assert (told["stage"], told["why"]) == ("import", "AttributeError: no such field")


SOFTMAX_GRAPH = {
    "inputs": [
        {"name": "x0", "kind": "input", "target": "0", "shape": [512, 4096], "dtype": "float32",
         "values": {"low": -2.0, "high": 2.0, "deviation": 1.0}},
    ],
    "nodes": [
        {"name": "rows", "op": "aten._softmax.default", "results": [{"shape": [512, 4096], "dtype": "float32"}],
         "arguments": {"self": {"ref": "x0"}, "dim": -1, "half_to_float": False}},
    ],
    "outputs": [{"ref": "rows", "mutates": None}],
    "call": [{"ref": "x0"}],
}  # fmt: skip


def test_where_no_time_is_left_rules_take_the_steps_that_promise_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = read_graph(SOFTMAX_GRAPH)
    for name, data in files_of("softmax", SQUARE.encode(), graph, lower(graph)).items():
        (tmp_path / name).write_bytes(solving._for_place(name, data, "cuda"))
    gpu = DeviceInfo("cuda", "cuda:0", "a GPU", "gpu", {"warp_size": 32, "max_threads_per_block": 1024})
    subject = TuningProblem.load(tmp_path)
    found = by_rules(subject.problem, subject.baseline.template, gpu)
    assert found is not None
    assert "LANES" in dict(found.config), "a block of threads shares a row"
    monkeypatch.setattr(unsearched, "WORTH", 1000.0)
    assert by_rules(subject.problem, subject.baseline.template, gpu) is None


def test_an_answer_that_nothing_has_proven_gives_way_to_the_plain_program_where_it_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[bool] = []
    workers: Any = SimpleNamespace(timer=SimpleNamespace(kill=lambda: killed.append(True)))
    settings: Any = SimpleNamespace(modes=(), is_early=True)
    solved = solving._Solving(tmp_path / "1_A.py", tmp_path, settings, workers, dict, lambda text: None)
    (tmp_path / "model_new.py").write_text("wrong")
    (tmp_path / solving.PLAIN).write_text("plain")
    solved.record["is_unsearched"] = True

    def compared(self: object, *parts: str) -> dict[str, Any]:
        is_wrong = (tmp_path / "model_new.py").read_text() == "wrong"
        return {"differs": "result 0 differs" if is_wrong and parts == ("check",) else "", "rows": {}, "refused": {}}

    monkeypatch.setattr(solving._Solving, "_compared", compared)
    solved._check()
    assert solved.record["compared"]["differs"] == ""
    assert (solved.record["is_plain"], solved.record["withdrawn"]) == (True, "result 0 differs")
    assert killed == [True]


def test_where_rules_fail_the_answer_is_the_plain_program_and_the_table_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, answer = tmp_path / "problem", tmp_path / "model_new.py"
    problem.mkdir()
    graph = read_graph(SOFTMAX_GRAPH)
    for name, data in files_of("softmax", SQUARE.encode(), graph, lower(graph)).items():
        (problem / name).write_bytes(solving._for_place(name, data, "cuda"))

    def without_time(*args: object, **named: object) -> None:
        raise BudgetTooShort("1 s is too short")

    def failing(*args: object) -> None:
        raise KeyError("no such loop")

    monkeypatch.setattr(solving, "optimize", without_time)
    monkeypatch.setattr(solving, "by_rules", failing)
    machine = solving.OneDevice(DeviceInfo("cuda", "cuda:0", "a GPU", "gpu", {"warp_size": 32}))
    found = solving._optimised(problem, tmp_path / "run", answer, OptimizeSettings(), machine)
    assert (found["is_plain"], found["is_unsearched"]) == (True, False)
    assert answer.read_bytes() == answer.with_name(solving.PLAIN).read_bytes()
    assert "class ModelNew" in answer.read_text()
    told = markdown([{**record("a", 2.0), **found}], {"level": 1})
    assert "the plain program; rules failed: KeyError: 'no such loop'" in told


def test_a_fault_beside_an_answer_costs_neither_the_answer_nor_the_other_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object, **named: object) -> None:
        raise EOFError("the reply was cut off")

    monkeypatch.setattr(solving, "ask_official", failing)
    monkeypatch.setattr(solving, "compare_answer", failing)
    settings: Any = SimpleNamespace(
        modes=("compiled",), place="cuda", checkout=tmp_path, timeout_s=1.0, rounds=6, trials=1, most_s=1.0
    )
    workers: Any = SimpleNamespace(timer=None, evaluator=SimpleNamespace(kill=lambda: None), kill=lambda: None)
    solved = solving._Solving(tmp_path / "1_A.py", tmp_path, settings, workers, dict, lambda text: None)
    solved._compile()
    solved.ask_official()
    agrees = {"differs": "", "refused": {}, "notes": [], "samples_s": {}}
    monkeypatch.setattr(solving, "compare_answer", lambda *args, **named: {**agrees, "refused": {}})
    solved._check()
    solved.judge()
    assert (solved.record["stage"], solved.record["why"]) == ("official", "")
    assert solved.record["compared"]["refused"] == {"compiled": "EOFError: the reply was cut off"}
    assert disagreements(solved.record) == ["the official evaluator gave no verdict: EOFError: the reply was cut off"]


class _Deadly:
    """Ends the process that it is sent to."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_after_the_death_of_its_process_the_next_optimisation_has_a_fresh_one(tmp_path: Path) -> None:
    machine = solving.OneDevice(DeviceInfo("cuda", "cuda:0", "a GPU", "gpu", {}))
    with solving._Elsewhere({}) as optimised:
        with pytest.raises(InfrastructureError, match="the process of this optimisation died"):
            optimised(_Deadly())
        found = optimised(tmp_path / "missing", tmp_path / "run", tmp_path / "answer", OptimizeSettings(), machine)
    assert "missing" in found["why"]


@pytest.mark.thorough
@pytest.mark.opencl
def test_problems_that_are_solved_together_have_records_like_those_that_are_solved_alone(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, with compilers beside an optimisation; here that only disturbs times."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("pyopencl")
    ignore_busy_machine_in_runs(monkeypatch)
    monkeypatch.setattr(solving.SolveSettings, "is_early", True)
    machine = solving.chosen_machine(None)
    tune = TuneSettings(budget=Budget(evaluations=1), build_processes=1)
    optimize = OptimizeSettings(tune=tune, memory="off")
    settings = solving.SolveSettings(optimize, machine, 6, (), 60.0, 600.0, checkout, together=2)
    files = problems_of(checkout, 1, "2,11,3").values()
    told = list(solving.solve([(file, tmp_path / file.stem) for file in files], settings))
    assert [each["name"] for each in told] == [file.stem for file in files]
    softmax, sort, maps = told
    assert (sort["stage"], sort["why"].partition("\n")[2].strip()[:10]) == ("lower", "sort: aten")
    for each in (softmax, maps):
        assert (each["stage"], each["why"]) == ("official", ""), each
        assert each["compared"]["differs"] == ""
        assert each["compared"]["rows"]["eager"]["low"] > 0
        stages = ["import", "lower", "optimize", "compile", "check", "official check", "compare", "official"]
        assert sorted(each["seconds"]) == sorted(stages)


@pytest.mark.thorough
@pytest.mark.opencl
def test_a_checkout_is_run_from_end_to_end_on_the_cpu(
    checkout: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_busy_machine_in_runs(monkeypatch)
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("pyopencl")
    words = ["--budget", "1", "--rounds", "6", "--modes", "", "--out", "found", "--json"]
    with pytest.raises(SystemExit) as left:
        main(["bench", "kernelbench", str(checkout), *words])
    captured = capsys.readouterr()
    assert left.value.code == 0, captured.err
    *answered, sort = json.loads(captured.out)["problems"]
    assert len(answered) == 6
    for each in answered:
        assert each["correct"], each
        assert each["compared"]["rows"]["eager"]["low"] > 0
        assert each["official"] == {"is_asked": False, "why": "it needs CUDA, and the answer is for CPU tensors"}
    assert (sort["correct"], sort["stage"]) == (False, "lower")
    assert "aten.sort.default is not lowered" in sort["why"]


@pytest.mark.parametrize("held", [[1.0], threading], ids=["weights", "an extension"])
def test_a_module_is_as_constructed_each_time_whatever_it_holds(held: object) -> None:
    made = list[Any]()

    class Model:
        def __init__(self) -> None:
            self.held = held
            made.append(self)

        def to(self, _: str) -> Any:
            return self

    loaded = SimpleNamespace(Model=Model, get_init_inputs=list)
    torch = SimpleNamespace(manual_seed=lambda _: None)
    first, second = (_made(torch, loaded, "Model", "cpu") for _ in range(2))
    assert first is not second
    assert first.held == second.held == held
    assert (len(made) == 1) == isinstance(held, list), "weights are made once where they can be copied"


def test_a_timer_that_goes_on_to_another_answer_keeps_no_weights_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch, timer = SimpleNamespace(compiler=SimpleNamespace(reset=lambda: None)), _Timer()
    timer._forget(torch, "one.py")
    for name in ("module", "answer", "plain"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    timer._forget(torch, "other.py")
    assert not {"module", "answer", "plain"} & sys.modules.keys()
