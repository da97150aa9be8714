"""A backend without a device whose compiler does what the source says, for the tests of the build pool.

The source's first word is the fault: `ok`, `refuse`, `crash`, `hang`, `crash-once`, `unexpected`. The macros may hold
`SPECIALISE` with `ok`, `hang`, `crash`, `refuse` or `write`, which writes over the file `TARGET` as a kernel's own code
might, and `COUNT`, a file that gets one byte for each compilation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from kernelwright.backend.base import (
    Artifact,
    Backend,
    BuildFailed,
    BuildUnit,
    DeviceInfo,
    DeviceSession,
    LaunchPlan,
)
from kernelwright.errors import InfrastructureError
from kernelwright.source.language import Language

FAULT_BACKEND = f"{__name__}:FaultBackend"

FAULT_DEVICE = DeviceInfo(
    backend=FAULT_BACKEND,
    id="fault:0",
    name="no device",
    kind="simulated",
    limits={"max_threads_per_block": 1024, "max_block_z": 64, "max_grid_y": 65535, "shared_memory_per_block": 49152},
)


class FaultBackend(Backend):
    """Compiles nothing, in many ways."""

    name: ClassVar[str] = "fault"
    languages: ClassVar[tuple[Language, ...]] = ("opencl",)

    def unavailable_because(self) -> str | None:
        """Always there."""
        return None

    def devices(self) -> Sequence[DeviceInfo]:
        """The one device."""
        return (FAULT_DEVICE,)

    def toolchain_id(self, device: DeviceInfo) -> str:
        """Fixed."""
        return "fault-1"

    def compile(self, unit: BuildUnit, device: DeviceInfo, folder: Path) -> Artifact:
        """Do what the source's first word says."""
        macros = dict(unit.macros)
        count = Path(macros["COUNT"]) if "COUNT" in macros else folder / "count"
        with count.open("ab") as file:
            file.write(b"x")
        fault = unit.source.split()[0]
        if fault == "crash" or (fault == "crash-once" and count.stat().st_size == 1):
            os.write(2, b"compiler: internal error\n")
            os.abort()
        if fault == "hang":
            time.sleep(600)
        if fault == "refuse":
            raise BuildFailed("k.cl:1:1: refused", "the whole log")
        if fault == "unexpected":
            raise ZeroDivisionError("a fault of the backend itself")
        if fault == "machine":
            raise InfrastructureError("the disk is gone")
        (folder / "program.bin").write_bytes(unit.source.encode())
        figures = {"max_threads_per_block": 256.0, "local_memory_bytes": float(macros.get("LOCAL", "0"))}
        return Artifact(unit, device.id, folder, dict.fromkeys(unit.entries, figures), "compiled")

    def specialise(self, artifact: Artifact, plans: Sequence[LaunchPlan], device: DeviceInfo, folder: Path) -> None:
        """Do what the macro `SPECIALISE` says."""
        match dict(artifact.unit.macros).get("SPECIALISE", "ok"):
            case "hang":
                time.sleep(600)
            case "crash":
                os.abort()
            case "refuse":
                raise BuildFailed("no such shape")
            case "write":
                Path(dict(artifact.unit.macros)["TARGET"]).write_text("poison")
        (folder / "specialised").write_text("yes")

    def open(self, device: DeviceInfo) -> DeviceSession:
        """There is nothing to open."""
        raise InfrastructureError("the fault backend has no device")
