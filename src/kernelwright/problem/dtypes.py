"""Element types: their names in problem files, in NumPy and in C, and how one value becomes bytes.

`DTYPES["bfloat16"]` is the one place that knows a type's width, its NumPy dtype and its C spellings.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import ml_dtypes
import numpy as np

from kernelwright.errors import Location, SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelwright.source.language import Language

Kind = Literal["bool", "int", "uint", "float"]


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type, little-endian."""

    name: str
    numpy_dtype: np.dtype[Any]
    c_names: Mapping[Language, tuple[str, ...]]
    """Spellings by language, the usual one first; empty where the language has no such type."""
    item_bytes: int
    kind: Kind

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, false for bool and floats."""
        return self.kind in ("int", "uint")


_CUDA_INTEGERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "int8": ("int8_t", "char", "signed char"),
        "int16": ("int16_t", "short"),
        "int32": ("int", "int32_t"),
        "int64": ("int64_t", "long long", "long", "ptrdiff_t", "ssize_t"),
        "uint8": ("uint8_t", "unsigned char", "uchar"),
        "uint16": ("uint16_t", "unsigned short", "ushort"),
        "uint32": ("unsigned int", "uint32_t", "uint", "unsigned"),
        "uint64": ("uint64_t", "unsigned long long", "unsigned long", "ulong", "size_t"),
    }
)

_OPENCL_INTEGERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "int8": ("char",),
        "int16": ("short",),
        "int32": ("int",),
        "int64": ("long", "ptrdiff_t", "intptr_t"),
        "uint8": ("uchar", "unsigned char"),
        "uint16": ("ushort", "unsigned short"),
        "uint32": ("uint", "unsigned int", "unsigned"),
        "uint64": ("ulong", "unsigned long", "size_t", "uintptr_t"),
    }
)

_OPENCL_FLOATS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "float16": ("half",),
        "float32": ("float",),
        "float64": ("double",),
    }
)

_CUDA_FLOATS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "float16": ("__half", "half", "__fp16", "_Float16", "at::Half", "c10::Half"),
    "bfloat16": (
        "__nv_bfloat16", "nv_bfloat16", "__hip_bfloat16", "hip_bfloat16", "at::BFloat16", "c10::BFloat16",
    ),
    "float8_e4m3fn": ("__nv_fp8_e4m3", "__hip_fp8_e4m3", "at::Float8_e4m3fn", "c10::Float8_e4m3fn"),
    "float8_e5m2": ("__nv_fp8_e5m2", "__hip_fp8_e5m2", "at::Float8_e5m2", "c10::Float8_e5m2"),
    "float32": ("float",),
    "float64": ("double",),
})  # fmt: skip

_NUMPY_NAMES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                "float16", "float32", "float64")  # fmt: skip


def _kind_of(name: str) -> Kind:
    if name == "bool":
        return "bool"
    if name.startswith("uint"):
        return "uint"
    return "int" if name.startswith("int") else "float"


def _make(name: str, numpy_dtype: np.dtype[Any]) -> Dtype:
    opencl: dict[str, tuple[str, ...]] = {"bool": ("bool",), **_OPENCL_INTEGERS, **_OPENCL_FLOATS}
    cuda: dict[str, tuple[str, ...]] = {"bool": ("bool",), **_CUDA_INTEGERS, **_CUDA_FLOATS}
    triton = {"bool": "int1", "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5"}.get(name, name)
    c_names: dict[Language, tuple[str, ...]] = {
        "opencl": opencl.get(name, ()),
        "cuda": cuda.get(name, ()),
        "hip": cuda.get(name, ()),
        "triton": (f"tl.{triton}",),
    }
    return Dtype(name, numpy_dtype, MappingProxyType(c_names), numpy_dtype.itemsize, _kind_of(name))


DTYPES: Mapping[str, Dtype] = MappingProxyType(
    {
        **{name: _make(name, np.dtype(name)) for name in _NUMPY_NAMES},
        "bfloat16": _make("bfloat16", np.dtype(ml_dtypes.bfloat16)),
        "float8_e4m3fn": _make("float8_e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn)),
        "float8_e5m2": _make("float8_e5m2", np.dtype(ml_dtypes.float8_e5m2)),
    }
)
"""Every dtype that a problem file may name."""

_ALIASES: Mapping[str, str] = MappingProxyType({
    "fp16": "float16", "half": "float16", "__half": "float16", "f16": "float16",
    "fp32": "float32", "float": "float32", "f32": "float32", "single": "float32",
    "fp64": "float64", "double": "float64", "f64": "float64",
    "bf16": "bfloat16", "__nv_bfloat16": "bfloat16",
    "fp8": "float8_e4m3fn", "float8": "float8_e4m3fn", "float8_e4m3": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "__nv_fp8_e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "__nv_fp8_e5m2": "float8_e5m2",
    "char": "int8", "short": "int16", "int": "int32", "long": "int64", "i32": "int32", "i64": "int64",
    "uchar": "uint8", "ushort": "uint16", "uint": "uint32", "unsigned": "uint32", "ulong": "uint64",
    "size_t": "uint64", "boolean": "bool",
})  # fmt: skip
"""What people write instead of our names; only for the hint, so that a file has one spelling."""


def find_dtype(name: str, *, location: Location | None = None) -> Dtype:
    """The dtype called `name` in problem files.

    Raises:
        SpecError: there is none; the message names the nearest one.
    """
    dtype = DTYPES.get(name)
    if dtype is not None:
        return dtype
    nearest = _ALIASES.get(name.lower()) or next(iter(difflib.get_close_matches(name.lower(), DTYPES, 1)), None)
    hint = f"write {nearest!r}" if nearest else "one of " + ", ".join(DTYPES)
    raise SpecError(f"unknown dtype {name!r}; expected one of {', '.join(DTYPES)}", hint=hint, location=location)


# C spellings

_VECTOR = re.compile(r"(?P<scalar>[A-Za-z_]\w*?[a-z])(?P<count>2|3|4|8|16)$")
_CUDA_VECTORS: Mapping[str, str] = MappingProxyType({
    "__half2": "float16", "half2": "float16", "__nv_bfloat162": "bfloat16", "nv_bfloat162": "bfloat16",
    "__hip_bfloat162": "bfloat16",
    "__nv_fp8x2_e4m3": "float8_e4m3fn", "__nv_fp8x4_e4m3": "float8_e4m3fn",
    "__nv_fp8x2_e5m2": "float8_e5m2", "__nv_fp8x4_e5m2": "float8_e5m2",
    "longlong1": "int64", "longlong2": "int64", "longlong3": "int64", "longlong4": "int64",
    "ulonglong1": "uint64", "ulonglong2": "uint64", "ulonglong3": "uint64", "ulonglong4": "uint64",
    "float1": "float32", "int1": "int32", "uint1": "uint32",
})  # fmt: skip


def _normal_spelling(spelling: str) -> str:
    """One spelling for C's many: `long unsigned int` -> `unsigned long`, `signed int` -> `int`."""
    words = spelling.replace("std::", "").split()
    if not any(word in ("unsigned", "signed", "long", "short", "int", "char") for word in words):
        return " ".join(words)
    is_unsigned = "unsigned" in words
    long_count = words.count("long")
    if "char" in words:
        base = "char"
    elif "double" in words:
        return " ".join(words)
    elif "short" in words:
        base = "short"
    else:
        base = " ".join(["long"] * long_count) or "int"
    return f"unsigned {base}" if is_unsigned else base


_BY_SPELLING: Mapping[str, Mapping[str, str]] = MappingProxyType({
    language: MappingProxyType({
        _normal_spelling(spelling): dtype.name
        for dtype in DTYPES.values()
        for spelling in dtype.c_names[language]
    })
    for language in ("opencl", "cuda", "hip")
})  # fmt: skip


def dtype_of_c_type(spelling: str, language: Language) -> Dtype | None:
    """The dtype behind a C type without qualifiers; for a vector type (`float4`) that of its elements.

    None for a type that is not built in: a typedef, a macro, a template parameter, a struct.
    """
    names = _BY_SPELLING.get(language)
    if names is None:
        return None
    normal = _normal_spelling(spelling)
    found = names.get(normal)
    if found is None and language != "opencl":
        found = _CUDA_VECTORS.get(normal)
    if found is None and (vector := _VECTOR.match(normal)):
        found = names.get(_normal_spelling(vector["scalar"]))
    return DTYPES[found] if found else None


def is_vector_c_type(spelling: str, language: Language) -> bool:
    """Whether a C type is a built-in vector (`float4`), several elements wide."""
    normal = _normal_spelling(spelling)
    return normal not in _BY_SPELLING.get(language, {}) and dtype_of_c_type(normal, language) is not None


_CARRIERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bool": ("uint8", "int8"),
        "float16": ("uint16", "int16"),
        "bfloat16": ("uint16", "int16"),
        "float8_e4m3fn": ("uint8", "int8"),
        "float8_e5m2": ("uint8", "int8"),
    }
)
"""Integers that sources use to carry a type that the compiler may not know (OpenCL: bfloat16 as `ushort`)."""


def fits_c_type(dtype: Dtype, spelling: str, language: Language, *, is_pointer: bool) -> bool:
    """Whether a kernel parameter of C type `spelling` can hold `dtype`; true for a type not built in.

    Behind a pointer floats may be seen as integers of their width, and integers as floats: atomics that compare and
    swap the bits of a float are written so. Behind a pointer to bytes anything may lie.
    """
    if spelling == "void":
        return True
    found = dtype_of_c_type(spelling, language)
    if found is None or found.name == dtype.name or found.name in _CARRIERS.get(dtype.name, ()):
        return True
    kinds = {"float" if each.kind == "float" else "integer" if each.is_integer else "bool" for each in (dtype, found)}
    is_alike = kinds == {"float", "integer"} and dtype.item_bytes == found.item_bytes
    return is_pointer and (is_alike or found.name in ("int8", "uint8"))


# Values


def may_become(found: np.dtype[Any], dtype: Dtype) -> bool:
    """Whether data of the dtype `found` can be taken for `dtype` at all; single values may still not fit.

    NumPy's files keep no name for bfloat16 and the float8 types: those are nameless bytes of the same width.
    """
    has_own_name = dtype.numpy_dtype.type.__module__ == "numpy"
    return found.kind in "biuf" or (found.str == f"|V{dtype.item_bytes}" and not found.names and not has_own_name)


def integer_range(dtype: Dtype) -> tuple[int, int]:
    """The least and greatest value of an integer or bool dtype, both inclusive."""
    if dtype.kind == "bool":
        return 0, 1
    info = np.iinfo(dtype.numpy_dtype)
    return int(info.min), int(info.max)


def largest_finite(dtype: Dtype) -> float:
    """The largest finite value of a float dtype."""
    return float(ml_dtypes.finfo(dtype.numpy_dtype).max)


def machine_epsilon(dtype: Dtype | str) -> float:
    """The distance from 1.0 to the next larger value; 0.0 for integers and bool, which round nothing."""
    found = find_dtype(dtype) if isinstance(dtype, str) else dtype
    if found.kind != "float":
        return 0.0
    return float(ml_dtypes.finfo(found.numpy_dtype).eps)


def mantissa_bits(dtype: Dtype) -> int:
    """Stored bits of a float's fraction."""
    return int(ml_dtypes.finfo(dtype.numpy_dtype).nmant)


def encode_scalar(dtype: Dtype | str, value: object, *, location: Location | None = None) -> bytes:
    """`value` as the little-endian bytes of a by-value kernel argument.

    A whole number may be given as a float (`4.0`), since expressions divide. `bool` is one byte, 0 or 1.
    OpenCL allows neither `bool` nor `size_t` as the type of a kernel argument: there, use `int` or `ulong`.

    Raises:
        SpecError: the value is no number, is not whole for an integer dtype, or does not fit the dtype.
    """
    found = find_dtype(dtype, location=location) if isinstance(dtype, str) else dtype
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, bool | int | float):
        raise SpecError(
            f"a {found.name} scalar needs a number, got {value!r} ({type(value).__name__})", location=location
        )
    encode = _encode_float if found.kind == "float" else _encode_integer
    return encode(found, number, location)


def _encode_integer(dtype: Dtype, number: float, location: Location | None) -> bytes:
    low, high = integer_range(dtype)
    if not math.isfinite(number) or number != int(number):
        raise SpecError(
            f"{number!r} is not a whole number, but the argument is {dtype.name}",
            hint="round it in the expression (`//`), or declare a float dtype",
            location=location,
        )
    if not low <= number <= high:
        raise SpecError(
            f"{int(number)} does not fit {dtype.name}, which holds {low} to {high}",
            hint="declare a wider dtype, in the problem and in the kernel",
            location=location,
        )
    return int(number).to_bytes(dtype.item_bytes, "little", signed=dtype.kind == "int")


def _encode_float(dtype: Dtype, number: float, location: Location | None) -> bytes:
    try:
        wanted = float(number)
    except OverflowError:  # an int beyond float64
        wanted = math.inf
    array = np.zeros(1, dtype.numpy_dtype)
    with np.errstate(over="ignore"):
        array[0] = wanted
    kept = float(array[0])
    is_kept = math.isnan(kept) if math.isnan(wanted) else math.isfinite(kept) or kept == number
    if not is_kept:
        raise SpecError(
            f"{number!r} does not fit {dtype.name}, whose largest finite value is {largest_finite(dtype):g}",
            hint="declare a wider dtype, in the problem and in the kernel",
            location=location,
        )
    data = array.view(np.uint8)
    return data.tobytes() if sys.byteorder == "little" else data[::-1].tobytes()
