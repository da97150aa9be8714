"""Products of a batch, the second factor transposed."""

import numpy as np


def bmm(a: np.ndarray, b: np.ndarray, m: int, n: int, k: int) -> np.ndarray:
    """`a` (batch, m, k), `b` (batch, n, k) to (batch, m, n)."""
    return a @ b.transpose(0, 2, 1)
