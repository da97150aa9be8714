"""`show`: runs, one run, one structure of it, one candidate."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from kernelwright.cli.commands.optimize import print_optimize_run
from kernelwright.cli.output.tables import (
    interval_data,
    interval_text,
    open_console,
    partial_data,
    print_result,
    summary,
)
from kernelwright.errors import KernelwrightError, StoreError, UsageError
from kernelwright.evaluate.words import factor_text
from kernelwright.insights.difference import change_count
from kernelwright.insights.run_summary import NodeFacts, Story, cost_words, facts_record, finding_words
from kernelwright.insights.step_table import told_row
from kernelwright.insights.verdict_words import tree_verdict_text, tried_count, verdict_text
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.outcome import Conditions, Failed, Passed
from kernelwright.report.text import clean as plain
from kernelwright.results.optimize_result import OptimizeResult, is_optimize_run, tuned_run
from kernelwright.results.tune_result import TuneResult
from kernelwright.results.verdict import Kind
from kernelwright.results.workload_gains import PartialGain, gain_on_some
from kernelwright.roofline.profile import profile_lines, profile_of
from kernelwright.store.event import BaselineMeasured, Evaluated
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.runs import list_runs
from kernelwright.store.view import RunView
from kernelwright.tuning.tune import TuningProblem


def print_runs(folder: Path, *, is_json: bool) -> None:
    """All runs in a folder, oldest first."""
    if folder.is_file():
        raise UsageError(f"{folder} is a file; a folder of runs was expected", hint="say `kernelwright show runs runs`")
    if not folder.exists() and folder != Path("runs"):  # without a word, no run was made here yet
        raise UsageError(f"there is no folder {folder}", hint="say where the runs are")
    runs = list_runs(folder)
    shown = [_shown_run(each.folder, each.evaluation_count) for each in runs]
    if is_json:
        documents = [
            {**dataclasses.asdict(each), **dataclasses.asdict(told)} for each, told in zip(runs, shown, strict=True)
        ]
        typer.echo(json.dumps(documents, indent=2, default=str))
        return
    if not runs:
        typer.echo(f"no runs in {folder}")
        return
    rows = [
        (each.name, told.mark, each.state, str(told.evaluation_count), each.problem_name, each.device_name)
        for each, told in zip(runs, shown, strict=True)
    ]
    width = open_console().width
    table, devices = _numbered_devices(rows, width=width)
    for text in (*run_lines(table[1:], width=width, headings=table[0]), *devices):
        typer.echo(text)


@dataclasses.dataclass(frozen=True, slots=True)
class _ShownRun:
    """What a list of runs says of one."""

    claim: str
    """`gain`, `some workloads`, `too few rounds`, `no gain`; `none`: nothing was compared, so nothing is claimed."""
    speedup: dict[str, float] | None
    """Over all workloads; only where it is claimed."""
    evaluation_count: int
    """The evaluations of all structures."""

    @property
    def mark(self) -> str:
        """The claimed figure, or a plain word."""
        if self.speedup is not None:
            return factor_text(self.speedup["estimate"])
        return {"none": "-", "some workloads": "on some", "too few rounds": "no claim"}.get(self.claim, self.claim)


def _shown_run(folder: Path, evaluation_count: int) -> _ShownRun:
    """Figures are shown where the run claims them, and nowhere else."""
    try:
        view = RunView.read(folder)
    except StoreError:  # the list says so
        return _ShownRun("none", None, evaluation_count)
    result = TuneResult(view)
    count = tried_count(OptimizeResult(view)) if is_optimize_run(view) else evaluation_count
    speedup, kind = interval_data(result.speedup) if result.is_gain else None, result.verdict.kind
    if kind is Kind.NOTHING and result.reason in (None, "interrupted"):  # nothing yet
        return _ShownRun("none", None, count)
    return _ShownRun(_CLAIMS.get(kind, "no gain"), speedup, count)


_CLAIMS = {
    Kind.GAIN: "gain",
    Kind.SOME: "some workloads",
    Kind.TOO_FEW: "too few rounds",
    Kind.NO_TIME: "none",
    Kind.PROVISIONAL: "none",
}
"""The others kept the baseline."""


def _numbered_devices(rows: Sequence[tuple[str, ...]], *, width: int) -> tuple[list[tuple[str, ...]], list[str]]:
    """Where the names of devices do not fit beside the rest: numbers in their place, and lines that say whose."""
    widths = [max(map(len, column)) for column in zip(_RUN_HEADINGS, *rows, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        return [_RUN_HEADINGS, *rows], []
    numbers = {name: place for place, name in enumerate(dict.fromkeys(row[-1] for row in rows if row[-1]), 1)}
    if len(numbers) == 1:
        return [(*row[:-1], "") for row in (_RUN_HEADINGS, *rows)], [f"device: {name}" for name in numbers]
    numbered = [(*row[:-1], str(numbers.get(row[-1], ""))) for row in rows]
    return [(*_RUN_HEADINGS[:-1], "on"), *numbered], [f"on {number}: {name}" for name, number in numbers.items()]


_RUN_HEADINGS = ("run", "claimed", "state", "evaluated", "problem", "device")
_LEAST_WIDTH = 8
"""A column is cut down to this; one with less room is left out."""


def run_lines(rows: Sequence[tuple[str, ...]], *, width: int, headings: tuple[str, ...] = _RUN_HEADINGS) -> list[str]:
    """The rows as lines of a table. A run's name, which is copied from here, is never cut: later columns go first."""
    table = [headings, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    kept: list[int] = []
    used = 0
    for column, wanted in enumerate(widths):
        room = width - used
        if column and room < min(wanted, _LEAST_WIDTH):
            break
        kept.append(wanted if column == 0 else min(wanted, room))
        used += kept[-1] + 2
    return ["  ".join(_fitted(text, size) for text, size in zip(row, kept, strict=False)).rstrip() for row in table]


def _fitted(text: str, width: int) -> str:
    return (text if len(text) <= width else text[: width - 1] + "…").ljust(width)


def print_run(run: Path, *, is_json: bool) -> None:
    """One run's result, and where its time went."""
    result = TuneResult(RunView.read(run))
    if is_optimize_run(result.view):
        print_optimize_run(OptimizeResult(result.view), is_json=is_json)
        return
    if is_json:
        typer.echo(json.dumps(summary(result), indent=2))
        return
    console = open_console()
    print_result(result, console)
    costs = [event.cost for event in result.view.evaluations]
    phases = {
        "build": sum(cost.build_s for cost in costs),
        "check": sum(cost.check_s for cost in costs),
        "time": sum(cost.time_s for cost in costs),
        "framework": sum(cost.framework_s for cost in costs),
        "strategy": sum(cost.strategy_s for cost in costs),
    }
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items())
    console.print(f"time of all evaluations: {spent}; {result.view.spent_s:.1f} s of budget", highlight=False)
    for note in result.view.notes:
        console.print(f"{note.level}: {note.text}", highlight=False, markup=False)


def _what_was_fed(run: Path) -> str:
    """Which kinds of numbers the checks fed; what they did not feed, nothing is known of."""
    try:
        problem = load_problem(RunFolder.open(run, writable=False).problem_file)
    except KernelwrightError:  # an older run's files need not load here; the rest can be shown
        return ""
    asking = [argument.name for argument in problem.inputs if argument.special]
    others = [argument.name for argument in problem.inputs if not argument.special]
    if not others:
        return "checked with NaN, infinities and extreme values in every input"
    if asking:
        return f"checked with NaN, infinities and extreme values in {', '.join(asking)}; not in {', '.join(others)}"
    return "checked on finite inputs of usual size only; special = true on an argument feeds NaN, infinities, extremes"


def conditions_text(conditions: Conditions) -> str:
    """How the device was, in words."""
    parts = [
        f"{conditions.clock_mhz_median:.0f} MHz (at least {conditions.clock_mhz_min:.0f})"
        if conditions.clock_mhz_median is not None and conditions.clock_mhz_min is not None
        else "",
        f"at most {conditions.temperature_c_max:.0f} C" if conditions.temperature_c_max is not None else "",
        f"{conditions.power_w_median:.0f} W" if conditions.power_w_median is not None else "",
        f"throttled by {', '.join(conditions.throttled_by)}" if conditions.throttled_by else "not throttled",
    ]
    return "device at " + ", ".join(part for part in parts if part)


def _passed_lines(run: Path, view: RunView, passed: Passed) -> Iterator[str]:
    """What was measured of a candidate, how the device was, what limits it, and how exact it is."""
    if passed.same_as:
        yield f"not measured itself: its machine code and launches are those of {passed.same_as}"
    for each in passed.measurements:
        early = ", stopped early" if each.stopped_early else ""
        yield (
            f"{each.workload}: median {statistics.median(each.samples_ms):.4g} ms, "
            f"min {min(each.samples_ms):.4g} ms, {len(each.samples_ms)} samples by {each.timer}{early}"
        )
        if each.conditions is not None:
            yield f"{each.workload}: {conditions_text(each.conditions)}"
    for profile in profile_of(view.started, passed):
        yield from profile_lines(profile)
    for error in passed.errors:
        yield (
            f"output {error.output}: worst absolute error {error.max_abs:.3g}, "
            f"{error.tolerance_fraction:.1%} of what is allowed"
        )
    if fed := _what_was_fed(run):
        yield fed
    for entry, figures in passed.resources.items():
        yield f"{entry}: " + ", ".join(f"{name} {value:g}" for name, value in figures.items())


def print_candidate(run: Path, wanted: str, *, is_json: bool) -> None:
    """One candidate's configuration, outcome, samples and cost; the best may be the baseline that was kept."""
    kept = _kept_baseline(run) if wanted == "best" else None
    if kept is not None:
        _print_kept(run, kept, is_json=is_json)
        return
    partial = TuneResult(RunView.read(run)).partial  # of a tree the whole's: a node's own comparison is a part of it
    run = tuned_run(run)
    view = RunView.read(run)
    event = find_candidate(view, wanted, best_id=partial.candidate_id if partial is not None else "")
    if partial is not None and event.candidate_id != partial.candidate_id:
        partial = None
    if is_json:
        document = {**dataclasses.asdict(event), "partial": partial_data(partial)}
        typer.echo(json.dumps(document, indent=2, default=str))
        return
    console = open_console()

    def line(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    line(f"candidate {event.candidate_id} (evaluation {event.index}, {event.source})")
    line("configuration: " + "  ".join(f"{name}={value}" for name, value in event.config.items()))
    match event.outcome:
        case Failed() as failed:
            where = f" on workload {failed.workload}" if failed.workload else ""
            line(f"failed at {failed.stage}: {failed.reason}{where}: {failed.message}")
            if failed.log:
                line("log:\n" + failed.log)
        case Passed() as passed:
            line(f"speedup over the baseline: {1 / event.value:.3f}x (during the search)" if event.value else "")
            if partial is not None:
                line(f"on some workloads only: {partial.words}")
            for text in _passed_lines(run, view, passed):
                line(text)
    cost = event.cost
    cached = " (cached)" if cost.is_build_cached else ""
    line(
        f"cost: build {cost.build_s:.3f} s{cached}, check {cost.check_s:.3f} s, time {cost.time_s:.3f} s, "
        f"framework {cost.framework_s * 1e3:.2f} ms, strategy {cost.strategy_s * 1e3:.2f} ms"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """A baseline that was kept, and why."""

    view: RunView
    baseline: BaselineMeasured
    why: str
    nearest: str = ""
    """How to look at the best that was tried; empty: nothing came near."""


def _kept_baseline(run: Path) -> _Kept | None:
    """The baseline, where it is what a run says to use; None where something else is, or nothing was measured.

    A candidate that is used on some workloads is something else.
    """
    view = RunView.read(run)
    if view.baseline is None:
        return None
    if is_optimize_run(view):
        result = OptimizeResult(view)
        fastest, is_over = result.fastest, result.reason not in (None, "interrupted")
        if result.used is not None or fastest is None or not (is_over or fastest.parent is None):
            return None
        shown = f"kernelwright show node {shlex.quote(str(run))} {fastest.index}" if fastest.parent is not None else ""
        return _Kept(view, view.baseline, tree_verdict_text(result), shown)
    found = TuneResult(view)
    if found.leader is not None or found.reason in (None, "interrupted"):
        return None
    return _Kept(view, view.baseline, verdict_text(found))


def _print_kept(run: Path, kept: _Kept, *, is_json: bool) -> None:
    source = _baseline_source(run, kept.baseline)
    if is_json:
        record = dataclasses.asdict(kept.baseline)
        document = {"kept": "baseline", "why": kept.why, "nearest": kept.nearest or None, **record, "source": source}
        typer.echo(json.dumps(document, indent=2, default=str))
        return
    console = open_console()

    def line(text: str) -> None:
        console.print(plain(text), highlight=False, markup=False, soft_wrap=True)

    line(f"the baseline was kept: candidate {kept.baseline.candidate_id}")
    line(kept.why)
    if isinstance(kept.baseline.outcome, Passed):
        for text in _passed_lines(run, kept.view, kept.baseline.outcome):
            line(text)
    if kept.nearest:
        line(f"the best that was tried: {kept.nearest}")
    line(f"its source:\n{source}" if source else "its source is not recorded in this run")


def _baseline_source(run: Path, baseline: BaselineMeasured) -> str:
    """The text that was measured as the baseline; of an older run that of the frozen problem; empty: it is damaged."""
    try:
        with RunFolder.open(run, writable=False) as folder:
            with contextlib.suppress(StoreError):
                if baseline.source_blob:
                    return folder.blobs.get_text(baseline.source_blob)
            return TuningProblem.load(folder.problem_file).baseline.template.source
    except KernelwrightError:
        return ""


def find_candidate(view: RunView, wanted: str, *, best_id: str = "") -> Evaluated:
    """The evaluation that `wanted` means: `best`, an index, or the start of an id.

    `best_id`: the best where this view cannot tell it; else the winner over all workloads, or on some where none is.

    Raises:
        UsageError: none or several.
    """
    if wanted == "best":
        leader = TuneResult(view).leader
        wanted_id = best_id or (leader.candidate_id if leader is not None else None)
        found = [event for event in view.evaluations if event.candidate_id == wanted_id][:1]
    elif wanted.isdigit() and len(wanted) < 8:  # longer digits are an id
        found = [event for event in view.evaluations if event.index == int(wanted)]
    else:
        found = [event for event in view.evaluations if event.candidate_id.startswith(wanted)][:2]
    if len(found) != 1:
        last = len(view.evaluations) - 1
        problem = "matches several candidates" if found else "matches no candidate"
        raise UsageError(
            f"{wanted!r} {problem} of this run", hint=f"say best, an index from 0 to {last}, or the start of an id"
        )
    return found[0]


def print_node(run: Path, index: int, *, is_json: bool, has_replies: bool = False) -> None:
    """One structure of a run of `optimize`: what was done, predicted and found, and what it cost.

    Raises:
        StoreError: no run of `optimize` there, or it has no such node.
    """
    result = OptimizeResult.read(run)
    story = Story(result)
    facts, diff = story.node(index), story.diff(index)
    partial = _gain_on_some(result, facts)
    if is_json:
        document = {**facts_record(facts, diff), "partial": partial_data(partial)}
        typer.echo(json.dumps(document, indent=2, default=str))
        return
    console = open_console()
    for text in _node_lines(facts, partial):
        console.print(plain(text), highlight=False, markup=False, soft_wrap=True)
    if diff:
        console.print(f"changes against its parent: {change_count(diff)}", highlight=False, markup=False)
    for kind, text in diff:
        console.print(plain(text), style=_DIFF_STYLES.get(kind, ""), highlight=False, markup=False, soft_wrap=True)
    for exchange in facts.exchanges:
        request, reply = exchange.request, exchange.reply
        console.print(
            plain(f"{request.role}: asked {reply.model}, {reply.seconds:.1f} s"), highlight=False, markup=False
        )
        if has_replies:
            asked = "\n".join([request.system, *(f"[{each.role}]\n{each.text}" for each in request.messages)])
            console.print(plain(f"{asked}\n[reply]\n{reply.text}"), highlight=False, markup=False, soft_wrap=True)
    if facts.exchanges and not has_replies:
        console.print("prompts and replies in full: --replies", highlight=False, markup=False)


_DIFF_STYLES = {"add": "green", "del": "red", "hunk": "cyan", "head": "bold"}


def _gain_on_some(result: OptimizeResult, facts: NodeFacts) -> PartialGain | None:
    """Where a node without a gain over all workloads is surely faster on some; None: nowhere, or it has one."""
    if facts.node.parent is None or (facts.total is not None and facts.total.side == "above"):
        return None
    row = told_row(result, facts.node)
    return gain_on_some(result.view, row) if row else None


def _gain_lines(facts: NodeFacts, partial: PartialGain | None) -> Iterator[str]:
    """What was predicted, what came of it, and how far that may be claimed."""
    yield f"predicted and measured: {facts.happened}"
    if facts.gain is None and facts.search_gain is not None:
        yield "not compared side by side with what it was made from, so nothing is claimed of this step"
    if facts.total is not None and facts.node.parent is not None:
        yield f"since the baseline: {interval_text(facts.total)}"
    if partial is not None:
        yield f"on some workloads only: {partial.claim}; nothing is claimed on {', '.join(partial.others)}"


def _node_lines(facts: NodeFacts, partial: PartialGain | None) -> Iterator[str]:
    node = facts.node
    origin = f", from node {node.parent}" if node.parent is not None else ""
    yield f"node {node.index} {node.label} ({node.role}{origin}): {node.status}"
    yield f"what was done: {node.instruction}"
    if node.because:
        yield f"why: {node.because}"
    yield from _gain_lines(facts, partial)
    if facts.proof_words:
        yield f"proof: {facts.proof_words}"
    if facts.proof is not None:
        yield from (f"a point of the proof fails: {each}" for each in facts.proof.failed)
    if node.failure is not None and node.failure.log:
        yield f"log:\n{node.failure.log}"
    yield from (f"finding: {finding_words(each)}" for each in node.tuning.findings)
    yield from (f"limit: {each}" for each in facts.limits)
    if facts.best:
        yield "best configurations, over the baseline during the search:"
    for each in facts.best:
        early = " (stopped early)" if each.is_partial else ""
        yield f"  {each.speedup:7.2f}x{early}  " + "  ".join(f"{name}={value}" for name, value in each.config.items())
    if facts.landscape:
        yield "landscape, the best with each value:"
    for name, lines in facts.landscape.items():
        values = (f"{line.value}: {f'{line.best_speedup:.2f}x' if line.best_speedup else 'failed'}" for line in lines)
        yield f"  {name}  " + "   ".join(values)
    if cost := cost_words(facts.cost):
        yield f"cost: {cost}"
    if node.refused_ideas:
        yield f"what does not apply to it: {', '.join(node.refused_ideas)}"
