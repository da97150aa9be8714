"""What the system lets this process use. A kernel that shares its processor can lower it."""

from __future__ import annotations

import math
import resource


def soft_limits() -> dict[str, float]:
    """Of open files, memory and so on at most, by the system's names."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    found = {name: resource.getrlimit(getattr(resource, name))[0] for name in names}
    return {name: math.inf if soft == resource.RLIM_INFINITY else soft for name, soft in found.items()}
