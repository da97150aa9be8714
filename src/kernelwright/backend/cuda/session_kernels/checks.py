"""Drawing inputs anew and comparing on the device; one flag is raised for all that is not as expected.

What needs a compiler is compiled when it is first wanted (`compiled`). Where there is none, the caller does the
work on the host.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from kernelwright.backend.base import DeviceInfo, KeyOrder
from kernelwright.backend.cuda.errors import DriverCallFailed, call, machine_error
from kernelwright.backend.cuda.handles import CudaModule, MemoryPool
from kernelwright.backend.cuda.session_kernels.compiled import load_compiled
from kernelwright.backend.cuda.session_kernels.ptx import DIFFER_ENTRY, WITHIN_ENTRY
from kernelwright.backend.redraw import (
    CLOSE_ENTRY,
    REDRAW_ENTRY,
    VERIFY_ENTRY,
    Closeness,
    Draw,
    Redraw,
    close_source,
    close_values,
    redraw_source,
    redraw_values,
)

BLOCKS_PER_MULTIPROCESSOR, THREADS = 8, 256
"""All threads that a multiprocessor of a data center's device can hold."""

_BYTES_IN_ANY_ORDER = KeyOrder(1, 0, 0, (1 << 64) - 1)


class _Kernel:
    """One kernel whose parameters change with every launch: they are overwritten, since the driver copies them."""

    def __init__(self, driver: ModuleType, stream: Any, function: Any, sizes: Sequence[int], blocks: int) -> None:
        memory = (ctypes.c_uint8 * sum(sizes))()
        self._memory = memoryview(memory).cast("B")
        start = ctypes.addressof(memory)
        offsets = itertools.accumulate(sizes[:-1], initial=0)
        self._parameters = (ctypes.c_void_p * len(sizes))(*(start + offset for offset in offsets))
        self._launch = driver.cuLaunchKernel
        self._shape = (function, blocks, 1, 1, THREADS, 1, 1, 0, stream, ctypes.addressof(self._parameters), 0)

    def launch(self, parameters: bytes) -> None:
        """Put it on the stream.

        Raises:
            DriverCallFailed: the device failed.
        """
        self._memory[:] = parameters
        call(self._launch(*self._shape))


class DeviceChecks:
    """Everything is put on one stream, and no host waits for it before it asks `are_as_expected`."""

    def __init__(
        self, driver: ModuleType, stream: Any, helpers: CudaModule, memory: MemoryPool, device: DeviceInfo
    ) -> None:
        self._driver = driver
        self._stream = stream
        self._helpers = helpers
        self._memory = memory
        self._device = device
        self._kernels: dict[str, _Kernel | None] = {}
        """By entry; None: there is no compiler for it."""
        self._modules: list[CudaModule] = []
        self._flag: int | None = None
        self._is_flag_clear = False
        """Whether the flag was cleared for comparisons that no one has asked about yet."""

    def expect_same(self, first: int, second: int, byte_count: int) -> None:
        """Compare bytes at two addresses."""
        words, rest = divmod(byte_count, 16)
        if rest or first % 16 or second % 16:
            self.expect_within(first, second, second, byte_count, _BYTES_IN_ANY_ORDER)
        else:
            self._compare(DIFFER_ENTRY, first, second, words, self._clear_flag())

    def expect_within(self, values: int, low: int, high: int, byte_count: int, order: KeyOrder) -> None:
        """Compare elements with their bounds."""
        numbers = (values, low, high, byte_count // order.item_bytes, self._clear_flag())
        entry = f"{WITHIN_ENTRY}{order.item_bytes}"
        self._compare(entry, *numbers, order.sign, order.negative, order.every, order.greatest)

    def redraw(self, base: int, target: int, how: Redraw, draw: Draw) -> bool:
        """Draw anew, if there is a compiler."""
        return self._draw(REDRAW_ENTRY, (base, target, self._flag_address()), how, draw)

    def expect_redrawn(self, base: int, target: int, how: Redraw, draw: Draw) -> bool:
        """Compare with what `redraw` writes, if there is a compiler."""
        return self._draw(VERIFY_ENTRY, (base, target, self._clear_flag()), how, draw)

    def expect_close(self, first: int, second: int, byte_count: int, limit: Closeness) -> bool:
        """Compare two results, if there is a compiler."""
        entry = f"{CLOSE_ENTRY}{limit.dtype}"
        values = close_values(limit, byte_count)
        if entry not in self._kernels:
            self._make(entry, (entry,), close_source(limit.dtype), values)
        return self._start(entry, (first, second, self._clear_flag()), values)

    def are_as_expected(self) -> bool:
        """Whether no comparison since the last question raised the flag."""
        if not self._is_flag_clear:
            return True
        flag = ctypes.c_uint32()
        try:
            call(self._driver.cuMemcpyDtoHAsync(ctypes.addressof(flag), self._flag_address(), 4, self._stream))
            call(self._driver.cuStreamSynchronize(self._stream))
        except DriverCallFailed as error:
            raise machine_error(error, "asking what comparisons on the device found") from error
        self._is_flag_clear = False
        return not flag.value

    def close(self) -> None:
        """Unload what was compiled; nothing may be put on the stream any more."""
        self._kernels.clear()
        for module in self._modules:
            module.unload()

    def _draw(self, prefix: str, addresses: tuple[int, int, int], how: Redraw, draw: Draw) -> bool:
        ending = how.entry
        entry, values = prefix + ending, redraw_values(how, draw)
        if entry not in self._kernels:
            self._make(entry, (REDRAW_ENTRY + ending, VERIFY_ENTRY + ending), redraw_source(ending), values)
        return self._start(entry, addresses, values)

    def _compare(self, entry: str, *numbers: int) -> None:
        if entry not in self._kernels:
            self._add(entry, self._helpers, [8] * len(numbers))
        self._start(entry, numbers, ())

    def _start(self, entry: str, numbers: Sequence[int], values: Sequence[bytes]) -> bool:
        kernel = self._kernels[entry]
        if kernel is None:
            return False
        try:
            kernel.launch(b"".join((struct.pack(f"<{len(numbers)}Q", *numbers), *values)))
        except DriverCallFailed as error:
            raise machine_error(error, f"running {entry} on the device") from error
        return True

    def _make(self, entry: str, entries: tuple[str, ...], source: str, values: Sequence[bytes]) -> None:
        """Compile a source with these kernels, which take three addresses before `values`, unless that is in vain."""
        module = load_compiled(self._driver, source, entries, self._device)
        self._kernels.update(dict.fromkeys(entries))
        if module is not None:
            self._modules.append(module)
            for each in entries:
                self._add(each, module, [8, 8, 8, *map(len, values)])

    def _add(self, entry: str, module: CudaModule, sizes: Sequence[int]) -> None:
        blocks = BLOCKS_PER_MULTIPROCESSOR * self._device.limits.get("multiprocessors", 64)
        try:
            function = module.function(entry)
        except DriverCallFailed as error:
            raise machine_error(error, f"loading {entry}") from error
        self._kernels[entry] = _Kernel(self._driver, self._stream, function, sizes, blocks)

    def _flag_address(self) -> int:
        if self._flag is None:
            self._flag = self._memory.take(16)
        return self._flag

    def _clear_flag(self) -> int:
        """The address of the flag that a comparison raises; clear since the last question."""
        address = self._flag_address()
        if not self._is_flag_clear:
            try:
                call(self._driver.cuMemsetD32Async(address, 0, 1, self._stream))
            except DriverCallFailed as error:
                raise machine_error(error, "comparing on the device") from error
            self._is_flag_clear = True
        return address
