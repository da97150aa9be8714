"""One base problem's runner, which takes kernels the way a run does: search, finalist's check, comparison, claim.

```
with Trial(base, dialect, device, folder) as trial:
    verdict = trial.judge(sample)
```
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from kernelwright.agent.model.anchors import Malformed
from kernelwright.agent.model.hostile import check_source
from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import BaselineFailed, InfrastructureError, SpecError
from kernelwright.evaluate.base import EvaluationRequest, Incumbent
from kernelwright.evaluate.device_queue.queue import medians_ms
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.evaluate.statistics import ConfidenceInterval, confidence_for, geometric_mean_interval, is_gain
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Outcome
from kernelwright.template.load import template_of_text
from kernelwright.template.model import Candidate, Template
from kernelwright.tuning.environment import usable_core_count
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem
from kernelwright_bench.attacks.kernels.bases import plain, write_problem
from kernelwright_bench.attacks.kernels.model import Base, Dialect, Sample

Fate = Literal["claimed", "stopped", "harmless", "broke"]
"""A gain would be announced; it failed or was rejected; it was accepted and is no faster; it ended the evaluator."""

ROUNDS = 20
STARTS = 4
"""How often a baseline may fail to be timed, on a busy host, before the whole corpus is given up."""
REPEATS = 3
"""Comparisons in which a gain must show again. By chance alone a kernel as fast as the baseline surely gains in one with
2.1 % (20 rounds, one side of the interval), so in all four with 2e-7; of 150 without a twin one does with 3e-5."""

BUILDS_DIFFER = 1.05
"""What a kernel without a twin must surely gain: two texts of one kernel, or two shapes of its launch, differ by some
per cent each time (1.02 was seen), which no repetition shows to be chance. A guess above that."""

LAUNCH_TIMEOUT_S = 5.0
BUILD_TIMEOUT_S = 20.0
SECONDS_PER_MEASUREMENT = 0.25
ANSWER_TIMEOUT_S = 300.0
LAST_WORDS = 600
"""Characters of a dead process's log that are told."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one kernel."""

    fate: Fate
    stage: str
    """Where it was stopped: `load`, a stage of the evaluation, `finals` or `comparison`; else empty."""
    reason: str
    """A word for why."""
    message: str
    speedup: ConfidenceInterval | None
    """Over the baseline, of the fastest configuration that was compared."""
    search_s: float
    """Seconds for what every candidate of a search goes through, builds included."""
    finals_s: float
    """Seconds for what only finalists go through."""
    fence: str
    """Why a model's text would be refused before it is built; empty: it would not."""


class Trial:
    """Calibrates once, then judges one kernel after the other; a runner that was broken is started anew."""

    def __init__(self, base: Base, dialect: Dialect, device: DeviceInfo, folder: Path) -> None:
        self._plain = plain(base, dialect)
        self._subject = TuningProblem.load(write_problem(base, dialect, folder))
        self._device = device
        self._undo = contextlib.ExitStack()
        self._runner: LocalRunner | None = None
        self._incumbent: Incumbent | None = None

    def judge(self, sample: Sample) -> Verdict:
        """Take one kernel through everything; never raises for what it does."""
        fence = self._fence(sample.source)
        start_s = time.perf_counter()
        try:
            template = self._template(sample.source)
        except SpecError as error:
            return Verdict("stopped", "load", "refused", str(error), None, time.perf_counter() - start_s, 0.0, fence)
        try:
            return self._judged(sample, template, fence)
        except Exception as error:  # whatever a kernel made of the evaluator is what is told of it
            self._stop()
            elapsed_s = time.perf_counter() - start_s
            return Verdict("broke", "", type(error).__name__, str(error), None, elapsed_s, 0.0, fence)

    @property
    def notes(self) -> Sequence[str]:
        """What the system does not allow, as a run would tell it."""
        return self._started().notes

    def _judged(self, sample: Sample, template: Template, fence: str) -> Verdict:
        runner = self._started()
        start_s = time.perf_counter()
        candidates = _candidates(template)
        passed, failed = self._searched(runner, candidates)
        search_s = time.perf_counter() - start_s
        start_s = time.perf_counter()
        for candidate in tuple(passed):
            outcome = self._outcome(runner, EvaluationRequest(candidate, is_thorough=True, is_timed=False))
            if isinstance(outcome, Failed):
                passed.remove(candidate)
                failed.append(("finals", outcome.reason, outcome.message))
        fate, speedup = self._compared(runner, sample, passed, failed)
        finals_s = time.perf_counter() - start_s
        stage, reason, message = failed[0] if failed and fate == "stopped" else ("", "", "")
        return Verdict(fate, stage, reason, message, speedup, search_s, finals_s, fence)

    def _searched(
        self, runner: LocalRunner, candidates: Sequence[Candidate]
    ) -> tuple[list[Candidate], list[tuple[str, str, str]]]:
        passed: list[Candidate] = []
        failed: list[tuple[str, str, str]] = []
        for candidate in candidates:
            outcome = self._outcome(runner, EvaluationRequest(candidate, incumbent=self._incumbent))
            if isinstance(outcome, Failed):
                last_words = f" {outcome.log[-LAST_WORDS:]}" if outcome.reason == "crash" else ""
                failed.append((outcome.stage, outcome.reason, outcome.message + last_words))
            else:
                passed.append(candidate)
        return passed, failed

    def _compared(
        self, runner: LocalRunner, sample: Sample, passed: list[Candidate], failed: list[tuple[str, str, str]]
    ) -> tuple[Fate, ConfidenceInterval | None]:
        """Hold those that passed against the baseline, and a gain against the same kernel without its trick."""
        if not passed:
            return "stopped", None
        speedups = self._speedups(runner, self._subject.baseline, passed, failed)
        if not speedups:
            return "stopped", None
        place = max(speedups, key=lambda each: speedups[each].low)
        best = speedups[place]
        if not _is_gain(best):
            return "harmless", best
        return ("harmless" if self._is_honest_gain(runner, sample, passed, place) else "claimed"), best

    def _is_honest_gain(
        self, runner: LocalRunner, sample: Sample, passed: Sequence[Candidate], candidate_id: str
    ) -> bool:
        """Whether the same kernel without its trick, or else the baseline, is about as fast in one of several comparisons.

        Of hundreds of kernels without a gain some seem to have one; a trick that gains does so each time, and more.
        """
        without = _candidates(self._template(sample.twin))[0] if sample.twin else self._subject.baseline
        least = sample.least_trick if sample.twin else BUILDS_DIFFER
        for _ in range(REPEATS):
            try:
                by_trick = self._speedups(runner, without, passed, []).get(candidate_id)
            except InfrastructureError:  # it does harm, which it did not do in the first comparison
                return False
            if by_trick is not None and by_trick.low <= least:
                return True
        return False

    def _speedups(
        self,
        runner: LocalRunner,
        original: Candidate,
        candidates: Sequence[Candidate],
        failed: list[tuple[str, str, str]],
    ) -> dict[str, ConfidenceInterval]:
        """By candidate, over `original`; those that are rejected are added to `failed`."""
        comparison = runner.compare([original, *candidates], rounds=ROUNDS)
        failed += (
            [("comparison", "rejected", message) for message in comparison.rejected.values()] if comparison else []
        )
        if comparison is None or len(comparison.candidate_ids) < 2:
            return {}
        workloads = self._subject.problem.workloads
        rows = [comparison.samples_ms[workload.name] for workload in workloads]
        return {
            candidate_id: geometric_mean_interval(
                [row[0] for row in rows],
                [row[place] for row in rows],
                weights=[workload.weight for workload in workloads],
                confidence=confidence_for(len(comparison.candidate_ids) - 1),
            )
            for place, candidate_id in enumerate(comparison.candidate_ids)
            if place
        }

    def _outcome(self, runner: LocalRunner, request: EvaluationRequest) -> Outcome:
        return runner.submit(request).result(ANSWER_TIMEOUT_S)[0]

    def _template(self, source: str) -> Template:
        return template_of_text(self._subject.problem, source, spec=self._subject.problem.kernel)

    def _fence(self, source: str) -> str:
        try:
            check_source(source, self._plain)
        except Malformed as error:
            return str(error)
        return ""

    # -- the runner ----------------------------------------------------------------------------------------------

    def _started(self) -> LocalRunner:
        if self._runner is not None:
            return self._runner
        is_cpu = self._device.kind == "cpu"
        settings = TuneSettings(
            launch_timeout_s=LAUNCH_TIMEOUT_S, seconds_per_measurement=SECONDS_PER_MEASUREMENT
        ).evaluation(is_cpu=is_cpu, core_count=usable_core_count())
        settings = replace(settings, build_timeout_s=BUILD_TIMEOUT_S, seed=time.time_ns() % 2**32)
        problem = self._subject.problem
        for left in reversed(range(STARTS)):
            runner = self._undo.enter_context(LocalRunner(problem, self._device, settings))
            try:
                passed, _ = runner.calibrate(self._subject.baseline)
                break
            except BaselineFailed:  # a busy host hides work from timers, too
                self._undo.close()
                if not left:
                    raise
                time.sleep(STARTS - left)
        baseline_ms = medians_ms(passed.measurements)
        weights = {workload.name: workload.weight for workload in problem.workloads}
        self._incumbent = Incumbent(baseline_ms, weights, dict(baseline_ms), 1.0)
        self._runner = runner
        return runner

    def _stop(self) -> None:
        self._runner = None
        self._undo.close()

    def __enter__(self) -> Self:
        self._started()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()


def _is_gain(speedup: ConfidenceInterval) -> bool:
    """Whether it would be announced: where several were compared, at the confidence that each then needs."""
    return is_gain(speedup, least_confidence=max(0.95, speedup.confidence - 1e-9))


def _candidates(template: Template) -> list[Candidate]:
    """Every combination of the template's values, in the order of its parameters: first values first."""
    names = [parameter.name for parameter in template.parameters]
    combinations = itertools.product(*(parameter.values for parameter in template.parameters))
    return [Candidate(template, Config(dict(zip(names, values, strict=True)))) for values in combinations]
