"""Rotary position embedding."""

import numpy as np


def rope(q: np.ndarray, cosines: np.ndarray, sines: np.ndarray, tokens: int, heads: int) -> np.ndarray:
    """`q` (tokens, heads, 128), `cosines` and `sines` (tokens, 64)."""
    a, b = q[..., :64], q[..., 64:]
    c, s = cosines[:, None, :], sines[:, None, :]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)
