"""A model's agent some of whose roles are played by rules."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

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
from kernelwright.agent.model.settings import RoleName
from kernelwright.agent.rules.agent import RulesAgent


class MixedAgent:
    """Asks rules in the given roles, the model in all others. Several threads may ask at once."""

    def __init__(self, model: Agent, by_rules: AbstractSet[RoleName]) -> None:
        self._model = model
        self._by_rules = frozenset(by_rules)

    def _player(self, role: RoleName) -> Agent:
        return RulesAgent() if role in self._by_rules else self._model

    @property
    def name(self) -> str:
        """The model's."""
        return self._model.name

    @property
    def plans_ahead(self) -> bool:
        """Whether plans cost nothing."""
        return self._player("plan").plans_ahead

    def plan(self, context: PlanContext) -> Plan:
        """The plan of the agent that plays the role."""
        return self._player("plan").plan(context)

    def code(self, context: CodeContext) -> Draft | Declined:
        """The draft of the agent that plays the role."""
        return self._player("code").code(context)

    def debug(self, context: DebugContext) -> Draft | Declined:
        """The draft of the agent that plays the role."""
        return self._player("debug").debug(context)

    def template(self, context: TemplateContext) -> Draft | Declined:
        """The draft of the agent that plays the role."""
        return self._player("template").template(context)

    def analyse(self, context: AnalyseContext) -> tuple[Finding, ...]:
        """The findings of the agent that plays the role."""
        return self._player("analyse").analyse(context)
