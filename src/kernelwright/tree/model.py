"""Nodes and their tree, as they follow from the events of a run. Nothing here evaluates or decides.

```
tree = Tree.of(view.tree_events)
tree.best                       # the working node with the lowest objective
tree.path(tree.best.index)      # baseline, ..., best
```
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, assert_never, cast

from kernelwright.problem.config import Value
from kernelwright.problem.outcome import Failed, Stage
from kernelwright.store.event import (
    ActionChosen,
    Idea,
    NodeJudged,
    NodePlanned,
    NodeProposed,
    NodeTuned,
    TreeEvent,
)

OPEN_FAMILY = "open"
"""The family of ideas that are only a chance to plan again: a prediction there is none."""

Status = Literal["proposed", "working", "failed", "refused"]
"""`proposed`: not judged yet. `refused`: never built. `failed`: built or ran, and was wrong."""


@dataclass(frozen=True, slots=True)
class _Tuning:
    """Where a node's own search stands."""

    evaluated_count: int = 0
    failed_count: int = 0
    spent_s: float = 0.0
    is_exhausted: bool = False
    """Whether its space is used up."""
    expected_gain_fraction: float | None = None
    """The gain of as many further evaluations again; None: unknown."""
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One structural idea: a template with its tuned landscape."""

    index: int
    parent: int | None
    """None: the baseline."""
    role: str
    tactic: str
    """The idea's key at the parent."""
    family: str
    instruction: str
    because: str
    predicted_gain: float | None
    source_blob: str
    language: str
    tactics: tuple[str, ...]
    """Everything applied since the baseline, in order."""
    properties: tuple[str, ...] = ()
    status: Status = "proposed"
    default_value: float | None = None
    """Objective at the default; None: not working."""
    best_value: float | None = None
    """The lowest objective found, lower is better, 1 = as fast as the baseline; None: not working."""
    best_config: Mapping[str, Value] = field(default_factory=dict)
    failure: Failed | None = None
    tuning: _Tuning = field(default_factory=_Tuning)
    ideas: tuple[Idea, ...] = ()
    """What could be done to it, in the planner's order."""
    refused_ideas: Mapping[str, str] = field(default_factory=dict)
    is_planned: bool = False

    @property
    def is_working(self) -> bool:
        """Whether its template passed at the default."""
        return self.status == "working"

    @property
    def has_run(self) -> bool:
        """Whether it has measured something in a run of its own, which lies in a folder of its own."""
        return self.is_working and self.parent is not None

    @property
    def label(self) -> str:
        """A few words for tables: what was done."""
        return self.tactic or self.role


@dataclass(frozen=True, slots=True)
class UnderWay:
    """An action that was chosen, and whose outcome is not there yet."""

    action: ActionChosen
    number: int
    """Which of all actions it is, counted from 0."""
    child: int | None = None
    """The node that it has proposed; None: none yet, or it proposes none."""


@dataclass(frozen=True, slots=True)
class Done:
    """An action that was carried out, and what it took."""

    action: ActionChosen
    seconds: float
    """From the choice to its outcome, by the run's clock; what else was under way meanwhile is not taken off."""
    evaluations: int
    """For `tune`: how many were run; else 0."""
    node: int
    """What it made, or tuned."""


@dataclass(frozen=True)
class Tree:
    """All nodes by index; the baseline is node 0."""

    nodes: tuple[Node, ...] = ()
    under_way: tuple[UnderWay, ...] = ()
    """What had been chosen and not carried out when the events end, in the order of choice."""
    actions: tuple[ActionChosen, ...] = ()
    done: tuple[Done, ...] = ()
    """What was carried out, in the order of the outcomes."""

    @property
    def pending(self) -> ActionChosen | None:
        """The first action that is under way; None: none is."""
        return self.under_way[0].action if self.under_way else None

    @classmethod
    def of(cls, events: Iterable[TreeEvent]) -> Tree:
        """The tree after `events`, in the order they were recorded."""
        return Tree().after(events)

    def after(self, events: Iterable[TreeEvent]) -> Tree:
        """The tree with more events taken in."""
        nodes, under_way, actions = list(self.nodes), list(self.under_way), list(self.actions)
        done = list(self.done)
        for event in events:
            match event:
                case NodeProposed():
                    nodes.append(_proposed(event))
                    _bind(under_way, event)
                case NodeJudged():
                    nodes[event.index] = _judged(nodes[event.index], event)
                    done += [_done(each.action, event) for each in under_way if each.child == event.index]
                    under_way = [each for each in under_way if each.child != event.index]
                case NodePlanned():
                    nodes[event.index] = _planned(nodes[event.index], event)
                case ActionChosen():
                    under_way.append(UnderWay(event, len(actions)))
                    actions.append(event)
                case NodeTuned():
                    count = event.evaluated_count - nodes[event.index].tuning.evaluated_count
                    nodes[event.index] = _tuned(nodes[event.index], event)
                    ended = [each.action for each in under_way if _is_tuning_of(each.action, event.index)]
                    done += [_done(action, event, max(0, count)) for action in ended]
                    under_way = [each for each in under_way if not _is_tuning_of(each.action, event.index)]
                case _:
                    assert_never(event)
        return Tree(tuple(nodes), tuple(under_way), tuple(actions), tuple(done))

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __getitem__(self, index: int) -> Node:
        return self.nodes[index]

    @cached_property
    def working(self) -> tuple[Node, ...]:
        """Nodes that may be built upon, by index."""
        return tuple(node for node in self.nodes if node.is_working)

    @cached_property
    def best(self) -> Node | None:
        """The working node with the lowest objective; the earliest of equals."""
        return min((node for node in self.working if node.best_value is not None), key=_value, default=None)

    @cached_property
    def _children(self) -> Mapping[int, tuple[Node, ...]]:
        found: dict[int, list[Node]] = {}
        for node in self.nodes:
            if node.parent is not None:
                found.setdefault(node.parent, []).append(node)
        return {index: tuple(children) for index, children in found.items()}

    def children(self, index: int) -> tuple[Node, ...]:
        """Nodes made from this one, in order."""
        return self._children.get(index, ())

    def siblings(self, index: int) -> tuple[Node, ...]:
        """The other children of its parent."""
        parent = self.nodes[index].parent
        return () if parent is None else tuple(each for each in self.children(parent) if each.index != index)

    def path(self, index: int) -> tuple[Node, ...]:
        """From the baseline to this node."""
        steps = [self.nodes[index]]
        while (parent := steps[-1].parent) is not None:
            steps.append(self.nodes[parent])
        return tuple(reversed(steps))

    def descendants(self, index: int) -> tuple[Node, ...]:
        """Everything made from this node, however far below, by index."""
        found: set[int] = {index}
        for node in self.nodes[index + 1 :]:  # a child always has a higher index
            if node.parent in found:
                found.add(node.index)
        return tuple(self.nodes[each] for each in sorted(found - {index}))

    def open_ideas(self, index: int) -> tuple[Idea, ...]:
        """Ideas of this node that nobody has carried out, or is about to."""
        taken = {child.tactic for child in self.children(index)}
        taken |= {each.action.idea for each in self.under_way if each.action.node == index}
        return tuple(idea for idea in self.nodes[index].ideas if idea.key not in taken)

    @cached_property
    def idle(self) -> Tree:
        """The tree as a policy should see it that knows of no action under way: it chooses none of them again.

        A node that is being tuned counts as used up, one that is being repaired as refused, and one that is being
        planned for as planned; ideas that are being carried out are not open.
        """
        nodes = list(self.nodes)
        for each in self.under_way:
            node, action = nodes[each.action.node], each.action
            if action.action == "tune":
                tuning = replace(node.tuning, is_exhausted=True)
                nodes[node.index] = replace(node, tuning=tuning)
            elif action.action == "repair":
                nodes[node.index] = replace(node, status="refused")
            elif action.action == "expand" and not action.idea and each.child is None and not node.is_planned:
                nodes[node.index] = replace(node, is_planned=True)
        return replace(self, nodes=tuple(nodes))

    def gain(self, index: int) -> float | None:
        """How many times faster than its nearest working ancestor it was measured during the search; None: unknown."""
        value, before = self.nodes[index].best_value, self.ancestor(index)
        if value is None or before is None or before.best_value is None:
            return None
        return before.best_value / value

    def ancestor(self, index: int) -> Node | None:
        """The nearest working node above: the parent, or for a repair what the failed node was made from."""
        parent = self.nodes[index].parent
        while parent is not None and not self.nodes[parent].is_working:
            parent = self.nodes[parent].parent
        return None if parent is None else self.nodes[parent]


def _bind(under_way: list[UnderWay], event: NodeProposed) -> None:
    """Say of the action that a new node came of it.

    Which one that is was not recorded once: then the first that asked for this idea there, else for any.
    """
    if event.choice is not None:
        under_way[:] = [replace(each, child=event.index) if each.number == event.choice else each for each in under_way]
        return
    waiting = [
        (place, each.action)
        for place, each in enumerate(under_way)
        if each.child is None and each.action.node == event.parent and each.action.action != "tune"
    ]
    wanted = action_of(event.role)
    waiting = [(place, action) for place, action in waiting if action.action == wanted]
    exact = [place for place, action in waiting if action.idea == event.tactic]
    places = exact or [place for place, action in waiting if wanted != "expand" or not action.idea]
    if places:
        under_way[places[0]] = replace(under_way[places[0]], child=event.index)


def action_of(role: str) -> str:
    """The action that a node of this role comes of."""
    return {"debug": "repair", "template": "lift"}.get(role, "expand")


def _is_tuning_of(action: ActionChosen, index: int) -> bool:
    return action.action == "tune" and action.node == index


def _value(node: Node) -> float:
    assert node.best_value is not None
    return node.best_value


def _proposed(event: NodeProposed) -> Node:
    return Node(
        index=event.index,
        parent=event.parent,
        role=event.role,
        tactic=event.tactic,
        family=event.family,
        instruction=event.instruction,
        because=event.because,
        predicted_gain=event.predicted_gain,
        source_blob=event.source_blob,
        language=event.language,
        tactics=event.tactics,
        properties=event.properties,
    )


def _judged(node: Node, event: NodeJudged) -> Node:
    failure = None
    if event.status != "working":
        failure = Failed(cast("Stage", event.stage), event.reason, event.message, event.log)
    return replace(node, status=event.status, default_value=event.value, best_value=event.value, failure=failure)


def _done(action: ActionChosen, event: NodeJudged | NodeTuned, evaluations: int = 0) -> Done:
    return Done(action, max(0.0, event.elapsed_s - action.elapsed_s), evaluations, event.index)


def _planned(node: Node, event: NodePlanned) -> Node:
    """What is planned later adds to what was planned before."""
    known = {idea.key for idea in node.ideas}
    ideas = (*node.ideas, *(idea for idea in event.ideas if idea.key not in known))
    refused = {**node.refused_ideas, **event.refused}
    return replace(node, ideas=ideas, refused_ideas=refused, is_planned=True)


def _tuned(node: Node, event: NodeTuned) -> Node:
    tuning = _Tuning(
        evaluated_count=event.evaluated_count,
        failed_count=event.failed_count,
        spent_s=event.spent_s,
        is_exhausted=event.reason == "exhausted",
        expected_gain_fraction=event.expected_gain_fraction,
        findings=event.findings,
    )
    known = [value for value in (node.best_value, event.best_value) if value is not None]
    return replace(node, tuning=tuning, best_value=min(known, default=None), best_config=dict(event.best_config))


def free_key(key: str, taken: Collection[str]) -> str:
    """The key of an idea, with the first number behind it that none has where it is taken."""
    return next(
        name for name in (key, *(f"{key}-{number}" for number in range(2, len(taken) + 3))) if name not in taken
    )
