"""`transpose` in PyTorch."""

import torch


def transpose(src: torch.Tensor) -> torch.Tensor:
    """The transposed matrix, laid out row by row."""
    return src.t().contiguous()
