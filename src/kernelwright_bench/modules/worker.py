"""The worker that times a module's answer and PyTorch in turns: it alone runs both files."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelwright.errors import Location, ReferenceFailed
from kernelwright.problem.user_code import blamed_on_user

FACTORY = f"{__name__}:make_timer"
SEED = 42
"""Seed of weights and inputs, as KernelBench has it."""
TOLERANCE = 1e-4
"""Relative and absolute, of the official evaluator in float32."""
SAMPLE_S = 0.002
"""A sample is at least about so long: several calls where one is shorter."""
MODES: Mapping[str, Mapping[str, str]] = {"compiled": {}, "max-autotune": {"mode": "max-autotune"}}


def make_timer(argument: object) -> Callable[[Any], object]:
    """The handler: a job with `module`, `answer` (files), `rounds` and `device` to its record."""
    del argument
    return _timed


def _timed(job: Mapping[str, Any]) -> dict[str, Any]:
    sys.dont_write_bytecode = True
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # a first call compiles, whatever ran here before
    import torch

    module, answer = Path(job["module"]), Path(job["answer"])
    with blamed_on_user(module, doing="running the module"), torch.no_grad():
        loaded = _loaded(module, "module")
        model = _made(torch, loaded, "Model", job["device"])
        torch.manual_seed(SEED)
        inputs = _inputs(loaded, job["device"])
        others = _inputs(loaded, job["device"])
    with blamed_on_user(answer, doing="running the answer"), torch.no_grad():
        begun = time.perf_counter()
        new = _made(torch, _loaded(answer, "answer"), "ModelNew", job["device"])
        found = new(*_own(inputs))
        _wait(torch)
        calls: dict[str, Callable[..., Any]] = {"answer": new, "eager": model}
        first = {"answer": time.perf_counter() - begun}
        _compare(torch, _made(torch, loaded, "Model", job["device"])(*_own(inputs)), found, answer)
        refused: dict[str, str] = {}
        for name, options in MODES.items():
            _wait(torch)
            begun = time.perf_counter()
            try:
                compiled = torch.compile(_made(torch, loaded, "Model", job["device"]), **options)
                compiled(*_own(inputs))
                _wait(torch)
            except Exception as error:  # a compiler's failure is a result here
                refused[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                continue
            calls[name], first[name] = compiled, time.perf_counter() - begun
        samples = _samples(torch, calls, inputs, int(job["rounds"]))
        wanted = _made(torch, loaded, "Model", job["device"])(*_own(others))
        _compare(torch, wanted, new(*_own(others)), answer)  # on inputs that it has not seen before
    return {"samples_s": samples, "compile_s": first, "refused": refused, "torch": str(torch.__version__)}


def _inputs(loaded: Any, device: str) -> list[Any]:
    return [each.to(device) if hasattr(each, "to") else each for each in loaded.get_inputs()]


def _own(inputs: list[Any]) -> list[Any]:
    """Copies of tensors: what one call writes into its inputs, no other sees."""
    return [each.clone() if hasattr(each, "clone") else each for each in inputs]


def _wait(torch: Any) -> None:
    """Until all that was launched is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _loaded(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ReferenceFailed(f"{file.name} is not a Python file", location=Location(file))
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def _made(torch: Any, loaded: Any, name: str, device: str) -> Any:
    torch.manual_seed(SEED)
    return getattr(loaded, name)(*loaded.get_init_inputs()).to(device)


def _compare(torch: Any, wanted: Any, found: Any, answer: Path) -> None:
    pairs = zip(*(each if isinstance(each, tuple | list) else (each,) for each in (wanted, found)), strict=True)
    for place, (one, other) in enumerate(pairs):
        if one.shape != other.shape or not torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            raise ReferenceFailed(
                f"result {place} of the answer differs from eager PyTorch by more than {TOLERANCE:g}, or in its shape",
                hint="both are in the inputs' own precision: see which one is right",
                location=Location(answer),
            )


def _samples(torch: Any, calls: Mapping[str, Callable[..., Any]], inputs: list[Any], rounds: int) -> dict[str, Any]:
    """Seconds of a call by name, one from each round, in turns; the order turns from round to round.

    Each has inputs of its own, and those of a sample are as they were given.
    """

    def seconds(call: Callable[..., Any], count: int) -> float:
        own = _own(inputs)
        _wait(torch)
        begun = time.perf_counter()
        for _ in range(count):
            call(*own)
        _wait(torch)
        return (time.perf_counter() - begun) / count

    counts = {name: max(1, round(SAMPLE_S / max(1e-7, seconds(call, 3)))) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = [*calls]
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            samples[name].append(seconds(calls[name], counts[name]))
    return samples
