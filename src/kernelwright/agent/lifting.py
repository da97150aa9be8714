"""Kernels are written without parameters first, and templates only where a kernel was lifted into one.

One agent writes whole kernels with their numbers, another one templates: who is asked follows from the source at hand,
by whether it declares parameters. The template role is the second one's, and all that is made of a template.
"""

from __future__ import annotations

from pathlib import Path

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
    Written,
)
from kernelwright.errors import SpecError
from kernelwright.template.header import parse_header


class LiftingAgent:
    """See the module."""

    def __init__(self, of_kernels: Agent, of_templates: Agent) -> None:
        """`of_kernels` is asked about sources without parameters, `of_templates` about all others."""
        self._of_kernels = of_kernels
        self._of_templates = of_templates

    @property
    def name(self) -> str:
        """Both are the same one's."""
        return self._of_templates.name

    @property
    def plans_ahead(self) -> bool:
        """Where both do."""
        return self._of_kernels.plans_ahead and self._of_templates.plans_ahead

    def plan(self, context: PlanContext) -> Plan:
        """What is next, for the kernel or the template."""
        return self._for(context.written).plan(context)

    def code(self, context: CodeContext) -> Draft | Declined:
        """A new kernel from a kernel, a new template from a template."""
        return self._for(context.written).code(context)

    def debug(self, context: DebugContext) -> Draft | Declined:
        """What failed, as it was written."""
        return self._for(context.written).debug(context)

    def template(self, context: TemplateContext) -> Draft | Declined:
        """The kernel with its numbers lifted."""
        return self._of_templates.template(context)

    def analyse(self, context: AnalyseContext) -> tuple[Finding, ...]:
        """Only templates have a landscape."""
        return self._of_templates.analyse(context)

    def _for(self, written: Written) -> Agent:
        return self._of_templates if has_parameters(written) else self._of_kernels


def has_parameters(written: Written) -> bool:
    """Whether the source declares any; one whose header cannot be read was meant to."""
    try:
        return bool(parse_header(written.text, Path("header"), entry=written.entry).parameters)
    except SpecError:
        return True
