"""`bench module`: a run's `ModelNew` beside PyTorch on this machine, with intervals."""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from kernelwright.errors import InfrastructureError, Location, ReferenceFailed
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.evaluate.statistics import confidence_for, speedup_interval
from kernelwright.export.run import export_run
from kernelwright.export.subject import ExportedRun
from kernelwright.export.torch.module import model_new
from kernelwright.modules.problem_files import MODULE
from kernelwright_bench.modules.parts import share_lines, share_rows
from kernelwright_bench.modules.worker import FACTORY, MODES, PARTS

TIMEOUT_S = 1800.0
"""All compilers and rounds together."""


def run_module(run: Path, *, rounds: int, is_json: bool) -> None:
    """Export the run's answer, time it and PyTorch in turns in a worker, and print the table.

    Raises:
        UserError: the run is no module's, nothing won, or a file fails; the answer differs from eager PyTorch.
        InfrastructureError: the worker died or took too long.
    """
    exported = ExportedRun.read(run)
    device = "cuda" if exported.template.language == "cuda" else "cpu"
    with tempfile.TemporaryDirectory(prefix="kernelwright-module-") as scratch:
        (answer,) = export_run(run, Path(scratch), formats=["module"])
        plain = Path(scratch) / "plain.py"
        baseline = exported.subject.baseline
        plain.write_bytes(model_new(exported.problem, baseline, exported.view.started, "it is the plain program"))
        module = exported.problem.reference.file.resolve().with_name(MODULE)
        record = compare_answer(module, answer, device=device, rounds=rounds, plain=plain)
    if record["differs"]:
        raise ReferenceFailed(
            f"the answer differs from eager PyTorch: {record['differs']}",
            hint="both are in the inputs' own precision: see which one is right",
            location=Location(module),
        )
    rows, parts = compared(record), share_rows(record["parts_s"])
    if is_json:
        typer.echo(json.dumps({"name": exported.problem.name, "rows": rows, "parts": parts, **record}, indent=2))
        return
    typer.echo(
        f"{exported.problem.name} on {exported.device_name}, PyTorch {record['torch']}, {rounds} rounds in turns"
    )
    for line in (*lines(rows, record["refused"], record["errors"]), *share_lines(parts), *record["notes"]):
        typer.echo(line)


def compare_answer(
    module: Path,
    answer: Path,
    *,
    device: str,
    rounds: int,
    modes: Sequence[str] = tuple(MODES),
    trials: int = 1,
    is_cold: bool = False,
    most_s: float = TIMEOUT_S,
    timeout_s: float = TIMEOUT_S,
    timer: WorkerProcess | None = None,
    parts: Sequence[str] = PARTS,
    plain: Path | None = None,
) -> dict[str, Any]:
    """What the worker says of an answer beside PyTorch; see `worker.make_timer`.

    Args:
        module: the file with `Model`.
        answer: the file with `ModelNew`.
        device: `cuda` or `cpu`.
        rounds: of timing, at most.
        modes: of compiling, from `worker.MODES`.
        trials: inputs that results are compared on.
        is_cold: on a GPU, whether each call is timed alone, by its clock, with a cold cache.
        most_s: for all rounds.
        timeout_s: for everything, compilers included.
        timer: that has run no file yet, or other parts of this judgement; None: one is started for this answer.
        parts: of `worker.PARTS`.
        plain: the file with the plain program's `ModelNew`, which is timed, too.

    Raises:
        ReferenceFailed: a file raises.
        InfrastructureError: the worker died or took too long.
    """
    job = {
        "module": str(module), "answer": str(answer), "device": device, "rounds": rounds, "modes": list(modes),
        "trials": trials, "is_cold": is_cold, "most_s": most_s, "parts": list(parts),
        "plain": None if plain is None else str(plain),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="kernelwright-timer-") as scratch, contextlib.ExitStack() as stack:
        worker = timer or stack.enter_context(
            WorkerProcess(WorkerSettings("module", FACTORY, None), scratch=Path(scratch))
        )
        try:
            record = worker.call(job, timeout_s=timeout_s)
        except (JobTimeout, WorkerDied) as error:
            raise InfrastructureError(f"the comparison ended without a result: {error}") from error
    assert isinstance(record, dict)
    return record


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


def lines(
    rows: Mapping[str, Mapping[str, float]], refused: Mapping[str, str], errors: Mapping[str, float]
) -> list[str]:
    """The table as text."""
    found = []
    for name, row in rows.items():
        text = f"{name:13} {row['median_ms']:9.4g} ms"
        if "first_call_s" in row:
            text += f", first call {row['first_call_s']:.1f} s"
        if "low" in row:
            text += f": the answer is {row['answer_speedup']:.3g}x [{row['low']:.3g}, {row['high']:.3g}] as fast"
        found.append(text)
    if errors:
        found.append(f"error beside float64: answer {errors['answer']:.2g}, eager {errors['eager']:.2g}")
    return [*found, *(f"{name:13} not measured: {why}" for name, why in refused.items())]
