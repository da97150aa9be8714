"""Where a reference in PyTorch computes: on a GPU while that works, else on the host.

A GPU computes in float64 what takes a host seconds. The process of the reference never loads a candidate, and its
memory on the GPU is its own. What fails on the GPU, for whatever reason, is computed on the host from then on: a
reference may hold tensors of the host, or ask for NumPy arrays.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

WORTH_MOVING = 1 << 20
"""Elements of all inputs from which on a GPU is asked; fewer take the host less time than the GPU takes to start."""

_Result = TypeVar("_Result")


class TorchDevice:
    """Of one reference, for as long as its process lives."""

    def __init__(self) -> None:
        self._is_refused = False
        self._is_used = False

    @property
    def note(self) -> str:
        """What a claim must be read with; empty: everything was computed on the host."""
        return "the reference, which is in PyTorch, ran on a GPU" if self._is_used else ""

    def computed(self, call: Callable[[Mapping[str, Any]], _Result], inputs: Mapping[str, Any]) -> _Result:
        """What `call` makes of the inputs, which are tensors of the host and numbers.

        `call` must have brought its results to the host when it returns, and may be called twice.
        """
        tensors = {name: value for name, value in inputs.items() if hasattr(value, "numel")}
        is_large = sum(value.numel() for value in tensors.values()) >= WORTH_MOVING
        if self._is_refused or not is_large:
            return call(inputs)
        torch = sys.modules["torch"]
        if not torch.cuda.is_available():
            return call(inputs)
        try:
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # as the host computes
            found = call({**inputs, **{name: value.cuda() for name, value in tensors.items()}})
        except Exception:  # whatever it is, the host says whether the reference is at fault
            self._is_refused = True
        else:
            self._is_used = True
            return found
        finally:
            with contextlib.suppress(Exception):  # some failures leave a GPU that this process cannot use any more
                torch.cuda.empty_cache()  # candidates need the memory
        return call(inputs)
