"""A problem from its TOML file, checked as far as the files alone allow.

```
problem = load_problem("silu_and_mul/problem.toml")     # or its folder
```

What depends on the template's parameters (launches, scratch, the kernel's signature) is for `template.load`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from pathlib import Path
from typing import get_args

from kernelwright.errors import SpecError, UsageError
from kernelwright.problem.checks import check_expression, evaluate_on, file_beside, folder_beside, shown_path
from kernelwright.problem.includes import included_files
from kernelwright.problem.load.arguments import argument_bytes, read_arguments, read_tolerances
from kernelwright.problem.load.launches import read_steps
from kernelwright.problem.load.workloads import read_workloads
from kernelwright.problem.model import Argument, Pipe, Problem, ReferenceSpec, SourceSpec, Work, Workload
from kernelwright.problem.options import read_options
from kernelwright.problem.reference_file import check_reference_file
from kernelwright.problem.source_numbers import MOST_NUMBERS, numbers_in_c, numbers_in_options, numbers_in_python
from kernelwright.problem.toml.file import TomlTable, did_you_mean, parse_toml, read_text
from kernelwright.source.language import LANGUAGE_OF_SUFFIX

PROBLEM_FILE_NAME = "problem.toml"

MOST_NAME = 100
"""Letters of a problem's name: file systems take 255 for a file's, and a date or an ending follows."""

MOST_OPERATIONS = 10**18
"""One call does at most so many, as `[work]` says: the fastest device takes a quarter of an hour for them."""

MOST_PASSES = 10**6
"""How many times the bytes of all arguments `[work]` may say that one call moves."""

_KEYS = (
    "name", "kernel", "entry", "reference", "options", "include_paths", "arguments", "launch", "baseline",
    "tolerance", "work", "sizes", "workloads", "assembly",
)  # fmt: skip
_HINTS = {
    "parameters": "declare parameters in the header of the kernel source, not in the problem",
    "constraints": "declare constraints in the header of the kernel source, not in the problem",
    "source": "did you mean 'kernel'?",
    "args": "did you mean 'arguments'?",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def load_problem(path: Path | str) -> Problem:
    """The problem in a TOML file, or in the `problem.toml` of a folder.

    All files that it names lie in its folder, so that copying the folder copies the problem.

    Raises:
        SpecError: something in the file is wrong, with the line and column, or a file is missing.
        UsageError: `path` is no path.
    """
    file = _find_file(path)
    text = read_text(file, what="the problem file")
    document = parse_toml(text, shown_path(file))
    root = document.root
    root.refuse_unknown(_KEYS, what="a problem", hints=_HINTS)
    folder = file.parent
    workloads = read_workloads(root)
    arguments = read_arguments(root, workloads, folder=folder)
    entry = root.text("entry")
    kernel = _read_source(
        root,
        folder=folder,
        entry=entry,
        options=read_options(root) or (),
        include_paths=_read_include_paths(root, folder=folder) or (),
    )
    baseline = _read_baseline(root.table("baseline"), kernel, folder=folder)
    reference = _read_reference(root, folder=folder)
    problem = Problem(
        name=_read_name(root, folder),
        file=file,
        kernel=kernel,
        baseline=baseline,
        reference=reference,
        arguments=arguments,
        workloads=workloads,
        tolerances=read_tolerances(root, arguments),
        work=_read_work(root.table("work"), workloads, arguments),
        allows_assembly=root.flag("assembly") or False,
        numbers=_numbers_of(baseline or kernel, reference.file),
    )
    _refuse_misspelt_size(root, problem)
    return problem


def _numbers_of(original: SourceSpec, reference: Path) -> tuple[float, ...]:
    """What the original's options, both files and their headers name, in order; a file of tables names none.

    Who reads a file says if it cannot be read.
    """
    found = numbers_in_options(original.options)
    for file in _files_of(original, reference):
        with contextlib.suppress(OSError):
            text = file.read_text(encoding="utf-8", errors="replace")
            named = numbers_in_python(text) if file.suffix == ".py" else numbers_in_c(text)
            found = found | named if len(found | named) <= MOST_NUMBERS else found
    return tuple(sorted(found))


def _files_of(original: SourceSpec, reference: Path) -> tuple[Path, ...]:
    """The original, the reference, then what they include."""
    files = dict.fromkeys((original.file, reference))
    for file in tuple(files):
        with contextlib.suppress(OSError, SpecError):
            if file.suffix != ".py":
                text = file.read_text(encoding="utf-8", errors="replace")
                files.update(dict.fromkeys(included_files(file, text, original.include_paths)))
    return tuple(files)


def _find_file(path: Path | str) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"the problem is {path!r}, expected a path: its TOML file or its folder")
    if "\0" in str(path):
        raise SpecError(f"the problem's path {str(path)!r} holds a NUL character")
    given = Path(path)
    file = given.absolute()
    if file.is_dir():
        file = file / PROBLEM_FILE_NAME
        if not file.exists():
            raise SpecError(
                f"the folder {given} holds no {PROBLEM_FILE_NAME}",
                hint="write one with `kernelwright init KERNEL_SOURCE`",
            )
    elif file.suffix in LANGUAGE_OF_SUFFIX and file.exists():
        raise SpecError(
            f"{given} is a kernel source, expected a problem file or folder",
            hint=f"write a problem for it with `kernelwright init {shlex.quote(str(given))}`",
        )
    return file


def _read_name(root: TomlTable, folder: Path) -> str:
    name = root.text("name")
    if name is None:
        folder_name = re.sub(r"[^A-Za-z0-9_.-]+", "_", folder.name).lstrip("_.-")
        return folder_name[:MOST_NAME] or "problem"
    if not _NAME.fullmatch(name):
        raise root.error(
            "name",
            message=f"the problem's name {name!r} cannot name a run folder",
            hint="use letters, digits, `_`, `-` and `.`, starting with a letter or digit",
        )
    if len(name) > MOST_NAME:
        raise root.error(
            "name",
            message=f"the problem's name has {len(name)} letters: files and folders are named by it",
            hint=f"use at most {MOST_NAME}",
        )
    return name


def _read_include_paths(table: TomlTable, *, folder: Path) -> tuple[Path, ...] | None:
    written = table.texts("include_paths")
    if written is None:
        return None
    return tuple(
        folder_beside(table, "include_paths", index, value, folder=folder) for index, value in enumerate(written)
    )


def _read_source(
    table: TomlTable, *, folder: Path, entry: str | None, options: tuple[str, ...], include_paths: tuple[Path, ...]
) -> SourceSpec:
    """The `kernel`, `entry` and launches of a problem or of its `[baseline]`."""
    written = table.text("kernel")
    if written is None:
        raise table.missing("kernel", expected='kernel = "my_kernel.cl", the kernel source beside the problem file')
    file = file_beside(table, "kernel", written, folder=folder, what="kernel source")
    language = LANGUAGE_OF_SUFFIX.get(file.suffix)
    if language is None:
        endings = ", ".join(LANGUAGE_OF_SUFFIX)
        raise table.error(
            "kernel",
            message=f"{written!r} is in no known language; expected a file that ends in {endings}",
        )
    if entry is not None and not entry.strip():
        raise table.error("entry", message="entry is empty, expected the kernel's name")
    return SourceSpec(
        file=file,
        language=language,
        steps=read_steps(table, entry=entry, is_triton=language == "triton"),
        options=options,
        location=table.key_location("kernel"),
        entry=entry,
        entry_location=table.value_location("entry") if "entry" in table else None,
        include_paths=include_paths,
    )


def _read_baseline(table: TomlTable | None, kernel: SourceSpec, *, folder: Path) -> SourceSpec | None:
    """The `[baseline]`; what it does not say is as for the kernel, so that both get the same flags."""
    if table is None:
        return None
    table.refuse_unknown(("kernel", "entry", "options", "include_paths", "launch"), what="the baseline")
    options, include_paths = read_options(table), _read_include_paths(table, folder=folder)
    return _read_source(
        table,
        folder=folder,
        entry=table.text("entry") or kernel.entry,
        options=kernel.options if options is None else options,
        include_paths=kernel.include_paths if include_paths is None else include_paths,
    )


def _read_reference(root: TomlTable, *, folder: Path) -> ReferenceSpec:
    form = 'reference = "reference.py:function"'
    written = root.text("reference")
    if written is None:
        raise root.missing("reference", expected=form)
    name, colon, function = written.rpartition(":")
    if not colon or not name or not function.isidentifier():
        raise root.error(
            "reference",
            message=f"cannot read reference {written!r}, expected a Python or C file and a function, or a kernel "
            f'source and its kernel: {form}, "reference.h:function", "original.cl:kernel"',
        )
    file = file_beside(root, "reference", name, folder=folder, what="reference file")
    spec = ReferenceSpec(file, function, root.value_location("reference"))
    check_reference_file(spec)
    return spec


def _read_work(table: TomlTable | None, workloads: tuple[Workload, ...], arguments: tuple[Argument, ...]) -> Work:
    if table is None:
        return Work()
    hints = {"flops": "did you mean 'operations'?"}
    table.refuse_unknown(("operations", "bytes", "pipe"), what="[work]", hints=hints)
    work = Work(table.expression("operations"), table.expression("bytes"), _read_pipe(table))
    for key, expression in (("operations", work.operations), ("bytes", work.bytes)):
        if expression is None:
            continue
        check_expression(expression, workloads[0].sizes, what=f"work.{key}")
        for workload in workloads:
            value = evaluate_on(expression, workload.sizes, what=f"work.{key}", workload=workload)
            if isinstance(value, bool | str) or not value >= 0:
                raise table.error(
                    key,
                    message=f"work.{key} is {value!r} on workload {workload.name!r}, expected at least 0",
                )
            if key == "operations" and value > MOST_OPERATIONS:
                raise table.error(
                    key,
                    message=f"work.operations is {_rough(value)} on workload {workload.name!r}, more than the "
                    f"{MOST_OPERATIONS:.0e} that a device does in minutes",
                    hint="say how many operations one call does, in sizes",
                )
            held = sum(argument_bytes(each, workload) for each in arguments)
            if key == "bytes" and value > MOST_PASSES * max(held, 1):
                raise table.error(
                    key,
                    message=f"work.bytes is {_rough(value)} on workload {workload.name!r}, more than "
                    f"{MOST_PASSES:,} times the {held:,} bytes of all arguments",
                    hint="say how many bytes one call must read and write, in sizes",
                )
    return work


def _rough(value: float) -> str:
    """A number in few digits, however many it has."""
    digits = len(str(int(value))) if isinstance(value, int) else 0
    return f"{value:.3g}" if digits < 300 else f"about 1e+{digits - 1}"


def _read_pipe(table: TomlTable) -> Pipe | None:
    written = table.text("pipe")
    if written is None:
        return None
    known: dict[str, Pipe] = {pipe: pipe for pipe in get_args(Pipe)}
    if written not in known:
        raise table.error("pipe", message=f"{written!r} is no arithmetic pipe; known are {', '.join(known)}")
    return known[written]


def _refuse_misspelt_size(root: TomlTable, problem: Problem) -> None:
    """A size that nothing here uses and that is nearly `weight` or `name` is one of them, misspelt."""
    expressions = [*(extent for argument in problem.arguments for extent in argument.shape)]
    expressions += [argument.value for argument in problem.arguments if argument.value is not None]
    used = frozenset[str]().union(*(expression.names for expression in expressions))
    for index, table in enumerate(root.tables("workloads") or ()):
        for key in table:
            if key in ("name", "weight") or key in used:
                continue
            hint = did_you_mean(key, ("name", "weight"))
            if hint and len(key) >= 4:
                raise SpecError(
                    f"unknown key {key!r} in workloads[{index}]: no shape or scalar uses a size of that name",
                    hint=hint,
                    location=table.key_location(key),
                )
