"""One self-contained HTML file that explains a run.

```
write_report(Path("runs/softmax"), Path("softmax.html"))
```

The page draws its charts itself, as SVG: a plotting library would add megabytes and another look for what is half a
dozen scatter plots and histograms. Every section has a table or a sentence that says the same without a picture, and
a run that is unfinished, failed or tiny gives a page that says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from kernelwright.insights.run_summary import Story
from kernelwright.insights.step_table import fastest_run_id
from kernelwright.insights.verdict_words import counted, is_caveat
from kernelwright.report.charts import (
    best_so_far,
    convergence,
    distribution,
    factor,
)
from kernelwright.report.claims import (
    Headline,
    WorkloadTable,
    drift_text,
    headline,
    workload_table,
)
from kernelwright.report.dispatch import dispatch_section, no_table
from kernelwright.report.facts import (
    Row,
    device_facts,
    facts_in,
    failure_groups,
    measuring_facts,
    phases,
    rows_of,
    settings_of_winner,
)
from kernelwright.report.html.configurations import listing_part
from kernelwright.report.html.writing import render_page, write_page
from kernelwright.report.parameters import parameter_part
from kernelwright.report.roofline import roofline
from kernelwright.report.source import FrozenProblem, frozen_problem, source_section
from kernelwright.report.stats import duration, run_stats, tree_stats
from kernelwright.report.svg import number, responsive
from kernelwright.report.text import clean
from kernelwright.report.tree import own_view, page_view, tree_headline, tree_section
from kernelwright.results.optimize_result import OptimizeResult, is_optimize_run
from kernelwright.results.tune_result import TuneResult
from kernelwright.results.verdict import Kind
from kernelwright.store.view import RunView

_SECTIONS = (
    ("workloads", "Workloads"),
    ("configuration", "Configuration"),
    ("convergence", "Convergence"),
    ("distribution", "Distribution"),
    ("importance", "Importance"),
    ("parameters", "Parameters"),
    ("failures", "Failures"),
    ("roofline", "Roofline"),
    ("cost", "Time"),
    ("source", "Source"),
    ("dispatch", "Dispatch"),
    ("environment", "Environment"),
    ("all", "All"),
)


def write_report(run: Path | str | RunView, out: Path | str) -> Path:
    """Write the report of `run` to `out` and return it; a report already there is replaced whole or not at all.

    Args:
        run: a run folder, which another process may still be writing, or a view of one.
        out: the HTML file; its folder is made.

    Raises:
        StoreError: the run cannot be read, or the file cannot be written.
    """
    view = run if isinstance(run, RunView) else RunView.read(Path(run))
    return write_page(render_report(view), Path(out))


def render_report(view: RunView, *, live: str = "") -> str:
    """The page as text.

    `live`: a script that keeps it up to date, where it is served while the run grows. Which parameters matter is
    reckoned when the run is over.
    """
    is_growing = bool(live) and view.finished is None
    if is_optimize_run(view):
        context = _tree_context(OptimizeResult(view), is_growing=is_growing)
    else:
        context = _context(view, is_growing=is_growing)
    return render_page("report.html.j2", {**context, "live": Markup(live)})  # noqa: S704 - part of the package


def _tree_context(result: OptimizeResult, *, is_growing: bool) -> dict[str, Any]:
    """The page of a run with a tree: claim, tree and cost of the whole; the searches' charts of the fastest node's."""
    story = Story(result)
    tree = tree_section(result, story)
    context = _context(page_view(result), story=story, is_growing=is_growing)
    own = own_view(result)
    if result.used is None and result.reason not in (None, "interrupted"):
        kept = "The baseline serves every shape: no structure is shown to be faster, so nothing is exported."
        context |= {"dispatch": no_table(kept), "dispatch_scope": ""}
    elif own is not None:
        context["dispatch"] = dispatch_section(own, frozen_problem(own))
    if tree is None:
        return context
    notes = [each for each in context["sections"] if each not in _SECTIONS]
    return {
        **context,
        "tree": tree,
        "stats": tree_stats(result, story.runs, story.account.total),
        "sections": (*notes, ("story", "In words"), ("tree", "Structures"), *_SECTIONS),
    }


def _context(view: RunView, *, story: Story | None = None, is_growing: bool = False) -> dict[str, Any]:
    """What the page tells of a search; of a run with a tree, `run_summary` tells of the whole."""
    result = TuneResult(view)
    problem = frozen_problem(view)
    rows = rows_of(view)
    claim = headline(result) if story is None else tree_headline(story.result, headline(result))
    table = workload_table(result)
    runs = {"": view} if story is None else {f"node {index}, ": run for index, run in story.runs.items()}
    notes = [note for note in view.notes if not (claim.caveats and is_caveat(note.text))]
    return {
        "tree": None,
        "best_name": claim.best_name,
        **_scopes(story),
        "started": view.started if story is None else story.result.view.started,
        "name": clean(view.started.problem_name),
        "device_name": clean(str(view.started.device.get("name", "an unnamed device"))),
        "device_more": _device_more(view),
        "conditions": _conditions_text(view),
        "verdict": claim,
        "stats": run_stats(view, rows),
        "warnings": [{"level": note.level, "text": clean(note.text)} for note in notes],
        "sections": (*((("notes", "Notes"),) if notes else ()), *_SECTIONS),
        **_workload_part(result, table),
        **_configuration_part(view, problem, claim),
        **_search_part(result, rows),
        **parameter_part(view, rows, problem, is_growing=is_growing),
        **_failure_part(runs),
        "roofline": roofline(view, _baseline_ms(view, table), best=claim.best_name.lower()),
        **_cost_part(view, tuple(runs.values()), is_whole=story is not None),
        "source": source_section(view, problem, best=claim.best_name.lower()),
        "dispatch": dispatch_section(view, problem),
        "dispatch_scope": _scopes(story)["node_scope"],
        **_environment_part(view, story.result if story is not None else None),
        **listing_part(view, *_all_searches(story)),
    }


def _all_searches(story: Story | None) -> tuple[Mapping[int, RunView] | None, int | None]:
    """By node its own run, and the node that charts are about; nothing of a run without a tree."""
    if story is None or not story.runs:
        return None, None
    fastest = story.result.fastest
    return story.runs, fastest.index if fastest is not None else None


def _device_more(view: RunView) -> str:
    """Through what the device was reached, and when."""
    device = view.started.device
    parts = [str(device[name]) for name in ("backend", "kind") if device.get(name)]
    parts += [f"driver {device['driver']}"] if device.get("driver") else []
    return clean(", ".join([*parts, f"started {view.started.created}"]))


def _conditions_text(view: RunView) -> str:
    """What a reader of times must know of the machine; empty: nothing out of the ordinary is known."""
    environment = view.started.environment
    load, cores = _number(environment.get("load_at_start")), _number(environment.get("cores"))
    if view.started.device.get("kind") != "cpu" or load is None or cores is None or load <= cores / 2:
        return ""
    return (
        f"The device is the host's CPU, which others used too: the load average was {number(load)} on {cores:g} "
        "cores when the run began. Absolute times are those of a busy machine, and intervals are wide."
    )


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _baseline_ms(view: RunView, table: WorkloadTable) -> Mapping[str, float]:
    """The baseline's times that the table shows: interleaved ones where there are any."""
    compared = {line.name: line.baseline_ms for line in table.lines if line.baseline_ms is not None}
    return {**view.baseline_ms, **compared}


def _workload_part(result: TuneResult, table: WorkloadTable) -> dict[str, Any]:
    view = result.view
    rejected = view.comparison.rejected if view.comparison is not None else {}
    return {
        "table": table,
        "drift": drift_text(view),
        "limit_moves": _LIMIT_MOVES if view.started.device.get("kind") == "cpu" else "",
        "knows_limit": any(line.limit_ms is not None for line in table.lines),
        "baseline_lines": [(clean(name), time_ms) for name, time_ms in view.baseline_ms.items()],
        "rejected": [{"id": clean(name), "why": clean(why)} for name, why in rejected.items()],
    }


_LIMIT_MOVES = (
    "On a CPU the rate was measured when this run began and moves with what else the host does: shares of the limit "
    "compare within this page, not between runs."
)
_CONFIGURATION_TITLES = {
    Kind.GAIN: "Winning configuration",
    Kind.SOME: "Best configuration tried: no gain is shown over all workloads",
    Kind.TOO_FEW: "Best configuration tried: too few rounds for a claim",
    Kind.SLOWER: "Best configuration tried: slower than the baseline",
    Kind.PROVISIONAL: "Best configuration so far",
    Kind.NO_TIME: "Best configuration so far",
    Kind.NOTHING: "Configuration",
}
_NO_GAIN_TITLE = "Best configuration tried: no gain is shown"
_NOT_SHOWN = "The fastest over all workloads of what was tried; it is not shown to be faster than the baseline."
_IN_SEARCH = "The fastest over all workloads in the search; not compared side by side with the baseline."
_CONFIGURATION_LEADS = {
    Kind.SOME: "The best on those workloads on which it is surely faster; over all workloads no gain is shown.",
    Kind.ITSELF: _NOT_SHOWN,
    Kind.OPEN: _NOT_SHOWN,
    Kind.KEPT: _NOT_SHOWN,
    Kind.TOO_FEW: "The fastest over all workloads of what was tried, in too few rounds for a claim.",
    Kind.SLOWER: "The best that was found, though the baseline is faster: keep the baseline.",
    Kind.PROVISIONAL: _IN_SEARCH,
    Kind.NO_TIME: _IN_SEARCH,
}


def _scopes(story: Story | None) -> dict[str, Any]:
    """What of a run with a tree a section is about: all of it, or the fastest structure; empty: there is no tree."""
    if story is None:
        return {"node_scope": "", "whole_scope": "", "whose": ""}
    fastest = story.result.fastest
    if fastest is None or fastest.parent is None:
        return {"node_scope": "", "whole_scope": "all structures", "whose": ""}
    name = f"node {fastest.index}"
    return {"node_scope": f"{name}, {clean(fastest.label)}", "whole_scope": "all structures", "whose": f" of {name}"}


def _configuration_part(view: RunView, problem: FrozenProblem, claim: Headline) -> dict[str, Any]:
    settings = settings_of_winner(view, problem.defaults, problem.reasons)
    changed = sum(setting.is_changed for setting in settings)
    knows_defaults = any(setting.default is not None for setting in settings)
    lead = "The general winner over all workloads."
    if claim.kind in _CONFIGURATION_LEADS:
        lead = _CONFIGURATION_LEADS[claim.kind]
    if knows_defaults:
        lead += f" {changed} of {len(settings)} parameters differ from their default."
    elif settings:
        lead += " The defaults were not recorded in this run."
    title = _CONFIGURATION_TITLES.get(claim.kind, _NO_GAIN_TITLE) if settings else "Configuration"
    return {
        "settings": settings,
        "knows_defaults": knows_defaults,
        "configuration_lead": lead,
        "configuration_title": title,
    }


def _search_part(result: TuneResult, rows: Sequence[Row]) -> dict[str, Any]:
    timed = [row for row in rows if row.speedup is not None]
    steps = best_so_far(rows)
    drawn = None
    if rows:
        drawn = {
            "by_evaluations": responsive(lambda width: convergence(rows, width, by_seconds=False), 520),
            "by_seconds": responsive(lambda width: convergence(rows, width, by_seconds=True), 520),
        }
    return {
        "convergence": drawn,
        "convergence_lead": _convergence_lead(rows, steps) + _compared_text(result, steps),
        "has_stopped": any(row.status == "stopped early" for row in rows),
        "has_failed": any(row.status == "failed" for row in rows),
        "steps": steps,
        "distribution": responsive(lambda width: distribution(rows, width), 1000) if timed else None,
        "distribution_lead": _distribution_lead(timed),
    }


def _convergence_lead(rows: Sequence[Row], steps: Sequence[Row]) -> str:
    if not steps:
        return "No configuration was measured to the end, so there is no best so far."
    if len(rows) == 1:
        return "One evaluation, so there is no course to show."
    best = steps[-1].speedup or 1.0
    near = next(row for row in steps if (row.speedup or 0.0) >= 0.95 * best)
    within = f"Within 5\u00a0% of the best after {near.index + 1} of {len(rows)} evaluations"
    return f"{within} ({duration(near.elapsed_s)}); the best is #{steps[-1].index}."


def _compared_text(result: TuneResult, steps: Sequence[Row]) -> str:
    """What became of the search's best figure; empty: nothing was compared."""
    winner = result.leader
    if result.speedup is None or winner is None or not steps:
        return ""
    own = next((step.speedup for step in reversed(steps) if step.candidate_id == winner.candidate_id), None)
    which = "It" if steps[-1].candidate_id == winner.candidate_id else "The configuration above"
    found = "" if own is None or which == "It" else f" ({factor(own)} here)"
    return (
        f" Speedups here are the search's, over the baseline as it was timed at first. {which}{found} came to "
        f"{factor(result.speedup.estimate)} in the final comparison, which alone supports a claim."
    )


def _distribution_lead(timed: Sequence[Row]) -> str:
    speedups = [row.speedup for row in timed if row.speedup is not None]
    if not speedups:
        return ""
    if len(speedups) == 1:
        return f"One timed configuration, at {factor(speedups[0])}."
    best, faster = max(speedups), sum(speedup > 1.0 for speedup in speedups)
    near = sum(speedup >= 0.95 * best for speedup in speedups)
    stopped = sum(row.status == "stopped early" for row in timed)
    early = f" {stopped} of them were stopped early, which are estimates." if stopped else ""
    return (
        f"{faster} of {len(speedups)} timed configurations are faster than the baseline, "
        f"{near} within 5\u00a0% of the best. The median is {factor(statistics.median(speedups))}.{early}"
    )


def _failure_part(runs: Mapping[str, RunView]) -> dict[str, Any]:
    found = failure_groups(runs)
    count = sum(len(view.failed) for view in runs.values())
    total = sum(len(view.evaluations) for view in runs.values())
    return {
        "failures": found,
        "failures_lead": f"{count} of {total} evaluations failed, by stage of the pipeline and reason. "
        "A failure costs its time but is never mistaken for a slow result.",
        "failures_missing": "No evaluation failed." if total else "Nothing was evaluated.",
    }


def _cost_part(view: RunView, runs: Sequence[RunView], *, is_whole: bool) -> dict[str, Any]:
    found = phases(runs)
    total_s = sum(phase.seconds for phase in found)
    evaluations = [event for run in runs for event in run.evaluations]
    cached = sum(evaluated.cost.is_build_cached for evaluated in evaluations)
    known = sum(evaluated.source != "measured" for evaluated in evaluations)
    lead = f"{duration(total_s)} of work in {duration(view.spent_s)} of budget"
    lead += ", because phases of several evaluations overlap." if total_s > view.spent_s > 0 else "."
    if is_whole:
        lead += " The final comparison, and what proposing took, are in the budget and not in these phases."
    if cached:
        lead += f" {counted(cached, 'build')} came from the artifact cache."
    if known:
        lead += (
            f" {counted(known, 'evaluation')} {'was' if known == 1 else 'were'} answered from a record and ran nothing."
        )
    shares = ", ".join(f"{phase.name} {100 * phase.share:.0f}\u00a0%" for phase in found if phase.seconds > 0)
    return {
        "phases": found,
        "phase_total_s": total_s,
        "cost_lead": lead,
        "cost_label": f"Share of time: {shares}",
    }


def _environment_part(view: RunView, whole: OptimizeResult | None) -> dict[str, Any]:
    """How `view` was measured, and what the whole run started with; of a run with a tree, `whole` is all of it."""
    started = view.started if whole is None else whole.view.started
    own = fastest_run_id(whole) if whole is not None else ""
    node = whole.fastest.index if whole is not None and whole.fastest is not None else 0
    constraints = view.started.space.get("constraints", ())
    return {
        "environment": [
            ("Device", device_facts(started.device)),
            ("While measured", measuring_facts(view)),
            ("Software", facts_in(started.environment)),
            ("Settings", facts_in(view.settings if whole is None else whole.view.settings)),
            (
                "Run",
                (
                    ("run", clean(started.run_id)),
                    *([(f"run of node {node}, which exports name", clean(own))] if own else []),
                    ("started", clean(started.created)),
                    ("problem", f"{clean(started.problem_name)} ({clean(started.problem_id)})"),
                    ("kernelwright", clean(started.version)),
                ),
            ),
        ],
        "constraints": [
            {name: clean(str(each.get(name, ""))) for name in ("name", "text", "origin")}
            for each in constraints
            if isinstance(each, Mapping)
        ],
    }
