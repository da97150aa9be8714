"""The worker that asks the evaluator of a KernelBench checkout about one answer: it alone imports that package.

The package imports clients of models that an evaluation never calls. Where they are not installed, empty modules stand
in for them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess

FACTORY = f"{__name__}:make_evaluator"
TRIALS, TIMED = 5, 100
"""What the evaluator's own scripts ask for: inputs that are compared, calls that are timed."""
_CLIENTS = ("litellm", "openai", "dotenv", "requests", "tqdm")
_ATTEMPTS = 2
"""It answers None where a build was locked, which means: ask again."""
PARTS = ("check", "time")
"""Of an evaluation: all before the evaluator times anything, which others may do beside it; and the rest."""


def ask_official(
    checkout: Path,
    module: Path,
    answer: Path,
    *,
    timeout_s: float,
    evaluator: WorkerProcess,
    needs_cuda: bool = True,
    parts: Sequence[str] = PARTS,
) -> dict[str, Any]:
    """What the evaluator of a checkout says of an answer; nothing yet where the last part is still to be asked for.

    `is_asked`, else with `why`; `compiled`, `is_correct`, `runtime` and `ref_runtime` in its unit, `is_excessive` (a
    speedup that it distrusts), `metadata` as text, `static` (`is_valid`, `errors`, `warnings` of its checker); `error`
    where it ended without a result.

    Args:
        checkout: KernelBench's folder, with `src/kernelbench`.
        module: the problem's file.
        answer: the file with `ModelNew`.
        timeout_s: for all of it.
        evaluator: that was asked nothing yet, or the parts before.
        needs_cuda: whether it is only asked where PyTorch sees a GPU.
        parts: of `PARTS`, in order.
    """
    job = {"checkout": str(checkout), "module": str(module), "answer": str(answer), "needs_cuda": needs_cuda}
    job |= {"parts": list(parts)}
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
    return _Evaluation()


class _Evaluation:
    """One answer's evaluation in a thread of its own, which waits before the evaluator times anything."""

    def __init__(self) -> None:
        self._is_free, self._has_paused = threading.Event(), threading.Event()
        self._found: dict[str, Any] = {}
        self._thread: threading.Thread | None = None

    def __call__(self, job: Mapping[str, Any]) -> dict[str, Any]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(job,), daemon=True)
            self._thread.start()
        if "time" not in job["parts"]:
            self._has_paused.wait()
            return {}
        self._is_free.set()
        self._thread.join()
        return self._found

    def _run(self, job: Mapping[str, Any]) -> None:
        try:
            self._found = _evaluated(job, self._pause)
        finally:
            self._has_paused.set()

    def _pause(self) -> None:
        self._has_paused.set()
        self._is_free.wait()


def _evaluated(job: Mapping[str, Any], pause: Callable[[], None]) -> dict[str, Any]:
    sys.dont_write_bytecode = True
    try:
        if job["needs_cuda"] and not _has_cuda():
            return {"is_asked": False, "why": "it needs CUDA, and PyTorch sees no GPU here"}
        return _verdict(Path(job["checkout"]), Path(job["module"]), Path(job["answer"]), pause)
    except Exception as error:  # whatever the checkout's code raises is what it says of this answer
        return {"is_asked": True, "error": f"{type(error).__name__}: {error}"[:500]}


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _verdict(checkout: Path, module: Path, answer: Path, pause: Callable[[], None]) -> dict[str, Any]:
    _import_from(checkout)
    from kernelbench.eval import eval_kernel_against_ref  # type: ignore[import-not-found]

    _pause_before_timing(pause)
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


def _pause_before_timing(pause: Callable[[], None]) -> None:
    """Have the evaluator's choice of a timer, which comes before each timing, wait; a version without it at once."""
    timing = importlib.import_module("kernelbench.timing") if importlib.util.find_spec("kernelbench.timing") else None
    chosen = getattr(timing, "get_timing_function", None)
    if chosen is None:
        pause()
        return

    def waiting(*args: Any, **named: Any) -> Any:
        pause()
        return chosen(*args, **named)

    timing.get_timing_function = waiting  # type: ignore[union-attr]


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
