"""Launches by Triton's interpreter, one program after the other on the host: what is computed, and no time of a GPU."""

from __future__ import annotations

import functools
import os
import re
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelwright.backend.base import (
    Artifact,
    BoundBuffer,
    BoundLaunch,
    BufferArgument,
    BuildUnit,
    Bytes,
    DeviceSession,
    LaunchFailed,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.cuda.compile.triton_build import (
    constants_of,
    find_kernel,
    launch_arguments,
    run_file,
    stand_in,
)
from kernelwright.backend.interpreter.accesses import accesses
from kernelwright.backend.interpreter.libdevice import give_libdevice
from kernelwright.errors import InfrastructureError
from kernelwright.imports import require
from kernelwright.problem.dtypes import DTYPES
from kernelwright.source.triton.reading import triton_kernel

_PURPOSE = "running a Triton kernel in its interpreter"
_ALIGNMENT_BYTES = 256
_FREE_SHARE = 0.75
"""Of the memory that the host has free, what a session's arrays may take. A guess."""
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Where they are, libraries may begin to use them at any time, and they reserve far more addresses than memory."""


@dataclass(frozen=True, slots=True)
class _Interpreted:
    """A kernel with the values of its constants."""

    function: Any
    names: tuple[str, ...]
    """Of the arguments that each launch gives."""
    dtypes: tuple[str | None, ...]
    """By argument: what a pointer points to."""
    constants: Mapping[str, object]


class _LikeInt(type):
    """Numbers are of it."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int)


class _Whole(metaclass=_LikeInt):
    """`int` in Triton's interpreter, which gives it arrays of one number: NumPy takes them no more from 2.4 on."""

    def __new__(cls, value: Any = 0) -> int:  # type: ignore[misc]
        return int(value.item() if isinstance(value, np.ndarray) else value)


def _argument(interpreter: Any, convert: Callable[[object], object], value: object) -> object:
    """A launch's argument as the interpreter has it, which takes truth values for numbers too wide for their type."""
    if not isinstance(value, bool):
        return convert(value)
    kind = require("triton.language", purpose=_PURPOSE).int1
    return interpreter.tl.tensor(interpreter.TensorHandle(np.array([value]), kind), kind)


def _dot(interpreter: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Products of doubles in doubles, whatever they are added to: the interpreter takes the sum's type for theirs.

    It calls such a sum doubles all the same, and stores the half of each.
    """

    def dot(self: Any, left: Any, right: Any, total: Any, *rest: Any) -> Any:
        if np.float64 in (left.data.dtype, right.data.dtype) and total.data.dtype != np.float64:
            total = interpreter.TensorHandle(total.data.astype(np.float64), interpreter.tl.float64)
        return plain(self, left, right, total, *rest)

    return dot


def _splat(interpreter: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A number's comparison as a block of truth values: the interpreter makes it one of the numbers' type.

    Newer versions refuse such a block as a mask.
    """

    def splat(self: Any, *given: Any) -> Any:
        made = plain(self, *given)
        if any(isinstance(each, interpreter.TensorHandle) and each.data.dtype == np.bool_ for each in given):
            return interpreter.TensorHandle(made.data.astype(np.bool_), interpreter.tl.int1)
        return made

    return splat


def _leave_to_tensors(language: Any) -> None:
    """Let a global `tl.constexpr` and a tensor make a tensor, as in a build; else functions refuse what they make."""

    def left(plain: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, other: NotImplemented if isinstance(other, language.tensor) else plain(self, other)

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lt", "le", "gt", "ge"):
        plain = getattr(language.constexpr, f"__{name}__")
        setattr(language.constexpr, f"__{name}__", left(plain))


def start_interpreter() -> Any:
    """Triton's interpreter as a module; kernels of files that are imported from now on are run by it.

    Raises:
        MissingDependency: Triton or PyTorch is not installed.
    """
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported, which reads it then
    require("torch", purpose=_PURPOSE)
    interpreter: Any = require("triton.runtime.interpreter", purpose=_PURPOSE)
    interpreter.int = _Whole
    names = vars(interpreter)
    if not isinstance(names["_implicit_cvt"], functools.partial):
        names["_implicit_cvt"] = functools.partial(_argument, interpreter, names["_implicit_cvt"])
        builder = names["InterpreterBuilder"]
        builder.create_dot = _dot(interpreter, builder.create_dot)
        builder.create_splat = _splat(interpreter, builder.create_splat)
        _leave_to_tensors(interpreter.tl)
        extra = "triton.language.extra"
        give_libdevice(interpreter, [require(f"{extra}{each}.libdevice", purpose=_PURPOSE) for each in ("", ".cuda")])
    stand_in()
    return interpreter


def launch_interpreted(
    kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any], types: Mapping[str, str] | None = None
) -> None:
    """Launch a kernel of a file that was imported since `start_interpreter`, out of its autotuner and heuristics.

    Args:
        kernel: as the file has it.
        grid: programs along each axis.
        arguments: by name, among them tensors that may be wider than the kernel is written for.
        types: by tensor, what it is written for, which is taken where it refuses the wider ones, as `tl.dot` may.

    Raises:
        Exception: what the kernel raises, among it `IndexError` where it leaves the tensors' memory.
    """
    interpreter = start_interpreter()
    while not isinstance(kernel, interpreter.InterpretedFunction):
        kernel = kernel.fn
    before = {name: arguments[name].clone() for name in types or ()}
    try:
        with accesses(interpreter, arguments):
            kernel[grid](**arguments)
    except Exception:  # of whatever kind the kernel raises about types
        if not types:
            raise
        torch: Any = require("torch", purpose=_PURPOSE)
        own = {name: before[name].to(getattr(torch, kind)) for name, kind in types.items()}
        with accesses(interpreter, own):
            kernel[grid](**{**arguments, **own})
        for name, each in own.items():
            arguments[name].copy_(each)


def limit_memory() -> None:
    """Let arrays that the host has no room for raise `MemoryError` in this process, instead of filling the host.

    The address space may grow by a share of what is free now. Beside a GPU's driver, and without Linux's figures,
    nothing changes.
    """
    free_bytes = _free_bytes()
    if free_bytes is None or any(Path(each).exists() for each in _GPU_DRIVERS):
        return
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + int(_FREE_SHARE * free_bytes)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    known = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *known]), hard))


def _free_bytes(group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Of the host, or of the control group that this process is in where that has less; None: it is not told.

    What files that were read fill of a group's memory is free.
    """
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text("ascii"), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    try:
        most, used = (int((group / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
        of_files = re.findall(r"^(?:in)?active_file (\d+)$", (group / "memory.stat").read_text("ascii"), re.MULTILINE)
    except (OSError, ValueError):  # there is none, or it says `max`
        return 1024 * int(found[1])
    return min(1024 * int(found[1]), max(0, most - used + sum(map(int, of_files))))


class InterpreterSession(DeviceSession):
    """Memory of the host, and kernels that are Python."""

    def __init__(self) -> None:
        self._interpreter = start_interpreter()
        self._torch: Any = require("torch", purpose=_PURPOSE)
        self._torch.set_num_threads(1)
        limit_memory()  # libraries are loaded by now

    @property
    def timer(self) -> str:
        """None: what a launch takes here says nothing."""
        return "none"

    def load(self, artifact: Artifact) -> dict[str, _Interpreted]:
        """Run the file with the interpreter switched on; its kernels by entry."""
        return {entry: self._load(artifact.unit, entry) for entry in artifact.unit.entries}

    def _load(self, unit: BuildUnit, entry: str) -> _Interpreted:
        function = find_kernel(
            run_file(unit.source, unit.file_name), entry, unit.file_name, self._interpreter.InterpretedFunction
        )
        parameters = triton_kernel(unit.source, Path(unit.file_name), entry).parameters
        _, constants = constants_of(unit, [each.name for each in parameters])
        return _Interpreted(
            function=function,
            names=tuple(each.name for each in parameters if not each.is_constexpr and each.name not in constants),
            dtypes=tuple(_pointed(each) for each in launch_arguments(unit, entry)),
            constants=constants,
        )

    def allocate(self, byte_count: int) -> Bytes:
        """Aligned as a device's."""
        try:
            raw = np.zeros(byte_count + _ALIGNMENT_BYTES, np.uint8)
        except MemoryError as error:
            raise InfrastructureError(f"there is no room for {byte_count:,} bytes") from error
        start = -raw.ctypes.data % _ALIGNMENT_BYTES
        return raw[start : start + byte_count]

    def free(self, buffer: Bytes) -> None:
        """Overwritten, and left to Python."""
        buffer[:] = 0xA7

    def upload(self, buffer: Bytes, data: Bytes, offset_bytes: int = 0) -> None:
        """Copy in."""
        buffer[offset_bytes : offset_bytes + data.size] = data

    def fill(self, buffer: Bytes, pattern: bytes, byte_count: int, offset_bytes: int = 0) -> None:
        """Repeat."""
        repeated = np.resize(np.frombuffer(pattern, np.uint8), byte_count)
        buffer[offset_bytes : offset_bytes + byte_count] = repeated

    def copy(self, source: Bytes, target: Bytes, byte_count: int) -> None:
        """Copy."""
        target[:byte_count] = source[:byte_count]

    def download(self, buffer: Bytes, out: Bytes, offset_bytes: int = 0) -> None:
        """Copy out."""
        out[:] = buffer[offset_bytes : offset_bytes + out.size]

    def launch(self, launches: Sequence[BoundLaunch]) -> None:
        """Every program of every launch, in order."""
        for each in launches:
            self._launch(each.module[each.step.entry], each.step, each.buffers)

    def time(self, launches: Sequence[BoundLaunch]) -> float:
        """What the interpreter took, which nobody may show as a kernel's time."""
        start_s = time.perf_counter()
        self.launch(launches)
        return 1000 * (time.perf_counter() - start_s)

    def synchronize(self) -> None:
        """Nothing is under way."""

    def flush_cache(self) -> None:
        """Nothing is timed."""

    def close(self) -> None:
        """Nothing is held."""

    def _launch(self, module: _Interpreted, step: PlanStep, buffers: Mapping[str, BoundBuffer]) -> None:
        values = [
            self._value(argument, dtype, buffers) for argument, dtype in zip(step.arguments, module.dtypes, strict=True)
        ]
        given = {**dict(zip(module.names, values, strict=True)), **module.constants}
        room = [(each.buffer.ctypes.data, each.buffer.nbytes) for each in buffers.values()]
        try:
            with accesses(self._interpreter, given, room) as seen:
                module.function[step.grid](**given)
        except Exception as error:  # the kernel is Python here: it may raise anything
            cause = error.__cause__ or error
            kind = "out-of-memory" if isinstance(cause, MemoryError) else "interpreter-error"
            raise LaunchFailed(kind, f"{step.entry!r} fails in Triton's interpreter: {cause}") from error
        if seen.race is not None:
            raise LaunchFailed("race", f"results of {step.entry!r} depend on the order of programs: {seen.race}")

    def _value(self, argument: object, dtype: str | None, buffers: Mapping[str, BoundBuffer]) -> object:
        match argument:
            case BufferArgument(name=name):
                bound = buffers[name]
                data = bound.buffer[bound.offset_bytes : bound.offset_bytes + bound.byte_count]
                return self._torch.from_numpy(data).view(getattr(self._torch, str(dtype)))
            case ScalarArgument(dtype=own, data=encoded):
                return np.frombuffer(encoded, DTYPES[own].numpy_dtype)[0].item()
        raise TypeError(f"not an argument of a Triton kernel: {type(argument).__name__}")


def _pointed(argument: object) -> str | None:
    """What an argument points to, as a build unit tells it; None for a number."""
    return argument[1:] if isinstance(argument, str) else None
