"""What a session holds of the driver: memory and loaded modules."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from kernelwright.backend.cuda.cubin_state import CubinState
from kernelwright.backend.cuda.errors import DriverCallFailed, call
from kernelwright.backend.cuda.triton_launch import TritonLaunch


@dataclass(slots=True, eq=False)
class CudaBuffer:
    """Device memory: an address and how much there is."""

    address: int
    byte_count: int


class CudaModule:
    """A loaded cubin; unloaded when no one has it any more."""

    def __init__(self, driver: ModuleType, image: bytes, names: Mapping[str, str]) -> None:
        self._driver = driver
        self._names = names
        self._functions: dict[str, Any] = {}
        self._shared_bytes: dict[str, int] = {}
        self._local_bytes: dict[str, int] = {}
        self.triton: Mapping[str, TritonLaunch] = {}
        """By entry that Triton compiled, how it is launched."""
        self.others: Mapping[str, CudaModule] = {}
        """By entry that is in a cubin of its own, that one."""
        self.state: CubinState | None = None
        """The variables that outlive a launch, where whoever loads it wants them set back."""
        self.handle = call(driver.cuModuleLoadData(image))
        self.unload = weakref.finalize(self, driver.cuModuleUnload, self.handle)
        self.unload.atexit = False

    def function(self, entry: str) -> Any:
        """The entry's function, loaded onto the device.

        Raises:
            DriverCallFailed: there is none of that name.
        """
        if entry in self.others:
            return self.others[entry].function(entry)
        if entry not in self._functions:
            name = self._names.get(entry, entry)
            function = call(self._driver.cuModuleGetFunction(self.handle, name.encode()))
            if hasattr(self._driver, "cuFuncLoad"):  # else the first launch would load it, inside a measurement
                call(self._driver.cuFuncLoad(function))
            self._functions[entry] = function
        return self._functions[entry]

    def local_bytes(self, entry: str) -> int:
        """What each thread of the entry has of local memory, for arrays and spilled registers.

        Raises:
            DriverCallFailed: there is no such entry.
        """
        if entry not in self._local_bytes:
            what = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
            self._local_bytes[entry] = int(call(self._driver.cuFuncGetAttribute(what, self.function(entry))))
        return self._local_bytes[entry]

    def variable(self, name: str) -> tuple[int, int]:
        """Address and bytes of a global variable.

        Raises:
            DriverCallFailed: there is none of that name.
        """
        address, byte_count = call(self._driver.cuModuleGetGlobal(self.handle, name.encode()))
        return int(address), int(byte_count)

    def allow_large_clusters(self, entry: str) -> None:
        """Opt in to clusters of more than eight blocks."""
        what = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        call(self._driver.cuFuncSetAttribute(self.function(entry), what, 1))

    def allow_shared(self, entry: str, byte_count: int) -> None:
        """Opt in to so much dynamic shared memory; what was allowed before stays."""
        if byte_count <= self._shared_bytes.get(entry, 0):
            return
        what = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(self._driver.cuFuncSetAttribute(self.function(entry), what, byte_count))
        self._shared_bytes[entry] = byte_count


JUNK = 0xA7
"""What freed memory is overwritten with, byte by byte."""


@dataclass(slots=True)
class MemoryPool:
    """Freed memory for the next buffer of the same size: the driver takes long to allocate and longer to free.

    What is freed is overwritten, so that no kernel finds what another was given, or results, in memory next to its own.
    """

    driver: ModuleType
    stream: Any
    free: dict[int, list[int]] = field(default_factory=dict)
    is_closed: bool = False

    def take(self, byte_count: int) -> int:
        """The address of so much memory; gives back what is kept before it fails.

        Raises:
            DriverCallFailed: there is not so much.
        """
        known = self.free.get(byte_count)
        if known:
            return known.pop()
        try:
            return int(call(self.driver.cuMemAlloc(byte_count)))
        except DriverCallFailed as error:
            if error.known.name != "OUT_OF_MEMORY" or not self.free:
                raise
        self.release()
        return int(call(self.driver.cuMemAlloc(byte_count)))

    def give(self, address: int, byte_count: int) -> None:
        """Keep memory that no one uses any more; what is on the stream may still use it."""
        if not self.is_closed:  # modules may give theirs back when the stream is gone
            self.driver.cuMemsetD8Async(address, JUNK, byte_count, self.stream)  # fails only in a broken context
            self.free.setdefault(byte_count, []).append(address)

    def release(self) -> None:
        """Give everything that is kept back to the driver."""
        for addresses in self.free.values():
            for address in addresses:
                self.driver.cuMemFree(address)
        self.free.clear()

    def close(self) -> None:
        """The same, and keep nothing from now on."""
        self.release()
        self.is_closed = True
