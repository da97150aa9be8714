"""A Triton solution as a template: two calls at different axes are watched in a worker, which must say the same."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelwright.modules.exchange.definition import Definition
from kernelwright.modules.exchange.inputs import ProblemNames, fill_of, inputs_text, is_fixed, shape_texts
from kernelwright.modules.triton.importing import WatchedCall, watch_call
from kernelwright.modules.triton.problem_files import template_of
from kernelwright.problem.dtypes import DTYPES
from kernelwright.source.triton.reading import defines_triton

KERNEL = "kernel.py"
_CALL = "call_of_definition.py"


def triton_problem(
    definition: Definition, names: ProblemNames, solution: Mapping[str, Any], workload: Mapping[str, Any]
) -> tuple[str, str, dict[str, str], dict[str, str]]:
    """The template, the kernel's name, the lines of `[arguments]`, and by the definition's tensor the argument.

    Raises:
        ReferenceFailed: the solution raises, or launches not one kernel.
        SpecError: the launch cannot be written in the definition's axes.
    """
    text = solution["texts"][solution["entry"]]
    if not defines_triton(text, Path(solution["entry"])):
        raise definition.wrong(f"{solution['name']}: {solution['entry']} defines no Triton kernel")
    axes = _two_samples(definition) if definition.free and not is_fixed(workload) else [workload["axes"]]
    with tempfile.TemporaryDirectory(prefix="kernelwright-import-") as folder:
        calls = [_watched(definition, solution, workload, each, Path(folder)) for each in axes]
        alike = {value for name, value in calls[0].constants.items() if value == calls[-1].constants.get(name)}
        fixed = {str(each): each for each in (*definition.axes.values(), *alike) if type(each) is int}
        found = [_one(definition, names, workload, call, each, fixed) for call, each in zip(calls, axes, strict=True)]
    if any(each != found[0] for each in found):
        raise definition.wrong(
            f"the launch of {solution['name']} depends on its axes in a way that no product of them says"
        )
    return found[0]


def _two_samples(definition: Definition) -> list[dict[str, int]]:
    """Primes, few since all is interpreted; each between other powers of two, since blocks are the next one of sizes.

    None divides a constant of the definition, so a number is a multiple of one only where it is of the size.
    """
    constants = [each for each in definition.axes.values() if isinstance(each, int)]
    pools = (
        [n for n in range(2**power + 1, 2 ** (power + 1)) if _is_prime(n) and all(each % n for each in constants)]
        for power in itertools.count(1)
    )
    values = [*itertools.islice((pool[0] for pool in pools if pool), 2 * len(definition.free))]
    return [dict(zip(definition.free, values[start::2], strict=True)) for start in (0, 1)]


def _is_prime(number: int) -> bool:
    return all(number % each for each in range(2, math.isqrt(number) + 1))


def _watched(
    definition: Definition, solution: Mapping[str, Any], workload: Mapping[str, Any], axes: Mapping[str, int],
    folder: Path,
) -> WatchedCall:  # fmt: skip
    kernel, call = folder / KERNEL, folder / _CALL
    kernel.write_text(solution["texts"][solution["entry"]], encoding="utf-8")
    (folder / "definition.py").write_text(definition.reference, encoding="utf-8")
    call.write_text(_call_text(definition, solution, workload, axes), encoding="utf-8")
    return watch_call(kernel, Path(f"{call}::example"))


def _one(
    definition: Definition, names: ProblemNames, workload: Mapping[str, Any], watched: WatchedCall,
    axes: Mapping[str, int], fixed: Mapping[str, int],
) -> tuple[str, str, dict[str, str], dict[str, str]]:  # fmt: skip
    """`fixed`: numbers that no size decides, by their text."""
    sizes = {names.sizes[name]: axes[name] for name in names.sizes}
    text, fields, _ = template_of(watched, {**sizes, **_products(watched, sizes), **fixed})
    lines, called = _arguments(definition, names, watched, fields, workload, axes)
    return text, watched.kernel, lines, called


def _call_text(
    definition: Definition, solution: Mapping[str, Any], workload: Mapping[str, Any], axes: Mapping[str, int]
) -> str:
    """Inputs of floats lie between their place and a quarter above, by which they are known in the kernel."""
    scalars = definition.scalars(workload)
    lines = inputs_text(definition, axes, workload)
    for place, (name, (shape, dtype)) in enumerate(definition.inputs.items()):
        if shape is not None and name not in scalars and DTYPES[dtype].kind == "float":
            lines += f"    {name} = ({place + 1} + torch.rand({name}.shape) / 4).to(torch.{dtype})\n"
    given = [*definition.inputs]
    if solution["passes_outputs"]:
        extents = definition.extents(axes)
        for name, (shape, dtype) in definition.outputs.items():
            numbers = [extents.get(each) or int(each) for each in shape or ()]
            lines += f"    {name} = torch.zeros({numbers!r}, dtype=torch.{dtype})\n"
            given.append(name)
    return (
        f"import definition\nimport torch\n\nimport {Path(KERNEL).stem}\n\n\ndef example():\n{lines}"
        f"    return {Path(KERNEL).stem}.{solution['function']}({', '.join(given)})\n"
    )


def _products(call: WatchedCall, sizes: Mapping[str, int]) -> dict[str, int]:
    """Numbers of the call that are multiples of sizes, by their text: sizes are primes, so it is the only one."""
    numbers = [each["value"] for each in call.arguments if each["kind"] == "int"]
    tensors = [each["shape"] for each in call.arguments if each["kind"] == "tensor"]
    numbers += [number for shape in tensors for number in shape] + list(call.grid)
    found: dict[str, int] = {}
    for number in numbers:
        rest = number
        factors: list[str] = []
        for name, size in sizes.items():
            while size > 1 and rest and rest % size == 0:
                rest, factors = rest // size, [*factors, name]
        if factors and number not in (*sizes.values(), *found.values()):
            found[f"({' * '.join(([str(rest)] if rest != 1 else []) + factors)})"] = number
    return found


def _arguments(
    definition: Definition, names: ProblemNames, call: WatchedCall, fields: Mapping[str, str],
    workload: Mapping[str, Any], axes: Mapping[str, int],
) -> tuple[dict[str, str], dict[str, str]]:  # fmt: skip
    lines: dict[str, str] = {}
    called: dict[str, str] = {}
    waiting = dict(definition.outputs)
    for each in call.arguments:
        if each["kind"] != "tensor":
            lines[each["name"]] = fields.get(each["name"], "").partition("  # guess")[0]  # two calls agree on it
            continue
        source = _input_of(definition, each, axes)
        if source is not None and each["role"] != "input":
            raise definition.wrong(f"the solution writes into the input {source!r}")
        if source is None:
            source = next((name for name, spec in waiting.items() if _is_like(definition, spec, each, axes)), None)
            if source is None or each["role"] != "output":
                raise definition.wrong(
                    f"the argument {each['name']!r} of {call.kernel!r} is no input or output of the definition"
                )
            shape, dtype = waiting.pop(source)
        else:
            shape, dtype = definition.inputs[source]
        called[source] = each["name"]
        filled = fill_of(source, dtype, workload) if source in definition.inputs else []
        shown = ", ".join(f'"{extent}"' for extent in shape_texts(definition, shape, names))
        parts = [f'role = "{each["role"]}"', f'dtype = "{dtype}"', f"shape = [{shown}]", *filled]
        lines[each["name"]] = f"{{ {', '.join(parts)} }}"
    if waiting:
        raise definition.wrong(f"no argument of {call.kernel!r} is the output {min(waiting)!r}")
    return {name: text for name, text in lines.items() if text}, called


def _input_of(definition: Definition, argument: Mapping[str, Any], axes: Mapping[str, int]) -> str | None:
    """The input that a tensor of the call is: by its values, or the only one of its type and size."""
    fitting = [name for name, spec in definition.inputs.items() if _is_like(definition, spec, argument, axes)]
    places = {name: place + 1 for place, name in enumerate(definition.inputs)}
    if DTYPES[argument["dtype"]].kind != "float":
        return fitting[0] if len(fitting) == 1 else None
    low, high = argument["low"], argument["high"]
    return next((name for name in fitting if places[name] <= low <= high <= places[name] + 0.26), None)


def _is_like(
    definition: Definition, spec: tuple[tuple[str, ...] | None, str], argument: Mapping[str, Any],
    axes: Mapping[str, int],
) -> bool:  # fmt: skip
    extents = definition.extents(axes)
    count = 1
    for each in spec[0] or ():
        count *= extents.get(each) or int(each)
    own = 1
    for number in argument["shape"]:
        own *= number
    return spec[0] is not None and spec[1] == argument["dtype"] and count == own
