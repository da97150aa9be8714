"""The charts of the page, each a pure function from rows to markup for one width."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kernelwright.evaluate.words import factor_text
from kernelwright.problem.config import Value
from kernelwright.report.facts import Row
from kernelwright.report.svg import Plot, Point, dots, element, label, log_ticks, number, polyline, staircase, tick_text

FAIL_BAND_PX = 18
"""Height of the band under a chart in which failures are marked: they have no time, so no height."""
MOST_DOTS = 1200
"""More dots than this in one chart overlap anyway; every k-th is drawn, and all of the fastest."""
FEW_DOTS = 8
"""A value of a parameter has so many in a chart, spread evenly."""
MOST_GROUPS = 12
"""Values of one parameter that a chart keeps apart; more are put into ranges."""


def factor(value: float) -> str:
    """A speedup for a person: `2.31×`; more digits where it would read as 1 and is not."""
    text = number(value)
    return factor_text(value, times="×") if float(text.replace("\u202f", "")) == 1 != value else f"{text}×"


def _log_range(values: Sequence[float], *, always: float = 1.0) -> tuple[float, float]:
    """A range that holds `values` and `always`, with room at both ends and never narrower than a factor of 1.2."""
    low, high = min([*values, always]), max([*values, always])
    room = max((high / low) ** 0.06, 1.1)
    return low / room, high * room


def thinned(rows: Sequence[Row], limit: int = MOST_DOTS) -> Sequence[Row]:
    """At most about `limit` rows with a speedup: evenly over time, and all of the fastest tenth of the limit."""
    timed = [row for row in rows if row.speedup is not None]
    if len(timed) <= limit:
        return timed
    fastest = sorted(timed, key=lambda row: -(row.speedup or 0.0))[: limit // 10]
    kept = {row.index for row in fastest} | {row.index for row in timed[:: math.ceil(len(timed) / limit)]}
    return [row for row in timed if row.index in kept]


def convergence(rows: Sequence[Row], width: int, *, by_seconds: bool) -> Markup:
    """Every evaluation's speedup in the order they finished, and the best so far."""
    timed = [row for row in rows if row.speedup is not None]

    def at(row: Row) -> float:
        return row.elapsed_s if by_seconds else row.index + 1.0

    end = max((at(row) for row in rows), default=1.0)
    plot = Plot(
        width,
        280,
        (0.0, max(end, 1e-3)),
        _log_range([row.speedup or 1.0 for row in timed]),
        "seconds of budget spent" if by_seconds else "evaluations",
        "speedup over the baseline",
        is_y_log=True,
        bottom_px=40,
        floor_px=FAIL_BAND_PX,
    )
    plot.horizontal(1.0, "baseline-line", "baseline")
    shown = thinned(rows)
    for css_class, kept in (
        ("stopped", [row for row in shown if row.status == "stopped early"]),
        ("passed", [row for row in shown if row.status == "passed"]),
    ):
        points = [(plot.x(at(row)), plot.y(row.speedup or 1.0)) for row in kept]
        plot.add(dots(points, css_class, indices=[row.index for row in kept]))
    failed = [row for row in rows if row.status == "failed"]
    if failed:
        fail_y = plot.height - plot.bottom_px - FAIL_BAND_PX / 2
        plot.add(dots([(plot.x(at(row)), fail_y) for row in failed], "failed", indices=[row.index for row in failed]))
        plot.add(label(plot.left_px - 7, fail_y + 4, "failed", anchor="end", css_class="tick fail-label"))
    steps = best_so_far(rows)
    if steps:
        points = [(plot.x(at(row)), plot.y(row.speedup or 1.0)) for row in steps]
        plot.add(staircase(points, plot.x(end), "best-line"))
        x, y = points[-1]
        plot.add(element("circle", cx=x, cy=y, r=5, class_="best-ring"))
        place = "end" if x > width * 0.6 else "start"
        shift = -9 if place == "end" else 9
        best = f"best {factor(steps[-1].speedup or 1.0)}"
        plot.add(label(x + shift, y - 8, best, anchor=place, css_class="label best-label"))
    axis = "seconds" if by_seconds else "evaluations"
    return plot.render(f"Speedup of every evaluation and the best so far, against {axis}")


def best_so_far(rows: Sequence[Row]) -> list[Row]:
    """The evaluations that improved on all before them; estimates of stopped measurements do not count."""
    steps: list[Row] = []
    for row in rows:
        is_better = row.speedup is not None and (not steps or row.speedup > (steps[-1].speedup or 0.0))
        if row.status == "passed" and is_better:
            steps.append(row)
    return steps


def distribution(rows: Sequence[Row], width: int) -> Markup:
    """How many configs run how fast: a histogram on a logarithmic axis, with the baseline marked."""
    values = sorted(row.speedup for row in rows if row.speedup is not None)
    low, high = _log_range(values)
    bins = max(6, min(width // 16, 4 + 2 * math.isqrt(len(values))))
    counts = [0] * bins
    for value in values:
        place = int(math.log(value / low) / math.log(high / low) * bins)
        counts[min(max(place, 0), bins - 1)] += 1
    plot = Plot(
        width,
        240,
        (low, high),
        (0.0, max(counts) * 1.12),
        "speedup over the baseline",
        "configurations",
        is_x_log=True,
        is_y_whole=True,
    )
    for place, count in enumerate(counts):
        if not count:
            continue
        start = low * (high / low) ** (place / bins)
        end = low * (high / low) ** ((place + 1) / bins)
        x, right, y = plot.x(start) + 0.5, plot.x(end) - 0.5, plot.y(count)
        kind = "bar-faster" if math.sqrt(start * end) > 1.0 else "bar-slower"
        title = element("title", f"{count} between {factor(start)} and {factor(end)}")
        bottom = plot.height - plot.bottom_px
        plot.add(element("rect", title, x=x, y=y, width=right - x, height=bottom - y, class_=kind))
    plot.vertical(1.0, "baseline-line", "baseline")
    return plot.render("Histogram of the speedups of all configurations that passed")


@dataclass(frozen=True, slots=True)
class _Group:
    """Configs that share a value (or a range of values) of one parameter."""

    label: str
    rows: tuple[Row, ...]

    @property
    def best(self) -> Row | None:
        """The fastest of them."""
        timed = [row for row in self.rows if row.speedup is not None]
        return max(timed, key=lambda row: row.speedup or 0.0, default=None)


def groups(rows: Sequence[Row], name: str, declared: Sequence[Value] = ()) -> tuple[_Group, ...]:
    """Rows by value of a parameter, in the declared order; numbers beyond `MOST_GROUPS` values go into ranges."""
    seen: dict[Value, list[Row]] = {value: [] for value in declared}
    for row in rows:
        if name in row.config:
            seen.setdefault(row.config[name], []).append(row)
    filled = {value: tuple(members) for value, members in seen.items() if members}
    if len(filled) <= MOST_GROUPS:
        return tuple(_Group(value_text(value), members) for value, members in filled.items())
    ordered = list(filled)
    if all(isinstance(value, int | float) for value in ordered):
        ordered.sort(key=float)
    size = math.ceil(len(ordered) / MOST_GROUPS)
    parts = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return tuple(
        _Group(
            value_text(part[0]) if len(part) == 1 else f"{value_text(part[0])}–{value_text(part[-1])}",
            tuple(row for value in part for row in filled[value]),
        )
        for part in parts
    )


def value_text(value: Value) -> str:
    """A parameter's value as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def strip(rows: Sequence[Row], name: str, declared: Sequence[Value], winner: Value | None) -> Markup:
    """Speedups by value of one parameter: every config a dot, the median and the best of each value marked."""
    found = groups(rows, name, declared)
    width, height = 340, 190
    all_values = [row.speedup for row in rows if row.speedup is not None]
    plot = Plot(
        width,
        height,
        (0.0, float(len(found))),
        _log_range(all_values),
        "",
        "speedup",
        is_y_log=True,
        bottom_px=26,
        left_px=40,
        right_px=6,
        top_px=20,
        x_ticks=(),
    )
    plot.horizontal(1.0, "baseline-line")
    slot = (width - 46) / len(found)
    shown = {row.index for row in thinned(rows, 400)}
    for place, group in enumerate(found):
        timed = sorted((row for row in group.rows if row.speedup is not None), key=lambda row: row.speedup or 0.0)
        middle = plot.x(place + 0.5)
        kept = [row for row in timed if row.index in shown]
        spread = _spread([row.index for row in kept])
        points = [(middle + spread[row.index] * slot * 0.33, plot.y(row.speedup or 1.0)) for row in kept]
        plot.add(dots(points, "passed small", indices=[row.index for row in kept]))
        if timed:
            y = plot.y(timed[len(timed) // 2].speedup or 1.0)
            half = min(slot * 0.36, 22)
            told = f"{name} = {group.label}: median {factor(timed[len(timed) // 2].speedup or 1.0)} of {len(timed)}"
            bar = f"M{middle - half:.1f} {y:.1f}h{2 * half:.1f}"
            plot.add(element("path", element("title", told), class_="median", d=bar))
        text = _shortened(group.label, int(slot / 6.2))
        is_winner = winner is not None and group.label == value_text(winner)
        plot.add(label(middle, height - 8, text, anchor="middle", css_class="tick chosen" if is_winner else "tick"))
    return plot.render(f"Speedup by value of {name}", css_class="strip")


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= max(length, 3) else text[: max(length, 3) - 1] + "…"


def _spread(indices: Sequence[int]) -> dict[int, float]:
    """By evaluation a place in -1..1 beside its group's middle: few stand evenly around it, many as if at random."""
    if len(indices) > FEW_DOTS:
        return {index: _jitter(index) for index in indices}
    ordered = sorted(indices)
    return {index: (2 * place + 1) / len(ordered) - 1 for place, index in enumerate(ordered)}


def _jitter(index: int) -> float:
    """A fixed spread in -1..1, the same on every run: the fractional part of multiples of the golden ratio."""
    return 2.0 * (index * 0.6180339887 % 1.0) - 1.0


@dataclass(frozen=True, slots=True)
class _Cell:
    """One pair of values in the interaction table."""

    best: float | None
    """The best speedup seen there; None: nothing with this pair passed."""
    count: int
    heat: float
    """0 for the slowest cell, 1 for the fastest."""


@dataclass(frozen=True, slots=True)
class _Heatmap:
    """The best speedup for each pair of values of two parameters."""

    first: str
    second: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[_Cell, ...]], ...]


def heatmap(rows: Sequence[Row], first: str, second: str, declared: Mapping[str, Sequence[Value]]) -> _Heatmap:
    """A table with the values of `first` as rows and of `second` as columns."""
    timed = [row for row in rows if row.speedup is not None]
    down = groups(timed, first, declared.get(first, ()))
    across = groups(timed, second, declared.get(second, ()))
    table: list[list[tuple[float | None, int]]] = []
    for a in down:
        line: list[tuple[float | None, int]] = []
        for b in across:
            members = {row.index for row in b.rows}
            found = [row.speedup for row in a.rows if row.index in members and row.speedup is not None]
            line.append((max(found, default=None), len(found)))
        table.append(line)
    logs = [math.log(best) for line in table for best, _ in line if best is not None]
    low, spread = min(logs, default=0.0), (max(logs, default=1.0) - min(logs, default=0.0)) or 1.0
    cells = [
        tuple(_Cell(best, count, 0.0 if best is None else (math.log(best) - low) / spread) for best, count in line)
        for line in table
    ]
    return _Heatmap(
        first,
        second,
        tuple(group.label for group in across),
        tuple((group.label, line) for group, line in zip(down, cells, strict=True)),
    )


def roofline_chart(
    points: Mapping[tuple[str, str], tuple[float, float]],
    width: int,
    *,
    bytes_per_s: float | None,
    operations_per_s: float | None,
) -> Markup:
    """Achieved operations per second against operations per byte, under the measured ceilings.

    Args:
        points: operations per byte and per second, by workload and what is measured: `baseline` or `winner`.
        width: in pixels.
        bytes_per_s: the ceiling of memory.
        operations_per_s: the ceiling of arithmetic.
    """
    x_values = [per_byte for per_byte, _ in points.values()]
    y_values = [per_s / 1e9 for _, per_s in points.values()]
    if bytes_per_s and operations_per_s:
        x_values.append(operations_per_s / bytes_per_s)
    x_low, x_high = min(x_values) / 3, max(x_values) * 3
    if bytes_per_s:
        y_values.append(bytes_per_s * x_high / 1e9)
    if operations_per_s:
        y_values.append(operations_per_s / 1e9)
    plot = Plot(
        width,
        300,
        (x_low, x_high),
        (min(y_values) / 2, max(y_values) * 1.6),
        "operations per byte of compulsory traffic",
        "10⁹ operations per second",
        is_x_log=True,
        is_y_log=True,
        left_px=54,
    )
    if bytes_per_s:
        plot.add(polyline(_roof(plot, bytes_per_s / 1e9, operations_per_s), "roof"))
        at = max(x_low * (x_high / x_low) ** 0.06, plot.y_range[0] / (bytes_per_s / 1e9))
        text = f"measured copy {number(bytes_per_s / 1e9)} GB/s"
        plot.add(label(plot.x(at) + 12, plot.y(bytes_per_s / 1e9 * at) + 14, text, css_class="label roof-label"))
    if operations_per_s:
        plot.horizontal(operations_per_s / 1e9, "roof", f"{number(operations_per_s / 1e9)} G operations/s")
    for (workload, kind), (per_byte, per_s) in points.items():
        title = element("title", f"{workload}, {kind}: {number(per_s / 1e9)} G operations/s")
        plot.add(element("circle", title, cx=plot.x(per_byte), cy=plot.y(per_s / 1e9), r=5, class_=f"roof-{kind}"))
    return plot.render("Roofline: achieved performance under the measured ceilings")


def _roof(plot: Plot, slope: float, flat: float | None) -> list[Point]:
    low, high = plot.x_range
    knee = min(high, flat / 1e9 / slope) if flat else high
    start = max(low, plot.y_range[0] / slope)
    points = [(plot.x(start), plot.y(start * slope)), (plot.x(knee), plot.y(knee * slope))]
    return points if knee >= high else [*points, (plot.x(high), plot.y(knee * slope))]


def share_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Labelled places, in percent of the way from `low` to `high` on a logarithmic scale, far enough apart to read."""
    kept: list[tuple[float, str]] = []
    for value in log_ticks(low, high, 4):
        at = position(value, low, high)
        if not kept or at - kept[-1][0] >= 20:
            kept.append((at, tick_text(value)))
    return tuple(kept)


def position(value: float, low: float, high: float) -> float:
    """Percent of the way from `low` to `high` on a logarithmic scale, held to 0..100."""
    if high <= low:
        return 50.0
    return 100.0 * min(max(math.log(value / low) / math.log(high / low), 0.0), 1.0)
