"""PyTorch in float64 whatever a function converts to: rounding in between is no part of what is right.

`reference.py` of a definition's problem holds a copy of it, so that it stands alone.
"""

from __future__ import annotations

from typing import Any


def exact() -> Any:
    """Conversions to float32, float16 and bfloat16 give float64. Types of 8 bits stay: they quantise."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def wide(value: Any) -> Any:
        is_narrow = isinstance(value, torch.dtype) and value in (torch.float32, torch.float16, torch.bfloat16)
        return torch.float64 if is_narrow else value

    class Exact(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*map(wide, args), **{name: wide(each) for name, each in (kwargs or {}).items()})

    return Exact()
