"""`init`: a problem folder from a plain kernel, or from a T1 file that declares a space for one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from kernelwright.cli.commands.infer import KernelWords, five_lines, infer_words, write_new
from kernelwright.cli.words import is_quiet
from kernelwright.errors import Location, SpecError, UsageError
from kernelwright.export.autotuning.t1 import import_t1
from kernelwright.infer.finite import with_finite_results
from kernelwright.infer.inference import split_kernel
from kernelwright.infer.model import Inferred
from kernelwright.infer.problem_files import check_loads, files_of, headers_of
from kernelwright.infer.program import infer_program
from kernelwright.modules.algebra import rewritten
from kernelwright.modules.exchange.definition import is_definition_file
from kernelwright.modules.exchange.importing import import_definition
from kernelwright.modules.importing import import_module
from kernelwright.modules.library import LIBRARY
from kernelwright.modules.lowering import lower
from kernelwright.modules.problem_files import files_of as module_files
from kernelwright.modules.triton.from_plain import in_triton
from kernelwright.modules.triton.importing import is_triton_file, watch_call
from kernelwright.modules.triton.problem_files import files_of as triton_files
from kernelwright.problem.toml.file import did_you_mean
from kernelwright.scaffold.declared_space import DeclaredArgument, DeclaredSpace
from kernelwright.scaffold.problem_folder import scaffold_problem


def run_init(said: KernelWords, *, is_forced: bool, is_json: bool = False, suite: str | None = None) -> None:
    """Write the problem, all files or none, once it has been seen to load; say what was inferred and left out.

    Args:
        said: a kernel with what is known of it, or a T1 file that names one and declares its space.
        is_forced: whether to overwrite.
        is_json: whether to print one JSON document.
        suite: of benchmarks, whose program the source is.
    """
    if said.triton and suite not in _SUITES and split_kernel(str(said.source))[0].suffix not in (".cu", ".cl"):
        raise UsageError(f"--triton is for a plain .cu or .cl kernel, and {said.source} is none", hint="leave it out")
    if suite in DEFINITION_SUITES or (suite is None and is_definition_file(said.source)):
        _init_definition(said, is_forced=is_forced, is_json=is_json)
        return
    if suite is None and said.source.name.endswith((".json", ".json.gz")):
        _init_space(said, is_forced=is_forced, is_json=is_json)
        return
    if suite is None and is_triton_file(said.source):
        _init_triton(said, is_forced=is_forced, is_json=is_json)
        return
    if said.call is not None:
        raise UsageError(f"--call is for a Triton file, and {said.source} is none", hint="leave it out")
    if suite is None and said.source.suffix == ".py":
        _init_module(said, is_forced=is_forced, is_json=is_json)
        return
    for flag, is_said in (("--library", said.library), ("--algebra", said.algebra)):
        if is_said:
            raise UsageError(f"{flag} is for a PyTorch module, and {said.source} is none", hint="leave it out")
    inferred = with_finite_results(infer_words(said, asks=False) if suite is None else _of_suite(said, suite))
    files, absent = files_of(inferred)
    if said.triton:
        files = in_triton(files, inferred.file)
    check_loads(inferred.file, inferred.entry, files)
    folder = said.out or Path(inferred.file.stem)
    written = write_new(folder, files, is_forced=is_forced)
    lines = five_lines(inferred, folder)
    advice = f"correct what says guess in {folder}/problem.toml"
    _tell(folder, written, lines, (*inferred.notes, *absent), advice, is_json=is_json)


_SUITES = {"polybench": (".cl", ".cu"), "hecbench": (".cu", ".hip")}
"""Files with the kernels, the preferred ones first."""
DEFINITION_SUITES = ("flashinfer-trace", "sol-execbench")
"""Suites of definitions, which one adaptor reads."""


def _of_suite(said: KernelWords, suite: str) -> Inferred:
    if suite not in _SUITES:
        raise UsageError(
            f"--from {suite!r} is no suite that is known",
            hint=did_you_mean(suite, [*_SUITES, *DEFINITION_SUITES])
            or f"say {', '.join((*_SUITES, *DEFINITION_SUITES))}",
        )
    if said.words or said.grid or said.block or said.entry:
        raise UsageError(
            "words, --entry, --grid and --block are for one kernel; a program says them itself", hint="leave them out"
        )
    if not said.source.exists():
        raise SpecError(f"{said.source} is not there", hint="name a program's folder, or its file with the kernels")
    return infer_program(said.source, _SUITES[suite])


def _init_space(said: KernelWords, *, is_forced: bool, is_json: bool) -> None:
    """A template with the parameters that a T1 file declares, and a reference to fill in."""
    if said.words or said.grid or said.block:
        raise UsageError(
            f"words, --grid and --block are for a plain kernel; {said.source.name} says them itself",
            hint="leave them out",
        )
    space, source, named = read_space(said.source)
    scaffold = scaffold_problem(source, space, entry=named if said.entry is None else said.entry)
    headers, absent = headers_of(source)
    files = {name: text.encode() for name, text in {**scaffold.files, **headers}.items()}
    check_loads(source, scaffold.entry, files)
    folder = said.out or Path(source.stem)
    written = write_new(folder, files, is_forced=is_forced)
    advice = f"fill in {folder}/reference.py and {folder}/problem.toml"
    _tell(folder, written, (), (*scaffold.notes, *absent), advice, is_json=is_json)


def _init_module(said: KernelWords, *, is_forced: bool, is_json: bool) -> None:
    """A program for a PyTorch module, with the module as its reference."""
    if said.words or said.grid or said.block or said.entry:
        raise UsageError(
            f"words, --entry, --grid and --block are for a plain kernel; {said.source.name} is a PyTorch module",
            hint="leave them out",
        )
    graph = import_module(said.source, library=said.library)
    graph, algebra = rewritten(graph) if said.algebra else (graph, ())
    program = lower(graph, library=LIBRARY if said.library else ())
    files = module_files(said.source.stem, said.source.read_bytes(), graph, program, algebra=algebra)
    check_loads(said.source, program.entries[0], files)
    folder = said.out or Path(said.source.stem)
    written = write_new(folder, files, is_forced=is_forced)
    lines = tuple(
        f"{entry}: {', '.join(kernel.nodes)}" for entry, kernel in zip(program.entries, program.kernels, strict=True)
    ) + tuple(f"library: {call[-1].name} = {call[-1].op}" for call in program.calls)
    lines += tuple(f"algebra: {label}" for label in algebra)
    advice = f"see whether the inputs in {folder}/problem.toml are drawn as you mean"
    _tell(folder, written, lines, (), advice, is_json=is_json)


def _init_definition(said: KernelWords, *, is_forced: bool, is_json: bool) -> None:
    """The problem of a definition of FlashInfer-Trace or SOL-ExecBench, with its workloads."""
    if said.grid or said.block or said.entry or said.call:
        raise UsageError(
            f"--entry, --grid, --block and --call are for a kernel; {said.source.name} is a definition",
            hint="leave them out; behind the definition stand files with workloads and solutions",
        )
    others = tuple(Path(each) for each in said.words)
    if absent := [each for each in others if not each.is_file() or each.suffix not in (".json", ".jsonl")]:
        raise UsageError(
            f"{absent[0]} is no file with workloads (.jsonl) or a solution (.json)", hint="name files that are there"
        )
    name, files, lines, notes = import_definition(said.source, others)
    check_loads(said.source, name, files)
    folder = said.out or Path(name)
    written = write_new(folder, files, is_forced=is_forced)
    advice = f"leave the workloads in {folder}/problem.toml that matter"
    _tell(folder, written, lines, notes, advice, is_json=is_json)


def _init_triton(said: KernelWords, *, is_forced: bool, is_json: bool) -> None:
    """A template of a Triton kernel, from a call that a worker watches."""
    if said.words or said.grid or said.block or said.entry:
        raise UsageError(
            f"words, --entry, --grid and --block are for a plain kernel; a call of {said.source.name} says them itself",
            hint="leave them out; name the kernel as FILE::KERNEL",
        )
    call = watch_call(said.source, said.call)
    files, notes = triton_files(call)
    check_loads(call.file, call.kernel, files)
    folder = said.out or Path(call.kernel.strip("_") or "kernel")
    written = write_new(folder, files, is_forced=is_forced)
    reference = f"{call.reference['function']} of the file" if call.reference else "the kernel itself, interpreted"
    lines = (f"kernel:    {call.kernel}, watched in one call", f"reference: {reference}")
    advice = f"correct what says guess in {folder}, and put sizes that matter into {folder}/problem.toml"
    _tell(folder, written, lines, notes, advice, is_json=is_json)


def _tell(
    folder: Path, written: Sequence[Path], lines: Sequence[str], notes: Sequence[str], advice: str, *, is_json: bool
) -> None:
    again = f"kernelwright optimize {shlex.quote(str(folder))}"
    if is_json:
        document = {
            "folder": str(folder), "files": [str(path) for path in written], "inferred": list(lines),
            "notes": list(notes), "next": again,
        }  # fmt: skip
        typer.echo(json.dumps(document, indent=2))
        return
    for path in written:
        typer.echo(path)
    if is_quiet():
        return
    for line in (*lines, *(f"note: {note}" for note in notes), f"next: {advice}, then: {again}"):
        typer.echo(line)


def read_space(file: Path) -> tuple[DeclaredSpace, Path, str | None]:
    """What a T1 file declares, the kernel source that it names, and the kernel in it.

    Raises:
        SpecError: it is no T1 file, or its kernel source is not here.
    """
    parameters, constraints, metadata = import_t1(file)
    written = metadata.kernel_file
    candidates = [file.parent / written, file.parent / Path(written).name] if written else []
    source = next((path for path in candidates if path.is_file()), None)
    if source is None:
        raise SpecError(
            f"the kernel source {written!r} is not beside {file.name}" if written else "no KernelFile is named",
            hint="put the source beside the file, or correct KernelFile",
            location=Location(file),
        )
    axes = ("X", "Y", "Z")
    space = DeclaredSpace(
        origin=file.name,
        parameters=parameters,
        constraints=constraints,
        grid=tuple(metadata.global_size.get(axis, "1") for axis in axes),
        block=tuple(metadata.local_size.get(axis, "1") for axis in axes),
        counts_threads=metadata.global_size_type == "OpenCL",
        options=metadata.options,
        arguments=tuple(_declared_argument(each) for each in metadata.arguments),
    )
    return space, source, metadata.kernel_name or None


_ROLES = {"ReadOnly": "input", "WriteOnly": "output"}


def _declared_argument(record: Mapping[str, Any]) -> DeclaredArgument:
    size, value = record.get("Size"), record.get("FillValue")
    is_constant = record.get("FillType") == "Constant" and isinstance(value, int | float)
    is_array = record.get("MemoryType") == "Vector"
    return DeclaredArgument(
        name=str(record.get("Name", "")),
        role=_ROLES.get(str(record.get("AccessType"))) if is_array else None,
        element_count=size if is_array and isinstance(size, int) and size > 0 else None,
        value=value if is_constant and isinstance(value, int | float) else None,
    )
