"""The backends by name, loaded when they are asked for."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from types import MappingProxyType

from kernelwright.backend.base import Backend
from kernelwright.errors import UsageError

BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "opencl": "kernelwright.backend.opencl:OpenclBackend",
    }
)
"""Name -> `module:Class`. Importing the module loads no GPU library; the class's methods do."""


def get_backend(name: str) -> Backend:
    """A fresh backend.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in BACKENDS:
        near = difflib.get_close_matches(name, BACKENDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else None
        raise UsageError(f"no backend is called {name!r}; there is {', '.join(sorted(BACKENDS))}", hint=hint)
    module, _, class_name = BACKENDS[name].partition(":")
    backend = getattr(importlib.import_module(module), class_name)()
    assert isinstance(backend, Backend)
    return backend
