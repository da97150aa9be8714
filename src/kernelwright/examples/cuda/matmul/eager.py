"""`matmul` in PyTorch."""

import torch


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product; PyTorch's default keeps float32 throughout, without TF32."""
    return a @ b
