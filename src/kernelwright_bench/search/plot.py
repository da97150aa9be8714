"""What each strategy had found, against time, as one self-contained picture: a panel a space.

Up is better: the optimum over the best found, so that 1 is the optimum. Across is time, as a share of the space's
budget. Lines are the methodology's curves; bands are their 95% range when repeats are drawn again; the dashed line is
what random search is expected to have found.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kernelwright_bench.search.intervals import Binned
from kernelwright_bench.search.repeats import SpaceResult
from kernelwright_bench.search.results import Summary, short
from kernelwright_bench.search.score import Floats, curve_of

COLOURS = (
    "#d1495b", "#2563a8", "#2a8c5a", "#b06f00", "#7b4bb3", "#008b99", "#a8327e", "#6b7280", "#5c7c00", "#8a4b2a",
    "#3f51b5", "#c2553d", "#00695c", "#9e9d24", "#455a64",
)  # fmt: skip
"""Told apart on white and on dark; beyond these they repeat, dashed."""

BAND_LIMIT = 4
"""Strategies with bands in a panel, the first ones; more would hide each other."""

_WIDTH, _HEIGHT, _COLUMNS, _LEGEND_ROW = 470, 250, 2, 20
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 30, 34
_POINTS = 120

_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.t{font-weight:600;font-size:13px}.a{fill:#666;font-size:11px}"
    ".g{stroke:#ddd}.x{stroke:#888}.b{fill:none;stroke:#777;stroke-dasharray:4 3}.l{fill:none;stroke-width:1.8}"
    ".n{opacity:.16;stroke:none}.p{fill:#fff}"
    "@media (prefers-color-scheme:dark){text{fill:#eee}.a{fill:#aaa}.g{stroke:#333}.p{fill:#16181c}}"
)


@dataclass(frozen=True, slots=True)
class _Line:
    label: str
    colour: str
    share: Floats
    """Optimum over best found, (points,)."""
    low: Floats | None
    high: Floats | None


def draw_svg(results: Sequence[SpaceResult], *, seed: int = 0) -> str:
    """The picture as an `svg` element that stands alone."""
    labels = list(dict.fromkeys(result.strategy.label for result in results))
    spaces = list(dict.fromkeys(result.space for result in results))
    colours = {label: COLOURS[k % len(COLOURS)] for k, label in enumerate(labels)}
    banded = frozenset(labels[:BAND_LIMIT])
    legend, top = _legend(labels, colours)
    parts = []
    for place, space in enumerate(spaces):
        here = [result for result in results if result.space == space]
        x, y = place % _COLUMNS * _WIDTH, top + place // _COLUMNS * _HEIGHT
        parts.append(f'<g transform="translate({x} {y})">{_panel(space, here, colours, banded, seed)}</g>')
    width = _WIDTH * min(_COLUMNS, max(1, len(spaces)))
    height = top + _HEIGHT * math.ceil(len(spaces) / _COLUMNS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Best found against time, by space"><style>{_STYLE}</style>'
        f'<rect class="p" width="{width}" height="{height}"/>{legend}{"".join(parts)}</svg>\n'
    )


def draw_html(results: Sequence[SpaceResult], summary: Summary, *, seed: int = 0) -> str:
    """A page with the picture and the table of mean scores; it needs no other file."""
    rows = "".join(
        f"<tr><td>{html.escape(row.strategy)}</td><td>{row.space_count}</td><td>{row.score:.3f}</td>"
        f"<td>{row.here.low:.3f} to {row.here.high:.3f}</td><td>{row.worst:.2f} ({html.escape(short(row.worst_space))})"
        f"</td><td>{row.own_ms:.2g} ms</td></tr>"
        for row in sorted(summary.means, key=lambda row: -row.score)
    )
    heads = "".join(
        f"<th>{head}</th>" for head in ("strategy", "spaces", "mean score", "95%", "worst space", "own time")
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<title>Searchers on recorded spaces</title><style>:root{color-scheme:light dark}"
        "body{font:15px system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:.3rem .8rem;text-align:left;"
        "border-bottom:1px solid #8884}td{font-variant-numeric:tabular-nums}</style>"
        "<h1>Searchers on recorded spaces</h1><p>Score: 1 is the optimum from the start, 0 is random search.</p>"
        f"<table><tr>{heads}</tr>{rows}</table>{draw_svg(results, seed=seed)}</html>\n"
    )


def _legend(labels: Sequence[str], colours: dict[str, str]) -> tuple[str, int]:
    """Names with their colours in rows, and the height they take."""
    parts, x, row = [], 12.0, 0
    for label in (*labels, "random search, expected"):
        width = 40 + 6.8 * len(label)
        if x + width > _WIDTH * _COLUMNS and x > 12:
            x, row = 12.0, row + 1
        y = 18 + row * _LEGEND_ROW
        style = f'class="l" stroke="{colours[label]}"' if label in colours else 'class="b"'
        parts.append(
            f'<path {style} d="M{x:.0f} {y - 4}h20"/><text x="{x + 26:.0f}" y="{y}">{html.escape(label)}</text>'
        )
        x += width
    return "".join(parts), 14 + (row + 1) * _LEGEND_ROW


def _panel(
    space: str, results: Sequence[SpaceResult], colours: dict[str, str], banded: frozenset[str], seed: int
) -> str:
    baseline = results[0].baseline
    at = np.unique(np.linspace(0, len(baseline.time_s) - 1, _POINTS).astype(int))
    across = _LEFT + baseline.time_s[at] / baseline.budget_s * (_WIDTH - _LEFT - _RIGHT)
    expected = baseline.optimum / baseline.expected[at]
    lines = [
        _line(result, at, colours[result.strategy.label], seed, has_band=result.strategy.label in banded)
        for result in results
    ]
    low = min(float(np.min(values)) for values in (expected, *(line.share for line in lines)))
    low = math.floor(5 * min(low, 0.95)) / 5

    def up(share: Floats) -> Floats:
        place: Floats = _HEIGHT - _BOTTOM - (np.maximum(share, low) - low) / (1 - low) * (_HEIGHT - _TOP - _BOTTOM)
        return place

    parts = [f'<text class="t" x="{_LEFT}" y="16">{html.escape(short(space))}</text>', _axes(low)]
    for line in lines:
        if line.low is not None and line.high is not None:
            edge = [*zip(across, up(line.high), strict=True), *reversed(list(zip(across, up(line.low), strict=True)))]
            parts.append(f'<path class="n" fill="{line.colour}" d="{_path(edge)}Z"/>')
    parts.append(f'<path class="b" d="{_path(zip(across, up(expected), strict=True))}"/>')
    for line in reversed(lines):
        path = _path(zip(across, up(line.share), strict=True))
        title = f"<title>{html.escape(line.label)}</title>"
        parts.append(f'<path class="l" stroke="{line.colour}" d="{path}">{title}</path>')
    return "".join(parts)


def _line(result: SpaceResult, at: np.ndarray, colour: str, seed: int, *, has_band: bool) -> _Line:
    baseline = result.baseline
    share = baseline.optimum / curve_of(baseline, result.trajectories)[at]
    low = high = None
    if has_band and len(result.repeats) > 1:
        best, worst = Binned.of(baseline, result.trajectories).band(np.random.default_rng(seed))
        low, high = baseline.optimum / worst[at], baseline.optimum / best[at]
    return _Line(result.strategy.label, colour, share, low, high)


def _axes(low: float) -> str:
    parts = []
    for share in np.linspace(low, 1, 5):
        y = _HEIGHT - _BOTTOM - (share - low) / (1 - low) * (_HEIGHT - _TOP - _BOTTOM)
        parts.append(f'<path class="g" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="a" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.2f}</text>')
    bottom = _HEIGHT - _BOTTOM
    parts.append(f'<path class="x" d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}"/>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
        anchor = "end" if share == 1 else "middle"
        parts.append(f'<text class="a" x="{x:.0f}" y="{bottom + 15}" text-anchor="{anchor}">{share:.0%}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="a" x="{middle:.0f}" y="{_HEIGHT - 5}" text-anchor="middle">time, of the budget</text>')
    return "".join(parts)


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
