"""`bench operators`: the operator suite on the GPU of this machine."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from kernelwright.errors import UsageError
from kernelwright.version import VERSION
from kernelwright_bench.operators.run import OperatorSettings, SuiteResult, run_suite
from kernelwright_bench.operators.suite import choose_operators, find_suite
from kernelwright_bench.operators.table import document, markdown


@dataclass(frozen=True, slots=True)
class OperatorWords:
    """What `bench operators` was called with."""

    only: tuple[str, ...]
    seconds: float
    shape_seconds: float
    rounds: int
    folder: Path | None
    file: Path | None
    runs: Path | None
    has_torch: bool
    device: str | None


def run_operators(words: OperatorWords) -> int:
    """Measure the suite: a table on standard output, everything in a file; the exit status.

    Raises:
        UsageError: an unknown operator, or no folder with the operators' problems.
        MissingDependency: no NVIDIA device can be used here; says why.
    """
    operators = choose_operators(words.only)
    suite = find_suite(words.folder)
    if words.file is not None and not words.file.absolute().parent.is_dir():
        raise UsageError(f"--json {str(words.file)!r}: there is no folder {str(words.file.parent)!r}")
    console = Console(stderr=True)
    start_s = time.perf_counter()

    def tell(text: str) -> None:
        console.print(f"[{time.perf_counter() - start_s:.0f} s] {text}", highlight=False, markup=False)

    def write(result: SuiteResult) -> None:
        """After each operator, so that what is done survives what comes."""
        if words.file is not None:
            record = {"environment": _environment(time.perf_counter() - start_s), **document(result)}
            words.file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="kernelwright-operators-") as scratch:
        settings = OperatorSettings(
            seconds=words.seconds,
            shape_seconds=words.shape_seconds,
            rounds=words.rounds,
            has_torch=words.has_torch,
            runs=words.runs or Path(scratch),
            device=words.device,
        )
        result = run_suite(operators, suite, settings, tell=tell, on_result=write)
    typer.echo(markdown(result))
    return 0


def _environment(elapsed_s: float) -> dict[str, object]:
    return {
        "kernelwright": VERSION,
        "python": platform.python_version(),
        "command": " ".join(["kernelwright", *sys.argv[1:]]),
        "elapsed_s": elapsed_s,
    }
