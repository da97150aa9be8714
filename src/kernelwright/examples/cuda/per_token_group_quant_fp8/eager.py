"""`per_token_group_quant_fp8` in PyTorch."""

import torch


def per_token_group_quant_fp8(x: torch.Tensor, tokens: int, d: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The quantised elements and the scales."""
    groups = x.float().view(tokens, d // group, group)
    scales = groups.abs().amax(-1).clamp(min=1e-10) / 448.0
    q = (groups / scales.unsqueeze(-1)).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return q.view(tokens, d), scales
