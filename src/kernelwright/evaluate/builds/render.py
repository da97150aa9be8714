"""From a candidate to what the compiler and the driver get: build units, launches and buffers, every number known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelwright.backend.base import (
    BufferArgument,
    BuildUnit,
    DeviceInfo,
    LaunchArgument,
    LaunchPlan,
    LocalArgument,
    PlanStep,
    ScalarArgument,
)
from kernelwright.errors import SpecError
from kernelwright.evaluate.builds.triton_units import triton_unit
from kernelwright.evaluate.data.freshness import redraw_of
from kernelwright.evaluate.data.layout import SCRATCH_POISON, layouts_for
from kernelwright.evaluate.device.arena import BufferSpec, Job
from kernelwright.identity import content_id
from kernelwright.problem.config import Value
from kernelwright.problem.dtypes import DTYPES, encode_scalar
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.includes import included_files, includes_in, is_stored
from kernelwright.problem.model import Argument, LaunchStep, Problem, Workload
from kernelwright.problem.options import split_option
from kernelwright.problem.outcome import Failed
from kernelwright.problem.source_scan import launched_source
from kernelwright.template.model import Candidate, Template

HEADER_SUFFIXES = frozenset({".h", ".hh", ".hpp", ".cuh", ".clh", ".inc"})
"""Files that a quoted include may reach, for the identity of a build."""


def plans_by_unit(jobs: Sequence[Job]) -> dict[BuildUnit, tuple[LaunchPlan, ...]]:
    """Each distinct unit with all plans that it serves."""
    plans: dict[BuildUnit, list[LaunchPlan]] = {}
    for job in jobs:
        plans.setdefault(job.unit, []).append(job.plan)
    return {unit: tuple(dict.fromkeys(served)) for unit, served in plans.items()}


def device_names(device: DeviceInfo) -> dict[str, Value]:
    """The device's limits under the names that expressions use: `device.warp_size` and so on."""
    return {f"device.{name}": value for name, value in device.limits.items()}


def render(candidate: Candidate, problem: Problem, device: DeviceInfo) -> tuple[Job, ...] | Failed:
    """Evaluate every expression of `candidate` for every workload.

    An expression that fails for this config (a division by zero, a block of 0 threads) is the candidate's failure.
    """
    rendered = []
    for workload in problem.workloads:
        try:
            rendered.append(render_workload(candidate, problem, workload, device))
        except SpecError as error:
            return Failed("render", "bad-expression", str(error), workload=workload.name)
    return tuple(rendered)


def render_workload(candidate: Candidate, problem: Problem, workload: Workload, device: DeviceInfo) -> Job:
    """`candidate` on one workload, to be built.

    Raises:
        SpecError: an expression has no usable value for this config.
    """
    names: dict[str, Value] = {**device_names(device), **workload.sizes, **candidate.config}
    arguments = {argument.name: argument for argument in (*problem.arguments, *candidate.template.scratch)}
    steps = tuple(
        _plan_step(step, names, arguments, tuple(argument.name for argument in problem.arguments))
        for step in candidate.template.steps
    )
    buffers = [
        BufferSpec(each.argument, each.role, each.byte_count, each.poison, redraw_of(arguments[each.argument]))
        for each in layouts_for(problem, workload)
    ]
    buffers += [
        BufferSpec(each.name, "scratch", byte_count(each, names), SCRATCH_POISON)
        for each in arguments.values()
        if each.role == "scratch"
    ]
    is_triton = candidate.template.language == "triton"
    unit = triton_unit(candidate, names, steps, arguments) if is_triton else build_unit(candidate, names)
    return Job(workload.name, unit, steps, tuple(buffers))


def build_unit(candidate: Candidate, names: Mapping[str, Value]) -> BuildUnit:
    """What the compiler gets: the source without kernels that nobody launches; parameters and defines as macros."""
    template = candidate.template
    entries = tuple(dict.fromkeys(step.entry for step in template.steps))
    own = (template.file.parent,) if _includes_own_files(template.source) else ()
    include_paths = (*own, *(path for path in template.include_paths if path not in own))
    macros = [(name, macro_text(value)) for name, value in candidate.config.items()]
    macros += [(name, macro_text(expression.evaluate(names))) for name, expression in template.defines.items()]
    return BuildUnit(
        language=template.language,
        source=launched_source(template.source, template.language, entries),
        file_name=template.file.name,
        macros=tuple(macros),
        options=tuple(option_text(option, names) for option in template.options),
        entries=entries,
        include_paths=include_paths,
        include_digest=_digest_headers(template, own),
    )


def macro_text(value: Value) -> str:
    """A parameter's value as macro text: booleans are 1 and 0, floats keep every digit."""
    match value:
        case bool():
            return "1" if value else "0"
        case float():
            return repr(value)
        case _:
            return str(value)


def option_text(option: str, names: Mapping[str, Value]) -> str:
    """A compile option with the values of its expressions, written as macros are.

    Raises:
        SpecError: an expression has no value for this config.
    """
    parts = (part if isinstance(part, str) else macro_text(part.evaluate(names)) for part in split_option(option))
    return "".join(parts)


MOST_EXTENT = 2**40
"""The largest grid, block or array along one axis: beyond it drivers overflow instead of refusing."""


def extents(expressions: Sequence[Expression], names: Mapping[str, Value], what: str) -> tuple[int, int, int]:
    """Up to three positive integers, padded with 1.

    Raises:
        SpecError: an extent is not a positive integer.
    """
    values = [positive_integer(expression, names, what) for expression in expressions]
    x, y, z = (*values, 1, 1, 1)[:3]
    return x, y, z


def positive_integer(expression: Expression, names: Mapping[str, Value], what: str, *, minimum: int = 1) -> int:
    """The expression's value as an integer of at least `minimum`.

    Raises:
        SpecError: it is something else.
    """
    value = expression.evaluate(names)
    if isinstance(value, int) and value > MOST_EXTENT:
        raise SpecError(
            f"{what} {expression.text!r} is more than 2**40: no device has so many places",
            location=expression.location,
        )
    if isinstance(value, bool | str) or not float(value).is_integer() or not minimum <= value <= MOST_EXTENT:
        raise SpecError(
            f"{what} {expression.text!r} is {value!r}, expected an integer of at least {minimum}",
            location=expression.location,
        )
    return int(value)


def byte_count(argument: Argument, names: Mapping[str, Value]) -> int:
    """Bytes of an array argument."""
    shape = [positive_integer(extent, names, f"extent of {argument.name!r}", minimum=0) for extent in argument.shape]
    return math.prod(shape) * DTYPES[argument.dtype].item_bytes


def _plan_step(
    step: LaunchStep, names: Mapping[str, Value], arguments: Mapping[str, Argument], default_order: tuple[str, ...]
) -> PlanStep:
    order = default_order if step.arguments is None else step.arguments
    return PlanStep(
        entry=step.entry,
        grid=extents(step.grid, names, f"grid of {step.entry!r}"),
        block=extents(step.block, names, f"block of {step.entry!r}"),
        shared_bytes=(
            positive_integer(step.shared_bytes, names, f"shared_bytes of {step.entry!r}", minimum=0)
            if step.shared_bytes
            else 0
        ),
        arguments=tuple(_launch_argument(arguments[name], names) for name in order),
        cluster=extents(step.cluster, names, f"cluster of {step.entry!r}") if step.cluster else None,
        is_cooperative=step.is_cooperative,
        constants=tuple(
            (variable, BufferArgument(name, byte_count(arguments[name], names))) for variable, name in step.constants
        ),
    )


def _launch_argument(argument: Argument, names: Mapping[str, Value]) -> LaunchArgument:
    match argument.role:
        case "scalar":
            assert argument.value is not None
            value = argument.value.evaluate(names)
            if isinstance(value, str):
                raise SpecError(
                    f"scalar {argument.name!r} is the text {value!r}, expected a number", location=argument.location
                )
            return ScalarArgument(argument.name, argument.dtype, encode_scalar(argument.dtype, value))
        case "local":
            return LocalArgument(argument.name, byte_count(argument, names))
        case _:
            return BufferArgument(argument.name, byte_count(argument, names))


def _includes_own_files(source: str) -> bool:
    """Whether the source includes a header by quotes (then its own folder becomes part of the build)."""
    return any(each.is_quoted for each in includes_in(source))


def _digest_headers(template: Template, own: Sequence[Path]) -> str:
    """Content id of what the source includes, and of the headers in its own folder where that is on the path."""
    included = included_files(template.file, template.source, template.include_paths)
    beside = [path for folder in own for path in folder.rglob("*") if path.suffix in HEADER_SUFFIXES]
    files = sorted({*included, *beside})
    if not files:
        return ""
    roots = (template.file.parent, *template.include_paths)
    return content_id(*((_name_below(path, roots), path.read_bytes()) for path in files if is_stored(path)))


def _name_below(path: Path, roots: Sequence[Path]) -> str:
    """A path relative to the folder that it was found in: where the problem lies does not matter."""
    for root in roots:
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return path.name
