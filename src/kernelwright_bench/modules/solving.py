"""One KernelBench problem from its file to its record: import, program, optimisation, `ModelNew`, both judgements."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import InfrastructureError, KernelwrightError, StoreError, UsageError, UserError
from kernelwright.export.subject import ExportedRun
from kernelwright.export.torch.module import model_new, module_file
from kernelwright.insights.verdict_words import tree_verdict_text
from kernelwright.modules.importing import import_module
from kernelwright.modules.lowering import lower
from kernelwright.modules.problem_files import KERNELS, MODULE, files_of
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.run_folder import RunFolder
from kernelwright.tuning.machine import LocalMachine, Machine
from kernelwright.tuning.tune import TuningProblem
from kernelwright_bench.modules.command import compare_answer, compared
from kernelwright_bench.modules.official import ask_official

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SolveSettings:
    """What every problem is given."""

    optimize: OptimizeSettings
    """With the device's id."""
    language: str
    """Of the program: `opencl` or `cuda`."""
    rounds: int
    modes: tuple[str, ...]
    """Of compiling, beside eager."""
    most_s: float
    """For the rounds of one comparison."""
    timeout_s: float
    """For one comparison, and for one answer of the official evaluator."""
    checkout: Path
    trials: int = 3


class Interrupted(Exception):
    """A person stopped the run; the problem under way has no record."""


def chosen_device(selector: str | None) -> tuple[str, str]:
    """The device's id and the language of programs for it: the first GPU with CUDA, else the CPU with OpenCL.

    Raises:
        UsageError: what fits the selector is neither.
        MissingDependency: there is neither.
    """
    machine, refused = LocalMachine(), None
    for language in ("cuda", "opencl"):
        try:
            device = machine.device(selector, "cuda" if language == "cuda" else "opencl")
        except UserError as error:
            refused = refused or error
            continue
        if language == "opencl" and device.kind != "cpu":
            raise UsageError(
                f"{device.id} is a GPU behind OpenCL, and PyTorch's tensors are not there",
                hint="name a CUDA device or a CPU",
            )
        return device.id, language
    assert refused is not None
    raise refused


def solve(
    file: Path, folder: Path, settings: SolveSettings, *, tell: Tell = lambda text: None, machine: Machine | None = None
) -> dict[str, Any]:
    """The record of a problem; `folder` gets the problem, the run and the answer, and is emptied before.

    Keys: `stage` that it reached (`import`, `lower`, `optimize`, `export`, `compare`, `official`), `why` it did not get
    further (empty: it did), `seconds` by stage, and of each stage that was passed what it found.

    Raises:
        Interrupted: a person stopped the optimisation.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    record: dict[str, Any] = {"name": file.stem, "stage": "import", "why": "", "seconds": {}}
    begun = time.perf_counter()

    def reach(stage: str) -> None:
        nonlocal begun
        now = time.perf_counter()
        record["seconds"][record["stage"]], begun = round(now - begun, 3), now
        record["stage"] = stage
        tell(f"{file.stem}: {stage}")

    try:
        graph = import_module(file)
        reach("lower")
        program = lower(graph)
        record["kernels"] = len(program.kernels)
        problem = folder / "problem"
        problem.mkdir()
        for name, data in files_of(file.stem, file.read_bytes(), graph, program).items():
            (problem / name).write_bytes(_in_language(name, data, settings.language))
        reach("optimize")
        result = optimize(problem, settings=settings.optimize, run=folder / "run", machine=machine)
        if result.reason == "interrupted":
            raise Interrupted
        record["claim"], record["verdict"] = tree_verdict_text(result), result.verdict.kind.value
        reach("export")
        answer = folder / "model_new.py"
        answer.write_bytes(_answer(result, record))
        reach("compare")
        _judge(folder / "problem" / MODULE, answer, folder / "build", settings, record, reach)
    except KernelwrightError as error:
        record["why"] = error.message
    reach(record["stage"])
    shutil.rmtree(folder / "build", ignore_errors=True)
    return record


def _in_language(name: str, data: bytes, language: str) -> bytes:
    """The problem's file names the kernels for the CPU; for a GPU those in CUDA."""
    if name != "problem.toml" or language != "cuda":
        return data
    return re.sub(rb"(?m)^kernel = .*$", f'kernel = "{KERNELS[1]}"'.encode(), data)


def _answer(result: OptimizeResult, record: dict[str, Any]) -> bytes:
    """`ModelNew` of what was used in the end: the fastest that is surely faster, else the plain program itself."""
    assert result.folder is not None
    record["is_plain"] = result.used is None
    if result.used is not None:
        (data,) = module_file(ExportedRun.read(result.folder)).values()
        return data
    with RunFolder.open(result.folder, writable=False) as opened:
        subject = TuningProblem.of_run(opened, result.view.started)
    return model_new(subject.problem, subject.baseline, result.view.started, record["claim"])


def _judge(
    module: Path, answer: Path, build: Path, settings: SolveSettings, record: dict[str, Any], reach: Tell
) -> None:
    """Ours and the official evaluator's, on the same file and the same build of it."""
    build.mkdir()
    device = "cuda" if settings.language == "cuda" else "cpu"
    try:
        found = compare_answer(
            module, answer, device=device, rounds=settings.rounds, modes=settings.modes, trials=settings.trials,
            is_cold=True, most_s=settings.most_s, timeout_s=settings.timeout_s, build=build,
        )  # fmt: skip
        record["compared"] = {**found, "rows": compared(found) if found["samples_s"] else {}}
    except (UserError, StoreError, InfrastructureError) as error:
        record["compared"] = {"differs": error.message, "rows": {}, "notes": [], "refused": {}, "samples_s": {}}
    reach("official")
    if device == "cpu":
        record["official"] = {"is_asked": False, "why": "it needs CUDA, and the answer is for CPU tensors"}
        return
    record["official"] = ask_official(settings.checkout, module, answer, timeout_s=settings.timeout_s, build=build)
