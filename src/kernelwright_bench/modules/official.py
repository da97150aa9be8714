"""The worker that asks the evaluator of a KernelBench checkout about one answer: it alone imports that package.

The package imports clients of models that an evaluation never calls. Where they are not installed, empty modules stand
in for them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess

FACTORY = f"{__name__}:make_evaluator"
TRIALS, TIMED = 5, 100
"""What the evaluator's own scripts ask for: inputs that are compared, calls that are timed."""
_CLIENTS = ("litellm", "openai", "dotenv", "requests", "tqdm")
_ATTEMPTS = 2
"""It answers None where a build was locked, which means: ask again."""


def ask_official(
    checkout: Path, module: Path, answer: Path, *, timeout_s: float, evaluator: WorkerProcess, needs_cuda: bool = True
) -> dict[str, Any]:
    """What the evaluator of a checkout says of an answer.

    `is_asked`, else with `why`; `compiled`, `is_correct`, `runtime` and `ref_runtime` in its unit, `is_excessive` (a
    speedup that it distrusts), `metadata` as text, `static` (`is_valid`, `errors`, `warnings` of its checker); `error`
    where it ended without a result.

    Args:
        checkout: KernelBench's folder, with `src/kernelbench`.
        module: the problem's file.
        answer: the file with `ModelNew`.
        timeout_s: for all of it.
        evaluator: that was asked nothing yet.
        needs_cuda: whether it is only asked where PyTorch sees a GPU.
    """
    job = {"checkout": str(checkout), "module": str(module), "answer": str(answer), "needs_cuda": needs_cuda}
    try:
        found = evaluator.call(job, timeout_s=timeout_s)
    except (JobTimeout, WorkerDied) as error:
        return {"is_asked": True, "error": f"its process ended without a result: {error}"}
    assert isinstance(found, dict)
    return found


def make_evaluator(argument: object) -> Callable[[Any], object]:
    """The handler: a job to what the evaluator says; with an argument that is true, PyTorch is loaded before."""
    if argument:
        with contextlib.suppress(ImportError):  # which the first job tells
            importlib.import_module("torch")
    return _evaluated


def _evaluated(job: Mapping[str, Any]) -> dict[str, Any]:
    sys.dont_write_bytecode = True
    try:
        if job["needs_cuda"] and not _has_cuda():
            return {"is_asked": False, "why": "it needs CUDA, and PyTorch sees no GPU here"}
        return _verdict(Path(job["checkout"]), Path(job["module"]), Path(job["answer"]))
    except Exception as error:  # whatever the checkout's code raises is what it says of this answer
        return {"is_asked": True, "error": f"{type(error).__name__}: {error}"[:500]}


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _verdict(checkout: Path, module: Path, answer: Path) -> dict[str, Any]:
    _import_from(checkout)
    from kernelbench.eval import eval_kernel_against_ref  # type: ignore[import-not-found]

    source, text = module.read_text(encoding="utf-8"), answer.read_text(encoding="utf-8")
    for _ in range(_ATTEMPTS):
        found = eval_kernel_against_ref(
            source, text, num_correct_trials=TRIALS, num_perf_trials=TIMED, measure_performance=True, backend="cuda"
        )
        if found is not None:
            break
    else:
        return {"is_asked": True, "error": f"it asked {_ATTEMPTS} times to be called again"}
    metadata = {str(name): str(value)[:500] for name, value in dict(found.metadata).items()}
    return {
        "is_asked": True,
        "compiled": bool(found.compiled),
        "is_correct": bool(found.correctness),
        "runtime": _time(found.runtime),
        "ref_runtime": _time(found.ref_runtime),
        "is_excessive": bool(found.metadata.get("excessive_speedup")),
        "metadata": metadata,
        "static": _static(text),
    }


def _time(value: float) -> float | None:
    """It says -1 where nothing was timed."""
    return float(value) if value > 0 else None


def _static(text: str) -> dict[str, Any]:
    from kernelbench.kernel_static_checker import validate_kernel_static  # type: ignore[import-not-found]

    is_valid, errors, warnings = validate_kernel_static(text, backend="cuda", precision="fp32")
    return {"is_valid": bool(is_valid), "errors": [str(each) for each in errors], "warnings": list(map(str, warnings))}


class _Absent(types.ModuleType):
    """A module whose every name is something that is never called."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def _import_from(checkout: Path) -> None:
    sys.path.insert(0, str(checkout / "src"))
    for name in _CLIENTS:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = _Absent(name)
