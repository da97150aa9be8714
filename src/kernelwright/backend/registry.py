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
        "cuda": "kernelwright.backend.cuda.backend:CudaBackend",
        "opencl": "kernelwright.backend.opencl.backend:OpenclBackend",
    }
)
"""Name -> `module:Class`. Importing the module loads no GPU library; the class's methods do."""


def get_backend(name: str) -> Backend:
    """A fresh backend: a name of `BACKENDS`, or `package.module:Class` for one that is installed elsewhere.

    Raises:
        UsageError: there is none of that name.
    """
    place = name if ":" in name else BACKENDS.get(name)
    if place is None:
        near = difflib.get_close_matches(name, BACKENDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else None
        raise UsageError(f"no backend is called {name!r}; there is {', '.join(sorted(BACKENDS))}", hint=hint)
    module, _, class_name = place.partition(":")
    try:
        kind = getattr(importlib.import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"the backend {name!r} cannot be loaded: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Backend)):
        raise UsageError(f"{name!r} is no backend: it must be a class derived from {Backend.__name__}")
    backend: Backend = kind()
    return backend
