"""Lazy import of optional packages, with a message that says what to install."""

from __future__ import annotations

import importlib
from types import MappingProxyType, ModuleType

from kernelwright.errors import MissingDependency

_EXTRA_OF = MappingProxyType(
    {
        "cuda": "cuda",
        "pynvml": "cuda",
        "pyopencl": "opencl",
        "sklearn": "search",
        "scipy": "search",
        "optuna": "bench-search",
        "kernel_tuner": "bench-search",
        "autotuning_methodology": "bench-search",
        "pandas": "frame",
        "torch": "torch",
        "triton": "triton",
        "pydantic_ai": "llm",
        "httpx2": "llm",
        "mcp": "mcp",
        "ray": "ray",
        "submitit": "slurm",
    }
)

_DISTRIBUTION_OF = MappingProxyType({"constraint": "python-constraint2"})
"""Packages in no extra whose name differs from what is imported."""


def require(module: str, *, purpose: str) -> ModuleType:
    """Import `module`, or say what it is needed for and how to install it.

    Raises:
        MissingDependency: the package is not installed, or is broken.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        extra = _EXTRA_OF.get(name)
        install = f"pip install 'kernelwright[{extra}]'" if extra else f"pip install {_DISTRIBUTION_OF.get(name, name)}"
        raise MissingDependency(f"{purpose} needs the package {module!r} ({error})", hint=install) from error
