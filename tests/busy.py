"""For tests whose promise is another one than what is said of times: a busy machine is no reason to fail them."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import SimpleNamespace as Stub

import pytest

from kernelwright.evaluate.device.timing import suspicious
from kernelwright.evaluate.device_queue import final_comparison
from kernelwright.evaluate.local_runner import LocalRunner


def ignore_busy_machine(runner: object) -> None:
    """A launch that waited for a core has a long wall time, which is taken for work that is hidden from the timer."""
    assert isinstance(runner, LocalRunner)
    for station in runner._stations:
        process = station.lane.process
        process.settings = replace(process.settings, wall_ratio_limit=1e6)


def ignore_busy_machine_in_runs(patch: pytest.MonkeyPatch) -> None:
    """The same for all runs that this process makes."""
    patch.setattr("kernelwright.evaluate.device_queue.queue.suspicious", functools.partial(suspicious, overhead_ms=1e9))


def believe_every_gain(patch: pytest.MonkeyPatch) -> None:
    """What is confirmed in fresh processes has tests of its own; on a busy machine not every gain is."""
    patch.setattr(final_comparison, "Confirmation", lambda *_, **__: Stub(refuse=lambda _: None))
