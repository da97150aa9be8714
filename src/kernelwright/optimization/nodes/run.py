"""One node's own run: an ordinary tune run in `nodes/NNN/`, searched part by part, on a runner that all nodes share.

```
node = NodeRun.create(path, files, shared, priors=...)     # SpecError or EmptySpace: the template is refused
outcome = node.prove()                                     # its default, checked as any candidate is
reason = node.search(evaluations=8, seconds=10.0)          # again and again
node.finish(comparison, reason)
```

Everything that reads runs (show, report, export, replay) reads a node's folder as it reads any other.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError, KernelwrightError
from kernelwright.evaluate.base import EvaluationRequest, Incumbent, MeasuringRunner
from kernelwright.identity import content_id
from kernelwright.json_text import read_json_text
from kernelwright.optimization.nodes.first_configs import FirstConfigs, sweep
from kernelwright.problem.config import Config, Value
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Cost, Outcome, Passed
from kernelwright.remote.base import NodeDone, NodeJob
from kernelwright.roofline.speed_of_light import doubted, recorded_floors
from kernelwright.search.base import Forecaster, Observation, Prior, Searcher
from kernelwright.search.registry import create
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.store.event import (
    BaselineMeasured,
    Evaluated,
    Event,
    FinalistsCompared,
    RunFinished,
    RunStarted,
    SessionStarted,
    TemplateProven,
)
from kernelwright.store.log import EventLog
from kernelwright.store.run_folder import LOG_NAME, RunFolder
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate, Template
from kernelwright.tuning.device_limits import build_space
from kernelwright.tuning.listener import Progress, RunListener
from kernelwright.tuning.loop import POLL_S, RunClock, SearchLoop
from kernelwright.tuning.objective import medians_ms, objective
from kernelwright.tuning.run_start import space_record
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.state import SearchState, observation, observations
from kernelwright.tuning.tune import TuningProblem

if TYPE_CHECKING:
    from kernelwright.replaying.record import Recorded

PROOF_ATTEMPTS = 3
"""Configs that may be tried when the default does not fit into the device; a wrong result has no second chance."""

BEGINNING = 3
"""Events that a node's run begins with: its start, its session, the baseline."""

RESOURCE_STAGES = frozenset({"resources", "launch"})


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What the nodes of one session share."""

    started: RunStarted
    """The first event of the whole run."""
    baseline: BaselineMeasured
    baseline_ms: Mapping[str, float]
    weights: Mapping[str, float]
    device: DeviceInfo
    settings: TuneSettings
    runner: MeasuringRunner | None
    """None: nodes are proven and searched on another machine, see `NodeRun.job`."""
    incumbent: Incumbent
    """What all nodes race against, live."""
    listener: RunListener
    recorded: Recorded | None = None
    """What nodes measured, in the place of the runner, in a replay."""
    is_stopping: Callable[[], bool] = lambda: False
    """Asked while waiting in a thread that hears no Ctrl-C; true: leave with `KeyboardInterrupt`."""


@dataclass(frozen=True, slots=True)
class Parent:
    """What is known of what a node was made from, when it is made."""

    parameters: tuple[str, ...] = ()
    evaluations: tuple[Prior, ...] = ()
    """The best first."""
    start: Mapping[str, Value] = field(default_factory=dict)
    """Values that were best in an earlier run, for parameters that the parent does not have."""


class NodeRun:
    """See the module. Holds the right to write its folder until `close`."""

    def __init__(
        self, index: int, subject: TuningProblem, space: Space, folder: RunFolder, shared: NodeContext
    ) -> None:
        """Use `create` or `open`."""
        self.index = index
        self._subject = subject
        self._space = space
        self._folder = folder
        self._shared = shared
        self._state = SearchState()
        self._searcher: Searcher | None = None
        self._parent = Parent()
        self._spent_s = 0.0
        self._evaluations: list[Evaluated] = []

    @classmethod
    def create(
        cls, index: int, path: Path, files: Mapping[str, bytes], shared: NodeContext, *, parent: Parent
    ) -> NodeRun:
        """A new run with these files of a problem, which begins where its parent is.

        Raises:
            SpecError: they do not load; nothing is left behind.
            EmptySpace: no config fits the device; nothing is left behind.
        """
        folder = RunFolder.create(path, files=files)
        try:
            subject = TuningProblem.load(folder.problem_file)
            space = build_space(subject.problem, subject.template, shared.device)
            node = cls(index, subject, space, folder, shared)
            node._parent = parent
            folder.append([node._started(content_id(dict(files))), node._session(0.0), shared.baseline])
        except KernelwrightError:
            folder.close()
            shutil.rmtree(path, ignore_errors=True)
            raise
        node._restart(())
        if shared.recorded is not None:
            node.take(NodeDone(shared.recorded.had(index), ""))
        return node

    @classmethod
    def open(cls, index: int, path: Path, shared: NodeContext) -> NodeRun:
        """A run that an earlier session began.

        Raises:
            StoreError: there is none, or another process writes to it.
        """
        folder = RunFolder.open(path, writable=True)
        view = RunView.of(folder.read(), folder=path)
        subject = TuningProblem.load(folder.problem_file)
        space = build_space(subject.problem, subject.template, shared.device)
        node = cls(index, subject, space, folder, shared)
        node._spent_s = view.spent_s
        node._parent = node._recorded_parent(view.started)
        # What was under way when a recorded session was killed, a replay knows from the record.
        lost = shared.recorded.had(index)[len(view.evaluations) :] if shared.recorded is not None else ()
        folder.append([*lost, node._session(view.spent_s)])
        node._restart([*view.evaluations, *lost])
        return node

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def template(self) -> Template:
        """The node's template."""
        return self._subject.template

    @property
    def problem(self) -> Problem:
        """The node's own."""
        return self._subject.problem

    @property
    def space(self) -> Space:
        """What is searched."""
        return self._space

    @property
    def proven_default(self) -> Config | None:
        """The config that proved the template; None: none did."""
        passed = (event for event in self._evaluations if isinstance(event.outcome, Passed))
        return next((Config(event.config) for event in passed), None)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of its space."""
        return self._space.parameters

    @property
    def evaluations(self) -> Sequence[Evaluated]:
        """All so far, in order."""
        return self._evaluations

    @property
    def observations(self) -> list[Observation]:
        """All so far, as a searcher is told."""
        return observations(self._evaluations)

    @property
    def spent_s(self) -> float:
        """Budget seconds of this node over all sessions."""
        return self._spent_s

    @property
    def evaluated_count(self) -> int:
        """Evaluations that were run."""
        return self._state.evaluated_count

    @property
    def failed_count(self) -> int:
        """Those that failed."""
        return self._state.failed_count

    @property
    def best(self) -> Evaluated | None:
        """The lowest objective, also of a measurement that racing stopped; the earliest of equals."""
        passed = [event for event in self._evaluations if event.value is not None]
        return min(passed, key=lambda event: (event.value, event.index), default=None)

    @property
    def files(self) -> Mapping[str, bytes]:
        """The files of its problem."""
        return self._folder.problem_files()

    @property
    def proven(self) -> Evaluated | None:
        """The first evaluation that passed: that of the proof."""
        return next((event for event in self._evaluations if event.value is not None), None)

    def expected_gain_fraction(self, count: int) -> float | None:
        """What `count` more evaluations would bring, where the searcher can tell."""
        if self._shared.recorded is not None:
            return self._shared.recorded.forecast(self.index)
        searcher = self._search_state()
        expected = searcher.expected_gain(count) if isinstance(searcher, Forecaster) else None
        return None if expected is None else expected.fraction

    def as_parent(self, *, count: int) -> Parent:
        """What a node that is made from this one may know: its parameters and its best evaluations."""
        passed = [each for each in self._evaluations if each.value is not None]
        passed.sort(key=lambda each: (each.value, each.index))
        source = f"node {self.index}"
        return Parent(
            tuple(parameter.name for parameter in self._space.parameters),
            tuple(Prior(Config(each.config), each.value, source) for each in passed[:count]),
        )

    # -- work ----------------------------------------------------------------------------------------------------

    def prove(self) -> Outcome:
        """Evaluate the default, without racing against other nodes; what an earlier session measured stands.

        A default that does not fit into the device is replaced by configs near it, `PROOF_ATTEMPTS` in all.

        Raises:
            InfrastructureError: the machine failed twice.
        """
        template = self._subject.template
        start = template.default if template.default in self._space else self._space.nearest(template.default)
        tried: list[Config] = []
        while True:
            config = start if not tried else self._another(tried)
            outcome = self._evaluate(config)
            tried.append(config)
            is_over = len(tried) == min(PROOF_ATTEMPTS, self._space.feasible_count)
            if isinstance(outcome, Passed) or outcome.stage not in RESOURCE_STAGES or is_over:
                return outcome

    def search(self, *, evaluations: int, seconds: float | None) -> str:
        """Search on until the node has `evaluations` in all, or for so many seconds.

        Gives the reason why it stopped, as the search loop does. Other nodes' bests are raced against.
        """
        if self._shared.recorded is not None:
            events, reason, spent_s = self._shared.recorded.searched(self.index, len(self._evaluations))
            self.take(NodeDone(events, reason))
            self._spent_s = spent_s
            return reason
        return self._searched(self._search_state(), evaluations=evaluations, seconds=seconds)

    def check(self, points: Sequence[Config], *, seconds: float | None) -> Sequence[Evaluated]:
        """Evaluate these configs as far as the time goes, and tell the searcher; those outside of the space are not.

        Raises:
            KeyboardInterrupt: as it came; what was evaluated is recorded.
        """
        wanted, before = [each for each in points if each in self._space], len(self._evaluations)
        if not wanted or seconds == 0.0:
            return ()
        if self._searched(FirstConfigs(wanted, _NOTHING_MORE), evaluations=None, seconds=seconds) == "interrupted":
            raise KeyboardInterrupt
        new = self._evaluations[before:]
        if self._searcher is not None:
            self._searcher.tell(observations(new))
        return new

    def exclude(self, learned: Sequence[Constraint]) -> None:
        """Search from now on only where these conditions hold too; what was measured stays recorded."""
        self._space = build_space(self.problem, self.template, self._shared.device, learned=learned)
        self._searcher = None

    def _searched(self, searcher: Searcher, *, evaluations: int | None, seconds: float | None) -> str:
        shared, clock = self._shared, RunClock(earlier_s=self._spent_s)
        assert shared.runner is not None, "this node is searched elsewhere"
        limit_s = None if seconds is None else self._spent_s + max(seconds, 1e-3)
        loop = SearchLoop(
            template=self._subject.template,
            workloads=self._subject.problem.workloads,
            baseline_ms=shared.baseline_ms,
            runner=shared.runner,
            searcher=searcher,
            budget=dataclasses.replace(shared.settings.budget, evaluations=evaluations, seconds=limit_s),
            clock=clock,
            append=self._append,
            listener=_Stoppable(shared.listener, shared.is_stopping),
            state=self._state,
            floors=recorded_floors(shared.started),
            least_evaluations=0,  # the node's default was evaluated, and what is left of the time is the whole run's
        )
        try:
            return loop.run()
        finally:
            self._spent_s = clock.spent_s

    def job(
        self,
        *,
        evaluations: int,
        seconds: float | None,
        proof_points: int | None = None,
        proof_seconds: float | None = None,
        origin: Mapping[str, bytes] | None = None,
        proof: TemplateProven | None = None,
    ) -> NodeJob:
        """The same as `prove` and `search`, for another machine; what comes back is given to `take`."""
        incumbent, blob = self._shared.incumbent, self._blob_of_priors()
        return NodeJob(
            index=self.index,
            files=self._folder.problem_files(),
            log=self._folder.log.path.read_bytes(),
            evaluated_count=len(self._evaluations),
            blobs={blob: self._folder.blobs.get(blob)} if blob else {},
            best_ms=dict(incumbent.best_ms),
            best_value=incumbent.value,
            evaluations=evaluations,
            seconds=seconds,
            proof_points=proof_points,
            proof_seconds=proof_seconds,
            origin=origin or {},
            proof=proof,
        )

    def take(self, done: NodeDone) -> None:
        """Record what another machine has measured."""
        self._append(list(done.events))
        for event in done.events:
            self._state.add(event, self._shared.settings.budget)
            self._spent_s = max(self._spent_s, event.elapsed_s)
        if self._searcher is not None:
            self._searcher.tell([each for each in observations(done.events) if each.config in self._space])

    def finish(self, comparison: FinalistsCompared | None, reason: str) -> None:
        """Record what the final comparison said of this node's finalists, and the end."""
        events = [comparison] if comparison is not None else []
        self._folder.append([*events, RunFinished(reason, self._spent_s)])

    def close(self) -> None:
        """Give the folder back."""
        self._folder.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _restart(self, evaluations: Sequence[Evaluated]) -> None:
        self._evaluations = list(evaluations)
        self._searcher = None
        self._state = SearchState(incumbent=self._shared.incumbent)
        for event in evaluations:
            self._state.add(event, self._shared.settings.budget)

    def _search_state(self) -> Searcher:
        """The searcher, told everything so far."""
        if self._searcher is None:
            settings, template = self._shared.settings, self._subject.template
            inner = create(
                settings.searcher,
                self._space,
                seed=settings.seed + self.index,
                default=template.default,
                options=settings.searcher_options,
                priors=self._priors(),
            )
            self._searcher = FirstConfigs(self._first_configs(), inner)
            self._searcher.tell([each for each in self.observations if each.config in self._space])
        return self._searcher

    def _first_configs(self) -> list[Config]:
        parent, default = self._parent, self._subject.template.default
        known = {each.name: frozenset(each.values) for each in self._space.parameters}
        start = {name: value for name, value in parent.start.items() if value in known.get(name, frozenset())}
        if not parent.evaluations and not start:
            return []
        best = parent.evaluations[0].config if parent.evaluations else Config({})
        return sweep(self._space, best, Config({**default, **start}), frozenset(parent.parameters))

    def _priors(self) -> list[Prior]:
        """What the parent measured, with this node's own defaults for parameters that are new."""
        default = self._subject.template.default
        return [
            Prior(
                Config({**default, **{name: value for name, value in each.config.items() if name in default}}),
                each.value,
                each.source,
            )
            for each in self._parent.evaluations
        ]

    def _another(self, tried: Sequence[Config]) -> Config:
        """A feasible config that asks for less than the default: every number a half, then a quarter of it."""
        wanted = {each.name: _shrunk(each, 2.0 ** len(tried)) for each in self._space.parameters}
        nearest = self._space.nearest(wanted)
        return nearest if nearest not in tried else next(each for each in self._space if each not in tried)

    def _evaluate(self, config: Config) -> Outcome:
        candidate = Candidate(self._subject.template, config)
        known = self._state.known.get(candidate.id)
        if known is not None:
            return known.outcome
        clock = RunClock(earlier_s=self._spent_s)
        shared = self._shared
        if shared.recorded is not None:
            recorded = shared.recorded.evaluated(self.index, len(self._evaluations), config)
            self.take(NodeDone([recorded], ""))
            return recorded.outcome
        racing = new_incumbent(shared.baseline_ms, shared.weights)
        outcome, cost = self._submit(EvaluationRequest(candidate, incumbent=racing))
        value = None
        if isinstance(outcome, Passed):
            outcome = doubted(outcome, recorded_floors(shared.started), medians_ms(outcome.measurements))
        if isinstance(outcome, Passed):
            value = objective(outcome, shared.baseline_ms, self._subject.problem.workloads)
        self._spent_s = clock.spent_s
        index = self._state.next_index
        event = Evaluated(index, candidate.id, dict(config), outcome, value, cost, self._spent_s)
        self._append([event])
        self._state.add(event, shared.settings.budget)
        if self._searcher is not None:
            self._searcher.tell([observation(event)])
        return outcome

    def _submit(self, request: EvaluationRequest) -> tuple[Outcome, Cost]:
        """What comes of it; a failure of the machine is tried again once. Waits in steps, so that Ctrl-C is heard."""
        runner = self._shared.runner
        if runner is None:
            raise InfrastructureError(f"what came back of node {self.index} does not hold its proof")
        for is_retry in (False, True):
            future = runner.submit(request)
            while not wait([future], timeout=POLL_S).done:
                if self._shared.is_stopping():
                    raise KeyboardInterrupt
            try:
                return future.result()
            except InfrastructureError:
                if is_retry:
                    raise
        raise AssertionError("the second attempt returns or raises")

    def _append(self, events: Sequence[Any]) -> None:
        self._folder.append(events)
        self._evaluations += [event for event in events if isinstance(event, Evaluated)]

    def _started(self, problem_id: str) -> RunStarted:
        shared, space = self._shared, self._space
        return dataclasses.replace(
            shared.started,
            run_id=uuid.uuid4().hex,
            problem_id=problem_id,
            settings={
                **shared.settings.as_record(),
                "node": self.index,
                "tree": shared.started.run_id,
                "parent_parameters": list(self._parent.parameters),
                "remembered_start": dict(self._parent.start),
                "priors_blob": self._kept_priors(),
            },
            space=space_record(space),
        )

    def _kept_priors(self) -> str | None:
        """What the parent had measured when this node was made: a resumed run starts from the same."""
        known = self._parent.evaluations
        if not known:
            return None
        return self._folder.blobs.put(json.dumps([[dict(each.config), each.value, each.source] for each in known]))

    def _blob_of_priors(self) -> str | None:
        started = RunView.of(self._folder.read()).started
        return str(started.settings.get("priors_blob") or "") or None

    def _recorded_parent(self, started: RunStarted) -> Parent:
        blob = started.settings.get("priors_blob")
        records = read_json_text(self._folder.blobs.get_text(str(blob))) if blob else []
        return Parent(
            tuple(started.settings.get("parent_parameters", ())),
            tuple(Prior(Config(config), value, source) for config, value, source in records),
            dict(started.settings.get("remembered_start", {})),
        )

    def _session(self, spent_s: float) -> SessionStarted:
        return SessionStarted(time_s=time.time(), process_id=os.getpid(), spent_s=spent_s)


class _Stoppable:
    """Passes everything on, and ends the search in whose thread it is called when that is asked for."""

    def __init__(self, listener: RunListener, is_stopping: Callable[[], bool]) -> None:
        self._listener = listener
        self._is_stopping = is_stopping

    def on_event(self, event: Event, progress: Progress) -> None:
        """Pass it on."""
        self._listener.on_event(event, progress)

    def on_progress(self, progress: Progress) -> None:
        """Pass it on, or stop: between two results, when everything before is recorded."""
        if self._is_stopping():
            raise KeyboardInterrupt
        self._listener.on_progress(progress)


class _Nothing:
    """A searcher with nothing to ask for."""

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        del count, pending
        return ()

    def tell(self, observations: Sequence[Observation]) -> None:
        del observations


_NOTHING_MORE = _Nothing()


def _shrunk(parameter: Parameter, factor: float) -> Value:
    """The largest value at most the default over `factor`, else the smallest; without an order the default."""
    default = parameter.default
    if not parameter.is_ordinal or isinstance(default, str | bool):
        return default
    numbers = sorted(value for value in parameter.values if isinstance(value, int | float))
    below = [value for value in numbers if value <= default / factor]
    return below[-1] if below else numbers[0]


def has_log(path: Path) -> bool:
    """Whether a node's folder holds a run whose beginning was recorded whole; without it nothing was evaluated.

    Raises:
        StoreError: the beginning is damaged, and not only torn.
    """
    log = path / LOG_NAME
    begun = itertools.islice(EventLog(log).read(), BEGINNING) if log.is_file() else ()
    return any(isinstance(event, BaselineMeasured) for event in begun)


def evaluated_counts(nodes: Path) -> dict[str, int]:
    """By node that has a log, how many evaluations it holds."""
    folders = sorted(each for each in nodes.glob("*") if each.name.isdecimal() and has_log(each))
    return {str(int(each.name)): len(RunView.read(each).evaluations) for each in folders}


def new_incumbent(baseline_ms: Mapping[str, float], weights: Mapping[str, float]) -> Incumbent:
    """What to race against before anything was found: the baseline."""
    return Incumbent(dict(baseline_ms), dict(weights), dict(baseline_ms), 1.0)


def unlimited(settings: TuneSettings) -> TuneSettings:
    """The settings without limits: a node's parts of the budget are given one by one."""
    return dataclasses.replace(settings, budget=Budget(min_gain_fraction=settings.budget.min_gain_fraction))
