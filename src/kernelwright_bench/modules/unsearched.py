"""What rules make of a program where no time is left to measure anything: their first steps, at the first values."""

from __future__ import annotations

from kernelwright.agent.base import Context, Draft, Task, TemplateContext, Written
from kernelwright.agent.rules.agent import RulesAgent
from kernelwright.agent.written import written_template
from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import SpecError
from kernelwright.problem.model import Problem
from kernelwright.template.load import template_of_text
from kernelwright.template.model import Candidate, Template
from kernelwright.tree.model import Node, Tree

MOST_STEPS = 4
WORTH = 1.1
"""A step that promises less is hardly right without a measurement. A guess."""
_PLAIN = Node(0, None, "baseline", "", "", "", "", None, "", "", ())
"""Rules look at the text alone."""


def by_rules(problem: Problem, plain: Template, device: DeviceInfo) -> Candidate | None:
    """The program after the steps that promise most, one after the other; None: no step is worth it.

    Nobody has measured or proven it.
    """
    agent, task, written = RulesAgent(), Task(problem, device), written_template(plain)
    lifted = agent.template(TemplateContext(task, written))
    if isinstance(lifted, Draft):
        written = lifted.written
    steps = 0
    while steps < MOST_STEPS and (draft := _next(agent, task, written)) is not None:
        written, steps = draft.written, steps + 1
    if not steps:
        return None
    try:
        template = template_of_text(problem, written.text, spec=problem.kernel)
    except SpecError:  # a step that does not go with another one
        return None
    return Candidate(template, template.default)


def _next(agent: RulesAgent, task: Task, written: Written) -> Draft | None:
    for idea in agent.plan(Context(task, Tree(), _PLAIN, written)).ideas:
        if (idea.predicted_gain or 1.0) > WORTH:
            done = agent.code(Context(task, Tree(), _PLAIN, written), idea)
            if isinstance(done, Draft):
                return done
    return None
