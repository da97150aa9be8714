"""A definition's reference as one program of plain kernels for all its workloads, by torch.export in a worker."""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.errors import Location, ReferenceFailed, SpecError
from kernelwright.modules.exchange.definition import Definition
from kernelwright.modules.exchange.general import formula, general_text, samples_of
from kernelwright.modules.exchange.inputs import REFERENCE, ProblemNames, inputs_text, is_fixed
from kernelwright.modules.importing import import_module, importer_in
from kernelwright.modules.lowering import MOST_ELEMENTS, LoweredProgram, lower
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source.language import Language
from kernelwright.template.header import Header, launch_step, parse_header, scratch_argument, strip_header

_KERNEL = re.compile(r'((?:__kernel void|extern "C" __global__ void) (\w+)\([^{]*)\) \{')
Samples = Sequence[Mapping[str, int]]
_MOST_SAMPLED = 1 << 26
"""Elements of one tensor that is made only to export the reference: a quarter of a gigabyte."""


def lowered_texts(
    definition: Definition, names: ProblemNames, workload: Mapping[str, Any], data: Mapping[str, bytes]
) -> tuple[dict[Language, str], tuple[str, ...]]:
    """By language, the program; and what each kernel computes.

    Args:
        definition: with the reference.
        names: of the problem.
        workload: its scalars hold, and where inputs are given as data its axes too.
        data: such inputs' files.

    Raises:
        ReferenceFailed: the reference raises, or PyTorch cannot export it.
        SpecError: operators that cannot be lowered, or the program is another one on other sizes.
    """
    is_general = bool(definition.free) and not is_fixed(workload)
    axes: Samples = samples_of(definition.free) if is_general else (workload["axes"],)
    try:
        programs = _programs(definition, axes, workload, data)
    except ReferenceFailed:
        axes = _multiples(definition, workload) if is_general else ()
        if not axes:
            raise
        programs = _programs(definition, axes, workload, data)
    sizes = [{names.sizes[name]: each[name] for name in names.sizes} for each in axes]
    own = dict(zip([f"x{place}" for place in range(len(definition.inputs))], names.inputs.values(), strict=True))
    own |= {f"out{place}": name for place, name in enumerate(names.outputs.values())}
    languages: tuple[Language, ...] = ("opencl", "cuda")
    texts = {language: _text(programs, sizes, language, own) for language in languages}
    _refuse_large(definition, programs, sizes, names)
    entries, kernels = programs[0].entries, programs[0].kernels
    lines = (f"{entry}: {', '.join(each.nodes)}" for entry, each in zip(entries, kernels, strict=True))
    return texts, tuple(lines)


def _multiples(definition: Definition, workload: Mapping[str, Any]) -> Samples:
    """Samples for a reference that takes multiples of something only: those of its workload, where they are small."""
    factors = samples_of(definition.free, first=2)
    axes = [{name: workload["axes"][name] * each[name] for name in definition.free} for each in factors]
    known = [*definition.inputs.values(), *definition.outputs.values()]
    largest = max(
        math.prod(extents.get(one) or int(one) for one in shape or ())
        for extents in map(definition.extents, axes)
        for shape, _ in known
    )
    return axes if largest <= _MOST_SAMPLED else ()


def _programs(
    definition: Definition, axes: Samples, workload: Mapping[str, Any], data: Mapping[str, bytes]
) -> list[LoweredProgram]:
    with tempfile.TemporaryDirectory(prefix="kernelwright-import-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch) / "definition"
        folder.mkdir()
        for name, content in {REFERENCE: definition.reference.encode(), **data}.items():
            (folder / name).write_bytes(content)
        worker = stack.enter_context(importer_in(Path(scratch)))
        programs = []
        for place, each in enumerate(axes):
            file = folder / f"sample_{place}.py"
            file.write_text(_module(definition, each, workload), encoding="utf-8")
            try:
                graph = import_module(file, importer=worker)
            except SpecError as error:  # of a file that no person has
                raise definition.wrong(error.message, hint="name workloads with smaller tensors") from error
            if len(graph.outputs) != len(definition.outputs):
                raise definition.wrong(
                    f"run gives {len(graph.outputs)} tensors, and there are {len(definition.outputs)} outputs"
                )
            programs.append(lower(graph))
    return programs


def _module(definition: Definition, axes: Mapping[str, int], workload: Mapping[str, Any]) -> str:
    """The reference in KernelBench's form, with inputs at these axes."""
    taken = ", ".join(definition.inputs)
    return f"""import definition
import torch


class Model(torch.nn.Module):
    def forward(self, {taken}):
        return definition.run({taken})


def get_init_inputs():
    return []


def get_inputs():
{inputs_text(definition, axes, workload)}    return [{taken}]
"""


def _text(programs: Sequence[LoweredProgram], sizes: Samples, language: Language, own: Mapping[str, str]) -> str:
    """The template: kernels take the sizes that they use as last arguments."""
    texts = [_renamed(program.text(language), own) for program in programs]
    headers = [parse_header(text, Path(f"program.{language}")) for text in texts]
    body = general_text([strip_header(text) for text in texts], sizes)
    used: dict[str, list[str]] = {}
    starts = [*_KERNEL.finditer(body)]
    pieces, at = [body[: starts[0].start()]], 0
    for place, start in enumerate(starts):
        at = starts[place + 1].start() if place + 1 < len(starts) else len(body)
        inside = body[start.end() : at].rpartition("\n//")[0] if place + 1 < len(starts) else body[start.end() : at]
        used[start[2]] = [name for name in sizes[0] if re.search(rf"\b{name}\b", inside)]
        pieces += [start[1], *(f", const int {name}" for name in used[start[2]]), ") {", body[start.end() : at]]
    return _header(headers, sizes, used).render() + "".join(pieces)


def _header(headers: Sequence[Header], sizes: Samples, used: Mapping[str, list[str]]) -> Header:
    def general(each: Sequence[Expression]) -> str:
        return general_text([one.text for one in each], sizes)

    steps = tuple(
        launch_step(
            step[0].entry, [general(each) for each in zip(*(one.grid for one in step), strict=True)],
            [each.text for each in step[0].block],
            arguments=(*(step[0].arguments or ()), *used[step[0].entry]),
        )
        for step in zip(*(each.steps for each in headers), strict=True)
    )  # fmt: skip
    scratch = tuple(
        scratch_argument(
            each[0].name, each[0].dtype, [general(one) for one in zip(*(its.shape for its in each), strict=True)]
        )
        for each in zip(*(header.scratch for header in headers), strict=True)
    )
    return Header(steps=steps, scratch=scratch)


def _renamed(text: str, own: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda found: own.get(found[0], found[0]), text)


def _refuse_large(
    definition: Definition, programs: Sequence[LoweredProgram], sizes: Samples, names: ProblemNames
) -> None:
    """Indices are `int`, on the workloads as on the samples."""
    for name in programs[0].tensors:
        count = Expression.parse(formula([program.tensors[name].count for program in programs], sizes))
        for workload in definition.workloads:
            number = count.evaluate({own: workload["axes"][axis] for axis, own in names.sizes.items()})
            if isinstance(number, int) and number > MOST_ELEMENTS:
                raise SpecError(
                    f"{definition.name}: a tensor has {number} elements on the workload {workload['uuid']}, "
                    f"expected at most {MOST_ELEMENTS}",
                    hint="leave that workload out",
                    location=Location(definition.file),
                )
