"""`softmax` in PyTorch."""

import torch


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of each row."""
    return torch.softmax(x.float(), -1).to(x.dtype)
