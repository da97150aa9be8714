"""Configurations as numbers for models, and distances between values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kernelwright.problem.config import Value
from kernelwright.space.dense import Array
from kernelwright.space.parameter import Parameter

Features = npt.NDArray[np.float64]


def columns_of(parameter: Parameter) -> tuple[tuple[str, ...], Features]:
    """The names of a parameter's features, and (values, its columns) in 0..1.

    - numbers, all powers of two: log2, scaled to 0..1 (so 32 lies midway between 16 and 64);
    - other numbers: the position in ascending order, scaled to 0..1;
    - booleans: 0 and 1;
    - texts: one column for each value, 1 in the value's own;
    - a parameter with one value: no column.
    """
    count = len(parameter.values)
    if count == 1:
        return (), np.zeros((1, 0))
    if is_text(parameter):
        return tuple(f"{parameter.name}={value}" for value in parameter.values), np.eye(count)
    return (parameter.name,), scaled(parameter).reshape(-1, 1)


def encoded(tables: Sequence[Features], rows: Array) -> Features:
    """(configs, features) for (configs, parameters) value indices, by the columns of each parameter."""
    parts = [table[rows[:, index]] for index, table in enumerate(tables) if table.shape[1]]
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(rows), 0))


def is_text(parameter: Parameter) -> bool:
    """True when any value is a text."""
    return any(isinstance(value, str) for value in parameter.values)


def scaled(parameter: Parameter) -> Features:
    """(values,) each number's place in 0..1: by log2 when all are powers of two, else by rank."""
    numbers = [float(value) for value in parameter.values]
    if all(_is_power_of_two(value) for value in parameter.values):
        places = np.log2(numbers)
    else:
        places = np.argsort(np.argsort(numbers)).astype(np.float64)
    low, high = float(places.min()), float(places.max())
    return (places - low) / (high - low) if high > low else np.zeros(len(numbers))


def _is_power_of_two(value: Value) -> bool:
    if isinstance(value, bool | str) or value <= 0:
        return False
    return math.frexp(value)[0] == 0.5


def distances(parameter: Parameter, value: Value) -> Features:
    """(values,) how far each value of the parameter is from `value`, which need not be one of them.

    Numbers: the difference of their places in 0..1, interpolated (and extended) for a number not in the list. Texts and
    values of another kind: 0 for the same, 1 for any other.
    """
    if is_text(parameter) or isinstance(value, str):
        return np.array([0.0 if known == value else 1.0 for known in parameter.values])
    if len(parameter.values) == 1:
        return np.zeros(1)
    places = scaled(parameter)
    numbers = np.array([float(known) for known in parameter.values])
    order = np.argsort(numbers)
    place = float(np.interp(float(value), numbers[order], places[order]))
    if all(_is_power_of_two(known) for known in parameter.values) and value > 0:
        logs = np.log2(numbers)
        place = (math.log2(value) - float(logs.min())) / float(logs.max() - logs.min())
    gap = np.abs(places - place)
    # Of values equally near, prefer the one nearest by plain difference.
    result: Features = gap + 1e-9 * np.abs(numbers - float(value)) / (np.ptp(numbers) + abs(float(value)) + 1.0)
    return result
