"""`init --example`: the examples that come with the package, listed or written out."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import typer

from kernelwright.cli.commands.infer import write_new
from kernelwright.cli.words import is_quiet
from kernelwright.errors import UsageError
from kernelwright.examples import example_folder, example_names


def run_examples(name: str | None, *, entry: str | None, out: Path | None, is_forced: bool, is_json: bool) -> None:
    """Write one example out, or list all.

    Args:
        name: of the example; None: list them.
        entry: what `--entry` said, which has no meaning here.
        out: the folder; None: the last part of the name.
        is_forced: whether to overwrite.
        is_json: whether to print one JSON document.

    Raises:
        UsageError: there is no such example, or its files are there already.
    """
    if entry is not None:
        raise UsageError(f"--entry {entry} has no effect with --example", hint="leave one of them out")
    if name is None:
        _print_names(is_json=is_json)
        return
    source = example_folder(name)
    folder = out or Path(source.name)
    paths = sorted(path for path in source.iterdir() if path.is_file())
    written = write_new(folder, {path.name: path.read_bytes() for path in paths}, is_forced=is_forced)
    again = f"kernelwright optimize {shlex.quote(str(folder))}"
    if is_json:
        document = {"folder": str(folder), "files": [str(path) for path in written], "notes": [], "next": again}
        typer.echo(json.dumps(document, indent=2))
        return
    for path in written:
        typer.echo(path)
    if not is_quiet():
        typer.echo(f"next: {again}")


def _print_names(*, is_json: bool) -> None:
    examples = {name: _about(name) for name in example_names()}
    if is_json:
        typer.echo(json.dumps([{"name": name, "about": about} for name, about in examples.items()], indent=2))
        return
    width = max(map(len, examples))
    for name, about in examples.items():
        typer.echo(f"{name.ljust(width)}  {about}".rstrip())


def _about(name: str) -> str:
    """The first sentence of the example's page, up to a colon."""
    text = (example_folder(name) / "README.md").read_text(encoding="utf-8")
    first = next((each for each in text.split("\n\n") if not each.startswith("#")), "")
    return re.split(r"[.:](?: |$)", " ".join(first.split()))[0]
