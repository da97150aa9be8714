"""`merge_attn_states` in PyTorch."""

import torch


def merge_attn_states(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The merged values and the logarithms of their sums of exponentials."""
    highest = torch.maximum(s_a, s_b)
    weight_a, weight_b = torch.exp(s_a - highest), torch.exp(s_b - highest)
    total = weight_a + weight_b
    v = (weight_a / total).unsqueeze(-1) * v_a.float() + (weight_b / total).unsqueeze(-1) * v_b.float()
    return v.to(v_a.dtype), torch.log(total) + highest
