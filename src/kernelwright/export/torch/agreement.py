"""Whether two results of a module agree: its own and the kernels', or two answers' in a measurement."""

from __future__ import annotations

from typing import Any

TOLERANCE, TOLERANCE_16 = 1e-4, 1e-2
"""Relative and absolute, of floats with 32 bits or more, and of those with 16: KernelBench's own."""


def results_of(found: Any) -> tuple[Any, ...]:
    """What a module returns, as a tuple of tensors."""
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def tolerance_of(tensor: Any) -> float:
    """The tolerance of a floating tensor's type."""
    return TOLERANCE_16 if tensor.element_size() == 2 else TOLERANCE


def agree(torch: Any, one: Any, other: Any) -> bool:
    """Whether two tensors have one shape and type, and values within the tolerance.

    Integers exactly: a tolerance would let the wrong place of a maximum pass.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool(torch.equal(one, other))
    allowed = tolerance_of(one)
    return bool(torch.allclose(one, other, rtol=allowed, atol=allowed, equal_nan=True))
