"""`optimize --replay RUN`: a whole run again, offline, from its recorded replies, measurements and times.

```
result, differences = replay_optimize(Path("runs/transpose-1"), run=Path("again"))
```
Everything that decides runs again: roles with their checks, the policy, proposals, the final choice. What only a
device, a service or a clock can say comes from the record: replies, evaluations in the order in which each node's
search made them, its forecasts, proofs of templates, the final comparison, what was recalled, and the time at each
event. Each event that is made is held against the recorded one, times, ids and the words of findings aside; the first
one that differs ends the replay.

A run of several sessions is repeated session by session, see `sessions`: structures that were under way when one
was killed or interrupted come to nothing there, and go on in the next one from what is recorded of them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from kernelwright.errors import StoreError, UserError
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.remote.base import NodeDone, NodeJob
from kernelwright.replaying.sessions import RecordedSession, sessions_of
from kernelwright.results.optimize_result import is_optimize_run
from kernelwright.store.event import (
    ActionChosen,
    Evaluated,
    Event,
    FinalistsCompared,
    NodeJudged,
    NodePlanned,
    NodeTuned,
    Noted,
    RunFinished,
    RunStarted,
    SessionStarted,
    TemplateProven,
)
from kernelwright.store.run_folder import NODES_FOLDER, RunFolder
from kernelwright.store.view import RunView

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Event)

MOST_SHOWN = 300
"""Characters of each side of a difference."""

_TIMES = frozenset({"elapsed_s", "spent_s", "spent_on"})
_OF_START = ("problem_name", "problem_id", "device", "workloads", "floors")
"""What a replay must share with the first event; ids, dates and the machine that leads may differ."""


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
            self.sessions = sessions_of(list(folder.read()))
        self.session = self.sessions[0]
        """The one that is repeated now."""
        self.events: tuple[Event, ...] = tuple(event for each in self.sessions for event in each.events)
        self.place = 0
        """The place of the next event."""
        self._nodes: dict[int, tuple[Evaluated, ...]] = {}
        self._time_s = 0.0

    # -- time and order ------------------------------------------------------------------------------------------

    def begin(self, session: RecordedSession) -> None:
        """Repeat this session next."""
        self.session, self.place = session, session.begin

    @property
    def next_event(self) -> Event | None:
        """The recorded event that the replay must make next; None: the session recorded no more."""
        return self.events[self.place] if self.place < self.session.end else None

    @property
    def is_over(self) -> bool:
        """Whether the session was killed or interrupted here: nothing more came of what was under way."""
        return self.session.is_over(self.place)

    def now_s(self) -> float:
        """Budget seconds when the next event was made; those of the one before, where it has no time."""
        event = self.next_event
        time_s = _time_of(event) if event is not None else None
        self._time_s = self._time_s if time_s is None else time_s
        return self._time_s

    @property
    def chosen_s(self) -> float | None:
        """When the action was chosen that the session recorded next; None: it recorded something else."""
        event = self.next_event
        return event.elapsed_s if isinstance(event, ActionChosen) else None

    def timed(self, events: Sequence[_E]) -> list[_E]:
        """The events with their recorded times, as far as they are what was recorded next."""
        timed = [_at_times_of(recorded, event) for recorded, event in zip(self._left, events, strict=False)]
        return [*timed, *events[len(timed) :]]

    def expect(self, events: Sequence[Event]) -> int:
        """Hold what the replay made against the record; gives how many of them the session has recorded.

        Those behind them came to nothing: the session was killed or interrupted before they were durable.

        Raises:
            ReplayDiverged: an event is another one; it and what follows it is not taken in.
        """
        for count, event in enumerate(events):
            recorded, is_of_end = self.next_event, isinstance(event, RunFinished | Noted)
            if recorded is None or (self.is_over and not is_of_end):
                return count
            difference = _difference(recorded, event)
            if difference:
                raise self._diverged(difference)
            self.place += 1
        return len(events)

    def _diverged(self, difference: str) -> ReplayDiverged:
        hint = "a replay repeats what this version decides; another version may decide otherwise"
        if self.session.joined_count:
            hint = (
                "the run was resumed by a version that did not record what was known of structures under way: "
                "where several were, such a run may not be repeated"
            )
        return ReplayDiverged(
            f"the replay diverges at event {self.place + 1} of {len(self.events)}: {difference}", hint=hint
        )

    @property
    def _left(self) -> tuple[Event, ...]:
        """Events of the session from the next one on."""
        return self.events[self.place : self.session.end]

    @property
    def finished(self) -> RunFinished | None:
        """The session's end; None: it was killed."""
        return next((event for event in self._left if isinstance(event, RunFinished)), None)

    @property
    def comparison(self) -> FinalistsCompared | None:
        """The session's final comparison; None: nothing could be compared.

        Raises:
            KeyboardInterrupt: it was killed or interrupted in it.
        """
        known = next((event for event in self._left if isinstance(event, FinalistsCompared)), None)
        if known is None and self.is_over:
            raise KeyboardInterrupt
        return known

    def _ahead(self, kind: type[_T], index: int) -> _T | None:
        """The next event of that kind about a node."""
        return next((e for e in self._left if isinstance(e, kind) and _index(e) == index), None)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def of_node(self, index: int) -> tuple[Evaluated, ...]:
        """All evaluations of a node until the session's end, in the order of its log."""
        if index not in self._nodes:
            folder = self.run / NODES_FOLDER / f"{index:03d}"
            self._nodes[index] = RunView.read(folder).evaluations if (folder / "events.jsonl").is_file() else ()
        left = self.session.left
        return self._nodes[index] if left is None else self._nodes[index][: left.get(index, 0)]

    def had(self, index: int) -> tuple[Evaluated, ...]:
        """What a node's log held when the session began."""
        return self.of_node(index)[: self.session.evaluated.get(index, 0)]

    def had_log(self, index: int) -> bool:
        """Whether the node had a log when the session began."""
        return index in self.session.evaluated

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
        for event in self.events[at + 1 : self.session.end]:
            if isinstance(event, ActionChosen) and event.node == index:
                return proven, ()
            if isinstance(event, NodeTuned) and event.index == index:
                return proven, self._until(index, place, event.evaluated_count)
        return proven, self.of_node(index)[place:]  # the session ended before more was recorded of the node

    def done(self, job: NodeJob) -> NodeDone:
        """What another machine made of a node.

        Raises:
            KeyboardInterrupt: the recorded run ended before the answer was there.
        """
        judged, tuned = self._ahead(NodeJudged, job.index), self._ahead(NodeTuned, job.index)
        if judged is not None and judged.status == "failed":
            events = self.of_node(job.index)
            is_refused = any(isinstance(event.outcome, Passed) for event in events) or not events
            failure = self.reproduction(job.index) if is_refused else None
            return NodeDone(events[job.evaluated_count :], "", failure)
        if tuned is None and judged is None:
            raise KeyboardInterrupt
        proof = self._ahead(TemplateProven, job.index) if job.proof_points is not None else None
        if tuned is None:  # of what was to be recorded at once, the session could record a part
            return NodeDone(self.of_node(job.index)[job.evaluated_count :], "", proof=proof)
        return NodeDone(self._until(job.index, job.evaluated_count, tuned.evaluated_count), tuned.reason, proof=proof)


def _time_of(event: Event) -> float | None:
    """By the run's clock; None: the event has no time."""
    match event:
        case RunFinished():
            return event.spent_s
        case SessionStarted():
            return None if event.evaluated is None else event.spent_s
    return getattr(event, "elapsed_s", None)


def _at_times_of(recorded: Event, event: _E) -> _E:
    """The event with the recorded one's times and words, if it is of its kind: words of findings decide nothing."""
    if type(event) is not type(recorded):
        return event
    taken = {name: getattr(recorded, name) for name in (*_TIMES, "findings") if hasattr(event, name)}
    return dataclasses.replace(event, **taken)


def _index(event: object) -> int | None:
    return getattr(event, "index", None)


# -- differences


def _difference(recorded: Event, made: Event) -> str:
    """How two events differ, in words; empty: in nothing but times and ids."""
    if type(recorded) is not type(made):
        words = f"recorded {recorded.kind} {_short(_comparable(recorded))}"
        return f"{words}, now {made.kind} {_short(_comparable(made))}"
    old, new = _comparable(recorded), _comparable(made)
    for name in old:
        if name == "choice" and old[name] is None:
            continue  # recorded before it was told
        may_hold_more = isinstance(made, RunStarted) or (isinstance(made, NodePlanned) and name == "refused")
        if old[name] != new.get(name) and not (may_hold_more and _holds(new[name], old[name])):
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
