"""The reference's function, and from what it returned to what an output must hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernelwright.errors import ReferenceFailed
from kernelwright.evaluate.judge.judgement import element_name
from kernelwright.problem.c_reference import c_reference
from kernelwright.problem.dtypes import DTYPES, Dtype, integer_range
from kernelwright.problem.model import Argument, Problem
from kernelwright.problem.reference import Reference, load_reference

Array = npt.NDArray[Any]


def loaded_reference(problem: Problem) -> Reference:
    """The function of a reference in Python or C, not called yet.

    Raises:
        SpecError: it does not load.
    """
    if problem.reference.is_c:
        return Reference(c_reference(problem), problem.reference.file, uses_torch=False)
    return load_reference(problem.reference)


def expected_values(problem: Problem, argument: Argument, values: Array) -> Array:
    """The reference's finite, well-shaped result for one output, ready to compare with.

    Float64, C-contiguous; for integers and booleans without a declared tolerance in the storage dtype (booleans as
    bytes), so that equality is exact also beyond 2^53.

    Raises:
        ReferenceFailed: a value does not fit an integer output.
    """
    dtype = DTYPES[argument.dtype]
    if dtype.kind == "float" or argument.name in problem.tolerances:
        return np.ascontiguousarray(values, np.float64).reshape(values.shape)
    return _as_integers(problem, argument, dtype, values)


def _as_integers(problem: Problem, argument: Argument, dtype: Dtype, values: Array) -> Array:
    """Expected values of an integer output in its own dtype, where each must be representable."""
    low, high = integer_range(dtype)
    is_bad = (values < low) | (values > high)
    if values.dtype.kind not in "biu":
        is_bad |= values != np.rint(values)
    if np.any(is_bad):
        index = np.unravel_index(int(np.argmax(is_bad)), values.shape)
        raise ReferenceFailed(
            f"the reference gives {element_name(argument.name, index)} = {values[index]}, which "
            f"{argument.dtype} cannot hold",
            hint="wrap or round in the reference as the kernel does, or declare a tolerance for rounding",
            location=problem.reference.location,
        )
    storage = np.dtype(np.uint8) if dtype.kind == "bool" else dtype.numpy_dtype
    return np.ascontiguousarray(values.astype(storage)).reshape(values.shape)
