"""`silu_and_mul` in PyTorch, as a model's code has it."""

import torch
import torch.nn.functional as F


def silu_and_mul(x: torch.Tensor, d: int) -> torch.Tensor:
    """`silu(gate) * up` for `x` (tokens, 2 * d)."""
    return F.silu(x[:, :d].float()).mul(x[:, d:].float()).to(x.dtype)
