"""What `merge_attn_states` must compute."""

import numpy as np


def merge_attn_states(
    v_a: np.ndarray, s_a: np.ndarray, v_b: np.ndarray, s_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The merged values (tokens, heads, d) and the logarithms of their sums of exponentials (tokens, heads)."""
    highest = np.maximum(s_a, s_b)
    weight_a, weight_b = np.exp(s_a - highest), np.exp(s_b - highest)
    total = weight_a + weight_b
    v = ((weight_a / total)[..., None]) * v_a + ((weight_b / total)[..., None]) * v_b
    return v, np.log(total) + highest
