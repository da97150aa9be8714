"""What a launch leaves where the next one could read it without being given it, overwritten.

```
shared memory    all of each multiprocessor's, by blocks that take the whole
local memory     arrays and spilled registers of a thread: all that a launch's threads could have had
```
Both keep what they hold from one kernel to the next. A device that refuses such a launch keeps what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from kernelwright.backend.base import DeviceInfo, LaunchFailed, PlanStep
from kernelwright.backend.cuda.errors import DriverCallFailed
from kernelwright.backend.cuda.handles import CudaModule
from kernelwright.backend.cuda.launch import Binder, BoundStep
from kernelwright.backend.cuda.session_kernels.ptx import FORGET_ENTRY, FORGET_LOCAL_ENTRY, FORGET_PTX, forget_local_ptx

LOCAL_STEP_BYTES = 256
"""What a thread has is rounded up to this, so that few kernels are made."""
_LOCAL_THREADS = 256


class Leftovers:
    """Overwrites what launches leave behind, on one stream."""

    def __init__(self, driver: ModuleType, binder: Binder, device: DeviceInfo) -> None:
        self._driver = driver
        self._binder = binder
        self._device = device
        self._steps: dict[int, BoundStep | None] = {}
        """By a thread's bytes of local memory; 0: shared memory; None: the device refuses it."""
        self._local_bytes = 0
        """The most that threads of a launch had since it was overwritten."""

    def before_launch(self, module: CudaModule, entry: str) -> None:
        """Note that a kernel is about to run.

        Raises:
            DriverCallFailed: the module has no such kernel.
        """
        self._local_bytes = max(self._local_bytes, module.local_bytes(entry))

    def forget_shared(self) -> None:
        """Fill all shared memory of every multiprocessor with NaN (as floats).

        One block takes all that a multiprocessor has, so each gets one of the first round.
        """
        self._launch(0, self._shared_step)

    def forget_local(self) -> None:
        """The same for the local memory of every thread that a device can hold, if a launch has had any."""
        size = -(-self._local_bytes // LOCAL_STEP_BYTES) * LOCAL_STEP_BYTES
        if size:
            self._launch(size, lambda: self._local_step(size))
        self._local_bytes = 0

    def close(self) -> None:
        """Unload the kernels."""
        self._steps.clear()

    def _launch(self, key: int, make: Callable[[], BoundStep]) -> None:
        try:
            if key not in self._steps:
                self._steps[key] = make()
            step = self._steps[key]
            if step is not None:
                step.launch()
        except (DriverCallFailed, LaunchFailed):
            self._steps[key] = None

    def _shared_step(self) -> BoundStep:
        byte_count = self._device.limits.get("shared_memory_per_block", 48 * 1024)
        module = CudaModule(self._driver, FORGET_PTX.encode() + b"\0", {})
        module.allow_shared(FORGET_ENTRY, byte_count)
        blocks = 2 * self._device.limits.get("multiprocessors", 64)
        step = PlanStep(FORGET_ENTRY, (blocks, 1, 1), (1024, 1, 1), byte_count, ())
        return self._binder.bind_values(module, step, [(byte_count // 4).to_bytes(8, "little")])

    def _local_step(self, size: int) -> BoundStep:
        module = CudaModule(self._driver, forget_local_ptx(size).encode() + b"\0", {})
        limits = self._device.limits
        threads = limits.get("multiprocessors", 64) * limits.get("max_threads_per_multiprocessor", 2048)
        step = PlanStep(FORGET_LOCAL_ENTRY, (threads // _LOCAL_THREADS, 1, 1), (_LOCAL_THREADS, 1, 1), 0, ())
        return self._binder.bind_values(module, step, [])
