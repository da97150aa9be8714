"""A Triton file to what a call of its kernel was: a worker process runs it, this one never does."""

from __future__ import annotations

import ast
import importlib.util
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import Location, MissingDependency, SpecError
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.infer.inference import split_kernel
from kernelwright.modules.triton.watch import EXAMPLE, FACTORY
from kernelwright.problem.toml.file import did_you_mean, read_text
from kernelwright.source.triton.reading import defines_triton

TIMEOUT_S = 300.0
"""For the example's launches in the interpreter: a few of some thousand programs each."""


@dataclass(frozen=True, slots=True)
class WatchedCall:
    """One launch of a kernel, as a worker saw it."""

    file: Path
    kernel: str
    grid: tuple[int, ...]
    other_grids: tuple[tuple[Mapping[str, int], tuple[int, ...]], ...]
    """What the grid would be with another value of a constant, where code computes it."""
    arguments: tuple[Mapping[str, Any], ...]
    """Beside constants, in the kernel's order: `name`, `kind` (`tensor`, or a number's type), and what it was."""
    constants: Mapping[str, Any]
    options: Mapping[str, int]
    heuristics: Mapping[str, tuple[tuple[Mapping[str, int], bool | int], ...]]
    """Constants that `@triton.heuristics` computes, and what they would be with other constants and whole arguments."""
    tried: Mapping[str, tuple[int, ...]]
    """Constants that say how the work is cut, and the values with which the call wrote the same."""
    tried_grids: tuple[tuple[Mapping[str, int], tuple[int, ...]], ...]
    """The grids that were guessed for these values, where no code computes them."""
    coupled: Mapping[str, str]
    """By constant, another one that has its value in each launch that was tried."""
    configs: tuple[Mapping[str, Any], ...]
    """What `@triton.autotune` lists."""
    reference: Mapping[str, Any] | None
    """The torch `function` that computes the same, whether it `is_callers`, its `call`, and which result is which of
    the `outputs`."""
    caller: Path
    """The file with the example."""


def is_triton_file(path: Path) -> bool:
    """Whether a path, with a name behind `::` or without, is a Python file that defines a Triton kernel.

    A file with a PyTorch module, as KernelBench has them, is a module's, unless it has an example.

    Raises:
        SpecError: it speaks of Triton and is no Python, with its line.
    """
    file, named = split_kernel(str(path))
    if file.suffix != ".py" or not file.is_file():
        return False
    text = ""
    try:
        text = read_text(file, what="the kernel source")
        if not defines_triton(text, file):
            return False
    except SpecError:
        if "triton" in text:
            raise
        return False
    functions = _functions(text)
    return named is not None or EXAMPLE in functions or "get_init_inputs" not in functions


def watch_call(path: Path, example: Path | None = None) -> WatchedCall:
    """What an example launched.

    Args:
        path: a Triton file, or `FILE::NAME` with the kernel, or with the function that launches it.
        example: `FILE::FUNCTION` that makes the call; None: the file's own `example()`.

    Raises:
        MissingDependency: Triton or PyTorch is not installed.
        ReferenceFailed: the file raises, has no `example()`, or launches no kernel, or several.
        SpecError: a name is not there, or the call takes too long or kills its process.
    """
    file, named = split_kernel(str(path))
    text = read_text(file, what="the kernel source")
    caller, function = (file, EXAMPLE) if example is None else split_kernel(str(example))
    _check_names(text, file, named)
    _check_example(caller, function)
    missing = [name for name in ("triton", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"watching a call of {file.name} needs {' and '.join(missing)}, not installed here",
            hint="pip install 'kernelwright[triton]'; PyTorch's CPU build will do",
        )
    with tempfile.TemporaryDirectory(prefix="kernelwright-import-") as scratch:
        settings = WorkerSettings("import", FACTORY, None)
        with WorkerProcess(settings, scratch=Path(scratch)) as worker:
            try:
                found = worker.call((str(file.resolve()), named, str(caller.resolve()), function), timeout_s=TIMEOUT_S)
            except (JobTimeout, WorkerDied) as error:
                raise SpecError(
                    f"the call that was watched ended without an answer: {error}",
                    hint=f"give {function}() smaller tensors",
                    location=Location(file),
                ) from error
    if not isinstance(found, dict):
        raise SpecError(f"watching {file} gave {type(found).__name__}, expected a call", hint="try again")
    return WatchedCall(
        file=file,
        kernel=str(found["kernel"]),
        grid=tuple(found["grid"]),
        other_grids=tuple((values, tuple(numbers)) for values, numbers in found["other_grids"]),
        arguments=tuple(found["arguments"]),
        constants=found["constants"],
        options=found["options"],
        heuristics={name: tuple(cases) for name, cases in found["heuristics"].items()},
        tried={name: tuple(values) for name, values in found["tried"].items()},
        tried_grids=tuple((values, tuple(numbers)) for values, numbers in found["tried_grids"]),
        coupled=found["coupled"],
        configs=tuple(found["configs"]),
        reference=found["reference"],
        caller=caller,
    )


def _check_names(text: str, file: Path, named: str | None) -> None:
    names = _functions(text)
    if named is not None and named not in names:
        raise SpecError(
            f"{file.name} defines no function {named!r}; it has {', '.join(names)}",
            hint=did_you_mean(named, names) or "name a kernel, or the function that launches it",
            location=Location(file),
        )


def _check_example(file: Path, function: str | None) -> None:
    if function is None:
        raise SpecError(f"{file} names no function", hint=f"say --call {file}::FUNCTION", location=Location(file))
    if function not in _functions(read_text(file, what="the file with the call")):
        raise SpecError(
            f"{file.name} has no function {function}(), so there is no call to watch",
            hint=f"add `def {function}():` that calls the launching function on small tensors of distinct sizes, or "
            "name one in another file: --call FILE::FUNCTION",
            location=Location(file),
        )


def _functions(text: str) -> list[str]:
    try:
        return [each.name for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
