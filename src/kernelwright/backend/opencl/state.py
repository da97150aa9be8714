"""What an OpenCL program holds: writable variables at program scope, which outlive a launch, and inline assembly.

On PoCL both are read from the bitcode that it keeps of a program, because it answers 0 whatever there is; other drivers
are asked for the variables, and the text says whether there may be assembly (`assembly.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelwright.backend.base import BinaryUnreadable, StateVariable
from kernelwright.backend.opencl.bitcode import Program, ProgramVariable, read_program
from kernelwright.backend.opencl.build import POCL_FOLDER, Target, pocl_programs

PROGRAM_SCOPE = "its variables at program scope"
_AT_LOADING = {
    "llvm.global_ctors": "a function that runs when the program is loaded",
    "llvm.global_dtors": "a function that runs when the program is unloaded",
}
_ALLOWS_IT = re.compile(r"-cl-std=CL(?:C\+\+|[2-9])", re.IGNORECASE)
"""OpenCL C before 2.0 has no writable variables there."""


def read_pocl(folder: Path) -> tuple[Program, ...]:
    """The bitcode in an artifact's folder; empty where there is none that can be read."""
    try:
        return tuple(read_program((each / "program.bc").read_bytes()) for each in pocl_programs(folder / POCL_FOLDER))
    except (OSError, BinaryUnreadable):
        return ()


def pocl_state(programs: Sequence[Program], kernels: Sequence[str]) -> tuple[StateVariable, ...] | None:
    """By what was read; None where nothing was.

    Args:
        programs: of one artifact.
        kernels: all kernels of the program; a kernel's local memory is a variable named after it, without a value.
    """
    variables = (each for program in programs for each in program.variables if _keeps(each, kernels))
    kept = {each.name: _as_state(each) for each in variables}
    return tuple(kept.values()) if programs else None


def told_state(target: Target, program: Any, options: Sequence[str]) -> tuple[StateVariable, ...] | None:
    """By the driver's answer, which counts `const` tables in `__global` memory too; None where it has none."""
    cl = target.cl
    what = getattr(cl.program_build_info, "GLOBAL_VARIABLE_TOTAL_SIZE", None)  # not in old versions of pyopencl
    try:
        byte_count = None if what is None else int(program.get_build_info(target.handle, what))
    except cl.Error:
        byte_count = None
    if byte_count:
        return (StateVariable(PROGRAM_SCOPE, byte_count),)
    may_have = any(_ALLOWS_IT.search(option) for option in options)
    return None if byte_count is None and may_have else ()


def _as_state(variable: ProgramVariable) -> StateVariable:
    """What runs at loading is before every launch, the first one of a process too, and may leave anything anywhere."""
    what = _AT_LOADING.get(variable.name)
    return StateVariable(what, None) if what else StateVariable(variable.name.lstrip("\x01"), variable.byte_count)


def _keeps(variable: ProgramVariable, kernels: Sequence[str]) -> bool:
    if not variable.is_defined:  # what PoCL itself fills in at each launch is only declared
        return False
    if variable.name in _AT_LOADING or (variable.is_placed and not variable.name.startswith("llvm.")):
        return True
    if variable.is_constant:
        return False
    is_local = variable.is_undefined and variable.is_internal and variable.name.partition(".")[0] in kernels
    return not (is_local and "." in variable.name)
