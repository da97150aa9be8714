"""The worker that watches a call: the only place where a person's Triton file is run to write its problem.

It imports the file with Triton's interpreter switched on, wraps its functions, calls `example()`, and answers what it
saw of the first launch of the kernel as plain data (see `watched.read_watched`).
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import inspect
import math
import re
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from kernelwright.backend.interpreter.accesses import accesses
from kernelwright.backend.interpreter.session import limit_memory, start_interpreter
from kernelwright.errors import Location, ReferenceFailed
from kernelwright.modules.triton.trials import is_block, other_sizes, other_values, tried_values
from kernelwright.modules.triton.without_gpu import on_host, prepare, pretend_gpu, pruned
from kernelwright.problem.user_code import blamed_on_user, causes_of, place_of
from kernelwright.source.triton.reading import OPTIONS, TritonKernel, read_triton

FACTORY = f"{__name__}:make_watch"
EXAMPLE = "example"
_REFERENCE = re.compile(r"(^|_)(ref|reference|torch|naive|golden|eager|expected|native|pytorch)(_|$)")
_SHOWN = 300
_MOST_VALUES = 1 << 22
"""Of an array that is kept as it was."""
_ALLOWED_ERROR = 2e-2
"""Of a torch function's results against the kernel's, in units of their largest value: kernels may use half floats."""
_FEW = 0.01
"""The share of results that may be further away, in units of their own and of the usual value: sums can cancel."""


def make_watch(argument: object) -> Callable[[object], object]:
    """The handler of jobs: a file, the kernel or the launching function that was named, a call's file and function."""
    del argument
    return lambda job: _watched(Path(str(job[0])), job[1], Path(str(job[2])), job[3])  # type: ignore[index]


def _watched(file: Path, named: str | None, caller: Path, example: str) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8")
    kernels = {each.name: each for each in read_triton(text, file)}
    with blamed_on_user(file, doing="watching a call of the kernel"):
        interpreter = start_interpreter()
        pretend_gpu()
        limit_memory()
        with on_host():
            module = _imported(file)
            spared = {EXAMPLE, example if caller == file else EXAMPLE}
            watch = _Watch(interpreter, module, kernels, named, text=text, spared=spared)
            _give_again(module, file)
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


def _give_again(module: ModuleType, file: Path) -> None:
    """Scripts load a kernel's file by its path and under a name of their own: they get what is watched."""
    loader = importlib.machinery.SourceFileLoader
    execute = loader.exec_module

    def execute_or_give(self: Any, other: ModuleType) -> None:
        if Path(self.path).resolve() != file:
            execute(self, other)
            return
        vars(other).update({name: value for name, value in vars(module).items() if not name.startswith("__")})

    loader.exec_module = execute_or_give  # type: ignore[method-assign, assignment]


class _Enough(BaseException):
    """A kernel is launched again: what was to be seen was seen. No `Exception`, since the example may catch those."""


class _Watch:
    """What happens between the file's functions and the interpreter."""

    def __init__(
        self, interpreter: Any, module: ModuleType, kernels: Mapping[str, TritonKernel], named: str | None,
        *, text: str, spared: Container[str],
    ) -> None:  # fmt: skip
        """`text`: the file's. `spared`: functions of it that make the example, and launch nothing for others."""
        import torch

        self._torch = torch
        self._interpreter = interpreter
        self._module = module
        self._kernels = kernels
        self._named = named
        self._text = text
        self._calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        """Functions of the file that are under way: name, arguments as given, and copies of them."""
        self._launcher: tuple[str, dict[str, Any], dict[str, Any]] | None = None
        self._given: Any = None
        self._caller = module
        """The file with the example."""
        self._first: tuple[Any, dict[str, Any], dict[str, Any], tuple[int, ...]] = (None, {}, {}, ())
        """Kernel, arguments, what tensors among them were before, and the grid."""
        self._failure: ReferenceFailed | None = None
        """Of a launch."""
        self._seen: dict[str, dict[str, Any]] = {}
        """By kernel, its first launch."""
        self._configs: dict[str, list[dict[str, Any]]] = {}
        self._rules: dict[str, dict[str, Callable[..., Any]]] = {}
        """By kernel, what `@triton.heuristics` computes constants by."""
        self._zeroed: dict[str, frozenset[str]] = {}
        """By kernel, arguments that its autotuner's hooks set to zero before each launch."""
        self._run = interpreter.InterpretedFunction.run
        self._wrap_launches(interpreter)
        self._wrap_functions(spared)

    def call(self, caller: ModuleType, example: str) -> None:
        """Call the example; and the named function on what it gave, where it launched nothing itself."""
        self._caller = caller
        try:
            given = self._given = getattr(caller, example)()
        except _Enough:
            return
        except Exception:  # an example may raise anything; a kernel's own failure, known by then, says more
            if self._failure is None:
                raise
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
        from triton.runtime.autotuner import Autotuner, Heuristics

        compute = Heuristics.run

        def computed(rules: Any, *args: Any, **kwargs: Any) -> Any:
            kernel = rules.fn
            while not isinstance(kernel, interpreter.InterpretedFunction):
                kernel = kernel.fn
            self._rules.setdefault(kernel.__name__, {}).update(rules.values)
            return compute(rules, *args, **kwargs)

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            given = self._named_values(kernel, args, kwargs)
            numbers = tuple(grid(dict(given))) if callable(grid) else tuple(grid)  # on the caller's own tensors
            if not self._is_wanted(kernel.__name__):
                return self._run(kernel, *args, grid=numbers, warmup=warmup, **kwargs)
            if kernel.__name__ in self._seen:
                raise _Enough
            return self._launch(kernel, given, grid, numbers)

        def first(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            """The first configuration: nothing can be timed here."""
            name, tuner.nargs = tuner.base_fn.__name__, dict(zip(tuner.arg_names, args, strict=False))
            kept = pruned(tuner, kwargs)
            rest = [each for each in tuner.configs if each not in kept]
            self._configs[name] = [each.all_kwargs() for each in (*kept, *rest)]
            given = {**tuner.nargs, **kwargs, **kept[0].all_kwargs()}
            self._zeroed[name] = self._zeroed_by(tuner, kept[0], given)
            prepare(tuner, kept[0], given)
            return tuner.fn.run(*args, **kwargs, **kept[0].all_kwargs())

        interpreter.InterpretedFunction.run = run
        Autotuner.run = first
        Heuristics.run = computed

    def _zeroed_by(self, tuner: Any, config: Any, given: dict[str, Any]) -> frozenset[str]:
        """Arguments that the hooks before each launch fill with zeros."""
        filled = {name: self._copied(each) for name, each in given.items() if isinstance(each, self._torch.Tensor)}
        for each in filled.values():
            each.fill_(3)
        prepare(tuner, config, {**given, **filled})
        return frozenset(name for name, each in filled.items() if each.numel() and not bool(each.any()))

    def _is_wanted(self, kernel: str) -> bool:
        """Whether it is the kernel that was named, or calls it; without such a name any of the file."""
        if kernel not in self._kernels or self._named not in self._kernels:
            return kernel in self._kernels
        reached = [kernel]
        for each in reached:
            reached += [name for name in self._kernels[each].calls if name not in reached]
        return self._named in reached

    def _named_values(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        parameters = inspect.signature(kernel.fn).parameters.items()
        defaults = {name: each.default for name, each in parameters if each.default is not inspect.Parameter.empty}
        return {**defaults, **dict(zip(kernel.arg_names, args, strict=False)), **kwargs}

    def _launch(self, kernel: Any, given: dict[str, Any], grid: Any, numbers: tuple[int, ...]) -> Any:
        known = self._kernels[kernel.__name__]
        tensors = {name: value for name, value in given.items() if isinstance(value, self._torch.Tensor)}
        before = {name: self._copied(value) for name, value in tensors.items()}
        try:
            with accesses(self._interpreter, tensors) as seen:
                result = self._run(kernel, grid=numbers, warmup=False, **given)
        except Exception as error:  # the example may catch it and say less
            self._failure = self._failed(kernel, error)
            raise
        if self._calls:
            self._launcher = self._calls[0]
        changed = [
            name
            for name, value in tensors.items()
            if name in seen.written or not self._is_same(value, before[name])  # views may overlap
        ]
        self._first = kernel, given, before, numbers
        options = {name: given[name] for name in OPTIONS if given.get(name) is not None}
        roles = {name: self._role(kernel, given, before, name, changed, numbers, tensors) for name in changed}
        runtime = [each.name for each in known.parameters if not each.is_constexpr]
        zeroed = self._zeroed.get(kernel.__name__, ())
        constants = {each.name: given[each.name] for each in known.parameters if each.is_constexpr}
        other_grids = self._other_grids(grid, given, constants)
        tried = self._tried(kernel, given, tensors, {"constants": constants, "changed": changed, "other": other_grids})
        self._seen[kernel.__name__] = {
            "kernel": kernel.__name__,
            "grid": [int(each) for each in numbers],
            "other_grids": other_grids,
            "arguments": [
                self._argument(name, given.get(name), before.get(name), roles, is_zeroed=name in zeroed)
                for name in runtime
            ],
            "constants": constants,
            "options": options,
            "heuristics": {
                name: self._rule_cases(kernel.__name__, name, given, constants)
                for name in known.heuristics
                if name in constants
            },
            **tried,
            "own": tensors,
            "function": kernel,
        }
        return result

    def _failed(self, kernel: Any, error: Exception) -> ReferenceFailed:
        *_, root = causes_of(error)  # one for each function that was called
        told = str(root) or type(root).__name__
        told = told if len(told) <= _SHOWN else f"{told[:_SHOWN]}..."
        hint = "correct that line, or give the launching function arguments that the kernel takes"
        if "leaves the memory" in told:
            hint = "memory by its address in an array cannot be an argument; else correct a mask or a shape there"
        elif "Block pointers have been removed" in told:
            hint = "write tl.make_tensor_descriptor there, or install an earlier Triton"
        place = place_of(error, Path(str(self._module.__file__)))
        return ReferenceFailed(f"{kernel.__name__!r} fails in Triton's interpreter: {told}", hint=hint, location=place)

    def _other_grids(self, grid: Any, given: dict[str, Any], constants: dict[str, Any]) -> list[list[Any]]:
        """What the grid would be with other constants, where it is computed from them."""
        found: list[list[Any]] = []
        for other in other_values(constants) if callable(grid) else ():
            try:
                numbers = grid({**given, **other})
            except Exception:  # noqa: S112 - it may refuse what nobody meant
                continue
            found.append([other, [int(each) for each in numbers]])
        return found

    def _rule_cases(
        self, kernel: str, name: str, given: dict[str, Any], constants: dict[str, Any]
    ) -> list[tuple[dict[str, int], bool | int]]:
        """What a constant that a function computes would be with other constants and other whole arguments."""
        rule = self._rules.get(kernel, {}).get(name)
        found = []
        if rule is None:
            return []
        for other in (*other_values(constants), *other_sizes(given, constants)):
            try:
                value = rule({**given, **other})
            except Exception:  # noqa: S112 - it may refuse what nobody meant
                continue
            if not isinstance(value, bool | int):
                return []
            found.append((other, value))
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

    def _tried(
        self, kernel: Any, given: dict[str, Any], after: dict[str, Any], seen: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Other values of constants with which the launch writes what it wrote."""
        grid, constants = self._first[3], seen["constants"]
        values = {name: getattr(each, "value", each) for name, each in constants.items()}  # of tl.constexpr
        whole = {name: each for name, each in values.items() if is_block(each)}
        sizes = {extent for each in after.values() for extent in each.shape}
        sizes |= {each for name, each in given.items() if type(each) is int and name not in whole}
        return tried_values(
            lambda other, numbers: self._writes_same(kernel, {**given, **other}, after, seen["changed"], numbers),
            self._text,
            kernel.__name__,
            whole=whole,
            grid=tuple(grid),
            computed={tuple(other.items()): tuple(numbers) for other, numbers in seen["other"]},
            sizes=sizes,
        )

    def _writes_same(
        self, kernel: Any, given: dict[str, Any], after: dict[str, Any], changed: list[str], grid: tuple[int, ...]
    ) -> bool | None:
        """Whether a launch with another constant, on what the tensors were before, writes the same; None: it fails."""
        _, _, before, _ = self._first
        again = {**given, **{name: self._copied(value) for name, value in before.items()}}
        try:
            with accesses(self._interpreter, again):
                self._run(kernel, grid=grid, warmup=False, **again)
        except Exception:  # of whatever kind the kernel raises: it does not take the value
            return None
        return all(
            (self._is_near if value.is_floating_point() else self._is_same)(again[name], value)
            for name, value in after.items()
            if name in changed
        )

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

    def _argument(
        self, name: str, value: Any, before: Any, roles: Mapping[str, str], *, is_zeroed: bool
    ) -> dict[str, Any]:
        if not isinstance(value, self._torch.Tensor):
            kind = type(value).__name__
            return {
                "name": name,
                "kind": kind,
                "value": value if isinstance(value, bool | int | float) else repr(value),
            }
        numbers = before.detach().double() if value.numel() else self._torch.zeros(1)
        finite = numbers[self._torch.isfinite(numbers)]
        return {
            "name": name,
            "kind": "tensor",
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape) if value.is_contiguous() else [self._reach(value)],
            "is_contiguous": value.is_contiguous(),
            "role": roles.get(name, "input"),
            "is_zeroed": is_zeroed,
            "is_finite": bool(value.detach().double().isfinite().all())
            and (roles.get(name) == "output" or bool(numbers.isfinite().all())),
            "low": float(finite.min()) if finite.numel() else 0.0,
            "high": float(finite.max()) if finite.numel() else 0.0,
            "values": self._values(before),
        }

    def _values(self, value: Any) -> Any:
        """Whole numbers of 32 bits or more, which may be places, lengths and offsets: others would lead elsewhere."""
        if value.dtype not in (self._torch.int32, self._torch.int64) or value.numel() > _MOST_VALUES:
            return None
        return value.detach().reshape(-1).numpy() if value.is_contiguous() else None

    def _reach(self, value: Any) -> int:
        """Elements from the first one to the last one."""
        return int(1 + sum((extent - 1) * step for extent, step in zip(value.shape, value.stride(), strict=True)))

    def _constant(self, value: Any) -> Any:
        import triton.language as tl

        value = getattr(value, "value", value)  # of tl.constexpr
        if isinstance(value, tl.dtype):
            return next(f"tl.{name}" for name in dir(tl) if getattr(tl, name) is value)
        return value if value is None or isinstance(value, bool | int | float | str) else repr(value)

    def _launching(self) -> list[str]:
        """Functions of the file that launch its kernels."""
        return [
            each.name
            for each in ast.parse(self._text).body
            if isinstance(each, ast.FunctionDef)
            and any(isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name)
                    and inner.value.id in self._kernels for inner in ast.walk(each))
        ]  # fmt: skip

    def _described(self, value: Any) -> str:
        """A value without the elements of its tensors."""
        if isinstance(value, self._torch.Tensor):
            return f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, tuple | list):
            return f"({', '.join(map(self._described, value))})"
        return repr(value)

    def document(self, file: Path, example: str) -> dict[str, Any]:
        """What was seen of the one kernel."""
        if not self._seen:
            launching = next(iter(self._launching()), "FUNCTION")
            raise self._failure or ReferenceFailed(
                f"{example}() launched no kernel of {file.name}, and gave {self._described(self._given)[:_SHOWN]}",
                hint=f"call {launching}() there; or say {file.name}::{launching}, which is then called on what "
                f"{example}() gives",
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
        if not all(own[each].is_contiguous() for each in outputs):  # the problem has all that they span
            return None
        for other, function, is_callers in self._references(name):
            call = self._call_of(function, given, own)
            if call is None:
                continue
            values = [self._copied(before[each["given"]]) for each in call]
            named = {each["as"]: value for each, value in zip(call, values, strict=True) if each["as"]}
            results = self._results(function, [] if named else values, named)
            places = self._places(results, [own[each] for each in outputs])
            if places and self._holds_elsewhere(function, call, outputs, places):
                shapes = [list(results[place].shape) for place in places]
                found = {name: each for name, *each in zip(outputs, places, shapes, strict=True)}
                return {"function": other, "call": call, "outputs": found, "is_callers": is_callers}
        return None

    def _holds_elsewhere(self, function: Any, call: list[Any], outputs: list[str], places: list[int]) -> bool:
        """Whether the function gives what the kernel gives on other numbers, too.

        The example's may have a form, such as zeros above a diagonal, that numbers which a problem draws have not.
        """
        kernel, given, before, grid = self._first
        zeroed = self._zeroed.get(kernel.__name__, ())
        drawn = {name: value if name in zeroed else self._drawn(value) for name, value in before.items()}
        again = {**given, **{name: self._copied(value) for name, value in drawn.items()}}
        self._run(kernel, grid=grid, warmup=False, **again)
        _, _, passed = self._launcher or ("", {}, {})
        values = [
            self._in_row(drawn[each["name"]], each["shape"]) if "name" in each else passed[each["given"]]
            for each in call
        ]
        named = {each["as"]: value for each, value in zip(call, values, strict=True) if each["as"]}
        results = self._results(function, [] if named else values, named)
        return bool(results) and all(
            self._is_near(results[place], again[name]) for name, place in zip(outputs, places, strict=True)
        )

    def _in_row(self, value: Any, shape: list[int]) -> Any:
        """The memory of a tensor without gaps, which need not be contiguous, as a contiguous one."""
        steps = self._torch.empty(shape, device="meta").stride()
        return self._torch.as_strided(value, shape, steps, value.storage_offset())

    def _drawn(self, value: Any) -> Any:
        """As the problem draws it: what is kept stays; floats are from a normal distribution, or from their range."""
        copy = self._copied(value)
        if not copy.numel() or self._values(value) is not None:
            return copy
        numbers = copy.double()
        low, high = float(numbers.min()), float(numbers.max())
        source = self._torch.Generator().manual_seed(1)
        drawn = self._torch.rand(numbers.shape, generator=source)
        if copy.dtype == self._torch.bool:
            return copy.copy_(drawn < 0.5)
        if not copy.is_floating_point():
            return copy.copy_(low + self._torch.floor((high - low + 1) * drawn.double()))
        is_ranged = math.isfinite(high) and 0 <= low < high
        normal = self._torch.randn(numbers.shape, generator=self._torch.Generator().manual_seed(1))
        return copy.copy_(low + (high - low) * drawn if is_ranged else normal)

    def _references(self, launcher: str) -> Iterator[tuple[str, Any, bool]]:
        """Functions by whose names they compute what is right: of the kernel's file, then of the example's."""
        for other, wrapped in list(vars(self._module).items()):
            function = getattr(wrapped, "__wrapped__", None)
            if function is not None and other != launcher and _REFERENCE.search(other.lower()):
                yield other, function, False
        for other, function in list(vars(self._caller).items()):
            is_own = isinstance(function, FunctionType) and function.__module__ == self._caller.__name__
            if self._caller is not self._module and is_own and _REFERENCE.search(other.lower()):
                yield other, function, True

    def _call_of(self, function: Any, given: dict[str, Any], own: dict[str, Any]) -> list[Any] | None:
        """What it takes: the kernel's arguments with their shapes in the call, or values; by name where it can be."""
        parameters = inspect.signature(function).parameters
        needed = [name for name, each in parameters.items() if each.default is inspect.Parameter.empty]
        by_name = set(needed) <= set(given)
        taken = [name for name in parameters if name in given] if by_name else list(given)[: len(parameters)]
        has_names = any(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in taken if by_name)
        is_named = by_name and (has_names or taken != list(parameters)[: len(taken)])
        call: list[Any] = []
        for each in taken:
            told = self._told(given[each], own)
            if told is None:
                return None
            call.append({**told, "given": each, "as": each if is_named else ""})
        return call if by_name or len(call) == len(parameters) else None

    def _told(self, value: Any, own: dict[str, Any]) -> dict[str, Any] | None:
        """One value as text, or as the kernel's argument that it is; None if it is neither."""
        if not isinstance(value, self._torch.Tensor):
            return {"value": repr(value)} if self._is_literal(value) else None
        same = (each for each, tensor in own.items() if tensor.data_ptr() == value.data_ptr())
        name = next(same, None)
        if name is None or not value.is_contiguous() or self._reach(own[name]) != value.numel():
            return None
        return {"name": name, "shape": list(value.shape)}

    def _is_literal(self, value: Any) -> bool:
        """Whether its text gives it again where PyTorch alone is imported; a device's or an infinity's does not."""
        try:
            ast.literal_eval(repr(value))
        except (ValueError, SyntaxError):
            return isinstance(value, self._torch.dtype)
        return True

    def _results(self, function: Any, values: list[Any], named: dict[str, Any]) -> list[Any]:
        try:
            result = function(*values, **named)
        except Exception:  # it may be something else than a reference
            return []
        found = list(result) if isinstance(result, tuple | list) else [result]
        return found if all(isinstance(each, self._torch.Tensor) for each in found) else []

    def _places(self, results: list[Any], outputs: list[Any]) -> list[int]:
        """Which result each output is; empty where one is missing."""
        places: list[int] = []
        for output in outputs:
            rest = (place for place in range(len(results)) if place not in places)
            place = next((each for each in rest if self._is_near(results[each], output)), None)
            if place is None:
                return []
            places.append(place)
        return places

    def _is_near(self, result: Any, output: Any) -> bool:
        """By the largest finite value, and most by the usual one; where one is not finite, the other is the same.

        One value that is much larger than the others would hide that they differ.
        """
        if result.numel() != output.numel() or not output.numel():
            return False
        one, other = (each.detach().double().reshape(-1) for each in (result, output))
        is_same = (one == other) | (one.isnan() & other.isnan())
        finite = other[other.isfinite()].abs()
        scale = max(float(finite.max()) if finite.numel() else 0.0, 1e-6)
        if not bool((is_same | ((one - other).abs() <= _ALLOWED_ERROR * scale)).all()):
            return False
        usual = finite[finite > 0].median() if bool((finite > 0).any()) else 0.0
        is_far = ~is_same & ((one - other).abs() > _ALLOWED_ERROR * (other.abs() + usual))
        return float(is_far.double().mean()) <= _FEW
