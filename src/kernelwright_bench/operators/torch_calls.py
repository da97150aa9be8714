"""An operator in PyTorch on memory and the stream of a CUDA session, in a worker process."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernelwright.errors import MissingDependency
from kernelwright.imports import require

if TYPE_CHECKING:
    from kernelwright.backend.cuda.handles import CudaBuffer
    from kernelwright.backend.cuda.session import CudaSession
    from kernelwright_bench.operators.messages import Buffer, TorchSource

COMPILE_MODE = "max-autotune-no-cudagraphs"
"""`max-autotune` itself copies inputs into its graph's own memory and replays that: what it adds is no kernel time.
Launch latency, which its graphs are for, is not in any contender's time here."""
WARM_CALLS = 3

_INTERFACE_TYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<i2", "float8_e4m3fn": "|u1"}
_VIEWS = {"bfloat16": "bfloat16", "float8_e4m3fn": "float8_e4m3fn"}


def torch_missing() -> str | None:
    """Why PyTorch cannot be compared with, or None."""
    try:
        torch = require("torch", purpose="the comparison with PyTorch")
    except MissingDependency:
        return "torch not installed"
    return None if torch.cuda.is_available() else "torch sees no GPU"


class _Memory:
    """Device memory under the protocol by which libraries share it."""

    def __init__(self, buffer: Buffer, memory: CudaBuffer) -> None:
        self.__cuda_array_interface__ = {
            "shape": buffer.shape,
            "typestr": _INTERFACE_TYPES[buffer.dtype],
            "data": (memory.address, False),
            "version": 3,
        }


class TorchCalls:
    """One operator's function, plain and compiled."""

    def __init__(
        self, session: CudaSession, inputs: Mapping[str, tuple[Buffer, CudaBuffer]], source: TorchSource
    ) -> None:
        self._torch = require("torch", purpose="the comparison with PyTorch")
        self._stream = self._torch.cuda.ExternalStream(session.stream_handle)
        self._session = session
        self._source = source
        self._function = getattr(_load(source), source.function)
        values: dict[str, Any] = {name: self._tensor(*pair) for name, pair in inputs.items()} | dict(source.values)
        self._arguments = {name: values[name] for name in inspect.signature(self._function).parameters}
        self._kept: list[Any] = []

    def eager(self) -> Callable[..., Any] | str:
        """The function as it stands, warm; or why not, in words."""
        return self._warm(self._function)

    def compiled(self) -> Callable[..., Any] | str:
        """The function by torch.compile, warm; or why not, in words."""
        if not self._source.has_compiled:
            return "not measured on this shape"
        return self._warm(self._torch.compile(self._function, mode=COMPILE_MODE, dynamic=False, fullgraph=True))

    def results(self, function: Callable[..., Any]) -> list[CudaBuffer]:
        """What it computes, as memory."""
        with self._torch.cuda.stream(self._stream):
            given = function(**self._arguments)
        self._kept = [each.contiguous() for each in (given if isinstance(given, tuple) else (given,))]
        self._session.synchronize()
        from kernelwright.backend.cuda.handles import CudaBuffer

        return [CudaBuffer(each.data_ptr(), each.numel() * each.element_size()) for each in self._kept]

    def on_stream(self, function: Callable[..., Any]) -> Callable[[], None]:
        """A call without arguments, on the session's stream."""

        def call() -> None:
            with self._torch.cuda.stream(self._stream), self._torch.no_grad():
                function(**self._arguments)

        return call

    def _warm(self, function: Callable[..., Any]) -> Callable[..., Any] | str:
        call = self.on_stream(function)
        try:
            for _ in range(WARM_CALLS):
                call()
            self._session.synchronize()
        # PyTorch's compiler raises what its many parts raise; the other contenders are measured all the same.
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError, OSError, LookupError) as error:
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        return function

    def _tensor(self, buffer: Buffer, memory: CudaBuffer) -> Any:
        tensor = self._torch.as_tensor(_Memory(buffer, memory), device="cuda")
        return tensor.view(getattr(self._torch, _VIEWS[buffer.dtype])) if buffer.dtype in _VIEWS else tensor


def _load(source: TorchSource) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"kernelwright_eager_{source.file.parent.name}", source.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
