"""What `matmul` must compute."""

import numpy as np


def matmul(a: np.ndarray, b: np.ndarray, m: int, n: int, k: int) -> np.ndarray:
    """The product of `a` (m, k) and `b` (k, n)."""
    assert a.shape == (m, k)
    assert b.shape == (k, n)
    return a @ b
