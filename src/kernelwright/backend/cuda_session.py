"""An NVIDIA device open in one worker process: memory, launches, times.

How times are taken: `cuda_timing`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kernelwright.backend.base import (
    Artifact,
    BoundBuffer,
    BoundLaunch,
    BufferArgument,
    BuildFailed,
    Bytes,
    DeviceInfo,
    DeviceReading,
    DeviceSession,
    LaunchFailed,
    LocalArgument,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.cuda_cupti import open_recorder
from kernelwright.backend.cuda_driver import load_driver, ordinal_of
from kernelwright.backend.cuda_errors import DriverCallFailed, call, launch_error, machine_error
from kernelwright.backend.cuda_handles import CudaBuffer, CudaModule, MemoryPool
from kernelwright.backend.cuda_helpers import DIFFER_ENTRY, HELPER_PTX, READ_ENTRY
from kernelwright.backend.cuda_power import open_meter
from kernelwright.backend.cuda_timing import Stopwatch
from kernelwright.errors import InfrastructureError

CUBIN_NAME = "unit.cubin"
NAMES_NAME = "names.json"

BOUND_LAUNCHES_KEPT = 512

FLUSH_FACTOR = 3
"""The flush reads this many times the second-level cache: its replacement is not strictly by age, and on large parts
each half of the device keeps a copy of its own."""
UNKNOWN_CACHE_BYTES = 64 << 20

_PATTERN_TILE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """One launch with its arguments laid out for the driver."""

    start: Callable[[], tuple[Any, ...]]
    step: PlanStep
    kept: tuple[object, ...]
    """What must live as long: the module, and the memory that the driver reads arguments from."""


class CudaSession(DeviceSession):
    """Memory and one stream on one device."""

    def __init__(self, device: DeviceInfo, *, use_cupti: bool = True) -> None:
        self._device = device
        driver = self._driver = load_driver()
        # Before there is a context; which may be used by another profiler, and then times are by events.
        recorder, self.recorder_note = open_recorder() if use_cupti else (None, "not asked for")
        try:
            call(driver.cuInit(0))
            self._handle = call(driver.cuDeviceGet(ordinal_of(device.id)))
            call(driver.cuDevicePrimaryCtxSetFlags(self._handle, driver.CUctx_flags.CU_CTX_SCHED_SPIN))
            call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(self._handle))))
            self._stream = call(driver.cuStreamCreate(0))
            self._helpers = CudaModule(driver, HELPER_PTX.encode() + b"\0", {})
            self._stopwatch = Stopwatch(driver, self._stream, self._helpers, recorder)
        except (DriverCallFailed, RuntimeError) as error:
            raise InfrastructureError(f"opening {device.id}: {error}") from error
        self._modules: weakref.WeakSet[CudaModule] = weakref.WeakSet([self._helpers])
        self._memory = MemoryPool(driver)
        self._bound: dict[tuple[object, ...], _Bound] = {}
        self._flush: _Bound | None = None
        self._flag: CudaBuffer | None = None
        self._meter, self.meter_note = open_meter(device)

    @property
    def timer(self) -> str:
        """`cuda-cupti`, or `cuda-events` where there is no CUPTI."""
        return self._stopwatch.timer

    @property
    def timer_note(self) -> str:
        """Which CUPTI it is, or why there is none."""
        return self._stopwatch.recorder_note or self.recorder_note

    def read_state(self) -> DeviceReading | None:
        """By NVML, where it is installed."""
        return self._meter.read() if self._meter is not None else None

    def measure_ceilings(self) -> dict[str, float]:
        """Bandwidth of memory and cache, and the rate of each arithmetic pipe."""
        from kernelwright.backend.cuda_ceilings import measure_ceilings

        return measure_ceilings(self, self._device)

    # ---- modules ----

    def load(self, artifact: Artifact) -> CudaModule:
        """Load a cubin."""
        try:
            image = (artifact.folder / CUBIN_NAME).read_bytes()
            names = json.loads((artifact.folder / NAMES_NAME).read_bytes())
        except (OSError, ValueError) as error:
            raise InfrastructureError(f"the artifact of {artifact.unit.file_name} cannot be read: {error}") from error
        try:
            module = CudaModule(self._driver, image, names)
            self._modules.add(module)
            return module
        except DriverCallFailed as error:
            problem = launch_error(error, f"loading {artifact.unit.file_name}")
            if isinstance(problem, LaunchFailed):
                raise BuildFailed(problem.message) from error
            raise problem from error

    # ---- memory ----

    def allocate(self, byte_count: int) -> CudaBuffer:
        """Device memory, at least one byte of it."""
        try:
            return CudaBuffer(self._memory.take(max(byte_count, 1)), byte_count)
        except DriverCallFailed as error:
            raise machine_error(error, f"allocating {byte_count:,} bytes on {self._device.id}") from error

    def free(self, buffer: CudaBuffer) -> None:
        """Keep the memory for the next buffer of its size; the stream's order makes that safe."""
        self._memory.give(buffer.address, max(buffer.byte_count, 1))

    def upload(self, buffer: CudaBuffer, data: Bytes, offset_bytes: int = 0) -> None:
        """Copy to the device; blocks."""
        if data.size:
            data = np.ascontiguousarray(data)
            target = buffer.address + offset_bytes
            self._transfer(self._driver.cuMemcpyHtoDAsync, target, data.ctypes.data, data.nbytes)

    def download(self, buffer: CudaBuffer, out: Bytes, offset_bytes: int = 0) -> None:
        """Copy from the device; blocks."""
        if out.size:
            source = buffer.address + offset_bytes
            self._transfer(self._driver.cuMemcpyDtoHAsync, out.ctypes.data, source, out.nbytes)

    def _transfer(self, copy: Callable[..., tuple[Any, ...]], target: int, source: int, byte_count: int) -> None:
        try:
            call(copy(target, source, byte_count, self._stream))
            call(self._driver.cuStreamSynchronize(self._stream))
        except DriverCallFailed as error:
            raise machine_error(error, f"copying {byte_count:,} bytes between host and device") from error

    def fill(self, buffer: CudaBuffer, pattern: bytes, byte_count: int, offset_bytes: int = 0) -> None:
        """Repeat `pattern` over a range; what is left after the last whole pattern gets its beginning."""
        if not byte_count:
            return
        start = buffer.address + offset_bytes
        unit = _smallest_period(pattern)
        try:
            if len(unit) <= 4 and start % len(unit) == 0 and byte_count % len(unit) == 0:
                self._set(start, unit, byte_count // len(unit))
            else:
                self._tile(start, pattern, byte_count)
        except DriverCallFailed as error:
            raise machine_error(error, f"filling {byte_count:,} bytes") from error

    def _set(self, start: int, unit: bytes, count: int) -> None:
        driver = self._driver
        setters = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}
        call(setters[len(unit)](start, int.from_bytes(unit, "little"), count, self._stream))

    def _tile(self, start: int, pattern: bytes, byte_count: int) -> None:
        """Upload some patterns, then double what is there."""
        done = min(byte_count, _PATTERN_TILE_BYTES)
        tile = np.resize(np.frombuffer(pattern, np.uint8), done)
        call(self._driver.cuMemcpyHtoDAsync(start, tile.ctypes.data, done, self._stream))
        call(self._driver.cuStreamSynchronize(self._stream))  # the tile goes out of scope
        while done < byte_count:
            step = min(done, byte_count - done)
            call(self._driver.cuMemcpyDtoDAsync(start + done, start, step, self._stream))
            done += step

    def copy(self, source: CudaBuffer, target: CudaBuffer, byte_count: int) -> None:
        """Copy between buffers."""
        if not byte_count:
            return
        try:
            call(self._driver.cuMemcpyDtoDAsync(target.address, source.address, byte_count, self._stream))
        except DriverCallFailed as error:
            raise machine_error(error, f"copying {byte_count:,} bytes on the device") from error

    def is_same(self, first: CudaBuffer, second: CudaBuffer, byte_count: int) -> bool:
        """Compared on the device, at its memory's speed."""
        words, rest = divmod(byte_count, 16)
        if first.address % 16 or second.address % 16 or rest:
            return super().is_same(first, second, byte_count)
        try:
            if self._flag is None:
                self._flag = self.allocate(4)
            self.fill(self._flag, b"\0", 4)
            values = (first.address, second.address, words, self._flag.address)
            step = PlanStep(
                DIFFER_ENTRY, (8 * self._device.limits.get("multiprocessors", 64), 1, 1), (256, 1, 1), 0, ()
            )
            _start(self._bound_launch(self._helpers, step, [value.to_bytes(8, "little") for value in values]))
            flag = np.empty(4, np.uint8)
            self.download(self._flag, flag)
            return not flag.any()
        except DriverCallFailed as error:
            raise machine_error(error, f"comparing {byte_count:,} bytes on the device") from error

    def free_memory_bytes(self) -> int | None:
        """As the driver says, without what is kept here for the next buffer."""
        try:
            return int(call(self._driver.cuMemGetInfo())[0])
        except DriverCallFailed:
            return None

    # ---- launches ----

    def launch(self, launches: Sequence[BoundLaunch]) -> None:
        """Enqueue all, in order."""
        for bound in [self._bind(each) for each in launches]:
            _start(bound)

    def time(self, launches: Sequence[BoundLaunch]) -> float:
        """Milliseconds from the first launch's start to the last one's end."""
        bound = [self._bind(each) for each in launches]
        try:
            return self._stopwatch.time([partial(_start, each) for each in bound])
        except DriverCallFailed as error:
            raise launch_error(error, _words(launches[-1].step)) from error

    def synchronize(self) -> None:
        """Wait for everything on the device that this process started."""
        try:
            call(self._driver.cuCtxSynchronize())
        except DriverCallFailed as error:
            raise launch_error(error, "waiting for the device") from error

    def flush_cache(self) -> None:
        """Read more than the second-level cache holds.

        Reading, not writing: a cache full of lines that still have to be written back would slow down what comes next.
        The other side of it: of what a kernel writes, up to a cache's size may still be in the cache when it ends, so
        a kernel that writes less than that can beat the time that the device needs to move all its bytes.
        """
        try:
            if self._flush is None:
                self._flush = self._make_flush()
            _start(self._flush)
        except DriverCallFailed as error:
            raise machine_error(error, "flushing the cache") from error

    def _make_flush(self) -> _Bound:
        byte_count = FLUSH_FACTOR * self._device.limits.get("last_level_cache", UNKNOWN_CACHE_BYTES)
        byte_count -= byte_count % 16
        buffer = self.allocate(byte_count + 16)
        self.fill(buffer, b"\0", byte_count + 16)
        values = (buffer.address, byte_count // 16, buffer.address + byte_count)
        blocks = 8 * self._device.limits.get("multiprocessors", 64)
        step = PlanStep(READ_ENTRY, (blocks, 1, 1), (256, 1, 1), 0, ())
        return self._bound_launch(self._helpers, step, [value.to_bytes(8, "little") for value in values])

    def close(self) -> None:
        """Finish and release everything; what a broken context does not give back, the process's end does."""
        driver = self._driver
        with contextlib.suppress(DriverCallFailed):
            call(driver.cuCtxSynchronize())
        self._bound.clear()
        self._flush = None
        for module in list(self._modules):
            module.unload()
        self._memory.release()
        self._stopwatch.close()
        driver.cuStreamDestroy(self._stream)
        driver.cuDevicePrimaryCtxRelease(self._handle)

    # ---- binding ----

    def _bind(self, launch: BoundLaunch) -> _Bound:
        """The launch laid out for the driver; the same launch on the same memory gets the same one again."""
        used = [
            launch.buffers[argument.name] for argument in launch.step.arguments if isinstance(argument, BufferArgument)
        ]
        addresses = (bound.buffer.address + bound.offset_bytes for bound in used)
        key = (id(launch.module), id(launch.step), *addresses)
        known = self._bound.get(key)
        if known is not None:
            return known
        while len(self._bound) >= BOUND_LAUNCHES_KEPT:
            del self._bound[next(iter(self._bound))]
        fresh = self._make_bound(launch.module, launch.step, launch.buffers)
        self._bound[key] = fresh  # holds module and step, so that their ids stay theirs
        return fresh

    def _make_bound(self, module: CudaModule, step: PlanStep, buffers: Mapping[str, BoundBuffer]) -> _Bound:
        values = []
        for argument in step.arguments:
            match argument:
                case BufferArgument(name=name):
                    bound = buffers[name]
                    values.append((bound.buffer.address + bound.offset_bytes).to_bytes(8, "little"))
                case ScalarArgument(data=data):
                    values.append(data)
                case LocalArgument(name=name):
                    raise LaunchFailed(
                        "invalid-arguments",
                        f"{name!r} of {step.entry!r} is local memory as an argument, which CUDA does not have: use "
                        "shared_bytes",
                    )
        try:
            self._check_parameters(module.function(step.entry), step, values)
            module.allow_shared(step.entry, step.shared_bytes)
        except DriverCallFailed as error:
            raise launch_error(
                error, f"preparing {step.entry!r} with {step.shared_bytes:,} bytes of dynamic shared memory"
            ) from error
        return self._bound_launch(module, step, values)

    def _bound_launch(self, module: CudaModule, step: PlanStep, values: Sequence[bytes]) -> _Bound:
        memory, parameters = _parameters(values)
        function, address = module.function(step.entry), ctypes.addressof(parameters)
        launch_kernel, stream = self._driver.cuLaunchKernel, self._stream
        shape = (*step.grid, *step.block, step.shared_bytes)

        def start() -> tuple[Any, ...]:
            return launch_kernel(function, *shape, stream, address, 0)  # type: ignore[no-any-return]

        return _Bound(start, step, (module, memory, parameters))

    def _check_parameters(self, function: Any, step: PlanStep, values: Sequence[bytes]) -> None:
        """The driver would read past the arguments, or not read some, without a word.

        Raises:
            LaunchFailed: the kernel has other parameters than it gets arguments.
        """
        if not hasattr(self._driver, "cuFuncGetParamInfo"):
            return
        sizes: list[int] = []
        while True:
            code, *info = self._driver.cuFuncGetParamInfo(function, len(sizes))
            if code:
                break
            sizes.append(int(info[1]))
        given = [len(value) for value in values]
        if sizes == given:
            return
        if len(sizes) != len(given):
            names = ", ".join(argument.name for argument in step.arguments)
            message = (
                f"the kernel {step.entry!r} takes {len(sizes)} arguments, but is launched with {len(given)}: {names}"
            )
        else:
            index = next(index for index, (wanted, got) in enumerate(zip(sizes, given, strict=True)) if wanted != got)
            message = (
                f"argument {index + 1} ({step.arguments[index].name!r}) of {step.entry!r} has {given[index]} bytes, "
                f"but the kernel takes {sizes[index]}"
            )
        raise LaunchFailed("invalid-arguments", message)


def _start(bound: _Bound) -> None:
    result = bound.start()
    if result[0]:
        try:
            call(result)
        except DriverCallFailed as error:
            raise launch_error(error, _words(bound.step)) from error


def _parameters(values: Sequence[bytes]) -> tuple[list[Any], Any]:
    """Arguments as the driver takes them: memory for each value, and an array of their addresses."""
    memory = [ctypes.create_string_buffer(value, max(len(value), 1)) for value in values]
    array = (ctypes.c_void_p * max(len(memory), 1))(*(ctypes.addressof(each) for each in memory))
    return memory, array


def _smallest_period(pattern: bytes) -> bytes:
    for size in (1, 2, 4, 8):
        if size < len(pattern) and pattern == pattern[:size] * (len(pattern) // size):
            return pattern[:size]
    return pattern


def _words(step: PlanStep) -> str:
    shared = f" and {step.shared_bytes:,} bytes of dynamic shared memory" if step.shared_bytes else ""
    return f"launching {step.entry!r} with grid {step.grid} and block {step.block}{shared}"
