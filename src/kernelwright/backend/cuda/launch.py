"""One launch laid out for the driver: parameters, shape, clusters, cooperation, and constants that are filled first."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kernelwright.backend.base import (
    BoundBuffer,
    BufferArgument,
    LaunchFailed,
    LocalArgument,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.cuda.errors import DriverCallFailed, call, launch_error
from kernelwright.backend.cuda.handles import CudaModule, MemoryPool

PORTABLE_CLUSTER = 8
"""Blocks of a cluster that every device with clusters takes; more must be allowed by the function."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundStep:
    """One launch with its arguments laid out for the driver."""

    start: Callable[[], tuple[Any, ...]]
    step: PlanStep
    fills: tuple[Callable[[], None], ...]
    """What fills its constants."""
    kept: tuple[object, ...]
    """What must live as long: the module, and the memory that the driver reads arguments from."""

    def prepare(self) -> None:
        """Fill the constants.

        Raises:
            DriverCallFailed: the device failed.
        """
        for fill in self.fills:
            fill()

    def launch(self) -> None:
        """Put it on the stream; constants must have been filled.

        Raises:
            LaunchFailed: the driver refuses it.
            InfrastructureError: the context is lost.
        """
        result = self.start()
        if result[0]:
            try:
                call(result)
            except DriverCallFailed as error:
                raise launch_error(error, launch_words(self.step)) from error

    def prepare_and_launch(self) -> None:
        """Both."""
        self.prepare()
        self.launch()


class Binder:
    """Lays launches out for one stream."""

    def __init__(self, driver: ModuleType, stream: Any, memory: MemoryPool) -> None:
        self._driver = driver
        self._stream = stream
        self._memory = memory

    def bind(self, module: CudaModule, step: PlanStep, buffers: Mapping[str, BoundBuffer]) -> BoundStep:
        """A candidate's launch.

        Raises:
            LaunchFailed: the kernel has other parameters, the device has not the memory, or there is no such variable.
        """
        values = [_value_of(argument, step, buffers) for argument in step.arguments]
        known = module.triton.get(step.entry)
        try:
            if known is not None:
                values, step = known.values(step, values), known.step(step)
                values += [self._scratch(module, each) for each in known.scratch_bytes(step)]
            self._check_parameters(module.function(step.entry), step, values)
            module.allow_shared(step.entry, step.shared_bytes)
            if step.cluster is not None and math.prod(step.cluster) > PORTABLE_CLUSTER:
                module.allow_large_clusters(step.entry)
        except DriverCallFailed as error:
            raise launch_error(
                error, f"preparing {step.entry!r} with {step.shared_bytes:,} bytes of dynamic shared memory"
            ) from error
        return self.bind_values(module, step, values, self._fills(module, step, buffers))

    def bind_values(
        self,
        module: CudaModule,
        step: PlanStep,
        values: Sequence[bytes],
        fills: Sequence[Callable[[], None]] = (),
    ) -> BoundStep:
        """A launch with these parameters, which are not looked at."""
        memory = [ctypes.create_string_buffer(value, max(len(value), 1)) for value in values]
        parameters = (ctypes.c_void_p * max(len(memory), 1))(*(ctypes.addressof(each) for each in memory))
        function, address = module.function(step.entry), ctypes.addressof(parameters)
        driver, stream = self._driver, self._stream
        kept: tuple[object, ...] = (module, memory, parameters)
        if step.cluster is None and not step.is_cooperative:
            shape = (*step.grid, *step.block, step.shared_bytes)

            def start() -> tuple[Any, ...]:
                return driver.cuLaunchKernel(function, *shape, stream, address, 0)  # type: ignore[no-any-return]
        else:
            config = self._config(step)
            kept = (*kept, config)

            def start() -> tuple[Any, ...]:
                return driver.cuLaunchKernelEx(config, function, address, 0)  # type: ignore[no-any-return]

        return BoundStep(start, step, tuple(fills), kept)

    def _scratch(self, module: CudaModule, byte_count: int) -> bytes:
        """A pointer to memory that lives as long as the module; null for none.

        Raises:
            DriverCallFailed: the device has not so much.
        """
        address = self._memory.take(byte_count) if byte_count else 0
        if address:
            weakref.finalize(module, self._memory.give, address, byte_count).atexit = False
        return address.to_bytes(8, "little")

    def _config(self, step: PlanStep) -> Any:
        driver = self._driver
        kinds, attributes = driver.CUlaunchAttributeID, []
        if step.cluster is not None:
            cluster = driver.CUlaunchAttribute()
            cluster.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            extents = cluster.value.clusterDim
            extents.x, extents.y, extents.z = step.cluster
            attributes.append(cluster)
        if step.is_cooperative:
            cooperative = driver.CUlaunchAttribute()
            cooperative.id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            cooperative.value.cooperative = 1
            attributes.append(cooperative)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = step.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = step.block
        config.sharedMemBytes, config.hStream = step.shared_bytes, self._stream
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def _fills(
        self, module: CudaModule, step: PlanStep, buffers: Mapping[str, BoundBuffer]
    ) -> list[Callable[[], None]]:
        fills = []
        for variable, constant in step.constants:
            try:
                target, size = module.variable(variable)
            except DriverCallFailed:
                raise LaunchFailed(
                    "invalid-arguments",
                    f"the module of {step.entry!r} has no variable {variable!r} to fill from "
                    f"{constant.name!r}: is it a __constant__ at global scope, and used?",
                ) from None
            if constant.byte_count > size:
                raise LaunchFailed(
                    "invalid-arguments",
                    f"{constant.name!r} has {constant.byte_count:,} bytes, but {variable!r} of "
                    f"{step.entry!r} holds {size:,}",
                )
            bound = buffers[constant.name]
            fills.append(self._fill(target, bound.buffer.address + bound.offset_bytes, constant.byte_count))
        return fills

    def _fill(self, target: int, source: int, byte_count: int) -> Callable[[], None]:
        def fill() -> None:
            if byte_count:
                call(self._driver.cuMemcpyDtoDAsync(target, source, byte_count, self._stream))

        return fill

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


def _value_of(argument: object, step: PlanStep, buffers: Mapping[str, BoundBuffer]) -> bytes:
    match argument:
        case BufferArgument(name=name):
            bound = buffers[name]
            address: int = bound.buffer.address + bound.offset_bytes
            return address.to_bytes(8, "little")
        case ScalarArgument(data=data):
            return data
        case LocalArgument(name=name):
            raise LaunchFailed(
                "invalid-arguments",
                f"{name!r} of {step.entry!r} is local memory as an argument, which CUDA does not have: use "
                "shared_bytes",
            )
    raise TypeError(f"not a launch's argument: {type(argument).__name__}")


def launch_words(step: PlanStep) -> str:
    """A launch in words, for messages."""
    parts = [f"grid {step.grid}", f"block {step.block}"]
    parts += [f"cluster {step.cluster}"] if step.cluster is not None else []
    shared = f" and {step.shared_bytes:,} bytes of dynamic shared memory" if step.shared_bytes else ""
    kind = "cooperatively " if step.is_cooperative else ""
    return f"launching {step.entry!r} {kind}with {', '.join(parts[:-1])} and {parts[-1]}{shared}"
