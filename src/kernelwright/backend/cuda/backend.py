"""NVIDIA devices: CUDA C++ through NVRTC or nvcc, and Triton, to cubin, launched through the driver API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from kernelwright.backend.base import (
    Artifact,
    Backend,
    BinaryUnreadable,
    BuildFailed,
    BuildUnit,
    DeviceInfo,
    LaunchPlan,
    StateVariable,
)
from kernelwright.backend.cuda.compile.build import compile_unit, read_resources
from kernelwright.backend.cuda.compile.triton_build import compile_triton
from kernelwright.backend.cuda.cubin_state import read_cubin
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
    except BinaryUnreadable:
        return None


def _add_thread_limit(figures: dict[str, float], device: DeviceInfo) -> None:
    """The largest block that has registers enough, where both are known."""
    multiprocessor = multiprocessor_of(device)
    if multiprocessor is not None and "registers_per_thread" in figures:
        limit = max_threads_per_block(multiprocessor, registers_per_thread=int(figures["registers_per_thread"]))
        figures["max_threads_per_block"] = float(limit)


def _check_threads(entry: str, threads: int, figures: Mapping[str, float], log: str) -> None:
    """Refuse more threads than have registers: Triton may add warps of its own to those that are asked for.

    Raises:
        BuildFailed: there are more.
    """
    if threads > figures.get("max_threads_per_block", threads):
        raise BuildFailed(
            f"{entry!r} has {threads} threads in a block; with its {figures['registers_per_thread']:.0f} registers "
            f"{figures['max_threads_per_block']:.0f} can run",
            log,
            limit="too-many-threads",
        )


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
        """A cubin for each kernel, and beside them how they are launched."""
        resources: dict[str, dict[str, float]] = {}
        launches: dict[str, dict[str, Any]] = {}
        images: list[bytes] = []
        state: list[tuple[StateVariable, ...] | None] = []
        for entry, built in compile_triton(unit, device).items():
            name = CUBIN_NAME if not images else f"{len(images)}-{CUBIN_NAME}"
            (folder / name).write_bytes(built.cubin)
            resources[entry] = dict(built.figures)
            _add_thread_limit(resources[entry], device)
            _check_threads(entry, built.launch.threads, resources[entry], built.log)
            launches[entry] = {"file": name, "launch": built.launch.written()}
            images.append(built.cubin)
            state.append(_state(built.cubin))
        names = {entry: each["launch"]["name"] for entry, each in launches.items()}
        (folder / NAMES_NAME).write_text(json.dumps(names), encoding="utf-8")
        (folder / LAUNCHES_NAME).write_text(json.dumps(launches), encoding="utf-8")
        known = [each for each in state if each is not None]
        kept = tuple(each for found in known for each in found) if len(known) == len(state) else None
        return Artifact(unit, device.id, folder, resources, "", content_id(images, launches), kept)

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
