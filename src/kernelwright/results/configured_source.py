"""A template with one config applied, as one source that compiles on its own: for reports and exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelwright.evaluate.builds.render import macro_text
from kernelwright.problem.config import Value
from kernelwright.problem.model import Problem
from kernelwright.store.event import RunStarted
from kernelwright.template.model import Candidate


@dataclass(frozen=True, slots=True)
class _ConfiguredMacro:
    """One macro of a configured source."""

    name: str
    text: str
    others: Mapping[str, str]
    """By workload: the value there, where it is another one. Only computed defines depend on the workload."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The definition; one that depends on the workload may be given from outside instead."""
        define = f"#define {self.name} {self.text}"
        if not self.others:
            return (define,)
        cases = ", ".join(f"{text} for {name}" for name, text in self.others.items())
        return (f"/* {self.name} depends on the sizes: {cases} */", f"#ifndef {self.name}", define, "#endif")

    @property
    def default(self) -> tuple[str, ...]:
        """The definition, unless one is given from outside."""
        if self.others:  # which says why, and has its guard
            return self.lines
        return f"#ifndef {self.name}", f"#define {self.name} {self.text}", "#endif"


@dataclass(frozen=True, slots=True)
class _ConfiguredSource:
    """The macros that the compiler was given, and the template's own text, byte for byte."""

    macros: tuple[_ConfiguredMacro, ...]
    body: str

    @property
    def define_block(self) -> str:
        """The macros as preprocessor lines."""
        return "".join(f"{line}\n" for macro in self.macros for line in macro.lines)


def configured_source(candidate: Candidate, names_by_workload: Mapping[str, Mapping[str, Value]]) -> _ConfiguredSource:
    """The candidate's parameters and computed defines as macros, and its source.

    Args:
        candidate: the template and the config.
        names_by_workload: sizes and `device.NAME` limits by workload; the first workload's values are used.

    Raises:
        SpecError: a computed define has no value for this config.
    """
    macros = [_ConfiguredMacro(name, macro_text(value), {}) for name, value in candidate.config.items()]
    for name, expression in candidate.template.defines.items():
        texts = {
            workload: macro_text(expression.evaluate({**names, **candidate.config}))
            for workload, names in names_by_workload.items()
        }
        first = next(iter(texts.values()))
        others = {workload: text for workload, text in texts.items() if text != first}
        macros.append(_ConfiguredMacro(name, first, others))
    return _ConfiguredSource(tuple(macros), candidate.template.source)


def recorded_limits(started: RunStarted) -> dict[str, Value]:
    """The limits of the device that the run was on, as `device.NAME`."""
    limits = started.device.get("limits", {})
    if not isinstance(limits, Mapping):
        return {}
    return {f"device.{name}": value for name, value in limits.items()}


def recorded_names(started: RunStarted, problem: Problem) -> dict[str, dict[str, Value]]:
    """What expressions may use beside parameters, by workload: its sizes and the recorded device's limits."""
    limits = recorded_limits(started)
    return {workload.name: {**limits, **workload.sizes} for workload in problem.workloads}
