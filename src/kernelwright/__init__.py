"""Kernelwright: makes GPU kernels faster, and proves it.

```python
import kernelwright

problem = kernelwright.load_problem("matmul")     # as `kernelwright init --example matmul` writes it
result = kernelwright.tune(problem, budget="90s")
print(result.speedup, result.best_config)
result.frame()                                # every evaluation, as a pandas data frame
kernelwright.write_report(result.folder, "report.html")
```

Importing this loads no GPU library and nothing heavy: names resolve on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelwright import version

__version__ = version.VERSION

if TYPE_CHECKING:
    from kernelwright.api import (
        Budget,
        Config,
        KernelwrightError,
        OptimizeResult,
        OptimizeSettings,
        Problem,
        RunView,
        TuneResult,
        TuneSettings,
        apply,
        check,
        dispatch,
        export_run,
        load_problem,
        optimize,
        replay,
        resume,
        resume_optimize,
        tune,
        tuned,
        write_report,
    )

__all__ = [
    "Budget",
    "Config",
    "KernelwrightError",
    "OptimizeResult",
    "OptimizeSettings",
    "Problem",
    "RunView",
    "TuneResult",
    "TuneSettings",
    "__version__",
    "apply",
    "check",
    "dispatch",
    "export_run",
    "load_problem",
    "optimize",
    "replay",
    "resume",
    "resume_optimize",
    "tune",
    "tuned",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use (PEP 562)."""
    if name == "tuned":  # a server that starts needs nothing else
        from kernelwright.export.tuned import tuned

        return tuned
    if name in __all__:
        from kernelwright import api

        return getattr(api, name)
    raise AttributeError(f"module 'kernelwright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
