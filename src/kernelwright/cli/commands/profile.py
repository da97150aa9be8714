"""`profile`: what limits a candidate of a run, with hardware counters where they may be read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from kernelwright.backend.cuda.measure.nsight_compute import COUNTERS
from kernelwright.cli.commands.show import find_candidate
from kernelwright.cli.output.tables import open_console
from kernelwright.errors import UsageError
from kernelwright.problem.outcome import Passed
from kernelwright.roofline.profile import profile_lines, profile_of
from kernelwright.store.view import RunView
from kernelwright.tuning.counters import of_longest, read_counters


def run_profile(run: Path, wanted: str, *, is_json: bool, reads_counters: bool) -> int:
    """Print the profile; 0.

    Raises:
        UsageError: there is no such candidate, or it was not measured.
    """
    view = RunView.read(run)
    event = find_candidate(view, wanted)
    if not isinstance(event.outcome, Passed):
        raise UsageError(
            f"candidate {event.candidate_id} failed at {event.outcome.stage}, so there is nothing to profile",
            hint=f"`kernelwright show candidate {shlex.quote(str(run))} {wanted}` has its log",
        )
    counters, missing = read_counters(run, event) if reads_counters else ({}, "not asked for")
    profiles = profile_of(view.started, event.outcome, of_longest(counters))
    if is_json:
        workloads = [{**each.as_data(), "kernels": _kernels(counters.get(each.workload, ()))} for each in profiles]
        units = {counter.name: counter.unit for counter in COUNTERS}
        data = {"candidate_id": event.candidate_id, "workloads": workloads, "units": units, "missing": missing or None}
        typer.echo(json.dumps(data, indent=2))
        return 0
    console = open_console()

    def line(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    line(f"candidate {event.candidate_id}: " + "  ".join(f"{name}={value}" for name, value in event.config.items()))
    for profile in profiles:
        for text in profile_lines(profile):
            line(text)
        for kernel, values in counters.get(profile.workload, ()):
            line(f"{profile.workload}: counters of {kernel}")
            for text in _counter_lines(values):
                line(f"  {text}")
    if missing:
        line(f"no hardware counters: {missing}")
    return 0


def _counter_lines(values: Mapping[str, float]) -> list[str]:
    return [
        f"{counter.name:<18}{values[counter.name]:>16,.6g} {'' if counter.unit == '1' else counter.unit:<7}"
        f"{counter.meaning}"
        for counter in COUNTERS
        if counter.name in values
    ]


def _kernels(counted: Sequence[tuple[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    return [{"kernel": kernel, "counters": dict(values)} for kernel, values in counted]
