"""`optimize --replay RUN`: a whole run again, offline, from its recorded replies, measurements and times.

```
result, differences = replay_optimize(Path("runs/transpose-1"), run=Path("again"))
```
Everything that decides runs again: roles with their checks, the policy, proposals, the final choice. What only a
device, a service or a clock can say comes from the record: replies, evaluations in the order in which each node's
search made them, its forecasts, proofs of templates, the final comparison, what was recalled, and the time at each
event. Each event that is made is held against the recorded one, times and ids aside; the first one that differs ends
the replay.

Several structures under way share a budget as they go: where they were searched on the machine that led the run, and
not elsewhere, what was decided meanwhile depends on how far each was, which no event tells, and a replay may diverge
there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from kernelwright.backend.base import DeviceInfo
from kernelwright.engine.elsewhere import CompareJob, Elsewhere, NodeDone, NodeJob
from kernelwright.engine.optimize_result import is_optimize_run
from kernelwright.engine.optimize_settings import NODES_FOLDER
from kernelwright.engine.site import Comparing
from kernelwright.engine.steps import Step, Steps
from kernelwright.errors import StoreError, UserError
from kernelwright.evaluate.base import Comparison, EvaluationFuture, EvaluationRequest
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Cost, Evaluation, Failed, Passed
from kernelwright.store.event import (
    ActionChosen,
    Evaluated,
    Event,
    FinalistsCompared,
    NodeJudged,
    NodePlanned,
    NodeProposed,
    NodeTuned,
    Noted,
    RunFinished,
    RunStarted,
    SessionStarted,
    TemplateProven,
)
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate
from kernelwright.tree.model import Tree, action_of

_T = TypeVar("_T")

MOST_SHOWN = 300
"""Characters of each side of a difference."""

_TIMES = frozenset({"elapsed_s", "spent_s", "spent_on"})
_OF_START = ("problem_name", "problem_id", "device", "workloads", "floors")
"""Of the first event, what a replay must have too; ids, dates and the machine that leads are others."""


class ReplayDiverged(UserError):
    """A replay decided something else than the recorded run."""


class Recorded:
    """What a recorded run says in the place of devices, services and clocks; keeps how far the replay is."""

    def __init__(self, run: Path) -> None:
        """Read all of it.

        Raises:
            StoreError: there is no run of `optimize`, or it is damaged.
        """
        self.run = run
        self.view = RunView.read(run)
        if not is_optimize_run(self.view):
            raise StoreError(f"{run} is no run of `optimize`", hint="replay a run of `tune` with `tune --replay`")
        if self.view.baseline is None:
            raise StoreError(f"{run} ended before its baseline was measured", hint="there is nothing to replay")
        with RunFolder.open(run, writable=False) as folder:
            self.events: tuple[Event, ...] = tuple(_of_one_session(list(folder.read())))
        self.place = 0
        """Of the next event."""
        self._nodes: dict[int, tuple[Evaluated, ...]] = {}
        self._time_s = 0.0

    # -- time and order ------------------------------------------------------------------------------------------

    @property
    def next_event(self) -> Event | None:
        """The recorded event that the replay must make next; None: the run had no more."""
        return self.events[self.place] if self.place < len(self.events) else None

    def now_s(self) -> float:
        """Budget seconds when the next event was made."""
        event = self.next_event
        own = event.spent_s if isinstance(event, RunFinished) else getattr(event, "elapsed_s", None)
        self._time_s = self._time_s if own is None else own
        return self._time_s

    def expect(self, events: Sequence[Event]) -> None:
        """Hold what the replay made against the record.

        Raises:
            ReplayDiverged: an event is another one; nothing of it is taken in.
        """
        for event in events:
            recorded = self.next_event
            if recorded is None and isinstance(event, RunFinished) and event.reason == "interrupted":
                return  # the recorded session was killed
            difference = _difference(recorded, event)
            if difference:
                raise ReplayDiverged(
                    f"the replay diverges at event {self.place + 1} of {len(self.events)}: {difference}",
                    hint="a replay repeats what this version decides; another version may decide otherwise",
                )
            self.place += 1

    def _ahead(self, kind: type[_T], index: int) -> _T | None:
        """The next event of that kind about a node."""
        return next((e for e in self.events[self.place :] if isinstance(e, kind) and _index(e) == index), None)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def of_node(self, index: int) -> tuple[Evaluated, ...]:
        """All evaluations of a node, in the order of its log."""
        if index not in self._nodes:
            folder = self.run / NODES_FOLDER / f"{index:03d}"
            self._nodes[index] = RunView.read(folder).evaluations if (folder / "events.jsonl").is_file() else ()
        return self._nodes[index]

    def evaluated(self, index: int, place: int, config: Config) -> Evaluated:
        """The node's evaluation at that place, which must be of `config`.

        Raises:
            ReplayDiverged: it is another one, or was not made.
            KeyboardInterrupt: the recorded run ended before it.
        """
        known = self.of_node(index)
        if place >= len(known):
            raise KeyboardInterrupt
        if Config(known[place].config) != config:
            raise ReplayDiverged(
                f"the replay diverges at evaluation {place} of node {index}: "
                f"recorded {_short(dict(known[place].config))}, now {_short(dict(config))}"
            )
        return known[place]

    def searched(self, index: int, place: int) -> tuple[tuple[Evaluated, ...], str, float]:
        """What the node's search made from `place` on, why it ended, and what the node had spent by then.

        The order is the recorded one: what a search proposes next depends on what is under way, and so on time.
        """
        tuned = self._ahead(NodeTuned, index)
        if tuned is None:
            rest = self.of_node(index)[place:]
            return rest, "interrupted", rest[-1].elapsed_s if rest else 0.0
        return self._until(index, place, tuned.evaluated_count), tuned.reason, tuned.spent_s

    def _until(self, index: int, place: int, count: int) -> tuple[Evaluated, ...]:
        """From `place` until so many of the node's evaluations were run, and what was known already behind them."""
        known, run = self.of_node(index), 0
        end = place
        for at, event in enumerate(known):
            is_more = run >= count and event.source != "known"
            if at >= place and is_more:
                break
            run += event.source != "known"
            end = at + 1
        return known[place : max(place, end)]

    def forecast(self, index: int) -> float | None:
        """What the node's search expected of more evaluations when it was recorded next."""
        tuned = self._ahead(NodeTuned, index)
        return tuned.expected_gain_fraction if tuned is not None else None

    def reproduction(self, index: int) -> Failed | None:
        """Why a lifted template was refused although its default passed; None: it was not."""
        judged = self._ahead(NodeJudged, index)
        if judged is None or judged.status != "failed":
            return None
        return Failed(judged.stage, judged.reason, judged.message, judged.log)  # type: ignore[arg-type]

    def proof(self, index: int, place: int) -> tuple[TemplateProven, tuple[Evaluated, ...]]:
        """A lifted template's proof with the evaluations that it made.

        Raises:
            KeyboardInterrupt: the recorded run ended in it.
        """
        proven = self._ahead(TemplateProven, index)
        if proven is None:
            raise KeyboardInterrupt
        at = self.events.index(proven, self.place)
        for event in self.events[at + 1 :]:
            if isinstance(event, ActionChosen) and event.node == index:
                break
            if isinstance(event, NodeTuned) and event.index == index:
                return proven, self._until(index, place, event.evaluated_count)
        return proven, ()

    def done(self, job: NodeJob) -> NodeDone:
        """What another machine made of a node.

        Raises:
            KeyboardInterrupt: the recorded run ended before the answer was there.
        """
        judged, tuned = self._ahead(NodeJudged, job.index), self._ahead(NodeTuned, job.index)
        if job.evaluated_count == 0 and judged is not None and judged.status == "failed":
            events = self.of_node(job.index)
            is_refused = any(isinstance(event.outcome, Passed) for event in events) or not events
            return NodeDone(events, "", self.reproduction(job.index) if is_refused else None)
        if tuned is None:
            raise KeyboardInterrupt
        proof = self._ahead(TemplateProven, job.index) if job.template is not None else None
        return NodeDone(self._until(job.index, job.evaluated_count, tuned.evaluated_count), tuned.reason, proof=proof)


def _of_one_session(events: list[Event]) -> list[Event]:
    """The events as one session would have made them: without interruptions and what resuming added."""
    first = next((at for at, event in enumerate(events) if isinstance(event, SessionStarted)), 0)
    last = max((at for at, event in enumerate(events) if isinstance(event, FinalistsCompared)), default=0)
    kept: list[Event] = []
    for at, event in enumerate(events):
        if isinstance(event, SessionStarted) and at != first:
            if kept and isinstance(kept[-1], RunFinished):
                kept.pop()
            continue
        if isinstance(event, Noted) and event.text.startswith("resumed on "):
            continue
        if isinstance(event, FinalistsCompared) and at != last:
            continue  # a session that was killed in its final comparisons; the next one has made them again
        kept.append(event)
    return kept


def _index(event: object) -> int | None:
    return getattr(event, "index", None)


# -- differences


def _difference(recorded: Event | None, made: Event) -> str:
    """How two events differ, in words; empty: in nothing but times and ids."""
    if recorded is None:
        return f"the recorded run ends here, the replay goes on with {made.kind} {_short(_comparable(made))}"
    if type(recorded) is not type(made):
        words = f"recorded {recorded.kind} {_short(_comparable(recorded))}"
        return f"{words}, now {made.kind} {_short(_comparable(made))}"
    old, new = _comparable(recorded), _comparable(made)
    for name in old:
        if name == "choice" and old[name] is None:
            continue  # recorded before it was told
        if old[name] != new.get(name) and not (isinstance(made, RunStarted) and _holds(new[name], old[name])):
            where = f" of node {_index(made)}" if _index(made) is not None else ""
            was, now = _apart(old[name], new.get(name))
            return f"{name} of {made.kind}{where}: recorded {was}, now {now}"
    return ""


def _holds(new: Any, old: Any) -> bool:
    """Whether everything that was described then is so now; a later version may describe more."""
    if not (isinstance(new, dict) and isinstance(old, dict)):
        return bool(new == old)
    return all(name in new and _holds(new[name], value) for name, value in old.items())


def _comparable(event: Event) -> dict[str, Any]:
    """The event without times and ids, as JSON has it."""
    if isinstance(event, SessionStarted):
        return {}
    data = json.loads(json.dumps(dataclasses.asdict(event), default=str))
    if isinstance(event, RunStarted):
        return {name: data[name] for name in _OF_START}
    return {name: value for name, value in data.items() if name not in _TIMES}


def _apart(old: object, new: object) -> tuple[str, str]:
    """Two values, of tables only what differs, so that shortening leaves the difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        old, new = (
            {name: value for name, value in this.items() if name not in other or other[name] != value}
            for this, other in ((old, new), (new, old))
        )
    return _short(old), _short(new)


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..."


# -- in the places of a folder, a site, a runner and steps


class WatchedFolder(RunFolder):
    """A run folder that takes only what the record holds next."""

    recorded: Recorded

    def append(self, events: Sequence[Event]) -> None:
        """Hold the events against the record, then record them.

        Raises:
            ReplayDiverged: one is not what was recorded.
        """
        self.recorded.expect(events)
        super().append(events)


class RecordedRunner:
    """Only there to be none: whatever a node asks is answered from the record before it comes here."""

    capacity = 1
    notes: Sequence[str] = ()

    def submit(self, request: EvaluationRequest) -> EvaluationFuture:
        """A failure that says so."""
        outcome = Failed("time", "not-recorded", "the recorded run has no such measurement")
        future: Future[Evaluation] = Future()
        future.set_result(Evaluation(request.candidate.id, outcome, Cost()))
        return future

    def compare(self, candidates: Sequence[Candidate], *, rounds: int) -> Comparison | None:
        """None."""
        del candidates, rounds
        return None

    def calibrate(self, baseline: Candidate) -> Evaluation:
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
        self._runner = RecordedRunner()

    @property
    def device(self) -> DeviceInfo:
        """The recorded one."""
        known = {field.name for field in dataclasses.fields(DeviceInfo)}
        return DeviceInfo(**{name: value for name, value in self._started.device.items() if name in known})

    @property
    def runner(self) -> RecordedRunner | None:
        """None where whole nodes went elsewhere."""
        return None if self._is_elsewhere else self._runner

    @property
    def elsewhere(self) -> Elsewhere | None:
        """This, where whole nodes went elsewhere."""
        return self if self._is_elsewhere else None

    @property
    def notes(self) -> Sequence[str]:
        """Those that were recorded behind the baseline."""
        found, events = [], self.recorded.events[self.recorded.place :]
        for event in events:
            if not (isinstance(event, Noted) and event.level == "warning"):
                break
            found.append(event.text)
        return found

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

    def calibrate(self, baseline: Candidate) -> Evaluation:
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
        return Evaluation(known.candidate_id, known.outcome, known.cost)

    def calibrate_again(self, baseline: Candidate) -> None:
        """Nothing: no process needs it."""

    def compare(self, comparing: Comparing | CompareJob) -> FinalistsCompared | None:
        """The comparison as it was measured.

        Raises:
            ReplayDiverged: other finalists would be compared now.
        """
        known = self.recorded.view.comparison
        if isinstance(comparing, CompareJob) or known is None:
            return known
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


class RecordedSteps(Steps):
    """Chains that are carried on in the order in which the recorded events came of them, in one thread."""

    def __init__(self, size: int, recorded: Recorded, tree: Callable[[], Tree]) -> None:
        super().__init__(size)
        self._recorded = recorded
        self._tree = tree
        self._chains: dict[object, Step] = {}

    def __len__(self) -> int:
        return len(self._chains)

    def __contains__(self, key: object) -> bool:
        return key in self._chains

    def begin(self, key: object, step: Step) -> None:
        """Keep it until its turn."""
        self._chains[key] = step

    def take_one(self) -> object | None:
        """Carry on the chain that the next recorded event came of; as `Steps.take_one`."""
        if not self._chains:
            return None
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
