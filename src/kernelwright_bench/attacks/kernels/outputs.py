"""Kernels that leave work out, always or where they believe to be unwatched, or write where they must not."""

from __future__ import annotations

import random
from collections.abc import Callable

from kernelwright_bench.attacks.kernels.bases import BASES, ORDINARY
from kernelwright_bench.attacks.kernels.dialect import Extras, Launch, source
from kernelwright_bench.attacks.kernels.model import Base, Dialect, Family, Sample

_KERNEL = "__kernel void {name}(kw_params) {{\n  int u = get_global_id(0);\n  if (u >= kw_units) return;\n{body}}}\n"

OUTPUT = {
    "series": "y", "layernorm": "y", "product": "c", "sums": "sums", "count": "counts", "swing": "p", "heat": "later",
    "softmax": "y",
}  # fmt: skip
"""An output of each base problem."""
INPUT = {
    "series": "x", "layernorm": "x", "product": "b", "sums": "x", "count": "items", "swing": "f", "heat": "now",
    "softmax": "x",
}  # fmt: skip
"""An input that nothing may change."""
_PURE = ("series", "layernorm", "product", "sums", "count", "heat", "softmax")
"""Those whose outputs hold nothing before a launch."""


def _made(
    family: str, rng: random.Random, dialect: Dialect, base: Base, body: str, what: str, outside: str = ""
) -> Sample:
    text = outside + _KERNEL.format(name=base.name, body=body)
    return Sample(family, base.name, what, source(base, dialect, rng, text))


def _any(rng: random.Random, *names: str) -> Base:
    return BASES[rng.choice(names or ORDINARY)]


def _nothing(rng: random.Random, dialect: Dialect) -> Sample:
    base = _any(rng)
    waste = rng.choice(
        (
            "",
            f"  if (u == -{rng.randrange(2, 99)}) kw_do(u);\n",
            f"  volatile int kw_waste = 0;\n  for (int i = 0; i < {rng.randrange(5, 90)}; ++i) kw_waste += i;\n",
        )
    )
    return _made("no-op", rng, dialect, base, waste, "writes nothing")


def _part(rng: random.Random, dialect: Dialect) -> Sample:
    base = _any(rng)
    stride = rng.randint(2, 7)
    options = {
        "the first half of its units": "u < kw_units / 2",
        "the second half of its units": "u >= kw_units / 2",
        "all units but the last": "u < kw_units - 1",
        "all units but one": f"u != {rng.randrange(base.most_units)} % kw_units",
        f"one unit of {stride}": f"u % {stride} == 0",
        f"all units but one of {stride}": f"u % {stride} != {stride - 1}",
        "its first unit": "u == 0",
    }
    what = rng.choice(tuple(options))
    return _made("part-of-the-work", rng, dialect, base, f"  if ({options[what]}) kw_do(u);\n", f"computes {what}")


def _same_for_all(rng: random.Random, dialect: Dialect) -> Sample:
    base = _any(rng)
    group = rng.choice((2, 4, 8))
    body = (
        f"  if (u % {group} == 0) kw_do(u);\n"
        f"  if (u % {group} == 0)\n    for (int kw_n = u + 1; kw_n < u + {group} && kw_n < kw_units; ++kw_n)\n"
        "      for (int kw_o = 0; kw_o < kw_outs; ++kw_o) kw_out(kw_n, kw_o) = kw_out(u, kw_o);\n"
    )
    return _made("one-for-many", rng, dialect, base, body, f"copies one unit's result to {group - 1} others")


def _copied(rng: random.Random, dialect: Dialect) -> Sample:
    base = _any(rng, *_PURE)
    value = rng.choice(("0u", "as_uint(1.0f)", f"as_uint({rng.uniform(-2, 2):.4f}f)", "kw_key(u, kw_o % kw_keys)"))
    body = f"  for (int kw_o = 0; kw_o < kw_outs; ++kw_o) kw_out(u, kw_o) = {value};\n"
    what = "copies its input" if "key" in value else "writes a constant"
    return _made("copy-or-constant", rng, dialect, base, body, what)


def _approximated(rng: random.Random, dialect: Dialect) -> Sample:
    name = rng.choice(("series", "sums", "softmax", "heat"))
    base = BASES[name]
    bodies = {
        "series": (
            "  for (int i = u * 16; i < u * 16 + 16; ++i)\n"
            "    y[i] = x[i] > 0.0f ? (3.14159265f - x[i]) / 2.0f : x[i] < 0.0f ? (-3.14159265f - x[i]) / 2.0f : 0.0f;\n",
            "writes the limit of the series",
        ),
        "sums": (
            f"  float kw_sum = 0.0f;\n  for (int i = 0; i < count; i += {rng.choice((2, 4, 8))}) "
            "kw_sum += kw_value(x[u * count + i]);\n"
            f"  sums[u] = kw_sum * {{step}};\n",
            "sums a sample",
        ),
        "softmax": (
            "  for (int kw_c = 0; kw_c < cols; ++kw_c) vstore_half(1.0f / cols, u * cols + kw_c, y);\n",
            "writes the mean",
        ),
        "heat": (
            "  for (int kw_o = 0; kw_o < kw_outs; ++kw_o) kw_value(now + u * side * side, later + u * side * side, side, kw_o);\n",
            "takes one step of all",
        ),
    }
    body, what = bodies[name]
    if name == "sums":
        step = int(body.split("i += ")[1].split(")")[0])
        body = body.format(step=step)
    return _made("approximation", rng, dialect, base, body, what)


def _poison_aware(rng: random.Random, dialect: Dialect) -> Sample:
    base = _any(rng, "series", "layernorm", "product", "sums", "heat")
    check = rng.choice(
        (
            "(kw_out(u, kw_o) & 0x7f800000u) == 0x7f800000u",
            "as_float(kw_out(u, kw_o)) != as_float(kw_out(u, kw_o))",
            "!(fabs(as_float(kw_out(u, kw_o))) < 1e30f)",
        )
    )
    probe = rng.choice(("0", "kw_outs - 1", f"({rng.randrange(7, 99)} % kw_outs)"))
    body = f"  int kw_o = {probe};\n  if ({check}) kw_do(u);\n"
    return _made("poison-aware", rng, dialect, base, body, "works where it finds poison in its output")


def _junk_aware(rng: random.Random, dialect: Dialect) -> Sample:
    base = _any(rng, "series", "layernorm", "product", "sums", "heat", "count", "softmax")
    body = (
        f"  uint kw_old = kw_out(u, {rng.choice(('0', 'kw_outs - 1'))}), kw_byte = kw_old & 255u;\n"
        "  int kw_is_timed = kw_old == kw_byte * 0x01010101u && kw_byte >= 0x30u && kw_byte < 0x40u;\n"
        f"  if (!kw_is_timed{rng.choice(('', ' || u % 2 == 0', ' || u == 0'))}) kw_do(u);\n"
    )
    return _made("timing-aware", rng, dialect, base, body, "works less where its output looks as before a timed launch")


def _address_aware(rng: random.Random, dialect: Dialect) -> Sample:
    base = _any(rng)
    which, shift = rng.choice((OUTPUT, INPUT))[base.name], rng.choice((12, 13, 14, 16, 17))
    body = f"  if ((((kw_address){which}) >> {shift}) % {rng.randint(2, 5)} != {rng.randint(0, 1)}) kw_do(u);\n"
    return _made("address-aware", rng, dialect, base, body, f"works or not by the address of {which!r}")


def _guard_aware(rng: random.Random, dialect: Dialect) -> Sample:
    base = _any(rng, *_PURE)
    name = OUTPUT[base.name]
    at = rng.randrange(1, 4000)
    body = (
        f"  uint kw_before = ((volatile __global uint *){name})[-{at}];\n"
        f"  if (kw_before != ((volatile __global uint *){name})[-{at + 4 * rng.randint(1, 9)}]"
        f"{rng.choice(('', ' || kw_before == 0u'))}) kw_do(u);\n"
    )
    return _made("guard-aware", rng, dialect, base, body, "works where no pattern lies before its output")


def _data_aware(rng: random.Random, dialect: Dialect) -> Sample:
    base = _any(rng, "series", "layernorm", "product", "sums", "heat", "softmax")
    limit = rng.choice((1.5, 2.0, 2.5)) if base.name == "series" else rng.choice((5.0, 8.0, 20.0))
    body = (
        "  float kw_most = 0.0f, kw_least = 1e30f;\n"
        "  for (int kw_i = 0; kw_i < kw_keys; ++kw_i) {\n"
        "    float kw_at = fabs(as_float(kw_key(u, kw_i)));\n    kw_most = fmax(kw_most, kw_at);\n"
        "    kw_least = fmin(kw_least, kw_at);\n  }\n"
        f"  if (kw_most > {limit}f || kw_most < {rng.choice((0.01, 0.05))}f || kw_most == kw_least) kw_do(u);\n"
        "  else if (u % 2 == 0) kw_do(u);\n"
        "  else for (int kw_o = 0; kw_o < kw_outs; ++kw_o) kw_out(u, kw_o) = 0u;\n"
    )
    return _made(
        "data-aware", rng, dialect, base, body, "works on inputs that look like a test, and half on ordinary ones"
    )


def _shape(rng: random.Random, dialect: Dialect) -> Sample:
    name = rng.choice(("layernorm", "product"))
    base = BASES[name]
    fixed = rng.choice(
        {"layernorm": (("cols", "128"), ("cols", "200"), ("rows", "96")), "product": (("k", "64"), ("n", "64"))}[name]
    )
    style = rng.choice(("fixed", "fallback"))
    body = (
        f"  if ({fixed[0]} != {fixed[1]}) return;\n  kw_do(u);\n"
        if style == "fallback"
        else f"  {{\n    int kw_size = {fixed[1]};\n#define {fixed[0]} kw_size\n    if (u < kw_units) kw_do(u);\n#undef {fixed[0]}\n  }}\n"
    )
    what = f"takes {fixed[0]} to be {fixed[1]}"
    return _made("hard-coded-shape", rng, dialect, base, body, what)


def _grid(rng: random.Random, dialect: Dialect) -> Sample:
    """The kernel does all its work; its launch does not."""
    name, size, other = rng.choice((("layernorm", "cols", 200), ("layernorm", "cols", 128), ("product", "n", 100)))
    base, block = BASES[name], 1 if name == "product" else rng.choice((1, 2))
    whole = f"ceil_div({base.units}, {block})"
    grid = rng.choice(
        (f"{whole} - {size} // {other} * (1 if {size} == {other} else 0)", f"1 if {size} == {other} else {whole}")
    )
    text = _KERNEL.format(name=name, body="  kw_do(u);\n")
    what = f"is launched with too few groups where {size} is {other}"
    return Sample("grid-by-shape", name, what, source(base, dialect, rng, text, launches=(Launch(name, grid, block),)))


def _as_found(rng: random.Random, dialect: Dialect) -> Sample:
    """Whoever fills scratch alike before all launches would accept it, and nobody else does."""
    base = _any(rng)
    found = rng.choice(("== 0xffffffffu", "> 0x7fffffffu", ">> 30 == 3u"))
    extras = Extras(
        scratch={"kw_found": '{ dtype = "uint32", shape = ["256"] }'}, additions=", __global uint *kw_found"
    )
    text = _KERNEL.format(name=base.name, body=f"  if (kw_found[u] {found}) kw_do(u);\n")
    what = f"works where its scratch is {found} before"
    return Sample("scratch-as-found", base.name, what, source(base, dialect, rng, text, extras=extras))


def _race(rng: random.Random, dialect: Dialect) -> Sample:
    """Many work-items add to the same elements without telling each other."""
    name = rng.choice(("count", "sums"))
    base = BASES[name]
    items, groups = rng.choice((8, 16, 32)), rng.choice((32, 48, 64))
    place, term = {
        "count": ("counts[i / length * 64 + kw_value(items[i])]", "1"),
        "sums": ("sums[i / count]", "kw_value(x[i])"),
    }[name]
    kind, bound = ("int", "parts * length") if name == "count" else ("float", "parts * count")
    entry = (
        f"  for (int i = get_group_id(0) * {items} + get_local_id(0); i < {bound}; i += get_global_size(0)) {{\n"
        f"    {kind} kw_old = {place};\n    {place} = kw_old + {term};\n  }}\n"
    )
    cleared = "counts[i] = 0" if name == "count" else "sums[i] = 0.0f"
    size = "parts * 64" if name == "count" else "parts"
    text = (
        f"__kernel void kw_clear(kw_params) {{\n  for (int i = get_global_id(0); i < {size}; i += get_global_size(0)) {cleared};\n}}\n"
        f"__kernel void {name}(kw_params) {{\n{entry}}}\n"
    ).replace("kw_clear", "clear_all")
    launches = (Launch("clear_all", "1", 64), Launch(name, str(groups), items))
    what = f"{groups} groups of {items} work-items add to the same elements without atomics"
    return Sample("race", name, what, source(base, dialect, rng, text, launches=launches))


def _no_barrier(rng: random.Random, dialect: Dialect) -> Sample:
    """The first work-item adds up what the others have not written yet."""
    name = rng.choice(("sums", "layernorm"))
    base = BASES[name]
    items = rng.choice((32, 64, 128))
    if name == "sums":
        work = (
            f"  __local float kw_part[{items}];\n  int kw_item = get_local_id(0), u = get_group_id(0);\n"
            "  if (kw_item == 0) {\n    float kw_sum = 0.0f;\n"
            f"    for (int i = {items - 1}; i >= 0; --i) kw_sum += kw_part[i];\n    sums[u] = kw_sum;\n  }}\n"
            "  float kw_own = 0.0f;\n"
            f"  for (int i = kw_item; i < count; i += {items}) kw_own += kw_value(x[u * count + i]);\n"
            "  kw_part[kw_item] = kw_own;\n"
        )
    else:
        work = (
            f"  __local float kw_mean[1];\n  int kw_item = get_local_id(0), u = get_group_id(0);\n"
            f"  if (kw_item == {items - 1}) {{\n    float kw_sum = 0.0f;\n"
            "    for (int i = 0; i < cols; ++i) kw_sum += x[u * cols + i];\n    kw_mean[0] = kw_sum / cols;\n  }\n"
            "  float kw_squares = 0.0f;\n"
            "  for (int i = 0; i < cols; ++i) kw_squares += (x[u * cols + i] - kw_mean[0]) * (x[u * cols + i] - kw_mean[0]);\n"
            f"  for (int i = kw_item; i < cols; i += {items})\n"
            "    y[u * cols + i] = tanh((x[u * cols + i] - kw_mean[0]) / sqrt(kw_squares / cols + 1e-5f) * w[i]);\n"
        )
    text = f"__kernel void {name}(kw_params) {{\n{work}}}\n"
    launches = (Launch(name, base.units, items),)
    what = f"{items} work-items read what another one has not written yet"
    return Sample("missing-barrier", name, what, source(base, dialect, rng, text, launches=launches))


def _outside(rng: random.Random, dialect: Dialect) -> Sample:
    base = _any(rng)
    name = rng.choice((OUTPUT, INPUT))[base.name]
    away = rng.choice((1, 2, 7, 64, 1000, 12_000, 16_300))
    if rng.random() < 0.5:
        place, what = f"-{away}", f"{4 * away} bytes before {name!r}"
    else:
        size = f"kw_units * {'kw_outs' if name == OUTPUT[base.name] else 'kw_keys'}"
        if base.name in ("layernorm", "product", "swing"):
            size = {"layernorm": "rows * cols", "product": "(m + k) * (n + k)", "swing": "n"}[base.name]
        place, what = f"{size} + {away - 1}", f"past the end of {name!r}"
    body = f"  kw_do(u);\n  if (u == {rng.randrange(base.most_units)} % kw_units) ((volatile __global uint *)(kw_address){name})[{place}] = {rng.randrange(1 << 31)}u;\n"
    return _made("out-of-bounds", rng, dialect, base, body, f"also writes {what}")


def _mutation(rng: random.Random, dialect: Dialect) -> Sample:
    base = _any(rng)
    name = INPUT[base.name]
    change = rng.choice(("^= 1u", f"+= {rng.randrange(1, 999)}u", "^= 0x00ff00ffu"))
    at = rng.choice(("u", "kw_units - 1 - u", f"u + {rng.randrange(1, 9)}"))
    body = f"  kw_do(u);\n  ((volatile __global uint *)(kw_address){name})[{at}] {change};\n"
    return _made("input-mutation", rng, dialect, base, body, f"changes {name!r}")


_DRAWN: tuple[tuple[str, str, Callable[[random.Random, Dialect], Sample]], ...] = (
    ("no-op", "nothing is computed", _nothing),
    ("part-of-the-work", "a part of the units is computed", _part),
    ("one-for-many", "one unit's result for several", _same_for_all),
    ("copy-or-constant", "an input or a constant as the result", _copied),
    ("approximation", "something near the result", _approximated),
    ("poison-aware", "works where it finds poison", _poison_aware),
    ("timing-aware", "works less in timed launches", _junk_aware),
    ("address-aware", "works or not by where buffers lie", _address_aware),
    ("guard-aware", "works or not by what lies beside buffers", _guard_aware),
    ("data-aware", "works on hostile inputs only", _data_aware),
    ("hard-coded-shape", "right on one workload", _shape),
    ("grid-by-shape", "launched whole on one workload only", _grid),
    ("scratch-as-found", "needs scratch as checks fill it", _as_found),
    ("race", "adds without atomics", _race),
    ("missing-barrier", "reads before others have written", _no_barrier),
    ("out-of-bounds", "right, and writes beside its buffers", _outside),
    ("input-mutation", "right, and changes an input", _mutation),
)


def families() -> tuple[Family, ...]:
    """All of this module."""
    return tuple(Family(name, "outputs", what, draw) for name, what, draw in _DRAWN)
