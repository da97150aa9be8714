"""The figures under the headline: of one search, or of all structures of a run with a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelwright.insights.forecast import duration_text, percent_text, prospect_of
from kernelwright.llm.account import Spent
from kernelwright.problem.outcome import Failed
from kernelwright.report.facts import Row
from kernelwright.report.svg import number
from kernelwright.report.text import clean
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.view import RunView, is_partial


@dataclass(frozen=True, slots=True)
class _Stat:
    """One number under the headline."""

    name: str
    value: str
    more: str = ""


def run_stats(view: RunView, rows: Sequence[Row]) -> list[_Stat]:
    """The figures of one search: what was tried, what it took, and what going on would bring."""
    failed = sum(row.status == "failed" for row in rows)
    stopped = sum(row.status == "stopped early" for row in rows)
    feasible, raw = view.started.space.get("feasible_count"), view.started.space.get("raw_count")
    stats = [
        _Stat("Configurations tried", number(len(rows)), _stopped_text(stopped)),
        _Stat("Failed", number(failed), _failed_text(failed, len(rows))),
    ]
    if isinstance(feasible, int):
        share = (
            f"{number(100 * len({row.candidate_id for row in rows}) / feasible, 2)}\u00a0% tried" if feasible else ""
        )
        raw_text = f"of {number(raw)} combinations" if isinstance(raw, int) and raw != feasible else ""
        stats.append(_Stat("Feasible", number(feasible), "; ".join(filter(None, [raw_text, share]))))
    rate = _rate_text(len(rows), view.spent_s)
    stats += [_Stat("Time spent", duration(view.spent_s), rate), _ended(view), *_prospect(view, "faster")]
    return [*stats, *_searcher(view)]


def tree_stats(result: OptimizeResult, runs: Mapping[int, RunView], spent: Spent) -> list[_Stat]:
    """The figures of a whole run with a tree: structures, all their configurations, failures, time and cost.

    Args:
        result: the run.
        runs: by node, its own run.
        spent: on replies of models.
    """
    view = result.view
    nodes = [node for node in result.tree if node.parent is not None]
    statuses = [node.status for node in nodes]
    parts = [f"{statuses.count('working')} work"]
    parts += [f"{statuses.count(each)} {each}" for each in ("failed", "refused") if statuses.count(each)]
    evaluations = [event for run in runs.values() for event in run.evaluations]
    failed = sum(isinstance(event.outcome, Failed) for event in evaluations)
    stopped = sum(is_partial(event) for event in evaluations)
    rate = _rate_text(len(evaluations), view.spent_s)
    costs = [event.cost for event in evaluations if event.source != "known"]
    costs += [view.baseline.cost] if view.baseline is not None else []
    device_s, build_s = sum(each.check_s + each.time_s for each in costs), sum(each.build_s for each in costs)
    stats = [
        _Stat("Structures", number(len(nodes)), ", ".join(parts) if nodes else ""),
        _Stat("Configurations tried", number(len(evaluations)), _stopped_text(stopped) or "of all structures"),
        _Stat("Failed", number(failed), _failed_text(failed, len(evaluations))),
        _Stat("Time spent", duration(view.spent_s), rate),
        _Stat("Device", duration(device_s), f"of checks and timing; {duration(build_s)} of compilers"),
    ]
    if spent.requests:
        cost = f"${spent.cost_usd:.2f}" if spent.cost_usd is not None else "price unknown"
        stats.append(_Stat("Models", cost, f"{spent.requests} replies, {duration(spent.seconds)} of waiting"))
    stats.append(_ended(view))
    own = runs.get(result.fastest.index) if result.fastest is not None else None
    if own is not None and result.fastest is not None:
        stats += _prospect(own, f"faster by node {result.fastest.index}")
    return [*stats, *_proposer(view)]


def _rate_text(count: int, seconds: float) -> str:
    """How fast configurations were tried, all work included."""
    if not count or seconds <= 0:
        return ""
    rate = count / seconds
    return f"{number(rate)} configurations per second" if rate >= 1 else f"{number(1 / rate)} s a configuration"


def _stopped_text(count: int) -> str:
    return f"{number(count)} stopped early" if count else ""


def _failed_text(failed: int, tried: int) -> str:
    return f"{100 * failed / tried:.0f}\u00a0% of those tried" if tried and failed else ""


def _ended(view: RunView) -> _Stat:
    reason = view.finished.reason if view.finished is not None else "not finished"
    sessions = f"{len(view.sessions)} sessions" if len(view.sessions) > 1 else ""
    return _Stat("Ended", _ENDINGS.get(reason, clean(reason)), sessions)


def _prospect(view: RunView, what: str) -> Iterator[_Stat]:
    prospect = prospect_of(view)
    if prospect is not None:
        seconds, expected = prospect
        bound = f"{expected.confidence:.0%} sure of at most {percent_text(expected.bound_fraction)}"
        yield _Stat(
            f"Another {duration_text(max(1, seconds))}",
            f"about {percent_text(expected.fraction)}",
            f"{what}, as forecast; {bound}",
        )


def _searcher(view: RunView) -> Iterator[_Stat]:
    searcher = view.started.settings.get("searcher")
    if searcher:
        seed = view.started.settings.get("seed")
        yield _Stat("Searcher", clean(str(searcher)), f"seed {seed}" if seed is not None else "")


def _proposer(view: RunView) -> Iterator[_Stat]:
    settings = view.started.settings
    found = settings.get("optimize")
    record = {**settings, **found} if isinstance(found, Mapping) else dict(settings)
    model = record.get("model")
    if model:
        policy = record.get("policy")
        yield _Stat("Proposed by", clean(str(model)), f"policy {clean(str(policy))}" if policy else "")


_ENDINGS: Mapping[str, str] = {
    "budget": "budget used",
    "exhausted": "space exhausted",
    "no-gain": "no more gain",
    "interrupted": "interrupted",
    "target": "target reached",
    "limit": "at the device’s limit",
}


def duration(seconds: float) -> str:
    """A time span as a person says it: `47 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 60:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
