"""The files that a kernel source includes from its problem's folders."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kernelwright.errors import Location, SpecError
from kernelwright.problem.checks import shown_path
from kernelwright.source.lexer import Directive, directives, joined_lines, masked

_INCLUDING = ("include", "include_next", "import")
_NAME = re.compile(r'(?:"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>)')

_SYSTEM_FOLDERS = ("/proc", "/sys")
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True, slots=True)
class _Include:
    """What one `#include` names, or may name by a macro."""

    name: str
    is_quoted: bool
    line: int
    """In the source."""
    is_macro: bool = False
    """It stands in a macro's definition, and an `#include` names some macro."""


@lru_cache(maxsize=64)  # the same few sources are asked about for every candidate
def includes_in(source: str) -> tuple[_Include, ...]:
    """What a source's `#include` directives name, and whether in quotes; not those in comments.

    Where one names a macro, whatever the source's macros without arguments name counts.
    """
    joined = joined_lines(source, with_blanks=True)
    text, code = joined.text, masked(joined.text)

    def named(line: Directive, words: str, *, is_macro: bool) -> Iterator[_Include]:
        """What stands at the beginning of `words`, which end the line."""
        found = _NAME.match(text, line.end - len(words.lstrip()))
        if found is not None:
            number = 1 + text.count("\n", 0, line.start) + bisect_right(joined.places, line.start)
            yield _Include(found["quoted"] or found["angled"], found["quoted"] is not None, number, is_macro)

    lines = tuple(directives(code))
    including = [each for each in lines if each.word in _INCLUDING]
    found = [include for each in including for include in named(each, each.rest, is_macro=False)]
    if any(each.rest.lstrip()[:1].isidentifier() for each in including):
        for each in lines:
            if each.definition is not None and each.definition.parameters is None:
                found += named(each, each.definition.body, is_macro=True)
    return tuple(found)


def included_files(file: Path, source: str, include_paths: Sequence[Path]) -> tuple[Path, ...]:
    """Every file that `source`, which stands in `file`, includes from its own folder or from `include_paths`, sorted.

    Directly or through others, whatever the conditions around the directive; what is found nowhere (the compiler's own
    headers) is left out. Nothing is opened that is no file on a disk.

    Raises:
        SpecError: an include names a pipe, a device, a socket, a folder or a file of the system's, with its place.
    """
    waiting = [(file, source)]
    found: set[Path] = set()
    while waiting:
        includer, text = waiting.pop()
        for include in includes_in(text):
            path = _found_in((includer.parent, *include_paths), include, includer)
            if path is not None and path not in found:
                found.add(path)
                waiting.append((path, path.read_text(encoding="utf-8", errors="replace")))
    return tuple(sorted(found))


def is_stored(path: Path) -> bool:
    """Whether `path` leads to a file that can be read to its end: on a disk, and none of the system's."""
    return path.is_file() and not kind_of(path)


def kind_of(path: Path) -> str:
    """What `path` leads to, in words, where that is no file on a disk; empty: such a file, or nothing."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return ""
    for is_it, words in _KINDS:
        if is_it(status.st_mode):
            return words
    folders = [folder for folder in _SYSTEM_FOLDERS if os.path.realpath(path).startswith(f"{folder}/")]
    return "a file of the system's" if folders or status.st_dev in _system_devices() else ""


@lru_cache(maxsize=1)
def _system_devices() -> frozenset[int]:
    """The devices of the folders that hold no stored files, wherever they are mounted besides."""
    devices = set()
    for folder in _SYSTEM_FOLDERS:
        with contextlib.suppress(OSError):
            devices.add(Path(folder).stat().st_dev)
    with contextlib.suppress(OSError):
        devices.discard(Path("/").stat().st_dev)
    return frozenset(devices)


def _found_in(folders: Sequence[Path], include: _Include, includer: Path) -> Path | None:
    """The file that an include finds, as compilers look for it; None: nothing here.

    `folders`: that of the file which includes it, then those that are searched.
    """
    wrong: tuple[str, Path] | None = None
    own = 0 if include.is_quoted or Path(include.name).is_absolute() else 1
    for folder in folders[own:]:
        path = Path(os.path.normpath(folder / include.name))  # links stay: a problem may link its header folder
        kind = kind_of(folder / include.name) or kind_of(path)
        if not kind and path.is_file():
            return path
        if kind and (kind != "a folder" or (include.is_quoted and not include.is_macro)):
            wrong = wrong or (kind, path)
        if kind and kind != "a folder":  # compilers pass folders over, and would open this
            break
    if wrong is not None:
        kind, path = wrong
        raise SpecError(
            f"#include {include.name!r} names {kind}, {str(shown_path(path))!r}; expected a file",
            hint="put a header there, or name another one",
            location=Location(shown_path(includer), include.line),
        )
    return None
