"""`init`: a problem folder from a plain kernel, or from a T1 file that declares a space for one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from kernelwright.cli.infer import KernelWords, five_lines, infer_words, write_problem
from kernelwright.errors import Location, SpecError, UsageError
from kernelwright.export.t1 import import_t1
from kernelwright.infer.problem_files import check_loads, files_of, headers_of
from kernelwright.refactor.declared_space import DeclaredArgument, DeclaredSpace
from kernelwright.refactor.scaffold import scaffold_problem


def run_init(said: KernelWords, *, is_forced: bool) -> None:
    """Write the problem, all files or none, once it has been seen to load; say what was inferred and left out.

    Args:
        said: a kernel with what is known of it, or a T1 file that names one and declares its space.
        is_forced: whether to overwrite.
    """
    if said.source.suffix == ".json":
        _init_space(said, is_forced=is_forced)
        return
    inferred = infer_words(said, asks=False)
    files, absent = files_of(inferred)
    check_loads(inferred.file, inferred.entry, files)
    folder = said.out or Path(inferred.file.stem)
    _write(folder, files, is_forced=is_forced)
    for line in five_lines(inferred, folder):
        typer.echo(line)
    _notes((*inferred.notes, *absent))
    again = shlex.quote(str(folder))
    typer.echo(f"next: correct what says guess in {folder}/problem.toml, then: kernelwright optimize {again}")


def _init_space(said: KernelWords, *, is_forced: bool) -> None:
    """A template with the parameters that a T1 file declares, and a reference to fill in."""
    if said.words or said.grid or said.block:
        raise UsageError(
            f"words, --grid and --block are for a plain kernel; {said.source.name} says them itself",
            hint="leave them out",
        )
    space, source, named = read_space(said.source)
    scaffold = scaffold_problem(source, entry=named if said.entry is None else said.entry, space=space)
    headers, absent = headers_of(source)
    files = {name: text.encode() for name, text in {**scaffold.files, **headers}.items()}
    check_loads(source, scaffold.entry, files)
    folder = said.out or Path(source.stem)
    _write(folder, files, is_forced=is_forced)
    _notes((*scaffold.notes, *absent))
    again = shlex.quote(str(folder))
    typer.echo(f"next: fill in {folder}/reference.py and {folder}/problem.toml, then: kernelwright tune {again}")


def _write(folder: Path, files: dict[str, bytes], *, is_forced: bool) -> None:
    write_problem(folder, files, is_forced=is_forced)
    for name in files:
        typer.echo(folder / name)


def _notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        typer.echo(f"note: {note}")


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
