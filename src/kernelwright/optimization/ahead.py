"""What a run is about to need, to be done while its baseline is built and checked."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Sequence

from kernelwright.agent.base import Agent, Draft, Task, TemplateContext, Written
from kernelwright.agent.rules.agent import RulesAgent

SEARCHER_MODULES = ("scipy.special", "sklearn.tree")
"""What the default searcher imports when it is made."""


def work_ahead(agent: Agent, task: Task, sources: Sequence[Written], *, searcher: str) -> list[Callable[[], None]]:
    """The parts of it, in the order in which they are needed; they change nothing that is decided, and raise nothing.

    What fails here is done again when it is needed, and then told.

    Args:
        agent: who proposes; rules plan ahead, models are asked in their turn.
        task: as the agent will be told it, but for what the baseline's times tell.
        sources: of the first nodes, the baseline first.
        searcher: its name.
    """
    works: list[Callable[[], object]] = []
    if isinstance(agent, RulesAgent):
        works += [functools.partial(agent.plan_ahead, task, each) for each in sources]
        works += [functools.partial(_plan_lifted, agent, task, each) for each in sources[:1]]
    if searcher in ("auto", "surrogate"):
        works += [functools.partial(importlib.import_module, each) for each in SEARCHER_MODULES]
    return [functools.partial(_try, each) for each in works]


def _try(work: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # of whatever kind a library raises where it does not fit another one
        work()


def _plan_lifted(agent: RulesAgent, task: Task, written: Written) -> None:
    """Plan for the template that lifting makes of a kernel."""
    lifted = agent.template(TemplateContext(task, written))
    if isinstance(lifted, Draft):
        agent.plan_ahead(task, lifted.written)
