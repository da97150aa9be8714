"""Sobel's operator."""

import numpy as np


def sobel(im: np.ndarray, h: int, w: int) -> np.ndarray:
    """`im` (h, w) to (h, w), its frame zero."""
    p = im.astype(np.int64)
    gx = p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:] - p[:-2, :-2] - 2 * p[1:-1, :-2] - p[2:, :-2]
    gy = p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:] - p[:-2, :-2] - 2 * p[:-2, 1:-1] - p[:-2, 2:]
    edge = np.zeros((h, w))
    edge[1:-1, 1:-1] = np.sqrt((gx * gx + gy * gy).astype(np.float64))
    return edge
