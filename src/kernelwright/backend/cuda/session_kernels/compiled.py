"""The session's kernels that are written in CUDA C: compiled for the device once, then loaded from disk.

```
CACHE/cuda-helpers/ID.cubin     ID: of the source and the compilers; written beside and renamed, so it is whole
```
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from kernelwright import knobs
from kernelwright.backend.base import BuildFailed, BuildUnit, DeviceInfo
from kernelwright.backend.cuda.compile.build import compile_unit
from kernelwright.backend.cuda.driver import toolchain_id
from kernelwright.backend.cuda.errors import DriverCallFailed
from kernelwright.backend.cuda.handles import CudaModule
from kernelwright.errors import InfrastructureError, MissingDependency
from kernelwright.identity import content_id

OPTIONS = ("--fmad=false", "--maxrregcount=32")
"""Results are those of the host, bit for bit; and a multiprocessor holds as many threads as it can."""


def load_compiled(driver: ModuleType, source: str, entries: Sequence[str], device: DeviceInfo) -> CudaModule | None:
    """A module with these kernels; None where no compiler is, or none whose machine code the driver takes."""
    for is_new in (False, True):
        with contextlib.suppress(MissingDependency, BuildFailed, InfrastructureError, DriverCallFailed):
            return CudaModule(driver, helper_cubin(source, entries, device, is_new=is_new), {})
    return None


def helper_cubin(source: str, entries: Sequence[str], device: DeviceInfo, *, is_new: bool = False) -> bytes:
    """Machine code for the device, from disk unless it `is_new`.

    Raises:
        MissingDependency: there is no compiler.
        BuildFailed: the compiler refuses the source.
        InfrastructureError: the compiler fails, or it is not known what the device takes.
    """
    unit = BuildUnit("cuda", source, "helpers.cu", (), OPTIONS, tuple(entries))
    path = knobs.cache_dir() / "cuda-helpers" / f"{content_id(unit.id, toolchain_id(device))}.cubin"
    if not is_new:
        with contextlib.suppress(OSError):
            return path.read_bytes()
    cubin = compile_unit(unit, device).cubin
    with contextlib.suppress(OSError):  # a disk that is full or read-only costs time in the next process, no more
        _write(path, cubin)
    return cubin


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
