"""Whether a candidate computes what another one does: not near the reference only, but the very same."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.evaluate.base import Reproduction
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device_queue.queue import DeviceLane
from kernelwright.problem.outcome import Failed


def reproduced(lane: DeviceLane, original: Sequence[Job], candidate: Sequence[Job]) -> Reproduction | Failed:
    """Launch both on every workload and dataset; the referee compares what they wrote, one pair at a time.

    Gives the failure of the first launch that is wrong by itself.
    """
    launch_count, same_count, worst, difference = 0, 0, 0.0, ""
    for first, second in zip(original, candidate, strict=True):
        workload = first.workload
        for dataset, verdict in lane.held_against(first, second):
            if isinstance(verdict, Failed):
                return verdict
            if verdict.is_same is None:  # the referee's process was a new one in between
                continue
            launch_count, same_count = launch_count + 1, same_count + verdict.is_same
            far = verdict.difference
            if far is None or far.tolerance_fraction <= worst:
                continue
            worst = far.tolerance_fraction
            if worst > 1:
                difference = (
                    f"{far.output!r} on workload {workload!r} ({dataset.name} inputs) is {far.max_abs:.3g} away from "
                    f"the original's, {worst:.3g} times what is allowed"
                )
    return Reproduction(launch_count, same_count, worst, difference)
