"""`init`: a problem folder from a kernel's signature."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from kernelwright.cli.words import is_quiet
from kernelwright.errors import KernelwrightError, Location, SpecError, UsageError
from kernelwright.export.autotuning.t1 import import_t1
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.source_scan import mask_comments
from kernelwright.problem.toml.file import read_text
from kernelwright.scaffold.declared_space import DeclaredArgument, DeclaredSpace
from kernelwright.scaffold.problem_folder import Scaffold, scaffold_problem
from kernelwright.store.files import explain
from kernelwright.template.load import load_baseline, load_template, problem_files

_QUOTED_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def run_init(source: Path, *, entry: str | None, out: Path | None, is_forced: bool, is_json: bool = False) -> None:
    """Write the scaffold, all files or none, once it has been seen to load; say what was left out.

    Args:
        source: a kernel, or a T1 file that names one and declares its space.
        entry: which kernel; None: the only one, or the one that the T1 file names.
        out: the folder; None: the kernel's name.
        is_forced: whether to overwrite.
        is_json: whether to print one JSON document.
    """
    if source.suffix == ".json":
        space, source, named = read_space(source)
        scaffold = scaffold_problem(source, entry=named if entry is None else entry, space=space)
    else:
        scaffold = scaffold_problem(source, entry=entry)
    files, notes = dict(scaffold.files), list(scaffold.notes)
    _add_headers(source, files, notes)
    _check_loads(source, scaffold, files)
    folder = out or Path(source.stem)
    written = write_new(folder, files, is_forced=is_forced)
    again = f"kernelwright optimize {shlex.quote(str(folder))}"
    if is_json:
        document = {"folder": str(folder), "files": [str(path) for path in written], "notes": notes, "next": again}
        typer.echo(json.dumps(document, indent=2))
        return
    for path in written:
        typer.echo(path)
    if is_quiet():
        return
    for note in notes:
        typer.echo(f"note: {note}")
    typer.echo(f"next: fill in {folder}/reference.py and {folder}/problem.toml, then: {again}")


def write_new(folder: Path, files: Mapping[str, str], *, is_forced: bool) -> list[Path]:
    """Write all files into a folder, or none; their paths.

    Raises:
        UsageError: one is there already and `is_forced` is false, or the folder cannot be written.
    """
    try:
        existing = [name for name in files if (folder / name).exists()]
        if existing and not is_forced:
            raise UsageError(
                f"{folder} already holds {', '.join(existing)}", hint="choose another --out, or overwrite with --force"
            )
        _write(folder, files)
    except OSError as error:
        told = explain(error, "write the problem into", folder)
        raise UsageError(told.message, hint=f"say another --out, or {told.hint}") from error
    return [folder / name for name in files]


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


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())  # bytes, so that line ends stay as they are


def _add_headers(source: Path, files: dict[str, str], notes: list[str]) -> None:
    """Add the headers beside the source that it includes by quotes, and those that they include."""
    folder = source.parent.resolve()
    waiting = [source.resolve()]
    seen = set(waiting)
    while waiting:
        current = waiting.pop()
        text = read_text(current, what="the kernel source" if len(seen) == 1 else "the header")
        for name in _QUOTED_INCLUDE.findall(_without_comments(text)):
            path = Path(os.path.normpath(current.parent / name))
            if path in seen:
                continue
            if not path.is_relative_to(folder) or not path.is_file():
                notes.append(f'{current.name} includes "{name}", which is not beside it: copy it into the folder')
                continue
            seen.add(path)
            waiting.append(path)
            files[path.relative_to(folder).as_posix()] = read_text(path, what="the header")


def _without_comments(text: str) -> str:
    """Lines whose directive is not inside a comment; the name in quotes stays readable."""
    masked = mask_comments(text).splitlines()
    kept = zip(text.splitlines(), masked, strict=False)
    return "\n".join(line for line, code in kept if re.match(r"[ \t]*#[ \t]*include\b", code))


def _check_loads(source: Path, scaffold: Scaffold, files: dict[str, str]) -> None:
    """Refuse, before anything is written, what would not load: a first problem with an error in it helps nobody.

    Raises:
        SpecError: it does not load; the message says why.
    """
    with tempfile.TemporaryDirectory(prefix="kernelwright-init-") as staged:
        folder = Path(staged)
        _write(folder, files)
        try:
            problem = load_problem(folder)
            template = load_template(problem)
            problem_files(problem, template, load_baseline(problem, template))
        except KernelwrightError as error:
            message = error.message.replace(f"{folder}{os.sep}", "")
            raise SpecError(
                f"no problem can be written for {scaffold.entry!r} of {source}: {message}",
                hint=f"{error.hint}; or write problem.toml by hand" if error.hint else "write problem.toml by hand",
            ) from error
