"""Small SVG charts: scales, axes and marks, drawn without a plotting library.

A page holds every chart twice, once for a wide and once for a narrow screen, so that text stays readable on both; a
chart is therefore a function of its width. Colours come from the page's style sheet through classes, so that the same
marks serve light and dark. All text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from kernelwright.report.text import clean

NARROW_PX = 340
"""Width of the drawing on a phone: 390 pixels less the page's margins."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Maps data in `low..high` to pixels in `start_px..end_px`, linearly or by logarithm (then `low > 0`)."""

    low: float
    high: float
    start_px: float
    end_px: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of `value`, held inside the drawing."""
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, 1e-300))
        fraction = 0.5 if high == low else (at - low) / (high - low)
        return self.start_px + min(max(fraction, 0.0), 1.0) * (self.end_px - self.start_px)

    def ticks(self, count: int = 5) -> tuple[float, ...]:
        """About `count` round values inside the range."""
        return log_ticks(self.low, self.high, count) if self.is_log else linear_ticks(self.low, self.high, count)


def linear_ticks(low: float, high: float, count: int) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 times a power of ten inside `low..high`."""
    if high <= low:
        return (low,)
    raw = (high - low) / max(count, 1)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1.0, 2.0, 5.0, 10.0) if m * magnitude >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # where the range is as narrow as floating point itself, neighbouring ticks fall together
    return tuple(dict.fromkeys(round(index * step, 12) for index in range(first, last + 1)))


def log_ticks(low: float, high: float, count: int) -> tuple[float, ...]:
    """Values 1, 2, 5 times powers of ten inside `low..high`, or powers of ten alone when those are enough."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        ticks = [
            m * 10.0**decade for decade in decades for m in mantissas if low * 0.999 <= m * 10.0**decade <= high * 1.001
        ]
        if len(ticks) >= min(4, count):
            stride = math.ceil(len(ticks) / max(count + 2, 1))
            return tuple(ticks[::stride])
    return linear_ticks(low, high, count)


def number(value: float, digits: int = 3) -> str:
    """`value` for a person: `digits` significant digits, no exponent in everyday ranges, thin grouping of thousands.

    Whole numbers of type `int` (counts) keep all their digits.
    """
    if isinstance(value, int) and abs(value) < 10**12:
        return f"{value:,}".replace(",", "\u202f")
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if abs(value) >= 1e9 or abs(value) < 1e-4:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}".replace(",", "\u202f")


def tick_text(value: float) -> str:
    """A tick's label: as short as the value allows."""
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:.10g}"


def element(tag: str, *children: str | Markup, **attributes: object) -> Markup:
    """One element; `class_` is `class`, `_` becomes `-`; text and attributes are escaped, Markup is kept."""
    parts = [
        f'{name.rstrip("_").replace("_", "-")}="{escape(clean(_plain(value)))}"'
        for name, value in attributes.items()
        if value is not None
    ]
    head = " ".join([tag, *parts])
    if not children:
        return Markup(f"<{head}/>")  # noqa: S704 - every attribute above is escaped
    return Markup(f"<{head}>{''.join(_safe(child) for child in children)}</{tag}>")  # noqa: S704 - as above


def _safe(child: str | Markup) -> Markup:
    return child if isinstance(child, Markup) else escape(clean(child))


def _plain(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def dots(points: Iterable[Point], css_class: str, *, indices: Sequence[int] = ()) -> Markup:
    """Many round dots as one path (the style sheet gives the stroke's width), with what each stands for."""
    path = "".join(f"M{_plain(x)} {_plain(y)}h0" for x, y in points)
    if not path:
        return Markup("")
    return element("path", class_=f"dots {css_class}", d=path, data_i=",".join(map(str, indices)) or None)


def polyline(points: Sequence[Point], css_class: str) -> Markup:
    """A connected line."""
    if not points:
        return Markup("")
    path = "M" + "L".join(f"{_plain(x)} {_plain(y)}" for x, y in points)
    return element("path", class_=css_class, d=path)


def staircase(points: Sequence[Point], end_x: float, css_class: str) -> Markup:
    """A line that keeps each value until the next point, up to `end_x`."""
    if not points:
        return Markup("")
    x, y = points[0]
    path = f"M{_plain(x)} {_plain(y)}" + "".join(f"H{_plain(px)}V{_plain(py)}" for px, py in points[1:])
    return element("path", class_=css_class, d=f"{path}H{_plain(end_x)}")


def label(x: float, y: float, text: str, *, anchor: str = "start", css_class: str = "label") -> Markup:
    """Text whose baseline starts (or ends, or has its middle) at a point."""
    return element("text", text, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=css_class)


@dataclass(slots=True)
class Plot:
    """A chart with two axes. Make it, `add` marks using `x(...)` and `y(...)`, then `render`."""

    width: int
    height: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_label: str
    y_label: str
    is_x_log: bool = False
    is_y_log: bool = False
    left_px: int = 46
    right_px: int = 14
    top_px: int = 26
    bottom_px: int = 40
    floor_px: int = 0
    """A band between the vertical scale's lower end and the axis, for marks that have no value."""
    is_y_whole: bool = False
    """Vertical ticks at whole numbers only, for counts."""
    tick_format: Callable[[float], str] = tick_text
    x_ticks: tuple[float, ...] | None = None
    _marks: list[Markup] = field(default_factory=list)

    @property
    def x(self) -> AxisScale:
        """The horizontal scale."""
        return AxisScale(*self.x_range, self.left_px, self.width - self.right_px, self.is_x_log)

    @property
    def y(self) -> AxisScale:
        """The vertical scale; larger values are higher up."""
        return AxisScale(*self.y_range, self.height - self.bottom_px - self.floor_px, self.top_px, self.is_y_log)

    def add(self, *marks: Markup) -> None:
        """Draw marks over those already there."""
        self._marks.extend(marks)

    def horizontal(self, value: float, css_class: str, text: str = "") -> None:
        """A line across the whole chart at `value`, with a label above its right end."""
        y = self.y(value)
        self.add(element("path", class_=css_class, d=f"M{self.left_px} {_plain(y)}H{self.width - self.right_px}"))
        if text:
            self.add(
                label(
                    self.width - self.right_px,
                    y - 5,
                    text,
                    anchor="end",
                    css_class=f"label {css_class}-label",
                )
            )

    def vertical(self, value: float, css_class: str, text: str = "") -> None:
        """A line from bottom to top at `value`, with a label beside its top, on the side that has room."""
        x = self.x(value)
        bottom = self.height - self.bottom_px
        self.add(element("path", class_=css_class, d=f"M{_plain(x)} {self.top_px}V{bottom}"))
        if text:
            is_left = x > self.width * 0.6
            self.add(
                label(
                    x - 6 if is_left else x + 6,
                    self.top_px + 11,
                    text,
                    anchor="end" if is_left else "start",
                    css_class=f"label {css_class}-label",
                )
            )

    def _axes(self) -> Markup:
        x, y = self.x, self.y
        bottom, right = self.height - self.bottom_px, self.width - self.right_px
        parts = []
        for value in y.ticks(5):
            at = y(value)
            if (self.is_y_whole and value != int(value)) or (self.floor_px and at > y.start_px - 10):
                continue
            parts.append(element("path", class_="grid", d=f"M{self.left_px} {_plain(at)}H{right}"))
            parts.append(label(self.left_px - 7, at + 4, self.tick_format(value), anchor="end", css_class="tick"))
        x_ticks = x.ticks(max(3, self.width // 90)) if self.x_ticks is None else self.x_ticks
        for value in x_ticks:
            at = x(value)
            parts.append(element("path", class_="tick-mark", d=f"M{_plain(at)} {bottom}v4"))
            parts.append(label(at, bottom + 17, tick_text(value), anchor="middle", css_class="tick"))
        parts.append(element("path", class_="axis", d=f"M{self.left_px} {bottom}H{right}"))
        middle = (self.left_px + right) / 2
        parts.append(label(middle, self.height - 5, self.x_label, anchor="middle", css_class="axis-label"))
        parts.append(label(2, 12, self.y_label, css_class="axis-label"))
        return Markup("").join(parts)

    def render(self, title: str, *, css_class: str = "") -> Markup:
        """The chart as an `svg` element with `title` as its accessible name."""
        return drawing(self.width, self.height, title, [self._axes(), *self._marks], css_class=css_class)


def drawing(width: float, height: float, title: str, marks: Iterable[Markup], *, css_class: str = "") -> Markup:
    """An `svg` element that scales with its container, with `title` as its accessible name."""
    return element(
        "svg",
        *marks,
        viewBox=f"0 0 {_plain(float(width))} {_plain(float(height))}",
        role="img",
        aria_label=title,
        class_=f"chart {css_class}".strip(),
        style=f"max-width:{round(width * 1.15)}px",
    )


def responsive(draw: Callable[[int], Markup], wide_px: int) -> Markup:
    """The same chart for a wide and for a narrow screen; the style sheet shows one of them."""
    wide = element("div", draw(wide_px), class_="wide")
    narrow = element("div", draw(NARROW_PX), class_="narrow")
    return Markup("").join([wide, narrow])
