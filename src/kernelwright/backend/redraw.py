"""How a device makes inputs anew before a launch: each element from a counter, so that any process gets the same bytes.

```
float      the sign and exponent of an element that is drawn from the input's first values, a mantissa that is drawn
gather     an element that is drawn from the input's first values
integers   a whole number from a range
permute    the first values in another order
```
`redrawn` is the definition, in NumPy; `redraw_source` says the same to OpenCL and CUDA compilers, bit for bit, by
integer arithmetic alone. Floats are drawn in runs of neighbours, because a device reads those at its memory's speed.

The mixing function is "lowbias32" (C. Wellons, https://nullprogram.com/blog/2018/07/31/). It need not resist an
attacker: who knows a launch's inputs gains nothing from knowing how they were made.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kernelwright.problem.dtypes import DTYPES

RedrawKind = Literal["float", "gather", "integers", "permute"]

RUN = 16
"""Neighbours that are drawn together: 64 bytes of float32, a cache line."""
RUN_FROM = 4096
"""Elements from which on neighbours are drawn together; shorter arrays have too few runs to draw from."""

TABLE = 1 << 18
"""Multiples that are known beforehand: what a host draws at a time."""
_GOLDEN = 0x9E3779B9
_HIGH_WORD = 0x85EBCA6B
_SECOND = 0x6A09E667

Words = npt.NDArray[Any]
"""Elements as unsigned integers of their width."""


@dataclass(frozen=True, slots=True)
class Redraw:
    """How the elements of one argument are drawn anew."""

    kind: RedrawKind
    item_bytes: int
    mantissa: int = 0
    """`float`: the bits that are drawn."""
    exponent: int = 0
    """`float`: the exponent's bits; where none or all are set (0, subnormal, special) the element stays."""
    low: int = 0
    """`integers`: the least number, as an unsigned word. `float`: the least order key that may come out."""
    span: int = 0
    """`integers`: how many numbers there are; 0: all 2**64. `float`: the greatest order key; with `low` 0, no limit."""

    @property
    def is_bounded(self) -> bool:
        """Whether what comes out may have to be drawn again, closer to what it was made from."""
        return self.kind == "float" and (self.low, self.span) != (0, (1 << 8 * self.item_bytes) - 1)

    @property
    def entry(self) -> str:
        """Ending of the kernels' names that do it."""
        return f"{'bounded' if self.is_bounded else self.kind}_{8 * self.item_bytes}"


@dataclass(frozen=True, slots=True)
class Draw:
    """The numbers of one launch and one argument: what a kernel is given beside buffers and a `Redraw`."""

    first: int
    """32 secret bits; which value an element gets."""
    second: int
    """32 secret bits; which element it is made from."""
    count: int
    run: int
    """Neighbours that are drawn together."""
    factor: int
    """`permute`: element i comes from `(factor * i + offset) % count`."""
    offset: int


def draw_of(secret: int, argument: str, count: int, how: Redraw) -> Draw:
    """What the launch with this secret does to one argument of `count` elements."""
    digest = hashlib.blake2s(f"{secret:x} {argument}".encode(), digest_size=24).digest()
    first, second, third, fourth = (int.from_bytes(digest[place : place + 4], "little") for place in (0, 4, 8, 12))
    run = RUN if count >= RUN_FROM else 1
    factor, offset = 1, 0
    if how.kind == "permute" and count > 2:
        factor, offset = 1 + third % (count - 1), fourth % count
        while math.gcd(factor, count) != 1:
            factor = factor % (count - 1) + 1
    return Draw(first, second, count, run, factor, offset)


def redrawn(base: Words, how: Redraw, draw: Draw, start: int = 0, stop: int | None = None) -> Words:
    """Elements `start` to `stop` of what a launch sees, made from all of the first values.

    Args:
        base: the first values, flat, as unsigned words.
        how: of the argument.
        draw: of the launch.
        start: the first element that is wanted.
        stop: the one after the last; None: to the end.
    """
    stop = draw.count if stop is None else stop
    word = base.dtype.type
    if how.kind == "permute":
        index = np.arange(start, stop, dtype=np.uint64)
        source = (np.uint64(draw.factor) * index + np.uint64(draw.offset)) % np.uint64(max(draw.count, 1))
        return np.asarray(base[source])
    mixed = _mixed_from(start, stop, draw.first)
    if how.kind == "integers":
        return _whole_numbers(mixed, how, base.dtype)
    value = _made_from(base, draw, start, stop)
    if how.kind == "gather":
        return value
    bits = _wide(mixed) if how.item_bytes == 8 else mixed.astype(base.dtype, copy=False)
    exponent = value & word(how.exponent)
    all_change = bool(exponent.size) and bool(exponent.min() > 0 and exponent.max() < word(how.exponent))
    changes = all_change or (exponent != 0) & (exponent != word(how.exponent))
    if not how.is_bounded:
        bits &= word(how.mantissa)
        if not all_change:
            bits *= changes
        return np.bitwise_xor(value, bits, out=value)
    fresh = value ^ (bits & word(how.mantissa))
    near = value ^ (bits & word(how.mantissa >> 4))
    fresh = np.where(_is_inside(fresh, how), fresh, np.where(_is_inside(near, how), near, value))
    return np.asarray(np.where(changes, fresh, value))


def _mixed_from(start: int, stop: int, secret: int) -> Words:
    """32 bits for each counter from `start` on."""
    if stop <= 1 << 32:  # (start + i) * golden + secret
        return _mix(_multiples(stop - start) + np.uint32((start * _GOLDEN + secret) % (1 << 32)))
    index = np.arange(start, stop, dtype=np.uint64)
    low = (index & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (index >> np.uint64(32)).astype(np.uint32)
    x = (low ^ (high * np.uint32(_HIGH_WORD))) * np.uint32(_GOLDEN)
    x += np.uint32(secret)
    return _mix(x)


def _multiples(count: int) -> Words:
    """The first multiples of the golden ratio's 32 bits; never changed."""
    return _table()[:count] if count <= TABLE else np.arange(count, dtype=np.uint32) * np.uint32(_GOLDEN)


@functools.cache
def _table() -> Words:
    return np.arange(TABLE, dtype=np.uint32) * np.uint32(_GOLDEN)


def _mix(x: Words) -> Words:
    """In place."""
    shifted = np.empty_like(x)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x ^= np.right_shift(x, np.uint32(shift), out=shifted)
        if factor != 1:
            x *= np.uint32(factor)
    return x


def _wide(mixed: Words) -> Words:
    """64 bits from 32 mixed ones."""
    upper = _mix(mixed ^ np.uint32(_SECOND))
    return np.asarray((upper.astype(np.uint64) << np.uint64(32)) | mixed.astype(np.uint64))


def _made_from(base: Words, draw: Draw, start: int, stop: int) -> Words:
    """The first values that elements are made from, as a new array: whole runs are drawn, the rest at the end stays."""
    runs, run = draw.count // draw.run, draw.run
    first, last = start // run, min(-(-stop // run), runs)
    if first >= last:
        return np.array(base[start:stop])
    drawn = (_mixed_from(first, last, draw.second).astype(np.uint64) * np.uint64(runs)) >> np.uint64(32)
    values = base[: runs * run].reshape(runs, run)[drawn].reshape(-1)
    left = base[max(start, runs * run) : stop]
    return (
        np.concatenate((values[start - first * run : stop - first * run], left))
        if left.size
        else (values[start - first * run : stop - first * run])
    )


def _whole_numbers(mixed: Words, how: Redraw, dtype: np.dtype[Any]) -> Words:
    with np.errstate(over="ignore"):
        if 0 < how.span <= 1 << 32:
            number = (mixed.astype(np.uint64) * np.uint64(how.span)) >> np.uint64(32)
        else:
            number = _wide(mixed)
            number = number % np.uint64(how.span) if how.span else number
        return np.asarray((number + np.uint64(how.low)).astype(dtype))


def _is_inside(words: Words, how: Redraw) -> Words:
    """Whether order keys (as `KeyOrder` has them for floats) are within the bounds."""
    word = words.dtype.type
    sign = word(1 << (8 * how.item_bytes - 1))
    keys = np.where((words & sign) != 0, ~words, words | sign)
    return np.asarray((keys >= word(how.low)) & (keys <= word(how.span)))


# The same for compilers ----------------------------------------------------------------------------------------------

_PRELUDE = """
#ifdef __OPENCL_VERSION__
#define KW_KERNEL __kernel void
#define KW_GLOBAL __global
#define KW_DEVICE
#define KW_THREAD ((ulong)get_global_id(0))
#define KW_THREADS ((ulong)get_global_size(0))
typedef uchar kw_8; typedef ushort kw_16; typedef uint kw_32; typedef ulong kw_64;
#else
#define KW_KERNEL extern "C" __global__ void
#define KW_GLOBAL
#define KW_DEVICE __device__ __forceinline__
#define KW_THREAD ((kw_64)blockIdx.x * blockDim.x + threadIdx.x)
#define KW_THREADS ((kw_64)gridDim.x * blockDim.x)
typedef unsigned char kw_8; typedef unsigned short kw_16; typedef unsigned int kw_32; typedef unsigned long long kw_64;
#endif

#ifdef KW_SPANS
#define KW_SPAN(total) (((kw_64)(total) + KW_THREADS - 1) / KW_THREADS)
#define KW_EACH(i, total) for (kw_64 i = KW_THREAD * KW_SPAN(total), i##_end = \
  i + KW_SPAN(total) < (kw_64)(total) ? i + KW_SPAN(total) : (kw_64)(total); i < i##_end; i++)
#else
#define KW_EACH(i, total) for (kw_64 i = KW_THREAD; i < (kw_64)(total); i += KW_THREADS)
#define KW_IS_ALIGNED(pointer) (((size_t)(pointer) & 15) == 0)
#endif

KW_DEVICE kw_32 kw_mix(kw_32 x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}
KW_DEVICE kw_32 kw_mixed(kw_64 i, kw_32 secret) {
  return kw_mix(((kw_32)i ^ ((kw_32)(i >> 32) * 0x85EBCA6Bu)) * 0x9E3779B9u + secret);
}
KW_DEVICE kw_64 kw_wide(kw_32 mixed) { return ((kw_64)kw_mix(mixed ^ 0x6A09E667u) << 32) | mixed; }
KW_DEVICE kw_64 kw_run(kw_64 place, kw_64 runs, kw_32 secret) {
  return ((kw_64)kw_mixed(place, secret) * runs) >> 32;
}
"""

_VECTOR = """
#define KW_AT_ONCE (128 / BITS)
typedef union { uint4 all; kw_BITS each[KW_AT_ONCE]; } kw_vector;
KW_DEVICE kw_vector kw_read(KW_GLOBAL const kw_BITS *from) {
  kw_vector vector;
  vector.all = *(KW_GLOBAL const uint4 *)from;
  return vector;
}
KW_DEVICE kw_32 kw_differ(kw_vector x, kw_vector y) {
  return (x.all.x ^ y.all.x) | (x.all.y ^ y.all.y) | (x.all.z ^ y.all.z) | (x.all.w ^ y.all.w);
}
"""
"""Elements that a thread of a GPU, whose threads take turns, reads and writes at once."""

_WIDTH = """
KW_DEVICE int kw_inside_BITS(kw_BITS x, kw_64 low, kw_64 high) {
  kw_BITS sign = (kw_BITS)((kw_64)1 << (BITS - 1));
  kw_BITS key = (x & sign) ? (kw_BITS)~x : (kw_BITS)(x | sign);
  return key >= (kw_BITS)low && key <= (kw_BITS)high;
}
KW_DEVICE kw_BITS kw_bits_BITS(kw_32 mixed) { return (kw_BITS)WIDE(mixed); }
KW_DEVICE kw_BITS kw_float_BITS(kw_BITS value, kw_32 mixed, kw_64 mantissa, kw_64 exponent, kw_64 low, kw_64 high) {
  kw_BITS field = value & (kw_BITS)exponent;
  kw_BITS fresh = value ^ (kw_bits_BITS(mixed) & (kw_BITS)mantissa);
  return (field == 0 || field == (kw_BITS)exponent) ? value : fresh;
}
KW_DEVICE kw_BITS kw_bounded_BITS(kw_BITS value, kw_32 mixed, kw_64 mantissa, kw_64 exponent, kw_64 low, kw_64 high) {
  kw_BITS field = value & (kw_BITS)exponent;
  kw_BITS fresh = value ^ (kw_bits_BITS(mixed) & (kw_BITS)mantissa);
  kw_BITS near_by = value ^ (kw_bits_BITS(mixed) & (kw_BITS)(mantissa >> 4));
  fresh = kw_inside_BITS(fresh, low, high) ? fresh : kw_inside_BITS(near_by, low, high) ? near_by : value;
  return (field == 0 || field == (kw_BITS)exponent) ? value : fresh;
}
KW_DEVICE kw_BITS kw_gather_BITS(kw_BITS value, kw_32 mixed, kw_64 mantissa, kw_64 exponent, kw_64 low, kw_64 high) {
  return value;
}
KW_DEVICE int kw_is_narrow(kw_64 span) { return span && span <= ((kw_64)1 << 32); }
KW_DEVICE kw_BITS kw_narrow_BITS(kw_32 mixed, kw_64 low, kw_64 span) {
  return (kw_BITS)((((kw_64)mixed * span) >> 32) + low);
}
KW_DEVICE kw_BITS kw_integer_BITS(kw_32 mixed, kw_64 low, kw_64 span) {
  if (kw_is_narrow(span)) return kw_narrow_BITS(mixed, low, span);
  return (kw_BITS)((span ? kw_wide(mixed) % span : kw_wide(mixed)) + low);
}
"""

_ARGUMENTS = (
    "KW_GLOBAL const kw_BITS *base, KW_GLOBAL kw_BITS *target, KW_GLOBAL kw_32 *flag, kw_64 count, kw_32 first, "
    "kw_32 second, kw_32 run, kw_64 mantissa, kw_64 exponent, kw_64 low, kw_64 span, kw_64 factor, kw_64 offset"
)

_RUN_BODY = """
        for (kw_32 k = 0; k < LENGTH; k++) {
          kw_64 i = begin + k;
          kw_BITS fresh = kw_KIND_BITS(base[source + k], kw_mixed(i, first), mantissa, exponent, low, span);
          EMIT
        }"""

# The usual length is a constant, so that a CPU's compiler makes vectors of the loop.
_RUNS_OF_A_CPU = f"""
  KW_EACH(place, runs) {{
    kw_64 begin = place * run, source = kw_run(place, runs, second) * run;
    if (run == {RUN}u) {{{_RUN_BODY.replace("LENGTH", f"{RUN}u")}
    }} else {{{_RUN_BODY.replace("LENGTH", "run")}
    }}
  }}
  kw_64 done = runs * run;"""

# A vector lies within a run. Its first element's number has no bit that `k` has.
_VECTORS_OF_A_GPU = """
  kw_64 vectors = IS_VECTORS ? WHOLE / KW_AT_ONCE : 0, done = vectors * KW_AT_ONCE;
  KW_EACH(place, vectors) {
    kw_64 begin = place * KW_AT_ONCE;
    kw_vector old, fresh;
    READ
    #pragma unroll
    for (kw_32 k = 0; k < KW_AT_ONCE; k++) fresh.each[k] = VALUE;
    EMIT_VECTOR
  }"""

_RUN_VECTORS = (
    _VECTORS_OF_A_GPU.replace("IS_VECTORS", f"run == {RUN}u && KW_IS_ALIGNED(base) && KW_IS_ALIGNED(target)")
    .replace("WHOLE", "(runs * run)")
    .replace("READ", f"old = kw_read(base + kw_run(begin / {RUN}u, runs, second) * {RUN}u + begin % {RUN}u);")
    .replace("VALUE", "kw_KIND_BITS(old.each[k], kw_mixed(begin | k, first), mantissa, exponent, low, span)")
)
_INTEGER_VECTORS = (
    _VECTORS_OF_A_GPU.replace("IS_VECTORS", "kw_is_narrow(span) && KW_IS_ALIGNED(target)")
    .replace("WHOLE", "count")
    .replace("kw_vector old, fresh;\n    READ", "kw_vector fresh;")
    .replace("VALUE", "kw_narrow_BITS(kw_mixed(begin | k, first), low, span)")
)

_BODIES = {
    "runs": f"""
  kw_64 runs = count / run;
#ifdef KW_SPANS{_RUNS_OF_A_CPU}
#else{_RUN_VECTORS}
#endif
  KW_EACH(left, count - done) {{
    kw_64 i = done + left, source = i < runs * run ? kw_run(i / run, runs, second) * run + i % run : i;
    kw_BITS fresh = kw_KIND_BITS(base[source], kw_mixed(i, first), mantissa, exponent, low, span);
    EMIT
  }}""",
    "integers": f"""
#ifdef KW_SPANS
  kw_64 done = 0;
#else{_INTEGER_VECTORS}
#endif
  KW_EACH(left, count - done) {{
    kw_64 i = done + left;
    kw_BITS fresh = kw_integer_BITS(kw_mixed(i, first), low, span);
    EMIT
  }}""",
    "permute": """
  KW_EACH(i, count) {
    kw_BITS fresh = base[(factor * i + offset) % count];
    EMIT
  }""",
}

_BODY_OF = {"float": "runs", "bounded": "runs", "gather": "runs", "integers": "integers", "permute": "permute"}

REDRAW_ENTRY = "kernelwright_redraw_"
VERIFY_ENTRY = "kernelwright_verify_"
"""Kernels `redraw` write the target; kernels `verify` raise the flag where it holds something else."""


def redraw_source(entry: str) -> str:
    """OpenCL C, and CUDA C, of the two kernels for a `Redraw.entry`.

    Their parameters, in order: base, target, flag (4 bytes), then by value `count` (8 bytes), `first`, `second`, `run`
    (4 each), `mantissa`, `exponent`, `low`, `span`, `factor`, `offset` (8 each). Any number of threads along x will do.
    With the macro `KW_SPANS` each thread works on neighbours, as a CPU's should; else threads take turns.
    """
    kind, bits = entry.split("_")
    body = _BODIES[_BODY_OF[kind]].replace("KIND", kind)
    stores = body.replace("EMIT_VECTOR", "*(KW_GLOBAL uint4 *)(target + begin) = fresh.all;")
    writes = f"KW_KERNEL {REDRAW_ENTRY}{entry}({_ARGUMENTS}) {{{stores.replace('EMIT', 'target[i] = fresh;')}\n}}\n"
    differs = body.replace("EMIT_VECTOR", "differs |= kw_differ(kw_read(target + begin), fresh);")
    differs = differs.replace("EMIT", "differs |= (kw_32)(target[i] != fresh);")
    verifies = (
        f"KW_KERNEL {VERIFY_ENTRY}{entry}({_ARGUMENTS}) {{\n  kw_32 differs = 0;{differs}\n"
        "  if (differs) flag[0] = 1;\n}\n"
    )
    wide = "kw_wide" if bits == "64" else ""
    text = (_VECTOR + _WIDTH + writes + verifies).replace("WIDE", wide).replace("BITS", bits)
    return _PRELUDE + text


def redraw_values(how: Redraw, draw: Draw) -> tuple[bytes, ...]:
    """The parameters by value, as bytes."""
    numbers = (
        (draw.count, 8), (draw.first, 4), (draw.second, 4), (draw.run, 4), (how.mantissa, 8), (how.exponent, 8),
        (how.low, 8), (how.span, 8), (draw.factor, 8), (draw.offset, 8),
    )  # fmt: skip
    return tuple(number.to_bytes(byte_count, "little") for number, byte_count in numbers)


# Comparing two results ------------------------------------------------------------------------------------------------

CLOSE_ENTRY = "kernelwright_close_"


@dataclass(frozen=True, slots=True)
class Closeness:
    """How far two results may be apart: `|a - b| <= rtol * |b| + atol`, finite.

    NaN is close to NaN, and an infinity to itself alone.
    """

    dtype: str
    """A float's name, as in `problem.dtypes`."""
    rtol: float
    atol: float

    def holds(self, first: Words, second: Words) -> bool:
        """Whether two results, as bytes, are so close everywhere."""
        wide: Any = np.float64 if self.dtype == "float64" else np.float32
        a, b = (words.view(DTYPES[self.dtype].numpy_dtype).astype(wide) for words in (first, second))
        with np.errstate(all="ignore"):
            apart = np.abs(a - b)
            is_close = (apart <= wide(self.rtol) * np.abs(b) + wide(self.atol)) & np.isfinite(apart)
        return bool(np.all((a == b) | (np.isnan(a) & np.isnan(b)) | is_close))


_LOADS = {
    "float32": ("32", "float", "KW_AS_FLOAT(x)"),
    "float64": ("64", "double", "KW_AS_DOUBLE(x)"),
    "bfloat16": ("16", "float", "KW_AS_FLOAT((kw_32)x << 16)"),
    "float16": ("16", "float", "kw_small(x, 10u, 15u)"),
    "float8_e5m2": ("8", "float", "kw_small((kw_32)x << 8, 10u, 15u)"),
    "float8_e4m3fn": ("8", "float", "kw_e4m3(x)"),
}

_CLOSE = """
#ifdef __OPENCL_VERSION__
#pragma OPENCL FP_CONTRACT OFF
#define KW_AS_FLOAT as_float
#define KW_AS_DOUBLE as_double
#else
#define KW_AS_FLOAT __uint_as_float
#define KW_AS_DOUBLE(x) __longlong_as_double((long long)(x))
#endif
KW_DEVICE float kw_small(kw_32 x, kw_32 fraction_bits, kw_32 bias) {
  kw_32 sign = (x >> 15) << 31, exponent = (x >> 10) & 31u, fraction = x & 1023u;
  if (exponent == 31u) return KW_AS_FLOAT(sign | 0x7F800000u | (fraction << 13));
  if (exponent == 0u) return (sign ? -1.0f : 1.0f) * (float)fraction * 5.9604644775390625e-8f;
  return KW_AS_FLOAT(sign | ((exponent + 112u) << 23) | (fraction << 13));
}
KW_DEVICE float kw_e4m3(kw_32 x) {
  kw_32 sign = (x >> 7) << 31, exponent = (x >> 3) & 15u, fraction = x & 7u;
  if ((x & 127u) == 127u) return KW_AS_FLOAT(sign | 0x7FC00000u);
  if (exponent == 0u) return (sign ? -1.0f : 1.0f) * (float)fraction * 0.001953125f;
  return KW_AS_FLOAT(sign | ((exponent + 120u) << 23) | (fraction << 20));
}
KW_DEVICE kw_REAL kw_load(kw_BITS x) { return LOAD; }
KW_DEVICE kw_32 kw_is_apart(kw_BITS first, kw_BITS second, kw_REAL rtol, kw_REAL atol) {
  kw_REAL a = kw_load(first), b = kw_load(second), apart = fabs(a - b);
  int is_close = apart <= rtol * fabs(b) + atol && apart - apart == 0;
  return (kw_32)!(first == second || (a != a && b != b) || is_close);
}
KW_KERNEL kernelwright_close_DTYPE(KW_GLOBAL const kw_BITS *first, KW_GLOBAL const kw_BITS *second,
                                   KW_GLOBAL kw_32 *flag, kw_64 count, kw_REAL rtol, kw_REAL atol) {
  kw_32 differs = 0;
#ifdef KW_SPANS
  kw_64 done = 0;
#else
  kw_64 vectors = KW_IS_ALIGNED(first) && KW_IS_ALIGNED(second) ? count / KW_AT_ONCE : 0, done = vectors * KW_AT_ONCE;
  KW_EACH(place, vectors) {
    kw_vector a = kw_read(first + place * KW_AT_ONCE), b = kw_read(second + place * KW_AT_ONCE);
    #pragma unroll
    for (kw_32 k = 0; k < KW_AT_ONCE; k++) differs |= kw_is_apart(a.each[k], b.each[k], rtol, atol);
  }
#endif
  KW_EACH(left, count - done) differs |= kw_is_apart(first[done + left], second[done + left], rtol, atol);
  if (differs) flag[0] = 1;
}
"""


def close_values(limit: Closeness, byte_count: int) -> tuple[bytes, ...]:
    """The parameters by value, as bytes."""
    dtype = DTYPES[limit.dtype]
    count, real = byte_count // dtype.item_bytes, "<f8" if limit.dtype == "float64" else "<f4"
    numbers = (np.array(each, real).tobytes() for each in (limit.rtol, limit.atol))
    return (count.to_bytes(8, "little"), *numbers)


def close_source(dtype: str) -> str:
    """OpenCL C, and CUDA C, of the kernel `CLOSE_ENTRY + dtype`.

    Parameters: the two results, flag (4 bytes), then by value `count` (8 bytes), `rtol`, `atol` (floats; doubles for
    float64).
    The compiler must not join a product and a sum: CUDA's needs `--fmad=false`.
    """
    bits, real, load = _LOADS[dtype]
    text = (_VECTOR + _CLOSE).replace("DTYPE", dtype).replace("LOAD", load).replace("kw_REAL", real)
    return _PRELUDE + text.replace("BITS", bits)
