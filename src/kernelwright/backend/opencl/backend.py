"""OpenCL devices through pyopencl: GPUs, and CPUs through PoCL or a vendor's driver."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kernelwright.backend.base import (
    Artifact,
    Backend,
    BufferArgument,
    BuildUnit,
    DeviceInfo,
    LaunchPlan,
    LocalArgument,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.opencl.assembly import assembly_in, assembly_of
from kernelwright.backend.opencl.build import (
    Target,
    build_from_source,
    has_variant,
    install_pocl,
    kernel_names,
    make_kernel,
    pocl_binary_id,
    pocl_programs,
    read_resources,
    save_binary,
    save_pocl,
    specialisation,
)
from kernelwright.backend.opencl.cpu.pocl_objects import CAN_RESTORE
from kernelwright.backend.opencl.cpu.unloaded_kernels import load_nothing_from
from kernelwright.backend.opencl.driver import (
    find_device,
    find_devices,
    is_pocl,
    load_pyopencl,
    pocl_cache,
    toolchain_id,
    why_unavailable,
)
from kernelwright.backend.opencl.errors import machine_error
from kernelwright.backend.opencl.helpers import keep_helpers
from kernelwright.backend.opencl.session import OpenclSession
from kernelwright.backend.opencl.state import pocl_state, read_pocl, told_state
from kernelwright.source.language import Language

_MARKS = "__kernel void mark(__global int *value) { value[0] = 1; }"


class OpenclBackend(Backend):
    """Compiles and launches OpenCL C."""

    name: ClassVar[str] = "opencl"
    languages: ClassVar[tuple[Language, ...]] = ("opencl",)

    def __init__(self) -> None:
        self._targets: dict[str, Target] = {}
        self._runs_nothing: bool | None = None
        """Whether this process only compiles what is launched in it; None: it was not asked to yet."""

    def unavailable_because(self) -> str | None:
        """Tells a missing package from a missing driver."""
        return why_unavailable()

    def devices(self) -> Sequence[DeviceInfo]:
        """All devices of all platforms; GPUs first."""
        return tuple(info for info, _ in find_devices())

    def toolchain_id(self, device: DeviceInfo) -> str:
        """From the device's description alone, so that the parent can ask."""
        return toolchain_id(device)

    def compile(self, unit: BuildUnit, device: DeviceInfo, folder: Path) -> Artifact:
        """Build from source; keep the binary, or on PoCL what its compiler left in its cache."""
        target = self._target(device)
        uses_pocl = is_pocl(device)
        if uses_pocl:  # no program of an earlier job is alive any more
            _forget_programs()
        program, log = build_from_source(target, unit)
        resources = read_resources(target, program, unit.entries, knows_private_memory=not uses_pocl)
        if uses_pocl:
            for program_folder in pocl_programs(pocl_cache()):
                save_pocl(program_folder, pocl_cache(), folder)
        else:
            save_binary(target, program, folder)
        if uses_pocl:
            programs = read_pocl(folder)
            state = pocl_state(programs, kernel_names(target.cl, program))
            assembly = assembly_of(programs) if programs else assembly_in(unit)
        else:
            state, assembly = told_state(target, program, unit.options), assembly_in(unit)
        return Artifact(unit, device.id, folder, resources, log, state=state, assembly=assembly)

    def specialise(self, artifact: Artifact, plans: Sequence[LaunchPlan], device: DeviceInfo, folder: Path) -> None:
        """On PoCL, have every block shape in the plans compiled, by launches that run nothing.

        Where PoCL cannot be kept from running them, the device's process compiles at its first launch. Not of what
        holds assembly: whether that may be used at all is for others to say.
        """
        if not is_pocl(device) or artifact.assembly:
            return
        program_folder = install_pocl(artifact.folder, pocl_cache())
        wanted = {key: step for plan in plans for key, step in _variants(plan)}
        missing = [step for key, step in wanted.items() if not has_variant(program_folder, *key)]
        if not missing:
            return
        target = self._target(device)
        if self._runs_nothing is None:
            self._runs_nothing = _runs_nothing(target)
        if not self._runs_nothing:
            return
        built, _ = build_from_source(target, artifact.unit)
        for step in missing:
            _launch_once(target, built, step, specialisation(step.grid, step.block)[1])
        for program in pocl_programs(pocl_cache()):
            if program_folder is None or program == program_folder:
                save_pocl(program, pocl_cache(), folder)

    def private_folders(self, device: DeviceInfo) -> Sequence[Path]:
        """PoCL's cache, which is not in the scratch folder where that allows no code to be loaded."""
        return (pocl_cache(),) if is_pocl(device) else ()

    def keep_helpers(self, device: DeviceInfo, folder: Path) -> None:
        """On PoCL, where a second process need not compile them again."""
        if is_pocl(device):
            keep_helpers(folder)

    def with_launch_figures(self, artifact: Artifact, plans: Sequence[LaunchPlan], device: DeviceInfo) -> Artifact:
        """On PoCL the machine code's id, which depends on the launch; no figures."""
        if not is_pocl(device):
            return artifact
        variants = [key for plan in plans for key, _ in _variants(plan)]
        return replace(artifact, binary_id=pocl_binary_id(artifact, variants))

    def sets_state_back(self, device: DeviceInfo) -> bool:
        """On PoCL, where a program's memory is this process's."""
        return CAN_RESTORE and is_pocl(device)

    def tells_addresses(self, device: DeviceInfo) -> bool:
        """On PoCL."""
        return is_pocl(device)

    def open(self, device: DeviceInfo) -> OpenclSession:
        """Open the device in this process."""
        return OpenclSession(*find_device(device.id))

    def _target(self, device: DeviceInfo) -> Target:
        """The device opened for building, once in a process."""
        if device.id not in self._targets:
            cl = load_pyopencl()
            _, handle = find_device(device.id)
            try:
                self._targets[device.id] = Target(cl, cl.Context([handle]), handle)
            except cl.Error as error:
                raise machine_error(error, f"opening {device.id}") from error
        return self._targets[device.id]


def _variants(plan: LaunchPlan) -> Iterator[tuple[tuple[str, str], PlanStep]]:
    """Every variant that a plan needs, by entry and PoCL's name, with a step that needs it."""
    for step in plan:
        yield (step.entry, specialisation(step.grid, step.block)[0]), step


def _runs_nothing(target: Target) -> bool:
    """Keep this process's PoCL from loading kernels, for good; whether a kernel of our own does nothing then."""
    if not load_nothing_from(pocl_cache(), "libpocl"):
        return False
    cl = target.cl
    program, _ = build_from_source(target, BuildUnit("opencl", _MARKS, "mark.cl", (), (), ("mark",)))
    mark, value = cl.Kernel(program, "mark"), np.zeros(1, np.int32)
    buffer = cl.Buffer(target.context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=value)
    mark.set_arg(0, buffer)
    with cl.CommandQueue(target.context) as queue:
        cl.enqueue_nd_range_kernel(queue, mark, (1,), (1,)).wait()
        cl.enqueue_copy(queue, value, buffer)
    return not value.any()


def _launch_once(target: Target, program: Any, step: PlanStep, grid: tuple[int, int, int]) -> None:
    """Launch `step` on a reduced grid, on zeros of the right sizes that cost no memory until touched."""
    cl = target.cl
    queue = cl.CommandQueue(target.context)
    kernel = make_kernel(cl, program, step.entry)
    kept = []
    try:
        for index, argument in enumerate(step.arguments):
            match argument:
                case BufferArgument(byte_count=byte_count):
                    zeros = np.zeros(max(byte_count, 1), np.uint8)
                    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
                    buffer = cl.Buffer(target.context, flags, hostbuf=zeros)
                    kept.append((zeros, buffer))
                    kernel.set_arg(index, buffer)
                case ScalarArgument(data=data):
                    kernel.set_arg(index, data)
                case LocalArgument(byte_count=byte_count):
                    kernel.set_arg(index, cl.LocalMemory(byte_count))
        size = tuple(blocks * threads for blocks, threads in zip(grid, step.block, strict=True))
        cl.enqueue_nd_range_kernel(queue, kernel, size, step.block).wait()
    except cl.Error:
        return  # the device worker will launch it for real, and say why it cannot
    finally:
        queue.finish()


def _forget_programs() -> None:
    """Empty this process's PoCL cache of programs."""
    for folder in pocl_programs(pocl_cache()):
        shutil.rmtree(folder, ignore_errors=True)
