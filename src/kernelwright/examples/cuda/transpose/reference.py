"""What `transpose` must compute."""

import numpy as np


def transpose(src: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """`src` (rows, cols) with its axes swapped."""
    assert src.shape == (rows, cols)
    return src.T
