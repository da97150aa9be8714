"""Dense codes: equal things get equal small integers. The workhorse that merges states of the decision diagram."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Codes = npt.NDArray[np.int64]

MAX_SPACE = 2**62
"""Combined codes stay below this, so that they are exact in 64 bits."""


class _Dense(NamedTuple):
    """`unique[codes] == given`, with `unique` ascending (for objects: in order of appearance)."""

    unique: Array
    codes: Array


def dense_codes(values: Array, space: int | None = None) -> _Dense:
    """Codes 0..n-1 of one-dimensional `values`; for integers in 0..space-1, without sorting where `space` is small."""
    if values.dtype.kind == "O":
        seen: dict[tuple[type, object], int] = {}
        codes = np.array([seen.setdefault((type(value), value), len(seen)) for value in values], np.int64)
        unique = np.empty(len(seen), object)
        unique[:] = [value for _, value in seen]
        return _Dense(unique, codes)
    if values.dtype.kind in "ib" and values.size:
        low = 0
        if values.dtype.kind == "b":
            space = 2
            values = values.view(np.uint8)
        elif space is None:
            low = int(values.min())
            space = int(values.max()) - low + 1
        if space <= max(4 * values.size, 4096):
            return _by_table(values, low, space)
    unique, inverse = np.unique(values, return_inverse=True)
    return _Dense(unique, inverse)


def _by_table(values: Array, low: int, space: int) -> _Dense:
    shifted = values - low if low else values
    is_present = np.zeros(space, np.bool_)
    is_present[shifted] = True
    unique = np.flatnonzero(is_present)
    code_of = np.empty(space, np.int32 if space < 2**31 else np.int64)
    code_of[unique] = np.arange(unique.size)
    return _Dense(unique + low if low else unique, code_of[shifted])


def combine(columns: list[tuple[Array, int]]) -> tuple[Array, int]:
    """One code for each row of several code columns `(codes, count)`, with the space that it lies in.

    Rows get the same code exactly when all their columns agree.
    """
    key, space = columns[0]
    for given, given_count in columns[1:]:
        codes, count = given, given_count
        if space * count > MAX_SPACE:
            dense = dense_codes(key, space)
            key, space = dense.codes, dense.unique.size
        if space * count > MAX_SPACE:
            dense = dense_codes(codes, count)
            codes, count = dense.codes, dense.unique.size
        key = key.astype(np.int64, copy=False) * count + codes
        space *= count
    return key, space


def first_rows(codes: Array, count: int) -> Codes:
    """For each code, one row that has it (the first)."""
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(codes.size - 1, -1, -1)
    return first


def unique_rows(matrix: Array, count: int) -> tuple[Array, Codes]:
    """Classes of equal rows of a matrix with entries in -1..count-1: `(class of each row, one row of each class)`."""
    rows, width = matrix.shape
    if rows <= 1:
        return np.zeros(rows, np.int64), np.arange(rows)
    base = count + 1
    if base**width < MAX_SPACE:
        weights = base ** np.arange(width, dtype=np.int64)
        dense = dense_codes((matrix.astype(np.int64, copy=False) + 1) @ weights, base**width)
        return dense.codes, first_rows(dense.codes, dense.unique.size)
    multipliers = np.random.default_rng(width).integers(-(2**62), 2**62, width, np.int64) | 1
    dense = dense_codes(matrix.astype(np.int64, copy=False) @ multipliers)  # wraps: a hash, checked below
    first = first_rows(dense.codes, dense.unique.size)
    if np.array_equal(matrix[first[dense.codes]], matrix):
        return dense.codes, first
    exact = np.unique(matrix, axis=0, return_inverse=True)[1].ravel()
    return exact, first_rows(exact, int(exact.max()) + 1)
