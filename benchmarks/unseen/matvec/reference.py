"""Matrix times vector."""

import numpy as np


def mv(a: np.ndarray, x: np.ndarray, m: int, n: int) -> np.ndarray:
    """`a` (m, n), `x` (n,)."""
    return a @ x
