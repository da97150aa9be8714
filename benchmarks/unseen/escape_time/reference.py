"""Escape times, in float32 as the kernel has them: the count hangs on every rounding."""

import numpy as np


def escape(width: int, height: int, most: int) -> np.ndarray:
    """(height, width) of int32."""
    f = np.float32
    cr = (f(-2) + f(3) * np.arange(width, dtype=f) / f(width))[None, :] + np.zeros((height, 1), f)
    ci = (f(-1.5) + f(3) * np.arange(height, dtype=f) / f(height))[:, None] + np.zeros((1, width), f)
    zr, zi = np.zeros_like(cr), np.zeros_like(ci)
    steps = np.zeros((height, width), np.int32)
    alive = np.ones((height, width), bool)
    with np.errstate(all="ignore"):
        for _ in range(most):
            r2, i2 = zr * zr, zi * zi
            alive &= ~(r2 + i2 > 4)
            zi = f(2) * zr * zi + ci
            zr = r2 - i2 + cr
            steps[alive] += 1
    return steps
