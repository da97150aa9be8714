"""NVIDIA devices: CUDA C++ through NVRTC or nvcc, and Triton, to cubin, launched through the driver API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from kernelwright.backend.base import Artifact, Backend, BuildFailed, BuildUnit, DeviceInfo, LaunchPlan, StateVariable
from kernelwright.backend.cuda.compile.build import compile_unit, read_resources
from kernelwright.backend.cuda.compile.triton_build import compile_triton
from kernelwright.backend.cuda.cubin_state import CubinUnreadable, read_cubin
from kernelwright.backend.cuda.driver import find_devices, toolchain_id, why_unavailable
from kernelwright.backend.cuda.measure.cupti import load_cupti
from kernelwright.backend.cuda.measure.nsight_compute import find_ncu, why_no_counters
from kernelwright.backend.cuda.measure.power import open_meter
from kernelwright.backend.cuda.occupancy import (
    blocks_per_multiprocessor,
    max_threads_per_block,
    multiprocessor_of,
    occupancy,
)
from kernelwright.backend.cuda.session import CUBIN_NAME, LAUNCHES_NAME, NAMES_NAME, CudaSession
from kernelwright.identity import content_id
from kernelwright.source.language import Language


def _measuring_facts(device: DeviceInfo) -> dict[str, str]:
    """Which timer, which meter and which counters there are; a reason that begins with `no:` where there is none."""
    cupti, where = load_cupti()
    meter, note = open_meter(device)
    return {
        "cupti": where if cupti is not None else f"no: {where}",
        "nvml": note if meter is not None else f"no: {note}",
        "ncu": f"no: {why}" if (why := why_no_counters()) else str(find_ncu()),
    }


def _state(cubin: bytes) -> tuple[StateVariable, ...] | None:
    try:
        return read_cubin(cubin).kept()
    except CubinUnreadable:
        return None


def _add_thread_limit(figures: dict[str, float], device: DeviceInfo) -> None:
    """The largest block that has registers enough, where both are known."""
    multiprocessor = multiprocessor_of(device)
    if multiprocessor is not None and "registers_per_thread" in figures:
        limit = max_threads_per_block(multiprocessor, registers_per_thread=int(figures["registers_per_thread"]))
        figures["max_threads_per_block"] = float(limit)


class CudaBackend(Backend):
    """Compiles CUDA C++ and Triton for any device, launches them on NVIDIA's."""

    name: ClassVar[str] = "cuda"
    languages: ClassVar[tuple[Language, ...]] = ("cuda", "triton")

    def unavailable_because(self) -> str | None:
        """Tells missing packages, driver, device and compiler apart."""
        return why_unavailable()

    def devices(self) -> Sequence[DeviceInfo]:
        """All devices in the driver's order, with what can be measured of each among their facts."""
        return tuple(replace(each, facts={**each.facts, **_measuring_facts(each)}) for each in find_devices())

    def toolchain_id(self, device: DeviceInfo) -> str:
        """From the device's description alone, so that the parent can ask."""
        return toolchain_id(device)

    def compile(self, unit: BuildUnit, device: DeviceInfo, folder: Path) -> Artifact:
        """Build a cubin for the device's `compute_capability`; no device or driver is needed."""
        if unit.language == "triton":
            return self._compile_triton(unit, device, folder)
        compiled = compile_unit(unit, device)
        (folder / CUBIN_NAME).write_bytes(compiled.cubin)
        (folder / NAMES_NAME).write_text(json.dumps(dict(compiled.names)), encoding="utf-8")
        resources = read_resources(compiled.log, compiled.names)
        for figures in resources.values():
            _add_thread_limit(figures, device)
        binary_id = content_id(compiled.cubin, sorted(compiled.names.values()))
        return Artifact(unit, device.id, folder, resources, compiled.log, binary_id, _state(compiled.cubin))

    def _compile_triton(self, unit: BuildUnit, device: DeviceInfo, folder: Path) -> Artifact:
        """Beside the cubin lies how it is launched."""
        built = compile_triton(unit, device)
        (entry,) = unit.entries
        launches = {entry: built.launch.written()}
        (folder / CUBIN_NAME).write_bytes(built.cubin)
        (folder / NAMES_NAME).write_text(json.dumps({entry: built.launch.name}), encoding="utf-8")
        (folder / LAUNCHES_NAME).write_text(json.dumps(launches), encoding="utf-8")
        figures = dict(built.figures)
        _add_thread_limit(figures, device)
        if built.launch.threads > figures.get("max_threads_per_block", built.launch.threads):
            raise BuildFailed(
                f"{entry!r} has {built.launch.threads} threads in a block; with its "
                f"{figures['registers_per_thread']:.0f} registers {figures['max_threads_per_block']:.0f} can run",
                built.log,
                limit="too-many-threads",
            )
        binary_id = content_id(built.cubin, launches)
        return Artifact(unit, device.id, folder, {entry: figures}, built.log, binary_id, _state(built.cubin))

    def with_launch_figures(self, artifact: Artifact, plans: Sequence[LaunchPlan], device: DeviceInfo) -> Artifact:
        """Adds `blocks_per_multiprocessor` and the theoretical `occupancy`, the lowest over the plans, by entry."""
        multiprocessor = multiprocessor_of(device)
        if multiprocessor is None:
            return artifact
        resources = {entry: dict(figures) for entry, figures in artifact.resources.items()}
        for step in dict.fromkeys(step for plan in plans for step in plan):
            figures = resources.get(step.entry)
            if not figures or "registers_per_thread" not in figures:
                continue
            x, y, z = step.block
            blocks = blocks_per_multiprocessor(
                multiprocessor,
                threads=x * y * z,
                registers_per_thread=int(figures["registers_per_thread"]),
                shared_bytes=int(figures["local_memory_bytes"]) + step.shared_bytes,
            )
            share = occupancy(multiprocessor, threads=x * y * z, blocks=blocks)
            if share <= figures.get("occupancy", share):
                figures["occupancy"], figures["blocks_per_multiprocessor"] = share, float(blocks)
        return replace(artifact, resources=resources)

    def sets_state_back(self, device: DeviceInfo) -> bool:
        """By name, through the driver."""
        return True

    def open(self, device: DeviceInfo) -> CudaSession:
        """Open the device in this process."""
        return CudaSession(device)
