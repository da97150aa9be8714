"""What `rmsnorm` must compute."""

import numpy as np


def rmsnorm(x: np.ndarray, weight: np.ndarray, rows: int, d: int, eps: float) -> np.ndarray:
    """Each row of `x` (rows, d) over its root mean square, times `weight` (d,)."""
    assert x.shape == (rows, d)
    return x / np.sqrt(np.mean(np.square(x), axis=1, keepdims=True) + eps) * weight
