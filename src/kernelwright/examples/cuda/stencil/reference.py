"""What `stencil` must compute."""

import numpy as np


def heat_step(now: np.ndarray, width: int, height: int, rate: float) -> np.ndarray:
    """One explicit step of the heat equation on `now` (height, width); the border keeps its values."""
    assert now.shape == (height, width)
    later = now.copy()
    around = now[1:-1, :-2] + now[1:-1, 2:] + now[:-2, 1:-1] + now[2:, 1:-1]
    later[1:-1, 1:-1] += rate * (around - 4.0 * now[1:-1, 1:-1])
    return later
