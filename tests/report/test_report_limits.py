"""What the page says about a device's limit where that limit moves."""

from __future__ import annotations

import dataclasses

from kernelwright.report.page import render_report
from kernelwright.store.event import RunStarted
from kernelwright.store.view import RunView
from kernelwright.testing.sample_runs import sample_events


def page_on(kind: str) -> str:
    def started(event: RunStarted) -> RunStarted:
        workloads = {name: {**sizes, "bytes": 8 * sizes["n"]} for name, sizes in event.workloads.items()}
        device = {**event.device, "kind": kind, "copy_bytes_per_s": 1e10}
        return dataclasses.replace(event, workloads=workloads, device=device)

    events = sample_events(evaluations=20)
    return render_report(RunView.of([started(each) if isinstance(each, RunStarted) else each for each in events]))


def test_shares_of_a_limit_that_moves_are_not_to_be_compared_between_runs() -> None:
    moves = "moves with what else the host does"
    assert moves in page_on("cpu")
    assert moves not in page_on("gpu")
