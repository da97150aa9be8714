"""What a run knows of one of its nodes beside its value, in words: for the roles that plan, mend and analyse.

Everything is read from the node's own log, and only what the tree already knew is told: the same tree and the same log
always give the same words, so a replayed run asks the same questions.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kernelwright.agent.model.cleaning import cleaned_message
from kernelwright.errors import KernelwrightError, StoreError
from kernelwright.evaluate.statistics import median_interval
from kernelwright.json_text import read_json_text
from kernelwright.problem.outcome import Failed, Measurement, Outcome, Passed
from kernelwright.roofline.profile import profile_lines, profile_of
from kernelwright.store.event import Evaluated
from kernelwright.store.run_folder import NODES_FOLDER
from kernelwright.store.view import RunView
from kernelwright.tree.model import Node
from kernelwright.tuning.counters import of_longest, read_counters

COUNTERS_FILE = "counters.json"
"""In a node's folder: hardware counters by candidate and workload, where they were read."""

MOST_FAILURES = 4
"""Failed configs of a node that are told one by one."""

MOST_ERROR = 400

LONELY = 1.3
LEAST_NEIGHBOURS = 5
"""On a device that shares the host's cores a best config is doubted whose neighbours (at least so many) all took that
much longer: in a live run one had 1.64 times of the nearest of nine, and 1.08 of its 1.74 times in fresh rounds."""

MOST_SINGLE = 10
MOST_OTHERS = 4
"""Configurations that are told beside the best: those that differ in one parameter, and the fastest of the rest."""

UNTOLD = frozenset({"argument_count"})
"""Figures of the read-back that say nothing about speed."""
UNTOLD_ON_A_CPU = UNTOLD | {"max_threads_per_block", "preferred_multiple"}
"""There every kernel has the device's own limits."""

CLEARLY = 1.03
"""How many times faster, of two measurements of the search; less is noise, however close their samples are."""

LEAST_SAMPLES = 6
"""Fewer have no 95 % interval of their median."""

NOISE_QUANTILE = 0.75
"""This quantile of the configs' noise counts for all: a machine is not equally busy all the time. A guess."""

RESOURCE_WORDS: Mapping[str, str] = {
    "registers_per_thread": "registers a thread",
    "spill_bytes": "bytes spilled a thread",
    "spill_store_bytes": "bytes of spill stores",
    "spill_load_bytes": "bytes of spill loads",
    "stack_bytes": "bytes of stack a thread",
    "local_memory_bytes": "bytes of local (shared) memory a block, without what its launch adds",
    "shared_bytes": "bytes of shared memory a block",
    "static_shared_bytes": "bytes of static shared memory a block",
    "private_memory_bytes": "bytes of private memory a work-item",
    "occupancy": "of the warps that fit are resident (occupancy)",
    "blocks_per_multiprocessor": "blocks on a multiprocessor at once",
    "max_threads_per_block": "threads a block can have at most",
    "preferred_multiple": "work-items is what a group's size should be a multiple of",
}
"""What the compiler and the driver read back, as a person says it; other figures keep their names."""


def node_evidence(
    run: Path, *, reads_counters: bool = False, counted: Path | None = None
) -> Callable[[Node, float | None], tuple[str, ...]]:
    """Reads what is known of the nodes of one run; safe to use from several threads.

    What it gives takes a node as the tree knows it, and the objective of the measurement that counts, None: the node's
    best. It tells the words, the most telling first; none when nothing was measured.

    Args:
        run: its folder.
        reads_counters: whether hardware counters of a node's best config are read (and kept) where the device here
            allows it.
        counted: the run whose kept counters are told; None: this one's. A replay tells those of the recorded run.
    """

    def evidence(node: Node, value: float | None = None) -> tuple[str, ...]:
        value = node.best_value if value is None else value
        folder = run / NODES_FOLDER / f"{node.index:03d}"
        try:
            if (folder / "events.jsonl").is_file():
                kept = (folder if counted is None else counted / NODES_FOLDER / folder.name) / COUNTERS_FILE
                counters = functools.partial(_counters, file=kept, reads=reads_counters)
                return _of_run(RunView.read(folder), node, value, counters)
            if node.parent is None:
                return _of_baseline(RunView.read(run))
        except StoreError:
            return ()  # a log that is just being made says nothing yet
        return ()

    return evidence


def _of_run(
    view: RunView,
    node: Node,
    value: float | None,
    counters: Callable[[RunView, Evaluated], Mapping[str, Mapping[str, float]]],
) -> tuple[str, ...]:
    place = next((at for at, each in enumerate(view.evaluations) if value is not None and each.value == value), -1)
    # What came behind the tree's own knowledge is not told: the log may be ahead of it.
    count = len(view.evaluations) if node.failure is not None else max(node.tuning.evaluated_count, place + 1)
    events = view.evaluations[:count]
    failed = failure_lines([each for each in events if isinstance(each.outcome, Failed)][:MOST_FAILURES])
    best = view.evaluations[place] if place >= 0 else None
    if best is None or not isinstance(best.outcome, Passed):
        return tuple(failed)
    profiles = profile_of(view.started, best.outcome, counters(view, best))
    lines = [line for each in profiles for line in profile_lines(each)]
    known = noise_of([each.outcome for each in events])
    noise = max(known or 0.0, CLEARLY - 1)
    resources = resource_lines(best.outcome.resources, without=_untold(view))
    lines += [*resources, *_by_workload(events, best, 1 + noise)]
    others = [*other_configs(events, best, 1 + noise), *(doubt_lines(events, best) if _is_cpu(view) else [])]
    return (*lines, *others, noise_words(known), *_error_words(best.outcome), *failed)


def _counters(view: RunView, event: Evaluated, *, file: Path, reads: bool) -> Mapping[str, Mapping[str, float]]:
    """The counters of the longest kernel on each workload; what was read once is kept beside the log."""
    assert view.folder is not None
    kept = _kept_counters(file)
    if event.candidate_id in kept or not reads:
        return kept.get(event.candidate_id, {})
    try:
        kept[event.candidate_id] = of_longest(read_counters(view.folder, event)[0])
        file.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    except (KernelwrightError, OSError):
        return {}  # evidence that cannot be had must not end a run
    return kept[event.candidate_id]


def _kept_counters(file: Path) -> dict[str, Mapping[str, Mapping[str, float]]]:
    try:
        kept = read_json_text(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _of_baseline(view: RunView) -> tuple[str, ...]:
    if view.baseline is None or not isinstance(view.baseline.outcome, Passed):
        return ()
    outcome = view.baseline.outcome
    lines = ["times: " + ", ".join(time_words(each) for each in outcome.measurements)]
    lines += [line for each in profile_of(view.started, outcome) for line in profile_lines(each)]
    return (*lines, *resource_lines(outcome.resources, without=_untold(view)), noise_words(noise_of([outcome])))


def _untold(view: RunView) -> frozenset[str]:
    return UNTOLD_ON_A_CPU if _is_cpu(view) else UNTOLD


def _is_cpu(view: RunView) -> bool:
    return bool(view.started.device.get("kind") == "cpu")


def noise_of(outcomes: Sequence[Outcome]) -> float | None:
    """The least difference of two of these configs that is more than noise, as a fraction of their times.

    From the 95 % intervals of the medians on each workload; what disturbs one measurement and not the next comes on
    top. None: no config was measured to the end.
    """
    found = []
    for outcome in outcomes:
        if isinstance(outcome, Passed) and not outcome.stopped_early:
            widths = [
                median_interval(each.samples_ms).relative_half_width
                for each in outcome.measurements
                if len(each.samples_ms) >= LEAST_SAMPLES
            ]
            found += [math.sqrt(2) * statistics.fmean(widths)] if widths else []
    if not found:
        return None
    return sorted(found)[min(len(found) - 1, int(NOISE_QUANTILE * len(found)))]


def noise_words(known: float | None) -> str:
    """From which difference on two figures are told apart; None: nothing was launched often enough to say."""
    if known is None:
        return "noise: not known yet, since no configuration was launched often enough"
    noise = max(known, CLEARLY - 1)
    return (
        f"noise: two configurations whose figures differ by less than {math.ceil(100 * noise - 1e-9)} % are not told "
        "apart by these measurements; what else the machine does comes on top"
    )


def _error_words(outcome: Passed) -> list[str]:
    """How much of the tolerance is used up: what may still be traded for speed."""
    if not outcome.errors:
        return []
    worst = max(outcome.errors, key=lambda error: error.tolerance_fraction)
    return [f"its largest error is {worst.tolerance_fraction:.0%} of what is allowed there"]


def time_words(measurement: Measurement) -> str:
    """A workload's time, with the 95 % interval of its median where there are samples enough for one."""
    interval, count = median_interval(measurement.samples_ms), len(measurement.samples_ms)
    few = f"(of {count} launch{'es' if count > 1 else ''})"
    range_ms = f"[{interval.low:.3g}, {interval.high:.3g}]" if count >= LEAST_SAMPLES else few
    launches = " + ".join(f"{each:.3g}" for each in measurement.launches_ms)
    told = f" ({launches} in its launches)" if launches else ""
    return f"{measurement.workload} {interval.estimate:.3g} ms {range_ms}{told}"


def _median_ms(samples_ms: Sequence[float]) -> float:
    return statistics.median(samples_ms)


def resource_lines(resources: Mapping[str, Mapping[str, float]], *, without: frozenset[str] = UNTOLD) -> list[str]:
    """What compiler and driver read back, a line for each kernel, without what is zero."""
    lines = []
    for entry, figures in sorted(resources.items()):
        words = [_resource(name, value) for name, value in sorted(figures.items()) if value and name not in without]
        if words:
            lines.append(f"compiled {entry}: {'; '.join(words)}")
    return lines


def _resource(name: str, value: float) -> str:
    shown = f"{value:.0%}" if name == "occupancy" else f"{value:g}"
    return f"{shown} {RESOURCE_WORDS.get(name, name.replace('_', ' '))}"


def failure_lines(failed: Sequence[Evaluated]) -> list[str]:
    """How configs failed: a line for each way, with the first one's message."""
    ways: dict[tuple[str, str], list[Evaluated]] = {}
    for each in failed:
        assert isinstance(each.outcome, Failed)
        ways.setdefault((each.outcome.stage, each.outcome.reason), []).append(each)
    return [_way(alike) for alike in ways.values()]


def _way(alike: Sequence[Evaluated]) -> str:
    """One way of failing."""
    outcome = alike[0].outcome
    assert isinstance(outcome, Failed)
    first, *others = (
        ", ".join(f"{name}={value}" for name, value in each.config.items()) or "no parameters" for each in alike
    )
    where = f" on workload {outcome.workload!r}" if outcome.workload else ""
    message = " ".join(cleaned_message(outcome.message).split())[:MOST_ERROR]
    more = f"; so do {'; '.join(others)}" if others else ""
    return f"with {first}: {outcome.stage}: {outcome.reason}{where}: {message}{more}"


def other_configs(events: Sequence[Evaluated], best: Evaluated, clearly: float) -> list[str]:
    """What was measured beside the best, by what differs from it: no average mixes in how the others were chosen.

    Of those that took less than `clearly` times as long no figure is told: nobody can tell them from the best.
    """
    single: dict[str, str] = {}
    others: dict[str, str] = {}
    passed = [each for each in events if isinstance(each.outcome, Passed) and each.value is not None]
    for each in sorted(passed, key=lambda event: event.value or 0.0):
        changed = [f"{name}={value}" for name, value in each.config.items() if best.config.get(name) != value]
        if changed and each.value is not None and best.value:
            assert isinstance(each.outcome, Passed)
            ratio, least = each.value / best.value, "at least " if each.outcome.stopped_early else ""
            is_told = ratio >= clearly or each.outcome.stopped_early  # those that were stopped early lose
            words = f"{least}{ratio:.2f}x the time" if is_told else ""
            (single if len(changed) == 1 else others).setdefault(", ".join(changed), words)
    lines = []
    for what, found, most in (("one parameter", single, MOST_SINGLE), ("several", others, MOST_OTHERS)):
        shown = list(found.items())[:most]
        slower = [f"{changed}: {words}" for changed, words in shown if words]
        alike = [f"({changed})" if "," in changed else changed for changed, words in shown if not words]
        told = [*([f"no slower beyond the noise: {', '.join(alike)}"] if alike else []), *slower]
        if told:
            stopped = " (at least: stopped early)" if any("at least" in each for each in told) else ""
            lines.append(f"with {what} other than in the best config{stopped}: {'; '.join(told)}")
    return lines


def doubt_lines(events: Sequence[Evaluated], best: Evaluated) -> list[str]:
    """Why the best time may be the host's doing: all that differ in one parameter took much longer."""
    times = [
        each.value / best.value
        for each in events
        if isinstance(each.outcome, Passed)
        and each.value
        and best.value
        and sum(best.config.get(name) != value for name, value in each.config.items()) == 1
    ]
    if len(times) < LEAST_NEIGHBOURS or min(times) < LONELY:
        return []
    return [
        f"doubt: all {len(times)} configurations that differ in one parameter took at least {min(times):.2f}x the "
        "time: the best one may have been measured while the host did less"
    ]


def _by_workload(events: Sequence[Evaluated], best: Evaluated, clearly: float) -> list[str]:
    """Where a workload has a config of its own that is faster than the general best by `clearly`, and how much."""
    assert isinstance(best.outcome, Passed)
    general = {each.workload: _median_ms(each.samples_ms) for each in best.outcome.measurements}
    lines = ["times of the best config: " + ", ".join(time_words(each) for each in best.outcome.measurements)]
    if len(general) < 2:
        return lines
    agreeing: list[str] = []
    for name, time_ms in general.items():
        own, own_ms = best, time_ms
        for event in events:
            if isinstance(event.outcome, Passed):
                for each in event.outcome.measurements:
                    if each.workload == name and not each.stopped_early and _median_ms(each.samples_ms) < own_ms:
                        own, own_ms = event, _median_ms(each.samples_ms)
        other = [f"{key}={value}" for key, value in own.config.items() if best.config.get(key) != value]
        if other and time_ms / own_ms > clearly:
            lines.append(f"workload {name} alone is {time_ms / own_ms:.2f}x faster with {', '.join(other)}")
        else:
            agreeing.append(name)
    if len(agreeing) > 1 and any(event is not best and isinstance(event.outcome, Passed) for event in events):
        lines.append(f"no other config is faster beyond the noise on {', '.join(agreeing)}")
    return lines
