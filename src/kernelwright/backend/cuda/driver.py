"""Finding CUDA's parts and devices: everything that asks the driver what there is. Only worker processes call this."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelwright.backend.base import DeviceInfo
from kernelwright.backend.cuda.errors import DriverCallFailed, call
from kernelwright.backend.cuda.occupancy import MAX_REGISTERS_PER_THREAD
from kernelwright.errors import InfrastructureError, MissingDependency
from kernelwright.identity import content_id
from kernelwright.imports import require

ARTIFACT_FORMAT = 1
"""Part of the toolchain id: raised when the files of an artifact change their meaning."""

INSTALL_HINT = "pip install 'kernelwright[cuda]'"

_ATTRIBUTES: Mapping[str, str] = {
    "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
    "max_block_x": "MAX_BLOCK_DIM_X",
    "max_block_y": "MAX_BLOCK_DIM_Y",
    "max_block_z": "MAX_BLOCK_DIM_Z",
    "max_grid_x": "MAX_GRID_DIM_X",
    "max_grid_y": "MAX_GRID_DIM_Y",
    "max_grid_z": "MAX_GRID_DIM_Z",
    "shared_memory_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "warp_size": "WARP_SIZE",
    "multiprocessors": "MULTIPROCESSOR_COUNT",
    "last_level_cache": "L2_CACHE_SIZE",
    "registers_per_block": "MAX_REGISTERS_PER_BLOCK",
    "max_threads_per_multiprocessor": "MAX_THREADS_PER_MULTIPROCESSOR",
    "max_blocks_per_multiprocessor": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "registers_per_multiprocessor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "shared_memory_per_multiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "reserved_shared_memory_per_block": "RESERVED_SHARED_MEMORY_PER_BLOCK",
}
_FACT_ATTRIBUTES: Mapping[str, str] = {
    "clock_khz": "CLOCK_RATE",
    "memory_clock_khz": "MEMORY_CLOCK_RATE",
    "memory_bus_bits": "GLOBAL_MEMORY_BUS_WIDTH",
    "ecc": "ECC_ENABLED",
    "compute_mode": "COMPUTE_MODE",
}


def load_driver() -> ModuleType:
    """The driver API's bindings, which load `libcuda` at the first call.

    Raises:
        MissingDependency: the package is not installed.
    """
    return require("cuda.bindings.driver", purpose="the CUDA backend")


def load_nvrtc() -> ModuleType | None:
    """NVRTC's bindings when the library itself can be loaded, else None."""
    try:
        nvrtc = require("cuda.bindings.nvrtc", purpose="the CUDA backend")
        call(nvrtc.nvrtcVersion())
    except (MissingDependency, RuntimeError, DriverCallFailed):  # the bindings find and load it at the first call
        return None
    return nvrtc


def nvrtc_version() -> tuple[int, int] | None:
    """Major and minor of the NVRTC that would be used."""
    nvrtc = load_nvrtc()
    if nvrtc is None:
        return None
    major, minor = call(nvrtc.nvrtcVersion())
    return int(major), int(minor)


def toolkit_roots() -> Iterator[Path]:
    """Folders that may hold `include` and `bin` of a toolkit: wheels, `CUDA_HOME`, then the usual place."""
    spec = importlib.util.find_spec("nvidia")
    for parent in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(parent).glob("cu[0-9]*"), reverse=True)
        yield from (Path(parent) / name for name in ("cuda_runtime", "cuda_nvcc"))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name])
    yield Path("/usr/local/cuda")


def header_folders() -> tuple[Path, ...]:
    """Include folders with the device headers, the parts that they include, and CUDA's C++ library, where they are.

    Wheels of CUDA 12 put these into a folder each, toolkits and wheels of CUDA 13 into one.
    """
    candidates = [folder for root in toolkit_roots() for folder in (root / "include", root / "include" / "cccl")]
    found = []
    for header in ("cuda_fp16.h", "crt/host_defines.h", "cuda/std/version"):
        found += [folder for folder in candidates if (folder / header).is_file()][:1]
    return tuple(dict.fromkeys(found))


def header_version() -> str:
    """`CUDA_VERSION` in the headers, e.g. `13050`; empty when there are none."""
    for folder in header_folders():
        try:
            text = (folder / "cuda.h").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found = re.search(r"^#define\s+CUDA_VERSION\s+(\d+)", text, re.MULTILINE)
        if found:
            return found[1]
    return ""


def find_nvcc() -> Path | None:
    """The compiler driver: of the first toolkit that has it, else on the PATH."""
    for root in toolkit_roots():
        if os.access(root / "bin" / "nvcc", os.X_OK):
            return root / "bin" / "nvcc"
    found = shutil.which("nvcc")
    return Path(found) if found else None


def triton_version() -> str:
    """E.g. `3.6.0`; empty when it is not installed. It is not imported."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


def nvcc_version() -> str:
    """E.g. `13.5.37`; empty when there is no nvcc or it does not answer."""
    nvcc = find_nvcc()
    if nvcc is None:
        return ""
    try:
        answer = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\bV(\d+(?:\.\d+)+)", answer.stdout)
    return found[1] if found else ""


def why_unavailable() -> str | None:
    """Why no CUDA device can be used here and what to install, or None."""
    try:
        driver = load_driver()
    except MissingDependency as error:
        return f"{error.message}: {INSTALL_HINT}"
    try:
        call(driver.cuInit(0))
        count = call(driver.cuDeviceGetCount())
        driver_major = call(driver.cuDriverGetVersion()) // 1000
    except RuntimeError:  # the bindings' own way to say that there is no libcuda
        return (
            "cuda-bindings is installed, but no NVIDIA driver is (libcuda.so.1), so kernels can be compiled here and "
            "not run: install the driver from https://www.nvidia.com/drivers"
        )
    except DriverCallFailed as error:
        known = error.known
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        shown = "" if hidden is None else f"; CUDA_VISIBLE_DEVICES is {hidden!r}"
        return f"the NVIDIA driver does not start: {known.name} ({known.meaning or 'no further word'}){shown}"
    if not count:
        return "the NVIDIA driver is installed, but it shows no device; CUDA_VISIBLE_DEVICES may hide them"
    version = nvrtc_version()
    if version is None and find_nvcc() is None:
        return f"there is a device, but no compiler for it (neither NVRTC nor nvcc): {INSTALL_HINT}"
    if version is not None and version[0] > driver_major and find_nvcc() is None:
        return (
            f"NVRTC {version[0]}.{version[1]} is newer than the driver, which runs CUDA {driver_major}: update the "
            f"driver, or pip install 'cuda-bindings=={driver_major}.*' and an NVRTC of that version"
        )
    return None


def find_devices() -> tuple[DeviceInfo, ...]:
    """All devices in the driver's order, which is fastest first.

    Raises:
        MissingDependency: the bindings are not installed.
        InfrastructureError: the driver failed.
    """
    driver = load_driver()
    try:
        call(driver.cuInit(0))
        facts = _common_facts(driver)
        return tuple(_describe(driver, index, facts) for index in range(call(driver.cuDeviceGetCount())))
    except (DriverCallFailed, RuntimeError) as error:
        raise InfrastructureError(f"the CUDA driver failed while it was asked for devices: {error}") from error


def ordinal_of(device_id: str) -> int:
    """The driver's number of a device id such as `cuda:0`."""
    number = device_id.rpartition(":")[2]
    if not number.isdigit():
        raise InfrastructureError(f"{device_id!r} is no CUDA device; their ids are cuda:0, cuda:1, ...")
    return int(number)


def toolchain_id(device: DeviceInfo) -> str:
    """Everything of the compilers that changes an artifact, from the device's description alone.

    The driver is no part of it: a cubin is machine code.
    """
    facts = [device.facts.get(name, "") for name in ("nvrtc", "nvcc", "headers", "triton")]
    return content_id(ARTIFACT_FORMAT, device.limits.get("compute_capability", 0), *facts)


def toolchain_facts() -> dict[str, str]:
    """Versions of the compilers and headers that are here; absent ones are left out."""
    nvrtc = nvrtc_version()
    facts = {
        "nvrtc": f"{nvrtc[0]}.{nvrtc[1]}" if nvrtc else "",
        "nvcc": nvcc_version(),
        "headers": header_version(),
        "triton": triton_version(),
    }
    return {name: value for name, value in facts.items() if value}


def _common_facts(driver: ModuleType) -> dict[str, str]:
    version = call(driver.cuDriverGetVersion())
    return {**toolchain_facts(), "cuda": f"{version // 1000}.{version % 1000 // 10}"}


def _describe(driver: ModuleType, index: int, common: Mapping[str, str]) -> DeviceInfo:
    handle = call(driver.cuDeviceGet(index))
    limits = {name: value for name, what in _ATTRIBUTES.items() if (value := _attribute(driver, handle, what)) > 0}
    major = _attribute(driver, handle, "COMPUTE_CAPABILITY_MAJOR")
    minor = _attribute(driver, handle, "COMPUTE_CAPABILITY_MINOR")
    limits["compute_capability"] = 10 * major + minor
    limits["registers_per_thread"] = MAX_REGISTERS_PER_THREAD
    limits["global_memory"] = int(call(driver.cuDeviceTotalMem(handle)))
    facts = {name: str(_attribute(driver, handle, what)) for name, what in _FACT_ATTRIBUTES.items()}
    name = bytes(call(driver.cuDeviceGetName(256, handle))).split(b"\0")[0].decode(errors="replace")
    kernel_driver = _kernel_driver()
    return DeviceInfo(
        backend="cuda",
        id=f"cuda:{index}",
        name=name.strip(),
        kind="gpu",
        limits=limits,
        driver=f"{kernel_driver}, CUDA {common['cuda']}" if kernel_driver else f"CUDA {common['cuda']}",
        facts={**common, **facts, "uuid": bytes(call(driver.cuDeviceGetUuid(handle)).bytes).hex()},
    )


def _attribute(driver: ModuleType, handle: Any, name: str) -> int:
    """An attribute of a device; -1 where this driver or these bindings do not know it."""
    what = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
    if what is None:
        return -1
    try:
        return int(call(driver.cuDeviceGetAttribute(what, handle)))
    except DriverCallFailed:
        return -1


def _kernel_driver() -> str:
    """E.g. `580.159.04`; empty where the kernel module does not show itself."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else ""
