"""Compiles and launches exported kernels by NVRTC and the CUDA driver, through ctypes: only PyTorch must be there.

```
unit = Unit("silu.cu", ("-DBLOCK=256",), ("silu",))
launch = Launch("silu", grid=(8, 1, 1), block=(256, 1, 1), arguments=(KernelArgument("x", "input", 4096), ...))
KERNELS.launch(folder, unit, (launch,), {"x": x.data_ptr()}, device=0, capability=90, stream=stream)
```

This file needs only Python's standard library; it is copied as it stands beside every exported operator.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class KernelArgument(NamedTuple):
    """One kernel argument of one launch."""

    name: str
    role: str
    """`input`, `output`, `inout`, `scratch` or `scalar`."""
    byte_count: int
    value: bytes = b""
    """A scalar's bytes."""


class ModuleConstant(NamedTuple):
    """A variable of the module that is filled from an input before a launch."""

    variable: str
    name: str
    """The input's."""
    byte_count: int


class Launch(NamedTuple):
    """One kernel launch with every number known."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[KernelArgument, ...]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] | None = None
    is_cooperative: bool = False
    constants: tuple[ModuleConstant, ...] = ()


class Unit(NamedTuple):
    """What is compiled."""

    file: str
    """The source's file inside the folder `source`."""
    options: tuple[str, ...]
    entries: tuple[str, ...]
    arch: str = ""
    """E.g. `sm_90a`; empty: the device's own."""
    include: tuple[str, ...] = ()
    """Folders with headers, inside the folder `source`."""


class KernelPlan(NamedTuple):
    """A config (or the baseline) for some sizes."""

    label: str
    unit: Unit
    launches: tuple[Launch, ...]


class KernelError(RuntimeError):
    """The compiler or the driver refused something."""


# Numbers: the functions that sizes are computed with


def ceil_div(a: int, b: int) -> int:
    """`a / b`, rounded up."""
    return -(-a // b)


def round_up(a: int, step: int) -> int:
    """The multiple of `step` from `a` on."""
    return -(-a // step) * step


def round_down(a: int, step: int) -> int:
    """The multiple of `step` up to `a`."""
    return a // step * step


def floor_log2(a: int) -> int:
    """The exponent of the largest power of two that is not above `a`."""
    if a <= 0:
        raise ValueError(f"floor_log2 needs a positive number, not {a}")
    return a.bit_length() - 1


def next_power_of_two(a: int) -> int:
    """The smallest power of two from `a` on."""
    return 1 << max(a - 1, 0).bit_length()


def is_power_of_two(a: int) -> bool:
    """Whether `a` is 1, 2, 4 and so on."""
    return a > 0 and a & (a - 1) == 0


def log2(a: float) -> float:
    """The logarithm to the base 2."""
    return math.log2(a)


def holds(condition: object) -> bool:
    """Whether a condition holds; calls it, and one without a value does not hold."""
    try:
        return bool(condition())  # type: ignore[operator]
    except (ArithmeticError, ValueError, TypeError):
        return False


def text(value: object) -> str:
    """A macro's value: booleans are 1 and 0, floats keep every digit."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return repr(value) if isinstance(value, float) else str(value)


def extent(value: float) -> int:
    """A whole number of blocks or threads.

    Raises:
        ValueError: it is none.
    """
    if value != int(value) or value < 0:
        raise ValueError(f"{value!r} is no extent")
    return int(value)


def usable(label: str, unit: Callable[[], Unit], launches: Callable[[], tuple[Launch, ...]]) -> KernelPlan | None:
    """A plan, unless something in it has no value or no block or thread."""
    try:
        plan = KernelPlan(label, unit(), launches())
    except (ArithmeticError, ValueError, TypeError):
        return None
    return plan if all(min(*each.grid, *each.block) >= 1 for each in plan.launches) else None


_NARROW = {"bfloat16": (8, 7), "float8_e4m3fn": (4, 3), "float8_e5m2": (5, 2)}
_CODES = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip


def scalar(dtype: str, value: float) -> bytes:
    """A scalar as the bytes that the kernel gets.

    Raises:
        ValueError: it does not fit the type.
    """
    try:
        if dtype in _NARROW:
            exponent, mantissa = _NARROW[dtype]
            bits = _narrow(float(value), exponent, mantissa)
            return bits.to_bytes((1 + exponent + mantissa) // 8, "little")
        is_float = _CODES[dtype] in "efd"
        if not is_float and value != int(value):
            raise ValueError(f"{value!r} is not whole")
        if dtype == "bool" and value not in (0, 1):
            raise ValueError(f"{value!r} does not fit bool")
        return struct.pack(f"<{_CODES[dtype]}", value if is_float else int(value))
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value!r} does not fit {dtype}") from error


def rounded(dtype: str, value: float) -> float:
    """A scalar as the kernel gets it."""
    data = scalar(dtype, value)
    if dtype in _NARROW:
        exponent_bits, mantissa_bits = _NARROW[dtype]
        bits = int.from_bytes(data, "little")
        exponent, mantissa = bits >> mantissa_bits & ((1 << exponent_bits) - 1), bits & ((1 << mantissa_bits) - 1)
        whole = mantissa if exponent == 0 else mantissa + (1 << mantissa_bits)
        bias = (1 << (exponent_bits - 1)) - 1
        size = math.ldexp(whole, max(exponent, 1) - bias - mantissa_bits)
        return -size if bits >> (exponent_bits + mantissa_bits) else size
    found: float = struct.unpack(f"<{_CODES[dtype]}", data)[0]
    return found


def _narrow(value: float, exponent_bits: int, mantissa_bits: int) -> int:
    """The bits of a float of few bits, rounded to nearest, ties to even."""
    sign = int(math.copysign(1.0, value) < 0) << (exponent_bits + mantissa_bits)
    if value == 0:
        return sign
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = max(math.frexp(value)[1] - 1, 1 - bias)
    whole = round(math.ldexp(abs(value), mantissa_bits - exponent))  # ties to even
    bits = ((exponent + bias - 1) << mantissa_bits) + whole
    if bits >= 1 << (exponent_bits + mantissa_bits):
        raise OverflowError
    return bits | sign


# Compiling


@functools.cache
def _nvrtc(major: int) -> ctypes.CDLL:
    """NVRTC, of the wanted major version where it can be had.

    Raises:
        KernelError: none was found.
    """
    versions = dict.fromkeys((major, 13, 12))
    for version in versions:
        name = f"libnvrtc.so.{version}"
        for place in (*(root / folder / name for root in _roots() for folder in ("lib", "lib64")), Path(name)):
            try:
                return ctypes.CDLL(str(place))
            except OSError:
                continue
    raise KernelError("NVRTC was not found: PyTorch's CUDA wheels bring it; or `pip install nvidia-cuda-nvrtc`")


def _roots() -> Iterator[Path]:
    """Where a CUDA toolkit, or a wheel with a part of one, may be."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name])
    for entry in sys.path:
        for parent in sorted(Path(entry or ".").glob("nvidia"), reverse=True):
            yield from (folder for folder in sorted(parent.iterdir(), reverse=True) if folder.is_dir())
    yield Path("/usr/local/cuda")


@functools.cache
def _include_folders() -> tuple[str, ...]:
    candidates = [folder for root in _roots() for folder in (root / "include", root / "include" / "cccl")]
    found = []
    for header in ("cuda_fp16.h", "crt/host_defines.h", "cuda/std/version"):
        found += [str(folder) for folder in candidates if (folder / header).is_file()][:1]
    return tuple(dict.fromkeys(found))


def compile_unit(folder: Path, unit: Unit, *, capability: int, major: int = 13) -> tuple[bytes, dict[str, str]]:
    """The unit's cubin, and by entry its name there. No device is needed.

    Raises:
        KernelError: the compiler refused it; with its log.
    """
    nvrtc, program = _nvrtc(major), ctypes.c_void_p()
    source = (folder / "source" / unit.file).read_bytes()
    paths = [str(folder / "source" / name) for name in unit.include]
    words = [f"--gpu-architecture={unit.arch or f'sm_{capability}'}", *unit.options]
    words += [f"-I{path}" for path in (*paths, *_include_folders())]

    def ask(name: str, *arguments: object) -> None:
        code = getattr(nvrtc, name)(program, *arguments)
        if code:
            raise KernelError(f"{name} of {unit.file} failed with NVRTC's error {code}\n{log()}")

    def read(size_name: str, name: str) -> bytes:
        size = ctypes.c_size_t()
        if getattr(nvrtc, size_name)(program, ctypes.byref(size)):
            return b""
        data = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, name)(program, data)
        return data.raw

    def log() -> str:
        return read("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").decode(errors="replace").strip("\0 \n")

    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, unit.file.encode(), 0, None, None):
        raise KernelError(f"NVRTC cannot take {unit.file}")
    try:
        for entry in unit.entries:
            ask("nvrtcAddNameExpression", entry.encode())
        encoded = [word.encode() for word in words]
        ask("nvrtcCompileProgram", len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        names = {}
        for entry in unit.entries:
            name = ctypes.c_char_p()
            ask("nvrtcGetLoweredName", entry.encode(), ctypes.byref(name))
            names[entry] = (name.value or b"").decode()
        return read("nvrtcGetCUBINSize", "nvrtcGetCUBIN"), names
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


# Launching

_SHARED_OPT_IN_BYTES = 48 * 1024
_MAX_DYNAMIC_SHARED = 8
_NON_PORTABLE_CLUSTER = 14
_COOPERATIVE, _CLUSTER = 2, 4
_PORTABLE_CLUSTER_BLOCKS = 8


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


class _Loaded(NamedTuple):
    module: ctypes.c_void_p
    functions: Mapping[str, ctypes.c_void_p]


class Kernels:
    """Everything that was compiled and loaded in this process. Thread-safe."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[Path, Unit, int], _Loaded] = {}
        self._lock = threading.Lock()

    def launch(
        self,
        folder: Path,
        unit: Unit,
        launches: Sequence[Launch],
        pointers: Mapping[str, int],
        *,
        device: int,
        capability: int,
        stream: int,
        major: int = 13,
    ) -> None:
        """Enqueue the launches in order; compiles at the first use of a unit.

        Args:
            folder: holds the folder `source`.
            unit: what to build.
            launches: what to launch.
            pointers: device addresses by argument.
            device: its ordinal.
            capability: its compute capability, e.g. 90.
            stream: a handle.
            major: CUDA's version, for the choice of NVRTC.

        Raises:
            KernelError: the compiler or the driver refused.
        """
        _use_device(device)
        loaded = self._load(folder, unit, device, capability, major)
        for each in launches:
            for constant in each.constants:
                _fill(loaded.module, constant, pointers[constant.name], stream)
            _enqueue(loaded.functions[each.entry], each, pointers, stream)

    def _load(self, folder: Path, unit: Unit, device: int, capability: int, major: int) -> _Loaded:
        key = folder, unit, device
        with self._lock:
            if key not in self._loaded:
                cubin, names = compile_unit(folder, unit, capability=capability, major=major)
                module = ctypes.c_void_p()
                _driver("cuModuleLoadData", ctypes.byref(module), cubin)
                functions = {}
                for entry, name in names.items():
                    functions[entry] = ctypes.c_void_p()
                    _driver("cuModuleGetFunction", ctypes.byref(functions[entry]), module, name.encode())
                self._loaded[key] = _Loaded(module, functions)
            return self._loaded[key]


KERNELS = Kernels()


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise KernelError(f"the CUDA driver cannot be loaded: {error}") from error


def _driver(name: str, *arguments: object) -> None:
    code = getattr(_library(), name)(*arguments)
    if code:
        said = ctypes.c_char_p()
        _library().cuGetErrorString(code, ctypes.byref(said))
        raise KernelError(f"{name}: {(said.value or b'unknown error').decode()} ({code})")


def _use_device(device: int) -> None:
    """Make the device's primary context, which PyTorch uses too, current in this thread where none is."""
    current = ctypes.c_void_p()
    _driver("cuCtxGetCurrent", ctypes.byref(current))
    if not current.value:
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        _driver("cuDeviceGet", ctypes.byref(handle), device)
        _driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        _driver("cuCtxSetCurrent", context)


def _fill(module: ctypes.c_void_p, constant: ModuleConstant, pointer: int, stream: int) -> None:
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    _driver("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, constant.variable.encode())
    if size.value < constant.byte_count:
        raise KernelError(f"{constant.variable!r} holds {size.value} bytes, and {constant.byte_count} are to go there")
    source, count = ctypes.c_uint64(pointer), ctypes.c_size_t(constant.byte_count)
    _driver("cuMemcpyDtoDAsync_v2", address, source, count, ctypes.c_void_p(stream))


def _enqueue(function: ctypes.c_void_p, launch: Launch, pointers: Mapping[str, int], stream: int) -> None:
    kept = [
        ctypes.create_string_buffer(each.value, len(each.value))
        if each.role == "scalar"
        else ctypes.c_void_p(pointers[each.name])
        for each in launch.arguments
    ]
    values = (ctypes.c_void_p * max(len(kept), 1))(*(ctypes.addressof(each) for each in kept))
    if launch.shared_bytes > _SHARED_OPT_IN_BYTES:
        _driver("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, launch.shared_bytes)
    if launch.cluster is None and not launch.is_cooperative:
        extents = (*launch.grid, *launch.block, launch.shared_bytes)
        _driver("cuLaunchKernel", function, *extents, ctypes.c_void_p(stream), values, None)
        return
    attributes = (_Attribute * 2)()
    count = 0
    if launch.cluster is not None:
        if math.prod(launch.cluster) > _PORTABLE_CLUSTER_BLOCKS:
            _driver("cuFuncSetAttribute", function, _NON_PORTABLE_CLUSTER, 1)
        attributes[count].id = _CLUSTER
        attributes[count].value[:3] = launch.cluster
        count += 1
    if launch.is_cooperative:
        attributes[count].id = _COOPERATIVE
        attributes[count].value[0] = 1
        count += 1
    config = _Config(launch.grid, launch.block, launch.shared_bytes, stream, attributes, count)
    _driver("cuLaunchKernelEx", ctypes.byref(config), function, values, None)


def version_major(version: str | None) -> int:
    """The first number of a version such as `13.0`; 13 where there is none."""
    found = re.match(r"\d+", version or "")
    return int(found[0]) if found else 13
