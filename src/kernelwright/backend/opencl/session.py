"""An OpenCL device open in one worker process: memory, launches, times."""

from __future__ import annotations

import mmap
import os
import shutil
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from kernelwright.backend.base import (
    Artifact,
    BoundLaunch,
    BufferArgument,
    BuildFailed,
    BuildUnit,
    Bytes,
    DeviceInfo,
    DeviceSession,
    LaunchFailed,
    LocalArgument,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.opencl.build import (
    BINARY_NAME,
    Target,
    build_from_binary,
    build_from_source,
    install_pocl,
    make_kernel,
)
from kernelwright.backend.opencl.cpu.memory import CpuMemory
from kernelwright.backend.opencl.cpu.pocl_objects import ProgramObjects
from kernelwright.backend.opencl.cpu.process_calls import thread_times_s
from kernelwright.backend.opencl.driver import is_pocl, load_pyopencl, pocl_cache
from kernelwright.backend.opencl.errors import launch_error, machine_error
from kernelwright.backend.opencl.helpers import ARITHMETIC, CHAINS, HELPER_BLOCK, Helpers
from kernelwright.backend.redraw import (
    CLOSE_ENTRY,
    REDRAW_ENTRY,
    VERIFY_ENTRY,
    Closeness,
    Draw,
    Redraw,
    close_values,
    redraw_values,
)
from kernelwright.errors import InfrastructureError

FLUSH_LIMIT_BYTES = 128 << 20
"""Most that `flush_cache` writes. Virtual machines report the whole host's cache (480 MB seen); writing twice
that before every sample would take longer than the samples."""

BOUND_KERNELS_KEPT = 512
PARALLEL_COPY_MIN_BYTES = 1 << 20

EMPTY_LAUNCHES = 20
"""The shortest of so many counts."""
ARITHMETIC_LAUNCHES = 20
ARITHMETIC_ROUNDS = 5_000
ARITHMETIC_GROUPS = 8
"""On each core: some 0.2 ms in all, so that every core wakes up, and some launches have them to themselves."""
SPANS_PER_UNIT = 4
"""Threads for each core of a CPU in kernels that work on spans: more than one, since cores are not equally free."""
LEAST_SPAN_BYTES = 1 << 14
GROUPS_PER_UNIT = 8
FORGET_GROUPS_PER_UNIT = 4
"""Work-groups for each compute unit, so that hardly any gets none: which one runs where is the driver's choice."""
_VECTOR_BYTES = 16


@dataclass(slots=True, eq=False)
class _ClBuffer:
    """Device memory, with the sub-buffers that launches see of it."""

    memory: Any
    byte_count: int
    views: dict[tuple[int, int], Any] = field(default_factory=dict)
    address: int | None = None
    """In this process, once it was asked for."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _ClModule:
    """A loaded program."""

    program: Any
    unit: BuildUnit
    objects: ProgramObjects | None = None


@dataclass(slots=True)
class _BoundKernel:
    """A kernel object with all its arguments set, and all that must stay alive for it."""

    kernel: Any
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]
    module: _ClModule
    step: PlanStep
    buffers: tuple[_ClBuffer, ...]
    views: tuple[Any, ...]
    has_run: bool = False


class OpenclSession(DeviceSession):
    """One context, one in-order queue with profiling."""

    timer: ClassVar[str] = "opencl-events"
    alignment_bytes: ClassVar[int] = 512
    """The strictest CL_DEVICE_MEM_BASE_ADDR_ALIGN known: 4096 bits, on NVIDIA."""

    def __init__(self, device: DeviceInfo, handle: Any) -> None:
        """`handle`: the driver's, of the device."""
        self._cl: ModuleType = load_pyopencl()
        self._device = device
        cl = self._cl
        try:
            context = cl.Context([handle])
            self._queue = cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        except cl.Error as error:
            raise machine_error(error, f"opening {device.id}") from error
        self._target = Target(cl, context, handle)
        self._bound: dict[tuple[object, ...], _BoundKernel] = {}
        self._cpu = (
            CpuMemory(is_pocl=is_pocl(device), has_pool=str(handle.name).startswith("pthread"))
            if device.kind == "cpu"
            else None
        )
        self._helpers = Helpers(self._target, self._queue, self._device)
        self._flush_buffer: _ClBuffer | None = None
        self._launches_ms: tuple[float, ...] = ()

    # ---- modules ----

    def load(self, artifact: Artifact) -> _ClModule:
        """Load a built unit; on PoCL from source out of the artifact's compiler cache."""
        unit = artifact.unit
        if is_pocl(self._device):
            program_folder = install_pocl(artifact.folder, pocl_cache())
            objects = self._cpu.objects_of(program_folder) if self._cpu else None
            module = _ClModule(build_from_source(self._target, unit)[0], unit, objects)
            if program_folder is not None:
                weakref.finalize(module, shutil.rmtree, program_folder, ignore_errors=True)
            return module
        try:
            binary = (artifact.folder / BINARY_NAME).read_bytes()
        except OSError as error:
            raise InfrastructureError(f"the artifact of {unit.file_name} cannot be read: {error}") from error
        return _ClModule(build_from_binary(self._target, unit, binary), unit)

    # ---- memory ----

    def allocate(self, byte_count: int) -> _ClBuffer:
        """Device memory, at least one byte of it."""
        cl = self._cl
        try:
            memory = cl.Buffer(self._target.context, cl.mem_flags.READ_WRITE, max(byte_count, 1))
        except (cl.Error, MemoryError) as error:
            raise machine_error(error, f"allocating {byte_count:,} bytes on {self._device.id}") from error
        return _ClBuffer(memory, byte_count)

    def allocate_in_file(self, path: Path, byte_count: int) -> _ClBuffer:
        """Memory of a CPU device that is a file."""
        cl, size = self._cl, max(byte_count, 1)
        try:
            with path.open("w+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk would end the process at some page
                content = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
            memory = cl.Buffer(self._target.context, flags, hostbuf=content)
        except (cl.Error, MemoryError, OSError) as error:
            raise InfrastructureError(f"{byte_count:,} bytes of memory in {path}: {error}") from error
        return _ClBuffer(memory, byte_count)

    def address_of(self, buffer: _ClBuffer) -> int | None:
        """On PoCL, where a map of the buffer is the buffer itself."""
        if not is_pocl(self._device):
            return None
        if buffer.address is None:
            cl = self._cl
            mapped, _ = cl.enqueue_map_buffer(self._queue, buffer.memory, cl.map_flags.READ, 0, (1,), np.uint8)
            buffer.address = int(mapped.ctypes.data)
            mapped.base.release(self._queue)
            self.synchronize()
        return buffer.address

    def free(self, buffer: _ClBuffer) -> None:
        """Give the memory back, once the launches that use it are done."""
        for key in [key for key, bound in self._bound.items() if buffer in bound.buffers]:
            del self._bound[key]
        for view in buffer.views.values():
            view.release()
        buffer.views.clear()
        buffer.memory.release()

    def upload(self, buffer: _ClBuffer, data: Bytes, offset_bytes: int = 0) -> None:
        """Copy to the device; blocks."""
        if data.size:
            self._transfer(buffer.memory, np.ascontiguousarray(data), dst_offset=offset_bytes)

    def download(self, buffer: _ClBuffer, out: Bytes, offset_bytes: int = 0) -> None:
        """Copy from the device; blocks."""
        if out.size:
            self._transfer(out, buffer.memory, src_offset=offset_bytes)

    def _transfer(self, target: object, source: object, **offsets: int) -> None:
        try:
            self._cl.enqueue_copy(self._queue, target, source, is_blocking=True, **offsets)
        except self._cl.Error as error:
            raise machine_error(error, "copying between host and device") from error

    def fill(self, buffer: _ClBuffer, pattern: bytes, byte_count: int, offset_bytes: int = 0) -> None:
        """Repeat `pattern` over a range; what is left after the last whole pattern gets its beginning."""
        whole = byte_count - byte_count % len(pattern)
        if offset_bytes % len(pattern):  # the driver wants offsets in whole patterns
            whole = 0
        cl = self._cl
        try:
            if whole:
                cl.enqueue_fill_buffer(self._queue, buffer.memory, pattern, offset_bytes, whole)
        except cl.Error as error:
            raise machine_error(error, f"filling {byte_count:,} bytes") from error
        if whole < byte_count:
            rest = np.resize(np.frombuffer(pattern, np.uint8), byte_count - whole)
            self.upload(buffer, rest, offset_bytes + whole)

    def copy(self, source: _ClBuffer, target: _ClBuffer, byte_count: int) -> None:
        """Copy between buffers, on all cores of a CPU device."""
        cl = self._cl
        try:
            if self._device.kind == "cpu" and byte_count >= PARALLEL_COPY_MIN_BYTES:
                done_bytes = byte_count - byte_count % (_VECTOR_BYTES * HELPER_BLOCK)
                self._helpers.run("kernelwright_copy", done_bytes // _VECTOR_BYTES, source.memory, target.memory)
            else:
                done_bytes = 0
            if done_bytes < byte_count:
                cl.enqueue_copy(
                    self._queue,
                    target.memory,
                    source.memory,
                    byte_count=byte_count - done_bytes,
                    src_offset=done_bytes,
                    dst_offset=done_bytes,
                )
        except cl.Error as error:
            raise machine_error(error, f"copying {byte_count:,} bytes on the device") from error

    # ---- what launches see and leave ----

    def redraw(self, base: _ClBuffer, target: _ClBuffer, how: Redraw, draw: Draw, *, offset_bytes: int) -> None:
        """On the device, by all its cores."""
        self._run_redraw(REDRAW_ENTRY, base, target, how, draw, offset_bytes)

    def expect_redrawn(self, base: _ClBuffer, target: _ClBuffer, how: Redraw, draw: Draw, *, offset_bytes: int) -> None:
        """Compared on the device."""
        self._run_redraw(VERIFY_ENTRY, base, target, how, draw, offset_bytes)

    def expect_close(
        self, first: _ClBuffer, second: _ClBuffer, byte_count: int, limit: Closeness | None, *, offset_bytes: int
    ) -> None:
        """Compared on the device, where it can compute with the type."""
        if limit is None or not byte_count or (limit.dtype == "float64" and not self._has_doubles):
            super().expect_close(first, second, byte_count, limit, offset_bytes=offset_bytes)
            return
        values = close_values(limit, byte_count)
        views = (self._view(each, offset_bytes, byte_count) for each in (first, second))
        self._run_helper(CLOSE_ENTRY + limit.dtype, byte_count, (*views, self._helpers.flag(), *values))

    def as_expected(self) -> bool:
        """One small copy where kernels have compared."""
        try:
            has_surprise = self._helpers.take_flag()
        except self._cl.Error as error:
            raise machine_error(error, "comparing on the device") from error
        return super().as_expected() and not has_surprise

    def _run_redraw(
        self, task: str, base: _ClBuffer, target: _ClBuffer, how: Redraw, draw: Draw, offset_bytes: int
    ) -> None:
        byte_count = draw.count * how.item_bytes
        if byte_count:
            views = (self._view(each, offset_bytes, byte_count) for each in (base, target))
            self._run_helper(task + how.entry, byte_count, (*views, self._helpers.flag(), *redraw_values(how, draw)))

    def _run_helper(self, entry: str, byte_count: int, arguments: Sequence[Any]) -> None:
        """A kernel that takes any number of threads: few on a CPU, so that each works on neighbours."""
        units = self._device.limits.get("multiprocessors", 1)
        wanted = SPANS_PER_UNIT * units if self._device.kind == "cpu" else GROUPS_PER_UNIT * units * HELPER_BLOCK
        threads = max(1, min(wanted, byte_count // LEAST_SPAN_BYTES if self._device.kind == "cpu" else wanted))
        try:
            self._helpers.run(entry, threads, *arguments, block=1 if self._device.kind == "cpu" else HELPER_BLOCK)
        except self._cl.Error as error:
            raise machine_error(error, f"running {entry} over {byte_count:,} bytes") from error

    @property
    def _has_doubles(self) -> bool:
        return self._device.facts.get("double_arithmetic") == "yes"

    @property
    def written_cache_bytes(self) -> int | None:
        """The last-level cache of a GPU; flushing a CPU's takes longer than most kernels."""
        return None if self._device.kind == "cpu" else self._device.limits.get("last_level_cache")

    # ---- launches ----

    def launch(self, launches: Sequence[BoundLaunch]) -> None:
        """Enqueue all, in order."""
        for each in launches:
            self._enqueue(each)
        self._queue.flush()

    def time(self, launches: Sequence[BoundLaunch]) -> float:
        """Milliseconds from the first kernel's start to the last one's end, by the device's own clock."""
        bound = [self._bind(each) for each in launches]
        cl, queue = self._cl, self._queue
        current = launches[0].step
        try:
            events = []
            for each in bound:
                current = each.step
                events.append(cl.enqueue_nd_range_kernel(queue, each.kernel, each.global_size, each.local_size))
                self._has_launched(each)
            events[-1].wait()
            self._launches_ms = tuple(float(each.profile.end - each.profile.start) * 1e-6 for each in events)
            return float(events[-1].profile.end - events[0].profile.start) * 1e-6
        except cl.Error as error:
            raise launch_error(error, _launch_words(current)) from error

    @property
    def launches_ms(self) -> tuple[float, ...]:
        """By the events of each launch."""
        return self._launches_ms

    def measure_ceilings(self) -> dict[str, float]:
        """Launches of a kernel that does nothing, one on each core; on a CPU also multiply-adds on vectors."""
        try:
            units = self._device.limits.get("multiprocessors", 1)
            empty_s = self._shortest_s(EMPTY_LAUNCHES, units, "kernelwright_empty")
            rates = {"launches_per_s": 1 / empty_s} if empty_s > 0 else {}
            return rates if self._device.kind != "cpu" else {**rates, **self._arithmetic_rate()}
        except self._cl.Error as error:
            raise machine_error(error, "timing the device's own kernels") from error

    def _arithmetic_rate(self) -> dict[str, float]:
        """Of whole vectors. No floor rests on it, since other work takes the host's cores at times."""
        groups = ARITHMETIC_GROUPS * self._device.limits.get("multiprocessors", 1)
        floats = min(max(int(self._target.handle.native_vector_width_float), 2), 16)
        sink = self._cl.Buffer(self._target.context, self._cl.mem_flags.READ_WRITE, 8)
        values = (sink, np.float32(0.5), np.float32(1.0), np.uint32(ARITHMETIC_ROUNDS))
        shortest_s = self._shortest_s(ARITHMETIC_LAUNCHES, groups, f"{ARITHMETIC}{floats}", *values)
        sink.release()
        count = 2 * floats * CHAINS * ARITHMETIC_ROUNDS * groups
        return {"vector_fp32_operations_per_s": count / shortest_s} if shortest_s > 0 else {}

    def _shortest_s(self, count: int, groups: int, entry: str, *arguments: Any) -> float:
        """The shortest of so many launches of groups of one work-item, after one launch that builds the kernel."""
        times_s = []
        for _ in range(count + 1):
            event = self._helpers.run(entry, groups, *arguments, block=1)
            event.wait()
            times_s.append(1e-9 * (event.profile.end - event.profile.start))
        return float(min(times_s[1:]))

    def synchronize(self) -> None:
        """Wait for the queue; there is only this one."""
        try:
            self._queue.finish()
        except self._cl.Error as error:
            raise launch_error(error, "waiting for the device") from error

    def flush_cache(self) -> None:
        """Write twice the last-level cache, though at most `FLUSH_LIMIT_BYTES`, on every core."""
        if self._flush_buffer is None:
            wanted = 2 * self._device.limits.get("last_level_cache", FLUSH_LIMIT_BYTES // 2)
            byte_count = min(max(wanted, 1 << 20), FLUSH_LIMIT_BYTES)
            byte_count -= byte_count % (_VECTOR_BYTES * HELPER_BLOCK)
            self._flush_buffer = self.allocate(byte_count)
            self.fill(self._flush_buffer, b"\0", byte_count)
        try:
            memory = self._flush_buffer.memory
            self._helpers.run("kernelwright_flush", self._flush_buffer.byte_count // _VECTOR_BYTES, memory)
            self._queue.finish()
        except self._cl.Error as error:
            raise machine_error(error, "flushing the cache") from error

    def forget_local_memory(self) -> None:
        """Fill all local memory with NaN (as floats), by work-groups that take all of it."""
        count = self._device.limits.get("shared_memory_per_block", 0) // _VECTOR_BYTES
        if not count:
            return
        groups = FORGET_GROUPS_PER_UNIT * self._device.limits.get("multiprocessors", 1)
        local = self._cl.LocalMemory(count * _VECTOR_BYTES)
        try:
            self._helpers.run("kernelwright_forget", groups * HELPER_BLOCK, local, np.uint32(count))
        except self._cl.Error as error:
            raise machine_error(error, "filling local memory") from error

    def forget_module_memory(self) -> None:
        """On PoCL: writable pages of what was launched."""
        if self._cpu is not None:
            self.synchronize()
            self._cpu.restore_programs()

    def forget_thread_memory(self, *, is_all: bool = False) -> None:
        """On a CPU: stacks of the driver's threads."""
        if self._cpu is not None:
            self.synchronize()
            self._cpu.overwrite_stacks(is_all=is_all)

    def thread_times_s(self) -> Mapping[int, tuple[float, float]]:
        """On a CPU: of the driver's threads, too."""
        return thread_times_s() if self._cpu is not None else {}

    def confine(self) -> None:
        """On PoCL: put the process under a filter of system calls."""
        if self._cpu is not None:
            self._cpu.confine()

    @property
    def notes(self) -> tuple[str, ...]:
        """What of this a CPU's system does not allow."""
        return self._cpu.notes if self._cpu is not None else ()

    def close(self) -> None:
        """Finish and release everything."""
        self._bound.clear()
        self._helpers.close()
        if self._flush_buffer is not None:
            self.free(self._flush_buffer)
            self._flush_buffer = None
        self._queue.finish()
        if self._cpu is not None:
            self._cpu.close()

    # ---- binding ----

    def _enqueue(self, launch: BoundLaunch) -> None:
        bound = self._bind(launch)
        try:
            self._cl.enqueue_nd_range_kernel(self._queue, bound.kernel, bound.global_size, bound.local_size)
        except self._cl.Error as error:
            raise launch_error(error, _launch_words(launch.step)) from error
        self._has_launched(bound)

    def _has_launched(self, bound: _BoundKernel) -> None:
        if self._cpu is not None:
            self._cpu.launched(bound.module.objects, is_first=not bound.has_run)
            bound.has_run = True

    def _bind(self, launch: BoundLaunch) -> _BoundKernel:
        """The kernel with this launch's arguments set; the same launch gets the same one again."""
        used = [
            (argument.name, launch.buffers[argument.name])
            for argument in launch.step.arguments
            if isinstance(argument, BufferArgument)
        ]
        key = (
            id(launch.module),
            id(launch.step),
            *((id(bound.buffer), bound.offset_bytes, bound.byte_count) for _, bound in used),
        )
        known = self._bound.get(key)
        if known is not None:
            return known
        while len(self._bound) >= BOUND_KERNELS_KEPT:
            del self._bound[next(iter(self._bound))]
        fresh = self._make_bound(launch)
        self._bound[key] = fresh  # holds module, step and buffers, so that their ids stay theirs
        return fresh

    def _make_bound(self, launch: BoundLaunch) -> _BoundKernel:
        cl, step = self._cl, launch.step
        try:
            kernel = make_kernel(cl, launch.module.program, step.entry)
        except BuildFailed as error:
            raise LaunchFailed("invalid-kernel-name", error.message) from error
        if kernel.num_args != len(step.arguments):
            raise LaunchFailed(
                "invalid-arguments",
                f"the kernel {step.entry!r} takes {kernel.num_args} arguments, but is launched with "
                f"{len(step.arguments)}: {', '.join(argument.name for argument in step.arguments)}",
            )
        buffers, views = [], []
        for index, argument in enumerate(step.arguments):
            value: object
            match argument:
                case BufferArgument(name=name):
                    bound = launch.buffers[name]
                    value = self._view(bound.buffer, bound.offset_bytes, bound.byte_count)
                    buffers.append(bound.buffer)
                    views.append(value)
                case ScalarArgument(data=data):
                    value = data
                case LocalArgument(byte_count=byte_count):
                    value = cl.LocalMemory(byte_count)
            self._set_argument(kernel, index, value, step)
        x, y, z = (blocks * threads for blocks, threads in zip(step.grid, step.block, strict=True))
        return _BoundKernel(kernel, (x, y, z), step.block, launch.module, step, tuple(buffers), tuple(views))

    def _set_argument(self, kernel: Any, index: int, value: object, step: PlanStep) -> None:
        try:
            kernel.set_arg(index, value)
        except self._cl.Error as error:
            argument = step.arguments[index]
            what = f"argument {index + 1} ({argument.name!r}) of {step.entry!r}"
            if isinstance(argument, ScalarArgument):
                what += f", passed as {len(argument.data)} bytes of {argument.dtype}"
            raise launch_error(error, what) from error

    def _view(self, buffer: _ClBuffer, offset_bytes: int, byte_count: int) -> Any:
        if offset_bytes == 0 and byte_count == buffer.byte_count:
            return buffer.memory
        key = (offset_bytes, byte_count)
        if key not in buffer.views:
            try:
                buffer.views[key] = buffer.memory.get_sub_region(offset_bytes, max(byte_count, 1))
            except self._cl.Error as error:
                what = f"binding {byte_count:,} bytes from {offset_bytes:,} of a buffer of {buffer.byte_count:,}"
                raise launch_error(error, what) from error
        return buffer.views[key]


def _launch_words(step: PlanStep) -> str:
    return f"launching {step.entry!r} with grid {step.grid} and block {step.block}"
