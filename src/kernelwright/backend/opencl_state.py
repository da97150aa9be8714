"""What an OpenCL program keeps from one launch to the next: its writable variables at program scope.

On PoCL they are read from the bitcode that it keeps of a program, because it answers 0 whatever there is; other drivers
are asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelwright.backend.base import StateVariable
from kernelwright.backend.bitcode import BitcodeUnreadable, ProgramVariable, read_program
from kernelwright.backend.opencl_build import POCL_FOLDER, Target, pocl_programs

PROGRAM_SCOPE = "its variables at program scope"
ASSEMBLY = "assembly"
"""Which can ask the system for memory, and go on using it."""
_ALLOWS_IT = re.compile(r"-cl-std=CL(?:C\+\+|[2-9])", re.IGNORECASE)
"""OpenCL C before 2.0 has no writable variables there."""


def pocl_state(folder: Path, kernels: Sequence[str]) -> tuple[StateVariable, ...] | None:
    """By the bitcode in an artifact's folder; None where there is none that can be read.

    Args:
        folder: the artifact's.
        kernels: all kernels of the program; a kernel's local memory is a variable named after it, without a value.
    """
    kept: dict[str, StateVariable] = {}
    programs = pocl_programs(folder / POCL_FOLDER)
    try:
        for program in programs:
            read = read_program((program / "program.bc").read_bytes())
            for each in read.variables:
                if _keeps(each, kernels):
                    kept[each.name] = StateVariable(each.name.lstrip("\x01"), each.byte_count)
            if read.has_assembly:
                kept[ASSEMBLY] = StateVariable(ASSEMBLY, None)
    except (OSError, BitcodeUnreadable):
        return None
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


def _keeps(variable: ProgramVariable, kernels: Sequence[str]) -> bool:
    if not variable.is_defined:  # what PoCL itself fills in at each launch is only declared
        return False
    if variable.is_placed and not variable.name.startswith("llvm."):
        return True
    if variable.is_constant:
        return False
    is_local = variable.is_undefined and variable.is_internal and variable.name.partition(".")[0] in kernels
    return not (is_local and "." in variable.name)
