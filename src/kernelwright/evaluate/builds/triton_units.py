"""What Triton's compiler gets for a launch: constants and options, and arguments that it specialises as the launch's.

The JIT compiles one kernel for each kind of its arguments: what type an integer's value needs, whether it is 1, whether
16 divides it. So each launch's unit names a value of its kind, and launches of one kind share a unit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from kernelwright.backend.base import BuildUnit, LaunchArgument, PlanStep, ScalarArgument
from kernelwright.errors import SpecError
from kernelwright.problem.config import Value
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.model import Argument
from kernelwright.source.triton.reading import OPTIONS, constants_of
from kernelwright.template.model import Candidate

_SPECIALISED_BY = 16


def triton_unit(
    candidate: Candidate, names: Mapping[str, Value], steps: Sequence[PlanStep], arguments: Mapping[str, Argument]
) -> BuildUnit:
    """The unit of a candidate's launches on one workload.

    Args:
        candidate: in Triton.
        names: sizes, parameters and `device.*`, by what expressions call them.
        steps: its launches, with their numbers.
        arguments: by name.

    Raises:
        SpecError: a define has no value, or two launches of one kernel are of different kinds.
    """
    template = candidate.template
    values = {**names, **{name: each.evaluate(names) for name, each in template.defines.items()}}
    own = {*candidate.config, *template.defines}
    wanted = constants_of(template.source, template.file, {step.entry for step in steps}, own) | set(OPTIONS)
    kinds: dict[str, list[object]] = {}
    for step in steps:
        kind = [_kind(each, arguments) for each in step.arguments]
        if kinds.setdefault(step.entry, kind) != kind:
            raise SpecError(
                f"{step.entry!r} is launched more than once, with arguments that Triton compiles differently",
                hint="make a problem of each launch",
                location=template.steps[0].location,
            )
    return BuildUnit(
        language="triton",
        source=template.source,
        file_name=template.file.name,
        macros=tuple((name, repr(values[name])) for name in sorted(wanted) if name in values),
        options=(json.dumps(kinds),),
        entries=tuple(kinds),
    )


def _kind(passed: LaunchArgument, arguments: Mapping[str, Argument]) -> object:
    """A pointer's type, or a number that the JIT specialises as it does this one."""
    dtype = DTYPES[arguments[passed.name].dtype]
    if not isinstance(passed, ScalarArgument):
        return f"*{dtype.name}"
    value = np.frombuffer(passed.data, dtype.numpy_dtype)[0].item()
    if isinstance(value, bool):
        return True
    if isinstance(value, float):
        return 2.0
    return _of_its_kind(value)


def _of_its_kind(value: int) -> int:
    if value == 1:
        return 1
    width = next((each for each in (31, 63) if -(2**each) <= value < 2**each), 64)
    least = {31: 16, 63: 2**31, 64: 2**63}[width]
    return least if value % _SPECIALISED_BY == 0 else least + 2
