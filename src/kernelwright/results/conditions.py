"""What a run's measurements say of the machine: throttling, and timers that changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kernelwright.problem.outcome import Conditions, Measurement, Passed
from kernelwright.store.view import RunView


def measurement_notes(view: RunView) -> list[str]:
    """What a person should know before trusting the times; empty when there is nothing."""
    return [*_throttling(view), *_timers(view)]


def summary_of(view: RunView) -> dict[str, str]:
    """Timers and the span of clocks, temperature and power over all sets of samples, in words; what is known of it."""
    conditions = _conditions(view)
    timers = Counter(each.timer for each in _measurements(view))
    found = {"timer": ", ".join(timers)} if timers else {}
    figures = {
        "clock": ([value for each in conditions for value in (each.clock_mhz_min, each.clock_mhz_median)], "MHz"),
        "temperature": ([each.temperature_c_max for each in conditions], "C"),
        "power": ([each.power_w_median for each in conditions], "W"),
    }
    for name, (values, unit) in figures.items():
        known = [value for value in values if value is not None]
        if known:
            found[name] = f"{min(known):.0f} to {max(known):.0f} {unit}"
    if conditions:
        reasons = throttled_by(view)
        listed = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        found["throttled"] = f"{listed} of {len(conditions)} sets of samples" if reasons else "never"
    return found


def throttled_by(view: RunView) -> Counter[str]:
    """Sets of samples during which the device was slower than it could be, by reason."""
    return Counter(reason for each in _conditions(view) for reason in each.throttled_by)


def _measurements(view: RunView) -> Iterator[Measurement]:
    outcomes = [event.outcome for event in view.evaluations if event.source == "measured"]
    if view.baseline is not None:
        outcomes.insert(0, view.baseline.outcome)
    for outcome in outcomes:
        if isinstance(outcome, Passed):
            yield from outcome.measurements


def _conditions(view: RunView) -> list[Conditions]:
    found = [each.conditions for each in _measurements(view)]
    found += view.comparison.conditions.values() if view.comparison is not None else []
    return [each for each in found if each is not None]


def _throttling(view: RunView) -> Iterator[str]:
    conditions = _conditions(view)
    reasons = throttled_by(view)
    if not reasons:
        return
    count = sum(bool(each.throttled_by) for each in conditions)
    clocks = [each.clock_mhz_min for each in conditions if each.clock_mhz_min is not None]
    span = f"; its clock was between {min(clocks):.0f} and {max(clocks):.0f} MHz" if clocks else ""
    listed = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common())
    text = (
        f"the device was throttled in {count} of {len(conditions)} sets of samples ({listed}){span}: times are as "
        "measured, and only interleaved ratios stand"
    )
    final = [each for each in (view.comparison.conditions.values() if view.comparison else ()) if each.throttled_by]
    yield text + (", of which the final comparison's were throttled alike" if final else "")


def _timers(view: RunView) -> Iterator[str]:
    timers = Counter(each.timer for each in _measurements(view))
    if len(timers) > 1:
        listed = ", ".join(f"{timer} {number}" for timer, number in timers.most_common())
        yield f"times are by different timers ({listed} sets of samples), which do not compare to a few microseconds"
