"""What a reference's Python file holds, found without running it: the parent process never executes it."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright.errors import Location, ReferenceFailed, SpecError
from kernelwright.problem.c_reference import c_parameters
from kernelwright.problem.checks import shown_path
from kernelwright.problem.includes import includes_in
from kernelwright.problem.model import ReferenceSpec
from kernelwright.problem.source_scan import scan_kernels
from kernelwright.problem.toml.file import did_you_mean, read_text
from kernelwright.source.language import LANGUAGE_OF_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_reference_file(spec: ReferenceSpec) -> None:
    """Refuse a reference file that cannot be parsed or does not define the function.

    Raises:
        ReferenceFailed: a syntax error, or a name that is no function, with its line.
        SpecError: the file has no such function; the message lists what it has.
    """
    if spec.is_kernel:
        _check_kernel(spec)
        return
    if spec.is_c:
        c_parameters(spec)
        return
    tree = parse_python(spec.file)
    names = list(_bound_names(tree.body))
    if spec.function in names or "*" in names:
        _refuse_no_function(tree, spec)
        return
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    listed = ", ".join(functions) or "no functions"
    raise SpecError(
        f"{spec.file.name} defines no function {spec.function!r}; it has {listed}",
        hint=did_you_mean(spec.function, names) or f"add `def {spec.function}(...)` to {spec.file.name}",
        location=spec.location,
    )


_LITERALS = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr)


def _check_kernel(spec: ReferenceSpec) -> None:
    """Refuse a kernel source that does not define the kernel.

    Raises:
        SpecError: it does not; the message lists what it has.
    """
    text = read_text(spec.file, what="the reference's kernel source", location=spec.location)
    names = list(dict.fromkeys(each.name for each in scan_kernels(text, LANGUAGE_OF_SUFFIX[spec.file.suffix])))
    if spec.function not in names:
        raise SpecError(
            f"{spec.file.name} defines no kernel {spec.function!r}; it has {', '.join(names) or 'no kernels'}",
            hint=did_you_mean(spec.function, names) or "name one of them, or a Python file and a function",
            location=spec.location,
        )


def _refuse_no_function(tree: ast.Module, spec: ReferenceSpec) -> None:
    """Refuse a name that is bound last to a class or a literal; what else is bound, only running it would tell."""
    for node in reversed(tree.body):
        match node:
            case ast.FunctionDef(name=name) if name == spec.function:
                return
            case ast.ClassDef(name=name) if name == spec.function:
                what = "a class"
            case ast.AsyncFunctionDef(name=name) if name == spec.function:
                what = "an async function"
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == spec.function:
                if not isinstance(value, _LITERALS):
                    return
                what = f"not a function: {ast.unparse(value)[:40]}"
            case _:
                continue
        raise ReferenceFailed(
            f"{spec.function!r} in {spec.file.name} is {what}",
            hint=f"write def {spec.function}(...) that returns the outputs",
            location=Location(shown_path(spec.file), node.lineno),
        )


def parse_python(file: Path) -> ast.Module:
    """The syntax tree of a Python file.

    Raises:
        ReferenceFailed: a syntax error, with its line and column.
    """
    text = read_text(file, what="the reference file")
    try:
        return ast.parse(text, str(file))
    except SyntaxError as error:
        raise syntax_failure(file, error) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ReferenceFailed(f"cannot parse: {error}", location=Location(shown_path(file))) from None


def syntax_failure(file: Path, error: SyntaxError) -> ReferenceFailed:
    """The complaint about a syntax error in the user's file (or in one that it imports)."""
    place = Path(error.filename) if error.filename else file
    line = (error.text or "").rstrip()
    line = line if len(line) <= 120 else line[:117] + "..."
    shown = f"\n    {line.strip()}" if line else ""
    return ReferenceFailed(
        f"Python syntax error: {error.msg}{shown}",
        location=Location(shown_path(place), error.lineno or 0, error.offset or 0),
    )


def reference_files(spec: ReferenceSpec) -> tuple[Path, ...]:
    """The reference's file and the modules beside it that it imports, directly or through one another."""
    if spec.is_kernel:
        return (spec.file,)
    if spec.is_c:
        return _with_headers(spec.file)
    folder = spec.file.parent
    found: dict[Path, None] = {}
    waiting = [spec.file]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found[file] = None
        for name in _imported_modules(parse_python(file)):
            module = folder.joinpath(*name.split("."))
            parents = [folder.joinpath(*name.split(".")[:depth]) for depth in range(1, name.count(".") + 1)]
            candidates = [module.with_name(module.name + ".py"), module / "__init__.py"]
            candidates += [parent / "__init__.py" for parent in parents]
            waiting += [candidate for candidate in candidates if candidate.is_file()]
    return tuple(found)


def _with_headers(file: Path) -> tuple[Path, ...]:
    """A C file and what it includes in quotes from its folder, directly or through one another."""
    found: dict[Path, None] = {}
    waiting = [file]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found[current] = None
        text = read_text(current, what="the reference's C source")
        named = [each.name for each in includes_in(text) if each.is_quoted]
        inside = [Path(os.path.normpath(current.parent / name)) for name in named]
        waiting += [each for each in inside if each.is_relative_to(file.parent) and each.is_file()]
    return tuple(found)


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that the statements of a module bind at its top level."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name
            case ast.Import() | ast.ImportFrom():
                for alias in statement.names:
                    yield alias.asname or alias.name.partition(".")[0]
            case ast.Assign():
                for target in statement.targets:
                    yield from _target_names(target)
            case ast.AnnAssign():
                yield from _target_names(statement.target)
            case ast.If() | ast.Try() | ast.With():
                for block in _blocks(statement):
                    yield from _bound_names(block)


def _blocks(statement: ast.If | ast.Try | ast.With) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        yield handler.body


def _target_names(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id
