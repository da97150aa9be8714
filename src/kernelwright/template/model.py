"""A template: source with declared parameters. A plain kernel is a template with none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelwright.identity import content_id
from kernelwright.problem.config import Config
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument, LaunchStep
from kernelwright.source.language import Language
from kernelwright.space.parameter import Constraint, Parameter


@dataclass(frozen=True, slots=True)
class Template:
    """One source file that still compiles by hand; its parameters are macros with `#ifndef` defaults or none.

    Made by `template.load.load_template` from the self-describing header, or from a plain source.
    """

    name: str
    file: Path
    language: Language
    source: str
    """The file's text, byte for byte."""
    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    steps: tuple[LaunchStep, ...] = ()
    """Kernel launches in order; never empty after loading with a problem."""
    defines: Mapping[str, Expression] = field(default_factory=dict)
    """Extra macros computed from sizes and parameters, e.g. a compile-time row length."""
    scratch: tuple[Argument, ...] = ()
    """Scratch and local arguments that this template adds to the problem's."""
    options: tuple[str, ...] = ()
    """Compile options; expressions in braces."""
    include_paths: tuple[Path, ...] = ()
    """The problem's own; the source's folder comes before them where it is needed."""

    @property
    def identity(self) -> str:
        """Content id over everything that changes what is built and launched; not over names, reasons or places."""
        steps = [
            (
                step.entry,
                [e.text for e in step.grid],
                [e.text for e in step.block],
                step.shared_bytes.text if step.shared_bytes else None,
                step.arguments,
                *_special(step),
            )
            for step in self.steps
        ]
        scratch = [(a.name, a.role, a.dtype, [e.text for e in a.shape]) for a in self.scratch]
        defines = {name: expression.text for name, expression in self.defines.items()}
        return content_id(self.language, self.source, steps, scratch, defines, self.options)

    @property
    def default(self) -> Config:
        """The config of every parameter's default."""
        return Config({parameter.name: parameter.default for parameter in self.parameters})


def _special(step: LaunchStep) -> tuple[object, ...]:
    """What few launches have; nothing for the others, whose identity is older than this."""
    special = ([extent.text for extent in step.cluster], step.is_cooperative, step.constants)
    return special if any(special) else ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A template with a config: what is evaluated."""

    template: Template
    config: Config

    @property
    def id(self) -> str:
        """Content id over everything that changes what is built and launched."""
        template = self.template
        return content_id(template.identity, self.config)
