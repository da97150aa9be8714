"""x sigmoid(beta x)."""

import numpy as np


def swish(x: np.ndarray, beta: float, count: int) -> np.ndarray:
    """`x` (count,)."""
    with np.errstate(over="ignore"):
        return x / (1.0 + np.exp(-beta * x))
