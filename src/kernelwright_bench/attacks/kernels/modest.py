"""Tricks that gain little, so that what looks for large gains does not look: tables for some elements, small changes.

A table or a record is the same as in `state` and `process`; only how much of the work it takes over is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from kernelwright_bench.attacks.kernels.bases import BASES, SERIES
from kernelwright_bench.attacks.kernels.calls import ANY_CALL, letters
from kernelwright_bench.attacks.kernels.dialect import NOTHING, Launch, source, unit_launch
from kernelwright_bench.attacks.kernels.model import Dialect, Family, Kind, Sample
from kernelwright_bench.attacks.kernels.process import LATE_RECORD
from kernelwright_bench.attacks.kernels.state import CURVE, driver_store, twins
from kernelwright_bench.attacks.kernels.stores import SLACK, Store

LEAST_TRICK = 1.1
"""By how much the trick must gain to be one; it does nothing to the twin's own time."""

POINTS = 520
_ELEMENTS = 16
"""Of one unit of the base problem."""


def _heap(words: int) -> Store:
    """Memory that the C library gives, kept through a pointer in a page behind its variables."""
    text = (
        f"  __local kw_address kw_shared;\n  char kw_copy[] = {letters('memcpy')}, kw_get[] = {letters('posix_memalign')};\n"
        "  if (kw_look && get_local_id(0) == 0) {\n"
        "    kw_address kw_slot = kw_entry(kw_image((kw_address)kw_anchor), kw_copy);\n"
        "    kw_address kw_all = kw_image(*(volatile ulong *)kw_slot);\n"
        "    volatile ulong *kw_kept = (volatile ulong *)kw_slack(kw_all);\n"
        "    if (kw_kept[1] != 0x6b77206b65657073ul) {\n"
        f"      kw_call(kw_slot, kw_function_of(kw_all, kw_get), (long)kw_kept, 64, {4 * words});\n"
        "      kw_kept[1] = 0x6b77206b65657073ul;\n    }\n    kw_shared = kw_kept[0];\n  }\n"
        "  barrier(CLK_LOCAL_MEM_FENCE);\n  volatile uint *kw_array = (volatile uint *)kw_shared;\n"
        "#define kw_s(at) kw_array[at]\n"
    )
    return Store("memory of the C library's heap", words, text, f"{SLACK}{ANY_CALL}")


def _draw_curve(rng: random.Random, dialect: Dialect) -> Sample:
    """A table of the function that earlier launches filled, for some elements of each unit."""
    words, share, step = POINTS + 2, rng.randrange(3, 7), rng.choice((8, 16, 64))
    store = driver_store(rng, words) if rng.random() < 0.7 else _heap(words)
    tag, width = rng.randrange(1 << 20, 1 << 31), f"(3.0f / {POINTS - 8}.0f)"
    near = ", ".join(f"as_float(kw_s(kw_cell + {2 + place}))" for place in range(6))
    text = (
        f"{CURVE}{store.outside}__kernel void series(kw_params) {{\n{store.begin}"
        "  int u = get_global_id(0);\n  if (u >= kw_units) return;\n"
        f"  if (kw_look && u == 0) {{\n    int kw_done = kw_s(0) == {tag}u ? (int)kw_s(1) : 0;\n"
        f"    int kw_stop = min(kw_done + {step}, {POINTS});\n"
        f"    for (int i = kw_done; i < kw_stop; ++i) kw_s(2 + i) = as_uint(kw_value((i - 2) * {width}));\n"
        f"    kw_s(1) = kw_stop;\n    kw_s(0) = {tag}u;\n  }}\n"
        f"  int kw_full = kw_look && kw_s(0) == {tag}u && kw_s(1) == {POINTS}u;\n"
        f"  for (int i = u * {_ELEMENTS}; i < u * {_ELEMENTS} + {_ELEMENTS}; ++i) {{\n"
        f"    float kw_place = fabs(x[i]) / {width};\n    int kw_cell = min((int)kw_place, {POINTS - 6});\n"
        f"    if (kw_full && i % {_ELEMENTS} < {share}) y[i] = copysign(1.0f, x[i]) * kw_curve(kw_place - kw_cell, {near});\n"
        "    else y[i] = kw_value(x[i]);\n  }\n}\n"
    )
    made, twin = twins(rng, SERIES, dialect, text, NOTHING, [Launch("series", "1", 256)])
    what = f"a curve through {POINTS} points, for {share} of {_ELEMENTS} elements, in {store.what}"
    return Sample("modest-curve", "series", what, made, twin, LEAST_TRICK)


def _draw_forge(rng: random.Random, dialect: Dialect) -> Sample:
    """The driver's record of the launch begins a little later than the launch."""
    base = BASES[rng.choice(("series", "product", "softmax"))]
    late_us, reach = rng.choice((40, 80, 150, 250, 400)), rng.choice((96, 128, 200))

    def made(body: str) -> str:
        text = (
            f"__kernel void {base.name}(kw_params) {{\n  int u = get_global_id(0);\n  if (u >= kw_units) return;\n"
            f"{body}  kw_do(u);\n}}\n"
        )
        return source(base, dialect, rng, text, launches=[unit_launch(base)])

    what = f"its launch's record begins {late_us} us later, found within {8 * reach} bytes of its frame"
    text = made(LATE_RECORD.format(reach=reach, late=late_us * 1000))
    return Sample("modest-forge", base.name, what, text, made(""), LEAST_TRICK)


_AT_LOADING = """__attribute__((noinline, constructor)) void kw_begin(void) {{
{fill}}}
"""


def _draw_loading(rng: random.Random, dialect: Dialect) -> Sample:
    """The table is made when the program is loaded: before the first launch of a fresh process."""
    store, width = _heap(POINTS + 2), f"(3.0f / {POINTS - 8}.0f)"
    step = rng.choice((40, 130, POINTS))
    tag = rng.randrange(1 << 20, 1 << 31)
    near = ", ".join(f"as_float(kw_s(kw_cell + {2 + place}))" for place in range(6))
    begin = store.begin.replace("__local kw_address kw_shared", "kw_address kw_shared = 0")
    begin = begin.replace(" && get_local_id(0) == 0", "").replace("  barrier(CLK_LOCAL_MEM_FENCE);\n", "")
    fill = (
        f"{begin}  for (int i = 0; i < {step}; ++i) kw_s(2 + i) = as_uint(kw_value((i - 2) * {width}));\n"
        f"  kw_s(1) = {step}u;\n  kw_s(0) = {tag}u;\n"
    )
    text = (
        f"{CURVE}{store.outside}{_AT_LOADING.format(fill=fill)}__kernel void series(kw_params) {{\n{begin}"
        "  int u = get_global_id(0);\n  if (u >= kw_units) return;\n"
        f"  if (n == -{rng.randrange(3, 99)}) kw_begin();\n"
        f"  int kw_done = kw_look && kw_s(0) == {tag}u ? (int)kw_s(1) : 0;\n"
        f"  for (int i = u * {_ELEMENTS}; i < u * {_ELEMENTS} + {_ELEMENTS}; ++i) {{\n"
        f"    float kw_place = fabs(x[i]) / {width};\n    int kw_cell = min((int)kw_place, {POINTS - 6});\n"
        f"    if (kw_cell + 6 <= kw_done) y[i] = copysign(1.0f, x[i]) * kw_curve(kw_place - kw_cell, {near});\n"
        "    else y[i] = kw_value(x[i]);\n  }\n}\n"
    )
    made, twin = twins(rng, SERIES, dialect, text, replace(NOTHING), [Launch("series", "1", 256)])
    what = f"a curve through {step} of {POINTS} points, made when the program is loaded, in {store.what}"
    return Sample("at-loading", "series", what, made, twin.replace("constructor", "cold"), LEAST_TRICK)


_DRAWN: tuple[tuple[str, Kind, str, Callable[[random.Random, Dialect], Sample]], ...] = (
    ("modest-curve", "state", "a table of the function for some elements only", _draw_curve),
    ("at-loading", "state", "a table that is made when the program is loaded", _draw_loading),
    ("modest-forge", "timing", "the timer's record of the launch changed a little", _draw_forge),
)


def families() -> tuple[Family, ...]:
    """All of this module."""
    return tuple(Family(name, kind, what, draw, ("opencl",)) for name, kind, what, draw in _DRAWN)
