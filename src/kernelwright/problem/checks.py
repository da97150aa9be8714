"""Checks that problem files and template headers share: names, paths, and the values of expressions."""

from __future__ import annotations

import keyword
import re
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from kernelwright.errors import Location, SpecError
from kernelwright.problem.expressions.syntax import ARITY
from kernelwright.problem.toml.file import TomlTable, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelwright.problem.config import Value
    from kernelwright.problem.expressions.expression import Expression
    from kernelwright.problem.model import Workload

DEVICE_NAMES: tuple[str, ...] = tuple(
    f"device.{name}"
    for name in (
        "max_threads_per_block",
        "max_block_x",
        "max_block_y",
        "max_block_z",
        "max_grid_x",
        "max_grid_y",
        "max_grid_z",
        "shared_memory_per_block",
        "reserved_shared_memory_per_block",
        "warp_size",
        "multiprocessors",
        "global_memory",
        "max_allocation",
        "last_level_cache",
        "registers_per_block",
        "registers_per_thread",
        "compute_capability",
        "max_threads_per_multiprocessor",
        "max_blocks_per_multiprocessor",
        "shared_memory_per_multiprocessor",
        "registers_per_multiprocessor",
    )
)
"""What expressions may ask of a device; a device that does not tell one of them refuses it later."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_C_KEYWORDS = frozenset((
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum",
    "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short",
    "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while",
    "bool", "half", "kernel", "global", "local", "constant", "private", "class", "template", "typename",
    "this", "new", "delete", "operator", "namespace", "using", "true", "false", "main",
))  # fmt: skip


def check_name(name: str, *, what: str, location: Location) -> None:
    """Refuse a name that cannot be used in kernels and in expressions.

    Raises:
        SpecError: it is no C identifier, is reserved in C or Python, or is a word of the expression language.
    """
    if not _IDENTIFIER.fullmatch(name):
        suggestion = re.sub(r"\W+", "_", name).strip("_")
        hint = "use letters, digits and underscores, not starting with a digit"
        if _IDENTIFIER.fullmatch(suggestion):
            hint += f": {suggestion}"
        raise SpecError(f"{what} {name!r} is not an identifier", hint=hint, location=location)
    hint = f"call it {name}_"
    if what == "argument":
        hint += " here: arguments are passed in order, so the kernel may keep its own name"
    if name in ARITY:
        raise SpecError(f"{what} {name!r} is a function of expressions", hint=hint, location=location)
    if name in _C_KEYWORDS or keyword.iskeyword(name) or name == "device":
        raise SpecError(f"{what} {name!r} is a reserved word", hint=hint, location=location)


def shown_path(path: Path) -> Path:
    """`path` as messages show it: relative when it lies under the current folder."""
    try:
        return path.absolute().relative_to(Path.cwd())
    except (ValueError, OSError):
        return path


def file_beside(table: TomlTable, key: str, value: str, *, folder: Path, what: str) -> Path:
    """The existing file that `value`, written under `key`, names inside the problem's `folder`.

    A problem is one folder that can be copied, so paths are relative and stay inside it, links included.

    Raises:
        SpecError: the path is empty, absolute, leads out of the folder by itself or by a link, or names no file.
    """
    location = table.value_location(key)
    if not value.strip():
        raise SpecError(f"{table.label(key)} is empty, expected the path of {what}", location=location)
    path = PurePosixPath(value)
    if path.is_absolute() or _leads_out(path):
        raise SpecError(
            f"{table.label(key)} = {value!r} lies outside the problem's folder",
            hint="copy the file into the problem's folder and write its path relative to it",
            location=location,
        )
    file = folder / path
    if file.is_file():
        if (target := file.resolve()) and not target.is_relative_to(folder.resolve()):
            raise SpecError(
                f"{table.label(key)} = {value!r} is a link to {str(target)!r}, outside the problem's folder",
                hint="copy that file to the link's place, so that copying the folder copies the problem",
                location=location,
            )
        return file
    if file.is_dir():
        raise SpecError(f"{table.label(key)} = {value!r} is a folder, expected {what}", location=location)
    if file.exists():
        raise SpecError(
            f"{table.label(key)} = {value!r} is a device or a pipe, expected {what}",
            hint="put a file there, or name another one",
            location=location,
        )
    near = did_you_mean(file.name, _names_in(file.parent))
    raise SpecError(
        f"{what} {value!r} does not exist",
        hint=near or f"create {shown_path(file)}, or correct the path",
        location=location,
    )


def folder_beside(table: TomlTable, key: str, index: int, value: str, *, folder: Path) -> Path:
    """The existing folder that item `index` of the list under `key` names inside the problem's `folder`.

    Raises:
        SpecError: the path is empty, absolute, leads out of the folder, or names no folder.
    """
    location = table.value_location(key, index)
    label = table.label(key, index)
    path = PurePosixPath(value)
    if not value.strip():
        raise SpecError(
            f"{label} is empty, expected a folder", hint='write "." for the problem\'s own', location=location
        )
    if path.is_absolute() or _leads_out(path):
        raise SpecError(
            f"{label} = {value!r} lies outside the problem's folder",
            hint="copy the headers into the problem's folder, or link the folder there",
            location=location,
        )
    found = folder / path
    if not found.is_dir():
        what = "is a file, expected a folder" if found.exists() else "does not exist"
        near = None if found.exists() else did_you_mean(found.name, _names_in(found.parent))
        raise SpecError(f"{label} = {value!r} {what}", hint=near or "name a folder of headers", location=location)
    return found


def _leads_out(path: PurePosixPath) -> bool:
    depth = 0
    for part in path.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


def _names_in(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def check_expression(expression: Expression, known: Mapping[str, object], *, what: str) -> None:
    """Refuse names that `known` does not have, saying where the expression is used.

    Raises:
        SpecError: an unknown name.
    """
    try:
        expression.check_names(known)
    except SpecError as error:
        raise SpecError(f"{what}: {error.message}", hint=error.hint, location=error.location) from None


def evaluate_extent(
    expression: Expression, names: Mapping[str, Value], *, what: str, workload: Workload, minimum: int = 1
) -> int:
    """The value of a shape's or launch's extent on one workload.

    Raises:
        SpecError: it has no value (a division by zero), or is not an integer of at least `minimum`.
    """
    value = evaluate_on(expression, names, what=what, workload=workload)
    if isinstance(value, bool | str) or value != int(value) or value < minimum:
        raise SpecError(
            f"{what} {expression.text!r} is {value!r} on workload {workload.name!r}, "
            f"expected an integer of at least {minimum}",
            hint="`/` divides exactly; `//` rounds down and ceil_div(a, b) rounds up"
            if isinstance(value, float)
            else None,
            location=expression.location,
        )
    return int(value)


def evaluate_on(expression: Expression, names: Mapping[str, Value], *, what: str, workload: Workload) -> Value:
    """The value of an expression on one workload, with complaints that say which.

    Raises:
        SpecError: it has no value there.
    """
    try:
        return expression.evaluate(names)
    except SpecError as error:
        raise SpecError(
            f"{what}, on workload {workload.name!r}: {error.message}",
            hint=error.hint,
            location=error.location,
        ) from None


NO_NAMES: Mapping[str, object] = MappingProxyType({})
"""For expressions that must be constant."""
