"""Clocks, temperature, power and throttling of a device, from NVML. Read only: nothing is ever set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from kernelwright.backend.base import DeviceInfo, DeviceReading
from kernelwright.errors import MissingDependency
from kernelwright.imports import require

SLOWDOWNS: Mapping[int, str] = MappingProxyType(
    {
        0x004: "power cap",
        0x008: "hardware slowdown",
        0x010: "synchronised boost",
        0x020: "temperature (software)",
        0x040: "temperature (hardware)",
        0x080: "power brake",
        0x200: "board limit",
        0x400: "reliability voltage",
    }
)
"""Bits of NVML's clock event reasons that make a device slower than it could be. Idle (1), clocks that an
administrator set (2) and those of a display (0x100) are left out: they are how the device was found."""

_SM, _MEMORY = 1, 2
"""`NVML_CLOCK_SM`, `NVML_CLOCK_MEM`."""


def read_power(nvml: Any, handle: Any) -> DeviceReading:
    """What the device says now; None for what it does not tell.

    A reading takes some hundred microseconds, so it goes between launches, not into them.
    """

    def ask(question: Callable[[], Any]) -> float | None:
        try:
            return float(question())
        except nvml.NVMLError:
            return None

    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    bits = ask(lambda: reasons(handle))
    milliwatts = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return DeviceReading(
        clock_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, _SM)),
        memory_clock_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, _MEMORY)),
        temperature_c=ask(lambda: nvml.nvmlDeviceGetTemperature(handle, 0)),
        power_w=None if milliwatts is None else milliwatts / 1e3,
        throttled_by=slowdowns(int(bits or 0)),
    )


def slowdowns(bits: int) -> tuple[str, ...]:
    """The slowdowns in a set of clock event reasons, in words."""
    return tuple(word for bit, word in SLOWDOWNS.items() if bits & bit)


def open_meter(device: DeviceInfo) -> tuple[Callable[[], DeviceReading] | None, str]:
    """What reads `device`, or None and why there is nothing."""
    try:
        nvml = require("pynvml", purpose="clocks and temperatures")
    except MissingDependency:
        return None, "nvidia-ml-py is not installed: pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
        read = functools.partial(read_power, nvml, _handle(nvml, device))
        return read, f"NVML of driver {_text(nvml.nvmlSystemGetDriverVersion())}"
    except nvml.NVMLError as error:
        return None, f"NVML does not answer: {error}"


def _handle(nvml: Any, device: DeviceInfo) -> Any:
    """By UUID, because CUDA's numbers are not NVML's."""
    uuid = device.facts.get("uuid", "")
    if len(uuid) != 32:
        return nvml.nvmlDeviceGetHandleByIndex(0)
    parts = (uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{'-'.join(parts)}")


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
