"""The user's reference: loaded and called in the referee process only, never in the parent.

```
function = load_reference(problem.reference)
expected = call_reference(function, problem, workload, {"x": array})    # {"out": float64 array}
```
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernelwright.errors import Location, ReferenceFailed
from kernelwright.problem.checks import evaluate_extent, evaluate_on, shown_path
from kernelwright.problem.dtypes import DTYPES, encode_scalar
from kernelwright.problem.reference_file import syntax_failure
from kernelwright.problem.toml.file import did_you_mean
from kernelwright.problem.torch_device import TorchDevice
from kernelwright.problem.user_code import blamed_on_user

if TYPE_CHECKING:
    from kernelwright.problem.model import Argument, Problem, ReferenceSpec, Workload

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Reference:
    """A loaded reference function. Made by `load_reference`; runs the user's code when called."""

    function: Callable[..., object]
    file: Path
    uses_torch: bool
    """Whether it takes and gives tensors: true when its file imports torch."""
    takes_storage: bool = False
    """Whether it takes inputs as they are stored, changes none of them, and gives arrays that it does not keep."""
    device: TorchDevice | None = None
    """Where tensors are computed with; None: on the host."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        """What the user's function returns."""
        with _import_folder(self.file.parent):
            return self.function(*args, **kwargs)


def load_reference(spec: ReferenceSpec) -> Reference:
    """Import the reference's file and give its function.

    Raises:
        ReferenceFailed: the file has a syntax error, raises while it is imported, or has no such function.
    """
    name = "kernelwright_reference_" + hashlib.sha256(str(spec.file).encode()).hexdigest()[:12]
    module_spec = importlib.util.spec_from_file_location(name, spec.file)
    if module_spec is None or module_spec.loader is None:
        raise ReferenceFailed(f"{spec.file.name} is not a Python file", location=spec.location)
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and pickling in the user's file look it up
    with blamed_on_user(spec.file, doing="importing the reference"):
        try:
            with _import_folder(spec.file.parent):
                module_spec.loader.exec_module(module)
        except SyntaxError as error:
            raise syntax_failure(spec.file, error) from error
        function = getattr(module, spec.function, None)
        if not callable(function):
            found = [key for key, value in vars(module).items() if inspect.isfunction(value)]
            problem = "is not a function" if function is not None else "does not exist"
            raise ReferenceFailed(
                f"{spec.function!r} {problem} in {spec.file.name}; it has {', '.join(found) or 'no functions'}",
                hint=did_you_mean(spec.function, found),
                location=spec.location,
            )
        uses_torch = _imports_torch(vars(module))
        return Reference(function, spec.file, uses_torch, device=TorchDevice() if uses_torch else None)


def call_reference(
    function: Callable[..., object],
    problem: Problem,
    workload: Workload,
    inputs: Mapping[str, npt.ArrayLike],
    *,
    may_be_infinite: bool = False,
) -> dict[str, Array]:
    """What the reference computes on one workload, by output, in the problem's order.

    The function gets what it asks for by name: inputs and inouts as copies (floats as float64, integers as
    int64 or uint64, bool as bool; torch tensors of the same types when its file imports torch), scalars as
    Python numbers rounded to their dtype, and sizes. It returns one array, a tuple in the order of the
    outputs, or a dict by name.

    With `may_be_infinite`, for inputs that are so themselves, results may be NaN or infinite.

    Returns:
        By output: a finite array of the declared shape, float64 for float outputs.

    Raises:
        ReferenceFailed: it asks for an unknown name, raises, or returns another count or shape, or a value
            that is not finite.
    """
    reference = function if isinstance(function, Reference) else _as_reference(function, problem)
    available = _available(problem, workload, inputs, as_stored=reference.takes_storage)
    with blamed_on_user(reference.file, doing=f"the reference, on workload {workload.name!r},"):
        wanted = _choose(reference, problem, workload, available)
        if reference.uses_torch:
            wanted = {name: _to_torch(value) for name, value in wanted.items()}
        if reference.device is None:
            results = _results(reference, problem, wanted)
        else:
            results = reference.device.computed(lambda given: _results(reference, problem, given), wanted)
        return {
            output.name: _own(
                _checked(results[output.name], output, problem, workload, may_be_infinite=may_be_infinite),
                output,
                is_new=reference.takes_storage,
            )
            for output in problem.outputs
        }


def _results(reference: Reference, problem: Problem, wanted: Mapping[str, object]) -> dict[str, object]:
    """What it returns, by output; tensors as arrays of the host."""
    positional, named = _bind(reference.function, wanted)
    with np.errstate(all="ignore"):  # overflow shows as a non-finite value later
        results = _by_output(reference(*positional, **named), problem)
    return {name: _from_torch(value) for name, value in results.items()}


def _as_reference(function: Callable[..., object], problem: Problem) -> Reference:
    names: Mapping[str, object] = getattr(function, "__globals__", {})
    return Reference(function, problem.reference.file, _imports_torch(names))


# What goes in


def _available(
    problem: Problem, workload: Workload, inputs: Mapping[str, npt.ArrayLike], *, as_stored: bool
) -> dict[str, object]:
    """Everything that a reference may ask for, by name; arguments win over sizes of the same name."""
    available: dict[str, object] = dict(workload.sizes)
    for argument in problem.arguments:
        if argument.value is not None and argument.value.names <= workload.sizes.keys():
            available[argument.name] = _scalar(argument, workload)
    for argument in problem.inputs:
        if argument.name in inputs:
            values = np.asarray(inputs[argument.name])
            available[argument.name] = values if as_stored else _widened(values)
    return available


def _scalar(argument: Argument, workload: Workload) -> object:
    """The number that the kernel gets: rounded to the argument's dtype."""
    assert argument.value is not None
    value = evaluate_on(argument.value, workload.sizes, what=f"value of {argument.name!r}", workload=workload)
    dtype = DTYPES[argument.dtype]
    data = encode_scalar(dtype, value, location=argument.value.location)
    if dtype.kind != "float":
        number = int.from_bytes(data, "little", signed=dtype.kind == "int")
        return bool(number) if dtype.kind == "bool" else number
    native = data if sys.byteorder == "little" else data[::-1]
    return float(np.frombuffer(native, dtype.numpy_dtype)[0])


def _widened(values: Array) -> Array:
    """A copy in the type that references compute in."""
    match values.dtype.kind:
        case "b":
            return values.astype(np.bool_)
        case "u" if values.dtype.itemsize == 8:
            return values.astype(np.uint64)
        case "i" | "u":
            return values.astype(np.int64)
        case _:
            return values.astype(np.float64)


def _choose(
    reference: Reference, problem: Problem, workload: Workload, available: Mapping[str, object]
) -> dict[str, object]:
    """What the function's parameters ask for; everything but sizes when it takes `**kwargs`."""
    chosen: dict[str, object] = {}
    for parameter in _parameters(reference):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments = {argument.name for argument in problem.arguments}
            chosen |= {name: value for name, value in available.items() if name in arguments}
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        elif parameter.name in available:
            chosen[parameter.name] = available[parameter.name]
        elif parameter.default is inspect.Parameter.empty:
            raise _unknown_parameter(reference, parameter.name, problem, available)
    return chosen


def _parameters(reference: Reference) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(reference.function).parameters.values())
    except (TypeError, ValueError):
        raise ReferenceFailed(
            f"cannot tell which arguments {reference.function!r} takes",
            hint="write a Python function that calls it, with the arguments' names as parameters",
            location=Location(shown_path(reference.file)),
        ) from None


def _unknown_parameter(
    reference: Reference, name: str, problem: Problem, available: Mapping[str, object]
) -> ReferenceFailed:
    code = getattr(inspect.unwrap(reference.function), "__code__", None)
    location = Location(shown_path(reference.file), code.co_firstlineno if code else 0)
    known = ", ".join(available)
    if any(argument.name == name and argument.role == "output" for argument in problem.arguments):
        return ReferenceFailed(
            f"the reference asks for {name!r}, which is an output",
            hint="return the output instead; it can ask for " + known,
            location=location,
        )
    near = did_you_mean(name, available)
    return ReferenceFailed(
        f"the reference asks for {name!r}, which is no input, scalar or size; it can ask for {known}",
        hint=near or "name its parameters as the problem names its arguments",
        location=location,
    )


def _bind(function: Callable[..., object], wanted: Mapping[str, object]) -> tuple[list[object], dict[str, object]]:
    positional_only = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY
    ]
    named = {name: value for name, value in wanted.items() if name not in positional_only}
    return [wanted[name] for name in positional_only if name in wanted], named


# What comes out


def _by_output(result: object, problem: Problem) -> dict[str, object]:
    """The returned arrays by output name."""
    names = [argument.name for argument in problem.outputs]
    listed = ", ".join(names)
    location = problem.reference.location
    if result is None:
        raise ReferenceFailed("the reference returned None", hint=f"return the outputs: {listed}", location=location)
    if isinstance(result, Mapping):
        for key in result:
            if key not in names:
                raise ReferenceFailed(
                    f"the reference returned {key!r}, which is no output; outputs are {listed}",
                    hint=did_you_mean(str(key), names),
                    location=location,
                )
        missing = [name for name in names if name not in result]
        if missing:
            raise ReferenceFailed(f"the reference returned no {missing[0]!r}", location=location)
        return dict(result)
    is_sequence = isinstance(result, tuple) or (isinstance(result, list) and len(names) > 1)
    if not is_sequence:
        items: list[object] = [result]
    else:
        assert isinstance(result, tuple | list)
        items = list(result)
    if len(items) != len(names):
        raise ReferenceFailed(
            f"the reference returned {len(items)} arrays, expected {len(names)}: {listed}",
            hint="return a tuple in the order of the output and inout arguments, or a dict by name",
            location=location,
        )
    return dict(zip(names, items, strict=True))


def _checked(
    value: object, argument: Argument, problem: Problem, workload: Workload, *, may_be_infinite: bool
) -> Array:
    """One output as an array of the declared shape, with finite values unless others may be."""
    location = problem.reference.location
    where = f"output {argument.name!r} on workload {workload.name!r}"
    array = _to_numpy(value)
    if array is None or array.dtype.kind not in "biuf":
        shown = type(value).__name__ if array is None else f"an array of {array.dtype}"
        raise ReferenceFailed(
            f"the reference returned {shown} for {where}, expected an array of numbers", location=location
        )
    shape = tuple(
        evaluate_extent(extent, workload.sizes, what=f"shape of {argument.name!r}", workload=workload)
        for extent in argument.shape
    )
    if array.shape != shape and not (array.ndim == 0 and all(extent == 1 for extent in shape)):
        raise ReferenceFailed(
            f"the reference returned the shape {array.shape} for {where}, expected {shape} "
            f"({', '.join(extent.text for extent in argument.shape)})",
            hint="correct the reference, or the argument's shape in the problem",
            location=location,
        )
    array = array.reshape(shape)
    if array.dtype.kind == "f" and not may_be_infinite:
        finite = np.isfinite(array)
        if not finite.all():
            index = tuple(int(axis) for axis in np.argwhere(~finite)[0])
            count = int(array.size - np.count_nonzero(finite))
            raise ReferenceFailed(
                f"the reference returned {array[index]} in {where}, at index {list(index)} "
                f"({count} of {array.size} values are not finite)",
                hint=f"{_narrower(problem)}, or correct the reference",
                location=location,
            )
    return array


def _narrower(problem: Problem) -> str:
    """What to write so that results may become finite."""
    floats = [
        each for each in problem.inputs if DTYPES[each.dtype].kind == "float" and each.distribution.kind != "file"
    ]
    free = [each.name for each in floats if each.distribution.kind == "normal"]
    if free:
        return f"write range = [0.25, 0.75], or another, for {' and '.join(free)} in [arguments]"
    return f"write narrower ranges for {' and '.join(each.name for each in floats) or 'the inputs'} in [arguments]"


def _own(array: Array, argument: Argument, *, is_new: bool) -> Array:
    """The result in float64 for float outputs, as an array that the reference cannot change any more."""
    return array.astype(np.float64, copy=not is_new) if DTYPES[argument.dtype].kind == "float" else array


# Torch, imports


def _imports_torch(names: Mapping[str, object]) -> bool:
    """Whether a module's names include torch, a part of it, or something that came from it."""
    if "torch" not in sys.modules:
        return False
    for value in names.values():
        origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(origin, str) and origin.partition(".")[0] == "torch":
            return True
    return False


def _to_torch(value: object) -> object:
    if not isinstance(value, np.ndarray):
        return value
    torch = sys.modules["torch"]
    return torch.from_numpy(np.ascontiguousarray(value))


def _from_torch(value: object) -> object:
    """A tensor, or each of a list, as an array of the host; anything else as it is."""
    if isinstance(value, list | tuple) and value and hasattr(value[0], "detach"):
        return [_from_torch(each) for each in value]
    if not (type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")):
        return value
    tensor = value.detach().cpu()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def _to_numpy(value: object) -> Array | None:
    """An array of what a reference returned, or None when it is no array."""
    try:
        array = np.asarray(_from_torch(value))
    except (ValueError, TypeError):
        return None
    if array.dtype.kind == "V" or array.dtype.name.startswith(("bfloat", "float8")):
        return array.astype(np.float64)
    return array


@contextmanager
def _import_folder(folder: Path) -> Iterator[None]:
    """Let the user's file import its neighbours, and leave no caches in the user's folder."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
