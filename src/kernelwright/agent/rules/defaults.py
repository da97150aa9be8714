"""Another default for a template whose own did not fit into the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kernelwright.agent.base import Task
from kernelwright.errors import KernelwrightError
from kernelwright.problem.config import Value
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Parameter
from kernelwright.template.header import parse_header, strip_header


def smaller_defaults(text: str, task: Task, entry: str) -> str | None:
    """The template with the feasible config nearest to half of every number as its default; None if it is that already.

    Only the declared constraints are known here; the device's own limits are checked when it is judged.
    """
    header = parse_header(text, Path("node"), entry=entry)
    wanted: dict[str, Value] = {each.name: _smaller(each) for each in header.parameters}
    names = [
        {**{f"device.{name}": value for name, value in task.device.limits.items()}, **workload.sizes}
        for workload in task.problem.workloads
    ]
    try:
        chosen = Space.build(header.parameters, header.constraints, names=names).nearest(wanted)
    except KernelwrightError:
        return None
    parameters = tuple(replace(each, default=chosen[each.name]) for each in header.parameters)
    if parameters == header.parameters:
        return None
    return replace(header, parameters=parameters).render() + strip_header(text)


def _smaller(parameter: Parameter) -> Value:
    """The value at most half as large as the default, or the smallest; the default itself where there is no order."""
    default = parameter.default
    if not parameter.is_ordinal or isinstance(default, str | bool):
        return default
    numbers = sorted(value for value in parameter.values if isinstance(value, int | float))
    below = [value for value in numbers if value <= default / 2]
    return below[-1] if below else numbers[0]
