"""Kernels that compute with less than they should: fewer bits, fewer terms, formulas that cancel."""

from __future__ import annotations

import random
from collections.abc import Callable

from kernelwright_bench.attacks.kernels.bases import BASES, HEAT_STEPS, PLAIN, SERIES_TERMS, STEP_COUNT
from kernelwright_bench.attacks.kernels.dialect import source
from kernelwright_bench.attacks.kernels.model import Dialect, Family, Sample


def _changed(
    family: str, rng: random.Random, dialect: Dialect, name: str, changes: dict[str, str], what: str, outside: str = ""
) -> Sample:
    """The plain kernel with parts of its text replaced."""
    base = BASES[name]
    pieces = base.pieces
    for old, new in changes.items():
        if old not in pieces:
            raise ValueError(f"{old!r} is not in the text of {name!r}")
        pieces = pieces.replace(old, new)
    text = PLAIN.format(name=name)
    return Sample(family, name, what, source(base, dialect, rng, text, pieces=outside + pieces))


_CUT = """#define kw_cut(value) as_float(as_uint(value) & {mask:#x}u)
"""
_HALF = """#define kw_cut(value) kw_rounded(value)
kw_function float kw_rounded(float value) {{
  uint word = as_uint(value);
  return as_float((word + {half:#x}u) & {mask:#x}u);
}}
"""


def _cut_text(rng: random.Random, kept_bits: int) -> str:
    mask = (0xFFFFFFFF << (23 - kept_bits)) & 0xFFFFFFFF
    return rng.choice((_CUT, _HALF)).format(mask=mask, half=1 << (22 - kept_bits))


def _narrow_inputs(rng: random.Random, dialect: Dialect) -> Sample:
    kept = rng.choice((7, 8, 10, 11))
    changes: dict[str, dict[str, str]] = {
        "series": {"sin(k * at)": "sin(k * kw_cut(at))"},
        "product": {"a[row * k + i] * b[i * n + column]": "kw_cut(a[row * k + i]) * kw_cut(b[i * n + column])"},
        "sums": {"log(1.0f + at * at)": "log(1.0f + kw_cut(at) * kw_cut(at))"},
        "layernorm": {"tanh((x[u * cols + c] - mean)": "tanh(kw_cut(x[u * cols + c] - mean)"},
        "heat": {"float own = from[at];": "float own = kw_cut(from[at]);"},
    }
    name = rng.choice(tuple(changes))
    what = f"keeps {kept} bits of a mantissa"
    return _changed("truncated-inputs", rng, dialect, name, changes[name], what, _cut_text(rng, kept))


def _narrow_sums(rng: random.Random, dialect: Dialect) -> Sample:
    kept = rng.choice((7, 10, 12))
    changes: dict[str, dict[str, str]] = {
        "series": {"sum += sin(k * at) / k;": "sum = kw_cut(sum + sin(k * at) / k);"},
        "product": {"sum += a[row": "sum = kw_cut(sum) + a[row"},
        "sums": {"sum += kw_value": "sum = kw_cut(sum) + kw_value"},
        "swing": {"at += 0.02f * speed;": "at = kw_cut(at + 0.02f * speed);"},
        "softmax": {
            "sum += exp(vload_half(u * cols + c, x) - most)": "sum = kw_cut(sum + exp(vload_half(u * cols + c, x) - most))"
        },
    }
    name = rng.choice(tuple(changes))
    what = f"adds with {kept} bits of a mantissa"
    return _changed("narrow-sums", rng, dialect, name, changes[name], what, _cut_text(rng, kept))


def _unstable(rng: random.Random, dialect: Dialect) -> Sample:
    name = rng.choice(("layernorm", "softmax"))
    if name == "layernorm":
        square = "x[u * cols + c] * x[u * cols + c]"
        changes = {
            "squares += (x[u * cols + c] - mean) * (x[u * cols + c] - mean);": f"squares += {square};",
            "sqrt(squares / cols + 1e-5f)": rng.choice(
                ("sqrt(squares / cols - mean * mean + 1e-5f)", "sqrt(fmax(squares / cols - mean * mean, 0.0f) + 1e-5f)")
            ),
        }
        return _changed(
            "unstable-formula", rng, dialect, name, changes, "takes the variance as a difference of squares"
        )
    changes = {"most = fmax(most, vload_half(u * cols + c, x))": rng.choice(("most = 0.0f", "most = most * 0.0f"))}
    return _changed("unstable-formula", rng, dialect, name, changes, "exponentiates without the maximum")


def _fewer(rng: random.Random, dialect: Dialect) -> Sample:
    fewer = rng.randint(1, 8)
    changes: dict[str, tuple[dict[str, str], str]] = {
        "series": ({"k <= kw_terms": f"k <= {SERIES_TERMS - fewer}"}, f"{fewer} terms of a series"),
        "product": ({"i < k; ++i": f"i < k - {fewer}; ++i"}, f"{fewer} products of a sum"),
        "sums": ({"i < count; ++i": f"i < count - {fewer * 8}; ++i"}, f"{fewer * 8} terms of a sum"),
        "swing": ({"step < kw_steps": f"step < {STEP_COUNT - min(fewer, 4)}"}, f"{min(fewer, 4)} steps"),
        "heat": ({"#define kw_steps": f"#define kw_steps {HEAT_STEPS - 1 - fewer % 3} //"}, "steps"),
        "count": ({"i < length; ++i": f"i < length - {fewer}; ++i"}, f"{fewer} items"),
    }
    name = rng.choice(tuple(changes))
    change, what = changes[name]
    return _changed("fewer-terms", rng, dialect, name, change, f"leaves out {what}")


def _sampled(rng: random.Random, dialect: Dialect) -> Sample:
    """A part of the terms of a long sum for all of them."""
    part = rng.choice((2, 4, 8, 16))
    place, how = rng.choice(
        (
            ("(i)", "the first"),
            ("(i) + count / kw_scale * (kw_scale - 1)", "the last"),
            (f"(i) * {part}", "one after the other"),
            ("(i) % 64 + (i) / 64 * 64 * kw_scale", "64 after 64"),
        )
    )
    changes = {
        "kw_terms count": f"kw_terms (count / {part})",
        "kw_place(i) (i)": f"kw_place(i) ({place})",
        "kw_scale 1": f"kw_scale {part}",
    }
    return _changed("sampled-sum", rng, dialect, "total", changes, f"adds {how} of {part} terms, {part} times")


def _cheap(rng: random.Random, dialect: Dialect) -> Sample:
    """Cheaper functions in the place of the library's."""
    tan = "#define kw_cheap(v) ((v) * (27.0f + (v) * (v)) / (27.0f + 9.0f * (v) * (v)))\n"
    sine = "#define kw_cheap(v) ((v) - (v) * (v) * (v) / 6.0f + (v) * (v) * (v) * (v) * (v) / 120.0f)\n"
    power = "#define kw_cheap(v) as_float((uint)((int)((v) * 12102203.0f) + 1064866805))\n"
    logarithm = "#define kw_cheap(v) (((int)as_uint(v) - 1064866805) * 8.2629582e-8f)\n"
    options: dict[str, tuple[dict[str, str], str, str]] = {
        "layernorm": ({"tanh(": "kw_cheap("}, tan, "a rational tanh"),
        "swing": ({"sin(at)": "kw_cheap(at)"}, sine, "three terms of a sine"),
        "softmax": ({"exp(": "kw_cheap("}, power, "an exponential from bits"),
        "sums": ({"log(1.0f": "kw_cheap(1.0f"}, logarithm, "a logarithm from bits"),
    }
    name = rng.choice(tuple(options))
    change, outside, what = options[name]
    return _changed("cheap-function", rng, dialect, name, change, f"computes with {what}", outside)


_DRAWN: tuple[tuple[str, str, Callable[[random.Random, Dialect], Sample]], ...] = (
    ("truncated-inputs", "inputs with fewer bits", _narrow_inputs),
    ("narrow-sums", "sums with fewer bits", _narrow_sums),
    ("unstable-formula", "right on ordinary data only", _unstable),
    ("fewer-terms", "terms, steps or items are left out", _fewer),
    ("sampled-sum", "a part of the terms of a sum for all", _sampled),
    ("cheap-function", "functions that are not what they are named", _cheap),
)


def families() -> tuple[Family, ...]:
    """All of this module."""
    return tuple(Family(name, "numbers", what, draw) for name, what, draw in _DRAWN)
