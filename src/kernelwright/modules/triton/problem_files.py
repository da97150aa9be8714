"""The problem of a watched call: the file with a header, the torch function or the kernel itself as the reference."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelwright.backend.cuda.compile.triton_build import NOT_FINITE
from kernelwright.errors import Location, SpecError
from kernelwright.modules.triton.importing import WatchedCall
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.toml.file import read_text
from kernelwright.problem.toml.writing import inline_toml
from kernelwright.source.triton.reading import OPTIONS
from kernelwright.source.triton.tiles import constant_uses
from kernelwright.space.parameter import Parameter
from kernelwright.template.header import Header, launch_step, strip_header

_WARPS = (1, 2, 4, 8, 16)
_STAGES = (1, 2, 3, 4, 5)
_DEFAULTS = {"num_warps": 4, "num_stages": 3}
"""Triton's own, for NVIDIA's devices."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Names for the numbers of the example, and what is guessed about them."""

    values: Mapping[str, int]

    def text(self, number: int, *, is_flat: bool = True) -> str:
        """A number as the first size of that value, a product of two, or itself; a square only of what `is_flat`."""
        if number <= 1:
            return str(number)
        for name, value in self.values.items():
            if value == number:
                return name
        for (first, one), (second, other) in itertools.combinations_with_replacement(self.values.items(), 2):
            if one * other == number and (is_flat or first != second):
                return f"{first} * {second}"
        return str(number)

    @property
    def alike(self) -> list[str]:
        """Names of sizes that have the value of another one."""
        values = list(self.values.values())
        return [name for name, value in self.values.items() if values.count(value) > 1]


def files_of(call: WatchedCall) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """By name, the files of the problem; and what a person must know of them.

    Raises:
        SpecError: an argument or a constant has no form in a problem.
    """
    _refuse_unknown(call)
    sizes = _sizes(call)
    stem = re.sub(r"\W+", "_", call.file.stem)
    header, notes = _header(call, sizes)
    text = strip_header(read_text(call.file, what="the kernel source"))
    reference = _torch_reference(call, stem) if call.reference else _kernel_reference(call, stem, header)
    files = {
        f"{stem}.py": header.render() + text,
        f"original_{stem}.py": text,
        "reference.py": reference,
        "problem.toml": _problem_text(call, sizes, stem),
    }
    if call.reference and call.reference["is_callers"]:
        files[_caller_stem(call) + ".py"] = read_text(call.caller, what="the file with the call")
    if call.reference is None:
        notes.append(
            "no torch function computes the same: the reference is the kernel itself, interpreted, which is slow"
        )
    if sizes.alike:
        notes.append(
            f"{', '.join(sizes.alike)} are equal in the example, so shapes are guesses: give it distinct sizes"
        )
    kept = [each for each in _passed(call) if _is_kept(each)]
    if kept:
        names = ", ".join(each["name"] for each in kept)
        notes.append(f"whole numbers may be places and lengths: {names} are as in the example, and of its sizes")
    texts = {name: each.encode() for name, each in files.items()}
    return {**texts, **{_values_file(each): _npy(each) for each in kept}}, tuple(notes)


def _is_kept(each: Mapping[str, Any]) -> bool:
    is_read = each["kind"] == "tensor" and each["role"] != "output" and not each["is_zeroed"]
    return is_read and each["values"] is not None


def _values_file(each: Mapping[str, Any]) -> str:
    return f"example_{each['name']}.npy"


def _npy(each: Mapping[str, Any]) -> bytes:
    """The values in the shape that the problem gives them."""
    text = io.BytesIO()
    np.save(text, each["values"].reshape(each["shape"] or [1]), allow_pickle=False)
    return text.getvalue()


def template_of(call: WatchedCall, values: Mapping[str, int]) -> tuple[str, dict[str, str], list[str]]:
    """The template, by argument its fields in a problem, and what a person must know of them.

    Args:
        call: what was watched.
        values: the sizes, and what is written of them, by their text: `{"m": 17, "n": 31, "(m * n)": 527}`.

    Raises:
        SpecError: as for `files_of`.
    """
    _refuse_unknown(call)
    sizes = _Sizes(values)
    header, notes = _header(call, sizes)
    text = strip_header(read_text(call.file, what="the kernel source"))
    return header.render() + text, {each["name"]: _argument(each, sizes) for each in _passed(call)}, notes


def _refuse_unknown(call: WatchedCall) -> None:
    for each in _passed(call):
        if each["kind"] not in ("tensor", "int", "float", "bool") or (
            each["kind"] == "tensor" and each["dtype"] not in DTYPES
        ):
            what = each["dtype"] if each["kind"] == "tensor" else each["value"]
            raise SpecError(
                f"the argument {each['name']!r} of {call.kernel!r} is {what} in the example, neither array nor number",
                hint="call it with a tensor or a number there, or make it a tl.constexpr",
                location=Location(call.file),
            )


def _passed(call: WatchedCall) -> list[Mapping[str, Any]]:
    """The arguments that the problem has; those that are None become defines."""
    return [each for each in call.arguments if each["kind"] != "NoneType"]


def _sizes(call: WatchedCall) -> _Sizes:
    """Whole arguments that are no strides, then extents and blocks that none of them is."""
    found = {
        each["name"]: each["value"]
        for each in call.arguments
        if each["kind"] == "int" and "stride" not in each["name"].lower() and each["value"] > 1
    }
    shapes = [each["shape"] for each in call.arguments if each["kind"] == "tensor"]
    numbers = [(extent, len(shape) == 1) for shape in shapes for extent in shape]
    for number, is_flat in (*numbers, *((each, False) for each in (call.grid if not call.other_grids else ()))):
        if number > 1 and _Sizes(found).text(number, is_flat=is_flat) == str(number):
            found[next(name for index in itertools.count() if (name := f"size{index}") not in found)] = number
    return _Sizes(found)


# The header


def _header(call: WatchedCall, sizes: _Sizes) -> tuple[Header, list[str]]:
    parameters: list[Parameter] = []
    defines: dict[str, Expression] = {}
    notes: list[str] = []
    tuned, unknown = _tuned(call, sizes)
    uses = constant_uses(read_text(call.file, what="the kernel source"), call.kernel)
    notes += [
        f"{name} stays as it is in the example: no formula was found for what the grid does with it" for name in unknown
    ]
    for name, value in call.constants.items():
        if name in tuned:
            parameters.append(_parameter(call, name))
        elif rule := _rule(call, name, sizes, tuned):
            defines[name] = Expression.parse(rule)
            notes.append(f"{name} = {rule} is a guess: @triton.heuristics gave the same in the sizes that were tried")
        elif call.coupled.get(name) in tuned:
            defines[name] = Expression.parse(call.coupled[name])
            notes.append(f"{name} = {call.coupled[name]} is a guess: the call fails with another value of it alone")
        elif (
            isinstance(value, int)
            and not isinstance(value, bool)
            and (size := _of_a_size(uses.get(name, ""), name, value, sizes))
        ):
            defines[name] = Expression.parse(size)
            notes.append(f"{name} = {size} is a guess")
        else:
            is_text = value is None or (isinstance(value, float) and not math.isfinite(value))
            defines[name] = Expression.parse(repr(str(value) if is_text else value))
    defines |= {each["name"]: Expression.parse("'None'") for each in call.arguments if each["kind"] == "NoneType"}
    for name, usual in (("num_warps", _WARPS), ("num_stages", _STAGES)):
        default = int(call.options.get(name) or _DEFAULTS[name])
        known = {*usual, default, *(int(each[name]) for each in call.configs if name in each)}
        parameters.append(Parameter(name, tuple(sorted(known)), default))
    fixed = [name for name in call.heuristics if name not in tuned and not _rule(call, name, sizes, tuned)]
    if fixed:
        notes.append(f"{', '.join(fixed)} came from @triton.heuristics and are fixed here as in the example")
    if len(call.configs) > 1:
        notes.append(
            f"the baseline is the first of {len(call.configs)} configurations of @triton.autotune, after its pruning"
        )
    zeroed = [each["name"] for each in _passed(call) if each.get("is_zeroed") and each["role"] == "inout"]
    if zeroed:
        notes.append(f"{', '.join(zeroed)} start from zeros in each launch, as the autotuner's hooks see to it")
    grid = [_extent(call, axis, sizes, tuned) or str(extent) for axis, extent in enumerate(call.grid)]
    notes += [
        f"grid[{axis}] = {text} is a guess"
        for axis, text in enumerate(grid)
        if not call.other_grids and not text.isdigit()
    ]
    step = launch_step(call.kernel, tuple(grid), ())
    return Header(parameters=tuple(parameters), defines=defines, steps=(step,), mark="#"), notes


def _parameter(call: WatchedCall, name: str) -> Parameter:
    value = call.constants[name]
    listed = [each[name] for each in call.configs if name in each]
    if not listed and name in call.tried:
        return Parameter(name, call.tried[name], value, "cuts the work, with the same results in the example")
    why = "of @triton.autotune, and wider" if listed else "guess: wider than what the call has"
    return Parameter(name, _values(value, listed), value, why)


def _tuned(call: WatchedCall, sizes: _Sizes) -> tuple[list[str], list[str]]:
    """Constants that become parameters, and those that would, if the grid were a formula with them."""
    wanted = [name for name in call.constants if _is_tuned(call, name)]
    axes = range(len(call.grid))
    if all(_extent(call, axis, sizes, wanted) for axis in axes):
        return wanted, []
    tuned = [name for name in wanted if all(_extent(call, axis, sizes, [name]) for axis in axes)]
    while tuned and not all(_extent(call, axis, sizes, tuned) for axis in axes):
        tuned.pop()
    return tuned, [name for name in wanted if name not in tuned]


def _is_tuned(call: WatchedCall, name: str) -> bool:
    """What an autotuner lists, what the call was tried with, and a power of two that decides the grid."""
    value = call.constants[name]
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    if any(name in each for each in call.configs):
        return True
    if name in call.tried:
        return len(call.tried[name]) > 1
    decides = any([*values] == [name] and numbers != call.grid for values, numbers in call.other_grids)
    return decides and value >= 2 and value & (value - 1) == 0


def _values(value: int, listed: list[int]) -> tuple[int, ...]:
    known = {value, *listed}
    if any(each < 1 or each & (each - 1) for each in known):
        return tuple(sorted(known))
    low, high = min(known), max(known)
    if listed:
        between = (low << by for by in range((high // low).bit_length() + 1))
        return tuple(sorted({*known, *((low // 2,) if low >= 2 and low != 16 else ()), *between}))
    wider = (value // 4, value // 2, value, 2 * value, 4 * value)  # a guess
    return tuple(each for each in wider if each >= min(16, value))


def _of_a_size(use: str, name: str, value: int, sizes: _Sizes) -> str | None:
    """The size that a constant is, or whose next power of two it is; strides and cases are what they are."""
    if value < 2 or use == "case" or "stride" in name.lower():
        return None
    if value & (value - 1) or use == "number":
        return next((size for size, number in sizes.values.items() if number == value), None)
    found = [size for size, number in sizes.values.items() if value // 2 < number <= value]
    return f"next_power_of_two({found[-1]})" if found else None


def _rule(call: WatchedCall, name: str, sizes: _Sizes, tuned: list[str]) -> str | None:
    """What `@triton.heuristics` computes a constant by, as an expression; None: it is none that is known, or fixed."""
    known = {**sizes.values, **{each: call.constants[each] for each in tuned}}
    cases = [case for case in call.heuristics.get(name, ()) if case[0].keys() <= known.keys()]
    value = call.constants[name]
    if all(found == value for _, found in cases):
        return None
    for text in _rules(list(sizes.values), tuned, is_asked=isinstance(value, bool)):
        expression = Expression.parse(text)
        if all(expression.evaluate({**known, **other}) == found for other, found in (({}, value), *cases)):
            return text
    return None


def _rules(sizes: list[str], tuned: list[str], *, is_asked: bool) -> Iterator[str]:
    products = (f"({one} * {other})" for one, other in itertools.combinations(tuned, 2))
    numbers = (str(1 << by) for by in range(1, 11))
    both = list(itertools.product(sizes, [*tuned, *products, *numbers, *sizes]))
    if not is_asked:
        yield from (f"next_power_of_two({size})" for size in sizes)
        yield from (form.format(one, other) for one, other in both for form in ("ceil_div({}, {})", "min({}, {})"))
        return
    yield from (form.format(one, other) for one, other in both for form in ("{} % {} == 0", "{} % {} != 0"))
    sided = [(one, other) for one, other in both if not other.isdigit()]  # between two sizes any number is a limit
    yield from (f"{one} {sign} {other}" for one, other in sided for sign in ("<=", "<", ">", ">="))


def _extent(call: WatchedCall, axis: int, sizes: _Sizes, tuned: list[str]) -> str | None:
    """An axis of the grid as the plainest expression that gives it, also with other constants; None: there is none."""
    known = (*call.other_grids, *call.tried_grids)
    others = ((values, grid) for values, grid in known if set(values) <= set(tuned))
    cases = [(call.constants, call.grid), *(({**call.constants, **values}, grid) for values, grid in others)]
    for text in _candidates(sizes.values, tuned, call):
        expression = Expression.parse(text)
        if all(expression.evaluate({**sizes.values, **constants}) == grid[axis] for constants, grid in cases):
            return text
    return str(call.grid[axis]) if all(grid[axis] == call.grid[axis] for _, grid in cases) else None


def _candidates(sizes: Mapping[str, int], tuned: list[str], call: WatchedCall) -> Iterator[str]:
    """Sizes and how often constants go into them; what is not tuned stands as the number that it is."""
    numbers = [
        value for name, value in call.constants.items() if name not in tuned and type(value) is int and value > 1
    ]
    known = [each for each in map(str, dict.fromkeys(numbers)) if each not in sizes]
    divided = (f"ceil_div({size}, {name})" for name in (*tuned, *known) for size in (*sizes, *known))
    single = [*sizes, *divided]
    yield from single
    for first, second in itertools.combinations_with_replacement(single, 2):
        yield f"{first} * {second}"
    for first, second, third in itertools.combinations(single[:12], 3):
        yield f"{first} * {second} * {third}"


# The problem


def _problem_text(call: WatchedCall, sizes: _Sizes, stem: str) -> str:
    width = max(len(each["name"]) for each in call.arguments)
    return "\n".join(
        [
            f"# From one call that was watched of {call.file.name}: correct what says guess.",
            f"name = {inline_toml(call.kernel.strip('_') or 'kernel')}",
            f'kernel = "{stem}.py"',
            f'entry = "{call.kernel}"',
            'reference = "reference.py:reference"',
            "",
            "# In the kernel's order. Roles: input, output, inout (read and written, or written in part), scalar.",
            "[arguments]",
            *(f"{each['name'].ljust(width)} = {_argument(each, sizes)}" for each in _passed(call)),
            "",
            "# The sizes of the example; put in those that matter.",
            "[[workloads]]",
            'name = "example"',
            *(f"{name} = {value}" for name, value in sizes.values.items()),
            "",
        ]
    )


def _argument(each: Mapping[str, Any], sizes: _Sizes) -> str:
    if each["kind"] != "tensor":
        dtype = {"bool": "bool", "float": "float32"}.get(
            each["kind"], "int64" if abs(each["value"]) > 2**31 - 1 else "int32"
        )
        is_whole = each["kind"] == "int"
        value = sizes.text(each["value"]) if is_whole and each["name"] not in sizes.values else repr(each["value"])
        value = each["name"] if each["name"] in sizes.values else value
        note = "  # guess" if is_whole and each["name"] not in sizes.values and not value.isdigit() else ""
        return f'{{ role = "scalar", dtype = "{dtype}", value = {inline_toml(value)} }}{note}'
    shape = [sizes.text(extent) for extent in each["shape"]] or ["1"]
    fields = [f'role = "{each["role"]}"', f'dtype = "{each["dtype"]}"', f"shape = {inline_toml(shape)}"]
    if each["role"] != "output":
        fields += _drawn(each)
    if each["role"] in ("output", "inout") and not each["is_finite"]:
        fields.append("special = true")  # results with infinities are right
    notes = [] if each["is_contiguous"] else ["not contiguous in the example: all that it spans"]
    notes += ["some name of that value"] if any(not text.isdigit() for text in shape) else []
    return f"{{ {', '.join(fields)} }}" + (f"  # guess: {'; '.join(notes)}" if notes else "")


def _drawn(each: Mapping[str, Any]) -> Iterator[str]:
    kind = DTYPES[each["dtype"]].kind
    if each["is_zeroed"]:
        yield "value = 0"
    elif _is_kept(each):
        yield f"file = {inline_toml(_values_file(each))}"
    elif kind in ("int", "uint"):
        yield f"range = [{int(each['low'])}, {int(each['high'])}]"
    elif kind == "float" and each["low"] >= 0 and each["high"] > each["low"]:
        yield f'distribution = "uniform", range = [{each["low"]!r}, {each["high"]!r}]'


# The reference


def _torch_reference(call: WatchedCall, stem: str) -> str:
    found = call.reference
    assert found is not None
    shapes = {each["name"]: each["shape"] for each in call.arguments if each["kind"] == "tensor"}
    given = [_passed_on(each, call, shapes) for each in found["call"]]
    inputs = {each["name"] for each in _passed(call) if each.get("role") != "output"}
    needed = [each["name"] for each in found["call"] if each.get("name") in inputs]
    results = ", ".join(
        f'"{name}": results[{place}]' + ("" if shape == shapes[name] else f".reshape({shapes[name] or [1]})")
        for name, (place, shape) in found["outputs"].items()
    )
    file, module = (call.caller, _caller_stem(call)) if found["is_callers"] else (call.file, f"original_{stem}")
    return f'''"""{found["function"]} of {file.name}, which gave what the kernel gave in the example."""

import torch

from kernelwright.backend.interpreter.session import start_interpreter

start_interpreter()  # no kernel is launched here

import {module} as original


def reference({", ".join(dict.fromkeys(needed))}):
    """What is right, in doubles."""
    result = original.{found["function"]}({", ".join(given)})
    results = result if isinstance(result, (tuple, list)) else (result,)
    return {{{results}}}
'''


def _passed_on(each: Mapping[str, Any], call: WatchedCall, shapes: Mapping[str, Any]) -> str:
    """One argument of the torch function, as text; what it is to write has nothing in it yet."""
    text = each.get("value") or each["name"]
    if any(other["name"] == each.get("name") and other.get("role") == "output" for other in call.arguments):
        text = f"torch.zeros({each['shape']}, dtype=torch.{_wide(call, each['name'])})"
    elif "name" in each and each["shape"] != shapes[each["name"]]:
        text = f"{text}.reshape({each['shape']})"
    return f"{each['as']}={text}" if each["as"] else text


def _caller_stem(call: WatchedCall) -> str:
    return "call_" + re.sub(r"\W+", "_", call.caller.stem)


def _kernel_reference(call: WatchedCall, stem: str, header: Header) -> str:
    outputs = [each["name"] for each in call.arguments if each.get("role") in ("output", "inout")]
    shapes = {each["name"]: each["shape"] for each in call.arguments if each.get("role") == "output"}
    sizes = _sizes(call)
    taken = (each["name"] for each in _passed(call) if each.get("role") != "output")
    names = list(dict.fromkeys([*taken, *sizes.values]))
    made = "".join(
        f"    {name} = torch.zeros([{', '.join(map(sizes.text, shape))}], dtype=torch.{_wide(call, name)})\n"
        for name, shape in shapes.items()
    )
    whole = [each for each in _passed(call) if each["kind"] == "tensor" and DTYPES[each["dtype"]].is_integer]
    made += "".join(
        f"    {each['name']} = {each['name']}.to(torch.{each['dtype']})\n" for each in whole if each["role"] != "output"
    )
    given = ", ".join(f'"{each["name"]}": {each["name"]}' for each in _passed(call))
    fixed = {**{each.name: each.default for each in header.parameters if each.name not in OPTIONS}}
    constants = "".join(f"    {name} = {value!r}\n" for name, value in fixed.items())
    constants += "".join(f"    {name} = {_python(each.text)}\n" for name, each in header.defines.items())
    both = ", ".join(f'"{name}": {name}' for name in (*fixed, *header.defines))
    grid = ", ".join(extent.text for extent in header.steps[0].grid)
    types = {each["name"]: each["dtype"] for each in _passed(call) if each["kind"] == "tensor"}
    return f'''"""The kernel as it was, by Triton's interpreter on doubles.

That is a guess of what is meant: write it in NumPy or PyTorch to have the kernel itself checked.
"""

import torch

from kernelwright.backend.interpreter.session import launch_interpreted, start_interpreter

start_interpreter()

import triton.language as tl

import original_{stem} as original

TYPES = {types!r}  # where it refuses wider ones


def ceil_div(a, b):
    return -(-a // b)


def next_power_of_two(value):
    return 1 << max(value - 1, 0).bit_length()


def reference({", ".join(names)}):
    """What the kernel writes."""
{constants}{made}    launch_interpreted(original.{call.kernel}, ({grid},), {{{given}, {both}}}, TYPES)
    return {{{", ".join(f'"{name}": {name}' for name in outputs)}}}
'''


def _python(text: str) -> str:
    """An expression as Python has it: texts that stand for None or a type of Triton are those."""
    if text.strip("'") in NOT_FINITE:
        return f"float({text})"
    return text[1:-1] if text == "'None'" or text.startswith("'tl.") else text


def _wide(call: WatchedCall, name: str) -> str:
    dtype = next(each["dtype"] for each in call.arguments if each["name"] == name)
    return "float64" if DTYPES[dtype].kind == "float" else dtype  # whole numbers wrap around as the kernel's do
