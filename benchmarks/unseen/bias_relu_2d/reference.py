"""Bias and ReLU."""

import numpy as np


def bias_relu(x: np.ndarray, bias: np.ndarray, h: int, w: int) -> np.ndarray:
    """`x` (h, w), `bias` (w,)."""
    return np.maximum(x + bias, 0.0)
