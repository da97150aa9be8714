"""`init`: a problem folder from a kernel's signature."""

from __future__ import annotations

from pathlib import Path

import typer

from kernelwright.errors import UsageError
from kernelwright.refactor.scaffold import scaffold_problem


def run_init(source: Path, *, entry: str | None, out: Path | None, is_forced: bool) -> None:
    """Write the scaffold, all files or none."""
    scaffold = scaffold_problem(source, entry=entry)
    folder = out or Path(source.stem)
    existing = [name for name in scaffold.files if (folder / name).exists()]
    if existing and not is_forced:
        raise UsageError(
            f"{folder} already holds {', '.join(existing)}", hint="choose another --out, or overwrite with --force"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in scaffold.files.items():
        (folder / name).write_text(text, encoding="utf-8")
        typer.echo(folder / name)
    typer.echo(f"next: fill in {folder}/reference.py and {folder}/problem.toml, then: kernelwright tune {folder}")
