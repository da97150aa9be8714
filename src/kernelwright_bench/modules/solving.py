"""One KernelBench problem from its file to its record: import, program, optimisation, `ModelNew`, both judgements."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import (
    BudgetTooShort,
    InfrastructureError,
    KernelwrightError,
    UsageError,
    UserError,
)
from kernelwright.evaluate.device.lock import DeviceLock
from kernelwright.evaluate.process.worker_process import WorkerProcess, WorkerSettings
from kernelwright.export.subject import ExportedRun
from kernelwright.export.torch.module import model_new, module_file
from kernelwright.insights.verdict_words import tree_verdict_text
from kernelwright.modules.algebra import rewritten
from kernelwright.modules.graph import Graph
from kernelwright.modules.importing import import_module, importer_in
from kernelwright.modules.lowering import lower
from kernelwright.modules.problem_files import KERNELS, MODULE, files_of
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.source.language import Language
from kernelwright.store.run_folder import RunFolder
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.run_start import run_started
from kernelwright.tuning.tune import TuningProblem
from kernelwright_bench.modules.command import compare_answer, compared
from kernelwright_bench.modules.official import FACTORY as EVALUATOR
from kernelwright_bench.modules.official import ask_official
from kernelwright_bench.modules.parts import share_rows
from kernelwright_bench.modules.table import is_correct
from kernelwright_bench.modules.unsearched import by_rules
from kernelwright_bench.modules.worker import FACTORY as TIMER
from kernelwright_bench.processes import process_pool

PLAIN = "plain.py"
"""The plain program's `ModelNew`, beside an answer that nothing has proven."""
Tell = Callable[[str], None]
_Optimised = Callable[..., dict[str, Any]]
_T = TypeVar("_T")


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
    algebra: bool = False
    """Whether exact algebra rewrites the graph."""
    together: int = 1
    """Problems that get their answers side by side."""

    @property
    def place(self) -> str:
        """Of the tensors: `cuda` or `cpu`."""
        return "cpu" if self.machine.known.kind == "cpu" else "cuda"

    @property
    def is_early(self) -> bool:
        """Whether compilers may work beside an optimisation: on a CPU device they would disturb its times."""
        return self.place == "cuda"


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
    """The processes that run the files of one problem after the other."""

    importer: WorkerProcess
    timer: WorkerProcess
    evaluator: WorkerProcess
    """Fresh for each problem, as the evaluator's own scripts have it."""
    is_early: bool
    """Whether they load PyTorch while others work, which would disturb the times of a CPU device."""

    @classmethod
    @contextlib.contextmanager
    def started(cls, *, is_early: bool, count: int = 1) -> Iterator[SolveWorkers]:
        """With one folder for compiled extensions, so that the evaluator finds what the timer has compiled.

        Args:
            is_early: whether they load PyTorch before they are asked.
            count: problems side by side, whose compilers share the cores.
        """
        with tempfile.TemporaryDirectory(prefix="kernelwright-judges-") as scratch, contextlib.ExitStack() as stack:
            folder = Path(scratch)
            (folder / "extensions").mkdir()
            environment = {"TORCH_EXTENSIONS_DIR": str(folder / "extensions"), **_share_of_cores(count)}

            def worker(name: str, factory: str) -> WorkerProcess:
                settings = WorkerSettings(name, factory, is_early, environment=environment)
                return stack.enter_context(WorkerProcess(settings, scratch=folder))

            importer = stack.enter_context(importer_in(folder, is_early=is_early))
            found = cls(importer, worker("timer", TIMER), worker("evaluator", EVALUATOR), is_early)
            stack.callback(found.kill)
            found.expect(importer)
            yield found

    def kill(self) -> None:
        """End all of them; what is asked next starts anew."""
        for each in (self.importer, self.timer, self.evaluator):
            each.kill()

    def expect(self, *workers: WorkerProcess) -> None:
        """Start those that are asked soon."""
        for each in workers:
            if self.is_early:
                each.warm()


def _share_of_cores(count: int) -> dict[str, str]:
    """What has each of `count` problems side by side use its part of the cores alone: PyTorch takes all otherwise."""
    threads = str(max(1, (os.cpu_count() or 1) // count))
    return {"TORCHINDUCTOR_COMPILE_THREADS": threads, "OMP_NUM_THREADS": threads} if count > 1 else {}


def _set_environment(variables: Mapping[str, str]) -> None:
    os.environ.update(variables)


def solve(
    problems: Sequence[tuple[Path, Path]], settings: SolveSettings, *, tell: Tell = lambda text: None
) -> Generator[dict[str, Any]]:
    """The records of problems, in order, each once nothing of it is left to do.

    As many as `settings.together` get their answers side by side, and take turns on the device where something is
    timed. Then they are judged: side by side up to what is timed, and nothing of them runs beside what a ratio rests
    on. Processes that load PyTorch go on from one problem to the next where none failed. A problem's folder gets
    problem, run and answer, and is emptied before.

    Keys of a record: `stage` that it reached (`import`, `lower`, `optimize`, `check`, `compare`, `official`), `why` it
    did not get further (empty: it did), `seconds` by stage, and of each stage that was passed what it found.

    Args:
        problems: the file and the folder of each.
        settings: for all.
        tell: hears of each stage.

    Raises:
        Interrupted: a person stopped an optimisation.
    """
    count = min(settings.together, len(problems))
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2 * max(1, count)))
        crew = [
            stack.enter_context(SolveWorkers.started(is_early=settings.is_early, count=count)) for _ in range(count)
        ]
        optimisers: Sequence[_Optimised] = [_optimised]  # in this process, which a person's interrupt reaches
        if count > 1:
            optimisers = [stack.enter_context(_Elsewhere(_share_of_cores(count))) for _ in range(count)]
        for begin in range(0, len(problems), max(1, count)):
            batch = zip(problems[begin : begin + count], crew, optimisers, strict=False)
            solving = [_Solving(*each, settings, workers, optimised, tell) for each, workers, optimised in batch]
            yield from _solved_together(solving, settings, pool)


class _Elsewhere:
    """A process of its own for one optimisation after the other; after its death the next has a fresh one."""

    def __init__(self, share: Mapping[str, str]) -> None:
        self._started = partial(process_pool, 1, prepare=_set_environment, given=(share,))
        self._process = self._started()

    def __call__(self, *job: Any) -> dict[str, Any]:
        process = self._process
        try:
            return process.submit(_optimised, *job).result()
        except BrokenExecutor as error:
            process.shutdown()
            self._process = self._started()
            raise InfrastructureError("the process of this optimisation died") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.__exit__(kind, error, trace)


def _solved_together(
    solving: Sequence[_Solving], settings: SolveSettings, pool: ThreadPoolExecutor
) -> Iterator[dict[str, Any]]:
    if len(solving) == 1:
        solving[0].answer(pool)
    else:
        for answered in [pool.submit(each.answer, pool) for each in solving]:
            answered.result()
    for asked in [pool.submit(each.ask_official) for each in solving]:
        asked.result()
    for each in solving:
        with DeviceLock(settings.machine.known.lock_name):
            each.judge()
        yield each.record


class _Solving:
    """One problem on its way from its file to its record."""

    def __init__(
        self,
        file: Path,
        folder: Path,
        settings: SolveSettings,
        workers: SolveWorkers,
        optimised: _Optimised,
        tell: Tell,
    ) -> None:
        self._file, self._folder, self._settings, self._workers, self._tell = file, folder, settings, workers, tell
        self._optimised = optimised
        self._module, self._answer = folder / "problem" / MODULE, folder / "model_new.py"
        self._compiled: dict[str, Any] = {}
        self._official: dict[str, Any] = {}
        """What the official evaluator says; nothing yet where it waits for its timing."""
        self.record: dict[str, Any] = {"name": file.stem, "stage": "import", "why": "", "seconds": {}}

    def answer(self, pool: ThreadPoolExecutor) -> None:
        """From the file to an answer that is checked, with the module compiled beside it."""
        graph = self._reach("import", self._imported)
        self._reach("lower", lambda: self._lower(graph))
        early = pool.submit(self._compile) if self._settings.is_early else None
        job = (self._module.parent, self._folder / "run", self._answer, self._settings.optimize, self._settings.machine)
        self._reach("optimize", lambda: self.record.update(self._optimised(*job)))
        (early or pool.submit(self._compile)).result()
        self._reach("check", self._check)

    def ask_official(self) -> None:
        """Have the official evaluator do all that comes before its timing, on the same build of the answer."""
        if not self.record["why"]:
            begun = time.perf_counter()
            self._official = self._asked_official("check")
            self.record["seconds"]["official check"] = round(time.perf_counter() - begun, 3)

    def judge(self) -> None:
        """Time the answer beside PyTorch, and have the official evaluator time it."""
        self._reach("compare", self._time)
        self._reach("official", self._officially_timed)
        self._workers.evaluator.kill()
        if self.record["why"] or not is_correct(self.record):
            self._workers.kill()  # whatever it did there, the next problem does not meet it

    def _reach(self, stage: str, work: Callable[[], _T]) -> _T:
        """What comes of a stage; None where an earlier one failed, or this one does."""
        if self.record["why"]:
            return cast("_T", None)
        self._tell(f"{self._file.stem}: {stage}")
        self.record["stage"], begun = stage, time.perf_counter()

        def failed(why: str) -> _T:
            self.record["why"] = why
            return cast("_T", None)

        try:
            return _or_why(work, failed)
        finally:
            self.record["seconds"][stage] = round(time.perf_counter() - begun, 3)

    def _compile(self) -> None:
        if not self.record["why"]:
            begun = time.perf_counter()
            self._compiled = self._compared("compile")
            self.record["seconds"]["compile"] = round(time.perf_counter() - begun, 3)

    def _imported(self) -> Graph:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._module.parent.mkdir(parents=True)
        found = import_module(self._file, importer=self._workers.importer, library=bool(self._settings.library))
        self._workers.expect(self._workers.timer, self._workers.evaluator)
        return found

    def _lower(self, graph: Graph) -> None:
        graph, algebra = rewritten(graph) if self._settings.algebra else (graph, ())
        program = lower(graph, library=self._settings.library)
        self.record |= {"kernels": len(program.kernels), "library_calls": len(program.calls), "algebra": [*algebra]}
        files = files_of(self._file.stem, self._file.read_bytes(), graph, program, algebra=algebra)
        for name, data in files.items():
            (self._module.parent / name).write_bytes(_for_place(name, data, self._settings.place))

    def _compared(self, *parts: str) -> dict[str, Any]:
        own = self._settings
        found = _or_why(
            lambda: compare_answer(
                self._module, self._answer, device=own.place, rounds=own.rounds, modes=own.modes, trials=own.trials,
                is_cold=True, most_s=own.most_s, timeout_s=own.timeout_s, timer=self._workers.timer, parts=parts,
            ),
            lambda why: {"differs": why, "notes": [], "refused": {}, "samples_s": {}},
        )  # fmt: skip
        return {**found, "rows": {}}

    def _check(self) -> None:
        found = self._compared("check")
        if found["differs"] and self.record.get("is_unsearched"):  # which nothing has proven before
            self.record |= {"is_unsearched": False, "is_plain": True, "withdrawn": found["differs"]}
            shutil.copyfile(self._answer.with_name(PLAIN), self._answer)
            self._workers.timer.kill()
            self._compile()
            found = self._compared("check")
        self.record["compared"] = found
        if self._compiled["differs"]:
            found["refused"] = dict.fromkeys(self._settings.modes, self._compiled["differs"])

    def _time(self) -> None:
        known = self.record["compared"]
        if known["differs"]:
            return
        found = self._compared("time")
        found["refused"] |= known["refused"]
        taken = ("differs", "refused", "samples_s", "parts_s", "compile_s")
        known |= {name: found[name] for name in taken if name in found}
        known["parts"] = share_rows(known.get("parts_s", []))
        known["rows"] = compared(known) if known["samples_s"] else {}

    def _officially_timed(self) -> None:
        self.record["official"] = self._official or self._asked_official("time")

    def _asked_official(self, part: str) -> dict[str, Any]:
        own = self._settings
        if own.place == "cpu":
            return {"is_asked": False, "why": "it needs CUDA, and the answer is for CPU tensors"}
        return _or_why(
            lambda: ask_official(
                own.checkout, self._module, self._answer, timeout_s=own.timeout_s, evaluator=self._workers.evaluator,
                parts=[part],
            ),
            lambda why: {"is_asked": True, "error": why},
        )  # fmt: skip


def _or_why(work: Callable[[], _T], failed: Callable[[str], _T]) -> _T:
    """What comes of a part of one problem, or what its failure makes; it must not cost the other problems."""
    try:
        return work()
    except Interrupted:
        raise
    except Exception as error:
        return failed(_told(error))


def _optimised(
    problem: Path, run: Path, answer: Path, settings: OptimizeSettings, machine: OneDevice
) -> dict[str, Any]:
    """Optimise a program and write the answer; what the record is told, `why` there is none too."""
    found: dict[str, Any] = {}
    try:
        result = optimize(problem, settings=settings, run=run, machine=machine)
        if result.reason == "interrupted":
            raise Interrupted
        found |= {"claim": tree_verdict_text(result), "verdict": result.verdict.kind.value}
        answer.write_bytes(_answer(result, found))
    except BudgetTooShort as error:  # nothing was judged here, and others judge the answer
        subject = TuningProblem.load(problem)
        started = run_started(subject.problem, machine.known, settings.tune, {}, problem_id="", record={}, space=None)
        claim = f"nothing was: {error.message}"
        plain = model_new(subject.problem, subject.baseline, started, claim)

        def ruled() -> bytes | None:
            steps = by_rules(subject.problem, subject.baseline.template, machine.known)
            return None if steps is None else model_new(subject.problem, steps, started, claim)

        data = _or_why(ruled, lambda why: found.update({"rules_failed": why}))
        found |= {"claim": claim, "is_plain": data is None, "is_unsearched": data is not None}
        answer.with_name(PLAIN).write_bytes(plain)
        answer.write_bytes(data or plain)
    except KernelwrightError as error:
        found["why"] = _told(error)
    return found


def _told(error: Exception) -> str:
    if not isinstance(error, KernelwrightError):
        return f"{type(error).__name__}: {error}"
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _for_place(name: str, data: bytes, place: str) -> bytes:
    """The problem's file names the kernels for the CPU; for a GPU those in CUDA."""
    if name != "problem.toml" or place == "cpu":
        return data
    return re.sub(rb"(?m)^kernel = .*$", f'kernel = "{KERNELS[1]}"'.encode(), data)


def _answer(result: OptimizeResult, record: dict[str, Any]) -> bytes:
    """`ModelNew` of what was used in the end: the fastest that is surely faster, else the plain program itself.

    Where no time was left to compare, it is what the search found fastest: the judges see it in any case.
    """
    assert result.folder is not None
    fastest = result.fastest
    record["is_compared"] = result.view.comparison is not None
    record["is_plain"] = result.used is None
    if result.used is not None:
        (data,) = module_file(ExportedRun.read(result.folder)).values()
        return data
    is_found = not record["is_compared"] and fastest is not None and fastest.index > 0
    record["is_plain"] = not is_found
    folder = result.node_folder(fastest.index) if fastest is not None and is_found else result.folder
    with RunFolder.open(folder, writable=False) as opened:
        subject = TuningProblem.of_run(opened, result.view.started)
    candidate = subject.baseline
    if fastest is not None and is_found:
        config = Config(fastest.best_config) if fastest.best_config else subject.template.default
        candidate = Candidate(subject.template, config)
    return model_new(subject.problem, candidate, result.view.started, record["claim"])
