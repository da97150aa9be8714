"""The variables of loaded modules, given their first values before launches that are judged or timed."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kernelwright.backend.base import LaunchFailed
from kernelwright.backend.cuda.cubin_state import EMPTY_BYTES, CubinState, readable_name
from kernelwright.backend.cuda.errors import DriverCallFailed, call
from kernelwright.backend.cuda.handles import CudaModule, MemoryPool

KEEPS_STATE = "keeps-state"

_ALIGNMENT = 256
_OF_THE_COMPILER = ("$", "_ZT")
"""What begins so are strings of `printf` and tables of virtual functions; the driver need not know them by name."""


@dataclass(frozen=True, slots=True)
class _Piece:
    address: int
    byte_count: int
    copy: int
    """Where its first value is kept."""


class ModuleMemory:
    """Keeps first values, and puts them back into modules that were launched since."""

    def __init__(self, driver: ModuleType, stream: Any, memory: MemoryPool) -> None:
        self._driver = driver
        self._stream = stream
        self._memory = memory
        self._pieces: weakref.WeakKeyDictionary[CudaModule, tuple[_Piece, ...]] = weakref.WeakKeyDictionary()
        self._launched: weakref.WeakSet[CudaModule] = weakref.WeakSet()

    def before_launch(self, module: CudaModule) -> None:
        """Note that `module` is about to run; its first values are kept before its first launch.

        Raises:
            LaunchFailed: the driver does not say where one of its variables is.
            DriverCallFailed: there is no memory to keep them in.
        """
        if module.state is None or not module.state.variables:
            return
        if module not in self._pieces:
            self._pieces[module] = self._keep(module, module.state)
        self._launched.add(module)

    def forget(self) -> None:
        """Put first values back, in the stream's order.

        Raises:
            DriverCallFailed: the context is broken.
        """
        for module in list(self._launched):
            for each in self._pieces[module]:
                call(self._driver.cuMemcpyDtoDAsync(each.address, each.copy, each.byte_count, self._stream))
        self._launched.clear()

    def _keep(self, module: CudaModule, state: CubinState) -> tuple[_Piece, ...]:
        found = []
        for variable in state.variables:
            try:
                found.append(module.variable(variable.name))
            except DriverCallFailed as error:
                if variable.name.startswith(_OF_THE_COMPILER) or variable.byte_count == EMPTY_BYTES:
                    continue
                raise LaunchFailed(
                    KEEPS_STATE,
                    f"the variable {readable_name(variable.name)!r} cannot be given its first value before each "
                    f"launch: the driver does not say where it is ({error.name}); make it `__constant__`, or pass it "
                    "as an argument",
                ) from error
        steps = [-(-byte_count // _ALIGNMENT) * _ALIGNMENT for _, byte_count in found]
        total = sum(steps)
        if not total:
            return ()
        start = self._memory.take(total)
        weakref.finalize(module, self._memory.give, start, total).atexit = False
        pieces = []
        for (address, byte_count), step in zip(found, steps, strict=True):
            pieces.append(_Piece(address, byte_count, start))
            call(self._driver.cuMemcpyDtoDAsync(start, address, byte_count, self._stream))
            start += step
        return tuple(pieces)
