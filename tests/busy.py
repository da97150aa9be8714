"""For tests whose promise is another one than what is said of times: a busy machine is no reason to fail them."""

from __future__ import annotations

from dataclasses import replace

from kernelwright.evaluate.local_runner import LocalRunner


def ignore_busy_machine(runner: object) -> None:
    """A launch that waited for a core has a long wall time, which is taken for work that is hidden from the timer."""
    assert isinstance(runner, LocalRunner)
    for station in runner._stations:
        process = station.lane.process
        process.settings = replace(process.settings, wall_ratio_limit=1e6)
