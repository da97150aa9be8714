"""An agent whose ideas are a table: drives the whole tree without a model and without rewriting anything real.

Each scripted tactic adds one parameter to the header and one line to the source, so that a simulated cost function can
tell by a config's names which tactics its template has been through.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.agent.base import AnalyseContext, Context, Declined, Draft, Finding, Plan, TemplateContext, Written
from kernelwright.agent.rules.landscape import findings
from kernelwright.problem.outcome import Failed
from kernelwright.space.parameter import Parameter
from kernelwright.store.event import Idea
from kernelwright.template.header import parse_header, strip_header


@dataclass(frozen=True, slots=True)
class ScriptedTactic:
    """One row of the table."""

    name: str
    predicted_gain: float
    family: str = "memory"
    needs: tuple[str, ...] = ()
    """Tactics that must have been applied before."""
    values: tuple[int, ...] = (1, 2, 4)
    constraint: str = ""
    """An extra condition; one that cannot hold makes the template refused."""
    declines: str = ""
    """Why nothing is written after all."""

    @property
    def parameter(self) -> str:
        """The name of the parameter that it adds."""
        return self.name.upper().replace("-", "_")


class ScriptedAgent:
    """Plans what the table says; mends a failed node by dropping the largest value of its last parameter."""

    def __init__(
        self, tactics: Sequence[ScriptedTactic] = (), *, lifted: ScriptedTactic | None = None, plans_ahead: bool = True
    ) -> None:
        self._tactics: Mapping[str, ScriptedTactic] = {each.name: each for each in tactics}
        self._lifted = lifted
        self._plans_ahead = plans_ahead
        self.calls: list[str] = []
        """Every call in order, e.g. `plan 1`, `code 1 vector`."""

    @property
    def name(self) -> str:
        """`scripted`."""
        return "scripted"

    @property
    def plans_ahead(self) -> bool:
        """As given."""
        return self._plans_ahead

    def plan(self, context: Context) -> Plan:
        """Tactics that were not applied yet and whose needs are met."""
        self.calls.append(f"plan {context.node.index}")
        done = context.written.tactics
        refused = {each.name: "applied before" for each in self._tactics.values() if each.name in done}
        refused |= {
            each.name: f"needs {', '.join(each.needs)}"
            for each in self._tactics.values()
            if each.name not in done and not set(each.needs) <= set(done)
        }
        ideas = [
            Idea(each.name, each.family, f"apply {each.name}", "the script says so", each.predicted_gain)
            for each in self._tactics.values()
            if each.name not in refused
        ]
        return Plan(tuple(sorted(ideas, key=lambda idea: -(idea.predicted_gain or 0.0))), refused)

    def code(self, context: Context, idea: Idea) -> Draft | Declined:
        """The template with the tactic's parameter and line."""
        self.calls.append(f"code {context.node.index} {idea.key}")
        tactic = self._tactics[idea.key]
        if tactic.declines:
            return Declined(tactic.declines)
        return Draft(_applied(context.written, tactic), f"applied {tactic.name}", "", tactic.predicted_gain)

    def debug(self, context: Context, failure: Failed) -> Draft | Declined:
        """The same template without the largest value of its last parameter, while it has more than one."""
        self.calls.append(f"debug {context.node.index}")
        header = parse_header(context.written.text, Path("node"), entry=context.written.entry)
        last = header.parameters[-1]
        if len(last.values) == 1:
            return Declined("nothing is left to drop")
        values = tuple(value for value in last.values if value != max(last.values))
        changed = header.with_parameters(dataclasses.replace(last, values=values, default=values[0]))
        text = changed.render() + strip_header(context.written.text)
        return Draft(dataclasses.replace(context.written, text=text), "smaller")

    def template(self, context: TemplateContext) -> Draft | Declined:
        """The scripted lifting, once."""
        self.calls.append("template")
        if self._lifted is None or self._lifted.name in context.written.tactics:
            return Declined("nothing to lift")
        return Draft(_applied(context.written, self._lifted), "lifted")

    def analyse(self, context: AnalyseContext) -> tuple[Finding, ...]:
        """As the rules do."""
        return findings(context)


def _applied(written: Written, tactic: ScriptedTactic) -> Written:
    header = parse_header(written.text, Path("node"), entry=written.entry)
    header = header.with_parameters(Parameter(tactic.parameter, tactic.values, tactic.values[0], f"for {tactic.name}"))
    if tactic.constraint:
        header = header.with_constraint(tactic.name, tactic.constraint)
    line = f"enum {{ scripted_{tactic.parameter.lower()} = {tactic.parameter} }};\n"
    text = header.render() + line + strip_header(written.text)
    return dataclasses.replace(written, text=text, tactics=(*written.tactics, tactic.name))
