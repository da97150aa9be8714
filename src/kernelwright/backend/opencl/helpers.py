"""The kernels that an OpenCL session itself launches: fills, copies, comparisons, inputs drawn anew.

On PoCL their code is kept between processes, each program in its own folder: it costs a second to make. A process
leaves what it made in its own folder, and whoever started it keeps that, as long as no candidate has run there.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernelwright import knobs
from kernelwright.backend.base import BuildUnit, DeviceInfo
from kernelwright.backend.files import add_tree
from kernelwright.backend.opencl.build import (
    Target,
    build_from_source,
    install_pocl,
    make_kernel,
    pocl_programs,
    save_pocl,
)
from kernelwright.backend.opencl.driver import is_pocl, pocl_cache, toolchain_id
from kernelwright.backend.redraw import CLOSE_ENTRY, REDRAW_ENTRY, VERIFY_ENTRY, close_source, redraw_source
from kernelwright.identity import content_id

HELPER_BLOCK = 256
HELPERS = "opencl-helpers"

_BASIC_ENTRIES = ("kernelwright_flush", "kernelwright_copy", "kernelwright_forget", "kernelwright_empty")
_BASIC_SOURCE = """
__kernel void kernelwright_empty(void) {}
__kernel void kernelwright_flush(__global uint4 *data) {
  size_t i = get_global_id(0);
  data[i] = data[i] + (uint4)(1);
}
__kernel void kernelwright_copy(__global const uint4 *source, __global uint4 *target) {
  size_t i = get_global_id(0);
  target[i] = source[i];
}
__kernel void kernelwright_forget(__local uint4 *memory, const uint count) {
  volatile __local uint4 *words = memory;
  for (uint i = get_local_id(0); i < count; i += get_local_size(0)) words[i] = (uint4)(0xffc0feed);
}
"""
"""On CPU devices the driver's own fill and copy use one core."""

ARITHMETIC = "kernelwright_arithmetic_"
"""The kernel that multiplies and adds, by the floats of a vector."""

CHAINS = 12
"""Chains of multiply-adds that do not wait for one another: what two units with four stages each need, and more."""

_SPANS = (("KW_SPANS", "1"),)


@dataclass(slots=True)
class _Program:
    program: Any
    folder: Path
    """Where PoCL's code of it is left."""
    own_folders: frozenset[Path]
    """The program's folders in PoCL's cache."""
    kernels: dict[str, Any] = field(default_factory=dict)


def keep_helpers(folder: Path) -> None:
    """Keep what a process that has this folder left in it, for processes to come."""
    kept = knobs.cache_dir() / HELPERS
    with contextlib.suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
        add_tree(folder / HELPERS, kept)


class Helpers:
    """Builds a program when one of its kernels is first run."""

    def __init__(self, target: Target, queue: Any, device: DeviceInfo) -> None:
        self._target = target
        self._queue = queue
        self._device = device
        self._programs: dict[str, _Program] = {}
        self._flag: Any = None
        self._is_flag_used = False

    def run(self, entry: str, threads: int, *arguments: Any, block: int = HELPER_BLOCK) -> Any:
        """Enqueue a kernel; gives its event.

        Raises:
            pyopencl.Error: the driver refuses it.
        """
        unit = self._unit(entry)
        program = self._programs.get(unit.id) or self._build(unit)
        kernel, is_new = program.kernels.get(entry), entry not in program.kernels
        if kernel is None:
            kernel = program.kernels[entry] = make_kernel(self._target.cl, program.program, entry)
        kernel.set_args(*arguments)
        event = self._target.cl.enqueue_nd_range_kernel(self._queue, kernel, (threads,), (block,))
        if is_new and is_pocl(self._device):
            self._queue.finish()
            self._keep(program)
        return event

    def flag(self) -> Any:
        """Memory of one word that a comparison sets where something is not as expected."""
        cl = self._target.cl
        if self._flag is None:
            self._flag = cl.Buffer(self._target.context, cl.mem_flags.READ_WRITE, 4)
            self._clear_flag()
        self._is_flag_used = True
        return self._flag

    def take_flag(self) -> bool:
        """Whether it was set since the last question; waits for the device where it was given to a kernel."""
        if not self._is_flag_used:
            return False
        self._is_flag_used = False
        value = np.zeros(1, np.uint32)
        self._target.cl.enqueue_copy(self._queue, value, self._flag, is_blocking=True)
        if value[0]:
            self._clear_flag()
        return bool(value[0])

    def close(self) -> None:
        """Let go of everything."""
        self._programs.clear()
        self._flag = None

    def _clear_flag(self) -> None:
        self._target.cl.enqueue_copy(self._queue, self._flag, np.zeros(1, np.uint32), is_blocking=True)

    def _unit(self, entry: str) -> BuildUnit:
        """The program that has a kernel; those that compare and draw have one each, since few are ever used."""
        if entry in _BASIC_ENTRIES:
            return _unit_of(_BASIC_SOURCE, _BASIC_ENTRIES, ())
        if entry.startswith(ARITHMETIC):
            return _unit_of(_arithmetic_source(entry), (entry,), (), options=("-cl-mad-enable",))
        macros = _SPANS if self._device.kind == "cpu" else ()
        if entry.startswith(CLOSE_ENTRY):
            return _unit_of(close_source(entry.removeprefix(CLOSE_ENTRY)), (entry,), macros)
        ending = entry.removeprefix(REDRAW_ENTRY).removeprefix(VERIFY_ENTRY)
        return _unit_of(redraw_source(ending), (REDRAW_ENTRY + ending, VERIFY_ENTRY + ending), macros)

    def _build(self, unit: BuildUnit) -> _Program:
        key = content_id(unit.id, toolchain_id(self._device))
        before = pocl_programs(pocl_cache())
        if is_pocl(self._device):
            install_pocl(knobs.cache_dir() / HELPERS / key, pocl_cache())
        program = build_from_source(self._target, unit)[0]
        made = Path(tempfile.gettempdir()) / HELPERS / key
        built = _Program(program, made, pocl_programs(pocl_cache()) - before)
        self._programs[unit.id] = built
        return built

    def _keep(self, program: _Program) -> None:
        """Leave what the first launch of a kernel made the compiler do."""
        with contextlib.suppress(OSError):  # where nothing can be written that costs time, nothing else
            for program_folder in program.own_folders:
                save_pocl(program_folder, pocl_cache(), program.folder)


def _arithmetic_source(entry: str) -> str:
    """A kernel of which each work-item does `count` rounds of `CHAINS` multiply-adds on whole vectors."""
    floats = int(entry.removeprefix(ARITHMETIC))
    declared = "\n".join(f"  float{floats} x{n} = {n}.0f + first;" for n in range(CHAINS))
    steps = "\n".join(f"    x{n} = x{n} * factor + first;" for n in range(CHAINS))
    total = " + ".join(f"x{n}" for n in range(CHAINS))
    return f"""__kernel void {entry}(__global float *sink, const float factor, const float first, const uint count) {{
{declared}
  for (uint i = 0; i < count; ++i) {{
{steps}
  }}
  float{floats} total = {total};
  if (total.s0 == 0.12345f) sink[0] = total.s1;
}}
"""


def _unit_of(
    source: str, entries: tuple[str, ...], macros: tuple[tuple[str, str], ...], *, options: tuple[str, ...] = ()
) -> BuildUnit:
    return BuildUnit("opencl", source, "helpers.cl", macros, options, entries)
