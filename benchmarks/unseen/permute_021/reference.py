"""The last two axes change places."""

import numpy as np


def permute(src: np.ndarray, na: int, nb: int, nc: int) -> np.ndarray:
    """`src` (na, nb, nc) to (na, nc, nb)."""
    return np.ascontiguousarray(src.transpose(0, 2, 1))
