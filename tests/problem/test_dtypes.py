"""Dtypes: every width, every C spelling, and values that do not fit."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.errors import SpecError
from kernelwright.problem.dtypes import (
    DTYPES,
    dtype_of_c_type,
    encode_scalar,
    find_dtype,
    fits_c_type,
    integer_range,
    is_vector_c_type,
    largest_finite,
    machine_epsilon,
)

INTEGERS = [dtype for dtype in DTYPES.values() if dtype.is_integer]
FLOATS = [dtype for dtype in DTYPES.values() if dtype.kind == "float"]


@pytest.mark.parametrize(
    ("written", "nearest"),
    [("half", "float16"), ("flot32", "float32"), ("__nv_bfloat16", "bfloat16"), ("size_t", "uint64")],
)
def test_unknown_dtype_names_the_nearest(written: str, nearest: str) -> None:
    with pytest.raises(SpecError, match="unknown dtype") as caught:
        find_dtype(written)
    assert caught.value.hint == f"write {nearest!r}"


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.name)
def test_integers_are_encoded_to_their_last_value_and_not_beyond(dtype) -> None:  # type: ignore[no-untyped-def]
    low, high = integer_range(dtype)
    for value in (low, 0, 1, high):
        data = encode_scalar(dtype, value)
        assert len(data) == dtype.item_bytes
        assert np.frombuffer(data, dtype.numpy_dtype.newbyteorder("<"))[0] == value
    for value in (low - 1, high + 1):
        with pytest.raises(SpecError, match=f"does not fit {dtype.name}"):
            encode_scalar(dtype, value)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_floats_are_encoded_to_their_last_value_and_not_beyond(dtype) -> None:  # type: ignore[no-untyped-def]
    for value in (0.0, 1.0, -1.5, largest_finite(dtype), -largest_finite(dtype)):
        assert np.frombuffer(encode_scalar(dtype, value), dtype.numpy_dtype)[0] == value
    assert math.isnan(float(np.frombuffer(encode_scalar(dtype, math.nan), dtype.numpy_dtype)[0]))
    with pytest.raises(SpecError, match=f"does not fit {dtype.name}"):
        encode_scalar(dtype, 10**400)


def test_a_float_without_infinity_refuses_it() -> None:
    assert encode_scalar("float32", math.inf) == struct.pack("<f", math.inf)
    with pytest.raises(SpecError, match="float8_e4m3fn"):
        encode_scalar("float8_e4m3fn", math.inf)


@pytest.mark.parametrize("value", [1.5, math.nan, math.inf])
def test_integer_scalar_refuses_what_is_not_whole(value: float) -> None:
    with pytest.raises(SpecError, match="not a whole number"):
        encode_scalar("int32", value)


@pytest.mark.parametrize("value", ["7", None, 1j, [1]])
def test_scalar_refuses_what_is_no_number(value: object) -> None:
    with pytest.raises(SpecError, match="needs a number"):
        encode_scalar("float32", value)


def test_bool_is_one_byte() -> None:
    assert encode_scalar("bool", True) == b"\1"
    assert encode_scalar("bool", 0) == b"\0"
    with pytest.raises(SpecError):
        encode_scalar("bool", 2)


@given(st.floats(width=32, allow_nan=False))
def test_float32_bytes_are_the_ieee_ones(value: float) -> None:
    assert encode_scalar("float32", value) == struct.pack("<f", value)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_epsilon_is_the_step_above_one(dtype) -> None:  # type: ignore[no-untyped-def]
    epsilon = machine_epsilon(dtype)
    kind = dtype.numpy_dtype.type
    assert float(kind(1 + epsilon)) == 1 + epsilon
    assert float(kind(1 + epsilon / 4)) == 1


def test_integers_have_no_epsilon() -> None:
    assert machine_epsilon("int32") == 0.0


@pytest.mark.parametrize(
    ("spelling", "language", "name"),
    [
        ("float", "opencl", "float32"),
        ("half", "opencl", "float16"),
        ("uchar16", "opencl", "uint8"),
        ("ulong", "opencl", "uint64"),
        ("unsigned", "opencl", "uint32"),
        ("long", "opencl", "int64"),
        ("size_t", "opencl", "uint64"),
        ("bool", "opencl", "bool"),
        ("long unsigned int", "cuda", "uint64"),
        ("long long", "cuda", "int64"),
        ("int32_t", "cuda", "int32"),
        ("std::int8_t", "cuda", "int8"),
        ("float4", "cuda", "float32"),
        ("__half2", "cuda", "float16"),
        ("__nv_bfloat16", "cuda", "bfloat16"),
        ("__nv_fp8_e4m3", "cuda", "float8_e4m3fn"),
        ("__hip_bfloat16", "hip", "bfloat16"),
    ],
)
def test_c_spellings_have_a_dtype(spelling: str, language, name: str) -> None:  # type: ignore[no-untyped-def]
    found = dtype_of_c_type(spelling, language)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("spelling", ["T", "real", "image2d_t", "int7", "float5", "my_float4"])
def test_types_that_are_not_built_in_are_not_guessed(spelling: str) -> None:
    assert dtype_of_c_type(spelling, "opencl") is None
    assert fits_c_type(DTYPES["float32"], spelling, "opencl", is_pointer=False)


def test_a_carrier_type_fits_only_its_dtype() -> None:
    assert fits_c_type(DTYPES["bfloat16"], "ushort", "opencl", is_pointer=False)
    assert not fits_c_type(DTYPES["float32"], "uint", "opencl", is_pointer=False)
    assert not fits_c_type(DTYPES["int32"], "uint", "opencl", is_pointer=True)


@pytest.mark.parametrize(
    ("name", "spelling", "fits"),
    [
        ("float32", "uint", True), ("float32", "int", True), ("float32", "uint4", True), ("float64", "ulong", True),
        ("float16", "ushort", True), ("int32", "float", True), ("uint64", "double", True), ("float32", "ulong", False),
        ("float32", "ushort", False), ("float64", "float", False), ("float64", "uint", False),
        ("float16", "int", False), ("bool", "float", False), ("float32", "bool", False), ("int32", "uint", False),
        ("int32", "ulong", False),
    ],
)  # fmt: skip
def test_behind_a_pointer_floats_and_integers_of_one_width_fit_each_other(name: str, spelling: str, fits: bool) -> None:
    assert fits_c_type(DTYPES[name], spelling, "opencl", is_pointer=True) is fits
    assert not fits_c_type(DTYPES[name], spelling, "opencl", is_pointer=False) or name == "float16"


def test_vectors_are_told_from_scalars() -> None:
    assert is_vector_c_type("float4", "opencl")
    assert is_vector_c_type("half2", "cuda")
    assert not is_vector_c_type("float", "opencl")
    assert not is_vector_c_type("T", "opencl")
