"""`bench module`: a run's `ModelNew` beside PyTorch on this machine, with intervals."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.evaluate.statistics import confidence_for, speedup_interval
from kernelwright.export.run import export_run
from kernelwright.export.subject import ExportedRun
from kernelwright.modules.problem_files import MODULE
from kernelwright_bench.modules.worker import FACTORY

TIMEOUT_S = 1800.0
"""All compilers and rounds together."""


def run_module(run: Path, *, rounds: int, is_json: bool) -> None:
    """Export the run's answer, time it and PyTorch in turns in a worker, and print the table.

    Raises:
        UserError: the run is no module's, nothing won, or a file fails; the answer differs from eager PyTorch.
        InfrastructureError: the worker died or took too long.
    """
    exported = ExportedRun.read(run)
    with tempfile.TemporaryDirectory(prefix="kernelwright-module-") as scratch:
        (answer,) = export_run(run, Path(scratch), formats=["module"])
        job = {
            "module": str(exported.problem.reference.file.resolve().with_name(MODULE)),
            "answer": str(answer),
            "rounds": rounds,
            "device": "cuda" if exported.template.language == "cuda" else "cpu",
        }
        with WorkerProcess(WorkerSettings("module", FACTORY, None), scratch=Path(scratch)) as worker:
            try:
                record = worker.call(job, timeout_s=TIMEOUT_S)
            except (JobTimeout, WorkerDied) as error:
                raise InfrastructureError(f"the comparison ended without a result: {error}") from error
    assert isinstance(record, dict)
    rows = compared(record)
    if is_json:
        typer.echo(json.dumps({"name": exported.problem.name, "rows": rows, **record}, indent=2))
        return
    typer.echo(
        f"{exported.problem.name} on {exported.device_name}, PyTorch {record['torch']}, {rounds} rounds in turns"
    )
    for line in lines(rows, record["refused"]):
        typer.echo(line)


def compared(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """By what was timed: the median in ms, the first call in s, and how many times as fast the answer is.

    The intervals hold together with 95 % confidence.
    """
    samples = record["samples_s"]
    others = [name for name in samples if name != "answer"]
    confidence = confidence_for(len(others))
    rows = {}
    for name in ("answer", *others):
        rows[name] = {"median_ms": 1e3 * statistics.median(samples[name])}
        if name in record["compile_s"]:
            rows[name]["first_call_s"] = record["compile_s"][name]
        if name != "answer":
            found = speedup_interval(samples[name], samples["answer"], confidence=confidence)
            rows[name] |= {"answer_speedup": found.estimate, "low": found.low, "high": found.high}
    return rows


def lines(rows: Mapping[str, Mapping[str, float]], refused: Mapping[str, str]) -> list[str]:
    """The table as text."""
    found = []
    for name, row in rows.items():
        text = f"{name:13} {row['median_ms']:9.4g} ms"
        if "first_call_s" in row:
            text += f", first call {row['first_call_s']:.1f} s"
        if "low" in row:
            text += f": the answer is {row['answer_speedup']:.3g}x [{row['low']:.3g}, {row['high']:.3g}] as fast"
        found.append(text)
    return [*found, *(f"{name:13} not measured: {why}" for name, why in refused.items())]
