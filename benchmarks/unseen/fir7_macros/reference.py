"""A filter of seven taps."""

import numpy as np


def fir7(signal: np.ndarray, taps: np.ndarray, n: int) -> np.ndarray:
    """`signal` (n,), zero outside; `taps` (7,)."""
    wide = np.concatenate([np.zeros(3), signal, np.zeros(3)])
    return sum(taps[j] * wide[j : j + n] for j in range(7))
