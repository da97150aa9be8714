"""Agents whose roles are played by others: some by rules, some by an agent that writes without parameters.

```
mixed(model, {"debug"})              rules debug, the model does all else
lifting(of_kernels, of_templates)    kernels are written with their numbers first, and lifted into templates later
direct(agent)                        nothing is lifted into parameters for its own sake
```
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from kernelwright.agent.base import (
    Agent,
    AnalyseContext,
    Context,
    Declined,
    Draft,
    Finding,
    Plan,
    TemplateContext,
    Written,
)
from kernelwright.agent.model.settings import RoleName
from kernelwright.agent.rules.agent import RulesAgent
from kernelwright.errors import SpecError
from kernelwright.problem.outcome import Failed
from kernelwright.store.event import Idea
from kernelwright.template.header import parse_header


@dataclass(frozen=True, slots=True)
class _Composed:
    """An agent, role by role."""

    name: str
    plans_ahead: bool
    plan: Callable[[Context], Plan]
    code: Callable[[Context, Idea], Draft | Declined]
    debug: Callable[[Context, Failed], Draft | Declined]
    template: Callable[[TemplateContext], Draft | Declined]
    analyse: Callable[[AnalyseContext], tuple[Finding, ...]]


def played(
    agent: Agent,
    *,
    plan: Callable[[Context], Plan] | None = None,
    code: Callable[[Context, Idea], Draft | Declined] | None = None,
    template: Callable[[TemplateContext], Draft | Declined] | None = None,
    analyse: Callable[[AnalyseContext], tuple[Finding, ...]] | None = None,
) -> Agent:
    """The agent with these roles played by others; None: by itself."""
    return _Composed(
        agent.name,
        agent.plans_ahead,
        plan=plan or agent.plan,
        code=code or agent.code,
        debug=agent.debug,
        template=template or agent.template,
        analyse=analyse or agent.analyse,
    )


def mixed(model: Agent, by_rules: AbstractSet[RoleName]) -> Agent:
    """Rules in the given roles, the model in all others. Several threads may ask at once."""

    def player(role: RoleName) -> Agent:
        return RulesAgent() if role in by_rules else model

    return _Composed(
        model.name,
        player("plan").plans_ahead,
        plan=lambda context: player("plan").plan(context),
        code=lambda context, idea: player("code").code(context, idea),
        debug=lambda context, failure: player("debug").debug(context, failure),
        template=lambda context: player("template").template(context),
        analyse=lambda context: player("analyse").analyse(context),
    )


def lifting(of_kernels: Agent, of_templates: Agent) -> Agent:
    """Who is asked follows from the source at hand, by whether it declares parameters.

    The template role is the second one's, and all that is made of a template.
    """

    def player(written: Written) -> Agent:
        return of_templates if has_parameters(written) else of_kernels

    return _Composed(
        of_templates.name,
        of_kernels.plans_ahead and of_templates.plans_ahead,
        plan=lambda context: player(context.written).plan(context),
        code=lambda context, idea: player(context.written).code(context, idea),
        debug=lambda context, failure: player(context.written).debug(context, failure),
        template=of_templates.template,
        analyse=of_templates.analyse,
    )


def has_parameters(written: Written) -> bool:
    """Whether the source declares any; one whose header cannot be read was meant to."""
    try:
        return bool(parse_header(written.text, Path("header"), entry=written.entry).parameters)
    except SpecError:
        return True


def direct(agent: Agent) -> Agent:
    """The agent's roles, but for `template`, which it is not asked for; a single configuration has no landscape.

    Together with a policy that tunes nothing this is how published agents work: one configuration for each rewrite,
    with the numbers that the rewriter writes down. Templates and search are compared with that.
    """
    return played(
        agent,
        template=lambda _: Declined("code is rewritten directly, without parameters"),
        analyse=lambda _: (),
    )
