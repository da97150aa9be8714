"""Several plans for one structure on their way at once: each is carried out, and none is asked for twice."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from spool_runs import LIFT, PATIENCE_S, TILE, VECTOR, asking, settings, working

from kernelwright.agent.base import Context, Declined, Draft, Plan
from kernelwright.optimization.optimize import optimize
from kernelwright.store.event import Idea
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.tree.model import OPEN_FAMILY
from kernelwright.tree.registry import create

THIRD = ScriptedTactic("third", 1.3, "layout")
TACTICS = (TILE, VECTOR, THIRD)


class OneAtATime(ScriptedAgent):
    """Plans as a model does: one idea a request, another one each time, and the chance to plan again."""

    def __init__(self, *, key: str = "", is_last_first: bool = False) -> None:
        super().__init__(TACTICS, lifted=LIFT, plans_ahead=False)
        self._waits = is_last_first
        """Whether what was planned first is written last."""
        self._written = threading.Event()
        self._key = key
        """What every idea is called; empty: each has its tactic's name."""
        self._lock = threading.Lock()
        self._planned: dict[int, int] = {}
        self.opened: list[str] = []
        """Chances to plan again that were taken."""

    def plan(self, context: Context) -> Plan:
        index = context.node.index
        with self._lock:
            place = self._planned[index] = self._planned.get(index, 0) + 1
        left = [each for each in TACTICS if each.name not in context.written.tactics]
        if place > len(left):
            return Plan((), {"scripted": "nothing more"})
        tactic = left[place - 1]
        name = self._key or tactic.name
        idea = Idea(name, tactic.family, f"apply {tactic.name}", "the script says so", tactic.predicted_gain)
        again = [Idea(f"another-{index}-{n}", OPEN_FAMILY, "plan again", "", 1.1) for n in (1, 2, 3)]
        return Plan((idea, *again))

    def code(self, context: Context, idea: Idea) -> Draft | Declined:
        if idea.family == OPEN_FAMILY:
            self.opened.append(idea.key)
            return Declined("nothing more comes to mind")
        name = idea.instruction.removeprefix("apply ")
        if self._waits and context.node.role == "template":
            if name == THIRD.name:
                self._written.set()
            else:
                assert self._written.wait(PATIENCE_S)
        return super().code(context, replace(idea, key=name))


@pytest.mark.parametrize("is_last_first", [False, True])
@pytest.mark.parametrize("key", ["", "same"])
def test_each_plan_on_its_way_is_carried_out_before_planning_again(
    plain: Path, tmp_path: Path, key: str, is_last_first: bool
) -> None:
    """Also where a model calls all of its ideas the same, and where what was planned last is written first."""
    agent = OneAtATime(key=key, is_last_first=is_last_first)
    with working(tmp_path / "spool"):
        result = optimize(
            plain,
            settings=settings(60, max_attempts=3),
            run=tmp_path / "run",
            machine=asking(tmp_path / "spool"),
            agent=agent,
            policy=create("gain", has_model=True),
        )
    first = next(node.index for node in result.tree if node.role == "template")
    asked = [call for call in agent.calls if call.startswith(f"code {first} ")]
    assert sorted(asked) == [f"code {first} {name}" for name in sorted(("tile", "vector", "third"))]
    assert agent.opened == []
    assert not [node for node in result.tree if node.status == "refused"]
