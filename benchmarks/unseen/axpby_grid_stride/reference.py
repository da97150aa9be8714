"""b = alpha a + beta b."""

import numpy as np


def axpby(a_vec: np.ndarray, b_vec: np.ndarray, alpha: float, beta: float, n: int) -> np.ndarray:
    """Vectors of n."""
    return alpha * a_vec + beta * b_vec
