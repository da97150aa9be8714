"""`bench attacks`: attacks on the evaluator, and honest kernels, on the device at hand."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from kernelwright.errors import UsageError
from kernelwright_bench.attacks.corpus import CorpusPlan, CorpusResult, find_device, run_corpus
from kernelwright_bench.attacks.table import document, markdown


@dataclass(frozen=True, slots=True)
class AttackWords:
    """What `bench attacks` was called with."""

    device: str | None
    plan: CorpusPlan
    out: Path | None
    is_json: bool


def run_attacks(words: AttackWords) -> int:
    """Judge the corpus: tables on standard output, everything in a file; the exit status.

    Raises:
        UsageError: a family or a device that there is not, or no folder for the file.
        MissingDependency: nothing here runs kernels.
    """
    if words.out is not None and not words.out.absolute().parent.is_dir():
        raise UsageError(f"--out {str(words.out)!r}: there is no folder {str(words.out.parent)!r}")
    device, dialect = find_device(words.device)
    console = Console(stderr=True)
    start_s = time.perf_counter()

    def tell(text: str) -> None:
        console.print(f"[{time.perf_counter() - start_s:.0f} s] {text}", highlight=False, markup=False, soft_wrap=True)

    def keep(result: CorpusResult) -> None:
        if words.out is not None:
            words.out.write_text(_text(result) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="kernelwright-attacks-") as scratch:
        result = run_corpus(words.plan, device, dialect, Path(scratch), tell=tell, keep=keep)
    keep(result)
    typer.echo(_text(result) if words.is_json else markdown(result))
    return 1 if result.wrong else 0


def _text(result: CorpusResult) -> str:
    return json.dumps(document(result), indent=1)
