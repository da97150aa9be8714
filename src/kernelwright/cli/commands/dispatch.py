"""`dispatch`: measure a run's configs on shapes that were not tuned, and show which config serves which sizes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import typer
from rich.console import Console

from kernelwright.cli.output.progress import open_progress
from kernelwright.cli.output.tables import open_console, print_figures
from kernelwright.dispatching.measure import probe_dispatch
from kernelwright.dispatching.probes import parse_range
from kernelwright.dispatching.rule import chosen_in
from kernelwright.dispatching.table import ONE_CONFIG, DispatchTable, mean_and_worst
from kernelwright.errors import KernelwrightError, StopRun, UsageError
from kernelwright.export.run import export_run
from kernelwright.export.summary import dispatch_record


def parse_loss(text: str) -> float:
    """`2%` or `0.02` as a fraction.

    Raises:
        UsageError: it is neither.
    """
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise UsageError(f"the loss {text!r} is no share", hint="say 2% or 0.02")
    return value


def run_dispatch(
    run: Path, *, probe: int, loss: str, ranges: tuple[str, ...], rounds: int | None, is_json: bool
) -> None:
    """Measure, export again, and show the table."""
    share = parse_loss(loss)
    wanted = dict(parse_range(text) for text in ranges)
    try:
        with open_progress(is_json=is_json) as view:
            table = probe_dispatch(run, count=probe, loss=share, ranges=wanted or None, rounds=rounds, listener=view)
    except KeyboardInterrupt:
        raise StopRun("interrupted", hint="nothing was recorded; the run is as it was") from None
    written, failure = _write_files(run)
    if is_json:
        typer.echo(json.dumps({**dispatch_record(table), "files": [str(path) for path in written]}, indent=2))
    else:
        console = open_console()
        print_table(table, console)
        for path in written:
            console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    if failure is not None:  # what was measured is in the run, and has been shown
        raise failure


def _write_files(run: Path) -> tuple[list[Path], KernelwrightError | None]:
    try:
        return export_run(run, run / "export"), None
    except KernelwrightError as error:
        return [], error


def print_table(table: DispatchTable, console: Console) -> None:
    """Shapes with what was chosen, then the configs, the rule, and what it loses."""
    rows = []
    for shape in table.shapes:
        place = chosen_in(table.rule, shape.case)
        label = "the baseline" if place is None else table.label(place)
        lost = "" if place is None or table.is_alone else f"{100 * shape.losses[place]:.1f} %"
        name = shape.name if not shape.is_tuned else f"{shape.name} (tuned)"
        rows.append((name, f"{shape.baseline_ms:.4g}", f"{shape.best_ms:.4g}", label, lost))
    print_figures(("shape", "baseline ms", "best ms", "choice", "loses"), rows, console)
    for place, config in enumerate(table.configs):
        if config is not None:
            values = "  ".join(f"{name}={value}" for name, value in config.items())
            console.print(f"{table.label(place)}: {values}", highlight=False, markup=False, soft_wrap=True)
    console.print()
    for line in table.rule_lines():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print()
    if table.is_alone:
        console.print(ONE_CONFIG, highlight=False, markup=False)
    for what, losses in (
        ("shapes that were not tuned", table.losses(tuned=False)),
        ("held out", table.held_out_losses),
    ):
        found = mean_and_worst(losses)
        if found is not None:
            text = f"{what}: loses {100 * found[0]:.1f} % in the mean, {100 * found[1]:.1f} % at worst"
            console.print(text, highlight=False, markup=False)
