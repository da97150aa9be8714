"""Whether shipped choices still hold here: each is proven and measured against its baseline, interleaved.

```
for checked in check(["tuned"]):
    print(checked.kernel, checked.kind, checked.words)
```
The evaluator, the finals' pace and the intervals are those of a run; a choice is only judged differently. It is
*slower* on a workload where the interval lies below 1 and the estimate is below 1 by more than the loss: of its
speedup over the baseline, or of that speedup over the one that was recorded on the same device.
"""

from __future__ import annotations

import math
import secrets
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kernelwright import knobs
from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import BudgetTooShort, InfrastructureError, KernelwrightError, SpecError, UsageError, UserError
from kernelwright.evaluate.base import EvaluationRequest, MeasuringRunner, Paced
from kernelwright.evaluate.statistics import (
    ConfidenceInterval,
    combined_interval,
    confidence_for,
    geometric_mean_interval,
    has_confidence,
    is_gain,
    speedup_interval,
)
from kernelwright.evaluate.words import factor_text, interval_text
from kernelwright.export.choice import SUFFIX, Choice, choice_of, read_choices
from kernelwright.export.subject import ExportedRun
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.problem.toml.file import did_you_mean
from kernelwright.roofline.speed_of_light import Floor, device_ceilings, doubt, doubted, floors
from kernelwright.store.event import BaselineMeasured, Evaluated
from kernelwright.store.run_folder import is_run
from kernelwright.template.load import template_of_text
from kernelwright.template.model import Candidate
from kernelwright.tuning.finals.finals import complete_calibration
from kernelwright.tuning.finals.time_plan import FinalsCosts, FinalsPace
from kernelwright.tuning.interruption import HardLimit
from kernelwright.tuning.listener import Progress, RunListener, SilentListener
from kernelwright.tuning.machine import LocalMachine, Machine
from kernelwright.tuning.objective import medians_ms
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

Kind = Literal["holds", "slower", "wrong", "better", "not checked"]

MOST_SECONDS = 60.0
"""For one kernel, from its first process to its last."""

PLANNED_SHARE = 0.85
"""The share of these seconds that is planned; the rest is for delays, and for ending processes."""

DEFAULT_ROUNDS = 60
DEFAULT_LOSS = 0.02
MOST_RIVALS = 2
"""Others that a choice is measured beside, where there is time."""


@dataclass(frozen=True, slots=True)
class CheckedChoice:
    """What came of one choice."""

    kernel: str
    folder: Path
    kind: Kind
    words: str
    """Why, in one sentence."""
    device: str = ""
    """Where it was measured."""
    speedups: Mapping[str, ConfidenceInterval] = field(default_factory=dict)
    """By workload over the baseline, now; wide enough for all workloads together."""
    recorded: Mapping[str, ConfidenceInterval] = field(default_factory=dict)
    """The same when it was chosen; empty where that was another device."""
    seconds: float = 0.0


def check(
    folders: Sequence[Path | str],
    *,
    device: str | None = None,
    rounds: int = DEFAULT_ROUNDS,
    loss: float = DEFAULT_LOSS,
    seconds: float = MOST_SECONDS,
    listener: RunListener | None = None,
    machine: Machine | None = None,
) -> list[CheckedChoice]:
    """Measure shipped choices against their baselines on this machine now.

    Args:
        folders: stores, exported folders, or runs.
        device: a device id or a part of its name; None: the best one.
        rounds: interleaved rounds, where there is time.
        loss: what a choice may lose before it counts as slower, as a fraction.
        seconds: most for one kernel.
        listener: hears of progress.
        machine: where to run; None: here.

    Returns:
        One for each kernel; what could not be measured is one too, `not checked`.

    Raises:
        UsageError: a number cannot be.
        UserError: a folder holds no choice.
    """
    if not 0 < loss < 1 or rounds < 5 or not seconds > 0:
        raise UsageError(
            f"a loss of {loss:g}, {rounds} rounds, {seconds:g} s",
            hint="the loss lies between 0 and 1, rounds are 5 or more",
        )
    subjects = [each for folder in folders for each in _subjects(Path(folder))]
    settings = TuneSettings(device=device, comparison_rounds=rounds)
    listener, machine = listener or SilentListener(), machine or LocalMachine()
    return [_Check(folder, settings, loss, seconds, machine, listener).run(file) for folder, file in subjects]


def _subjects(folder: Path) -> list[tuple[Path, Path | None]]:
    """Folders with their files of choices; None: the folder is a run.

    Raises:
        UserError: there is none.
    """
    if is_run(folder):
        return [(folder, None)]
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; a folder of choices or a run was expected", hint="say where choices are")
    if not folder.is_dir():
        names = [each.name for each in folder.parent.iterdir()] if folder.parent.is_dir() else []
        raise UserError(
            f"there is no folder {folder}", hint=did_you_mean(folder.name, names) or "say where choices are"
        )
    found = sorted(folder.glob(f"*{SUFFIX}"))
    if not found:
        raise UserError(
            f"{folder} holds no choice: no file there is named *{SUFFIX}",
            hint=f"`kernelwright export RUN --to {folder}` writes one",
        )
    return [(folder, each) for each in found]


class _Check:
    """One kernel's check."""

    def __init__(
        self,
        folder: Path,
        settings: TuneSettings,
        loss: float,
        seconds: float,
        machine: Machine,
        listener: RunListener,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._loss = loss
        self._seconds = seconds
        self._machine = machine
        self._listener = listener
        self._begin_s = time.monotonic()
        self._kernel = folder.name
        self._device: DeviceInfo | None = None

    def run(self, file: Path | None) -> CheckedChoice:
        """Read, prove and measure; what cannot be is told."""
        if file is not None:
            self._kernel = file.name.removesuffix(SUFFIX)
        try:
            choices = read_choices(file) if file is not None else (choice_of(ExportedRun.read(self._folder)),)
            self._kernel = choices[0].kernel
            return self._checked(choices)
        except KernelwrightError as error:
            return self._result("not checked", str(error))
        except OSError as error:
            return self._result("not checked", f"{error.strerror or error}: {error.filename}")

    def _checked(self, choices: Sequence[Choice]) -> CheckedChoice:
        self._listener.on_progress(Progress(phase="prepare", doing=self._kernel))
        language = choices[0].origin.get("language", "")
        if language not in ("opencl", "cuda", "hip", "triton"):
            raise SpecError(f"the choice of {self._kernel!r} is in the language {language!r}, which is unknown")
        device = self._device = self._machine.device(self._settings.device, language)  # type: ignore[arg-type]
        own = [each for each in choices if each.device == device.name]
        choice = (own or list(choices))[0]
        if not any(place >= 0 for place in choice.serves.values()):
            return self._result("holds", "the baseline ships on every workload: nothing to measure")
        with tempfile.TemporaryDirectory(prefix="kernelwright-check-") as scratch:
            _write(Path(scratch), choice)
            subject = TuningProblem.load(Path(scratch) / choice.problem)
            _require_fit(choice, subject)
            rivals = _rivals(choice, choices, subject)
            return self._measured(choice, subject, rivals, recorded=choice.speedups if own else {})

    def _measured(
        self,
        choice: Choice,
        subject: TuningProblem,
        rivals: Sequence[Candidate],
        *,
        recorded: Mapping[str, ConfidenceInterval],
    ) -> CheckedChoice:
        assert self._device is not None
        settings = TuneSettings(
            device=self._settings.device,
            comparison_rounds=self._settings.comparison_rounds,
            data_seed=secrets.randbits(31),
        )
        runner = self._machine.runner(subject.problem, self._device, settings)
        left_s = self._end_s - time.monotonic()
        limit = HardLimit(left_s, stop=runner.stop if isinstance(runner, Paced) else lambda: None)
        try:
            with limit, runner:
                found = self._compared(runner, choice, subject, rivals)
                limit.release()
        except (KeyboardInterrupt, InfrastructureError):
            if not limit.is_over:
                raise
            raise self._too_short() from None
        if isinstance(found, str):
            return self._result("wrong", found)
        return self._judged(choice, subject.problem, found, recorded)

    @property
    def _end_s(self) -> float:
        return self._begin_s + self._seconds

    def _too_short(self) -> BudgetTooShort:
        return BudgetTooShort(
            f"{self._seconds:g} s are too few to prove and measure it here",
            hint="ship smaller workloads or a faster reference",
        )

    # -- measuring -----------------------------------------------------------------------------------------------

    def _compared(
        self, runner: MeasuringRunner, choice: Choice, subject: TuningProblem, rivals: Sequence[Candidate]
    ) -> Mapping[str, tuple[tuple[float, ...], ...]] | str:
        """Samples by workload: a row of the baseline, of each config, of each rival; or why the choice is wrong."""
        planned_s = self._begin_s + PLANNED_SHARE * self._seconds
        if isinstance(runner, Paced):
            runner.keep_to(planned_s - time.monotonic(), self._say)
        assert self._device is not None
        ceilings = device_ceilings(self._device, runner.measure_ceilings, folder=knobs.cache_dir() / "ceilings")
        cache = self._settings.cache_of(is_cpu=self._device.shares_host_cores)
        least = floors(subject.problem, self._device, ceilings, cache=cache)
        baseline = BaselineMeasured(subject.baseline.id, *runner.calibrate(subject.baseline))
        pace = FinalsPace(
            FinalsCosts.of(subject.problem, baseline, []),
            rounds=self._settings.comparison_rounds,
            left_s=lambda: planned_s - time.monotonic(),
            grace_s=(1 - PLANNED_SHARE) / 2 * self._seconds,
            workloads=len(subject.problem.workloads),
        )
        self._listener.on_progress(Progress(phase="compare", doing=self._kernel))
        complete_calibration(runner, pace)
        shipped = [Candidate(subject.template, config) for config in choice.configs]
        events = []
        for candidate in shipped:
            event = _proven(runner, candidate, least)
            if isinstance(event.outcome, Failed):
                where = f" on {event.outcome.workload}" if event.outcome.workload else ""
                return f"{_values(candidate)} fails{where}: {event.outcome.stage}, {event.outcome.message}"
            events.append(event)
        chosen = list(shipped)
        for candidate in rivals:
            if pace.may_check(events, events[0]):
                event = _proven(runner, candidate, least)
                if isinstance(event.outcome, Passed):
                    events.append(event)
                    chosen.append(candidate)
        count, rounds = pace.fitting(events)
        if count < len(shipped):
            raise self._too_short()
        comparison = runner.compare([subject.baseline, *chosen[:count]], rounds=rounds)
        if comparison is None:
            raise UserError("this device cannot measure candidates side by side")
        ids = comparison.candidate_ids[1:]  # without those that failed in it
        for candidate in shipped:
            why: str | None = comparison.rejected.get(candidate.id, "it ended the comparison")
            if candidate.id in ids and candidate.id not in comparison.rejected:
                place = 1 + ids.index(candidate.id)
                why = doubt(
                    least, {name: statistics.median(rows[place]) for name, rows in comparison.samples_ms.items()}
                )
            if why:
                return f"{_values(candidate)} fails: {why}"
        asked = [each.id for each in chosen[:count] if each.id in ids and each.id not in comparison.rejected]
        places = [0, *(1 + ids.index(each) for each in asked)]
        return {name: tuple(rows[place] for place in places) for name, rows in comparison.samples_ms.items()}

    def _say(self, text: str) -> None:
        """Tell what is done next, in any thread."""
        self._listener.on_progress(Progress(phase="baseline", doing=self._kernel, step=text))

    # -- judging -------------------------------------------------------------------------------------------------

    def _judged(
        self,
        choice: Choice,
        problem: Problem,
        samples_ms: Mapping[str, tuple[tuple[float, ...], ...]],
        recorded: Mapping[str, ConfidenceInterval],
    ) -> CheckedChoice:
        places = {name: 1 + place for name, place in choice.serves.items() if place >= 0 and name in samples_ms}
        confidence = confidence_for(len(places) + (len(places) > 1))
        now = {
            name: speedup_interval(samples_ms[name][0], samples_ms[name][place], confidence=confidence)
            for name, place in places.items()
        }
        if not all(has_confidence(each, confidence) for each in now.values()):
            raise self._too_short()
        slower = [words for name in now if (words := self._slower_words(name, now[name], recorded.get(name)))]
        weights = {each.name: each.weight for each in problem.workloads}
        slower = slower or self._slower_overall(now, recorded, weights)
        if slower:
            return self._result("slower", "; ".join(slower), now, recorded)
        better = self._better_words(choice, samples_ms, {name: places.get(name, 0) for name in samples_ms}, weights)
        if better:
            return self._result("better", better, now, recorded)
        since = "" if recorded else f"; it was chosen on another device, {choice.device}"
        told = ", ".join(f"{factor_text(each.estimate)} on {name}" for name, each in now.items())
        return self._result("holds", f"{told}{since}", now, recorded)

    def _slower_words(self, name: str, now: ConfidenceInterval, before: ConfidenceInterval | None) -> str:
        """Why it counts as slower on a workload; empty: it does not."""
        if self._is_loss(now):
            return f"on {name} it runs at {interval_text(now)} the speed of the baseline"
        if before is None or not self._is_loss(change := _ratio(now, before)):
            return ""
        was, is_ = factor_text(before.estimate), factor_text(now.estimate)
        return f"on {name} it runs at {interval_text(change)} its speed when it was chosen: {was} then, {is_} now"

    def _slower_overall(
        self,
        now: Mapping[str, ConfidenceInterval],
        recorded: Mapping[str, ConfidenceInterval],
        weights: Mapping[str, float],
    ) -> list[str]:
        """The same over all workloads that were recorded: together they tell of a smaller loss than each alone."""
        names = [name for name in now if name in recorded]
        if len(names) < 2:
            return []
        changes = [_ratio(now[name], recorded[name]) for name in names]
        change = combined_interval(changes, weights=[weights[name] for name in names])
        told = f"over {len(names)} workloads it runs at {interval_text(change)} its speed when it was chosen"
        return [told] if self._is_loss(change) else []

    def _is_loss(self, interval: ConfidenceInterval) -> bool:
        return interval.side == "below" and interval.estimate < 1 - self._loss

    def _better_words(
        self,
        choice: Choice,
        samples_ms: Mapping[str, tuple[tuple[float, ...], ...]],
        places: Mapping[str, int],
        weights: Mapping[str, float],
    ) -> str:
        """Which rival is surely faster over all workloads; empty: none."""
        first = 1 + len(choice.configs)
        count = min(map(len, samples_ms.values())) - first
        for rival in range(first, first + count):
            names = [name for name in samples_ms if all(map(math.isfinite, samples_ms[name][rival]))]
            if len(names) < len(samples_ms):
                continue
            gain = geometric_mean_interval(
                [samples_ms[name][places[name]] for name in names],
                [samples_ms[name][rival] for name in names],
                weights=[weights[name] for name in names],
                confidence=confidence_for(count),
            )
            if is_gain(gain, least_confidence=confidence_for(count)) and gain.estimate > 1 + self._loss:
                return f"another known choice, number {rival - first + 1}, is {interval_text(gain)} as fast here"
        return ""

    def _result(
        self,
        kind: Kind,
        words: str,
        now: Mapping[str, ConfidenceInterval] | None = None,
        recorded: Mapping[str, ConfidenceInterval] | None = None,
    ) -> CheckedChoice:
        return CheckedChoice(
            kernel=self._kernel,
            folder=self._folder,
            kind=kind,
            words=words,
            device=self._device.name if self._device is not None else "",
            speedups=now or {},
            recorded=recorded or {},
            seconds=time.monotonic() - self._begin_s,
        )


def _write(folder: Path, choice: Choice) -> None:
    for name, data in choice.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _require_fit(choice: Choice, subject: TuningProblem) -> None:
    """Refuse a choice that was edited apart from its problem.

    Raises:
        SpecError: its workloads or its parameters are others.
    """
    workloads, served = [each.name for each in subject.problem.workloads], list(choice.serves)
    if sorted(workloads) != sorted(served):
        raise SpecError(f"the choice serves {', '.join(served)}; the workloads are {', '.join(workloads)}")
    names = {each.name for each in subject.template.parameters}
    for config in choice.configs:
        if set(config) != names:
            raise SpecError(f"a config has {', '.join(config)}; the parameters are {', '.join(sorted(names))}")


def _rivals(choice: Choice, choices: Sequence[Choice], subject: TuningProblem) -> list[Candidate]:
    """What else is known of the kernel: other devices' choices, then finalists that this one was chosen over."""
    found = []
    for other in choices:
        if other is not choice:
            try:
                text = other.files[other.template].decode()
                template = template_of_text(subject.problem, text, spec=subject.problem.kernel)
            except (SpecError, UnicodeDecodeError):  # of another problem by now: nothing to compare with
                continue
            found += [Candidate(template, config) for config in other.configs]
    found += [Candidate(subject.template, config) for config in choice.others]
    shipped = {Candidate(subject.template, config).id for config in choice.configs}
    return [each for each in {each.id: each for each in found}.values() if each.id not in shipped][:MOST_RIVALS]


def _proven(runner: MeasuringRunner, candidate: Candidate, least: Mapping[str, Floor]) -> Evaluated:
    """A candidate on every dataset, with what a launch takes; it fails where that is less than it can."""
    outcome, cost = runner.submit(EvaluationRequest(candidate, is_thorough=True)).result()
    if isinstance(outcome, Passed):
        outcome = doubted(outcome, least, medians_ms(outcome.measurements))
    return Evaluated(0, candidate.id, dict(candidate.config), outcome, None, cost, 0.0)


def _ratio(now: ConfidenceInterval, before: ConfidenceInterval) -> ConfidenceInterval:
    """One speedup over another that was measured independently: distances from the estimates add like deviations."""
    estimate = now.estimate / before.estimate
    below = math.hypot(math.log(now.estimate / now.low), math.log(before.high / before.estimate))
    above = math.hypot(math.log(now.high / now.estimate), math.log(before.estimate / before.low))
    confidence = min(now.confidence, before.confidence)
    return ConfidenceInterval(estimate, estimate * math.exp(-below), estimate * math.exp(above), confidence)


def _values(candidate: Candidate) -> str:
    return ", ".join(f"{name} = {value}" for name, value in candidate.config.items()) or "the choice"
