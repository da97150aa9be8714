"""What was known when something was chosen: roles are told that, and not what has come in since.

So the same request is made again when a run is resumed, and its recorded reply is found, also where other structures
were under way at the same time. Actions are told apart by their number among all, for several may be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.store.event import ActionChosen, NodePlanned, TreeEvent
from kernelwright.tree.model import Tree


class TreeHistory:
    """The events of a tree, and the tree as it was at each choice."""

    def __init__(self, events: Sequence[TreeEvent] = ()) -> None:
        self._events: list[TreeEvent] = []
        self._places: list[int] = []
        """Of each action, among the events."""
        self._trees: dict[int, Tree] = {}
        self.add(events)

    def add(self, events: Sequence[TreeEvent]) -> None:
        """Take in what was recorded."""
        for event in events:
            if isinstance(event, ActionChosen):
                self._places.append(len(self._events))
            self._events.append(event)

    def at(self, number: int) -> Tree:
        """The tree when the action of this number was chosen, itself included."""
        tree = self._trees.get(number)
        if tree is None:
            tree = self._trees[number] = Tree.of(self._events[: self._places[number] + 1])
        return tree

    def plan_of(self, number: int) -> NodePlanned | None:
        """What was planned for this action; None: nothing was, or that was not recorded."""
        later = self._events[self._places[number] + 1 :]
        return next((each for each in later if isinstance(each, NodePlanned) and each.choice == number), None)

    def plan_with(self, number: int, key: str) -> NodePlanned | None:
        """The plan for the action's node that brought the idea of this key; None: it was there before the choice."""
        place = self._places[number]
        chosen = self._events[place]
        assert isinstance(chosen, ActionChosen)
        later = self._events[place + 1 :]
        plans = (each for each in later if isinstance(each, NodePlanned) and each.index == chosen.node)
        return next((plan for plan in plans if any(idea.key == key for idea in plan.ideas)), None)

    def with_plan(self, number: int, key: str) -> Tree:
        """The tree when this action was chosen, with the plan that the idea of this key comes from."""
        plan = self.plan_with(number, key)
        return self.at(number) if plan is None else self.at(number).after([plan])
