"""Rows of a table."""

import numpy as np


def gather(table: np.ndarray, ids: np.ndarray, tokens: int, width: int) -> np.ndarray:
    """`table` (4096, width), `ids` (tokens,)."""
    return table[ids]
