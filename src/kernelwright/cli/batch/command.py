"""`optimize` with several problems, and what continues, shows and reports on a batch."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from kernelwright.batch.profile import read_profile
from kernelwright.batch.run import BatchListener, optimize_batch, resume_batch
from kernelwright.batch.view import BatchView, MemberView
from kernelwright.cli.batch.progress import HEADINGS, member_row, open_batch_progress
from kernelwright.cli.batch.words import batch_problems
from kernelwright.cli.commands.infer import KernelWords
from kernelwright.cli.commands.optimize import OptimizeWords, refuse_idle_caps, write_run_files
from kernelwright.cli.output.tables import interval_data, interval_text, open_console, print_figures
from kernelwright.cli.words import is_quiet
from kernelwright.errors import KernelwrightError
from kernelwright.insights.forecast import duration_text


def run_batch(words: OptimizeWords, several: Sequence[KernelWords], profile: Path | None) -> int:
    """Optimise several problems and show what came of it; exit status 1 where one failed, 130 when interrupted."""
    settings = words.settings()
    refuse_idle_caps(words, [settings.model])
    times = read_profile(profile) if profile is not None else None
    problems, failed = batch_problems(several, is_silent=words.is_json or is_quiet())

    def tell(text: str) -> None:
        if not (words.is_json or is_quiet()):
            typer.echo(f"note: {text}", err=True)

    def work(view: BatchListener) -> BatchView:
        return optimize_batch(
            problems,
            failed=failed,
            settings=settings,
            times=times,
            profile=str(profile.absolute()) if profile is not None else "",
            run=words.run,
            listener=view,
            tell=tell,
        )

    return _watched(work, is_json=words.is_json, writes_report=words.writes_report)


def run_resume_batch(folder: Path, *, is_json: bool) -> int:
    """Go on with a batch and show it; exit status as for `run_batch`."""
    return _watched(lambda view: resume_batch(folder, listener=view), is_json=is_json, writes_report=True)


def _watched(work: Callable[[BatchListener], BatchView], *, is_json: bool, writes_report: bool) -> int:
    with open_batch_progress(is_json=is_json) as progress:
        view = work(progress)
    written = _write_files(view) if writes_report else []
    print_batch(view, is_json=is_json, written=written)
    if view.is_interrupted:
        return 130
    return 1 if any(each.status == "failed" for each in view.members) else 0


def _write_files(view: BatchView) -> list[Path]:
    """Every run's report and exports, and the page over all; runs of which nothing can be written are left out."""
    from kernelwright.report.html.batch import write_batch_report

    for each in view.members:
        if each.result is not None:
            with contextlib.suppress(KernelwrightError):
                write_run_files(each.result)
    return [write_batch_report(view, view.folder / "report.html")]


def print_batch(view: BatchView, *, is_json: bool, written: Sequence[Path] = ()) -> None:
    """The table, what failed and why, and what it comes to."""
    if is_json:
        typer.echo(json.dumps({**batch_data(view), "files": [str(path) for path in written]}, indent=2))
        return
    console = open_console()
    print_figures(HEADINGS, [member_row(each) for each in view.members], console)
    lines = [f"{each.name} failed: {each.failure}" for each in view.members if each.failure]
    budget = f"{duration_text(view.spent_s)} of {duration_text(view.batch.budget_s)} used"
    lines += [f"{budget}; {total_words(view)}", *(f"wrote {path}" for path in written), f"batch folder: {view.folder}"]
    if view.is_interrupted:
        lines.append(f"interrupted; continue with: kernelwright resume {shlex.quote(str(view.folder))}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def total_words(view: BatchView) -> str:
    """What all claims come to."""
    of = "the profiled time" if view.batch.profile else "all problems, counted alike"
    if view.speedup is None:
        return "no problem has a gain that can be claimed"
    return f"over {of}: {interval_text(view.speedup)}, by the runs' claims"


def batch_data(view: BatchView) -> dict[str, Any]:
    """What a script would read of a batch."""
    return {
        "batch": str(view.folder),
        "budget_s": view.batch.budget_s,
        "spent_s": view.spent_s,
        "profile": view.batch.profile or None,
        "speedup": interval_data(view.speedup),
        "problems": [_member_data(each) for each in view.members],
    }


def _member_data(member: MemberView) -> dict[str, Any]:
    return {
        "problem": member.name,
        "from": member.member.problem,
        "run": str(member.folder) if member.result is not None else None,
        "share": member.share,
        "state": member.status,
        "slices": len(member.slices),
        "spent_s": member.spent_s,
        "speedup": interval_data(member.speedup),
        "still_expected_fraction": member.still,
        "failure": member.failure or None,
    }
