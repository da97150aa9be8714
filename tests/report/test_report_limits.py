"""What the page says about a device's limit where that limit moves."""

from __future__ import annotations

import dataclasses

from kernelwright.report.page import render_report
from kernelwright.store.event import RunStarted
from kernelwright.store.view import RunView
from kernelwright.testing.sample_runs import sample_events


def page_on(kind: str) -> str:
    events = [
        dataclasses.replace(event, device={**event.device, "kind": kind}) if isinstance(event, RunStarted) else event
        for event in sample_events(evaluations=20)
    ]
    return render_report(RunView.of(events))


def test_shares_of_a_limit_that_moves_are_not_to_be_compared_between_runs() -> None:
    moves = "moves with what else the host does"
    assert moves in page_on("cpu")
    assert moves not in page_on("gpu")
