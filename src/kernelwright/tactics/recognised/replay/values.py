"""What expressions are in a replay: a number a thread, places in memory, structs of numbers; and C's names for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from kernelwright.source import nodes
from kernelwright.tactics.base import Unfit

Numbers: TypeAlias = npt.NDArray[Any]
"""One number a thread: int64, float64 or bool."""


Content = Literal["fine", "coarse", "rising", "falling", "wide", "mixed", "nan", "lowest", "highest"]
"""What arrays of floats hold in a trial: numbers in [-1, 1); quarters, so that many are the same; numbers that grow or
shrink along the array; numbers of all sizes; these and a fifth of them NaN; nothing but NaN, -inf or inf."""


def arbitrary(name: str, offsets: Numbers, seed: int, content: Content = "fine") -> Numbers:
    """A number for each place of an array: splitmix64 of place, name and seed."""
    if content in _CONSTANTS:
        return np.full(offsets.shape, _CONSTANTS[content])
    with np.errstate(over="ignore"):
        key = np.uint64(abs(hash_of(name)) + 1_000_003 * seed)
        x = offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key * np.uint64(0xD1342543DE82EF95)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    found = (x >> np.uint64(11)).astype(np.float64) / float(1 << 52) - 1.0
    if content == "fine":
        return found
    if content in ("rising", "falling"):
        trend = offsets.astype(np.float64) / 16384.0
        return found / 1024.0 + (trend if content == "rising" else -trend)
    if content == "coarse":
        return np.floor(found * 4.0) / 4.0
    wide: Numbers = np.ldexp(found, (x % np.uint64(252)).astype(np.int64) - 126)
    return np.where(x % np.uint64(5) == 0, np.nan, wide) if content == "mixed" else wide


_CONSTANTS: Mapping[str, float] = MappingProxyType({"nan": np.nan, "lowest": -np.inf, "highest": np.inf})


_PRIME = 2**56 - 5


def hash_of(name: str) -> int:
    """A number of a name, the same in every process."""
    return int.from_bytes(name.encode(), "little") % _PRIME


@dataclass
class Memory:
    """What a pointer points into."""

    name: str
    kind: str
    """`global`, `shared`, `private`."""
    is_float: bool
    data: Numbers = field(default_factory=lambda: np.zeros(0))
    """Elements of shared memory; of private memory one column a thread."""
    fields: Mapping[str, Memory] = field(default_factory=dict)
    """Of structs: the memory of each field."""


@dataclass(frozen=True)
class Address:
    """A place in memory for each thread."""

    memory: Memory
    offset: Numbers
    extents: tuple[int, ...] = ()
    """Of the array that it stands for, the outermost one left out; empty for a plain pointer."""
    is_array: bool = False
    """Whether an index gives another array."""
    width: int = 1
    """Numbers of an element: 4 where a pointer to `float4` points among floats."""


Record: TypeAlias = "Mapping[str, Numbers]"
"""A struct of numbers for each thread, by field."""
Value: TypeAlias = "Numbers | Address | Record"


def merged(mask: Numbers, new: Value, old: Value) -> Value:
    """What was new for the threads of the mask, old for others.

    Raises:
        Unfit: threads would point into different memory.
    """
    if isinstance(new, Address) or isinstance(old, Address):
        if not isinstance(new, Address) or not isinstance(old, Address) or new.memory is not old.memory:
            if isinstance(new, Address) and mask.all():
                return new
            raise Unfit("a pointer is chosen by the thread")
        return replace(new, offset=np.where(mask, new.offset, old.offset))
    if isinstance(new, Mapping) or isinstance(old, Mapping):
        if not isinstance(new, Mapping) or not isinstance(old, Mapping):
            raise Unfit("a struct becomes a number")
        return {name: np.where(mask, part, old[name]) for name, part in new.items()}
    return np.where(mask, new, old)


# Types


AXES = ("x", "y", "z", "w")
_VECTOR = re.compile(r"(float|double|half|__half|__nv_bfloat16|int|uint|char|uchar|short|ushort|long|longlong)([234])")


def vector_type(c_type: str) -> tuple[int, bool] | None:
    """How many numbers a vector type has, and whether they are floats; None for another type."""
    words = [word for word in c_type.split() if word not in ("const", "volatile")]
    found = _VECTOR.fullmatch(words[0]) if len(words) == 1 else None
    return None if found is None else (int(found[2]), bool(is_float_type(found[1])))


def is_float_type(c_type: str) -> bool | None:
    """Whether a type is a number with a fraction; None for one that is not known."""
    words = c_type.replace("const", "").replace("volatile", "").split()
    name = " ".join(words)
    if _VECTOR.fullmatch(name):
        return None
    if any(each in name for each in ("float", "double", "half", "bfloat", "fp8")):
        if name[-1:].isdigit() and not name.endswith(("16", "_e4m3", "_e5m2", "32", "64")):
            raise Unfit(f"values of type {name} are not followed")
        return True
    known = {"int", "unsigned", "signed", "long", "short", "char", "bool", "uint", "size_t", "ulong", "ushort", "uchar"}
    if set(words) and set(words) <= known:
        return False
    return False if (name.endswith("_t") and "int" in name) or name in ("ptrdiff_t", "ssize_t") else None


def literal(node: nodes.Literal) -> float | int:
    """A literal's number."""
    if node.value is not None:
        return node.value
    if node.text in ("true", "false"):
        return int(node.text == "true")
    try:
        return float(node.text.rstrip("fFlL"))
    except ValueError:
        raise Unfit(f"{node.text!r} is no number") from None


def fields_of(c_type: str, structs: Mapping[str, Sequence[nodes.Declarator]]) -> Mapping[str, bool] | None:
    """The fields of a struct of numbers or a vector, and whether each is a float; None for another type.

    Raises:
        Unfit: a struct has other fields.
    """
    words = [word for word in c_type.split() if word not in ("const", "struct", "volatile")]
    found = structs.get(words[0]) if len(words) == 1 else None
    if found is None:
        vector = vector_type(c_type)
        return None if vector is None else dict.fromkeys(AXES[: vector[0]], vector[1])
    kinds = {each.name: is_float_type(each.c_type) for each in found}
    if any(each.is_pointer or each.extents for each in found) or None in kinds.values():
        raise Unfit(f"values of type {c_type} are not followed")
    return {name: bool(kind) for name, kind in kinds.items()}


def parts_of(place: Address) -> dict[str, Address]:
    """Where the fields of a struct or vector stand."""
    if place.memory.fields:
        return {name: Address(part, place.offset) for name, part in place.memory.fields.items()}
    return {AXES[lane]: Address(place.memory, place.offset + lane) for lane in range(place.width)}
