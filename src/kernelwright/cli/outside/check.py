"""`check`: measure shipped choices again, and say what holds."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from kernelwright.checking.check import check
from kernelwright.checking.documents import check_record, exit_status, junit_text
from kernelwright.cli.output.progress import open_progress
from kernelwright.cli.output.tables import interval_text, open_console, print_figures
from kernelwright.errors import StopRun
from kernelwright.report.text import clean
from kernelwright.store.files import explain, write_atomically


def run_check(
    folders: list[Path], *, device: str | None, rounds: int, loss: float, junit: Path | None, is_json: bool
) -> int:
    """Measure, write and show; gives the exit status."""
    try:
        with open_progress(is_json=is_json) as view:
            found = check(folders, device=device, rounds=rounds, loss=loss, listener=view)
    except KeyboardInterrupt:
        raise StopRun("interrupted", hint="nothing was recorded") from None
    if junit is not None:
        try:
            write_atomically(junit, junit_text(found).encode())
        except OSError as error:
            raise explain(error, "write", junit) from error
    if is_json:
        typer.echo(json.dumps(check_record(found), indent=2))
        return exit_status(found)
    console = open_console()
    rows = [
        (clean(each.kernel), each.kind, clean(name), interval_text(each.recorded.get(name)), interval_text(now))
        for each in found
        for name, now in each.speedups.items()
    ]
    if rows:
        print_figures(("kernel", "", "workload", "when chosen", "now"), rows, console)
    for each in found:
        told = f"{each.kernel}: {each.kind}: {each.words}"
        console.print(clean(told), highlight=False, markup=False, soft_wrap=True)
    return exit_status(found)
