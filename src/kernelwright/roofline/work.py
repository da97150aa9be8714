"""The work of a workload: bytes that it must move and operations, declared or from its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.model import Argument, Problem, Role, Workload

TIMES_MOVED: Mapping[Role, int] = MappingProxyType({"input": 1, "output": 1, "inout": 2})
"""By role, how often an argument goes over the memory's wires at least; others need not."""


def floor_bytes(problem: Problem, workload: Workload) -> int:
    """Bytes that any kernel must move: declared, or each input read once and each output written once."""
    declared = problem.work.bytes
    if declared is not None:
        return int(declared.evaluate(workload.sizes))
    return sum(
        times * argument_bytes(argument, workload)
        for argument in problem.arguments
        if (times := TIMES_MOVED.get(argument.role, 0))
    )


def operations(problem: Problem, workload: Workload) -> int | None:
    """Arithmetic operations of the workload, if the problem declares them."""
    declared = problem.work.operations
    return None if declared is None else int(declared.evaluate(workload.sizes))


def argument_bytes(argument: Argument, workload: Workload) -> int:
    """Bytes of one array on `workload`; 0 for a scalar."""
    extents = [int(extent.evaluate(workload.sizes)) for extent in argument.shape]
    return math.prod(extents) * DTYPES[argument.dtype].item_bytes if extents else 0
