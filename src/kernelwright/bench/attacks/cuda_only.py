"""What only CUDA C can say."""

from __future__ import annotations

from kernelwright.bench.attacks.model import Family


def families() -> tuple[Family, ...]:
    """All of this module."""
    return ()
