"""Finding OpenCL devices: everything that asks pyopencl what there is. Only worker processes call this."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from kernelwright import knobs
from kernelwright.backend.base import DeviceInfo
from kernelwright.backend.opencl.cpu.processor import name_processor
from kernelwright.backend.opencl.cpu.processor_facts import processor_facts
from kernelwright.backend.opencl.errors import code_of
from kernelwright.errors import InfrastructureError, MissingDependency
from kernelwright.identity import content_id
from kernelwright.imports import require

ARTIFACT_FORMAT = 1
"""Part of the toolchain id: raised when the files of an artifact change their meaning."""

INSTALL_HINT = "pip install 'kernelwright[opencl]'"

_NO_DRIVER = -1001
_POCL_PLATFORM = "Portable Computing Language"
_SIMULATOR_PLATFORMS = frozenset({"Oclgrind"})
_LOCAL_MEMORY_EMULATED = 0x2  # CL_GLOBAL: local memory is ordinary memory


def load_pyopencl() -> ModuleType:
    """The pyopencl module, with its own cache off and PoCL's cache in a private folder.

    Raises:
        MissingDependency: it is not installed.
    """
    # With its cache on, pyopencl drops kernel argument info and hides build times.
    os.environ["PYOPENCL_NO_CACHE"] = "1"
    os.environ["POCL_CACHE_DIR"] = str(pocl_cache())
    return require("pyopencl", purpose="the OpenCL backend")


@functools.cache
def pocl_cache() -> Path:
    """This process's own folder for PoCL's compiled work-group functions; gone when the process is.

    PoCL loads shared objects from it, so it must not be on a file system that is mounted `noexec`, as /dev/shm
    is in most containers.
    """
    scratch = Path(tempfile.gettempdir())
    if not _is_noexec(scratch):
        folder = Path(tempfile.mkdtemp(prefix="pocl-", dir=scratch))
    else:
        home = knobs.cache_dir() / "pocl"
        home.mkdir(parents=True, exist_ok=True)
        _remove_orphans(home)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=home))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _is_noexec(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 8))


def _remove_orphans(home: Path) -> None:
    """Remove the folders of processes that were killed."""
    for folder in home.iterdir():
        pid = folder.name.partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def why_unavailable() -> str | None:
    """Why no OpenCL device can be used here and what to install, or None."""
    try:
        cl = load_pyopencl()
    except MissingDependency as error:
        return f"{error.message}: {INSTALL_HINT}"
    platforms = _platforms(cl)
    if not platforms:
        return (
            f"pyopencl is installed, but no OpenCL driver is: {INSTALL_HINT} brings PoCL for x86-64 Linux; "
            "elsewhere install the vendor's driver (Debian: pocl-opencl-icd)"
        )
    if not any(platform.get_devices() for platform in platforms):
        names = ", ".join(f"{platform.name} {platform.version}" for platform in platforms)
        return f"OpenCL is installed ({names}), but it offers no device"
    return None


def find_devices() -> tuple[tuple[DeviceInfo, Any], ...]:
    """All devices with the driver's handle, best first: GPUs, then CPUs, then simulators.

    Raises:
        MissingDependency: pyopencl is not installed.
    """
    cl = load_pyopencl()
    found: list[tuple[DeviceInfo, Any]] = []
    taken: dict[str, int] = {}
    for platform in _platforms(cl):
        slug = platform_slug(platform.name, platform.version)
        taken[slug] = taken.get(slug, 0) + 1
        if taken[slug] > 1:
            slug = f"{slug}-{taken[slug]}"
        counts: dict[str, int] = {}
        for handle in platform.get_devices():
            kind: Literal["cpu", "gpu"] = "cpu" if handle.type & cl.device_type.CPU else "gpu"
            index = counts.get(kind, 0)
            counts[kind] = index + 1
            found.append((_describe(cl, platform, handle, kind, f"opencl:{slug}:{kind}{index}"), handle))
    return tuple(sorted(found, key=lambda each: _preference(each[0])))


def find_device(device_id: str) -> tuple[DeviceInfo, Any]:
    """The device of that id, with the driver's handle.

    Raises:
        InfrastructureError: it is not there any more.
    """
    found = find_devices()
    for info, handle in found:
        if info.id == device_id:
            return info, handle
    there = ", ".join(info.id for info, _ in found) or "none"
    raise InfrastructureError(f"the device {device_id!r} is not here any more; OpenCL offers: {there}")


def platform_slug(name: str, version: str) -> str:
    """A short stable name with the driver's version, e.g. `pocl-3.0`.

    `version` starts with `OpenCL X.Y `, which is the standard's version and left out.
    """
    own_version = re.sub(r"^OpenCL \d+\.\d+\s*", "", version)
    number = re.search(r"\d+(?:\.\d+)+", own_version)
    short = "pocl" if name == _POCL_PLATFORM else re.sub(r"[^a-z0-9]+", "-", name.lower().replace("(r)", "")).strip("-")
    return f"{short}-{number.group()}" if number else short


def toolchain_id(device: DeviceInfo) -> str:
    """Everything of compiler and driver that changes an artifact, from the device's description alone."""
    compiler = ("platform", "platform_version", "device_version", "compiler")
    facts = [device.facts.get(name, "") for name in compiler]
    named = [device.facts["compiles_for"]] if "compiles_for" in device.facts else []
    return content_id(ARTIFACT_FORMAT, device.name, device.driver, *facts, *named)


def is_pocl(device: DeviceInfo) -> bool:
    """Whether the device is one of PoCL's CPU devices, which compile at the first launch."""
    return device.facts.get("platform") == _POCL_PLATFORM and device.kind == "cpu"


def _platforms(cl: ModuleType) -> list[Any]:
    try:
        return list(cl.get_platforms())
    except cl.Error as error:
        if code_of(error) == _NO_DRIVER:
            return []
        raise InfrastructureError(f"the OpenCL loader failed: {error}") from error


def _preference(info: DeviceInfo) -> tuple[bool, bool, int]:
    return (
        info.facts["platform"] in _SIMULATOR_PLATFORMS,
        info.kind == "cpu",
        -info.limits.get("multiprocessors", 0),
    )


def _describe(cl: ModuleType, platform: Any, handle: Any, kind: Literal["cpu", "gpu"], device_id: str) -> DeviceInfo:
    facts = {
        "platform": str(platform.name).strip(),
        "platform_version": str(platform.version).strip(),
        "vendor": str(handle.vendor).strip(),
        "device_version": str(handle.version).strip(),
        "compiler": str(handle.opencl_c_version).strip(),
        "max_clock_mhz": str(handle.max_clock_frequency),
        "timer_resolution_ns": str(handle.profiling_timer_resolution),
        "local_memory": "emulated" if handle.local_mem_type == _LOCAL_MEMORY_EMULATED else "dedicated",
        "half_arithmetic": "yes" if "cl_khr_fp16" in handle.extensions else "no",
        "double_arithmetic": "yes" if "cl_khr_fp64" in handle.extensions else "no",
    }
    if facts["platform"] == _POCL_PLATFORM and (name := name_processor(handle.int_ptr)):
        facts["compiles_for"] = name
    if kind == "cpu":
        facts |= processor_facts()
    if facts["platform"] == _POCL_PLATFORM and "PoCL 3.0" in facts["platform_version"]:
        facts["known_fault"] = (
            "on a processor with AVX-512, vectors of 64 bytes (float16, double8) hang or abort this PoCL's compiler "
            "where a built-in function takes or returns them"
        )
    return DeviceInfo(
        backend="opencl",
        id=device_id,
        name=_plain_name(str(handle.name)),
        kind=kind,
        limits=_limits(cl, handle),
        driver=str(handle.driver_version).strip(),
        facts=facts,
    )


def _plain_name(name: str) -> str:
    """Without PoCL's `pthread-` and repeated blanks."""
    return re.sub(r"\s+", " ", name.removeprefix("pthread-")).strip()


def _limits(cl: ModuleType, handle: Any) -> Mapping[str, int]:
    info = cl.device_info
    block = list(handle.max_work_item_sizes)
    limits = {
        "max_threads_per_block": handle.max_work_group_size,
        **{f"max_block_{axis}": extent for axis, extent in zip("xyz", block, strict=False)},
        "shared_memory_per_block": handle.local_mem_size,
        "warp_size": _warp_size(info, handle),
        "multiprocessors": handle.max_compute_units,
        "global_memory": handle.global_mem_size,
        "max_allocation": handle.max_mem_alloc_size,
    }
    cache_bytes = handle.global_mem_cache_size
    if cache_bytes:
        limits["last_level_cache"] = cache_bytes
    registers = _query(handle, getattr(info, "REGISTERS_PER_BLOCK_NV", None))
    if registers:
        limits["registers_per_block"] = registers
    return {name: int(value) for name, value in limits.items()}


def _warp_size(info: Any, handle: Any) -> int:
    """Threads that run in step: the vendor's figure, the preferred multiple, or 1 where no one knows."""
    for query in ("WARP_SIZE_NV", "WAVEFRONT_WIDTH_AMD", "PREFERRED_WORK_GROUP_SIZE_MULTIPLE"):
        size = _query(handle, getattr(info, query, None))
        if size:
            return size
    return 1


def _query(handle: Any, what: Any) -> int | None:
    """An optional property; None where the driver does not know it."""
    if what is None:
        return None
    cl = load_pyopencl()
    try:
        return int(handle.get_info(what))
    except cl.Error:
        return None
