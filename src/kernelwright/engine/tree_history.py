"""What was known when something was chosen: roles are told that, and not what has come in since.

So the same request is made again when a run is resumed, and its recorded reply is found, also where other structures
were under way at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.store.event import ActionChosen, NodePlanned, TreeEvent
from kernelwright.tree.model import Tree


class TreeHistory:
    """The events of a tree, and the tree as it was at each choice."""

    def __init__(self, events: Sequence[TreeEvent] = ()) -> None:
        self._events = list(events)
        self._trees: dict[int, Tree] = {}

    def add(self, events: Sequence[TreeEvent]) -> None:
        """Take in what was recorded."""
        self._events += events

    def at(self, action: ActionChosen) -> Tree:
        """The tree when this action was chosen, itself included."""
        place = self._place(action)
        tree = self._trees.get(place)
        if tree is None:
            tree = self._trees[place] = Tree.of(self._events[: place + 1])
        return tree

    def plan_with(self, action: ActionChosen, key: str) -> NodePlanned | None:
        """The plan for the action's node that brought the idea of this key; None: it was there before the choice."""
        later = self._events[self._place(action) + 1 :]
        plans = (each for each in later if isinstance(each, NodePlanned) and each.index == action.node)
        return next((plan for plan in plans if any(idea.key == key for idea in plan.ideas)), None)

    def with_plan(self, action: ActionChosen, key: str) -> Tree:
        """The tree when this action was chosen, with the plan that the idea of this key comes from."""
        plan = self.plan_with(action, key)
        return self.at(action) if plan is None else self.at(action).after([plan])

    def _place(self, action: ActionChosen) -> int:
        return next(place for place in reversed(range(len(self._events))) if self._events[place] == action)
