"""`optimize`, its resumption and its repetition from the record: what a session is given, see `session`."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.agent.base import Agent
from kernelwright.agent.composed import direct
from kernelwright.errors import (
    InfrastructureError,
    ModelError,
    ModelReplyMissing,
    ScratchFull,
    StoreError,
    UsageError,
    UserError,
)
from kernelwright.llm.pace import TimeLeft
from kernelwright.optimization.agent import agent_of
from kernelwright.optimization.session import Session, SessionParts
from kernelwright.optimization.settings import REPLAY, OptimizeSettings
from kernelwright.problem.model import Problem
from kernelwright.remote.client import SpoolMachine, machine_of
from kernelwright.remote.site import LocalSite, Site
from kernelwright.replaying.record import Recorded, ReplayDiverged
from kernelwright.replaying.site import ReplaySite, watched_folder
from kernelwright.results.node_records import require_nodes
from kernelwright.results.optimize_result import OptimizeResult, is_optimize_run
from kernelwright.store.event import CUT_SHORT, INTERRUPTED, OUT_OF_BUDGET, NodeJudged, Noted, SessionStarted
from kernelwright.store.run_folder import RunFolder, default_run_path
from kernelwright.store.view import RunView
from kernelwright.template.load import problem_files
from kernelwright.tree.base import SelectionPolicy
from kernelwright.tree.registry import DIRECT
from kernelwright.tuning.listener import Progress, RunListener, SilentListener
from kernelwright.tuning.loop import RunClock
from kernelwright.tuning.machine import LocalMachine, Machine, expecting
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem


def optimize(
    problem: Problem | Path | str,
    *,
    settings: OptimizeSettings | None = None,
    run: Path | None = None,
    listener: RunListener | None = None,
    machine: Machine | SpoolMachine | None = None,
    agent: Agent | None = None,
    policy: SelectionPolicy | None = None,
    earlier_s: float = 0.0,
) -> OptimizeResult:
    """Rewrite a kernel, tune what comes of it, and measure the best against the baseline.

    Args:
        problem: a loaded problem, its TOML file or its folder; its kernel may be plain.
        settings: budget, device, policy and so on.
        run: the run folder to make; None: `runs/NAME-TIME` in the current folder.
        listener: hears every event of the run and of its nodes.
        machine: where to run; None: as the settings say, which is here unless they name a spool.
        agent: who proposes; None: as the settings say.
        policy: who chooses; None: as the settings say. A run with its own agent or policy is resumed with the same.
        earlier_s: seconds that the command has taken before this call.

    Raises:
        UserError: a file, a setting or the baseline is wrong; nothing was lost.
        StoreError: the run folder cannot be written.
        InfrastructureError: the device failed; `resume` continues the run.
    """
    settings, begun = settings or OptimizeSettings(), RunClock(earlier_s=earlier_s)
    if settings.tune.data_seed is None:
        tune = dataclasses.replace(settings.tune, data_seed=secrets.randbits(31))
        settings = dataclasses.replace(settings, tune=tune)
    if policy is None:
        settings.selection_policy()  # says what is missing before anything is prepared
    listener = listener or SilentListener()
    listener.on_progress(Progress(phase="prepare"))
    with contextlib.ExitStack() as ending:
        where = ending.enter_context(machine_for(machine, settings, listener))
        subject = TuningProblem.load(problem)
        files = problem_files(subject.problem, subject.template, subject.baseline)
        folder = ending.enter_context(RunFolder.create(run or default_run_path(subject.problem.name), files=files))
        ending.enter_context(_removed_if_useless(folder))
        subject, device = TuningProblem.load(folder.problem_file), None
        if not isinstance(where, SpoolMachine):
            language = subject.baseline.template.language
            ending.enter_context(expecting(where, subject.problem, settings.tune, language))
            device = where.device(settings.tune.device, language)
        own = ending.enter_context(_agent(agent, settings, folder, time_left := TimeLeft()))
        if isinstance(where, SpoolMachine):
            listener.on_progress(Progress(phase="baseline"))
            site: Site = where.begin(subject, files, settings.tune)
        else:
            assert device is not None
            site = LocalSite(where.runner(subject.problem, device, settings.tune), device)
        parts = SessionParts(
            subject, settings, site, folder, files, listener, own, policy, begun=begun, time_left=time_left
        )
        return Session(parts).run_new()


def resume_optimize(
    run: Path | str,
    *,
    listener: RunListener | None = None,
    machine: Machine | SpoolMachine | None = None,
    agent: Agent | None = None,
    policy: SelectionPolicy | None = None,
    runner: str = "",
    budget: Budget | None = None,
) -> OptimizeResult:
    """Continue an interrupted run of `optimize` to the end of its own budget; a finished one is only read.

    `runner` is another spool than the one that the run has asked so far. A longer `budget`, which counts what earlier
    sessions have spent, also continues a run that its budget has ended.

    Raises:
        StoreError: no run of `optimize` there, or another process writes to it.
        UserError: the device is not here.
    """
    listener = listener or SilentListener()
    with RunFolder.open(Path(run), writable=True) as folder:
        view = RunView.of(folder.read(), folder=folder.path)
        if not is_optimize_run(view):
            again = f"continue it with `kernelwright resume {shlex.quote(str(run))}`"
            raise StoreError(f"{run} is a run of `tune`", hint=again)
        require_nodes(OptimizeResult(view), frozen=True)
        goes_on = CUT_SHORT | {OUT_OF_BUDGET} if budget is not None else {INTERRUPTED}
        if view.finished is not None and view.finished.reason not in goes_on:
            return OptimizeResult(view)
        settings = OptimizeSettings.from_record(view.settings).within(budget)
        if runner and not settings.runner:
            raise UsageError("this run was measured here, not through a spool", hint="resume it without --runner")
        settings = dataclasses.replace(settings, runner=runner or settings.runner)
        subject, files = TuningProblem.load(folder.problem_file), folder.problem_files()
        try:
            with (
                machine_for(machine, settings, listener) as where,
                _agent(agent, settings, folder, time_left := TimeLeft()) as own,
            ):
                site = _site_again(where, subject, files, settings, view)
                parts = SessionParts(subject, settings, site, folder, files, listener, own, policy, time_left=time_left)
                return Session(parts).run_again(view)
        except (InfrastructureError, ModelError, ScratchFull) as error:
            _tell_to_resume(error, folder.path)
            raise


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """What came of a replay that decided all the way what the recorded run had decided."""

    result: OptimizeResult
    event_count: int
    """Events that were made again."""
    differences: tuple[str, ...]
    """Requests that are not worded as they were, in words; empty: the replay is the same bit for bit."""


def replay_optimize(
    recorded: Path | str,
    *,
    run: Path | None = None,
    listener: RunListener | None = None,
    agent: Agent | None = None,
    policy: SelectionPolicy | None = None,
) -> ReplayedRun:
    """Repeat a run of `optimize` offline, from its recorded replies, measurements and times.

    Args:
        recorded: its folder, which is only read.
        run: the run folder to make; None: `runs/NAME-TIME` in the current folder.
        listener: hears every event.
        agent: who proposes; None: as the recorded settings say. A run with its own agent or policy is replayed with
            the same.
        policy: who chooses; None: as the recorded settings say.

    Raises:
        ReplayDiverged: something else was decided or asked than in the recorded run; the message says what, and where,
            and which question was the first that is worded otherwise.
        StoreError: there is no run, or the new one cannot be written.
    """
    known, listener = Recorded(Path(recorded)), listener or SilentListener()
    require_nodes(OptimizeResult(known.view), frozen=False)
    settings = OptimizeSettings.from_record(known.view.started.settings)
    with RunFolder.open(known.run, writable=False) as source:
        files = source.problem_files()
    path = run or default_run_path(known.view.started.problem_name)
    differences: list[str] = []
    made = watched_folder(known, path, files=files)
    with _told(known, differences), made as folder, _removed_if_useless(folder):
        subject = TuningProblem.load(folder.problem_file)
        asked = settings if settings.model == "rules" else dataclasses.replace(settings, model=f"{REPLAY}{known.run}")
        replaying = agent_of(asked, folder, tell=differences.append)
        with contextlib.nullcontext(agent) if agent is not None else replaying as own:
            proposer = direct(own) if settings.policy == DIRECT else own
            for session in known.sessions:
                known.begin(session)
                settings = settings.within(_budget_of(session.started))
                site = ReplaySite(known)
                parts = SessionParts(subject, settings, site, folder, files, listener, proposer, policy, known)
                result = _replayed(Session(parts), folder, known)
    return ReplayedRun(result, known.place, tuple(differences))


@contextlib.contextmanager
def _told(known: Recorded, differences: Sequence[str]) -> Iterator[None]:
    """A replay that ends early says which question was the first that differs, and which version recorded the run.

    Raises:
        ReplayDiverged: as above.
    """
    try:
        yield
    except (ReplayDiverged, ModelReplyMissing) as error:
        first = f"; before that, {differences[0]}" if differences else ""
        hint = error.hint
        if differences or isinstance(error, ModelReplyMissing):
            hint = (
                f"questions have changed since version {known.view.started.version} recorded it: replay it with what "
                "recorded it, or record a run anew"
            )
        raise ReplayDiverged(f"{error.message}{first}", hint=hint) from error


def _budget_of(session: SessionStarted | None) -> Budget | None:
    """The budget that a recorded session was given; None: the one before."""
    given = session.budget if session is not None else None
    return TuneSettings.from_record({"budget": given}).budget if given is not None else None


def _replayed(session: Session, folder: RunFolder, known: Recorded) -> OptimizeResult:
    """One recorded session again.

    Raises:
        ReplayDiverged: something else was decided, or nothing more although the recorded session went on.
    """
    is_first = known.session.begin == 0
    result = session.run_new() if is_first else session.run_again(RunView.of(folder.read(), folder=folder.path))
    if known.next_event is not None:
        raise ReplayDiverged(
            f"the replay ends after {known.place} of {len(known.events)} events; the recorded run went on with "
            f"{known.next_event.kind}"
        )
    return result


@contextlib.contextmanager
def machine_for(
    given: Machine | SpoolMachine | None, settings: OptimizeSettings, listener: RunListener
) -> Iterator[Machine | SpoolMachine]:
    """Where to run: as given, else as the settings say, and then ended behind the block."""
    if given is not None or not settings.runner:
        yield given or LocalMachine()
        return

    def say(text: str) -> None:
        listener.on_event(Noted("info", text), Progress(phase="expand"))

    with machine_of(settings.runner, say) as machine:
        yield machine


def _site_again(
    machine: Machine | SpoolMachine,
    subject: TuningProblem,
    files: Mapping[str, bytes],
    settings: OptimizeSettings,
    view: RunView,
) -> Site:
    """The site of a run that is resumed: the device that it began on."""
    if isinstance(machine, SpoolMachine):
        if view.baseline is None:  # the earlier session ended before it could record what the worker had measured
            return machine.begin(subject, files, settings.tune)
        return machine.again(subject, files, settings.tune, view.started)
    device = machine.device(str(view.started.device.get("id", "")) or None, subject.baseline.template.language)
    return LocalSite(machine.runner(subject.problem, device, settings.tune), device)


@contextlib.contextmanager
def _agent(given: Agent | None, settings: OptimizeSettings, folder: RunFolder, time_left: TimeLeft) -> Iterator[Agent]:
    """Who proposes: as given, else as the settings say; without the template role where code is rewritten directly."""
    made = agent_of(settings, folder, time_left=time_left)
    with contextlib.nullcontext(given) if given is not None else made as agent:
        yield direct(agent) if settings.policy == DIRECT else agent


@contextlib.contextmanager
def _removed_if_useless(folder: RunFolder) -> Iterator[None]:
    """Remove a new run folder that nothing can come of; say how to continue when the machine failed."""
    try:
        yield
    except BaseException as error:  # whatever comes before the first event leaves nothing
        events = list(folder.read())
        is_wrong = isinstance(error, UserError) and not any(isinstance(event, NodeJudged) for event in events)
        if not events or is_wrong:
            shutil.rmtree(folder.path, ignore_errors=True)
        elif isinstance(error, InfrastructureError | ModelError | ScratchFull):
            _tell_to_resume(error, folder.path)
        raise


def _tell_to_resume(error: InfrastructureError | ModelError | ScratchFull, path: Path) -> None:
    advice = f"continue with `kernelwright resume {shlex.quote(str(path))}`"
    error.hint = f"{error.hint}; {advice}" if error.hint else advice
