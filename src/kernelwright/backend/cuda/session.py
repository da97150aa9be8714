"""An NVIDIA device open in one worker process: memory, launches, times (`measure.timing`)."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelwright.backend.base import (
    Artifact,
    BinaryUnreadable,
    BoundLaunch,
    BufferArgument,
    BuildFailed,
    Bytes,
    DeviceInfo,
    DeviceReading,
    DeviceSession,
    KeyOrder,
    LaunchFailed,
    PlanStep,
)
from kernelwright.backend.cuda.cubin_state import read_cubin
from kernelwright.backend.cuda.driver import load_driver, ordinal_of
from kernelwright.backend.cuda.errors import DriverCallFailed, call, launch_error, machine_error
from kernelwright.backend.cuda.handles import CudaBuffer, CudaModule, MemoryPool
from kernelwright.backend.cuda.launch import Binder, BoundStep, launch_words
from kernelwright.backend.cuda.leftovers import Leftovers
from kernelwright.backend.cuda.measure.cupti import open_recorder
from kernelwright.backend.cuda.measure.power import open_meter
from kernelwright.backend.cuda.measure.timing import Stopwatch
from kernelwright.backend.cuda.module_memory import ModuleMemory
from kernelwright.backend.cuda.session_kernels.checks import DeviceChecks
from kernelwright.backend.cuda.session_kernels.ptx import HELPER_PTX, READ_ENTRY
from kernelwright.backend.cuda.transfer import STAGED_FROM_BYTES, Staging
from kernelwright.backend.cuda.triton_launch import TritonLaunch
from kernelwright.backend.redraw import Closeness, Draw, Redraw
from kernelwright.errors import InfrastructureError
from kernelwright.json_text import read_json_text

CUBIN_NAME = "unit.cubin"
NAMES_NAME = "names.json"
LAUNCHES_NAME = "launches.json"
"""How kernels are launched that Triton compiled, by entry; absent for others."""

BOUND_LAUNCHES_KEPT = 512

FLUSH_FACTOR = 3
"""The flush reads this many times the second-level cache: its replacement is not strictly by age, and on large parts
each half of the device keeps a copy of its own."""
UNKNOWN_CACHE_BYTES = 64 << 20

_PATTERN_TILE_BYTES = 1 << 16


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
        self._memory = MemoryPool(driver, self._stream)
        self._module_memory = ModuleMemory(driver, self._stream, self._memory)
        self._binder = Binder(driver, self._stream, self._memory)
        self._staging = Staging(driver, self._stream)
        self._bound: dict[tuple[object, ...], BoundStep] = {}
        self._flush: BoundStep | None = None
        self._checks = DeviceChecks(driver, self._stream, self._helpers, self._memory, device)
        self._leftovers = Leftovers(driver, self._binder, device)
        self._tiles: dict[bytes, Bytes] = {}
        """Patterns repeated, on the host, where no kernel reaches them."""
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
        return self._meter() if self._meter is not None else None

    def measure_ceilings(self) -> dict[str, float]:
        """Bandwidth of memory and cache, and the rate of each arithmetic pipe."""
        from kernelwright.backend.cuda.ceilings import measure_ceilings

        return measure_ceilings(self, self._device)

    # ---- modules ----

    def load(self, artifact: Artifact) -> CudaModule:
        """Load a cubin."""
        try:
            image = (artifact.folder / CUBIN_NAME).read_bytes()
            names = read_json_text((artifact.folder / NAMES_NAME).read_bytes())
            launches, images = _launches(artifact.folder)
        except (OSError, ValueError) as error:
            raise InfrastructureError(f"the artifact of {artifact.unit.file_name} cannot be read: {error}") from error
        try:
            module = self._module(image, names)
            module.triton = launches
            module.others = {entry: self._module(each, names) for entry, each in images.items()}
            return module
        except DriverCallFailed as error:
            problem = launch_error(error, f"loading {artifact.unit.file_name}")
            if isinstance(problem, LaunchFailed):
                raise BuildFailed(problem.message) from error
            raise problem from error

    def _module(self, image: bytes, names: Mapping[str, str]) -> CudaModule:
        module = CudaModule(self._driver, image, names)
        with contextlib.suppress(BinaryUnreadable):
            module.state = read_cubin(image)
        self._modules.add(module)
        return module

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
            if data.nbytes >= STAGED_FROM_BYTES:
                self._stage(lambda: self._staging.upload(target, data), data.nbytes)
            else:
                self._transfer(self._driver.cuMemcpyHtoDAsync, target, data.ctypes.data, data.nbytes)

    def download(self, buffer: CudaBuffer, out: Bytes, offset_bytes: int = 0) -> None:
        """Copy from the device; blocks."""
        if out.size:
            source = buffer.address + offset_bytes
            if out.nbytes >= STAGED_FROM_BYTES and out.flags.c_contiguous:
                self._stage(lambda: self._staging.download(source, out), out.nbytes)
                return
            self._transfer(self._driver.cuMemcpyDtoHAsync, out.ctypes.data, source, out.nbytes)

    def _stage(self, transfer: Callable[[], None], byte_count: int) -> None:
        try:
            transfer()
        except DriverCallFailed as error:
            raise machine_error(error, f"copying {byte_count:,} bytes between host and device") from error

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
        if pattern not in self._tiles:
            self._tiles[pattern] = np.resize(np.frombuffer(pattern, np.uint8), _PATTERN_TILE_BYTES)
        tile = self._tiles[pattern]
        call(self._driver.cuMemcpyHtoDAsync(start, tile.ctypes.data, done, self._stream))
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
        had_surprise = not self.as_expected()
        self.expect_same(first, second, byte_count)
        is_same = self.as_expected()
        self._has_surprise = had_surprise
        return is_same

    def expect_same(
        self, first: CudaBuffer, second: CudaBuffer, byte_count: int, *, offsets_bytes: tuple[int, int] = (0, 0)
    ) -> None:
        """Compared on the device, at its memory's speed."""
        self._checks.expect_same(first.address + offsets_bytes[0], second.address + offsets_bytes[1], byte_count)

    def expect_within(
        self,
        values: CudaBuffer,
        low: CudaBuffer,
        high: CudaBuffer,
        byte_count: int,
        *,
        order: KeyOrder,
        offset_bytes: int,
    ) -> None:
        """Compared on the device, at its memory's speed."""
        first, second, third = (each.address + offset_bytes for each in (values, low, high))
        self._checks.expect_within(first, second, third, byte_count, order)

    def redraw(self, base: CudaBuffer, target: CudaBuffer, how: Redraw, draw: Draw, *, offset_bytes: int) -> None:
        """On the device, at its memory's speed; on the host without a compiler."""
        if not self._checks.redraw(base.address + offset_bytes, target.address + offset_bytes, how, draw):
            super().redraw(base, target, how, draw, offset_bytes=offset_bytes)

    def expect_redrawn(
        self, base: CudaBuffer, target: CudaBuffer, how: Redraw, draw: Draw, *, offset_bytes: int
    ) -> None:
        """On the device, at its memory's speed; on the host without a compiler."""
        if not self._checks.expect_redrawn(base.address + offset_bytes, target.address + offset_bytes, how, draw):
            super().expect_redrawn(base, target, how, draw, offset_bytes=offset_bytes)

    def expect_close(
        self, first: CudaBuffer, second: CudaBuffer, byte_count: int, limit: Closeness | None, *, offset_bytes: int
    ) -> None:
        """On the device, at its memory's speed; on the host without a compiler."""
        if limit is None:
            self.expect_same(first, second, byte_count, offsets_bytes=(offset_bytes, offset_bytes))
            return
        addresses = (first.address + offset_bytes, second.address + offset_bytes)
        if not self._checks.expect_close(*addresses, byte_count, limit):
            super().expect_close(first, second, byte_count, limit, offset_bytes=offset_bytes)

    def as_expected(self) -> bool:
        """One small copy for all that was expected."""
        had_surprise, self._has_surprise = self._has_surprise, False
        return self._checks.are_as_expected() and not had_surprise

    def free_memory_bytes(self) -> int | None:
        """As the driver says, without what is kept here for the next buffer."""
        try:
            return int(call(self._driver.cuMemGetInfo())[0])
        except DriverCallFailed:
            return None

    # ---- launches ----

    def launch(self, launches: Sequence[BoundLaunch]) -> None:
        """Enqueue all, in order."""
        try:
            bound = [self._bind(each) for each in launches]
            self._note(launches)
            for each in bound:
                each.prepare_and_launch()
        except DriverCallFailed as error:
            raise launch_error(error, launch_words(launches[-1].step)) from error

    def time(self, launches: Sequence[BoundLaunch]) -> float:
        """Milliseconds from the first launch's start to the last one's end."""
        bound = [self._bind(each) for each in launches]
        try:
            self._note(launches)
            bound[0].prepare()  # which is no part of what is timed; of later steps it is, because it must lie between
            return self._stopwatch.time([bound[0].launch, *(each.prepare_and_launch for each in bound[1:])])
        except DriverCallFailed as error:
            raise launch_error(error, launch_words(launches[-1].step)) from error

    @property
    def launches_ms(self) -> tuple[float, ...]:
        """By the device's records; empty where events are the timer."""
        return self._stopwatch.launches_ms

    def _note(self, launches: Sequence[BoundLaunch]) -> None:
        for each in launches:
            self._module_memory.before_launch(each.module.others.get(each.step.entry, each.module))
            self._leftovers.before_launch(each.module, each.step.entry)

    def forget_module_memory(self) -> None:
        """Give variables their first values, by copies on the device, and overwrite what threads had for themselves.

        Lines that a kernel asked the cache to keep are made like others; devices without such lines refuse: no harm.
        """
        self._driver.cuCtxResetPersistingL2Cache()
        try:
            self._module_memory.forget()
            self._leftovers.forget_local()
        except DriverCallFailed as error:
            raise machine_error(error, "setting back the variables of a module") from error

    @property
    def stream_handle(self) -> int:
        """The stream that everything runs on, as the driver knows it: for libraries that take a stream."""
        return int(self._stream)

    def time_calls(self, calls: Sequence[Callable[[], None]]) -> float:
        """Milliseconds of whatever `calls` put on this session's stream, as `time` gives them for launches."""
        try:
            return self._stopwatch.time(calls)
        except DriverCallFailed as error:
            raise machine_error(error, "timing on the stream") from error

    def synchronize(self) -> None:
        """Wait for everything on the device that this process started."""
        try:
            call(self._driver.cuCtxSynchronize())
        except DriverCallFailed as error:
            raise launch_error(error, "waiting for the device") from error

    @property
    def written_cache_bytes(self) -> int | None:
        """The second-level cache."""
        return self._device.limits.get("last_level_cache", UNKNOWN_CACHE_BYTES)

    def flush_cache(self) -> None:
        """Read more than the second-level cache holds.

        Reading, not writing: lines that still have to be written back would slow down what comes next. For the same
        reason a kernel that writes less than a cache's size can beat the time that moving all its bytes takes.
        """
        try:
            if self._flush is None:
                self._flush = self._make_flush()
            self._flush.launch()
        except DriverCallFailed as error:
            raise machine_error(error, "flushing the cache") from error

    def forget_local_memory(self) -> None:
        """Fill all shared memory of every multiprocessor."""
        self._leftovers.forget_shared()

    def _make_flush(self) -> BoundStep:
        byte_count = FLUSH_FACTOR * self._device.limits.get("last_level_cache", UNKNOWN_CACHE_BYTES)
        byte_count -= byte_count % 16
        buffer = self.allocate(byte_count + 16)
        self.fill(buffer, b"\0", byte_count + 16)
        values = (buffer.address, byte_count // 16, buffer.address + byte_count)
        blocks = 8 * self._device.limits.get("multiprocessors", 64)
        step = PlanStep(READ_ENTRY, (blocks, 1, 1), (256, 1, 1), 0, ())
        return self._binder.bind_values(self._helpers, step, [value.to_bytes(8, "little") for value in values])

    def close(self) -> None:
        """Finish and release everything; what a broken context does not give back, the process's end does."""
        driver = self._driver
        with contextlib.suppress(DriverCallFailed):
            call(driver.cuCtxSynchronize())
        self._bound.clear()
        self._flush = None
        self._leftovers.close()
        self._checks.close()
        for module in list(self._modules):
            module.unload()
        self._memory.close()
        self._staging.close()
        self._stopwatch.close()
        driver.cuStreamDestroy(self._stream)
        driver.cuDevicePrimaryCtxRelease(self._handle)

    # ---- binding ----

    def _bind(self, launch: BoundLaunch) -> BoundStep:
        """The launch laid out for the driver; the same launch on the same memory gets the same one again."""
        step = launch.step
        used = [launch.buffers[each.name] for each in step.arguments if isinstance(each, BufferArgument)]
        used += [launch.buffers[each.name] for _, each in step.constants]
        addresses = (bound.buffer.address + bound.offset_bytes for bound in used)
        key = (id(launch.module), id(launch.step), *addresses)
        known = self._bound.get(key)
        if known is not None:
            return known
        while len(self._bound) >= BOUND_LAUNCHES_KEPT:
            del self._bound[next(iter(self._bound))]
        fresh = self._binder.bind(launch.module, launch.step, launch.buffers)
        self._bound[key] = fresh  # holds module and step, so that their ids stay theirs
        return fresh


def _launches(folder: Path) -> tuple[dict[str, TritonLaunch], dict[str, bytes]]:
    """By entry how it is launched, and the images of those that are in a cubin of their own; empty if not Triton's."""
    file = folder / LAUNCHES_NAME
    if not file.exists():
        return {}, {}
    found = read_json_text(file.read_bytes())
    launches = {entry: TritonLaunch.read(each["launch"]) for entry, each in found.items()}
    own = {entry: each["file"] for entry, each in found.items() if each["file"] != CUBIN_NAME}
    return launches, {entry: (folder / name).read_bytes() for entry, name in own.items()}


def _smallest_period(pattern: bytes) -> bytes:
    for size in (1, 2, 4, 8):
        if size < len(pattern) and pattern == pattern[:size] * (len(pattern) // size):
            return pattern[:size]
    return pattern
