"""From a build unit of Triton to a cubin, without a device: the JIT's own path, with a driver that only names a target.

The unit's macros are the kernel's `tl.constexpr` arguments and Triton's options, as Python literals. Its only option is
the launch's other arguments as JSON: `{"ENTRY": ["*float32", 16, 2.0]}`, a pointer's type, or a value that Triton
specialises as it does the launch's own. The file is Python and is run: only build processes call this.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from kernelwright.backend.base import BuildFailed, BuildUnit, DeviceInfo
from kernelwright.backend.cuda.compile.build import read_resources
from kernelwright.backend.cuda.triton_launch import TritonLaunch
from kernelwright.errors import InfrastructureError
from kernelwright.identity import content_id
from kernelwright.imports import require
from kernelwright.source.triton.reading import OPTIONS

_PURPOSE = "compiling a Triton kernel"
NOT_FINITE = ("inf", "-inf", "nan")
"""Constants that no expression has; a text stands for them."""
_WARP_SIZE = 32
_TENSOR_MEMORY_COLUMNS = 512
"""Of a multiprocessor that has tensor memory; Triton's own limit."""


@dataclass(frozen=True, slots=True)
class _Built:
    """What Triton gave for one kernel."""

    cubin: bytes
    launch: TritonLaunch
    figures: Mapping[str, float]
    log: str


def compile_triton(unit: BuildUnit, device: DeviceInfo) -> dict[str, _Built]:
    """Compile each of the unit's kernels for `device`, which need not be here.

    Raises:
        BuildFailed: the file does not run, or Triton refuses the kernel or its arguments.
        MissingDependency: Triton is not installed.
    """
    capability = device.limits.get("compute_capability")
    if capability is None:
        raise InfrastructureError(f"the device {device.id!r} does not tell its compute capability")
    _prepare(capability)
    module = run_file(unit.source, unit.file_name)
    return {entry: _compile_entry(unit, module, entry) for entry in unit.entries}


def _compile_entry(unit: BuildUnit, module: ModuleType, entry: str) -> _Built:
    jit = require("triton.runtime.jit", purpose=_PURPOSE)
    kernel = find_kernel(module, entry, unit.file_name, jit.JITFunction)
    options, constants = constants_of(unit, kernel.arg_names)
    compiled, log = _compiled(unit, kernel, constants, options, entry)
    launch = _launch(compiled, _arguments(kernel, constants))
    figures = _figures(compiled, launch, log)
    _check_limits(compiled, entry)
    return _Built(compiled.asm["cubin"], launch, figures, log)


def _prepare(capability: int) -> None:
    """Triton, told to compile for one kind of device and to keep nothing outside this process's own folder."""
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ |= {
        "TRITON_CACHE_DIR": _cache_folder(),
        "TRITON_DUMP_PTXAS_LOG": "1",
        "TRITON_DISABLE_LINE_INFO": "1",
        "TRITON_ALWAYS_COMPILE": "1",
    }
    stand_in(capability)


def stand_in(capability: int = 90) -> None:
    """Answer here what files and the JIT ask of Triton's driver; by default as on a Hopper."""
    triton = require("triton", purpose=_PURPOSE)
    compiler = require("triton.backends.compiler", purpose=_PURPOSE)
    triton.runtime.driver.set_active(_Target(compiler.GPUTarget("cuda", capability, _WARP_SIZE)))


@lru_cache
def _cache_folder() -> str:
    """This process's own: it may write no other."""
    return tempfile.mkdtemp(prefix="triton-")


class _Target:
    """What the JIT asks of a driver before it launches, and files when they are imported."""

    def __init__(self, target: object) -> None:
        self._target = target

    def get_current_target(self) -> object:
        """The device to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Some number: compiled kernels are kept by it."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """None is used."""
        return 0

    def get_active_torch_device(self) -> object:
        """The host's, where tensors are wherever no GPU is used."""
        return require("torch", purpose=_PURPOSE).device("cpu")

    @property
    def utils(self) -> SimpleNamespace:
        """With the figures of an H100 or H200."""
        figures = {"multiprocessor_count": 132, "max_shared_mem": 232448, "max_num_regs": 65536, "warpSize": _WARP_SIZE}
        return SimpleNamespace(get_device_properties=lambda *_: figures)


@lru_cache(maxsize=32)
def run_file(source: str, file_name: str) -> ModuleType:
    """The file, run once in this process; Triton reads functions' text from it again, so it stays where it is."""
    name = f"kernelwright_triton_{content_id(source)[:16]}"
    path = Path(tempfile.mkdtemp(prefix="source-")) / file_name
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise BuildFailed(f"{file_name} does not run: {type(error).__name__}: {error}", _text(error)) from error
    return module


def find_kernel(module: ModuleType, entry: str, file_name: str, kind: type) -> Any:
    """The `@triton.jit` function itself, out of autotuners and heuristics; `kind` is what the decorator makes.

    Raises:
        BuildFailed: there is none of that name.
    """
    found = getattr(module, entry, None)
    while found is not None and not isinstance(found, kind):
        found = getattr(found, "fn", None)
    if found is None:
        raise BuildFailed(f"{entry!r} of {file_name} is no @triton.jit function")
    return found


def constants_of(unit: BuildUnit, names: Sequence[str]) -> tuple[dict[str, object], dict[str, object]]:
    """Triton's options, and the values of the kernel's constants, both by name."""
    given = {name: _constant(text) for name, text in unit.macros}
    options = {name: value for name, value in given.items() if name in OPTIONS and value}
    return options, {name: value for name, value in given.items() if name not in OPTIONS and name in names}


def launch_arguments(unit: BuildUnit, entry: str) -> list[object]:
    """What the unit says of the arguments that each launch gives."""
    (option,) = unit.options
    told: list[object] = json.loads(option)[entry]
    return told


def _constant(text: str) -> object:
    """A literal; a text that names a type of Triton (`tl.float16`) is that, as are `None` and numbers as `inf`."""
    value = ast.literal_eval(text)
    if value == "None":
        return None
    if value in NOT_FINITE:
        return float(value)
    if isinstance(value, str) and re.fullmatch(r"tl\.\w+", value):
        language = require("triton.language", purpose=_PURPOSE)
        return getattr(language, value[3:], value)
    return value


def _compiled(
    unit: BuildUnit, kernel: Any, constants: Mapping[str, object], options: Mapping[str, object], entry: str
) -> tuple[Any, str]:
    """What the JIT's compiler gave, and what the assembler said."""
    jit = require("triton.runtime.jit", purpose=_PURPOSE)
    arguments = launch_arguments(unit, entry)
    values = [jit.MockTensor(each[1:]) if isinstance(each, str) else each for each in arguments]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), _without_torch():
            given = {**dict(zip(_arguments(kernel, constants), values, strict=True)), **constants, **options}
            compiled = kernel.warmup(grid=(1,), **given)
    except Exception as error:  # of whatever kind Triton, its LLVM or the assembler raises
        text = _text(error)
        line = _line_told(error, unit.source)
        place = f", line {line} of {unit.file_name}" if line else ""
        raise BuildFailed(f"Triton refuses {entry!r}{place}: {_last_line(text)}", f"{said.getvalue()}{text}") from error
    return compiled, said.getvalue()


class _NoTorch:
    """Says that PyTorch is not installed, among what finds modules."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Nothing about other modules."""
        if name == "torch":
            raise ImportError("PyTorch is not needed here")


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Triton imports PyTorch to know its tensors, of which there are none here: seconds, in every build process."""
    sys.meta_path.insert(0, _NoTorch)
    try:
        yield  # where the kernel's file has imported it, it stays
    finally:
        sys.meta_path.remove(_NoTorch)


def _text(error: BaseException) -> str:
    causes = [str(error) or type(error).__name__]
    while error.__cause__ is not None:
        error = error.__cause__
        causes.append(f"{type(error).__name__}: {error}")
    return "\n".join(causes)


def _line_told(error: BaseException | None, source: str) -> int | None:
    """The line of a file that Triton refuses: it counts from the begin of the innermost function. None: unknown."""
    found = None
    while error is not None:
        function, node = getattr(error, "src", None), getattr(error, "node", None)
        if isinstance(function, str) and function and function in source and isinstance(node, ast.stmt | ast.expr):
            found = source[: source.index(function)].count("\n") + node.lineno
        error = error.__cause__
    return found


def _last_line(text: str) -> str:
    """The line that says why: the assembler's own, which a command to repeat follows, or the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" ^~\t")]
    told = [line for line in lines if re.match(r"ptxas (error|fatal)|error:", line)]
    return told[0] if told else lines[-1] if lines else "without a word"


def _arguments(kernel: Any, constants: Collection[str]) -> list[str]:
    """The names of the arguments that each launch gives."""
    return [each.name for each in kernel.params if not each.is_constexpr and each.name not in constants]


def _launch(compiled: Any, names: Sequence[str]) -> TritonLaunch:
    metadata, signature = compiled.metadata, compiled.src.signature
    parameters = tuple((index, signature[name]) for index, name in enumerate(names) if signature[name] != "constexpr")
    declared = re.search(r"\.visible\s+\.entry\s+[\w$]+\s*\((.*?)\)\s*(?:\.|\{)", compiled.asm["ptx"], re.DOTALL)
    extra = len(re.findall(r"\.param\b", declared[1])) - len(parameters) if declared else 0
    scratch = [int(getattr(metadata, name, 0) or 0) for name in ("global_scratch_size", "profile_scratch_size")]
    return TritonLaunch(
        name=metadata.name,
        parameters=parameters,
        threads=_WARP_SIZE * metadata.num_warps,
        shared_bytes=metadata.shared,
        ctas=metadata.num_ctas,
        is_cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)),
        scratch=tuple((*scratch, *([0] * extra))[:extra]),
    )


def _figures(compiled: Any, launch: TritonLaunch, log: str) -> dict[str, float]:
    """The assembler's figures, the shared memory of a launch, and how many instructions use tensor cores."""
    ptx = compiled.asm["ptx"]
    known = read_resources(log, {launch.name: launch.name})[launch.name]
    return {
        **known,
        "local_memory_bytes": float(launch.shared_bytes),
        "wgmma_instructions": float(len(re.findall(r"\bwgmma\.mma_async", ptx))),
        "mma_instructions": float(len(re.findall(r"\bmma\.sync|\btcgen05\.mma", ptx))),
    }


def _check_limits(compiled: Any, entry: str) -> None:
    columns = getattr(compiled.metadata, "tmem_size", None) or 0
    if columns > _TENSOR_MEMORY_COLUMNS:
        raise BuildFailed(
            f"{entry!r} needs {columns:,} columns of tensor memory; a multiprocessor has {_TENSOR_MEMORY_COLUMNS}",
            limit="too-much-tensor-memory",
        )
