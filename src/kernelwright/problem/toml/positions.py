"""Where the keys and values of a TOML text stand, which `tomllib` does not tell.

Only for text that `tomllib` has accepted: the scanner finds places, it does not judge.
"""

from __future__ import annotations

import bisect
import re
import tomllib
from typing import TYPE_CHECKING

from kernelwright.errors import Location

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KeyPath = tuple[str | int, ...]
"""Keys and list indices from the root, e.g. `("workloads", 1, "tokens")`."""


class PositionMap:
    """From an offset in the text to a place in the file."""

    def __init__(self, text: str, file: Path, origins: Sequence[tuple[int, int]] | None) -> None:
        self.file = file
        self.origins = origins
        self.text = text
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def at(self, offset: int) -> Location:
        """The place of a character, counted from 0."""
        line = bisect.bisect_right(self.line_starts, offset)
        return self.of(line, offset - self.line_starts[line - 1] + 1)

    def of(self, line: int, column: int) -> Location:
        """The place of line and column of the text, both from 1."""
        if self.origins is None:
            return Location(self.file, line, column)
        if not self.origins:
            return Location(self.file)
        in_file, removed = self.origins[min(line, len(self.origins)) - 1]
        return Location(self.file, in_file, removed + column)

    @property
    def last(self) -> Location:
        """The last line that is not empty."""
        lines = self.text.rstrip().count("\n") + 1
        return Location(self.file, self.of(lines, 1).line)


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t]*")
_SPACE_AND_COMMENTS = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SCALAR = re.compile(r"[^,\]}#\n]*")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)


def positions_of(text: str, places: PositionMap) -> tuple[dict[KeyPath, Location], dict[KeyPath, Location]]:
    """Where the keys and the values of a document stand that is known to be valid TOML."""
    scanner = _Scanner(text, places)
    scanner.scan_document()
    return scanner.keys, scanner.values


class _Scanner:
    """Finds where keys and values stand in text that is known to be valid TOML."""

    def __init__(self, text: str, places: PositionMap) -> None:
        self.text = text
        self.places = places
        self.offset = 0
        self.keys: dict[KeyPath, Location] = {}
        self.values: dict[KeyPath, Location] = {}
        self.list_lengths: dict[KeyPath, int] = {}

    def scan_document(self) -> None:
        """Fill `keys` and `values`."""
        table: KeyPath = ()
        while True:
            self._skip(_SPACE_AND_COMMENTS)
            if self.offset >= len(self.text):
                return
            if self.text[self.offset] == "[":
                table = self._scan_header()
            else:
                self._scan_pair(table)

    def _scan_header(self) -> KeyPath:
        start = self.offset
        is_list = self.text.startswith("[[", start)
        self.offset += 2 if is_list else 1
        path: KeyPath = ()
        parts = [part for part, _ in self._scan_key()]
        self.offset += 2 if is_list else 1
        for part in parts[:-1]:
            path = self._enter((*path, part))
        path = (*path, parts[-1])
        if is_list:
            index = self.list_lengths.get(path, 0)
            self.list_lengths[path] = index + 1
            self.keys.setdefault(path, self.places.at(start))
            path = (*path, index)
        self.keys[path] = self.places.at(start)
        return path

    def _enter(self, path: KeyPath) -> KeyPath:
        """A header's prefix: inside a list of tables it means the last one."""
        return (*path, self.list_lengths[path] - 1) if path in self.list_lengths else path

    def _scan_pair(self, table: KeyPath) -> None:
        path = table
        for part, offset in self._scan_key():
            path = (*path, part)
            self.keys.setdefault(path, self.places.at(offset))
        self.offset += 1  # the equals sign
        self._skip(_SPACE)
        self._scan_value(path)

    def _scan_key(self) -> list[tuple[str, int]]:
        """The parts of a dotted key with their offsets; ends before `=` or `]`."""
        parts = []
        while True:
            self._skip(_SPACE)
            start = self.offset
            if self.text[start] in "\"'":
                quoted = self._scan_string()
                name = next(iter(tomllib.loads(f"{quoted} = 0")))
            else:
                match = _BARE_KEY.match(self.text, start)
                assert match is not None
                self.offset = match.end()
                name = match.group()
            parts.append((name, start))
            self._skip(_SPACE)
            if self.text[self.offset] != ".":
                return parts
            self.offset += 1

    def _scan_value(self, path: KeyPath) -> None:
        start = self.offset
        self.values[path] = self.places.at(start)
        match self.text[start]:
            case "[":
                self._scan_list(path)
            case "{":
                self._scan_inline_table(path)
            case '"' | "'":
                text = self._scan_string()
                if text[:3] not in ('"""', "'''"):
                    self.values[path] = self.places.at(start + 1)
            case _:
                self._skip(_SCALAR)

    def _scan_list(self, path: KeyPath) -> None:
        self.offset += 1
        index = 0
        while True:
            self._skip(_SPACE_AND_COMMENTS)
            if self.text[self.offset] == "]":
                self.offset += 1
                return
            if self.text[self.offset] == ",":
                self.offset += 1
                continue
            self.keys[(*path, index)] = self.places.at(self.offset)
            self._scan_value((*path, index))
            index += 1

    def _scan_inline_table(self, path: KeyPath) -> None:
        self.offset += 1
        while True:
            self._skip(_SPACE_AND_COMMENTS)
            if self.text[self.offset] == "}":
                self.offset += 1
                return
            if self.text[self.offset] == ",":
                self.offset += 1
                continue
            self._scan_pair(path)

    def _scan_string(self) -> str:
        for pattern in _STRINGS:
            if match := pattern.match(self.text, self.offset):
                self.offset = match.end()
                return match.group()
        raise AssertionError(f"no string at offset {self.offset}")

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.offset)
        assert match is not None
        self.offset = match.end()
