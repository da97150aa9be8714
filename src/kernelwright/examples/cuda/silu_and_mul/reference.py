"""What `silu_and_mul` must compute."""

import numpy as np


def silu_and_mul(x: np.ndarray, tokens: int, d: int) -> np.ndarray:
    """`silu(gate) * up` for `x` (tokens, 2 * d), whose rows are gate and then up."""
    assert x.shape == (tokens, 2 * d)
    gate, up = x[:, :d], x[:, d:]
    with np.errstate(over="ignore"):  # exp(-gate) = inf is right: the quotient is then -0
        return gate / (1.0 + np.exp(-gate)) * up
