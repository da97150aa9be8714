"""The referee as the lanes of a run see it: one process for all of them, asked by one at a time, replaced when it dies.

```
desk = RefereeDesk(problem, settings, scratch=folder)
files = desk.files(workload, dataset)          # inputs, made once
verdict = desk.ask(JudgeJob(...))
```
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelwright.backend.redraw import Closeness
from kernelwright.errors import InfrastructureError, KernelwrightError, ReferenceFailed
from kernelwright.evaluate.data.datasets import Dataset, datasets_for
from kernelwright.evaluate.device.fast_check import OutputBounds
from kernelwright.evaluate.judge.jobs import (
    CACHE_BYTES,
    CACHE_SHARE,
    CalibrateJob,
    Calibration,
    JudgeJob,
    Judgement,
    Prepared,
    PrepareJob,
    RefereeArgument,
    RestoreJob,
    SideBySide,
    ToleranceJob,
)
from kernelwright.evaluate.judge.referee import REFEREE_FACTORY
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.problem.model import Problem

_MEMORY_STAYS = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "MALLOC_ARENA_MAX": "1",
}
"""For the C library: arrays come and go by the hundred, and fresh pages cost more than the arithmetic on them. One
arena for all threads: what one gave back serves the next."""

POLL_S = 0.02
"""Between two questions whether data that are made in the background are there."""

SLOW_REFERENCE_S = 0.5
"""From here on a reference is asked only about timed launches that may support a claim. A guess: about what building
and timing a candidate takes."""

FAULTS = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"})
"""Signals that a reference in C ends its process with, when it leaves its arrays, say."""

RefereeJob = PrepareJob | CalibrateJob | JudgeJob | ToleranceJob | SideBySide

_NEEDS_TOLERANCES = (JudgeJob, ToleranceJob)

Key = tuple[str, Dataset]
"""A workload's name and a dataset."""


class RefereeDesk:
    """Safe in any number of threads; one question at a time."""

    def __init__(self, problem: Problem, settings: EvaluationSettings, *, scratch: Path) -> None:
        self._problem = problem
        self._settings = settings
        self._process = WorkerProcess(
            WorkerSettings(
                name="referee",
                factory=REFEREE_FACTORY,
                argument=RefereeArgument(problem.file, scratch / "inputs", settings.seed, referee_cache_bytes()),
                environment=_MEMORY_STAYS,
                memory_limit_bytes=None,
            ),
            scratch=scratch / "referee",
        )
        self._every = {
            is_thorough: datasets_for(problem, seed=settings.seed, is_thorough=is_thorough)
            for is_thorough in (False, True)
        }
        self.dropped: set[Key] = set()
        """Datasets that no candidate is judged on."""
        self._prepared: dict[Key, Prepared] = {}
        self._bounds: dict[Key, Mapping[str, OutputBounds]] = {}
        self._limits: dict[str, Mapping[str, Closeness | None]] = {}
        self._reference_s: dict[str, float] = {}
        """By workload, what judging a timed launch took of the reference's time."""
        self._calibrated: dict[Key, Mapping[str, float]] = {}
        """Factors of the derived tolerances, for a referee that replaces one that died."""
        self._restored: set[Key] = set()
        self._start = 0
        """Which start of the process `_restored` is about."""
        self._lock = threading.Lock()
        self._making = threading.Lock()
        """Around a question for the files of one dataset: what one is making already, the next one finds made."""
        self._making_ahead = threading.Lock()
        """Around what is made in the background. Who needs one of its datasets meanwhile waits for that one only."""
        self._prefetching: threading.Thread | None = None
        self.is_closed = False

    def datasets(self, workload: str, *, is_thorough: bool) -> tuple[Dataset, ...]:
        """Those to check a workload on, without the dropped ones."""
        every = self._every[is_thorough]
        return tuple(dataset for dataset in every if (workload, dataset) not in self.dropped)

    def files(self, workload: str, dataset: Dataset) -> Mapping[str, Path]:
        """The inputs of a dataset, raw bytes by argument; made at the first question."""
        key = (workload, dataset)
        if key not in self._prepared:
            with self._making:
                if key not in self._prepared:
                    prepared = self.ask(PrepareJob(workload, dataset))
                    assert isinstance(prepared, Prepared)
                    self._prepared[key] = prepared
        return self._prepared[key].files

    def made(self, workload: str, dataset: Dataset) -> Prepared:
        """What making a dataset took; made at the first question."""
        self.files(workload, dataset)
        return self._prepared[workload, dataset]

    def bounds(self, workload: str, dataset: Dataset) -> Mapping[str, OutputBounds]:
        """What a device may compare outputs with; after calibration."""
        key = (workload, dataset)
        if key not in self._bounds:
            with self._making:
                if key not in self._bounds:
                    done = self.ask(ToleranceJob(workload, dataset, "bounds"))
                    assert isinstance(done, dict)
                    self._bounds[key] = done
        return self._bounds[key]

    def timed_dataset(self, workload: str) -> Dataset:
        """Whose inputs those of timed launches are made from: the first, drawn as the problem declares."""
        return self.datasets(workload, is_thorough=True)[0]

    def limits(self, workload: str) -> Mapping[str, Closeness | None]:
        """By output, what a device may compare results of timed launches with; after calibration."""
        if workload not in self._limits:
            done = self.ask(ToleranceJob(workload, self.timed_dataset(workload), "limits"))
            assert isinstance(done, dict)
            self._limits[workload] = done
        return self._limits[workload]

    def judge_timed(self, workload: str, folder: Path, secret: int, unchanged: frozenset[str]) -> Judgement:
        """What the referee says of a timed launch."""
        verdict = self.ask(JudgeJob(workload, self.timed_dataset(workload), folder, unchanged, secret=secret))
        assert isinstance(verdict, Judgement)
        self._reference_s[workload] = verdict.reference_s
        return verdict

    def judging_s(self, workload: str) -> float:
        """What the reference took for the last timed launch that was judged; 0: none was."""
        return self._reference_s.get(workload, 0.0)

    def judges_slowly(self, workload: str) -> bool:
        """Whether the reference takes too long to be asked about every candidate."""
        return self.judging_s(workload) > SLOW_REFERENCE_S

    def prepare(self, workload: str, datasets: Sequence[Dataset]) -> None:
        """Make the inputs of several datasets, and all that calibration needs beside launches, side by side."""
        with self._making_ahead:
            wanted = [each for each in datasets if (workload, each) not in self._prepared]
            jobs = tuple(PrepareJob(workload, each, is_ahead=True) for each in wanted)
            for dataset, reply in zip(wanted, self._side_by_side(jobs), strict=True):
                assert isinstance(reply, Prepared)
                self._prepared[workload, dataset] = reply

    def make_bounds(self, keys: Sequence[Key]) -> None:
        """Have bounds written side by side, for whoever asks for them later."""
        with self._making_ahead:
            wanted = [key for key in keys if key not in self._bounds]
            jobs = tuple(ToleranceJob(*key, "bounds") for key in wanted)
            for key, reply in zip(wanted, self._side_by_side(jobs), strict=True):
                assert isinstance(reply, dict)
                self._bounds[key] = reply

    def _side_by_side(self, jobs: SideBySide) -> tuple[object, ...]:
        """The answers, in order; other questions are answered meanwhile.

        Raises:
            InfrastructureError: they take longer than their references may.
        """
        end_s = time.monotonic() + self._settings.reference_timeout_s * len(jobs)
        while jobs:
            answers = self.ask(jobs)
            if isinstance(answers, tuple):
                return answers
            if time.monotonic() > end_s:
                self._process.kill()
                raise InfrastructureError(f"the referee has not made its data after {len(jobs)} times its time limit")
            time.sleep(POLL_S)
        return ()

    def calibrate(self, job: CalibrateJob) -> Calibration:
        """Judge a launch of the baseline; what it widens holds from now on, also for a referee that comes after."""
        calibration = self.ask(job)
        assert isinstance(calibration, Calibration)
        self._calibrated[job.workload, job.dataset] = calibration.factors
        if calibration.dropped:
            self.dropped.add((job.workload, job.dataset))
        return calibration

    def ask(self, job: RefereeJob) -> object:
        """The referee's answer; when its process dies, that of a new one with the same tolerances.

        Raises:
            ReferenceFailed: the reference fails, or ends its process.
            BaselineFailed: as the referee says.
            InfrastructureError: the process fails twice or in a way of its own, or the run is being stopped.
        """
        try:
            with self._lock:
                try:
                    return self._ask_once(job)
                except WorkerDied:
                    return self._ask_once(job)
        except WorkerDied as error:
            is_of_c = self._problem.reference.is_c and error.signal_name in FAULTS
            if (error.signal_name is None or is_of_c) and not self.is_closed:  # nothing but the user's code does that
                how = f"by {error.signal_name}" if is_of_c else f"with exit status {error.exit_code}"
                raise ReferenceFailed(
                    f"the reference ended its process {how}, twice",
                    hint="a reference returns its result; what it printed:\n" + error.log_tail,
                    location=self._problem.reference.location,
                ) from error
            raise _process_failed(error) from error
        except JobTimeout as error:
            raise _process_failed(error) from error
        except KernelwrightError:
            raise
        except Exception as error:  # a reference can change whatever its process works with
            raise _process_failed(error) from error

    def essential(self, workload: str) -> tuple[Dataset, ...]:
        """The datasets without which nothing can be looked at: the quick ones, which what is timed is made from too."""
        quick = self._every[False]
        return tuple(each for each in self.datasets(workload, is_thorough=True) if each in quick)

    def prefetch(self, workloads: Sequence[str], *, is_essential: bool = False) -> None:
        """Make all inputs and expected values from now on, in a thread, in the order in which calibration asks.

        With `is_essential`, only those of the essential datasets.
        """
        earlier = self._prefetching

        def work() -> None:
            if earlier is not None:
                earlier.join()
            try:
                for workload in workloads:
                    self.prepare(workload, self.essential(workload))
                    if not is_essential:
                        self.prepare(workload, self.datasets(workload, is_thorough=True))
            except KernelwrightError:
                return  # whoever asks for it gets it told

        self._prefetching = threading.Thread(target=work, name="prefetch", daemon=True)
        self._prefetching.start()

    def warm(self) -> None:
        """Start the process without waiting for it."""
        self._process.warm()

    def close(self) -> None:
        """End the process, from any thread; nothing is answered any more."""
        self.is_closed = True
        self._process.kill()
        if self._prefetching is not None and self._prefetching is not threading.current_thread():
            self._prefetching.join(timeout=5.0)

    def _ask_once(self, job: RefereeJob) -> object:
        if self.is_closed:
            raise InfrastructureError("the run is being stopped")
        timeout_s = self._settings.reference_timeout_s
        self._process.warm()
        if self._process.start_count != self._start:
            self._start, self._restored = self._process.start_count, set()
        parts = job if isinstance(job, tuple) else (job,)
        for part in parts:
            key = part.workload, part.dataset
            if isinstance(part, CalibrateJob):
                self._restored.add(key)
            elif isinstance(part, _NEEDS_TOLERANCES) and key in self._calibrated and key not in self._restored:
                self._process.call(RestoreJob(*key, self._calibrated[key]), timeout_s=timeout_s)
                self._restored.add(key)
        return self._process.call(job, timeout_s=timeout_s * len(parts))


def _process_failed(error: Exception) -> InfrastructureError:
    what = str(error) if isinstance(error, KernelwrightError) else f"{type(error).__name__}: {error}"
    return InfrastructureError(
        f"the referee process failed: {what}",
        hint="does the reference need more memory or time than this machine has?",
    )


def referee_cache_bytes() -> int:
    """What the referee may keep in memory: a share of what is free on this host."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return CACHE_BYTES
    found = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    return max(CACHE_BYTES, int(CACHE_SHARE * 1024 * int(found[1]))) if found else CACHE_BYTES
