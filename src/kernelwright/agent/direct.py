"""An agent that rewrites directly: nothing is lifted into parameters for its own sake.

Together with a policy that tunes nothing this is how published agents work, one configuration for each rewrite, with
the numbers that the rewriter writes down: what templates and search are compared with.
"""

from __future__ import annotations

from kernelwright.agent.base import (
    Agent,
    AnalyseContext,
    CodeContext,
    DebugContext,
    Declined,
    Draft,
    Finding,
    Plan,
    PlanContext,
    TemplateContext,
)


class DirectAgent:
    """Another agent's roles, but for `template`, which it is not asked for."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @property
    def name(self) -> str:
        """The agent's."""
        return self._agent.name

    @property
    def plans_ahead(self) -> bool:
        """As the agent's."""
        return self._agent.plans_ahead

    def plan(self, context: PlanContext) -> Plan:
        """The agent's."""
        return self._agent.plan(context)

    def code(self, context: CodeContext) -> Draft | Declined:
        """The agent's."""
        return self._agent.code(context)

    def debug(self, context: DebugContext) -> Draft | Declined:
        """The agent's."""
        return self._agent.debug(context)

    def template(self, context: TemplateContext) -> Declined:
        """Nothing."""
        del context
        return Declined("code is rewritten directly, without parameters")

    def analyse(self, context: AnalyseContext) -> tuple[Finding, ...]:
        """Nothing: a single configuration has no landscape."""
        del context
        return ()
