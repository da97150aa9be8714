"""What stands in the places of a folder, a site, a runner and steps when a run is repeated from its record."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from kernelwright.backend.base import DeviceInfo
from kernelwright.evaluate.base import Comparison, EvaluationFuture, EvaluationRequest
from kernelwright.problem.outcome import Cost, Failed, Passed
from kernelwright.remote.base import Elsewhere, NodeDone, NodeJob
from kernelwright.remote.in_flight import BackgroundTask, Steps
from kernelwright.remote.site import Comparing
from kernelwright.replaying.record import Recorded, ReplayDiverged
from kernelwright.store.event import (
    BaselineMeasured,
    Event,
    FinalistsCompared,
    NodeJudged,
    NodePlanned,
    NodeProposed,
    NodeTuned,
    Noted,
    RunFinished,
    TemplateProven,
)
from kernelwright.store.run_folder import RunFolder
from kernelwright.template.model import Candidate
from kernelwright.tree.model import Tree, action_of
from kernelwright.tuning.loop import RunClock


def watched_folder(recorded: Recorded, path: Path, *, files: Mapping[str, bytes]) -> RunFolder:
    """A new run folder that takes only what the record holds next."""
    folder = _WatchedFolder.create(path, files=files)
    folder.recorded = recorded
    return folder


class _WatchedFolder(RunFolder):
    """A run folder that takes only what the record holds next."""

    recorded: Recorded

    def append(self, events: Sequence[Event]) -> None:
        """Hold the events against the record, then record them.

        Raises:
            ReplayDiverged: one is not what was recorded.
            KeyboardInterrupt: the recorded session ended before all of them were durable.
        """
        count = self.recorded.expect(events)
        is_end = count < len(events) and isinstance(events[-1], RunFinished)
        if is_end and self.recorded.session.is_last:
            super().append(events)  # so that what is made of a run that was killed has an end
            return
        super().append(events[:count])
        if count < len(events) and not is_end:
            raise KeyboardInterrupt


class _RecordedClock(RunClock):
    """Tells the recorded time."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(now=recorded.now_s)

    @property
    def spent_s(self) -> float:
        """The seconds of the next event."""
        return self._now()


class _RecordedRunner:
    """Only there to be none: whatever a node asks is answered from the record before it comes here."""

    capacity = 1
    notes: Sequence[str] = ()

    def submit(self, request: EvaluationRequest) -> EvaluationFuture:
        """A failure that says so."""
        outcome = Failed("time", "not-recorded", "the recorded run has no such measurement")
        future: EvaluationFuture = Future()
        future.set_result((outcome, Cost()))
        return future

    def compare(self, candidates: Sequence[Candidate], *, rounds: int) -> Comparison | None:
        """None."""
        del candidates, rounds
        return None

    def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
        """See `ReplaySite.calibrate`."""
        raise NotImplementedError

    def measure_ceilings(self) -> Mapping[str, float]:
        """See `ReplaySite.ceilings`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to release."""


class ReplaySite:
    """The recorded run's device, or other machine, as its events tell of it."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self._started = recorded.view.started
        self._is_elsewhere = "worker" in self._started.environment  # then whole nodes went to another machine
        self._runner = _RecordedRunner()

    @property
    def device(self) -> DeviceInfo:
        """The recorded one."""
        known = {field.name for field in dataclasses.fields(DeviceInfo)}
        return DeviceInfo(**{name: value for name, value in self._started.device.items() if name in known})

    @property
    def runner(self) -> _RecordedRunner | None:
        """None where whole nodes went elsewhere."""
        return None if self._is_elsewhere else self._runner

    @property
    def elsewhere(self) -> Elsewhere | None:
        """This, where whole nodes went elsewhere."""
        return self if self._is_elsewhere else None

    @property
    def notes(self) -> Sequence[str]:
        """Those that were recorded behind the baseline."""
        left = self.recorded.events[self.recorded.place :]
        behind = left[1:] if left and isinstance(left[0], BaselineMeasured) else left
        notes = itertools.takewhile(lambda event: isinstance(event, Noted) and event.level == "warning", behind)
        return [event.text for event in notes if isinstance(event, Noted)]

    @property
    def environment(self) -> Mapping[str, str]:
        """The recorded one."""
        return self._started.environment

    def now_s(self) -> float:
        """As `Recorded.now_s`."""
        return self.recorded.now_s()

    def ceilings(self) -> Mapping[str, float]:
        """The recorded ones."""
        found = {name: float(rate) for name, rate in self._started.device.get("ceilings", {}).items()}
        if "copy_bytes_per_s" in self._started.device:
            found.setdefault("copy_bytes_per_s", float(self._started.device["copy_bytes_per_s"]))
        return found

    def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
        """The baseline as it was measured.

        Raises:
            ReplayDiverged: it is another one now.
        """
        known = self.recorded.view.baseline
        assert known is not None  # `Recorded` refuses a run without
        if known.candidate_id != baseline.id:
            raise ReplayDiverged(
                f"the baseline is candidate {baseline.id} now, and was {known.candidate_id} when it was recorded",
                hint="candidates are identified otherwise in this version: record the run anew",
            )
        assert isinstance(known.outcome, Passed)  # calibration raises otherwise
        return known.outcome, known.cost

    def calibrate_again(self, baseline: Candidate) -> None:
        """Nothing: no process needs it."""

    def compare(self, comparing: Comparing) -> FinalistsCompared | None:
        """The comparison as it was measured.

        Raises:
            ReplayDiverged: other finalists would be compared now.
            KeyboardInterrupt: the recorded session ended in it.
        """
        known = self.recorded.comparison
        if known is None:
            return None
        chosen = [each.candidate.id for each in comparing.choose(frozenset())]
        missing = [each for each in chosen[:1] if each not in (*known.candidate_ids, *known.rejected)]
        if missing:
            raise ReplayDiverged(f"candidate {missing[0]} would be the first finalist now, and was none then")
        return known

    def search(self, job: NodeJob) -> NodeDone:
        """As `Recorded.done`."""
        return self.recorded.done(job)

    def stop(self) -> None:
        """Nobody waits."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to release."""


def clock_of(recorded: Recorded) -> RunClock:
    """A clock that tells the recorded time."""
    return _RecordedClock(recorded)


def steps_of(recorded: Recorded, size: int, tree: Callable[[], Tree]) -> Steps:
    """Steps that end in the order in which the recorded ones ended; `size`: how many may be under way."""
    return _OneRecordedStep(recorded) if size == 1 else _RecordedSteps(size, recorded, tree)


class _OneRecordedStep(Steps):
    """One step at a time, as long as the recorded session went on."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(1)
        self._recorded = recorded

    def begin(self, key: object, step: BackgroundTask) -> None:
        """As `Steps.begin`.

        Raises:
            KeyboardInterrupt: nothing came of it: the recorded session was killed or interrupted.
        """
        if self._recorded.is_over:
            raise KeyboardInterrupt
        super().begin(key, step)


class _RecordedSteps(Steps):
    """Chains that are carried on in the order in which the recorded events came of them, in one thread."""

    def __init__(self, size: int, recorded: Recorded, tree: Callable[[], Tree]) -> None:
        super().__init__(size)
        self._recorded = recorded
        self._tree = tree
        self._chains: dict[object, BackgroundTask] = {}

    def __len__(self) -> int:
        return len(self._chains)

    def __contains__(self, key: object) -> bool:
        return key in self._chains

    def begin(self, key: object, step: BackgroundTask) -> None:
        """Keep it until its turn."""
        self._chains[key] = step

    def take_one(self) -> object | None:
        """Carry on the chain that the next recorded event came of; as `Steps.take_one`.

        Raises:
            KeyboardInterrupt: nothing more came of any: the recorded session was killed or interrupted.
        """
        if not self._chains:
            return None
        if self._recorded.is_over:
            raise KeyboardInterrupt
        wanted = self._recorded.next_event
        key = next((each for each in self._chains if self._makes(each, wanted)), next(iter(self._chains)))
        step = self._chains[key]
        following = step.then(step.work())
        if following is None:
            del self._chains[key]
            return key
        self._chains[key] = following
        return None

    def _makes(self, key: object, event: Event | None) -> bool:
        """Whether the chain of that key is what the event comes of."""
        if key == "now":
            return True
        assert isinstance(key, tuple)
        kind, number = key
        if kind == "node":
            return isinstance(event, NodeJudged | NodeTuned | TemplateProven) and event.index == number
        action = self._tree().actions[number]
        if isinstance(event, NodePlanned | NodeProposed) and event.choice is not None:
            return event.choice == int(number)
        match event:
            case NodeTuned() | TemplateProven():  # of a template whose proof has waited for its search
                return action.action == "tune" and action.node == event.index
            case NodePlanned():
                return action.action == "expand" and action.node == event.index
            case NodeProposed():
                is_idea = not action.idea or action.idea == event.tactic
                return action.action == action_of(event.role) and action.node == event.parent and is_idea
        return False
