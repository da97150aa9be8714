"""What `per_token_group_quant_fp8` must compute."""

import numpy as np


def per_token_group_quant_fp8(x: np.ndarray, tokens: int, d: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """`x / s` before it is rounded to 8 bits, (tokens, d), and the scales `s`, (tokens, d // group)."""
    groups = x.reshape(tokens, d // group, group)
    scales = np.maximum(np.abs(groups).max(axis=2), 1e-10) / 448.0
    quotients = np.clip(groups / scales[..., None], -448.0, 448.0)
    return quotients.reshape(tokens, d), scales
