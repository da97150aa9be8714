"""Triton kernels where there is no GPU: read back from a build for one, run by the interpreter, and never timed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from kernelwright.backend.base import Artifact, Backend, BuildUnit, DeviceInfo, DeviceSession, LaunchPlan
from kernelwright.backend.cuda.backend import CudaBackend
from kernelwright.backend.cuda.occupancy import MAX_REGISTERS_PER_THREAD, MULTIPROCESSORS, WARP_SIZE
from kernelwright.errors import MissingDependency
from kernelwright.source.language import Language

INTERPRETER = "interpreter"
TARGET = 90
"""The compute capability that kernels are compiled for, to be read back: Hopper's, as of H100 and H200."""
_MULTIPROCESSORS = 132
"""Of an H100 or H200 as a module."""


def interpreter_device() -> DeviceInfo:
    """The interpreter, with the limits of the device that kernels are compiled for.

    Raises:
        MissingDependency: Triton or PyTorch is not installed.
    """
    missing = [name for name in ("triton", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"Triton's interpreter needs {' and '.join(missing)}, not installed here",
            hint="pip install 'kernelwright[triton]'; PyTorch's CPU build will do",
        )
    shape = MULTIPROCESSORS[TARGET]
    return DeviceInfo(
        backend=f"{__name__}:{InterpreterBackend.__name__}",
        id=INTERPRETER,
        name=f"Triton's interpreter (compiled for compute capability {TARGET / 10:g})",
        kind="simulated",
        limits={
            "compute_capability": TARGET,
            "max_threads_per_block": 1024,
            "shared_memory_per_block": shape.shared_bytes_per_block,
            "shared_memory_per_multiprocessor": shape.shared_bytes,
            "max_threads_per_multiprocessor": shape.max_warps * WARP_SIZE,
            "registers_per_thread": MAX_REGISTERS_PER_THREAD,
            "warp_size": WARP_SIZE,
            "multiprocessors": _MULTIPROCESSORS,
        },
        facts={"triton": importlib.metadata.version("triton")},
    )


class InterpreterBackend(Backend):
    """Compiles as for CUDA, and launches in Python."""

    name: ClassVar[str] = INTERPRETER
    languages: ClassVar[tuple[Language, ...]] = ("triton",)
    runs_python: ClassVar[bool] = True

    def unavailable_because(self) -> str | None:
        """What is not installed."""
        try:
            interpreter_device()
        except MissingDependency as error:
            return str(error)
        return None

    def devices(self) -> Sequence[DeviceInfo]:
        """The one."""
        return (interpreter_device(),)

    def toolchain_id(self, device: DeviceInfo) -> str:
        """As for CUDA."""
        return CudaBackend().toolchain_id(device)

    def compile(self, unit: BuildUnit, device: DeviceInfo, folder: Path) -> Artifact:
        """For a GPU, whose limits count."""
        return CudaBackend().compile(unit, device, folder)

    def with_launch_figures(self, artifact: Artifact, plans: Sequence[LaunchPlan], device: DeviceInfo) -> Artifact:
        """As for CUDA."""
        return CudaBackend().with_launch_figures(artifact, plans, device)

    def open(self, device: DeviceInfo) -> DeviceSession:
        """The interpreter in this process."""
        from kernelwright.backend.interpreter.session import InterpreterSession

        return InterpreterSession()
