"""One KernelBench problem from its file to its record: import, program, optimisation, `ModelNew`, both judgements."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError, KernelwrightError, StoreError, UsageError, UserError
from kernelwright.evaluate.process.worker_process import WorkerProcess, WorkerSettings
from kernelwright.export.subject import ExportedRun
from kernelwright.export.torch.module import model_new, module_file
from kernelwright.insights.verdict_words import tree_verdict_text
from kernelwright.modules.importing import import_module, importer_in
from kernelwright.modules.lowering import lower
from kernelwright.modules.problem_files import KERNELS, MODULE, files_of
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.source.language import Language
from kernelwright.store.run_folder import RunFolder
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.tune import TuningProblem
from kernelwright_bench.modules.command import compare_answer, compared
from kernelwright_bench.modules.official import FACTORY as EVALUATOR
from kernelwright_bench.modules.official import ask_official
from kernelwright_bench.modules.worker import FACTORY as TIMER

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SolveSettings:
    """What every problem is given."""

    optimize: OptimizeSettings
    machine: OneDevice
    rounds: int
    modes: tuple[str, ...]
    """Of compiling, beside eager."""
    most_s: float
    """For the rounds of one comparison."""
    timeout_s: float
    """For one comparison, and for one answer of the official evaluator."""
    checkout: Path
    trials: int = 3
    library: tuple[str, ...] = ()
    """Operators that PyTorch's library computes in the answer."""

    @property
    def place(self) -> str:
        """Of the tensors: `cuda` or `cpu`."""
        return "cpu" if self.machine.known.kind == "cpu" else "cuda"


class Interrupted(Exception):
    """A person stopped the run; the problem under way has no record."""


class OneDevice(LocalMachine):
    """This machine with a device that is known: no problem looks for it again."""

    def __init__(self, device: DeviceInfo) -> None:
        super().__init__()
        self.known = device

    def device(self, selector: str | None, language: Language) -> DeviceInfo:
        """The one, whatever the selector."""
        return self.known


def chosen_machine(selector: str | None) -> OneDevice:
    """The first GPU with CUDA, else the CPU with OpenCL.

    Raises:
        UsageError: what fits the selector is neither.
        MissingDependency: there is neither.
    """
    machine, languages, refused = LocalMachine(), cast("tuple[Language, ...]", ("cuda", "opencl")), None
    for language in languages:
        try:
            device = machine.device(selector, language)
        except UserError as error:
            refused = refused or error
            continue
        if language == "opencl" and device.kind != "cpu":
            raise UsageError(
                f"{device.id} is a GPU behind OpenCL, and PyTorch's tensors are not there",
                hint="name a CUDA device or a CPU",
            )
        return OneDevice(device)
    assert refused is not None
    raise refused


@dataclass(frozen=True, slots=True)
class SolveWorkers:
    """The processes that run people's files, one after the other for each problem; each forgets the last one."""

    importer: WorkerProcess
    timer: WorkerProcess
    evaluator: WorkerProcess
    is_early: bool
    """Whether they load PyTorch while others work, which would disturb the times of a CPU device."""

    @classmethod
    @contextlib.contextmanager
    def started(cls, *, is_early: bool) -> Iterator[SolveWorkers]:
        """With one folder for compiled extensions, so that the evaluator finds what the timer has compiled."""
        with tempfile.TemporaryDirectory(prefix="kernelwright-judges-") as scratch, contextlib.ExitStack() as stack:
            folder = Path(scratch)
            (folder / "extensions").mkdir()
            extensions = {"TORCH_EXTENSIONS_DIR": str(folder / "extensions")}

            def worker(name: str, factory: str) -> WorkerProcess:
                settings = WorkerSettings(name, factory, is_early, environment=extensions)
                return stack.enter_context(WorkerProcess(settings, scratch=folder))

            importer = stack.enter_context(importer_in(folder, is_early=is_early))
            yield cls(importer, worker("timer", TIMER), worker("evaluator", EVALUATOR), is_early)

    def expect(self, *workers: WorkerProcess) -> None:
        """Start those that are asked soon."""
        for each in workers:
            if self.is_early:
                each.warm()


def solve(
    file: Path, folder: Path, settings: SolveSettings, workers: SolveWorkers, *, tell: Tell = lambda text: None
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
        if stage != record["stage"]:
            tell(f"{file.stem}: {stage}")
        record["stage"] = stage

    try:
        graph = import_module(file, importer=workers.importer, library=bool(settings.library))
        workers.importer.kill()
        workers.expect(workers.timer, workers.evaluator)
        reach("lower")
        program = lower(graph, library=settings.library)
        record |= {"kernels": len(program.kernels), "library_calls": len(program.calls)}
        problem = folder / "problem"
        problem.mkdir()
        for name, data in files_of(file.stem, file.read_bytes(), graph, program).items():
            (problem / name).write_bytes(_for_place(name, data, settings.place))
        reach("optimize")
        result = optimize(problem, settings=settings.optimize, run=folder / "run", machine=settings.machine)
        if result.reason == "interrupted":
            raise Interrupted
        record["claim"], record["verdict"] = tree_verdict_text(result), result.verdict.kind.value
        reach("export")
        answer = folder / "model_new.py"
        answer.write_bytes(_answer(result, record))
        reach("compare")
        _judge(folder / "problem" / MODULE, answer, settings, workers, record, reach)
    except KernelwrightError as error:
        record["why"] = f"{error.message}; {error.hint}" if error.hint else error.message
    except Interrupted:
        raise
    except Exception as error:  # a fault of ours in one problem, which must not cost the others
        record["why"] = f"{type(error).__name__}: {error}"
    finally:
        for each in (workers.importer, workers.timer, workers.evaluator):
            each.kill()
    reach(record["stage"])
    workers.expect(workers.importer)
    return record


def _for_place(name: str, data: bytes, place: str) -> bytes:
    """The problem's file names the kernels for the CPU; for a GPU those in CUDA."""
    if name != "problem.toml" or place == "cpu":
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
    module: Path, answer: Path, settings: SolveSettings, workers: SolveWorkers, record: dict[str, Any], reach: Tell
) -> None:
    """Ours and the official evaluator's, on the same file and the same build of it."""
    try:
        found = compare_answer(
            module, answer, device=settings.place, rounds=settings.rounds, modes=settings.modes, trials=settings.trials,
            is_cold=True, most_s=settings.most_s, timeout_s=settings.timeout_s, timer=workers.timer,
        )  # fmt: skip
        record["compared"] = {**found, "rows": compared(found) if found["samples_s"] else {}}
    except (UserError, StoreError, InfrastructureError) as error:
        record["compared"] = {"differs": error.message, "rows": {}, "notes": [], "refused": {}, "samples_s": {}}
    workers.timer.kill()
    reach("official")
    if settings.place == "cpu":
        record["official"] = {"is_asked": False, "why": "it needs CUDA, and the answer is for CPU tensors"}
        return
    record["official"] = ask_official(
        settings.checkout, module, answer, timeout_s=settings.timeout_s, evaluator=workers.evaluator
    )
