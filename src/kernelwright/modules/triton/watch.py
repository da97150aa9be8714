"""The worker that watches a call: the only place where a person's Triton file is run to write its problem.

It imports the file with Triton's interpreter switched on, wraps its functions, calls `example()`, and answers what it
saw of the first launch of the kernel as plain data (see `watched.read_watched`).
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from kernelwright.backend.interpreter.session import start_interpreter
from kernelwright.errors import Location, ReferenceFailed
from kernelwright.problem.user_code import blamed_on_user
from kernelwright.source.triton.reading import OPTIONS, TritonKernel, read_triton

FACTORY = f"{__name__}:make_watch"
EXAMPLE = "example"
_REFERENCE = re.compile(r"(^|_)(ref|reference|torch|naive|golden|eager|expected|native|pytorch)(_|$)")
_SHOWN = 300
_ALLOWED_ERROR = 2e-2
"""Of a torch function's results against the kernel's, in units of their largest value: kernels may use half floats."""


def make_watch(argument: object) -> Callable[[object], object]:
    """The handler of jobs: a file, the kernel or the launching function that was named, a call's file and function."""
    del argument
    return lambda job: _watched(Path(str(job[0])), job[1], Path(str(job[2])), job[3])  # type: ignore[index]


def _watched(file: Path, named: str | None, caller: Path, example: str) -> dict[str, Any]:
    kernels = {each.name: each for each in read_triton(file.read_text(encoding="utf-8"), file)}
    with blamed_on_user(file, doing="watching a call of the kernel"):
        interpreter = start_interpreter()
        _pretend_gpu()
        with _on_host():
            module = _imported(file)
            watch = _Watch(
                interpreter, module, kernels, named, spared={EXAMPLE, example if caller == file else EXAMPLE}
            )
            watch.call(module if caller == file else _imported(caller), example)
        return watch.document(file, example)


def _imported(file: Path) -> ModuleType:
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ReferenceFailed(f"{file.name} is not a Python file", location=Location(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _on_host() -> Any:
    """PyTorch without a GPU: what asks for one gets the host's memory, which is what the interpreter reads."""
    import torch
    from torch.overrides import TorchFunctionMode

    def moved(value: Any) -> Any:
        is_device = isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda"))
        return "cpu" if is_device else value

    class OnHost(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function == torch.Tensor.is_cuda.__get__:
                return True
            if function is torch.Tensor.cuda:
                return args[0]
            moved_named = {name: moved(value) for name, value in (kwargs or {}).items()}
            moved_named.pop("pin_memory", None)
            return function(*[moved(each) for each in args], **moved_named)

    return OnHost()


def _pretend_gpu() -> None:
    """What launching functions ask PyTorch of the GPU, answered as by a Hopper."""
    import contextlib

    import torch

    hopper = SimpleNamespace(
        name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, warp_size=32,
        shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048, gcnArchName="",
    )  # fmt: skip
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "synchronize": lambda *_, **__: None,
        "get_device_capability": lambda *_, **__: (9, 0),
        "get_device_properties": lambda *_, **__: hopper,
        "get_device_name": lambda *_, **__: hopper.name,
        "device": lambda *_, **__: contextlib.nullcontext(),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)


class _Enough(BaseException):
    """A kernel is launched again: what was to be seen was seen. No `Exception`, since the example may catch those."""


class _Watch:
    """What happens between the file's functions and the interpreter."""

    def __init__(
        self, interpreter: Any, module: ModuleType, kernels: Mapping[str, TritonKernel], named: str | None,
        *, spared: Container[str],
    ) -> None:  # fmt: skip
        """`spared`: functions of the file that make the example, and launch nothing for others."""
        import torch

        self._torch = torch
        self._module = module
        self._kernels = kernels
        self._named = named
        self._calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        """Functions of the file that are under way: name, arguments as given, and copies of them."""
        self._launcher: tuple[str, dict[str, Any], dict[str, Any]] | None = None
        self._given: Any = None
        self._seen: dict[str, dict[str, Any]] = {}
        """By kernel, its first launch."""
        self._configs: dict[str, list[dict[str, Any]]] = {}
        self._run = interpreter.InterpretedFunction.run
        self._wrap_launches(interpreter)
        self._wrap_functions(spared)

    def call(self, caller: ModuleType, example: str) -> None:
        """Call the example; and the named function on what it gave, where it launched nothing itself."""
        try:
            given = self._given = getattr(caller, example)()
        except _Enough:
            return
        function = getattr(self._module, self._named or "", None)
        if not self._seen and isinstance(function, FunctionType):
            named = given if isinstance(given, dict) else {}
            function(
                *(() if isinstance(given, dict) else given if isinstance(given, tuple | list) else (given,)), **named
            )

    # What happens

    def _wrap_functions(self, spared: Container[str]) -> None:
        for name, function in list(vars(self._module).items()):
            is_own = isinstance(function, FunctionType) and function.__module__ == self._module.__name__
            if is_own and name not in spared:
                setattr(self._module, name, self._recorded(name, function))

    def _recorded(self, name: str, function: FunctionType) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
            call = (name, given, {key: self._copied(value) for key, value in given.items()})
            self._calls.append(call)
            try:
                result = function(*args, **kwargs)
            finally:
                self._calls.pop()
            return result

        recorded.__wrapped__ = function  # type: ignore[attr-defined]
        return recorded

    def _wrap_launches(self, interpreter: Any) -> None:
        from triton.runtime.autotuner import Autotuner

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if kernel.__name__ not in self._kernels or self._named in self._kernels.keys() - {kernel.__name__}:
                return self._run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            if kernel.__name__ in self._seen:
                raise _Enough
            return self._launch(kernel, args, grid, kwargs)

        def first(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            """The first configuration: nothing can be timed here."""
            name = tuner.base_fn.__name__
            self._configs[name] = [each.all_kwargs() for each in tuner.configs]
            config = tuner.configs[0]
            if config.pre_hook is not None:
                config.pre_hook({**dict(zip(tuner.arg_names, args, strict=False)), **kwargs, **config.all_kwargs()})
            return tuner.fn.run(*args, **kwargs, **config.all_kwargs())

        interpreter.InterpretedFunction.run = run
        Autotuner.run = first

    def _launch(self, kernel: Any, args: tuple[Any, ...], grid: Any, kwargs: dict[str, Any]) -> Any:
        known = self._kernels[kernel.__name__]
        defaults = {
            name: each.default
            for name, each in inspect.signature(kernel.fn).parameters.items()
            if each.default is not inspect.Parameter.empty
        }
        given = {**defaults, **dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        tensors = {name: value for name, value in given.items() if isinstance(value, self._torch.Tensor)}
        before = {name: self._copied(value) for name, value in tensors.items()}
        result = self._run(kernel, *args, grid=grid, warmup=False, **kwargs)
        if self._calls:
            self._launcher = self._calls[0]
        changed = [name for name, value in tensors.items() if not self._is_same(value, before[name])]
        numbers = tuple(grid(given)) if callable(grid) else tuple(grid)
        options = {name: given[name] for name in OPTIONS if given.get(name) is not None}
        roles = {name: self._role(kernel, given, before, name, changed, numbers, tensors) for name in changed}
        runtime = [each.name for each in known.parameters if not each.is_constexpr]
        constants = {each.name: given[each.name] for each in known.parameters if each.is_constexpr}
        self._seen[kernel.__name__] = {
            "kernel": kernel.__name__,
            "grid": [int(each) for each in numbers],
            "other_grids": self._other_grids(grid, given, constants),
            "arguments": [self._argument(name, given.get(name), roles) for name in runtime],
            "constants": constants,
            "options": options,
            "heuristics": [name for name in known.heuristics if name in constants],
            "own": tensors,
            "function": kernel,
        }
        return result

    def _other_grids(self, grid: Any, given: dict[str, Any], constants: dict[str, Any]) -> list[list[Any]]:
        """What the grid would be with other constants, where it is computed from them."""
        found: list[list[Any]] = []
        for name, value in constants.items():
            if not callable(grid) or isinstance(value, bool) or not isinstance(value, int) or value < 2:
                continue
            for other in (2 * value, value // 2):
                try:
                    numbers = grid({**given, name: other})
                except Exception:  # noqa: S112 - it may refuse what nobody meant
                    continue
                found.append([{name: other}, [int(each) for each in numbers]])
        return found

    def _role(
        self, kernel: Any, given: dict[str, Any], before: dict[str, Any], name: str, changed: list[str], grid: Any,
        after: dict[str, Any],
    ) -> str:  # fmt: skip
        """`output` where other values there before change nothing that is written."""
        again = {**given, **{key: self._copied(value) for key, value in before.items()}}
        again[name].fill_(3)
        self._run(kernel, grid=grid, warmup=False, **again)
        return "output" if all(self._is_same(again[each], after[each]) for each in changed) else "inout"

    # As data

    def _copied(self, value: Any) -> Any:
        if not isinstance(value, self._torch.Tensor):
            return value
        storage = value.detach().untyped_storage().clone()
        copy = self._torch.empty(0, dtype=value.dtype)
        return copy.set_(storage, value.storage_offset(), value.size(), value.stride())

    def _is_same(self, one: Any, other: Any) -> bool:
        first, second = (each.detach().contiguous().view(-1).view(self._torch.uint8) for each in (one, other))
        return bool(self._torch.equal(first, second))

    def _argument(self, name: str, value: Any, roles: Mapping[str, str]) -> dict[str, Any]:
        if not isinstance(value, self._torch.Tensor):
            kind = type(value).__name__
            return {
                "name": name,
                "kind": kind,
                "value": value if isinstance(value, bool | int | float) else repr(value),
            }
        numbers = value.detach().double() if value.numel() else self._torch.zeros(1)
        finite = numbers[self._torch.isfinite(numbers)]
        return {
            "name": name,
            "kind": "tensor",
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape) if value.is_contiguous() else [self._reach(value)],
            "is_contiguous": value.is_contiguous(),
            "role": roles.get(name, "input"),
            "low": float(finite.min()) if finite.numel() else 0.0,
            "high": float(finite.max()) if finite.numel() else 0.0,
        }

    def _reach(self, value: Any) -> int:
        """Elements from the first one to the last one."""
        return int(1 + sum((extent - 1) * step for extent, step in zip(value.shape, value.stride(), strict=True)))

    def _constant(self, value: Any) -> Any:
        import triton.language as tl

        value = getattr(value, "value", value)  # of tl.constexpr
        if isinstance(value, tl.dtype):
            return next(f"tl.{name}" for name in dir(tl) if getattr(tl, name) is value)
        return value if value is None or isinstance(value, bool | int | float | str) else repr(value)

    def document(self, file: Path, example: str) -> dict[str, Any]:
        """What was seen of the one kernel."""
        if not self._seen:
            raise ReferenceFailed(
                f"{example}() launched no kernel of {file.name}, and gave {repr(self._given)[:_SHOWN]}",
                hint="call the function that launches it there",
                location=Location(file),
            )
        if len(self._seen) > 1:
            raise ReferenceFailed(
                f"{example}() launched {', '.join(self._seen)}, and a problem has one Triton kernel",
                hint=f"name one: {file.name}::{next(iter(self._seen))}",
                location=Location(file),
            )
        (seen,) = self._seen.values()
        own, known = seen.pop("own"), self._kernels[seen["kernel"]]
        self._refuse_hidden(seen.pop("function"), known, file)
        given = seen["constants"].items()
        seen["constants"] = {name: self._written(name, value, known, file) for name, value in given}
        configs = [
            {name: self._constant(value) for name, value in each.items() if value is not None}
            for each in self._configs.get(seen["kernel"], [])
        ]
        return {**seen, "configs": configs, "reference": self._reference(own, seen)}

    def _written(self, name: str, value: Any, known: TritonKernel, file: Path) -> Any:
        found = self._constant(value)
        meant = getattr(value, "value", value)
        if isinstance(found, str) and found == repr(meant):
            raise ReferenceFailed(
                f"the constant {name!r} of {known.name!r} is {getattr(meant, '__name__', found[:_SHOWN])}, which no "
                "header can say",
                hint="give a number, a text or a type there; call a function in the kernel by its name",
                location=Location(file, known.line),
            )
        return found

    def _refuse_hidden(self, function: Any, known: TritonKernel, file: Path) -> None:
        """A template launches a kernel by its name in the file."""
        found = getattr(self._module, known.name, None)
        while found is not None and found is not function:
            found = getattr(found, "fn", None)
        if found is None:
            raise ReferenceFailed(
                f"the kernel {known.name!r} is made by a function: nothing at the top level of {file.name} leads to it",
                hint="define it at the top level",
                location=Location(file, known.line),
            )

    # The torch function

    def _reference(self, own: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any] | None:
        """A function of the file that computes the same, checked on the example; how it is called, by arguments."""
        if self._launcher is None:
            return None
        name, given, before = self._launcher
        outputs = [each["name"] for each in seen["arguments"] if each.get("role") in ("output", "inout")]
        for other, wrapped in vars(self._module).items():
            function = getattr(wrapped, "__wrapped__", None)
            if function is None or other == name or not _REFERENCE.search(other.lower()):
                continue
            call = self._call_of(function, given, own)
            if call is None:
                continue
            names = list(inspect.signature(function).parameters)
            values = [self._copied(value) for value in list(before.values())[: len(names)]]
            results = self._results(function, values)
            if results is not None and self._are_near(results, [own[each] for each in outputs]):
                return {"function": other, "call": call, "outputs": outputs}
        return None

    def _call_of(self, function: Any, given: dict[str, Any], own: dict[str, Any]) -> list[Any] | None:
        """By parameter, the kernel's argument with its shape in the call, or a value."""
        call: list[Any] = []
        for value in list(given.values())[: len(inspect.signature(function).parameters)]:
            if not isinstance(value, self._torch.Tensor):
                if not self._is_literal(value):
                    return None
                call.append({"value": repr(value)})
                continue
            name = next((each for each, tensor in own.items() if tensor.data_ptr() == value.data_ptr()), None)
            if name is None or not value.is_contiguous():
                return None
            call.append({"name": name, "shape": list(value.shape)})
        return call if len(call) == len(inspect.signature(function).parameters) else None

    def _is_literal(self, value: Any) -> bool:
        """Whether its text gives it again where PyTorch alone is imported; a device's or an infinity's does not."""
        try:
            ast.literal_eval(repr(value))
        except (ValueError, SyntaxError):
            return isinstance(value, self._torch.dtype)
        return True

    def _results(self, function: Any, values: list[Any]) -> list[Any] | None:
        try:
            result = function(*values)
        except Exception:  # it may be something else than a reference
            return None
        found = list(result) if isinstance(result, tuple | list) else [result]
        return found if all(isinstance(each, self._torch.Tensor) for each in found) else None

    def _are_near(self, results: list[Any], outputs: list[Any]) -> bool:
        if len(results) != len(outputs) or any(a.numel() != b.numel() for a, b in zip(results, outputs, strict=True)):
            return False
        for result, output in zip(results, outputs, strict=True):
            one, other = result.detach().double().reshape(-1), output.detach().double().reshape(-1)
            scale = float(other.abs().max()) if other.numel() else 0.0
            if not float((one - other).abs().max() if other.numel() else 0.0) <= _ALLOWED_ERROR * max(scale, 1e-6):
                return False
        return True
