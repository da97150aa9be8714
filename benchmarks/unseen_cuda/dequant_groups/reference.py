"""Integers times their group's scale."""

import numpy as np


def dequant(w: np.ndarray, scale: np.ndarray, n: int) -> np.ndarray:
    """`w` (n,), `scale` (n / 64,)."""
    return w * np.repeat(scale, 64)
