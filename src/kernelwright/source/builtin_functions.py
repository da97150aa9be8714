"""The functions that CUDA, HIP and OpenCL C bring along: what each does, by name."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Literal

_MATH = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi degrees div erf erfc erfinv exp exp10 "
    "exp2 expm1 fabs fdim fdivide floor fma fmax fmin fmod frac hypot ldexp lgamma log log10 log1p log2 mad max min "
    "mix "
    "nearbyint nextafter normcdf pow powr pown radians rcp remainder rint round rsqrt sign signbit sin sincos sincospi "
    "sinh sinpi smoothstep sqrt step tan tanh tanpi tgamma trunc abs clamp select isnan isinf isfinite add sub mul neg "
    "saturate dot length normalize cross distance any all bitselect recip divide tanh mul24 mad24 mul_hi mulhi umulhi "
    "popc popcount clz ffs brev dp4a max3 min3 fast_length fast_distance hadd rhadd ne eq lt gt le ge"
)
_MATH_NAMES = frozenset(_MATH.split())
_UNCOUNTED = frozenset(("abs", "clamp", "select", "max", "min", "any", "all", "add", "sub", "mul", "neg", "fma", "mad",
                        "fabs", "fmax", "fmin", "mul24", "mad24", "ne", "eq", "lt", "gt", "le", "ge"))  # fmt: skip

_CONVERSION = re.compile(
    r"convert_\w+|as_\w+|make_\w+|__nv_(?:fp8|fp6|fp4|bfloat16)\w*|__\w*2(?:float|half|bfloat16|half2|bfloat162|int|uint|float2|short|double|ll|ull)\w*"
    r"|__\w+_as_\w+|__(?:low|high)\w*|__halves2half2|__halves2bfloat162|upsample|shuffle2?|__byte_perm"
    r"|__funnelshift_\w+|__builtin_(?:bit_cast|expect)|bit_cast|forward|move|get_enqueued_local_size"
)
_PURE = frozenset(
    ("asm", "clock", "clock64", "__clock64", "INFINITY", "numeric_limits", "infinity", "lowest", "huge_val")
)
_NOTHING = frozenset((
    "assert", "static_assert", "__builtin_assume", "__assume", "prefetch", "__prefetch_global_l2", "__nanosleep",
    "__builtin_unreachable",
))  # fmt: skip
_EXCHANGE = re.compile(
    r"__shfl(?:_up|_down|_xor)?(?:_sync)?|sub_group_(?:shuffle\w*|broadcast|reduce_\w+|scan_\w+|non_uniform_\w+)"
    r"|work_group_(?:broadcast|reduce_\w+|scan_\w+)|__reduce_\w+_sync|__(?:ballot|all|any|match_any)(?:_sync)?"
    r"|__activemask|intel_sub_group_shuffle\w*"
)
_BARRIERS = MappingProxyType({
    "barrier": "block", "work_group_barrier": "block", "__syncthreads": "block", "__syncthreads_count": "block",
    "__syncthreads_or": "block", "__syncthreads_and": "block", "__syncwarp": "warp", "sub_group_barrier": "warp",
    "mem_fence": "fence", "read_mem_fence": "fence", "write_mem_fence": "fence", "__threadfence": "fence",
    "__threadfence_block": "fence", "__threadfence_system": "fence",
})  # fmt: skip
_ATOMIC = re.compile(r"(?:atomic|atom)(?P<operation>_?\w+)|__hip_atomic_(?P<hip>\w+)")


def math_function(function: str) -> tuple[str, Literal["precise", "fast"]] | None:
    """A mathematical function's plain name and flavour; None for anything else."""
    name, flavour = function, "precise"
    for prefix in ("native_", "half_"):
        if name.startswith(prefix):
            name, flavour = name.removeprefix(prefix), "fast"
    if name.startswith("__"):
        name, flavour = name.removeprefix("__"), "fast"
    for candidate in _plain_names(name):
        if candidate in _MATH_NAMES:
            is_half_arithmetic = function.startswith("__h") or (name.startswith("h") and name != candidate)
            return candidate, "precise" if is_half_arithmetic else flavour  # type: ignore[return-value]
    return None


def _plain_names(name: str) -> tuple[str, ...]:
    """Spellings without type decoration: `expf` is `exp`, `fadd_rn` is `add`, `h2exp` is `exp`."""
    plain = re.sub(r"_(?:rn|rz|ru|rd|sat|relu|approx|ftz)$", "", name)
    without_h = re.sub(r"^h2?(?=[a-z])", "", plain)
    without_2 = re.sub(r"(?<=[a-z])2$", "", without_h)
    found = (plain, plain.removesuffix("f"), plain.removeprefix("f"), plain.removeprefix("d"), without_h, without_2,
             plain.removesuffix("l"), plain.removeprefix("u"), plain.removeprefix("ll"))  # fmt: skip
    return tuple(dict.fromkeys(found))


def is_worth_counting(plain_name: str) -> bool:
    """Whether a mathematical function has flavours that differ in speed."""
    return plain_name not in _UNCOUNTED


def is_pure(function: str) -> bool:
    """Whether a call only makes a value of its arguments, and is not mathematical."""
    return _CONVERSION.fullmatch(function) is not None or function in _PURE


def does_nothing(function: str) -> bool:
    """Whether a call changes nothing that matters here."""
    return function in _NOTHING


def is_exchange(function: str) -> bool:
    """Whether a call passes values between the threads of a warp or work-group."""
    return _EXCHANGE.fullmatch(function) is not None


def joined_by_exchange(function: str) -> str | None:
    """What a whole-group reduction computes (`add`, `max`); None for a plain exchange."""
    match = re.fullmatch(r"(?:sub|work)_group_(?:non_uniform_)?reduce_(\w+)|__reduce_(\w+)_sync", function)
    return (match[1] or match[2]) if match else None


def barrier_scope(function: str) -> Literal["block", "warp", "fence"] | None:
    """Who waits at a barrier; None for anything else."""
    return _BARRIERS.get(function)  # type: ignore[return-value]


def atomic_operation(function: str) -> str | None:
    """What an atomic function does: `add`, `max`, `cas`, `load` and so on; None for anything else."""
    match = _ATOMIC.fullmatch(function)
    if match is None:
        return None
    text = (match["operation"] or match["hip"]).strip("_").lower()
    return text.removeprefix("fetch_").removesuffix("_explicit").removesuffix("_block").removesuffix("_system")


_VECTOR_LOAD = re.compile(r"vload(?P<aligned>a)?(?P<half>_half)?(?P<width>\d*)")
_VECTOR_STORE = re.compile(r"vstore(?P<aligned>a)?(?P<half>_half)?(?P<width>\d*)(?:_r[tezpn]+)?")


def vector_load(function: str) -> tuple[int, int] | None:
    """Components and step of OpenCL's `vload`s; `vloada_half3` steps by 4."""
    return _vector_shape(_VECTOR_LOAD.fullmatch(function))


def vector_store(function: str) -> tuple[int, int] | None:
    """Components and step of OpenCL's `vstore`s."""
    return _vector_shape(_VECTOR_STORE.fullmatch(function))


def _vector_shape(match: re.Match[str] | None) -> tuple[int, int] | None:
    if match is None:
        return None
    width = int(match["width"] or 1)
    return width, 4 if width == 3 and match["aligned"] else width


def is_cached_load(function: str) -> bool:
    """Whether it reads through a pointer with a cache hint: `__ldg(p)`."""
    return re.fullmatch(r"__ld(?:g|cg|ca|cs|lu|cv)|__builtin_nontemporal_load", function) is not None


def is_cached_store(function: str) -> bool:
    """Whether it writes through a pointer with a cache hint: `__stcs(p, v)`."""
    return re.fullmatch(r"__st(?:wb|cg|cs|wt)", function) is not None
