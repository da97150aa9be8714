"""A definition to the files of a problem: the one place that both suites come in by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.errors import KernelwrightError, MissingDependency
from kernelwright.modules.exchange.cuda_solution import cuda_problem
from kernelwright.modules.exchange.definition import Definition, read_definition
from kernelwright.modules.exchange.inputs import (
    REFERENCE,
    ProblemNames,
    arguments_text,
    data_files,
    kept_workloads,
    names_of,
    reference_text,
    workloads_text,
)
from kernelwright.modules.exchange.lowered import lowered_texts
from kernelwright.modules.exchange.triton_solution import KERNEL, triton_problem
from kernelwright.problem.toml.writing import inline_toml
from kernelwright.source.triton.reading import defines_triton

_PROGRAMS = {"opencl": "program.cl", "cuda": "program.cu"}
_CUDA_KERNEL = "kernel.cu"


class _Kernel(NamedTuple):
    """What is tuned: a solution's kernel, or the definition lowered."""

    files: Mapping[str, bytes]
    keys: tuple[str, ...]
    """Lines at the top of `problem.toml`."""
    arguments: tuple[str, ...]
    launch: tuple[str, ...]
    called: Mapping[str, str] | None
    """By the definition's tensor, the argument; None: as `ProblemNames` says."""
    lines: tuple[str, ...]
    """For people."""


def import_definition(
    path: Path, others: tuple[Path, ...] = ()
) -> tuple[str, dict[str, bytes], tuple[str, ...], tuple[str, ...]]:
    """A name, by path the files of the problem, what its kernels are, and what a person must know of it.

    Args:
        path: the definition, as `read_definition` takes it.
        others: workloads and solutions; a solution that is named must be the baseline, one that lies beside may be.

    Raises:
        SpecError, ReferenceFailed: no problem can be made of it; the message says why.
    """
    definition = read_definition(path, others)
    kept, notes = kept_workloads(definition)
    names = names_of(definition)
    data = data_files(definition, kept[0])
    is_named = any(each.suffix == ".json" for each in others)
    kernel, why = _kernel(definition, names, kept[0], data, is_named=is_named)
    is_triton = defines_triton(definition.reference, definition.file)
    files = {
        "problem.toml": _problem_text(definition, names, kernel, kept).encode(),
        "reference.py": reference_text(definition, names, kept, kernel.called, is_triton=is_triton).encode(),
        REFERENCE: definition.reference.encode(),
        **kernel.files,
        **data,
    }
    return _safe(definition.name), files, kernel.lines, (*notes, *why)


def _kernel(
    definition: Definition, names: ProblemNames, workload: Mapping[str, Any], data: Mapping[str, bytes], *,
    is_named: bool,
) -> tuple[_Kernel, list[str]]:  # fmt: skip
    """The first solution that can be read, else the reference lowered; and why others are not it."""
    why: list[str] = []
    solutions = [*definition.solutions]
    if not solutions and defines_triton(definition.reference, definition.file):
        solutions = [_as_solution(definition)]
    for solution in solutions:
        try:
            return _of_solution(definition, names, solution, workload), why
        except MissingDependency:
            raise
        except KernelwrightError as error:
            if is_named:
                raise
            why.append(f"the solution {solution['name']} is not the baseline: {error.message}")
    if defines_triton(definition.reference, definition.file):
        return _of_solution(definition, names, _as_solution(definition), workload), why
    texts, lines = lowered_texts(definition, names, workload, data)
    sizes = (f'{own} = {{ role = "scalar", dtype = "int32", value = "{own}" }}' for own in names.sizes.values())
    return _Kernel(
        {_PROGRAMS[language]: text.encode() for language, text in texts.items()},
        (f'kernel = "{_PROGRAMS["opencl"]}"  # for CUDA: "{_PROGRAMS["cuda"]}"',),
        (*arguments_text(definition, names, workload), *sizes), (), None, lines,
    ), why  # fmt: skip


def _as_solution(definition: Definition) -> Mapping[str, Any]:
    """A reference that launches a Triton kernel itself."""
    return {
        "name": "the reference", "languages": ["triton"], "entry": REFERENCE, "function": "run",
        "texts": {REFERENCE: definition.reference}, "passes_outputs": False,
    }  # fmt: skip


def _of_solution(
    definition: Definition, names: ProblemNames, solution: Mapping[str, Any], workload: Mapping[str, Any]
) -> _Kernel:
    lines = (f"baseline: {solution['name']}, in {', '.join(solution['languages'])}",)
    if solution["entry"].endswith(".py"):
        text, entry, arguments, called = triton_problem(definition, names, solution, workload)
        keys = (f'kernel = "{KERNEL}"', f'entry = "{entry}"')
        return _Kernel({KERNEL: text.encode()}, keys, _lines(arguments), (), called, lines)
    text, entry, arguments, launch, called = cuda_problem(definition, names, solution, workload)
    keys = (f'kernel = "{_CUDA_KERNEL}"', f'entry = "{entry}"')
    return _Kernel({_CUDA_KERNEL: text.encode()}, keys, _lines(arguments), launch, called, lines)


def _lines(arguments: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name} = {text}" for name, text in arguments.items())


def _problem_text(
    definition: Definition, names: ProblemNames, kernel: _Kernel, kept: Sequence[Mapping[str, Any]]
) -> str:
    return "\n".join(
        [
            f"# The definition {_safe(definition.name)}.",
            f"name = {inline_toml(_safe(definition.name))}",
            *kernel.keys,
            'reference = "reference.py:reference"',
            "",
            "[arguments]",
            *kernel.arguments,
            "",
            *(("[launch]", *kernel.launch, "") if kernel.launch else ()),
            *workloads_text(definition, names, kept),
        ]
    )


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip("_.-") or "definition"
