"""`init`: a problem folder from a kernel's signature."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import typer

from kernelwright.errors import KernelwrightError, SpecError, UsageError
from kernelwright.problem.load import load_problem
from kernelwright.problem.source_scan import mask_comments
from kernelwright.problem.toml_file import read_text
from kernelwright.refactor.scaffold import Scaffold, scaffold_problem
from kernelwright.template.load import load_baseline, load_template, problem_files

_QUOTED_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def run_init(source: Path, *, entry: str | None, out: Path | None, is_forced: bool) -> None:
    """Write the scaffold, all files or none, once it has been seen to load; say what was left out."""
    scaffold = scaffold_problem(source, entry=entry)
    files, notes = dict(scaffold.files), list(scaffold.notes)
    _add_headers(source, files, notes)
    _check_loads(source, scaffold, files)
    folder = out or Path(source.stem)
    existing = [name for name in files if (folder / name).exists()]
    if existing and not is_forced:
        raise UsageError(
            f"{folder} already holds {', '.join(existing)}", hint="choose another --out, or overwrite with --force"
        )
    _write(folder, files)
    for name in files:
        typer.echo(folder / name)
    for note in notes:
        typer.echo(f"note: {note}")
    typer.echo(f"next: fill in {folder}/reference.py and {folder}/problem.toml, then: kernelwright tune {folder}")


def _write(folder: Path, files: dict[str, str]) -> None:
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
