"""The device's limits as constraints on a template's launches, known before anything is compiled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import SpecError
from kernelwright.evaluate.builds.render import device_names
from kernelwright.evaluate.data.layout import shape_of
from kernelwright.problem.config import Value
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument, LaunchStep, Problem, Workload
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint
from kernelwright.template.model import Template

_AXES = ("x", "y", "z")


def build_space(
    problem: Problem, template: Template, device: DeviceInfo, *, learned: Sequence[Constraint] = ()
) -> Space:
    """The exact feasible set of `template` on `device`: declared constraints and limits, on every workload.

    `learned` are further conditions on parameters alone.

    Raises:
        EmptySpace: nothing is left; the message names the constraints that excluded everything.
        SpecError: the arguments of a workload do not fit the device's memory.
    """
    check_memory(problem, device)
    constraints = (*template.constraints, *device_constraints(problem, template, device), *learned)
    return Space.build(template.parameters, constraints, names=names_by_workload(problem, device))


def check_memory(problem: Problem, device: DeviceInfo) -> None:
    """Refuse workloads whose arguments the device cannot hold, before anything is built or filled.

    Raises:
        SpecError: one array is larger than the device allocates, or all together than its memory.
    """
    most, largest = device.limits.get("global_memory"), device.limits.get("max_allocation")
    for workload in problem.workloads:
        total = 0
        for argument in (each for each in problem.arguments if each.role in ("input", "inout", "output")):
            byte_count = math.prod(shape_of(argument, workload)) * DTYPES[argument.dtype].item_bytes
            total += byte_count
            if largest is not None and byte_count > largest:
                limit = f"allocates at most {_gib(largest)} at once"
                raise _too_large(f"{argument.name!r} takes", byte_count, limit, workload, device)
        if most is not None and total > most:
            raise _too_large("all arguments together take", total, f"has {_gib(most)}", workload, device)


def _too_large(what: str, byte_count: int, limit: str, workload: Workload, device: DeviceInfo) -> SpecError:
    return SpecError(
        f"{what} {_gib(byte_count)} on workload {workload.name!r}, and {device.name} {limit}",
        hint="use smaller sizes, or a device with more memory",
        location=workload.location,
    )


def _gib(byte_count: int) -> str:
    return f"{byte_count / 2**30:.3g} GiB"


def names_by_workload(problem: Problem, device: DeviceInfo) -> list[Mapping[str, Value]]:
    """What expressions may use beside parameters, for each workload: its sizes and the device's limits."""
    limits = device_names(device)
    return [{**limits, **workload.sizes} for workload in problem.workloads]


def device_constraints(problem: Problem, template: Template, device: DeviceInfo) -> tuple[Constraint, ...]:
    """Threads, block and grid extents and shared memory of every launch, for the limits that the device tells."""
    arguments = {argument.name: argument for argument in (*problem.arguments, *template.scratch)}
    return tuple(
        Constraint(f"{name} of {step.entry}", Expression.parse(text, location=step.location), origin="device")
        for step in template.steps
        for name, text in _step_limits(step, arguments, device.limits)
    )


def _step_limits(
    step: LaunchStep, arguments: Mapping[str, Argument], limits: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    if "max_threads_per_block" in limits:
        yield "max_threads_per_block", f"{_product(step.block)} <= device.max_threads_per_block"
    for axis, extent in zip(_AXES, step.block, strict=False):
        if f"max_block_{axis}" in limits:
            yield f"max_block_{axis}", f"({extent.text}) <= device.max_block_{axis}"
    for axis, extent in zip(_AXES, step.grid, strict=False):
        if f"max_grid_{axis}" in limits:
            yield f"max_grid_{axis}", f"({extent.text}) <= device.max_grid_{axis}"
    shared = _shared_bytes(step, arguments)
    if shared and "shared_memory_per_block" in limits:
        yield "shared_memory_per_block", f"{shared} <= device.shared_memory_per_block"


def _product(extents: Sequence[Expression]) -> str:
    return " * ".join(f"({extent.text})" for extent in extents)


def _shared_bytes(step: LaunchStep, arguments: Mapping[str, Argument]) -> str:
    """Dynamic shared memory and local arguments of a launch, as text; empty when there is none."""
    order = step.arguments if step.arguments is not None else tuple(arguments)
    terms = [f"({step.shared_bytes.text})"] if step.shared_bytes else []
    for name in order:
        argument = arguments[name]
        if argument.role == "local":
            terms.append(f"{_product(argument.shape)} * {DTYPES[argument.dtype].item_bytes}")
    return " + ".join(terms)
