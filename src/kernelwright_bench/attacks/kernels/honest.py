"""Kernels that are right, in styles and summation orders that nobody would choose: none of them may be refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from kernelwright_bench.attacks.kernels.bases import BASES, ORDINARY
from kernelwright_bench.attacks.kernels.dialect import NOTHING, Extras, Launch, source, unit_launch
from kernelwright_bench.attacks.kernels.model import Base, Dialect, Family, Sample

_Written = tuple[str, str, tuple[Launch, ...], Extras]
"""What it does, its kernels, how they are launched (none: as the baseline), what the header holds beside."""


# -- any problem, unit by unit ----------------------------------------------------------------------------------------


def _kernel(base: Base, body: str, name: str | None = None) -> str:
    return f"__kernel void {name or base.name}(kw_params) {{\n{body}}}\n"


def _reversed(rng: random.Random, base: Base) -> _Written:
    body = "  int u = kw_units - 1 - get_global_id(0);\n  if (u >= 0) kw_do(u);\n"
    return "takes its units backwards", _kernel(base, body), (), NOTHING


def _grid_stride(rng: random.Random, base: Base) -> _Written:
    groups, block = rng.randint(1, 5), rng.randint(1, 9)
    body = "  for (int u = get_global_id(0); u < kw_units; u += get_global_size(0)) kw_do(u);\n"
    what = f"{groups} groups of {block} walk over all units"
    return what, _kernel(base, body), (Launch(base.name, str(groups), block),), NOTHING


def _alone(rng: random.Random, base: Base) -> _Written:
    order = rng.choice(("int u = 0; u < kw_units; ++u", "int u = kw_units - 1; u >= 0; --u"))
    return (
        "one work-item does all",
        _kernel(base, f"  for ({order}) kw_do(u);\n"),
        (Launch(base.name, "1", 1),),
        NOTHING,
    )


def _wide(rng: random.Random, base: Base) -> _Written:
    times, block = rng.randint(2, 9), rng.choice((3, 5, 7, 11, 13))
    body = "  int u = get_global_id(0);\n  if (u < kw_units) kw_do(u);\n"
    launch = Launch(base.name, f"ceil_div({base.units} * {times}, {block})", block)
    return (
        f"{times} times as many work-items as there are units, {block} to a group",
        _kernel(base, body),
        (launch,),
        NOTHING,
    )


def _halves(rng: random.Random, base: Base) -> _Written:
    body = "  int u = get_global_id(0);\n  if (u < kw_units && u % {n} {sign} 0) kw_do(u);\n"
    n = rng.randint(2, 5)
    text = _kernel(base, body.format(n=n, sign="=="), "some_units") + _kernel(base, body.format(n=n, sign="!="))
    plain = unit_launch(base)
    first = Launch("some_units", plain.grid, plain.block)
    return f"every {n}th unit in a first launch, the others in a second", text, (first, plain), NOTHING


def _chunks(rng: random.Random, base: Base) -> _Written:
    size = rng.randint(2, 6)
    body = f"  int u = get_global_id(0) * {size};\n  for (int i = 0; i < {size} && u < kw_units; ++i, ++u) kw_do(u);\n"
    launch = Launch(base.name, f"ceil_div({base.units}, {size})", 1)
    return f"{size} units to a work-item", _kernel(base, body), (launch,), NOTHING


def _leaders(rng: random.Random, base: Base) -> _Written:
    block = rng.choice((2, 4, 8))
    leader = rng.randrange(block)
    body = f"  if (get_local_id(0) == {leader}) kw_do(get_group_id(0));\n"
    return (
        f"one of {block} work-items does a unit",
        _kernel(base, body),
        (Launch(base.name, base.units, block),),
        NOTHING,
    )


def _through_local(rng: random.Random, base: Base) -> _Written:
    block = rng.choice((2, 4, 8))
    body = (
        f"  __local int kw_numbers[{block}];\n"
        f"  kw_numbers[{block - 1} - get_local_id(0)] = get_group_id(0) * {block} + get_local_id(0);\n"
        "  barrier(CLK_LOCAL_MEM_FENCE);\n  int u = kw_numbers[get_local_id(0)];\n  if (u < kw_units) kw_do(u);\n"
    )
    launch = Launch(base.name, f"ceil_div({base.units}, {block})", block)
    return "hands units round in local memory, written before it is read", _kernel(base, body), (launch,), NOTHING


def _through_scratch(rng: random.Random, base: Base) -> _Written:
    extras = Extras(
        scratch={"order": f'{{ dtype = "int32", shape = ["{base.units}"] }}'}, additions=", __global int *order"
    )
    odd = rng.choice((3, 5, 7, 11)) if base.name not in ("layernorm",) else 7
    first = "  int u = get_global_id(0);\n  if (u < kw_units) order[kw_units - 1 - u] = u;\n"
    second = "  int u = get_global_id(0);\n  if (u < kw_units) kw_do(order[u]);\n"
    text = _kernel(base, first, "write_order") + _kernel(base, second)
    plain = unit_launch(base, block=odd)
    return "writes an order into scratch, and follows it", text, (Launch("write_order", plain.grid, odd), plain), extras


def _table(rng: random.Random, base: Base) -> _Written:
    order = [0, 1, 2, 3]
    rng.shuffle(order)
    shown = ", ".join(map(str, order))
    body = "  int u = get_global_id(0);\n  u = (u & ~3) | kw_order[u & 3];\n  if (u < kw_units) kw_do(u);\n"
    text = f"kw_table int kw_order[4] = {{{shown}}};\n" + _kernel(base, body)
    launch = Launch(base.name, f"ceil_div({base.units}, 4)", 4)
    return "takes units in an order from a table of constants", text, (launch,), NOTHING


def _private_list(rng: random.Random, base: Base) -> _Written:
    body = (
        "  int kw_list[8];\n  for (int i = 0; i < 8; ++i) kw_list[i] = get_global_id(0) * 8 + i;\n"
        "  for (int i = 7; i >= 0; --i) if (kw_list[i] < kw_units) kw_do(kw_list[i]);\n"
    )
    launch = Launch(base.name, f"ceil_div({base.units}, 8)", 1)
    return "lists its units in a private array, written before it is read", _kernel(base, body), (launch,), NOTHING


def _switch(rng: random.Random, base: Base) -> _Written:
    body = (
        "  int u = get_global_id(0);\n  if (u >= kw_units) return;\n  switch (u % 3) {\n"
        "    case 0: kw_do(u); return;\n    case 1: kw_do(u); break;\n    default: kw_do(u);\n  }\n"
    )
    return "has a branch for each remainder", _kernel(base, body), (), NOTHING


_ANYWHERE: Mapping[str, Callable[[random.Random, Base], _Written]] = {
    "backwards": _reversed, "grid-stride": _grid_stride, "alone": _alone, "wide-grid": _wide, "two-launches": _halves,
    "chunks": _chunks, "leaders": _leaders, "through-local": _through_local, "through-scratch": _through_scratch,
    "table": _table, "private-list": _private_list, "switch": _switch,
}  # fmt: skip


# -- sums in other orders ---------------------------------------------------------------------------------------------

_REDUCED: Mapping[str, tuple[str, str, str, str]] = {
    "series": ("n", "n", "kw_terms", "sin(((i) + 1) * x[at]) / ((i) + 1)"),
    "product": ("m * n", "m * n", "k", "a[at / n * k + (i)] * b[(i) * n + at % n]"),
    "sums": ("parts", "parts", "count", "kw_value(x[at * count + (i)])"),
}
"""Results, the same as an expression in sizes, terms of each, and the term `i` of result `at`."""

_ORDERS: Mapping[str, str] = {
    "sequential": "  for (int i = 0; i < kw_many; ++i) sum += kw_term(i);\n",
    "reversed": "  for (int i = kw_many - 1; i >= 0; --i) sum += kw_term(i);\n",
    "strided": "  for (int kw_s = 0; kw_s < {n}; ++kw_s) for (int i = kw_s; i < kw_many; i += {n}) sum += kw_term(i);\n",
    "blocked": (
        "  for (int kw_b = 0; kw_b < kw_many; kw_b += {n}) {{\n    float kw_part = 0.0f;\n"
        "    for (int i = kw_b; i < kw_b + {n} && i < kw_many; ++i) kw_part += kw_term(i);\n    sum += kw_part;\n  }}\n"
    ),
    "compensated": (
        "  float kw_lost = 0.0f;\n  for (int i = 0; i < kw_many; ++i) {{\n    float kw_new = kw_term(i) - kw_lost;\n"
        "    volatile float kw_next = sum + kw_new;\n    kw_lost = (kw_next - sum) - kw_new;\n    sum = kw_next;\n  }}\n"
    ),
    "several sums": (
        "  float kw_parts[{n}];\n  for (int i = 0; i < {n}; ++i) kw_parts[i] = 0.0f;\n"
        "  for (int i = 0; i < kw_many; ++i) kw_parts[i % {n}] += kw_term(i);\n"
        "  for (int i = 0; i < {n}; ++i) sum += kw_parts[i];\n"
    ),
    "pairwise": (
        "  float kw_parts[16];\n  for (int i = 0; i < kw_many; ++i) {{\n    float kw_new = kw_term(i);\n    int kw_level = 0;\n"
        "    for (; i >> kw_level & 1; ++kw_level) kw_new += kw_parts[kw_level];\n    kw_parts[kw_level] = kw_new;\n  }}\n"
        "  for (int i = 0; i < 16; ++i) if (kw_many >> i & 1) sum += kw_parts[i];\n"
    ),
    "from both ends": (
        "  for (int i = 0; i < kw_many / 2; ++i) sum += kw_term(i) + kw_term(kw_many - 1 - i);\n"
        "  if (kw_many % 2) sum += kw_term(kw_many / 2);\n"
    ),
}


def _order(rng: random.Random, dialect: Dialect) -> Sample:
    name = rng.choice(tuple(_REDUCED))
    base = BASES[name]
    size, grid, terms, term = _REDUCED[name]
    style = rng.choice(tuple(_ORDERS))
    output = {"series": "y", "product": "c", "sums": "sums"}[name]
    block = rng.choice((1, 4, 16, 32)) if name != "sums" else rng.choice((1, 2, 4))
    text = f"#define kw_many ({terms})\n#define kw_term(i) ({term})\n" + _kernel(
        base,
        f"  int at = get_global_id(0);\n  if (at >= {size}) return;\n  float sum = 0.0f;\n"
        + _ORDERS[style].format(n=rng.choice((3, 4, 8, 16)))
        + f"  {output}[at] = sum;\n",
    )
    launches = (Launch(name, f"ceil_div({grid}, {block})", block),)
    return Sample("honest-sums", name, f"adds {style}", source(base, dialect, rng, text, launches=launches))


def _tree(rng: random.Random, dialect: Dialect) -> Sample:
    """A group shares a sum in local memory."""
    name = rng.choice(("sums", "layernorm", "softmax"))
    base = BASES[name]
    block = rng.choice((8, 16, 32, 64))
    reduce = (
        f"    for (int kw_reach = {block // 2}; kw_reach > 0; kw_reach /= 2) {{\n      barrier(CLK_LOCAL_MEM_FENCE);\n"
        "      if (kw_me < kw_reach) kw_part[kw_me] = kw_join(kw_part[kw_me], kw_part[kw_me + kw_reach]);\n    }\n"
        "    barrier(CLK_LOCAL_MEM_FENCE);\n"
    )

    def shared(join: str, start: str, step: str, into: str, size: str) -> str:
        return (
            f"#undef kw_join\n#define kw_join(a, b) {join}\n  {{\n    float kw_own = {start};\n"
            f"    for (int i = kw_me; i < {size}; i += {block}) {step};\n    kw_part[kw_me] = kw_own;\n{reduce}"
            f"    {into} = kw_part[0];\n    barrier(CLK_LOCAL_MEM_FENCE);\n  }}\n"
        )

    bodies = {
        "sums": "  float kw_all;\n"
        + shared("((a) + (b))", "0.0f", "kw_own += kw_value(x[u * count + i])", "kw_all", "count")
        + "  if (kw_me == 0) sums[u] = kw_all;\n",
        "layernorm": "  float kw_mean, kw_squares;\n"
        + shared("((a) + (b))", "0.0f", "kw_own += x[u * cols + i]", "kw_mean", "cols")
        + "  kw_mean /= cols;\n"
        + shared(
            "((a) + (b))",
            "0.0f",
            "kw_own += (x[u * cols + i] - kw_mean) * (x[u * cols + i] - kw_mean)",
            "kw_squares",
            "cols",
        )
        + f"  for (int i = kw_me; i < cols; i += {block})\n"
        "    y[u * cols + i] = tanh((x[u * cols + i] - kw_mean) / sqrt(kw_squares / cols + 1e-5f) * w[i]);\n",
        "softmax": "  float kw_most, kw_all;\n"
        + shared("fmax(a, b)", "-3e38f", "kw_own = fmax(kw_own, vload_half(u * cols + i, x))", "kw_most", "cols")
        + shared("((a) + (b))", "0.0f", "kw_own += exp(vload_half(u * cols + i, x) - kw_most)", "kw_all", "cols")
        + f"  for (int i = kw_me; i < cols; i += {block})\n"
        "    vstore_half(exp(vload_half(u * cols + i, x) - kw_most) / kw_all, u * cols + i, y);\n",
    }
    start = f"  __local float kw_part[{block}];\n  int kw_me = get_local_id(0), u = get_group_id(0);\n"
    text = _kernel(base, start + bodies[name])
    made = source(base, dialect, rng, text, launches=(Launch(name, base.units, block),))
    return Sample("honest-tree", name, f"{block} work-items share each sum in local memory", made)


def _counted(rng: random.Random, dialect: Dialect) -> Sample:
    """A histogram by atomics, or by counters of its own."""
    base = BASES["count"]
    block = rng.choice((16, 32, 64))
    style = rng.choice(("global atomics", "local atomics", "private counters", "sorted insertion"))
    clear = _kernel(
        base,
        "  for (int i = get_global_id(0); i < parts * 64; i += get_global_size(0)) counts[i] = 0;\n",
        "clear_counts",
    )
    first = Launch("clear_counts", "2", 32)
    launches: tuple[Launch, ...]
    if style == "global atomics":
        body = (
            "  for (int i = get_global_id(0); i < parts * length; i += get_global_size(0))\n"
            "    atomic_inc(&counts[i / length * 64 + kw_value(items[i])]);\n"
        )
        text, launches = clear + _kernel(base, body), (first, Launch("count", "12", block))
    elif style == "local atomics":
        body = (
            "  __local int kw_bins[64];\n  int kw_me = get_local_id(0), u = get_group_id(0);\n"
            f"  for (int i = kw_me; i < 64; i += {block}) kw_bins[i] = 0;\n  barrier(CLK_LOCAL_MEM_FENCE);\n"
            f"  for (int i = kw_me; i < length; i += {block}) atomic_inc(&kw_bins[kw_value(items[u * length + i])]);\n"
            "  barrier(CLK_LOCAL_MEM_FENCE);\n"
            f"  for (int i = kw_me; i < 64; i += {block}) counts[u * 64 + i] = kw_bins[i];\n"
        )
        text, launches = _kernel(base, body), (Launch("count", "parts", block),)
    elif style == "private counters":
        body = (
            "  int u = get_global_id(0);\n  if (u >= parts) return;\n  unsigned short kw_bins[64];\n"
            "  for (int i = 0; i < 64; ++i) kw_bins[i] = 0;\n"
            "  for (int i = length - 1; i >= 0; --i) kw_bins[kw_value(items[u * length + i])]++;\n"
            "  for (int i = 0; i < 64; ++i) counts[u * 64 + i] = kw_bins[i];\n"
        )
        text, launches = _kernel(base, body), ()
    else:
        body = (
            "  int u = get_global_id(0);\n  if (u >= parts * 4) return;\n"
            "  for (int kw_bin = u % 4; kw_bin < 64; kw_bin += 4) {\n    int kw_found = 0;\n"
            "    for (int i = 0; i < length; ++i) kw_found += kw_value(items[u / 4 * length + i]) == kw_bin;\n"
            "    counts[u / 4 * 64 + kw_bin] = kw_found;\n  }\n"
        )
        text, launches = _kernel(base, body), (Launch("count", "parts", 4),)
        style = "each bin on its own"
    made = source(base, dialect, rng, text, launches=launches)
    return Sample("honest-counting", "count", f"counts by {style}", made)


def _exchanged(rng: random.Random, dialect: Dialect) -> Sample:
    """Floats added by compare-and-swap, in whatever order they come."""
    base = BASES["sums"]
    swap = "atomic_cmpxchg" if dialect == "opencl" else "atomicCAS"
    clear = _kernel(base, "  int u = get_global_id(0);\n  if (u < parts) sums[u] = 0.0f;\n", "clear_sums")
    piece = rng.choice((64, 128, 256))
    body = (
        f"  int kw_piece = get_global_id(0), u = kw_piece * {piece} / count;\n  if (u >= parts) return;\n"
        f"  float kw_own = 0.0f;\n  for (int i = 0; i < {piece}; ++i) kw_own += kw_value(x[kw_piece * {piece} + i]);\n"
        "  __global uint *kw_word = (__global uint *)(sums + u);\n  uint kw_old = *kw_word, kw_seen;\n"
        f"  while ((kw_seen = {swap}(kw_word, kw_old, as_uint(as_float(kw_old) + kw_own))) != kw_old) kw_old = kw_seen;\n"
    )
    launches = (Launch("clear_sums", "1", 16), Launch("sums", f"parts * count // {piece} // 8", 8))
    made = source(base, dialect, rng, clear + _kernel(base, body), launches=launches)
    return Sample("honest-exchange", "sums", f"adds sums of {piece} by compare-and-swap", made)


def _stepwise(rng: random.Random, dialect: Dialect) -> Sample:
    """The stencil in as many launches as it has steps, or in local memory."""
    base = BASES["heat"]
    if rng.random() < 0.5:
        block = rng.choice((16, 32, 48))
        kernels, launches = [], []
        for step in range(6):
            source_of = f"spare + {step - 1} * grids * side * side" if step else "now"
            target = f"spare + {step} * grids * side * side" if step < 5 else "later"
            name = f"step_{step}" if step < 5 else "heat"
            body = (
                "  int kw_at = get_global_id(0), kw_size = side * side;\n  if (kw_at >= grids * kw_size) return;\n"
                "  int u = kw_at / kw_size;\n"
                f"  kw_value(({source_of}) + u * kw_size, ({target}) + u * kw_size, side, kw_at % kw_size);\n"
            )
            kernels.append(_kernel(base, body, name))
            launches.append(Launch(name, f"grids * side * side // {block}", block))
        made = source(base, dialect, rng, "".join(kernels), launches=launches)
        return Sample("honest-steps", "heat", f"a launch for each step, {block} work-items to a group", made)
    block = rng.choice((16, 32, 64))
    body = (
        f"  __local float kw_field[2][2304];\n  int kw_me = get_local_id(0), u = get_group_id(0), kw_size = side * side;\n"
        f"  for (int i = kw_me; i < kw_size; i += {block}) kw_field[0][i] = now[u * kw_size + i];\n"
        "  for (int kw_t = 0; kw_t < kw_steps; ++kw_t) {\n    barrier(CLK_LOCAL_MEM_FENCE);\n"
        f"    for (int i = kw_me; i < kw_size; i += {block}) {{\n      int r = i / side, q = i % side;\n"
        "      float kw_own = kw_field[kw_t % 2][i];\n"
        "      if (r > 0 && r < side - 1 && q > 0 && q < side - 1)\n"
        "        kw_own += 0.125f * (kw_field[kw_t % 2][i - 1] + kw_field[kw_t % 2][i + 1] + kw_field[kw_t % 2][i - side]\n"
        "          + kw_field[kw_t % 2][i + side] - 4.0f * kw_own);\n"
        "      kw_field[1 - kw_t % 2][i] = kw_own;\n    }\n  }\n  barrier(CLK_LOCAL_MEM_FENCE);\n"
        f"  for (int i = kw_me; i < kw_size; i += {block}) later[u * kw_size + i] = kw_field[kw_steps % 2][i];\n"
    )
    made = source(base, dialect, rng, _kernel(base, body), launches=(Launch("heat", "grids", block),))
    return Sample("honest-steps", "heat", f"all steps in local memory, {block} work-items to a grid", made)


def _vectors(rng: random.Random, dialect: Dialect) -> Sample:
    """Vector types of OpenCL C."""
    width = rng.choice((2, 4, 8))
    kind = f"float{width}"
    bodies = {
        "series": (
            f"  int kw_at = get_global_id(0) * {width};\n  if (kw_at >= n) return;\n"
            f"  {kind} kw_in = vload{width}(0, x + kw_at), kw_sum = ({kind})(0.0f);\n"
            "  for (int k = 1; k <= kw_terms; ++k) kw_sum += sin((float)k * kw_in) / (float)k;\n"
            f"  vstore{width}(kw_sum, 0, y + kw_at);\n",
            f"n // {width} // 4",
            4,
        ),
        "swing": (
            f"  int kw_at = get_global_id(0) * {width};\n  if (kw_at >= n) return;\n"
            f"  {kind} kw_p = vload{width}(0, p + kw_at), kw_v = vload{width}(0, v + kw_at);\n"
            f"  {kind} kw_f = vload{width}(0, f + kw_at);\n"
            "  for (int kw_t = 0; kw_t < kw_steps; ++kw_t) {\n    kw_v += 0.02f * (kw_f - sin(kw_p));\n"
            "    kw_p += 0.02f * kw_v;\n  }\n"
            f"  vstore{width}(kw_p, 0, p + kw_at);\n  vstore{width}(kw_v, 0, v + kw_at);\n",
            f"n // {width} // 8",
            8,
        ),
        "product": (
            "  int kw_at = get_global_id(0) * 4;\n  if (kw_at >= m * n) return;\n"
            "  int kw_row = kw_at / n, kw_column = kw_at % n;\n  float4 kw_sum = (float4)(0.0f);\n"
            "  for (int i = 0; i < k; ++i) kw_sum += a[kw_row * k + i] * vload4(0, b + i * n + kw_column);\n"
            "  vstore4(kw_sum, 0, c + kw_at);\n",
            "m * n // 4",
            1,
        ),
    }
    name = rng.choice(tuple(bodies))
    body, grid, block = bodies[name]
    base = BASES[name]
    made = source(base, dialect, rng, _kernel(base, body), launches=(Launch(name, grid, block),))
    return Sample("honest-vectors", name, "computes with vectors", made)


def _other_formulas(rng: random.Random, dialect: Dialect) -> Sample:
    """The same result by another road that is as exact."""
    bodies = {
        "norm by Welford's updates": (
            "layernorm",
            "  int u = get_global_id(0);\n  if (u >= rows) return;\n  float kw_mean = 0.0f, kw_squares = 0.0f;\n"
            "  for (int i = 0; i < cols; ++i) {\n    float kw_away = x[u * cols + i] - kw_mean;\n"
            "    kw_mean += kw_away / (i + 1);\n    kw_squares += kw_away * (x[u * cols + i] - kw_mean);\n  }\n"
            "  for (int i = cols - 1; i >= 0; --i)\n"
            "    y[u * cols + i] = tanh((x[u * cols + i] - kw_mean) * (1.0f / sqrt(kw_squares / cols + 1e-5f)) * w[i]);\n",
        ),
        "norm from a shifted sum of squares": (
            "layernorm",
            "  int u = get_global_id(0);\n  if (u >= rows) return;\n  float kw_first = x[u * cols], kw_sum = 0.0f, kw_squares = 0.0f;\n"
            "  for (int i = 0; i < cols; ++i) kw_sum += x[u * cols + i] - kw_first;\n"
            "  float kw_mean = kw_first + kw_sum / cols;\n"
            "  for (int i = 0; i < cols; ++i) kw_squares += pown(x[u * cols + i] - kw_mean, 2);\n".replace(
                "pown(x[u * cols + i] - kw_mean, 2)", "(x[u * cols + i] - kw_mean) * (x[u * cols + i] - kw_mean)"
            )
            + "  for (int i = 0; i < cols; ++i)\n"
            "    y[u * cols + i] = tanh((x[u * cols + i] - kw_mean) / sqrt(kw_squares / cols + 1e-5f) * w[i]);\n",
        ),
        "softmax in one pass": (
            "softmax",
            "  int u = get_global_id(0);\n  if (u >= rows) return;\n  float kw_most = -3e38f, kw_sum = 0.0f;\n"
            "  for (int i = 0; i < cols; ++i) {\n    float kw_in = vload_half(u * cols + i, x);\n"
            "    float kw_new = fmax(kw_most, kw_in);\n    kw_sum = kw_sum * exp(kw_most - kw_new) + exp(kw_in - kw_new);\n"
            "    kw_most = kw_new;\n  }\n"
            "  for (int i = 0; i < cols; ++i)\n"
            "    vstore_half(exp(vload_half(u * cols + i, x) - kw_most) / kw_sum, u * cols + i, y);\n",
        ),
        "softmax by a logarithm of the sum": (
            "softmax",
            "  int u = get_global_id(0);\n  if (u >= rows) return;\n  float kw_most = -3e38f, kw_sum = 0.0f;\n"
            "  for (int i = 0; i < cols; ++i) kw_most = fmax(kw_most, vload_half(u * cols + i, x));\n"
            "  for (int i = cols - 1; i >= 0; --i) kw_sum += exp(vload_half(u * cols + i, x) - kw_most);\n"
            "  float kw_log = kw_most + log(kw_sum);\n"
            "  for (int i = 0; i < cols; ++i) vstore_half(exp(vload_half(u * cols + i, x) - kw_log), u * cols + i, y);\n",
        ),
        "softmax with a private row": (
            "softmax",
            "  int u = get_global_id(0);\n  if (u >= rows) return;\n  float kw_row[256], kw_most = -3e38f, kw_sum = 0.0f;\n"
            "  for (int i = 0; i < cols; ++i) kw_most = fmax(kw_most, kw_row[i] = vload_half(u * cols + i, x));\n"
            "  for (int i = 0; i < cols; ++i) kw_sum += kw_row[i] = exp(kw_row[i] - kw_most);\n"
            "  for (int i = 0; i < cols; ++i) vstore_half(kw_row[i] / kw_sum, u * cols + i, y);\n",
        ),
        "swing with private copies": (
            "swing",
            "  int u = get_global_id(0);\n  if (u >= kw_units) return;\n  float kw_p[16], kw_v[16];\n"
            "  for (int i = 0; i < 16; ++i) kw_p[i] = p[u * 16 + i], kw_v[i] = v[u * 16 + i];\n"
            "  for (int kw_t = 0; kw_t < kw_steps; ++kw_t)\n    for (int i = 15; i >= 0; --i) {\n"
            "      kw_v[i] += 0.02f * (f[u * 16 + i] - sin(kw_p[i]));\n      kw_p[i] += 0.02f * kw_v[i];\n    }\n"
            "  for (int i = 0; i < 16; ++i) p[u * 16 + i] = kw_p[i], v[u * 16 + i] = kw_v[i];\n",
        ),
        "swing in place, in memory": (
            "swing",
            "  int i = get_global_id(0);\n  if (i >= n) return;\n"
            "  for (int kw_t = 0; kw_t < kw_steps; ++kw_t) {\n    v[i] += 0.02f * (f[i] - sin(p[i]));\n"
            "    p[i] += 0.02f * v[i];\n  }\n",
        ),
    }
    what = rng.choice(tuple(bodies))
    name, body = bodies[what]
    launches = (Launch("swing", "n // 32", 32),) if "in memory" in what else ()
    made = source(BASES[name], dialect, rng, _kernel(BASES[name], body), launches=launches)
    return Sample("honest-formulas", name, what, made)


def _gains(rng: random.Random, dialect: Dialect) -> Sample:
    """Many times as fast in truth, in code or memory that a first launch has to bring in."""
    kept, stride = rng.choice((0, 16, 64)), rng.choice((64, 512, 1024))
    keep = (
        f"  volatile float kw_kept[{kept * 256}];\n"
        f"  for (int i = 0; i < {kept * 256}; i += {stride}) kw_kept[i] = x[u * 16 + i % 16];\n"
        f"  for (int i = 0; i < {kept * 256}; i += {stride}) kw_kept[i] = kw_kept[i] * 2.0f;\n"
        if kept
        else ""
    )
    body = (
        "  int u = get_global_id(0);\n  if (u >= kw_units) return;\n" + keep + "  for (int c = 0; c < 16; ++c) {\n"
        "    double kw_at = x[u * 16 + c], kw_two = 2.0 * cos(kw_at), kw_sum = 0.0;\n"
        "    double kw_now = sin(kw_at), kw_last = 0.0;\n"
        "    for (int k = 1; k <= kw_terms; ++k) {\n      kw_sum += kw_now / k;\n"
        "      double kw_next = kw_two * kw_now - kw_last;\n      kw_last = kw_now;\n      kw_now = kw_next;\n    }\n"
        "    y[u * 16 + c] = (float)kw_sum;\n  }\n"
    )
    what = "the sines by their recurrence, in double" + (f", with {kept} KiB of private memory" if kept else "")
    made = source(BASES["series"], dialect, rng, _kernel(BASES["series"], body))
    return Sample("honest-gains", "series", what, made)


def _draw_anywhere(style: str) -> Callable[[random.Random, Dialect], Sample]:
    def draw(rng: random.Random, dialect: Dialect) -> Sample:
        base = BASES[rng.choice(ORDINARY)]
        what, text, launches, extras = _ANYWHERE[style](rng, base)
        made = source(base, dialect, rng, text, launches=launches, extras=extras)
        return Sample(f"honest-{style}", base.name, what, made)

    return draw


def families() -> tuple[Family, ...]:
    """All of this module."""
    anywhere = (
        Family(f"honest-{name}", "honest", "units in another order", _draw_anywhere(name)) for name in _ANYWHERE
    )
    return (
        *anywhere,
        Family("honest-sums", "honest", "sums in another order", _order),
        Family("honest-tree", "honest", "sums shared in local memory", _tree),
        Family("honest-counting", "honest", "counters and atomics", _counted),
        Family("honest-exchange", "honest", "floats added by compare-and-swap", _exchanged),
        Family("honest-steps", "honest", "launches and local memory", _stepwise),
        Family("honest-vectors", "honest", "vector types", _vectors, ("opencl",)),
        Family("honest-formulas", "honest", "other formulas that are as exact", _other_formulas),
        Family("honest-gains", "honest", "much faster in truth", _gains, ("opencl",)),
    )
