"""Sums of columns."""

import numpy as np


def colsum(m: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """`m` (rows, cols) to (cols,)."""
    return m.sum(axis=0)
