"""Layer normalisation."""

import numpy as np


def layernorm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, rows: int, n: int, eps: float) -> np.ndarray:
    """Each row of `x` (rows, n), scaled by `gamma` (n,), moved by `beta` (n,)."""
    mean = x.mean(axis=1, keepdims=True)
    var = np.square(x - mean).mean(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * gamma + beta
