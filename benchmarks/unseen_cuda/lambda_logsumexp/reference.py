"""log(sum(exp(row)))."""

import numpy as np


def logsumexp(x: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """`x` (rows, cols) to (rows,)."""
    peak = x.max(axis=1, keepdims=True)
    return (peak + np.log(np.exp(x - peak).sum(axis=1, keepdims=True)))[:, 0]
