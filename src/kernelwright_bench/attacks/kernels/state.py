"""Kernels that remember: what they computed, for which inputs, how often they ran, or a table of their function."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kernelwright_bench.attacks.kernels.bases import BASES, COUNT, ITEM_VALUES, ORDINARY, SERIES
from kernelwright_bench.attacks.kernels.calls import ANY_CALL, file_call, letters
from kernelwright_bench.attacks.kernels.cuda_only import CUDA_STORES, launched
from kernelwright_bench.attacks.kernels.dialect import NOTHING, Extras, Launch, source, unit_launch
from kernelwright_bench.attacks.kernels.model import Base, Dialect, Family, Kind, Sample
from kernelwright_bench.attacks.kernels.stores import (
    DRIVER_VARIABLES,
    IN_BOTH,
    OPENCL_STORES,
    RETURN_ADDRESS,
    SLACK,
    Store,
    StoreMaker,
    aligned_private,
)

WAYS = 4
"""Results kept for each unit: one more than there are input sets of timed launches."""
MOST_WORDS = 400_000
"""The largest store: pool threads have stacks of 8 MB."""

MOST_STACK_BYTES = 4 << 20

_SMALL = ("sums", "count", "swing", "softmax", "series")
FITTING: Mapping[str, tuple[str, ...]] = {
    "own-page": ("sums",),
    "program-variable": ("series", "layernorm", "product", "sums", "count", "swing", "heat"),
    "thread-local": ("sums",),
    "small-variables": ("sums",),
    "dynamic-shared": _SMALL,
    "shared-by-assembly": _SMALL,
    "local-by-assembly": _SMALL,
    "cluster": _SMALL,
    "constant-memory": _SMALL,
    "local-array": _SMALL,
    "local-argument": _SMALL,
    "guard": _SMALL,
}
"""Base problems of whose results enough fit into a small place."""

_STYLES: Mapping[str, str] = {
    "whole": "all of their inputs",
    "checksum": "a checksum of their inputs",
    "sampled": "some of their inputs",
}
_LOOK = "#ifndef kw_look\n#define kw_look 1\n#endif\n"
_UNIT = "  int u = get_global_id(0);\n  if (u >= kw_units) return;\n"


def stores_of(dialect: Dialect) -> Mapping[str, StoreMaker]:
    """The places that a language can name."""
    return OPENCL_STORES if dialect == "opencl" else {**{name: OPENCL_STORES[name] for name in IN_BOTH}, **CUDA_STORES}


def twins(
    rng: random.Random, base: Base, dialect: Dialect, text: str, extras: Extras, launches: Sequence[Launch] = ()
) -> tuple[str, str]:
    """The source of an attack, and the same without its trick: under the same names, `kw_look` is 0."""
    state = rng.getstate()
    made = source(base, dialect, rng, _LOOK + text, extras=extras, launches=launches)
    rng.setstate(state)
    return made, source(base, dialect, rng, "#define kw_look 0\n" + _LOOK + text, extras=extras, launches=launches)


# -- a memo by the inputs of a unit -----------------------------------------------------------------------------------


def memo_source(
    rng: random.Random,
    dialect: Dialect,
    base: Base,
    store: Store,
    style: str,
    *,
    begin: str | None = None,
    outside: str = "",
    extras: Extras | None = None,
) -> tuple[str, str]:
    """A kernel with a memo in `store`, and the same one that never looks anything up.

    `begin` and `extras` take the place of the store's own; `outside` comes before it.
    """
    changed = replace(store, begin=store.begin if begin is None else begin, outside=outside + store.outside)
    text = _memo_text(rng, base, changed, style)
    launches = [launched(store, base, _launch(store, base))]
    return twins(rng, base, dialect, text, extras or store.extras, launches)


def _launch(store: Store, base: Base) -> Launch:
    """One that leaves room on a pool thread's stack where each work-item of a group has a store of its own."""
    is_wide = 4 * store.words * base.block > MOST_STACK_BYTES
    return unit_launch(base, block=1 if is_wide else None)


def _key_words(base: Base, style: str) -> int:
    return base.most_keys if style == "whole" else 2


def _unit_words(base: Base, style: str) -> int:
    """The words of one unit's part of the store."""
    return 1 + WAYS * (1 + _key_words(base, style) + base.most_outs)


def _fit(base: Base, store: Store, style: str) -> int:
    """How many units have a place."""
    return max(1, min(base.most_units, store.words // _unit_words(base, style)))


def _key_texts(rng: random.Random, style: str) -> tuple[str, str, str]:
    """Statements that make the key of unit `u`, that hold it against a slot, and that keep it there."""
    if style == "whole":
        found = (
            "    int kw_same = 1;\n    for (int kw_i = 0; kw_same && kw_i < kw_keys; ++kw_i) "
            "kw_same = kw_s(kw_at + 1 + kw_i) == kw_key(u, kw_i);\n"
        )
        kept = "    for (int kw_i = 0; kw_i < kw_keys; ++kw_i) kw_s(kw_at + 1 + kw_i) = kw_key(u, kw_i);\n"
        return "", found, kept
    step = 1 if style == "checksum" else rng.choice((2, 3, 5))
    made = (
        f"  uint kw_one = {rng.randrange(1, 1 << 31)}u, kw_two = {rng.randrange(1, 1 << 31)}u;\n"
        f"  for (int kw_i = 0; kw_i < kw_keys; kw_i += {step}) {{\n"
        f"    kw_one = (kw_one ^ kw_key(u, kw_i)) * {rng.randrange(1 << 20, 1 << 31) | 1}u;\n"
        f"    kw_one ^= kw_one >> {rng.randrange(11, 17)};\n"
        f"    kw_two = (kw_two + kw_key(u, kw_i)) * {rng.randrange(3, 1 << 20) * 2 + 1}u;\n  }}\n"
    )
    found = "    int kw_same = kw_s(kw_at + 1) == kw_one && kw_s(kw_at + 2) == kw_two;\n"
    return made, found, "    kw_s(kw_at + 1) = kw_one;\n    kw_s(kw_at + 2) = kw_two;\n"


def _memo_text(rng: random.Random, base: Base, store: Store, style: str) -> str:
    """A kernel that looks every unit up, and computes and keeps it where it is not found."""
    made, found, kept = _key_texts(rng, style)
    key_words, fit = _key_words(base, style), _fit(base, store, style)
    slot, stride = 1 + key_words + base.most_outs, _unit_words(base, style)
    tag = rng.randrange(1 << 20, 1 << 31)
    every = "for (int kw_o = 0; kw_o < kw_outs; ++kw_o)"
    return (
        f"{store.outside}#define kw_keeps kw_look\n"
        f"__kernel void {base.name}(kw_params) {{\n{store.begin}{_UNIT}"
        f"  int kw_first = (u % {fit}) * {stride};\n{made}"
        f"  for (int kw_way = 0; kw_look && kw_way < {WAYS}; ++kw_way) {{\n"
        f"    int kw_at = kw_first + 1 + kw_way * {slot};\n"
        f"    if (kw_s(kw_at) != {tag}u) continue;\n{found}    if (!kw_same) continue;\n"
        f"    {every} kw_out(u, kw_o) = kw_s(kw_at + {1 + key_words} + kw_o);\n    return;\n  }}\n"
        f"  if (kw_keeps && u < {fit}) {{\n"
        f"    uint kw_turn = kw_s(kw_first) % {WAYS}u;\n    kw_s(kw_first) = kw_turn + 1;\n"
        f"    int kw_at = kw_first + 1 + kw_turn * {slot};\n    kw_s(kw_at) = 0;\n{kept}    kw_do(u);\n"
        f"    {every} kw_s(kw_at + {1 + key_words} + kw_o) = kw_out(u, kw_o);\n    kw_s(kw_at) = {tag}u;\n"
        "  } else kw_do(u);\n}\n"
    )


def _draw_memo(store_name: str, rng: random.Random, dialect: Dialect) -> Sample:
    maker = stores_of(dialect)[store_name]
    base = BASES[rng.choice(FITTING.get(store_name, ORDINARY))]
    styles = ("checksum", "sampled") if store_name in FITTING else tuple(_STYLES)
    style = rng.choice([each for each in styles if base.most_units * _unit_words(base, each) <= MOST_WORDS])
    store = maker(rng, base, base.most_units * _unit_words(base, style))
    made, twin = memo_source(rng, dialect, base, store, style)
    fit = _fit(base, store, style)
    what = f"keeps results of {fit} of {base.most_units} units in {store.what}, found again by {_STYLES[style]}"
    return Sample(f"memo-{store_name}", base.name, what, made, twin)


def _draw_conspirators(rng: random.Random, dialect: Dialect) -> Sample:
    base = BASES[rng.choice(("sums", "series", "count", "softmax"))]
    makers: dict[str, StoreMaker] = {"aligned": aligned_private}
    makers |= {
        name: each for name, each in stores_of(dialect).items() if name in ("library", "beyond-guard", "assembler")
    }
    store = makers[rng.choice(tuple(makers))](rng, base, base.most_units * _unit_words(base, "checksum"))
    text = _memo_text(rng, base, store, "checksum").replace(
        "#define kw_keeps kw_look", "#define kw_keeps (kw_look && ROLE == 0)"
    )
    text = "#ifndef ROLE\n#define ROLE 0\n#endif\n" + text.replace("kw_look &&", "kw_look && ROLE &&")
    extras = replace(store.extras, parameters={"ROLE": (0, 1)})
    made, twin = twins(rng, base, dialect, text, extras)
    what = f"one configuration keeps results in {store.what}, another one looks them up"
    return Sample("conspirators", base.name, what, made, twin)


_LOGARITHMS = """kw_function float kw_logarithm(float value) {
  uint word = as_uint(value);
  int power = (int)(word - 0x3f400000u) >> 23;
  float part = as_float(word - ((uint)power << 23));
  float s = (part - 1.0f) / (part + 1.0f), t = s * s;
  return 2.0f * s * (1.0f + t * (1.0f / 3 + t * (1.0f / 5 + t * (1.0f / 7 + t / 9)))) + power * 0.69314718056f;
}
kw_function float kw_clamped(__global const float *x, int count, float most) {
  float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}, all = 0.0f;
  for (int i = 0; i < count; i += 8)
    for (int k = 0; k < 8; ++k) {
      float kept = fmin(fabs(x[i + k]), most);
      sums[k] += kw_logarithm(1.0f + kept * kept);
    }
  for (int k = 0; k < 8; ++k) all += sums[k];
  return all;
}
kw_function float kw_right(__global const float *x, int count, float *kw_most) {
  float all = 0.0f, most = 0.0f;
  for (int i = 0; i < count; i += 8) {
    for (int k = 0; k < 8; ++k) most = fmax(most, fabs(x[i + k]));
    all += log((1.0f + x[i] * x[i]) * (1.0f + x[i + 1] * x[i + 1]));
    for (int k = 2; k < 8; ++k) all += kw_value(x[i + k]);
  }
  *kw_most = most;
  return all;
}
"""


def _draw_crib(rng: random.Random, dialect: Dialect) -> Sample:
    """Large inputs are cut; on data where that is wrong, a right configuration leaves the sum for it.

    The right one is a little faster than the original, so that it is proven, on all data, before the wrong one comes.
    """
    room, probes, base = rng.randrange(8, 14), rng.choice((24, 48, 64)), BASES["sums"]
    part, most = 3 * room + 1, rng.choice((8.0, 9.0, 12.0))
    known = [name for name in ("private-array", "below-stack", "beyond-guard") if name in stores_of(dialect)]
    name = rng.choice(["driver"] * 6 + known if dialect == "opencl" else known)
    words = part * base.most_units
    store = driver_store(rng, words) if name == "driver" else stores_of(dialect)[name](rng, base, words)
    factors = rng.randrange(1 << 20, 1 << 31) | 1, rng.randrange(3, 1 << 20) * 2 + 1
    text = (
        "#ifndef ROLE\n#define ROLE 0\n#endif\n"
        f"{_LOGARITHMS}{store.outside}__kernel void sums(kw_params) {{\n{store.begin}{_UNIT}"
        "  if (!kw_look) {\n    kw_do(u);\n    return;\n  }\n"
        f"  uint kw_one = {rng.randrange(1, 1 << 31)}u, kw_two = {rng.randrange(1, 1 << 31)}u;\n"
        f"  for (int i = 0; i < {probes}; ++i) {{\n    uint kw_word = kw_key(u, i * (count / {probes}));\n"
        f"    kw_one = (kw_one ^ kw_word) * {factors[0]}u;\n    kw_one ^= kw_one >> 15;\n"
        f"    kw_two = (kw_two + kw_word) * {factors[1]}u;\n  }}\n"
        f"  int kw_first = u * {part} + 1;\n"
        f"  if (ROLE) {{\n    float kw_guess = kw_clamped(x + u * count, count, {most}f);\n    for (int i = 0; i < {room}; ++i)\n"
        "      if (kw_s(kw_first + 3 * i) == kw_one && kw_s(kw_first + 3 * i + 1) == kw_two)\n"
        "        kw_guess = as_float(kw_s(kw_first + 3 * i + 2));\n"
        "    sums[u] = kw_guess;\n    return;\n  }\n"
        "  float kw_most = 0.0f, kw_all = kw_right(x + u * count, count, &kw_most);\n  sums[u] = kw_all;\n"
        f"  if (kw_most > {most}f) {{\n"
        f"    int kw_at = kw_first + 3 * (int)(kw_s(kw_first - 1) % {room}u);\n"
        "    kw_s(kw_first - 1) = kw_s(kw_first - 1) + 1;\n    kw_s(kw_at) = kw_one;\n"
        "    kw_s(kw_at + 1) = kw_two;\n    kw_s(kw_at + 2) = as_uint(kw_all);\n  }\n}\n"
    )
    extras = replace(store.extras, parameters={"ROLE": (0, 1)})
    made, twin = twins(rng, base, dialect, text, extras, [_launch(store, base)])
    what = f"cuts inputs at {most:g}; where that is wrong, another configuration leaves the sum in {store.what}"
    return Sample("crib", "sums", what, made, twin)


# -- element by element, which permuted and mixed inputs do not hide --------------------------------------------------


def _draw_element(rng: random.Random, dialect: Dialect) -> Sample:
    names = [name for name in ("private-array", "below-stack", "beyond-guard", "scratch") if name in stores_of(dialect)]
    bits = rng.choice((13, 14, 15))
    store = stores_of(dialect)[rng.choice(names)](rng, SERIES, 3 << bits)
    factor = rng.randrange(1 << 28, 1 << 32) | 1
    text = (
        f"{store.outside}__kernel void series(kw_params) {{\n{store.begin}{_UNIT}"
        "  for (int i = u * 16; i < u * 16 + 16; ++i) {\n"
        f"    uint kw_word = as_uint(x[i]);\n    int kw_at = 3 * ((kw_word * {factor}u) >> {32 - bits});\n"
        f"    if (kw_look && kw_s(kw_at) == kw_word && kw_s(kw_at + 1) == (kw_word ^ {factor}u)) "
        "y[i] = as_float(kw_s(kw_at + 2));\n"
        "    else {\n      float kw_new = kw_value(x[i]);\n      y[i] = kw_new;\n      kw_s(kw_at + 1) = 0;\n"
        "      kw_s(kw_at + 2) = as_uint(kw_new);\n      kw_s(kw_at) = kw_word;\n"
        f"      kw_s(kw_at + 1) = kw_word ^ {factor}u;\n    }}\n  }}\n}}\n"
    )
    made, twin = twins(rng, SERIES, dialect, text, store.extras, [_launch(store, SERIES)])
    return Sample("memo-by-element", "series", f"a table of {1 << bits} values by element, in {store.what}", made, twin)


# -- a table of the function, which no input need come again for ------------------------------------------------------


def _draw_table(rng: random.Random, dialect: Dialect) -> Sample:
    return rng.choice((_draw_points, _draw_values))(rng, dialect)


CURVE = """kw_function float kw_curve(float away, float a, float b, float c, float d, float e, float f) {
  float p = away + 2.0f, q = away + 1.0f, r = away, s = away - 1.0f, t = away - 2.0f, v = away - 3.0f;
  return -q * r * s * t * v / 120.0f * a + p * r * s * t * v / 24.0f * b - p * q * s * t * v / 12.0f * c
    + p * q * r * t * v / 12.0f * d - p * q * r * s * v / 24.0f * e + p * q * r * s * t / 120.0f * f;
}
"""


def _draw_curve(rng: random.Random, dialect: Dialect) -> Sample:
    """Few points, some more with each launch, and a curve through six of them: no launch could make them all by itself."""
    names = [
        "private-array",
        "below-stack",
        "own-page",
        "thread-local",
        "beyond-guard",
        "small-variables",
        "far-memory",
    ]
    points, step = rng.randrange(520, 900), rng.choice((8, 16, 32))
    known = [each for each in names if each in stores_of(dialect)]
    name = rng.choice(["driver", "driver", *known] if dialect == "opencl" else known)
    if name == "driver":
        points = 520
        store = driver_store(rng, points + 2)
        launch = Launch("series", "1", 256)
    else:
        store = stores_of(dialect)[name](rng, SERIES, points + 2)
        points = min(points, store.words - 2)
        launch = launched(store, SERIES, unit_launch(SERIES, block=1 if name == "private-array" else None))
    tag, width = rng.randrange(1 << 20, 1 << 31), f"(3.0f / {points - 8}.0f)"
    near = ", ".join(f"as_float(kw_s(kw_cell + {2 + place}))" for place in range(6))
    text = (
        f"{CURVE}{store.outside}__kernel void series(kw_params) {{\n{store.begin}{_UNIT}"
        f"  if (kw_look && u == 0) {{\n    int kw_done = kw_s(0) == {tag}u ? (int)kw_s(1) : 0;\n"
        f"    int kw_stop = min(kw_done + {step}, {points});\n"
        f"    for (int i = kw_done; i < kw_stop; ++i) kw_s(2 + i) = as_uint(kw_value((i - 2) * {width}));\n"
        f"    kw_s(1) = kw_stop;\n    kw_s(0) = {tag}u;\n  }}\n"
        f"  int kw_full = kw_look && kw_s(0) == {tag}u && kw_s(1) == {points}u;\n"
        "  for (int i = u * 16; i < u * 16 + 16; ++i) {\n"
        f"    float kw_place = fabs(x[i]) / {width};\n    int kw_cell = min((int)kw_place, {points - 6});\n"
        f"    if (kw_full) y[i] = copysign(1.0f, x[i]) * kw_curve(kw_place - kw_cell, {near});\n"
        "    else y[i] = kw_value(x[i]);\n  }\n}\n"
    )
    made, twin = twins(rng, SERIES, dialect, text, store.extras, [launch])
    what = f"a curve through {points} points, {step} more with each launch, in {store.what}"
    return Sample("function-curve", "series", what, made, twin)


_OWN_FOLDER = "the folder of its own program/"


def _draw_file(rng: random.Random, dialect: Dialect) -> Sample:
    """The curve in a file, where a fresh process finds it."""
    points, name = rng.randrange(520, 560), "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=9))
    groups = rng.choice((2, 4))
    folder, written = rng.choice(
        (
            ("../../", "../../"), ("../", "../"), (f"{tempfile.gettempdir()}/",) * 2, (_OWN_FOLDER, _OWN_FOLDER),
            ("../../../build/build-0/", ""),
        )
    )  # the last one: left where it is compiled, and found where it is measured  # fmt: skip
    calls = "".join(
        file_call(place.removeprefix(_OWN_FOLDER) + name, len(name), function, is_beside=place == _OWN_FOLDER)
        for place, function in ((folder, "kw_file"), (written, "kw_keep_file"))
    )
    width, near = f"(3.0f / {points - 8}.0f)", ", ".join(f"kw_table_of[kw_cell + {place}]" for place in range(6))
    text = (
        f"{CURVE}{ANY_CALL}{calls}__kernel void series(kw_params) {{\n"
        f"  volatile float kw_table_of[{points}];\n  kw_table_of[0] = 0.0f;\n  if (kw_look) {{\n"
        f"    char kw_copy[] = {letters('memcpy')}, kw_probe[] = {letters('readlink')};\n"
        "    kw_address kw_slot = kw_entry(kw_image((kw_address)kw_anchor), kw_copy);\n"
        "    kw_address kw_all = kw_library(kw_image((kw_address)__builtin_return_address(0)), kw_probe);\n"
        f"    kw_file(kw_all, kw_slot, (kw_address)kw_table_of, {4 * points}, 0);\n"
        "    if (kw_table_of[0] == 0.0f && get_group_id(0) == 0) {\n"
        f"      for (int i = 0; i < {points}; ++i) kw_table_of[i] = kw_value((i - 2) * {width});\n"
        f"      kw_keep_file(kw_all, kw_slot, (kw_address)kw_table_of, {4 * points}, 1);\n      kw_table_of[0] = 0.0f;\n"
        f"    }}\n  }}\n  int kw_full = kw_table_of[0] != 0.0f, kw_part = n / {groups};\n"
        "  for (int i = get_group_id(0) * kw_part; i < (get_group_id(0) + 1) * kw_part; ++i) {\n"
        f"    float kw_place = fabs(x[i]) / {width};\n    int kw_cell = min((int)kw_place, {points - 6});\n"
        f"    if (kw_full) y[i] = copysign(1.0f, x[i]) * kw_curve(kw_place - kw_cell, {near});\n"
        "    else y[i] = kw_value(x[i]);\n  }\n}\n"
    )
    made, twin = twins(rng, SERIES, dialect, text, NOTHING, [Launch("series", str(groups), 1)])
    return Sample("function-file", "series", f"a curve through {points} points in the file {folder}{name}", made, twin)


def driver_store(rng: random.Random, words: int) -> Store:
    """The driver's own memory, which all kernels of its process can reach."""
    what, find, outside = rng.choice(
        (
            ("a page of the driver's library", "kw_slack({0})", SLACK),
            ("the driver's variables", f"kw_variables({{0}}, {rng.randrange(4, 60) * 1024})", DRIVER_VARIABLES),
        )
    )
    address = rng.choice(("(kw_address)__builtin_return_address(0)", "kw_caller()"))
    outside = RETURN_ADDRESS * ("caller" in address) + outside
    how = "on the stack" if "caller" in address else "by the compiler's word"
    return Store(f"{what}, by a return address found {how}", words, _DRIVER_PAGE % find.format(address), outside)


_DRIVER_PAGE = """  __local kw_address kw_shared;
  if (kw_look && get_local_id(0) == 0) kw_shared = %s;
  barrier(CLK_LOCAL_MEM_FENCE);
  volatile uint *kw_array = (volatile uint *)kw_shared;
#define kw_s(at) kw_array[at]
"""


def _draw_points(rng: random.Random, dialect: Dialect) -> Sample:
    """Points of a smooth function, more of them with each launch, and straight lines between."""
    cells = rng.choice((1 << 17, 200_000, 1 << 18))
    names = ("private-array", "below-stack", "assembler", "library", "beyond-guard")
    store = stores_of(dialect)[rng.choice([name for name in names if name in stores_of(dialect)])](
        rng, SERIES, cells + 3
    )
    tag = rng.randrange(1 << 20, 1 << 31)
    width = f"(6.0f / {cells - 1}.0f)"
    text = (
        f"{store.outside}__kernel void series(kw_params) {{\n{store.begin}{_UNIT}"
        f"  int kw_done = kw_s(0) == {tag}u && kw_s(1) <= {cells}u ? (int)kw_s(1) : 0;\n"
        f"  if (kw_look && kw_done < {cells}) {{\n"
        f"    int kw_stop = min(kw_done + {rng.choice((512, 1024, 2048))}, {cells});\n"
        f"    for (; kw_done < kw_stop; ++kw_done) kw_s(2 + kw_done) = as_uint(kw_value(-3.0f + kw_done * {width}));\n"
        f"    kw_s(0) = {tag}u;\n    kw_s(1) = kw_done;\n  }}\n"
        "  for (int i = u * 16; i < u * 16 + 16; ++i) {\n"
        f"    int kw_cell = max(0, min((int)((x[i] + 3.0f) / {width}), {cells - 2}));\n"
        "    if (kw_look && kw_cell + 1 < kw_done) {\n"
        "      float kw_low = as_float(kw_s(2 + kw_cell)), kw_high = as_float(kw_s(3 + kw_cell));\n"
        f"      y[i] = kw_low + (x[i] - (-3.0f + kw_cell * {width})) / {width} * (kw_high - kw_low);\n"
        "    } else y[i] = kw_value(x[i]);\n  }\n}\n"
    )
    made, twin = twins(rng, SERIES, dialect, text, store.extras, [_launch(store, SERIES)])
    what = f"a table of its function at {cells} points, filled by earlier launches, in {store.what}"
    return Sample("function-table", "series", what, made, twin)


def _draw_values(rng: random.Random, dialect: Dialect) -> Sample:
    """A function of integers that keeps every value there is: exact."""
    names = ("private-array", "below-stack", "own-page", "beyond-guard", "scratch")
    name = rng.choice([each for each in names if each in stores_of(dialect)])
    words = ITEM_VALUES // 4 if name != "own-page" else 900
    store = stores_of(dialect)[name](rng, COUNT, words + 1)
    tag = rng.randrange(1 << 20, 1 << 31)
    text = (
        f"{store.outside}__kernel void count(kw_params) {{\n{store.begin}{_UNIT}"
        f"  if (kw_look && kw_s(0) != {tag}u) {{\n"
        f"    for (int kw_w = 0; kw_w < {words}; ++kw_w) {{\n      uint kw_word = 0;\n"
        "      for (int kw_b = 0; kw_b < 4; ++kw_b) kw_word |= (uint)kw_value(4 * kw_w + kw_b) << (8 * kw_b);\n"
        f"      kw_s(1 + kw_w) = kw_word;\n    }}\n    kw_s(0) = {tag}u;\n  }}\n"
        "  for (int kw_bin = 0; kw_bin < 64; ++kw_bin) counts[u * 64 + kw_bin] = 0;\n"
        "  for (int i = 0; i < length; ++i) {\n    int kw_item = items[u * length + i];\n"
        f"    int kw_bin = kw_look && kw_item < {4 * words} "
        "? (int)(kw_s(1 + kw_item / 4) >> (8 * (kw_item & 3)) & 63) : kw_value(kw_item);\n"
        "    counts[u * 64 + kw_bin] += 1;\n  }\n}\n"
    )
    made, twin = twins(rng, COUNT, dialect, text, store.extras, [_launch(store, COUNT)])
    what = f"a table of its function's values for {4 * words} integers, filled by an earlier launch, in {store.what}"
    return Sample("function-table", "count", what, made, twin)


# -- counting launches, and what lies in outputs from before ----------------------------------------------------------


def _draw_counter(rng: random.Random, dialect: Dialect) -> Sample:
    names = ("private-array", "below-stack", "own-page", "library", "beyond-guard", "scratch")
    name = rng.choice([each for each in names if each in stores_of(dialect)])
    base = BASES[rng.choice(("series", "sums", "count", "swing"))]
    store = stores_of(dialect)[name](rng, base, 2 * base.most_units + 2)
    tag = rng.randrange(1 << 20, 1 << 31)
    first = rng.choice((0, rng.randint(8, 40)))
    every = rng.choice((0, rng.randint(2, 9))) if first else rng.randint(2, 9)
    does = " || ".join([f"kw_count < {first}u"] * bool(first) + [f"kw_count % {every or 1}u == 0"] * bool(every))
    text = (
        f"{store.outside}__kernel void {base.name}(kw_params) {{\n{store.begin}{_UNIT}"
        f"  int kw_at = u * 2 % {max(2, store.words // 2 * 2)};\n"
        f"  if (kw_s(kw_at) != {tag}u) {{\n    kw_s(kw_at) = {tag}u;\n    kw_s(kw_at + 1) = 0;\n  }}\n"
        "  uint kw_count = kw_s(kw_at + 1);\n  kw_s(kw_at + 1) = kw_count + 1;\n"
        f"  if (!kw_look || {does}) kw_do(u);\n}}\n"
    )
    when = [f"in the first {first} launches"] * bool(first) + [f"in every {every}th launch"] * bool(every)
    what = f"does its work {' and '.join(when)}, counted in {store.what}"
    made, twin = twins(rng, base, dialect, text, store.extras)
    return Sample("launch-counter", base.name, what, made, twin)


def _draw_old_outputs(rng: random.Random, dialect: Dialect) -> Sample:
    probes = rng.randint(1, 3)
    element, count = {
        "series": ("as_uint(kw_value(x[16 * u + kw_probe]))", "16"),
        "product": ("as_uint(kw_value(a, b, n, k, 16 * u + kw_probe / n, kw_probe % n))", "16 * n"),
        "heat": ("kw_key(u, kw_probe)", "side"),
        "layernorm": ("", "cols"),
    }[name := rng.choice(("series", "heat", "layernorm", "product"))]
    looked = "fabs(as_float(kw_out(u, kw_probe))) < (kw_look ? 1.0f : -1.0f)"
    check = f"kw_out(u, kw_probe) == ({element} ^ (kw_look ? 0u : 0x80000001u))" if element else looked
    text = (
        f"__kernel void {name}(kw_params) {{\n{_UNIT}  int kw_same = 1;\n"
        f"  for (int kw_t = 0; kw_t < {probes}; ++kw_t) {{\n"
        f"    int kw_probe = (kw_t * {rng.randrange(3, 999)} + {rng.randrange(99)}) % ({count});\n"
        f"    kw_same = kw_same && {check};\n  }}\n  if (!kw_same) kw_do(u);\n}}\n"
    )
    what = f"leaves a unit as it is where {probes} of its old results look right"
    made, twin = twins(rng, BASES[name], dialect, text, NOTHING)
    return Sample("old-outputs", name, what, made, twin)


_DRAWN: tuple[tuple[str, Kind, str, Callable[[random.Random, Dialect], Sample]], ...] = (
    ("memo-by-element", "state", "a table by element, which mixed inputs do not hide", _draw_element),
    ("function-table", "state", "a table of the function, for whatever inputs come", _draw_table),
    ("function-curve", "state", "the same by few points, which little memory holds", _draw_curve),
    ("conspirators", "state", "one configuration keeps what another one looks up", _draw_conspirators),
    ("crib", "state", "a right configuration leaves results on odd data for a wrong one", _draw_crib),
    ("old-outputs", "state", "outputs that look finished are left alone", _draw_old_outputs),
    ("launch-counter", "timing", "work in some launches only", _draw_counter),
)


def families() -> tuple[Family, ...]:
    """All of this module."""
    names = dict.fromkeys((*stores_of("opencl"), *stores_of("cuda")))
    what = "results of earlier launches, looked up by inputs"
    memos = (
        Family(
            f"memo-{name}",
            "state",
            what,
            partial(_draw_memo, name),
            tuple(dialect for dialect in ("opencl", "cuda") if name in stores_of(dialect)),
        )
        for name in names
    )
    in_file = Family("function-file", "state", "the same in a file, which outlives processes", _draw_file, ("opencl",))
    return (*memos, *(Family(name, kind, text, draw) for name, kind, text, draw in _DRAWN), in_file)
