"""Backends that give no device, each in its way, for the probe's tests."""

import os
from collections.abc import Sequence

from kernelwright.backend.base import DeviceInfo
from kernelwright.testing.fault_backend import FaultBackend


class CrashingBackend(FaultBackend):
    """Its driver takes the process down when it is asked for devices."""

    def devices(self) -> Sequence[DeviceInfo]:
        """Never answers."""
        os.abort()


class UnavailableBackend(FaultBackend):
    """Its driver is not installed."""

    def unavailable_because(self) -> str | None:
        """A reason."""
        return "not today"
