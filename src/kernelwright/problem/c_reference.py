"""A reference in C: its function found without compiling it; compiled and called in the referee process only.

```c
// reference.h
void scale(const double *x, double *y, long n, double by) { for (long i = 0; i < n; ++i) y[i] = by * x[i]; }
```
Parameters have the names of the problem's arguments and sizes: inputs, scalars and sizes are given, outputs are zero
and are filled in place, in-out arguments are given and changed in place. Their C types need not be the kernel's:
`double` for any float, `long` for any integer.
"""

from __future__ import annotations

import ctypes
import inspect
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernelwright.errors import Location, ReferenceFailed, SpecError
from kernelwright.problem.checks import evaluate_extent, shown_path
from kernelwright.problem.toml.file import did_you_mean, read_text
from kernelwright.source.lexer import masked, matching, without_directives

if TYPE_CHECKING:
    from kernelwright.problem.model import Problem, ReferenceSpec

Array = npt.NDArray[Any]

COMPILERS = ("cc", "gcc", "clang")
COMPILE_TIMEOUT_S = 60.0
_LIBRARY = "reference.so"

_DTYPES: Mapping[str, str] = {
    "double": "float64", "float": "float32", "bool": "bool", "_Bool": "bool",
    "int8_t": "int8", "signed char": "int8", "uint8_t": "uint8", "unsigned char": "uint8",
    "short": "int16", "int16_t": "int16", "unsigned short": "uint16", "uint16_t": "uint16",
    "int": "int32", "int32_t": "int32", "unsigned": "uint32", "unsigned int": "uint32", "uint32_t": "uint32",
    "long": "int64", "long long": "int64", "int64_t": "int64", "ptrdiff_t": "int64", "ssize_t": "int64",
    "unsigned long": "uint64", "unsigned long long": "uint64", "uint64_t": "uint64", "size_t": "uint64",
}  # fmt: skip
"""By C type on 64-bit Linux and macOS."""

_HEADERS = ("stdbool.h", "stddef.h", "stdint.h", "sys/types.h")
"""Headers that define the types' names."""

_QUALIFIERS = re.compile(r"\b(?:const|restrict|__restrict__|__restrict|volatile|register)\b")
_PARAMETER = re.compile(
    r"(?P<type>[A-Za-z_][\w ]*?)\s*(?P<stars>\**)\s*\b(?P<name>[A-Za-z_]\w*)\s*(?P<array>\[[^\]]*\])?$"
)


@dataclass(frozen=True, slots=True)
class _CParameter:
    """One parameter of the function."""

    name: str
    c_type: str
    """Without qualifiers and `*`."""
    is_pointer: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements, or of the number."""
        return np.dtype(_DTYPES[self.c_type])


def c_parameters(spec: ReferenceSpec) -> tuple[_CParameter, ...]:
    """The parameters of the function that a reference names.

    Raises:
        SpecError: the file defines no such function; the message lists what it has.
        ReferenceFailed: a parameter's type is none that arguments can be given as.
    """
    text = read_text(spec.file, what="the reference's C source", location=spec.location)
    code = without_directives(masked(text))
    found = _definitions(code)
    if spec.function not in found:
        raise SpecError(
            f"{spec.file.name} defines no function {spec.function!r}; it has {', '.join(found) or 'no functions'}",
            hint=did_you_mean(spec.function, list(found)) or f"add `void {spec.function}(...)` to {spec.file.name}",
            location=spec.location,
        )
    inside, line = found[spec.function]
    if inside.strip() in ("", "void"):
        return ()
    return tuple(_parameter(each, Location(shown_path(spec.file), line)) for each in inside.split(","))


def _definitions(code: str) -> dict[str, tuple[str, int]]:
    """By function that the code defines outside of other functions: what is in its brackets, and its line."""
    found: dict[str, tuple[str, int]] = {}
    position = 0
    while (match := re.compile(r"\b([A-Za-z_]\w*)\s*\(").search(code, position)) is not None:
        behind = matching(code, match.end() - 1)
        if behind is None:
            return found
        body = re.compile(r"\s*\{").match(code, behind)
        position = behind
        if body is not None:
            found[match[1]] = code[match.end() : behind - 1], 1 + code.count("\n", 0, match.start())
            position = matching(code, body.end() - 1) or behind
    return found


def _parameter(text: str, location: Location) -> _CParameter:
    plain = " ".join(_QUALIFIERS.sub(" ", text).split())
    found = _PARAMETER.match(plain)
    c_type = " ".join(found["type"].split()) if found is not None else ""
    if found is None or c_type not in _DTYPES or len(found["stars"]) + bool(found["array"]) > 1:
        raise ReferenceFailed(
            f"the parameter `{text.strip()}` of the reference is no number and no pointer to numbers",
            hint=f"use one of {', '.join(sorted(_DTYPES))}, or a pointer to it",
            location=location,
        )
    return _CParameter(found["name"], c_type, bool(found["stars"] or found["array"]))


def c_reference(problem: Problem) -> Callable[..., object]:
    """The function as if it were written in Python: inputs, scalars and sizes by name; gives outputs by name.

    Raises:
        SpecError: the file has no such function.
        ReferenceFailed: there is no compiler, it refuses the file, or a parameter is none of the problem's names.
    """
    spec = problem.reference
    parameters = c_parameters(spec)
    outputs = {each.name: each for each in problem.outputs}
    made = {each.name for each in outputs.values() if each.role == "output"}
    _refuse_missing_outputs(parameters, outputs, spec)
    library = _compiled(spec, parameters)
    names = dict.fromkeys([each.name for each in parameters if each.name not in made])
    names |= dict.fromkeys(problem.size_names)

    def function(**values: Any) -> dict[str, Array]:
        sizes = {name: int(values[name]) for name in problem.size_names}
        arrays = [
            _array(each, values.get(each.name), _shape(problem, each.name, sizes) if each.name in made else None)
            for each in parameters
        ]
        pointers = (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays))
        library(pointers)
        by_name = {each.name: array for each, array in zip(parameters, arrays, strict=True)}
        return {name: by_name[name].reshape(_shape(problem, name, sizes)) for name in outputs}

    taken = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    function.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    return function


def _refuse_missing_outputs(
    parameters: tuple[_CParameter, ...], outputs: Mapping[str, object], spec: ReferenceSpec
) -> None:
    pointers = {each.name for each in parameters if each.is_pointer}
    missing = [name for name in outputs if name not in pointers]
    if missing:
        raise ReferenceFailed(
            f"the reference {spec.function!r} in {spec.file.name} takes no pointer {missing[0]!r} to write to",
            hint=f"add `double *{missing[0]}` to its parameters",
            location=spec.location,
        )


def _shape(problem: Problem, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    from kernelwright.problem.model import Workload  # a circle, if this were above

    argument = next(each for each in problem.outputs if each.name == name)
    place = Workload("reference", dict(sizes))
    return tuple(evaluate_extent(extent, sizes, what=f"shape of {name!r}", workload=place) for extent in argument.shape)


def _array(parameter: _CParameter, value: Any, shape: tuple[int, ...] | None) -> Array:
    """What the function gets the address of: its own copy, in its own type."""
    if shape is not None:
        return np.zeros(shape, parameter.dtype)
    return np.array(np.asarray(value), parameter.dtype, order="C", copy=True, ndmin=1)


def _compiled(spec: ReferenceSpec, parameters: tuple[_CParameter, ...]) -> Callable[[Any], object]:
    """The function behind one that takes an array of addresses; the library stays loaded with the process."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise ReferenceFailed(
            f"the reference {spec.file.name} needs a C compiler, and none of {', '.join(COMPILERS)} is here",
            hint="install gcc or clang, or write the reference in Python",
            location=spec.location,
        )
    with tempfile.TemporaryDirectory(prefix="kernelwright-reference-") as folder:
        unit = Path(folder) / "unit.c"
        unit.write_text(_unit_text(spec, parameters), encoding="utf-8")
        words = [
            compiler, "-x", "c", "-O2", "-fPIC", "-shared", "-w", "-ffp-contract=off",
            "-I", str(spec.file.parent), *(word for name in _HEADERS for word in ("-include", name)),
            "-include", str(spec.file.resolve()), str(unit),
            "-o", str(Path(folder) / _LIBRARY), "-lm",
        ]  # fmt: skip
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise ReferenceFailed(
                f"compiling the reference took longer than {COMPILE_TIMEOUT_S:g} s", location=spec.location
            ) from None
        if done.returncode:
            raise ReferenceFailed(
                f"the reference {spec.file.name} does not compile:\n{done.stderr.strip()[:4000]}",
                hint="correct it; it is compiled as C by " + Path(compiler).name,
                location=Location(shown_path(spec.file)),
            )
        call = ctypes.CDLL(str(Path(folder) / _LIBRARY)).kernelwright_reference
    call.argtypes, call.restype = [ctypes.c_void_p], None
    function: Callable[[Any], object] = call
    return function


def _unit_text(spec: ReferenceSpec, parameters: tuple[_CParameter, ...]) -> str:
    """A function of one parameter that calls the reference; all words are of a fixed list, or names."""
    given = [
        f"({each.c_type} *)given[{place}]" if each.is_pointer else f"*({each.c_type} *)given[{place}]"
        for place, each in enumerate(parameters)
    ]
    return f"void kernelwright_reference(void **given) {{ (void)given; {spec.function}({', '.join(given)}); }}\n"
