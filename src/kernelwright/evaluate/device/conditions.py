"""Readings of a device between samples, and what they say together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

from kernelwright.backend.base import DeviceReading
from kernelwright.problem.outcome import Conditions

READING_INTERVAL_S = 0.02
"""Between two readings at least: one takes some hundred microseconds."""


class Readings:
    """Collects readings while samples are taken; nothing where the device does not tell."""

    def __init__(
        self, read: Callable[[], DeviceReading | None], *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._read = read
        self._now = now
        self._readings: list[DeviceReading] = []
        self._next_s = 0.0

    def take(self) -> None:
        """Read, unless the last reading was just now. Between launches, not beside one."""
        if self._now() < self._next_s:
            return
        reading = self._read()
        if reading is not None:
            self._readings.append(reading)
        self._next_s = self._now() + (READING_INTERVAL_S if reading is not None else float("inf"))

    @property
    def conditions(self) -> Conditions | None:
        """All readings together."""
        return summarise(self._readings)


def summarise(readings: Sequence[DeviceReading]) -> Conditions | None:
    """The least clocks, the highest temperature, the usual power and every slowdown; None without a reading."""
    if not readings:
        return None
    clocks = _known(each.clock_mhz for each in readings)
    memory_clocks = _known(each.memory_clock_mhz for each in readings)
    temperatures = _known(each.temperature_c for each in readings)
    powers = _known(each.power_w for each in readings)
    reasons = dict.fromkeys(reason for each in readings for reason in each.throttled_by)
    return Conditions(
        reading_count=len(readings),
        clock_mhz_min=min(clocks, default=None),
        clock_mhz_median=statistics.median(clocks) if clocks else None,
        memory_clock_mhz_min=min(memory_clocks, default=None),
        temperature_c_max=max(temperatures, default=None),
        power_w_median=statistics.median(powers) if powers else None,
        throttled_by=tuple(reasons),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
