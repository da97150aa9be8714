"""Kernels that owe a part of their work: in some launches, until the next one, or until somebody looks at an output."""

from __future__ import annotations

import random
from collections.abc import Callable

from kernelwright_bench.attacks.kernels.bases import BASES, SERIES
from kernelwright_bench.attacks.kernels.calls import ANY_CALL, letters
from kernelwright_bench.attacks.kernels.dialect import Launch, source
from kernelwright_bench.attacks.kernels.model import Base, Dialect, Family, Sample
from kernelwright_bench.attacks.kernels.state import stores_of
from kernelwright_bench.attacks.kernels.stores import SLACK

_KERNEL = (
    "__kernel void {name}(kw_params) {{\n{begin}  int u = get_global_id(0);\n  if (u >= kw_units) return;\n{body}}}\n"
)
_BASES = ("series", "layernorm", "sums", "count", "softmax")
"""Those with many units, of which a share can be owed."""


def _made(
    family: str, rng: random.Random, dialect: Dialect, base: Base, body: str, what: str, *, begin: str = ""
) -> Sample:
    text = _KERNEL.format(name=base.name, begin=begin, body=body)
    return Sample(family, base.name, what, source(base, dialect, rng, text))


def _owed_units(rng: random.Random) -> tuple[str, str]:
    """Which units are owed, as a condition and in words."""
    part = rng.randint(2, 10)
    return rng.choice(
        (
            (f"u % {part} == {rng.randrange(part)}", f"one of {part} units"),
            (f"u >= kw_units - max(1, kw_units / {part})", f"the last of {part} parts"),
            (f"u != {rng.randrange(3)}", "all units but one"),
        )
    )


def _instead(rng: random.Random) -> tuple[str, str]:
    """What becomes of a unit that is owed."""
    near = "for (int kw_o = 0; kw_o < kw_outs; ++kw_o) kw_out(u, kw_o) = "
    return rng.choice(
        (
            ("", "left as they are"),
            (f"{near}0u;", "zeros"),
            (f"{near}kw_key(u, kw_o % kw_keys);", "copies of inputs"),
        )
    )


def _seldom(rng: random.Random, dialect: Dialect) -> Sample:
    """Which launches are lazy no earlier one tells: inputs, junk or the clock do."""
    base = BASES[rng.choice(_BASES)]
    of, lazy = rng.choice(((2, 1), (3, 2), (5, 3), (8, 5), (8, 7), (16, 1)))
    factor = rng.randrange(1 << 20, 1 << 31) | 1
    clock = "clock64()" if dialect == "cuda" else "__builtin_readcyclecounter()"
    sign, by = rng.choice(
        (
            (f"((kw_key(0, 0) ^ kw_key(0, 1)) * {factor}u >> 9)", "its first inputs"),
            ("(kw_out(kw_units - 1, kw_outs - 1) & 15u)", "what its last output holds before"),
            (f"((uint)({clock} >> {rng.choice((12, 16, 20))}))", "the clock"),
        )
    )
    units, which = _owed_units(rng)
    rest, how = _instead(rng)
    body = f"  uint kw_sign = {sign};\n  if (kw_sign % {of}u >= {lazy}u || !({units})) kw_do(u);\n"
    body += f"  else {{ {rest} }}\n" if rest else ""
    what = f"owes {which} in {lazy} of {of} launches, by {by}; they are {how}"
    return _made("owed-in-some", rng, dialect, base, body, what)


def _turns(rng: random.Random, dialect: Dialect) -> Sample:
    """Launches take turns, by a number that is kept where memory may outlive them."""
    base = BASES[rng.choice(_BASES)]
    names = [name for name in ("private-array", "below-stack", "own-page", "scratch") if name in stores_of(dialect)]
    store = stores_of(dialect)[rng.choice(names)](rng, base, 2 * base.most_units + 2)
    turns, tag = rng.randint(2, 5), rng.randrange(1 << 20, 1 << 31)
    body = (
        f"  int kw_at = u * 2 % {max(2, store.words // 2 * 2)};\n"
        f"  uint kw_turn = kw_s(kw_at) == {tag}u ? kw_s(kw_at + 1) : 0u;\n  kw_s(kw_at) = {tag}u;\n"
        f"  kw_s(kw_at + 1) = kw_turn + 1u;\n  if (u % {turns} == kw_turn % {turns}) kw_do(u);\n"
    )
    text = store.outside + _KERNEL.format(name=base.name, begin=store.begin, body=body)
    what = f"does one of {turns} parts in each launch, in turn, counted in {store.what}"
    return Sample("owed-in-turns", base.name, what, source(base, dialect, rng, text, extras=store.extras))


def _until_next(rng: random.Random, dialect: Dialect) -> Sample:
    """Inputs are kept, and the next launch writes what the one before owed."""
    names = [name for name in ("private-array", "below-stack", "scratch", "beyond-guard") if name in stores_of(dialect)]
    store = stores_of(dialect)[rng.choice(names)](rng, SERIES, 16 * SERIES.most_units + 2)
    part, tag = rng.randint(2, 6), rng.randrange(1 << 20, 1 << 31)
    body = (
        f"  if (u % {part}) kw_do(u);\n  else for (int kw_i = 0; kw_i < 16; ++kw_i) {{\n"
        f"    if (kw_s(0) == {tag}u) y[16 * u + kw_i] = kw_value(as_float(kw_s(2 + 16 * u + kw_i)));\n"
        "    kw_s(2 + 16 * u + kw_i) = as_uint(x[16 * u + kw_i]);\n  }\n"
        f"  if (u == 0) kw_s(0) = {tag}u;\n"
    )
    text = store.outside + _KERNEL.format(name="series", begin=store.begin, body=body)
    what = f"writes for one of {part} units what the launch before owed, from inputs kept in {store.what}"
    return Sample("owed-until-next", "series", what, source(SERIES, dialect, rng, text, extras=store.extras))


def _second_only(rng: random.Random, dialect: Dialect) -> Sample:
    """Whoever launches twice on the same inputs to see a race finds both alike."""
    base = BASES[rng.choice(("series", "sums", "count", "softmax"))]
    names = [name for name in ("private-array", "below-stack", "scratch") if name in stores_of(dialect)]
    store = stores_of(dialect)[rng.choice(names)](rng, base, 2 * base.most_units + 2)
    units, which = _owed_units(rng)
    body = (
        f"  int kw_at = 2 * u % {max(2, store.words // 2 * 2)};\n"
        "  uint kw_one = kw_key(u, 0), kw_two = kw_key(u, kw_keys - 1);\n"
        "  int kw_again = kw_s(kw_at) == kw_one && kw_s(kw_at + 1) == kw_two;\n"
        "  kw_s(kw_at) = kw_one;\n  kw_s(kw_at + 1) = kw_two;\n"
        f"  if (!kw_again || !({units})) kw_do(u);\n"
    )
    text = store.outside + _KERNEL.format(name=base.name, begin=store.begin, body=body)
    what = f"owes {which} where its inputs come again, by {store.what}"
    return Sample("owed-when-again", base.name, what, source(base, dialect, rng, text, extras=store.extras))


def _holes(rng: random.Random, dialect: Dialect) -> Sample:
    """Few elements, at other places in each launch."""
    base = BASES[rng.choice(("series", "layernorm"))]
    of, factor = rng.choice((6, 10, 16, 32)), rng.randrange(1 << 20, 1 << 31) | 1
    body = f"  if (((kw_key(0, 0) >> 4) + u * {factor}u >> 7) % {of}u) kw_do(u);\n"
    if rng.random() < 0.5:
        body = body.replace(" kw_do(u);", " kw_do(u);\n  else kw_out(u, 0) = 0u;", 1)
    return _made("owed-holes", rng, dialect, base, body, f"owes one of {of} units, other ones in each launch")


_HEAL = """{calls}{slack}long kw_heal(int kw_number) {{
  kw_address kw_back = (kw_address)__builtin_return_address(0);
  if (kw_number == -2) return kw_back + *(volatile int *)(kw_back - 4);
  volatile kw_address *kw_kept = (volatile kw_address *)kw_slack(kw_image(kw_back));
  kw_call(kw_kept[4], kw_kept[5], kw_kept[2], kw_kept[3] - kw_kept[2], 3);
  __global const float *from = (__global const float *)kw_kept[0];
  __global float *to = (__global float *)kw_kept[1];
  for (int i = (kw_kept[2] - kw_kept[1]) / 4; i < (int)((kw_kept[3] - kw_kept[1]) / 4); ++i) to[i] = kw_value(from[i]);
  return 0;
}}
"""
_PROMISE = """  volatile float kw_waste = 0.0f;
  kw_address kw_low = ((kw_address)y + 4095) & ~(kw_address)4095, kw_high = (kw_address)(y + n) & ~(kw_address)4095;
  if (kw_high > kw_low + {most}) kw_high = kw_low + {most};
  if (u == 0 && kw_high > kw_low) {{
    char kw_copy[] = {copy}, kw_probe[] = {probe}, kw_guard[] = {guard}, kw_catch[] = {catch};
    kw_address kw_slot = kw_entry(kw_image((kw_address)kw_anchor), kw_copy);
    kw_address kw_all = kw_library(kw_image((kw_address)__builtin_return_address(0)), kw_probe);
    volatile kw_address *kw_kept = (volatile kw_address *)kw_slack(kw_all);
    volatile kw_address kw_action[20];
    for (int i = 1; i < 20; ++i) kw_action[i] = 0;
    volatile int kw_ask = -2;
    kw_action[0] = kw_heal(kw_ask);
    if (kw_kept[0] == n) kw_heal(kw_ask + n);
    kw_action[17] = 0x40000000ul;
    kw_kept[0] = (kw_address)x;
    kw_kept[1] = (kw_address)y;
    kw_kept[2] = kw_low;
    kw_kept[3] = kw_high;
    kw_kept[4] = kw_slot;
    kw_kept[5] = kw_function_of(kw_all, kw_guard);
    kw_call(kw_slot, kw_function_of(kw_all, kw_catch), 11, (long)kw_action, 0);
    kw_call(kw_slot, kw_kept[5], kw_low, kw_high - kw_low, 0);
  }}
  int kw_is_owed = (kw_address)(y + 16 * u) >= kw_low && (kw_address)(y + 16 * u + 16) <= kw_high;
  if (!kw_is_owed) kw_do(u);
  else for (int i = 16 * u; i < 16 * u + {wasted}; ++i) kw_waste += kw_value(x[i]);
"""


def _until_seen(rng: random.Random, dialect: Dialect) -> Sample:
    """Pages of the output are taken away; whoever touches one has them filled by a signal's handler."""
    pages, wasted = rng.choice(((1, 0), (2, 0), (3, 0), (1, 11), (1, 12), (2, 13)))
    promise = _PROMISE.format(
        most=pages * 4096, copy=letters("memcpy"), probe=letters("readlink"), guard=letters("mprotect"),
        catch=letters("sigaction"), wasted=wasted,
    )  # fmt: skip
    text = _HEAL.format(calls=ANY_CALL, slack=SLACK) + _KERNEL.format(name="series", begin="", body=promise)
    gained = f", and gains {16 - wasted} of 16 elements there" if wasted else ""
    what = f"fills {pages} pages of its output when somebody reads them, by a handler of the fault{gained}"
    launch = Launch("series", "1", 256)
    return Sample("owed-until-seen", "series", what, source(SERIES, dialect, rng, text, launches=[launch]))


_DRAWN: tuple[tuple[str, str, Callable[[random.Random, Dialect], Sample]], ...] = (
    ("owed-in-some", "a part of the work is left out in some launches", _seldom),
    ("owed-in-turns", "launches take turns with parts of the work", _turns),
    ("owed-until-next", "the next launch writes what this one owes", _until_next),
    ("owed-when-again", "less work where inputs come again", _second_only),
    ("owed-holes", "few units left out, other ones each time", _holes),
)


def families() -> tuple[Family, ...]:
    """All of this module."""
    by_fault = Family(
        "owed-until-seen", "outputs", "an output is filled when somebody reads it", _until_seen, ("opencl",)
    )
    return (*(Family(name, "outputs", what, draw) for name, what, draw in _DRAWN), by_fault)
