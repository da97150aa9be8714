"""One process's work on one run of `optimize`: both stages under one budget."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kernelwright.agent.base import Agent, Task
from kernelwright.agent.written import written_template
from kernelwright.errors import (
    BaselineFailed,
    InfrastructureError,
    StoreError,
)
from kernelwright.evaluate.base import Paced
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.evaluate.statistics import least_rounds
from kernelwright.identity import content_id
from kernelwright.llm.pace import TimeLeft
from kernelwright.optimization.ahead import work_ahead
from kernelwright.optimization.learning import learn
from kernelwright.optimization.loop import Optimizer
from kernelwright.optimization.nodes.run import NodeContext, evaluated_counts, new_incumbent, unlimited
from kernelwright.optimization.remembering import Remembered, recalled_or_note
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.optimization.state import OptimizerParts
from kernelwright.problem.outcome import Passed
from kernelwright.remote.base import NodeDone
from kernelwright.remote.client import SpoolSite
from kernelwright.remote.in_flight import Steps
from kernelwright.remote.site import Comparing, Site
from kernelwright.replaying.record import Recorded
from kernelwright.replaying.sessions import RESUMED_ON
from kernelwright.replaying.site import clock_of, steps_of
from kernelwright.results.optimize_result import OptimizeResult, of_node
from kernelwright.results.verdict import round_count
from kernelwright.roofline.profile import share_of_rates
from kernelwright.roofline.speed_of_light import (
    doubt,
    recorded_floors,
    share_of_floor,
    without_impossible,
)
from kernelwright.store.event import (
    CUT_SHORT,
    INTERRUPTED,
    OUT_OF_TIME,
    BaselineMeasured,
    Event,
    FinalistsCompared,
    Noted,
    RunFinished,
    RunStarted,
    SessionStarted,
)
from kernelwright.store.run_folder import NODES_FOLDER, RunFolder
from kernelwright.store.view import RunView
from kernelwright.tree.base import SelectionPolicy
from kernelwright.tree.gain import GainPerCost
from kernelwright.tree.model import Node, Tree
from kernelwright.tuning.finals.node_finals import Entrant, entrants
from kernelwright.tuning.finals.time_plan import GRACE, FinalsPace, claiming_rounds, raised_words
from kernelwright.tuning.interruption import (
    FREE_SET_UP_S,
    HardLimit,
    closing_events,
    hard_limit_s,
    over_words,
    too_short,
)
from kernelwright.tuning.listener import Progress, RunListener
from kernelwright.tuning.loop import RunClock
from kernelwright.tuning.objective import medians_ms
from kernelwright.tuning.run_start import run_started
from kernelwright.tuning.time_spent import BASELINE, FINALS, LONG_SET_UP, SET_UP, Ledger
from kernelwright.tuning.tune import COMPARISON_SHARE, TuningProblem, baseline_note, left_until

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What a session is made of."""

    subject: TuningProblem
    settings: OptimizeSettings
    site: Site
    folder: RunFolder
    files: Mapping[str, bytes]
    listener: RunListener
    agent: Agent
    policy: SelectionPolicy | None
    recorded: Recorded | None = None
    """The run that a replay repeats."""
    begun: RunClock = field(default_factory=RunClock)
    """Begun with the command."""
    time_left: TimeLeft | None = None
    """Told from then on, when the search begins, what it has left for models."""


class Session:
    """One process's work on one run of `optimize`."""

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._site = parts.site
        self._clock = self._clock_from(0.0)
        self._ledger = Ledger()
        self._resumed_s: float | None = None
        """Spent before this session; None: this is the first."""
        self._is_set_up = False
        self._progress = Progress(phase="prepare")
        self._optimizer: Optimizer | None = None
        self._pending: Sequence[Event] = ()
        """What is being recorded just now."""
        self._is_finished = False
        self._hard_limit = HardLimit(None, stop=lambda: None)
        self._doing = ""
        """What was said last of what takes its time."""

    # -- the two ways to run -------------------------------------------------------------------------------------

    def run_new(self) -> OptimizeResult:
        """The first session of a run."""
        parts, site = self._parts, self._site
        with self._stopping_cleanly(), site:
            started = run_started(
                parts.subject.problem,
                site.device,
                parts.settings.tune,
                site.ceilings(),
                problem_id=content_id(dict(parts.files)),
                record=parts.settings.as_record(),
                space=None,
            )
            started = dataclasses.replace(started, environment=dict(site.environment))
            self._append([started, self._session_started(0.0)])
            self._end_set_up()
            self._work(started, self._measure_baseline(started), None)
        return self._result()

    def run_again(self, view: RunView) -> OptimizeResult:
        """Another session of a run that is as `view` says."""
        parts, site = self._parts, self._site
        started = self._started_again(view)
        self._resumed_s = started.spent_s
        self._clock = self._clock_from(started.spent_s)
        self._ledger.take_over(view, spent_s=started.spent_s)
        self._append([started])
        if view.started.device.get("name") != site.device.name:
            text = f"{RESUMED_ON}{site.device.name!r}; it was started on {view.started.device.get('name')!r}: "
            self._append([Noted("warning", text + "times before and after do not compare")])
        with self._stopping_cleanly(), site:
            if view.baseline is None:
                self._end_set_up()
                baseline = self._measure_baseline(view.started)
            else:
                baseline = view.baseline
                self._enter("baseline")
                site.calibrate_again(parts.subject.baseline)
                self._end_set_up()  # which the budget has paid for once
            self._work(view.started, baseline, view)
        return self._result()

    def _end_set_up(self) -> None:
        """What this session has done so far is beside the budget; whatever comes now is not."""
        if not self._is_set_up:
            earlier_s = self._resumed_s or 0.0
            set_up_s = self._clock.spent_s - earlier_s
            long_s = 0.0
            if self._resumed_s is None and self._parts.recorded is None:
                set_up_s = max(set_up_s, self._parts.begun.spent_s)
                long_s = max(0.0, set_up_s - FREE_SET_UP_S)
                self._ledger.add(LONG_SET_UP, long_s)
            self._ledger.add(SET_UP, set_up_s - long_s)
            self._clock, self._is_set_up = self._clock_from(earlier_s + long_s), True
            self._keep_to_budget()

    def _keep_to_budget(self) -> None:
        runner, seconds = self._site.runner, self._parts.settings.tune.budget.seconds
        if isinstance(runner, Paced):
            runner.keep_to(None if seconds is None else max(0.0, seconds - self._clock.spent_s), self.say)

    def say(self, text: str) -> None:
        """Tell what is done next, in any thread."""
        self._doing = text
        self._parts.listener.on_progress(dataclasses.replace(self._progress, step=text))

    def _clock_from(self, earlier_s: float) -> RunClock:
        """A clock that begins now, with what earlier sessions have spent; a replay has the recorded times."""
        recorded = self._parts.recorded
        return RunClock(earlier_s=earlier_s, now=self._site.now_s) if recorded is None else clock_of(recorded)

    def _work(self, started: RunStarted, baseline: BaselineMeasured, view: RunView | None) -> None:
        """Search, compare, record the end."""
        if isinstance(self._site, SpoolSite):
            self._site.of_run(started, baseline)
        relay = _Relay(self)
        parts = self._optimizer_parts(started, baseline, relay)
        if view is not None:
            parts = dataclasses.replace(parts, proofs=view.proofs)
        parts = self._remembering(parts, view)
        self._tell_first_step(parts.why_first, view)
        optimizer = self._optimizer = Optimizer(parts, view.tree_events if view else ())
        if self._parts.time_left is not None:
            self._parts.time_left.is_told_by(optimizer.state.seconds_for_models)
        try:
            reason = self._unless_over(optimizer.run)
            comparison = None
            if reason not in CUT_SHORT:
                try:
                    with self._ledger.on(FINALS):
                        comparison = self._unless_over(lambda: self._compare(optimizer, parts.shared))
                except KeyboardInterrupt:
                    reason = "interrupted"
            self._hard_limit.release()
            if parts.shared.recorded is not None and parts.shared.recorded.is_over:
                reason = "interrupted"  # behind the comparison, as only the record can say
            reason = self._reason_of_end(reason)
            self._finish_nodes(optimizer, comparison, reason)
            if comparison is not None:
                self._remember(parts)
            notes = [*self._late_notes(), *self._words_of_end(optimizer, reason), *self._over_notes(reason)]
            self._append([*notes, self._finished(reason)])
        finally:
            optimizer.state.close()
        self._enter("done")

    def _unless_over(self, work: Callable[[], _T]) -> _T:
        """What `work` gives.

        Raises:
            KeyboardInterrupt: it failed, or a person pressed Ctrl-C, because the time of the run was over.
        """
        try:
            return work()
        except InfrastructureError:
            if not self._hard_limit.is_over:
                raise
            raise KeyboardInterrupt from None

    def _reason_of_end(self, reason: str) -> str:
        """The reason that is recorded: a run that its clock has stopped was not interrupted by a person."""
        recorded = self._parts.recorded
        if reason != INTERRUPTED:
            return reason
        if recorded is not None:
            return recorded.finished.reason if recorded.finished is not None else reason
        return OUT_OF_TIME if self._hard_limit.is_over else reason

    def _over_notes(self, reason: str) -> list[Noted]:
        """What was under way when the time was over; a replay has it in the record."""
        recorded, seconds = self._parts.recorded, self._parts.settings.tune.budget.seconds
        if reason != OUT_OF_TIME:
            return []
        if recorded is None:
            return [Noted("warning", over_words(seconds or 0.0, self._doing, self._progress.phase))]
        left = recorded.events[recorded.place : recorded.session.end]
        return [each for each in left if isinstance(each, Noted)]  # before the end come notes alone

    def _words_of_end(self, optimizer: Optimizer, reason: str) -> list[Noted]:
        """Why a policy ended the run; a replay has it in the record, if that is of a version that told it."""
        words = optimizer.words_of_end
        if not words or reason not in ("no-gain", "limit"):
            return []
        note = Noted("info", f"the search ended because {words}")
        recorded = self._parts.recorded
        return [note] if recorded is None or isinstance(recorded.next_event, Noted) else []

    def _finish_nodes(self, optimizer: Optimizer, comparison: FinalistsCompared | None, reason: str) -> None:
        """Record the end in every node's log; a replay of what was killed takes in first what had been evaluated."""
        recorded = self._parts.recorded
        if recorded is not None and reason in CUT_SHORT:
            for index, run in optimizer.state.runs.items():
                run.take(NodeDone(recorded.of_node(index)[len(run.evaluations) :], ""))
            if recorded.finished is None and not recorded.session.is_last:
                return
        for index, run in optimizer.state.runs.items():
            run.finish(of_node(comparison, index) if comparison else None, reason)

    def _late_notes(self) -> list[Noted]:
        """What another machine has told since the baseline was measured."""
        if self._site.elsewhere is None:
            return []
        folder = self._parts.folder
        known = {note.text for note in RunView.of(folder.read(), folder=folder.path).notes}
        return [Noted("warning", text) for text in self._site.notes if text not in known]

    def _optimizer_parts(self, started: RunStarted, baseline: BaselineMeasured, relay: RunListener) -> OptimizerParts:
        site = self._site
        parts, settings, subject = self._parts, self._parts.settings, self._parts.subject
        assert isinstance(baseline.outcome, Passed)  # calibration raises otherwise
        baseline_ms = medians_ms(baseline.outcome.measurements)
        weights = {workload.name: workload.weight for workload in subject.problem.workloads}
        share = share_of_floor(recorded_floors(started), baseline_ms, weights)
        rates = share_of_rates(started, baseline.outcome, weights) if site.device.shares_host_cores else None
        shared = NodeContext(
            started=started,
            baseline=baseline,
            baseline_ms=baseline_ms,
            weights=weights,
            device=site.device,
            settings=unlimited(settings.tune),
            runner=site.runner,
            incumbent=new_incumbent(baseline_ms, weights),
            listener=relay,
            recorded=parts.recorded,
            is_stopping=lambda: self._optimizer is not None and self._optimizer.is_stopping,
        )
        return OptimizerParts(
            problem=subject.problem,
            files=parts.files,
            root=subject.problem.baseline or subject.problem.kernel,
            baseline=subject.baseline,
            given=subject.template if self._has_given() else None,
            agent=parts.agent,
            policy=parts.policy or self._policy(),
            settings=settings,
            task=dataclasses.replace(self._task(started), limit_value=self._limit(started, baseline_ms, weights)),
            shared=shared,
            elsewhere=site.elsewhere,
            steps=_steps(parts.recorded),
            folder=parts.folder,
            clock=self._clock,
            reserved_s=self._reserved_s(baseline_ms),
            rewrites_first=settings.is_rewritten_first(share, rates),
            why_first=settings.why_first(share, rates),
            limit_s=self._parts.settings.tune.budget.seconds,
            begun_s=self._resumed_s or 0.0,
            ledger=self._ledger,
            tell=parts.listener.on_event,
            show=parts.listener.on_progress,
        )

    def _policy(self) -> SelectionPolicy:
        """As the settings say; elsewhere a structure is judged by the part that was asked for with its proof."""
        policy = self._parts.settings.selection_policy()
        if self._site.elsewhere is not None and isinstance(policy, GainPerCost):
            return dataclasses.replace(policy, slice_evaluations=self._parts.settings.part_evaluations)
        return policy

    def _remembering(self, parts: OptimizerParts, view: RunView | None) -> OptimizerParts:
        """The parts with what earlier runs have learnt, recorded first: a resume has no need of the library."""
        recorded = self._parts.recorded.view if self._parts.recorded is not None else view
        event = recorded.recalled if recorded is not None else None
        if recorded is not view and event is not None:
            self._append([event])
        if recorded is None:
            written = written_template(parts.baseline.template)
            event, note = recalled_or_note(parts.settings, parts.task, written)
            if event is not None:
                self._append([event])
            if note:
                self._append([Noted("warning", note)])
        remembered = Remembered(event)
        policy = parts.policy
        if parts.settings.is_sparing and isinstance(policy, GainPerCost):
            policy = dataclasses.replace(policy, earlier=remembered.predictions(parts.agent.name))
        return dataclasses.replace(
            parts,
            policy=policy,
            task=remembered.task(parts.task, entry=parts.problem.name),
            agent=remembered.agent(parts.agent),
            start=remembered.start,
        )

    def _tell_first_step(self, words: str, view: RunView | None) -> None:
        """Say why a new run begins with a rewrite, or with a template; a replay says it where its record does."""
        recorded = self._parts.recorded
        if words and view is None and (recorded is None or isinstance(recorded.next_event, Noted)):
            self._append([Noted("info", words)])

    def _remember(self, parts: OptimizerParts) -> None:
        """Keep what this run has taught for later ones; a replay teaches nothing new."""
        if self._parts.recorded is not None:
            return
        written = written_template(parts.baseline.template)
        note = learn(self._result(), parts.task, written, settings=parts.settings, proposer=parts.agent.name)
        if note:
            self._append([Noted("warning", note)])

    def _limit(
        self, started: RunStarted, baseline_ms: Mapping[str, float], weights: Mapping[str, float]
    ) -> float | None:
        """The objective at the device's floor; None on a CPU, whose ceilings move with what else the host does."""
        if self._site.device.shares_host_cores:
            return None
        return share_of_floor(recorded_floors(started), baseline_ms, weights)

    def _has_given(self) -> bool:
        subject = self._parts.subject
        is_other = subject.template.identity != subject.baseline.template.identity
        return is_other and self._parts.settings.start == "all"

    @contextlib.contextmanager
    def _stopping_cleanly(self) -> Iterator[None]:
        """Record an interrupt that comes at any time after the first event; what was measured stands."""
        try:
            with self._limited():
                yield
        except (KeyboardInterrupt, InfrastructureError) as error:
            is_over = self._hard_limit.is_over
            if isinstance(error, InfrastructureError) and not is_over:
                raise
            self._hard_limit.release()
            if is_over and self._optimizer is None:
                raise too_short(self._parts.settings.tune.budget.seconds or 0.0, self._doing) from None
            self._end_set_up()
            reason = self._reason_of_end(INTERRUPTED)
            log, end = self._parts.folder.log, self._finished(reason)
            events = closing_events(log, self._pending, end, is_finished=self._is_finished)
            if events is None:
                raise
            notes = self._over_notes(reason) if end in events else []
            if events:
                self._append([*events[:-1], *notes, events[-1]])

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        """Inside, the run is stopped when a command with its budget has to be over; not where others measure."""
        runner, seconds = self._site.runner, self._parts.settings.tune.budget.seconds
        if self._parts.recorded is not None or not isinstance(runner, Paced):
            yield
            return
        end_s = hard_limit_s(seconds)
        left_s = None if end_s is None else end_s - self._parts.begun.spent_s
        self._hard_limit = HardLimit(left_s, stop=runner.stop)  # known before it can be over
        with self._hard_limit:
            yield

    # -- steps ---------------------------------------------------------------------------------------------------

    def _measure_baseline(self, started: RunStarted) -> BaselineMeasured:
        self._enter("baseline")
        baseline = self._parts.subject.baseline
        self._begin_ahead(started)
        with self._ledger.on(BASELINE):
            passed, cost = self._site.calibrate(baseline)
        reason = doubt(recorded_floors(started), medians_ms(passed.measurements))
        if reason:
            raise BaselineFailed(
                f"the baseline's time cannot be: {reason}",
                hint="correct bytes and operations in [work]: both are the least that any kernel must do",
                location=self._parts.subject.problem.kernel.location,
            )
        source = self._parts.folder.blobs.put(baseline.template.source)
        event = BaselineMeasured(baseline.id, passed, cost, source)
        self._append([event, *(Noted("warning", text) for text in self._notes_of(event))])
        return event

    def _begin_ahead(self, started: RunStarted) -> None:
        """Beside the baseline's builds and checks, what the search will need."""
        runner, subject = self._site.runner, self._parts.subject
        if isinstance(runner, LocalRunner):
            first = [subject.baseline.template, *([subject.template] if self._has_given() else [])]
            sources = [written_template(each) for each in first]
            searcher = self._parts.settings.tune.searcher
            runner.do_beside(work_ahead(self._parts.agent, self._task(started), sources, searcher=searcher))

    def _task(self, started: RunStarted) -> Task:
        """What holds for the whole run, as far as it is known before the baseline is timed."""
        device = self._site.device
        return Task(
            self._parts.subject.problem,
            device,
            copy_bytes_per_s=_rate(started, "copy_bytes_per_s"),
            operations_per_s=_rate(started, "operations_per_s"),
            ceilings=dict(started.device.get("ceilings", {})),
            cache=self._parts.settings.tune.cache_of(is_cpu=device.kind == "cpu"),
        )

    def _notes_of(self, baseline: BaselineMeasured) -> list[str]:
        """What a person should know of the baseline; a replay has all of it in the record."""
        notes, seconds = list(self._site.notes), self._parts.settings.tune.budget.seconds
        own = baseline_note(seconds, baseline) if seconds is not None and self._parts.recorded is None else ""
        return [*notes, *([own] if own else [])]

    def _finished(self, reason: str) -> RunFinished:
        recorded = self._parts.recorded
        known = recorded.finished if recorded is not None else None
        spent_on = self._ledger.seconds if recorded is None else known.spent_on if known is not None else {}
        return RunFinished(reason, self._clock.spent_s, spent_on)

    def _compare(self, optimizer: Optimizer, shared: NodeContext) -> FinalistsCompared | None:
        """The final comparison over all nodes; None when nothing can be compared."""
        self._enter("compare")
        baseline_ms = shared.baseline_ms
        evaluations = {index: run.evaluations for index, run in optimizer.state.runs.items()}
        templates = {index: run.template for index, run in optimizer.state.runs.items()}
        count = self._parts.settings.tune.finalists

        def choose(rejected: frozenset[str]) -> list[Entrant]:
            usable = {
                index: [event for event in events if event.candidate_id not in rejected]
                for index, events in evaluations.items()
            }
            return entrants(optimizer.state.tree, usable, templates, count=count)

        first = choose(frozenset())
        least_s = least_rounds(len(first)) * 1e-3 * _round_ms(baseline_ms, first)
        seconds = self._parts.settings.tune.budget.seconds
        comparing = Comparing(
            baseline=self._parts.subject.baseline,
            choose=choose,
            files=optimizer.state.files,
            rounds=self._rounds(baseline_ms, first),
            seconds=None if seconds is None else self._seconds_for_checks(seconds, least_s),
            on_step=lambda: self._enter("compare"),
            is_late=lambda: self._is_late(least_s),
            pace=self._pace(optimizer, shared.baseline) if self._site.elsewhere is None else None,
        )
        comparison = self._site.compare(comparing)
        if comparison is not None:
            comparison = without_impossible(comparison, recorded_floors(shared.started))
            self._append([comparison])
        recorded = self._parts.recorded
        if recorded is None and (notes := [*_lacking(comparing.pace, comparison), *self._raised(comparison)]):
            self._append(notes)
        while recorded is not None and isinstance(note := recorded.next_event, Noted):
            self._append([note])  # what was lacking, and what came of remembering
        return comparison

    def _raised(self, comparison: FinalistsCompared | None) -> list[Noted]:
        """That there were more rounds than were asked for, where that is so."""
        if comparison is None:
            return []
        asked = self._parts.settings.tune.comparison_rounds
        text = raised_words(asked, round_count(comparison), len(comparison.candidate_ids) - 1)
        return [Noted("info", text)] if text else []

    def _pace(self, optimizer: Optimizer, baseline: BaselineMeasured) -> FinalsPace:
        """Lets finalists in as far as the time goes."""
        costs, tune = optimizer.state.costs(), self._parts.settings.tune
        end_s = tune.budget.seconds
        workloads = len(self._parts.subject.problem.workloads)
        if end_s is None:
            return FinalsPace(costs, rounds=tune.comparison_rounds, left_s=lambda: math.inf, workloads=workloads)
        return FinalsPace(
            costs,
            rounds=tune.comparison_rounds,
            workloads=workloads,
            left_s=left_until(end_s, self._clock, costs, resumed_s=self._resumed_s),
            grace_s=GRACE * end_s,
        )

    def _reserved_s(self, baseline_ms: Mapping[str, float]) -> float:
        """Budget seconds kept for the rounds elsewhere: what they could take, at most a fifth of the budget."""
        settings = self._parts.settings.tune
        worst_s = sum(baseline_ms.values()) * 1e-3 * settings.comparison_rounds * (2 + settings.finalists)
        return min(worst_s, COMPARISON_SHARE * (settings.budget.seconds or worst_s))

    def _is_late(self, least_s: float) -> bool:
        """Whether the checks of the finalists have used up the time for the fewest rounds of the comparison."""
        seconds = self._parts.settings.tune.budget.seconds
        return seconds is not None and self._clock.spent_s + least_s > seconds

    def _seconds_for_checks(self, seconds: float, least_s: float) -> float:
        """Seconds for finalists' checks elsewhere: what is left, or some where structures under way took more."""
        return max(COMPARISON_SHARE * seconds / 2, seconds - self._clock.spent_s - least_s)

    def _rounds(self, baseline_ms: Mapping[str, float], finalists: Sequence[Entrant]) -> int:
        """Rounds of the final comparison that fit into its share of the time."""
        settings = self._parts.settings.tune
        seconds, count = settings.budget.seconds, len(finalists)
        wanted = claiming_rounds(settings.comparison_rounds, count, len(baseline_ms))
        if seconds is None:
            return wanted
        round_ms = _round_ms(baseline_ms, finalists)
        available_s = max(COMPARISON_SHARE * seconds / 2, seconds - self._clock.spent_s)
        return max(least_rounds(count), min(wanted, int(1e3 * available_s / round_ms) if round_ms else wanted))

    def _unrecorded_s(self, view: RunView) -> float:
        """What nodes' runs had spent when the session was killed, and the whole run had not recorded yet."""
        if view.finished is not None:  # an end that was recorded tells all of it
            return 0.0
        tree, begin_s = Tree.of(view.tree_events), view.sessions[-1].time_s if view.sessions else 0.0
        return sum(self._unrecorded_of(tree[each.action.node], begin_s) for each in tree.under_way)

    def _unrecorded_of(self, node: Node, begin_s: float) -> float:
        """Unrecorded seconds of a node's run, in the whole run's session that began then."""
        path = self._parts.folder.path / NODES_FOLDER / f"{node.index:03d}"
        try:
            own = RunView.read(path)
        except StoreError:
            return 0.0
        before_s = next((each.spent_s for each in own.sessions if each.time_s >= begin_s), own.spent_s)
        proof_s = own.passed[0].elapsed_s if own.passed else 0.0  # recorded when the node was judged
        return max(0.0, own.spent_s - max(before_s, proof_s, node.tuning.spent_s))

    # -- events --------------------------------------------------------------------------------------------------

    def progress(self, running: Progress) -> Progress:
        """Where the whole run stands while a node is searched."""
        return self._optimizer.state.progress("search", running=running) if self._optimizer else running

    def tell(self, event: Event, progress: Progress) -> None:
        """A node's event, with the whole run's progress."""
        self._parts.listener.on_event(event, self.progress(progress))

    def show(self, progress: Progress) -> None:
        """A node's progress, as the whole run's."""
        self._parts.listener.on_progress(self.progress(progress))

    def _append(self, events: Sequence[Event]) -> None:
        self._pending = events
        self._parts.folder.append(events)
        self._is_finished, self._pending = isinstance(events[-1], RunFinished), ()
        for event in events:
            self._parts.listener.on_event(event, self._progress)

    def _enter(self, phase: str) -> None:
        self._doing = ""
        optimizer = self._optimizer
        self._progress = (
            optimizer.state.progress(phase) if optimizer else Progress(phase=phase, spent_s=self._clock.spent_s)
        )
        self._parts.listener.on_progress(self._progress)

    def _result(self) -> OptimizeResult:
        folder = self._parts.folder
        return OptimizeResult(RunView.of(folder.read(), folder=folder.path))

    def _session_started(
        self, spent_s: float, evaluated: Mapping[str, int] | None = None, before: RunView | None = None
    ) -> SessionStarted:
        budget = dataclasses.asdict(self._parts.settings.tune.budget)
        is_told = before is not None and before.settings.get("budget") != budget
        return SessionStarted(time.time(), os.getpid(), spent_s, evaluated, budget if is_told else None)

    def _started_again(self, view: RunView) -> SessionStarted:
        """What a resumed session begins with: the time that is spent, and how far each node was."""
        recorded = self._parts.recorded
        known = recorded.session.started if recorded is not None else None
        if known is not None:
            return self._session_started(known.spent_s, known.evaluated, view)
        counts = evaluated_counts(self._parts.folder.path / NODES_FOLDER)
        return self._session_started(view.spent_s + self._unrecorded_s(view), counts, view)


def _steps(recorded: Recorded | None) -> Callable[[int, Callable[[], Tree]], Steps]:
    """Makes steps; several under way end in a replay in the order in which they ended then."""

    def made(size: int, tree: Callable[[], Tree]) -> Steps:
        return Steps(size) if recorded is None else steps_of(recorded, size, tree)

    return made


def _rate(started: RunStarted, name: str) -> float | None:
    rate = started.device.get(name)
    return float(rate) if rate is not None else None


def _lacking(pace: FinalsPace | None, comparison: FinalistsCompared | None) -> list[Noted]:
    """What the final comparison lacks for want of time."""
    if pace is None:
        return []
    if comparison is None:
        return [Noted("warning", f"{pace.words()}: give more time")] if pace.is_short else []
    text = pace.shortened_words(len(comparison.candidate_ids) - 1, round_count(comparison))
    return [Noted("warning", f"{text}; give more time")] if text else []


def _round_ms(baseline_ms: Mapping[str, float], finalists: Sequence[Entrant]) -> float:
    """One launch of the baseline and of each finalist on every workload."""
    passed = [each.event.outcome for each in finalists if isinstance(each.event.outcome, Passed)]
    return sum(baseline_ms.values()) + sum(sum(medians_ms(each.measurements).values()) for each in passed)


class _Relay:
    """Hears a node's search loop and passes it on as the whole run's."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()  # several nodes may be searched at once

    def on_event(self, event: Event, progress: Progress) -> None:
        """Pass it on."""
        with self._lock:
            self._session.tell(event, progress)

    def on_progress(self, progress: Progress) -> None:
        """Pass it on."""
        with self._lock:
            self._session.show(progress)
