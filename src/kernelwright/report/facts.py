"""What the page says about a run, as plain data: derived from the run's events, with nothing drawn yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kernelwright.problem.config import Value
from kernelwright.problem.outcome import STAGES, Cost, Failed, Passed
from kernelwright.report.svg import number
from kernelwright.report.text import clean
from kernelwright.results.conditions import summary_of
from kernelwright.results.verdict import decide
from kernelwright.roofline.profile import profile_of
from kernelwright.store.event import Evaluated
from kernelwright.store.view import RunView, is_partial

Status = Literal["passed", "stopped early", "failed"]

MOST_LOG_CHARACTERS = 4000
"""An example log on the page is cut here; the run folder keeps what was recorded."""


@dataclass(frozen=True, slots=True)
class Row:
    """One evaluation, as charts and the table of all evaluations show it."""

    index: int
    candidate_id: str
    config: Mapping[str, Value]
    status: Status
    source: str
    speedup: float | None
    """Over the baseline; for a measurement that racing stopped, an estimate. None: failed."""
    medians_ms: Mapping[str, float]
    failure: str
    """`stage: reason`, or empty."""
    elapsed_s: float
    cost: Cost


def rows_of(view: RunView) -> tuple[Row, ...]:
    """The evaluations in the order they finished."""
    return tuple(_row(view, evaluated) for evaluated in view.evaluations)


def _row(view: RunView, evaluated: Evaluated) -> Row:
    outcome = evaluated.outcome
    status: Status = "failed"
    if isinstance(outcome, Passed):
        status = "stopped early" if is_partial(evaluated) else "passed"
    return Row(
        index=evaluated.index,
        candidate_id=evaluated.candidate_id,
        config=evaluated.config,
        status=status,
        source=evaluated.source,
        speedup=1.0 / evaluated.value if evaluated.value else None,
        medians_ms=view.medians_ms(evaluated),
        failure=f"{outcome.stage}: {clean(outcome.reason)}" if isinstance(outcome, Failed) else "",
        elapsed_s=evaluated.elapsed_s,
        cost=evaluated.cost,
    )


@dataclass(frozen=True, slots=True)
class _FailureExample:
    """One failed evaluation that stands for its group."""

    place: str
    """Which evaluation, of which structure where there are several: `#3`, `node 2, #3`."""
    message: str
    log: str
    workload: str
    config: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class _FailureGroup:
    """Failures with the same stage and reason."""

    stage: str
    reason: str
    count: int
    share: float
    """The share of all evaluations."""
    examples: tuple[_FailureExample, ...]


def failure_groups(runs: Mapping[str, RunView], *, examples: int = 2) -> tuple[_FailureGroup, ...]:
    """Failures by stage in pipeline order and by reason, each with its first examples that differ.

    Args:
        runs: by what stands before an evaluation's number (`node 2, `, or nothing): a search.
        examples: of each group.
    """
    found: dict[tuple[str, str], list[tuple[str, Evaluated, Failed]]] = {}
    for place, view in runs.items():
        for event in view.failed:
            assert isinstance(event.outcome, Failed)
            key = (event.outcome.stage, event.outcome.reason)
            found.setdefault(key, []).append((f"{place}#{event.index}", event, event.outcome))
    total = sum(len(view.evaluations) for view in runs.values())
    groups: list[_FailureGroup] = []
    for (stage, reason), members in sorted(found.items(), key=lambda item: (STAGES.index(item[0][0]), -len(item[1]))):
        chosen: dict[str, _FailureExample] = {}
        for place, event, outcome in members:
            if len(chosen) < examples:
                chosen.setdefault(outcome.message + outcome.log, _example(place, event, outcome))
        groups.append(_FailureGroup(stage, clean(reason), len(members), len(members) / total, tuple(chosen.values())))
    return tuple(groups)


def _example(place: str, evaluated: Evaluated, outcome: Failed) -> _FailureExample:
    log = clean(outcome.log)
    if len(log) > MOST_LOG_CHARACTERS:
        half = MOST_LOG_CHARACTERS // 2
        log = f"{log[:half]}\n… {len(log) - 2 * half} characters left out …\n{log[-half:]}"
    return _FailureExample(place, clean(outcome.message), log, clean(outcome.workload or ""), evaluated.config)


@dataclass(frozen=True, slots=True)
class _Phase:
    """One part of where the time went."""

    name: str
    what: str
    seconds: float
    share: float
    per_evaluation_ms: float | None
    """Mean over the evaluations that were run; None when none was."""


PHASES = (
    ("build", "compiling, without what the artifact cache answered"),
    ("check", "running on every dataset and comparing with the reference"),
    ("time", "warm-up and timed launches"),
    ("framework", "rendering, messages and recording in Kernelwright's own process"),
    ("strategy", "the searcher's ask and tell"),
)


def phases(runs: Sequence[RunView]) -> tuple[_Phase, ...]:
    """Seconds by phase over all evaluations of these searches and their baseline, once.

    Builds that ran side by side count each.
    """
    costs = [event.cost for view in runs for event in view.evaluations if event.source != "known"]
    run_count = sum(cost.total_s > 0 for cost in costs)
    costs += [view.baseline.cost for view in runs[:1] if view.baseline is not None]
    totals = {name: sum(getattr(cost, f"{name}_s") for cost in costs) for name, _ in PHASES}
    everything = sum(totals.values()) or 1.0
    return tuple(
        _Phase(
            name,
            what,
            totals[name],
            totals[name] / everything,
            1000 * totals[name] / run_count if run_count else None,
        )
        for name, what in PHASES
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    """One parameter of the winner."""

    name: str
    value: Value
    default: Value | None
    """None: not recorded."""
    choices: tuple[Value, ...]
    why: str
    elsewhere: Mapping[str, Value]
    """By workload: the value in that workload's own best config, where it differs."""

    @property
    def is_changed(self) -> bool:
        """True when the winner's value is known not to be the default."""
        return self.default is not None and self.value != self.default


def declared_values(view: RunView) -> Mapping[str, tuple[Value, ...]]:
    """Each parameter with the values it may take, as recorded when the run started."""
    parameters = view.started.space.get("parameters", {})
    if not isinstance(parameters, Mapping):
        return {}
    return {str(name): tuple(values) for name, values in parameters.items() if isinstance(values, list | tuple)}


def settings_of_winner(
    view: RunView, defaults: Mapping[str, Value], reasons: Mapping[str, str]
) -> tuple[_Setting, ...]:
    """The winning config as a table, beside the defaults; empty when nothing won."""
    leader = decide(view).leader
    if leader is None:
        return ()
    declared = declared_values(view)
    return tuple(
        _Setting(
            name,
            value,
            defaults.get(name),
            declared.get(name, ()),
            reasons.get(name, ""),
            {
                workload: winner.config[name]
                for workload, winner in view.winner_per_workload.items()
                if winner.config.get(name, value) != value
            },
        )
        for name, value in leader.config.items()
    )


Fact = tuple[str, str]
"""One line of the environment: a name and its value."""


def facts_in(data: Mapping[str, Any], prefix: str = "") -> tuple[Fact, ...]:
    """A nested mapping as flat lines, `limits.warp_size` and so on; empty values left out."""
    lines: list[Fact] = []
    for name, value in data.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            lines.extend(facts_in(value, f"{path}."))
        elif value not in (None, "", [], ()):
            lines.append((clean(path), clean(_with_unit(str(name), value))))
    return tuple(lines)


def device_facts(device: Mapping[str, Any]) -> tuple[Fact, ...]:
    """The device as recorded: what identifies it, the ceilings that were measured on it, its limits and facts.

    Ceilings stand once, with their units.
    """
    own = {name: value for name, value in device.items() if not isinstance(value, Mapping) and not _is_rate(name)}
    rates = {name: value for name, value in device.items() if _is_rate(name)}
    ceilings = device.get("ceilings")
    rates = {**(ceilings if isinstance(ceilings, Mapping) else {}), **rates}
    groups = [
        (value, f"{name}.") for name, value in device.items() if isinstance(value, Mapping) and name != "ceilings"
    ]
    measured = tuple((f"measured {name}", value) for name, value in facts_in(rates))
    return (*facts_in(own), *measured, *(fact for value, prefix in groups for fact in facts_in(value, prefix)))


def _is_rate(name: str) -> bool:
    return name.endswith("_per_s")


_BYTES = ("_bytes", "memory", "allocation", "cache", "shared_memory_per_block", "local_memory_bytes")


def _with_unit(name: str, value: object) -> str:
    """A figure with the unit that its name says."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _plain(value)
    if name.endswith("seed"):
        return str(value)  # to be copied
    if name.endswith("bytes_per_s"):
        return f"{number(value / 1e9)} GB/s"
    if _is_rate(name):
        return f"{number(value / 1e9)} G/s"
    if name.endswith(_BYTES) and value >= 1024:
        size, unit = next((value / scale, unit) for scale, unit in _SIZES if value >= scale)
        return f"{number(float(size))} {unit}"
    for suffix, unit in (("_mhz", "MHz"), ("_ns", "ns"), ("_ms", "ms"), ("_s", "s")):
        if name.endswith(suffix):
            return f"{_plain(value)} {unit}"
    return _plain(value)


_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def measuring_facts(view: RunView) -> tuple[Fact, ...]:
    """How times were taken, how the device was meanwhile, and what limits the winner."""
    facts = [(clean(name), clean(text)) for name, text in summary_of(view).items()]
    winner = decide(view).leader
    if winner is not None:
        events = (event for event in view.evaluations if event.candidate_id == winner.candidate_id)
        outcome = next((event.outcome for event in events if isinstance(event.outcome, Passed)), None)
        for profile in profile_of(view.started, outcome) if outcome is not None else ():
            facts += [
                (clean(f"limit, as timed in the search: {profile.workload}"), clean(each.text))
                for each in profile.diagnoses
            ]
    return tuple(facts)


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value) if abs(value) < 100_000 else number(value)
    if isinstance(value, float):
        return number(round(value)) if abs(value) >= 100_000 else f"{value:g}"
    if isinstance(value, Iterable):
        return ", ".join(_plain(item) for item in value)
    return str(value)


def sizes_text(sizes: Mapping[str, float], hidden: Sequence[str] = ("weight", "bytes", "operations")) -> str:
    """A workload's sizes in one line: `n = 262144, d = 64`."""
    return ", ".join(
        f"{name}\u00a0=\u00a0{value:g}" if value >= 1e15 or value % 1 else f"{name}\u00a0=\u00a0{int(value)}"
        for name, value in sizes.items()
        if name not in hidden
    )
