"""`tune`, `resume` and `replay`: the only place that constructs the parts of a run and wires them together."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import secrets
import shlex
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright import knobs
from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import (
    BaselineFailed,
    InfrastructureError,
    KernelwrightError,
    ScratchFull,
    SpecError,
    StoreError,
    UserError,
)
from kernelwright.evaluate.base import MeasuringRunner, Paced, Runner
from kernelwright.evaluate.device.probe import is_several
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.identity import content_id
from kernelwright.json_text import read_json_text
from kernelwright.problem.config import Config
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Passed
from kernelwright.results.conditions import measurement_notes
from kernelwright.results.tune_result import TuneResult
from kernelwright.results.verdict import round_count
from kernelwright.roofline.speed_of_light import (
    Ceilings,
    Floor,
    device_ceilings,
    doubt,
    recorded_floors,
    without_impossible,
)
from kernelwright.search.base import Prior, Searcher
from kernelwright.search.registry import create
from kernelwright.space.feasible import Space
from kernelwright.store.event import (
    INTERRUPTED,
    OUT_OF_TIME,
    BaselineMeasured,
    Evaluated,
    Event,
    Noted,
    RunFinished,
    RunStarted,
    SessionStarted,
)
from kernelwright.store.recording import Recording
from kernelwright.store.run_folder import RunFolder, default_run_path
from kernelwright.store.view import RunView
from kernelwright.template.load import load_baseline, load_template, problem_files
from kernelwright.template.model import Candidate, Template
from kernelwright.tuning.device_limits import build_space
from kernelwright.tuning.finals.finals import compare_finalists
from kernelwright.tuning.finals.time_plan import (
    GOOD_ROUNDS,
    GRACE,
    FinalsCosts,
    FinalsPace,
    baseline_s,
    raised_words,
    recent_costs,
    reserved_s,
)
from kernelwright.tuning.interruption import (
    FREE_SET_UP_S,
    HardLimit,
    closing_events,
    hard_limit_s,
    over_words,
    too_short,
)
from kernelwright.tuning.listener import Progress, RunListener, SilentListener
from kernelwright.tuning.loop import RunClock, SearchLoop
from kernelwright.tuning.machine import LocalMachine, Machine, expecting
from kernelwright.tuning.objective import medians_ms
from kernelwright.tuning.recorded_runner import ReplayRunner
from kernelwright.tuning.run_start import now, run_started
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.state import SearchState, observations
from kernelwright.tuning.time_spent import BASELINE, FINALS, LONG_SET_UP, SEARCH, SET_UP, Ledger

COMPARISON_SHARE = 0.2
"""The final comparison on another machine gets this share of a budget in seconds. A guess."""

MOST_FOR_BASELINE = 0.5
"""Where the baseline takes a larger share of the seconds, a note says that it has left little."""

BLIND_LOOK_AHEAD = 8
"""Times the runner's capacity, for a searcher that learns nothing from results: what is asked for early is built early.
A guess."""


@dataclass(frozen=True, slots=True)
class TuningProblem:
    """What is tuned: a problem with its template and baseline."""

    problem: Problem
    template: Template
    baseline: Candidate

    @classmethod
    def load(cls, problem: Problem | Path | str) -> TuningProblem:
        """Read all files of a problem.

        Raises:
            SpecError: one of them is wrong, or there is nothing to tune.
        """
        loaded = problem if isinstance(problem, Problem) else load_problem(problem)
        template = load_template(loaded)
        return cls(loaded, template, load_baseline(loaded, template))

    @classmethod
    def of_run(cls, folder: RunFolder, started: RunStarted) -> TuningProblem:
        """Read the frozen problem of a run; one that gives no name is called as it was when the run began.

        Raises:
            StoreError: a file of it is missing, or is not what the run recorded.
            SpecError: it does not load.
        """
        subject = cls.load(folder.problem_file)
        return dataclasses.replace(subject, problem=dataclasses.replace(subject.problem, name=started.problem_name))


def tune(
    problem: Problem | Path | str,
    *,
    settings: TuneSettings | None = None,
    run: Path | None = None,
    priors: Sequence[Prior] = (),
    listener: RunListener | None = None,
    machine: Machine | None = None,
    earlier_s: float = 0.0,
) -> TuneResult:
    """Search the parameters of a problem's template on a device of this machine.

    Args:
        problem: a loaded problem, its TOML file or its folder.
        settings: budget, searcher, device and so on.
        run: the run folder to make; None: `runs/NAME-TIME` in the current folder.
        priors: what earlier runs measured, for the searcher to start from.
        listener: hears every event.
        machine: where to run; None: here.
        earlier_s: seconds that the command has taken before this call.

    Raises:
        UserError: a file, a setting or the baseline is wrong; nothing was lost.
        StoreError: the run folder cannot be written.
        InfrastructureError: the device failed; `resume` continues the run.
    """
    settings, begun = settings or TuneSettings(), RunClock(earlier_s=earlier_s)
    if settings.data_seed is None:
        settings = dataclasses.replace(settings, data_seed=secrets.randbits(31))
    listener, machine = listener or SilentListener(), machine or LocalMachine()
    listener.on_progress(Progress(phase="prepare"))
    subject = TuningProblem.load(problem)
    if not subject.template.parameters:
        raise SpecError(
            f"{subject.template.file.name} declares no parameters, so there is nothing to tune",
            hint="`kernelwright optimize` finds parameters itself; or add a header with [parameters], as `init` writes",
        )
    language = subject.template.language
    with contextlib.ExitStack() as ending:
        ending.enter_context(expecting(machine, subject.problem, settings, language))
        device = machine.device(settings.device, language)
        space = build_space(subject.problem, subject.template, device)
        files = problem_files(subject.problem, subject.template, subject.baseline)
        path = run or default_run_path(subject.problem.name)
        folder = ending.enter_context(RunFolder.create(path, files=files))
        ending.enter_context(_removed_if_useless(folder))
        session = _Session(subject, settings, device, space, folder, listener, begun)
        searcher = session.searcher(priors)  # first, because its options may be wrong
        runner = machine.runner(subject.problem, device, settings)
        return session.run_new(runner, searcher, content_id(dict(files)), priors)


@contextlib.contextmanager
def _removed_if_useless(folder: RunFolder) -> Iterator[None]:
    """Remove a new run folder that nothing can come of; say how to continue when the machine failed.

    Useless is one without its first event, and one without evaluations where a person must change the problem.
    """
    try:
        yield
    except (KernelwrightError, KeyboardInterrupt) as error:
        events = list(folder.read())
        is_wrong = isinstance(error, UserError) and not any(isinstance(event, Evaluated) for event in events)
        if not events or is_wrong:
            shutil.rmtree(folder.path, ignore_errors=True)
        elif isinstance(error, InfrastructureError | ScratchFull):
            _tell_to_resume(error, folder.path)
        raise


def _tell_to_resume(error: InfrastructureError | ScratchFull, path: Path) -> None:
    advice = f"continue with `kernelwright resume {shlex.quote(str(path))}`"
    error.hint = f"{error.hint}; {advice}" if error.hint else advice


def resume(run: Path | str, *, listener: RunListener | None = None, machine: Machine | None = None) -> TuneResult:
    """Continue a run that was interrupted, killed or ran out of luck, to the end of its own budget.

    Raises:
        StoreError: no run there, or another process writes to it.
        UserError: the device is not here.
    """
    listener, machine = listener or SilentListener(), machine or LocalMachine()
    with RunFolder.open(Path(run), writable=True) as folder:
        view = RunView.of(folder.read(), folder=folder.path)
        _ = folder.problem_file  # nothing is said again of a problem that was changed since
        if view.finished is not None and view.finished.reason not in ("interrupted",):
            return TuneResult(view)
        settings = TuneSettings.from_record(view.started.settings)
        subject = TuningProblem.of_run(folder, view.started)
        if view.started.settings.get("replay"):
            raise StoreError("this run is a replay: it has no device to continue on", hint="start the replay again")
        device_id = str(view.started.device.get("id", ""))
        selector = settings.device if is_several(settings.device) else device_id
        device = machine.device(selector or None, subject.template.language)
        space = build_space(subject.problem, subject.template, device)
        runner = machine.runner(subject.problem, device, settings)
        session = _Session(subject, settings, device, space, folder, listener)
        try:
            return session.run_again(runner, view)
        except (InfrastructureError, ScratchFull) as error:
            _tell_to_resume(error, folder.path)
            raise


def replay(
    recording: Path | str,
    *,
    settings: TuneSettings | None = None,
    run: Path | str | None = None,
    priors: Sequence[Prior] = (),
    listener: RunListener | None = None,
) -> TuneResult:
    """Run a searcher on the measurements of an earlier run: no device, no compiler, same loop.

    The space is the template's, under the recorded device's limits; configs that were never measured fail as
    `not-recorded`.

    Raises:
        StoreError: no usable recording there.
    """
    settings = settings or TuneSettings()
    listener = listener or SilentListener()
    recording = Path(recording)
    recorded = Recording.read(recording)
    if recorded.view.baseline is None:
        raise StoreError(f"the recording {recording} has no baseline measurement, so there is nothing to compare with")
    source = RunFolder.open(recording, writable=False)
    subject = TuningProblem.of_run(source, recorded.view.started)
    device = _recorded_device(recorded.view)
    space = build_space(subject.problem, subject.template, device)
    files = problem_files(subject.problem, subject.template, subject.baseline)
    path = Path(run) if run is not None else default_run_path(f"{subject.problem.name}-replay")
    with RunFolder.create(path, files=files) as folder, _removed_if_useless(folder):
        session = _Session(subject, settings, device, space, folder, listener)
        searcher = session.searcher(priors)
        return session.run_replay(recorded, recorded.view.baseline, searcher, content_id(dict(files)))


def priors_of(runs: Sequence[Path]) -> list[Prior]:
    """What earlier runs measured, best first within each run, for a searcher to start from.

    Raises:
        StoreError: one of them is not a run.
    """
    priors = []
    for run in runs:
        view = RunView.read(run)
        source = f"run {run.name} on {view.started.device.get('name', 'an unknown device')}"
        ordered = sorted(view.passed, key=lambda event: (event.value is None, event.value))
        priors += [Prior(Config(event.config), event.value, source) for event in ordered]
        priors += [Prior(Config(event.config), None, source) for event in view.failed]
    return priors


class _Session:
    """One process's work on one run."""

    def __init__(
        self,
        subject: TuningProblem,
        settings: TuneSettings,
        device: DeviceInfo,
        space: Space,
        folder: RunFolder,
        listener: RunListener,
        begun: RunClock | None = None,
    ) -> None:
        self._subject = subject
        self._settings = settings
        self._device = device
        self._space = space
        self._folder = folder
        self._listener = listener
        self._clock = RunClock()
        self._ledger = Ledger()
        self._resumed_s: float | None = None
        """Spent before this session; None: this is the first."""
        self._is_set_up = False
        self._progress = Progress(phase="prepare")
        self._floors: Mapping[str, Floor] = {}
        self._pending: Sequence[Event] = ()
        """What is being recorded just now."""
        self._is_finished = False
        self._begun = begun
        self._limit = HardLimit(None, stop=lambda: None)
        self._runner: MeasuringRunner | None = None
        self._has_baseline = False
        self._doing = ""
        """What was said last of what takes its time."""

    # -- the three ways to run -----------------------------------------------------------------------------------

    def run_new(
        self, runner: MeasuringRunner, searcher: Searcher, problem_id: str, priors: Sequence[Prior]
    ) -> TuneResult:
        with self._stopping_cleanly(runner), runner:
            ahead = self._build_ahead(runner, searcher)
            ceilings = device_ceilings(self._device, runner.measure_ceilings, folder=knobs.cache_dir() / "ceilings")
            started = self._started(problem_id, ceilings, priors)
            self._floors = recorded_floors(started)
            self._append([started, self._session_started()])
            self._end_set_up()
            baseline = self._measure_baseline(runner)
            self._tell_if_budget_is_spent(baseline)
            reason = self._search(runner, searcher, baseline, (), ahead=ahead)
            self._finish(runner, reason)
        return self._result()

    def _build_ahead(self, runner: MeasuringRunner, searcher: Searcher) -> Sequence[Config]:
        """Ask for the first configs, and have them built while the baseline is proven; none where that disturbs.

        They are the ones that the search would ask for first: it knows nothing more by then.
        """
        if not isinstance(runner, LocalRunner) or not runner.builds_ahead:
            return ()
        evaluations = self._settings.budget.evaluations
        count = runner.capacity * self._ask_ahead(runner)
        configs = searcher.ask(count if evaluations is None else min(count, evaluations), pending=())
        template = self._subject.template
        runner.build_ahead([self._subject.baseline, *(Candidate(template, config) for config in configs)])
        return configs

    def _ask_ahead(self, runner: Runner) -> int:
        """How many times the runner's capacity may be asked for at once: more where nothing is learnt from results."""
        has_room = isinstance(runner, LocalRunner) and runner.builds_ahead
        return BLIND_LOOK_AHEAD if has_room and self._settings.searcher == "random" else 1

    def run_again(self, runner: MeasuringRunner, view: RunView) -> TuneResult:
        self._clock = RunClock(earlier_s=view.spent_s)
        self._resumed_s = view.spent_s
        self._ledger.take_over(view, spent_s=view.spent_s)
        self._floors = recorded_floors(view.started)
        self._append([self._session_started(view.spent_s)])
        if view.started.device.get("name") != self._device.name:
            self._note(
                f"resumed on {self._device.name!r}; it was started on {view.started.device.get('name')!r}: "
                "times before and after do not compare"
            )
        with self._stopping_cleanly(runner), runner:
            if view.baseline is None:
                self._end_set_up()
                baseline = self._measure_baseline(runner)
            else:
                baseline = view.baseline
                self._enter("baseline")
                runner.calibrate(self._subject.baseline)  # the referee's tolerances live in its process
                self._end_set_up()  # which the budget has paid for once
            searcher = self.searcher(self._kept_priors(view))
            searcher.tell(observations(view.evaluations))
            reason = self._search(runner, searcher, baseline, view.evaluations)
            self._finish(runner, reason)
        return self._result()

    def _end_set_up(self) -> None:
        """What this session has done so far is beside the budget; whatever comes now is not."""
        if not self._is_set_up:
            earlier_s = self._resumed_s or 0.0
            set_up_s, long_s = self._clock.spent_s - earlier_s, 0.0
            if self._begun is not None and self._resumed_s is None:
                set_up_s = max(set_up_s, self._begun.spent_s)
                long_s = max(0.0, set_up_s - FREE_SET_UP_S)
                self._ledger.add(LONG_SET_UP, long_s)
            self._ledger.add(SET_UP, set_up_s - long_s)
            self._clock, self._is_set_up = RunClock(earlier_s=earlier_s + long_s), True
            seconds = self._settings.budget.seconds
            if isinstance(self._runner, Paced):
                self._runner.keep_to(None if seconds is None else max(0.0, seconds - self._clock.spent_s), self._say)

    def _say(self, text: str) -> None:
        """Tell what is done next, in any thread."""
        self._doing = text
        self._listener.on_progress(dataclasses.replace(self._progress, step=text))

    def run_replay(
        self, recorded: Recording, baseline: BaselineMeasured, searcher: Searcher, problem_id: str
    ) -> TuneResult:
        started = dataclasses.replace(
            recorded.view.started,
            run_id=uuid.uuid4().hex,
            created=now(),
            problem_id=problem_id,
            settings={**self._settings.as_record(), "replay": recorded.view.started.run_id},
        )
        self._floors = recorded_floors(started)
        self._append([started, self._session_started(), baseline])
        with ReplayRunner(recorded) as runner:
            reason = self._search(runner, searcher, baseline, ())
        self._append([RunFinished(reason, self._clock.spent_s)])
        return self._result()

    @contextlib.contextmanager
    def _stopping_cleanly(self, runner: MeasuringRunner) -> Iterator[None]:
        """Record an interrupt that comes at any time after the first event; what was measured stands.

        So does the end of the time, where a run has not ended by itself.
        """
        try:
            with self._limited(runner):
                yield
        except (KeyboardInterrupt, InfrastructureError) as error:
            is_over = self._limit.is_over
            if isinstance(error, InfrastructureError) and not is_over:
                raise
            self._limit.release()
            if is_over and not self._has_baseline:
                raise too_short(self._settings.budget.seconds or 0.0, self._doing) from None
            self._end_set_up()
            end = self._finished(self._reason_of_end(INTERRUPTED))
            events = closing_events(self._folder.log, self._pending, end, is_finished=self._is_finished)
            if events is None:
                raise
            notes = self._over_notes(end.reason) if end in events else []
            if events:
                self._append([*events[:-1], *notes, events[-1]])

    @contextlib.contextmanager
    def _limited(self, runner: MeasuringRunner) -> Iterator[None]:
        """Inside, the run is stopped when a command with its budget has to be over."""
        self._runner = runner
        if not isinstance(runner, Paced):
            yield
            return
        end_s, begun = hard_limit_s(self._settings.budget.seconds), self._begun or self._clock
        left_s = None if end_s is None else end_s - (begun.spent_s if self._resumed_s is None else 0.0)
        self._limit = HardLimit(left_s, stop=runner.stop)  # known before it can be over
        with self._limit:
            yield

    def _reason_of_end(self, reason: str) -> str:
        """The reason that is recorded: a run that its clock has stopped was not interrupted by a person."""
        return OUT_OF_TIME if reason == INTERRUPTED and self._limit.is_over else reason

    def _over_notes(self, reason: str) -> list[Noted]:
        """What was under way when the time was over."""
        if reason != OUT_OF_TIME:
            return []
        return [Noted("warning", over_words(self._settings.budget.seconds or 0.0, self._doing, self._progress.phase))]

    # -- steps ---------------------------------------------------------------------------------------------------

    def _measure_baseline(self, runner: MeasuringRunner) -> BaselineMeasured:
        self._enter("baseline")
        with self._ledger.on(BASELINE):
            passed, cost = runner.calibrate(self._subject.baseline)
        reason = doubt(self._floors, medians_ms(passed.measurements))
        if reason:
            raise BaselineFailed(
                f"the baseline's time cannot be: {reason}",
                hint="correct bytes and operations in [work]: both are the least that any kernel must do",
                location=self._subject.problem.kernel.location,
            )
        source = self._folder.blobs.put(self._subject.baseline.template.source)
        event = BaselineMeasured(self._subject.baseline.id, passed, cost, source)
        self._append([event, *(Noted("warning", text) for text in runner.notes)])
        self._has_baseline = True
        return event

    def _tell_if_budget_is_spent(self, baseline: BaselineMeasured) -> None:
        """Say so when the baseline has left too little time for a search, and what to do."""
        seconds = self._settings.budget.seconds
        if seconds is not None and (text := baseline_note(seconds, baseline)):
            self._note(text)

    def searcher(self, priors: Sequence[Prior]) -> Searcher:
        """The searcher that the settings ask for.

        Raises:
            UsageError: there is no such searcher, or its options are wrong.
            MissingDependency: it needs a package that is not installed.
        """
        template = self._subject.template
        default = template.default if template.default in self._space else None
        return create(
            self._settings.searcher,
            self._space,
            seed=self._settings.seed,
            default=default,
            options=self._settings.searcher_options,
            priors=priors,
            budget_hint=self._settings.budget.evaluations,
        )

    def _search(
        self,
        runner: Runner,
        searcher: Searcher,
        baseline: BaselineMeasured,
        earlier: Sequence[Evaluated],
        *,
        ahead: Sequence[Config] = (),
    ) -> str:
        """Search on from what earlier sessions evaluated; gives the reason why it stopped.

        `ahead` was asked for already, and is being built.
        """
        assert isinstance(baseline.outcome, Passed)  # calibration raises otherwise
        baseline_ms = medians_ms(baseline.outcome.measurements)
        known, is_measuring = list(earlier), not isinstance(runner, ReplayRunner)
        budget = self._settings.budget

        def record(events: Sequence[Event]) -> None:
            self._folder.append(events)
            known.extend(event for event in events if isinstance(event, Evaluated))

        costs = recent_costs(lambda: FinalsCosts.of(self._subject.problem, baseline, known))

        def reserving() -> float:
            return self._reserved_s(baseline, costs(len(known))) if is_measuring else 0.0

        def most_in_flight() -> int | None:
            end_s = budget.seconds
            if end_s is None or not is_measuring:
                return None
            device_s = max(costs(len(known)).device_s, 1e-3)
            return int((end_s - reserving() - self._clock.spent_s) / device_s)

        weights = {workload.name: workload.weight for workload in self._subject.problem.workloads}
        loop = SearchLoop(
            template=self._subject.template,
            workloads=self._subject.problem.workloads,
            baseline_ms=baseline_ms,
            runner=runner,
            searcher=searcher,
            budget=budget,
            clock=self._clock,
            append=record,
            listener=self._listener,
            state=SearchState.of(earlier, self._settings.budget, baseline_ms=baseline_ms, weights=weights),
            reserving=reserving,
            most_in_flight=most_in_flight,
            floors=self._floors,
            ahead=ahead,
            ask_ahead=self._ask_ahead(runner),
        )
        with self._ledger.on(SEARCH):
            try:
                return loop.run()
            except InfrastructureError:
                if not self._limit.is_over:
                    raise
                return INTERRUPTED

    def _finish(self, runner: MeasuringRunner, reason: str) -> None:
        """Compare the finalists unless the person wants to stop, and record the end."""
        if reason != "interrupted":
            try:
                with self._ledger.on(FINALS):
                    self._compare(runner)
            except KeyboardInterrupt:
                reason = "interrupted"
            except InfrastructureError:
                if not self._limit.is_over:
                    raise
                reason = INTERRUPTED
        self._limit.release()
        reason = self._reason_of_end(reason)
        view = RunView.of(self._folder.read(), folder=self._folder.path)
        noted = {note.text for note in view.notes}
        for text in dict.fromkeys([*runner.notes, *measurement_notes(view)]):
            if text not in noted:
                self._note(text)
        self._append([*self._over_notes(reason), self._finished(reason)])
        self._enter("done")

    def _finished(self, reason: str) -> RunFinished:
        return RunFinished(reason, self._clock.spent_s, self._ledger.seconds)

    def _compare(self, runner: MeasuringRunner) -> None:
        self._enter("compare")
        view = RunView.of(self._folder.read(), folder=self._folder.path)
        pace = self._pace(view)
        comparison = compare_finalists(
            runner,
            self._subject.template,
            self._subject.baseline,
            view.evaluations,
            count=self._settings.finalists,
            pace=pace,
            on_step=lambda: self._enter("compare"),
            now=lambda: self._clock.spent_s,
        )
        if comparison is not None:
            self._append([without_impossible(comparison, self._floors)])
            rounds, finalists = round_count(comparison), len(comparison.candidate_ids) - 1
            if text := pace.shortened_words(finalists, rounds):
                self._note(f"{text}; give more time")
            if text := raised_words(self._settings.comparison_rounds, rounds, finalists):
                self._append([Noted("info", text)])
        elif pace.is_short:
            self._note(f"{pace.words()}: give more time")

    def _reserved_s(self, baseline: BaselineMeasured, costs: FinalsCosts) -> float:
        """Budget seconds kept for the final comparison, by what has been measured so far."""
        seconds = self._settings.budget.seconds
        assert seconds is not None  # the loop asks only then
        return reserved_s(
            costs,
            finalists=self._settings.finalists,
            rounds=self._settings.comparison_rounds,
            seconds=seconds - baseline_s(baseline.cost),
            left_s=seconds - self._clock.spent_s + GRACE * (self._settings.budget.seconds or 0.0),
        )

    def _pace(self, view: RunView) -> FinalsPace:
        """Lets finalists in as far as the time goes."""
        assert view.baseline is not None  # it was measured before anything else
        costs = FinalsCosts.of(self._subject.problem, view.baseline, view.evaluations)
        rounds, asked_s = self._settings.comparison_rounds, self._settings.budget.seconds
        workloads = len(self._subject.problem.workloads)
        if asked_s is None:
            return FinalsPace(costs, rounds=rounds, left_s=lambda: math.inf, workloads=workloads)
        return FinalsPace(
            costs,
            rounds=rounds,
            workloads=workloads,
            left_s=left_until(asked_s, self._clock, costs, resumed_s=self._resumed_s),
            grace_s=GRACE * asked_s,
        )

    # -- events --------------------------------------------------------------------------------------------------

    def _append(self, events: Sequence[Event]) -> None:
        """Record events outside the search loop, and tell of them."""
        self._pending = events
        self._folder.append(events)
        self._is_finished, self._pending = isinstance(events[-1], RunFinished), ()
        for event in events:
            self._listener.on_event(event, self._progress)

    def _enter(self, phase: str) -> None:
        self._doing = ""
        self._progress = Progress(phase=phase, spent_s=self._clock.spent_s)
        self._listener.on_progress(self._progress)

    def _note(self, text: str) -> None:
        self._append([Noted("warning", text)])

    def _result(self) -> TuneResult:
        return TuneResult(RunView.of(self._folder.read(), folder=self._folder.path))

    def _session_started(self, spent_s: float = 0.0) -> SessionStarted:
        return SessionStarted(time_s=time.time(), process_id=os.getpid(), spent_s=spent_s)

    def _started(self, problem_id: str, ceilings: Ceilings, priors: Sequence[Prior]) -> RunStarted:
        record = {**self._settings.as_record(), "priors_blob": self._keep_priors(priors)}
        return run_started(
            self._subject.problem,
            self._device,
            self._settings,
            ceilings,
            problem_id=problem_id,
            record=record,
            space=self._space,
        )

    def _keep_priors(self, priors: Sequence[Prior]) -> str | None:
        """Keep what the searcher started from, so that a resumed run starts from the same."""
        if not priors:
            return None
        return self._folder.blobs.put(json.dumps([[dict(each.config), each.value, each.source] for each in priors]))

    def _kept_priors(self, view: RunView) -> list[Prior]:
        blob = view.started.settings.get("priors_blob")
        if not blob:
            return []
        records = read_json_text(self._folder.blobs.get_text(str(blob)))
        return [Prior(Config(config), value, source) for config, value, source in records]


def left_until(end_s: float, clock: RunClock, costs: FinalsCosts, *, resumed_s: float | None) -> Callable[[], float]:
    """Tells the seconds left for the final comparison.

    A session that was resumed when `resumed_s` were spent has the time for one finalist all the same: without that a
    run that was killed in its last seconds could never claim anything.
    """
    if resumed_s is not None:
        end_s = max(end_s, clock.spent_s + costs.seconds(1, GOOD_ROUNDS))
    return lambda: end_s - clock.spent_s


def baseline_note(seconds: float, baseline: BaselineMeasured) -> str:
    """What to do where the baseline has left less than half of a budget in seconds; empty: it has not."""
    spent_s = baseline_s(baseline.cost)
    if spent_s <= MOST_FOR_BASELINE * seconds:
        return ""
    wanted = f"{math.ceil(4 * spent_s / 60)}m" if spent_s > 30 else f"{math.ceil(4 * spent_s)}s"
    rest = "so it is exceeded" if spent_s > seconds else "and what is left is little"
    return (
        f"checking and timing the baseline took {spent_s:.1f} s of the budget of {seconds:g} s, {rest}; "
        f"give more time (--budget {wanted}), fewer or smaller workloads, or a faster reference"
    )


def _recorded_device(view: RunView) -> DeviceInfo:
    """The device of a recording, for its limits."""
    record = dict(view.started.device)
    known = {field.name for field in dataclasses.fields(DeviceInfo)}
    return DeviceInfo(**{name: value for name, value in record.items() if name in known})
