"""Sources in words that OpenCL C and CUDA C share, with names that no list can know."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright_bench.attacks.kernels.model import Base, Dialect

_CUDA_WORDS = """#include <cuda_fp16.h>
#define __kernel extern "C" __global__
#define __global
#define __local __shared__
#define kw_function static __device__
#define kw_table static __device__ const
#define CLK_LOCAL_MEM_FENCE 0
#define CLK_GLOBAL_MEM_FENCE 0
#define barrier(fence) __syncthreads()
#define get_global_id(axis) ((int)(blockIdx.x * blockDim.x + threadIdx.x))
#define get_global_size(axis) ((int)(gridDim.x * blockDim.x))
#define get_local_id(axis) ((int)threadIdx.x)
#define get_local_size(axis) ((int)blockDim.x)
#define get_group_id(axis) ((int)blockIdx.x)
#define get_num_groups(axis) ((int)gridDim.x)
#define as_uint(value) __float_as_uint(value)
#define as_float(word) __uint_as_float(word)
#define vload_half(at, from) __half2float((from)[at])
#define vstore_half(value, at, to) ((to)[at] = __float2half_rn(value))
#define atomic_inc(at) atomicAdd(at, 1)
#define atomic_add(at, value) atomicAdd(at, value)
#define kw_address unsigned long long
typedef unsigned int uint;
"""
_OPENCL_WORDS = """#define kw_function
#define kw_table __constant
#define kw_address ulong
"""

_OWN_NAME = re.compile(r"\bkw_\w+\b")
_SYLLABLES = ("ba", "ce", "do", "fi", "gu", "ka", "le", "mo", "ni", "po", "ra", "se", "ti", "vu", "xa", "zo")


@dataclass(frozen=True, slots=True)
class Extras:
    """What a kernel's header holds beside its launch."""

    options: Sequence[str] = ()
    parameters: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    scratch: Mapping[str, str] = field(default_factory=dict)
    """By name the TOML table of an additional argument."""
    additions: str = ""
    """Parameters of the kernel for those, in OpenCL C, each after a comma."""


NOTHING = Extras()


@dataclass(frozen=True, slots=True)
class Launch:
    """How one kernel is launched."""

    entry: str
    grid: str
    block: int
    arguments: tuple[str, ...] = ()
    """None: all."""
    shared_bytes: int = 0
    cluster: int = 0


def source(
    base: Base,
    dialect: Dialect,
    rng: random.Random,
    text: str,
    *,
    launches: Sequence[Launch] = (),
    extras: Extras = NOTHING,
    pieces: str | None = None,
    top: str = "",
) -> str:
    """A whole source: header, dialect, the base's pieces, and `text` with the kernels in it.

    Args:
        base: whose problem it is for.
        dialect: the language.
        rng: draws the names.
        text: kernels; `kw_` names become random ones, and `kw_params` stands for the problem's parameters.
        launches: of its kernels; none: the base's, with one work-item for each unit.
        extras: more for the header.
        pieces: in the place of the base's own.
        top: what stands before everything else in the code.
    """
    chosen = launches or (unit_launch(base),)
    parts = [
        header(chosen, extras),
        top,
        _CUDA_WORDS if dialect == "cuda" else _OPENCL_WORDS,
        base.pieces if pieces is None else pieces,
        text.replace("kw_params", base.parameters + extras.additions),
    ]
    return renamed("\n".join(part for part in parts if part), rng)


def unit_launch(base: Base, *, block: int | None = None) -> Launch:
    """One work-item for each unit."""
    size = block or base.block
    return Launch(base.name, f"ceil_div({base.units}, {size})", size)


def header(launches: Sequence[Launch], extras: Extras) -> str:
    """The template header."""
    lines = [f"options = {json.dumps(list(extras.options))}"] if extras.options else []
    if extras.parameters:
        lines.append("[parameters]")
        lines += [
            f"{name} = {{ values = {json.dumps(list(v))}, default = {json.dumps(v[0])} }}"
            for name, v in extras.parameters.items()
        ]
    if extras.scratch:
        lines.append("[scratch]")
        lines += [f"{name} = {table}" for name, table in extras.scratch.items()]
    for each in launches:
        lines += ["[[launch]]", f'entry = "{each.entry}"', f'grid = ["{each.grid}"]', f'block = ["{each.block}"]']
        if each.arguments:
            lines.append(f"arguments = {json.dumps(list(each.arguments))}")
        if each.cluster:
            lines.append(f"cluster = [{each.cluster}]")
        if each.shared_bytes:
            lines.append(f'shared_bytes = "{each.shared_bytes}"')
    return "\n".join(["// /// kernelwright", *(f"// {line}" for line in lines), "// ///"])


def renamed(text: str, rng: random.Random) -> str:
    """Every name that begins with `kw_` under another one, each time a new one."""
    names: dict[str, str] = {}
    for word in sorted(set(_OWN_NAME.findall(text))):
        while word not in names:
            fresh = "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 4))) + rng.choice(("", "_a", "_b", "2"))
            if fresh not in names.values() and not re.search(rf"\b{fresh}\b", text):
                names[word] = fresh
    return _OWN_NAME.sub(lambda match: names[match.group()], text)
