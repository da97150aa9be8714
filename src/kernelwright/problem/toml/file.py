"""TOML with positions: every key and value knows its line and column, so that a complaint can point at it.

```
document = parse_toml(text, Path("problem.toml"))
root = document.root
launch = root.table("launch")                       # None when absent
grid = launch.expressions("grid")                   # errors say problem.toml:14:9
root.refuse_unknown(("name", "launch"), what="a problem")
```

`tomllib` decides what is valid and gives the values; `positions` beside it only finds where things stand.
Text that is embedded in another file (a template's header) tells the origin of each line.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernelwright.errors import Location, SpecError
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.toml.positions import KeyPath, PositionMap, positions_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

MOST_KEY_PARTS = 32
"""A dotted key has at most so many; what is read here has tables in tables three deep."""


@dataclass(frozen=True, slots=True)
class _TomlDocument:
    """Parsed TOML and where its keys and values stand. Made by `parse_toml`."""

    file: Path
    data: Mapping[str, Any]
    keys: Mapping[KeyPath, Location]
    """Where each key (or table header, or list item) starts."""
    values: Mapping[KeyPath, Location]
    """Where each value starts; for a one-line string its first character after the quote."""
    start: Location
    """Where the text starts."""

    @property
    def root(self) -> TomlTable:
        """The top table."""
        return TomlTable(self, (), self.data)

    def key_location(self, path: KeyPath) -> Location:
        """Where the key stands; for one that is not written, its nearest table that is."""
        return self._nearest(self.keys, path)

    def value_location(self, path: KeyPath) -> Location:
        """Where the value stands; for one that is not written, its nearest table that is."""
        return self.values.get(path) or self._nearest(self.keys, path)

    def _nearest(self, found: Mapping[KeyPath, Location], path: KeyPath) -> Location:
        for length in range(len(path), 0, -1):
            if path[:length] in found:
                return found[path[:length]]
        return self.start


def read_text(file: Path, *, what: str, location: Location | None = None) -> str:
    """The text of a UTF-8 file a person wrote, with its line ends as they are and without a byte order mark.

    Raises:
        SpecError: it is missing (naming the nearest file beside it), no regular file, unreadable, not UTF-8, or holds
            a NUL character.
    """
    try:
        if file.exists() and not file.is_file() and not file.is_dir():
            raise SpecError(f"{what} {file} is a device or a pipe, expected a file", location=location)
        text = file.read_bytes().decode()
    except FileNotFoundError:
        siblings = [path.name for path in file.parent.iterdir()] if file.parent.is_dir() else []
        hint = did_you_mean(file.name, siblings) or "create it, or correct the path"
        raise SpecError(f"{what} {file} does not exist", hint=hint, location=location) from None
    except IsADirectoryError:
        raise SpecError(f"{what} {file} is a folder, expected a file", location=location) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SpecError(
            f"{what} is not UTF-8: byte 0x{error.object[error.start]:02x} cannot be read",
            hint="save the file as UTF-8",
            location=Location(file, line),
        ) from None
    except OSError as error:
        raise SpecError(f"cannot read {what} {file}: {error.strerror or error}", location=location) from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise SpecError(
            f"{what} holds a NUL character, so it is no text",
            hint="is it the right file?",
            location=Location(file, line),
        )
    return text.removeprefix("\ufeff")


def parse_toml(text: str, file: Path, *, origins: Sequence[tuple[int, int]] | None = None) -> _TomlDocument:
    """Parse `text`, which is all of `file`, or the part of it that `origins` describes line by line.

    Of each line it tells the number in the file, from 1, and how many characters in front of it were taken away.

    Raises:
        SpecError: the text is not TOML, with the line and column.
    """
    places = PositionMap(text, file, origins)
    _refuse_long_keys(text, places)
    try:
        data = tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(error, places) from None
    except RecursionError:
        raise SpecError("TOML nested too deeply to read", location=places.at(0)) from None
    except ValueError as error:  # tomllib lets Python's limit on the digits of an integer through
        digits = re.search(r"\d{4000,}", text)
        place = places.at(digits.start() if digits else 0)
        raise SpecError(f"not valid TOML: a number is too long to read ({error})", location=place) from None
    keys, values = positions_of(text, places)
    return _TomlDocument(file, data, keys, values, places.at(0))


_STRING_OR_COMMENT = re.compile(
    r"""(?=["'\#]) (?: "{3}(?:[^\\]|\\.)*?(?:"{3}|\Z) | '{3}.*?(?:'{3}|\Z)
                      | "(?:[^"\\\n]|\\.)*+"? | '[^'\n]*+'? | \#[^\n]* )""",
    re.DOTALL | re.VERBOSE,
)
"""Strings may be without an end: then the text is none, which `tomllib` says, and nothing is looked at twice."""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MOST_KEY_PARTS}}}")


def _refuse_long_keys(text: str, places: PositionMap) -> None:
    """Before `tomllib` reads it: its time, and ours, grows with the square of a dotted key's parts."""

    def blank(found: re.Match[str]) -> str:
        """As long as it was: a text may be a part of a key, a comment is none."""
        length = found.end() - found.start()
        return " " * length if found[0].startswith("#") else "_" * length

    if found := _LONG_KEY.search(_STRING_OR_COMMENT.sub(blank, text)):
        raise SpecError(
            f"a dotted key has more than {MOST_KEY_PARTS} parts", hint="remove it", location=places.at(found.start())
        )


_TOMLLIB_PLACE = re.compile(r"\s*\(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


def _syntax_error(error: tomllib.TOMLDecodeError, places: PositionMap) -> SpecError:
    """The parser's complaint in our form: its position moves from the message's end to the front."""
    message = str(error)
    place = _TOMLLIB_PLACE.search(message)
    if place is None:
        location = places.at(0)
    elif place["line"] is None:
        location = places.last
        message = message[: place.start()] + " at the end of the text"
    else:
        location = places.of(int(place["line"]), int(place["column"]))
        message = message[: place.start()]
    hint = None
    if "Expected '=' after a key" in message or "Invalid value" in message:
        hint = 'a text needs quotes: key = "text"; a list is [1, 2]; a table is { key = 1 }'
    elif "Cannot overwrite a value" in message or "twice" in message:
        hint = "each key and each [table] may stand once; repeat only [[lists of tables]]"
    return SpecError(f"not valid TOML: {message}", hint=hint, location=location)


@dataclass(frozen=True, slots=True)
class TomlTable:
    """One table of a document. Reading a key checks its type; every complaint has the key's place."""

    document: _TomlDocument
    path: KeyPath
    data: Mapping[str, Any] = field(repr=False)

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    @property
    def name(self) -> str:
        """The table as a person would write it: `workloads[1]`; empty for the top."""
        text = ""
        for part in self.path:
            text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
        return text

    @property
    def location(self) -> Location:
        """Where the table starts."""
        return self.document.key_location(self.path)

    def key_location(self, *path: str | int) -> Location:
        """Where a key of this table stands, or the table when the key is not written."""
        return self.document.key_location((*self.path, *path))

    def value_location(self, *path: str | int) -> Location:
        """Where a value of this table stands, or the table when it is not written."""
        return self.document.value_location((*self.path, *path))

    def label(self, *path: str | int) -> str:
        """A key of this table in full: `arguments.x.dtype`."""
        return TomlTable(self.document, (*self.path, *path), {}).name

    def refuse_unknown(self, allowed: Collection[str], *, what: str, hints: Mapping[str, str] | None = None) -> None:
        """Raise for the first key that is not in `allowed`, with the nearest one that is.

        Args:
            allowed: the valid keys.
            what: what the table is, for the message: `a launch`.
            hints: advice for particular wrong keys.

        Raises:
            SpecError: a key is unknown.
        """
        for key in self.data:
            if key not in allowed:
                hint = (hints or {}).get(key) or did_you_mean(key, allowed)
                raise SpecError(
                    f"unknown key {key!r} in {what}; it has {', '.join(allowed)}",
                    hint=hint or "remove it",
                    location=self.key_location(key),
                )

    def missing(self, key: str, *, expected: str) -> SpecError:
        """The complaint that `key` must be there."""
        where = f"[{self.name}]" if self.name else "the file"
        return SpecError(f"{key!r} is missing from {where}", hint=f"add it: {expected}", location=self.location)

    def wrong_type(self, *path: str | int, value: object, expected: str) -> SpecError:
        """The complaint that a value has another type than it must."""
        return SpecError(
            f"{self.label(*path)} is {_describe(value)}, expected {expected}",
            location=self.value_location(*path),
        )

    def error(self, *path: str | int, message: str, hint: str | None = None) -> SpecError:
        """A complaint about a value of this table."""
        return SpecError(message, hint=hint, location=self.value_location(*path))

    def text(self, key: str) -> str | None:
        """A string, or None when absent. NUL is refused, since names and paths come from here."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong_type(key, value=value, expected='a text in quotes, like "name"')
        return self._checked_text(value, key)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, or None when absent."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.wrong_type(key, value=value, expected='a list of texts, like ["one", "two"]')
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise self.wrong_type(key, index, value=item, expected="a text in quotes")
            self._checked_text(item, key, index)
        return tuple(value)

    def number(self, key: str) -> float | None:
        """A finite integer or float, or None when absent."""
        value = self.data.get(key)
        if value is None:
            return None
        return self._checked_number(value, key)

    def flag(self, key: str) -> bool | None:
        """A boolean, or None when absent."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, bool):
            raise self.wrong_type(key, value=value, expected="true or false, without quotes")
        return value

    def number_pair(self, key: str, *, expected: str) -> tuple[float, float] | None:
        """A list of two numbers, or None when absent."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2:
            raise self.wrong_type(key, value=value, expected=expected)
        first, second = (self._checked_number(item, key, index) for index, item in enumerate(value))
        return first, second

    def table(self, key: str) -> TomlTable | None:
        """A table, or None when absent."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong_type(key, value=value, expected=f"a table: [{self.label(key)}] or {{ ... }}")
        return TomlTable(self.document, (*self.path, key), value)

    def tables(self, key: str, *, allow_single: bool = False) -> tuple[TomlTable, ...] | None:
        """A list of tables (with `allow_single` also one table), or None when absent."""
        value = self.data.get(key)
        if value is None:
            return None
        if allow_single and isinstance(value, dict):
            return (TomlTable(self.document, (*self.path, key), value),)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            single = f"[{self.label(key)}] or " if allow_single else ""
            raise self.wrong_type(key, value=value, expected=f"{single}a list of tables: [[{self.label(key)}]]")
        return tuple(TomlTable(self.document, (*self.path, key, index), item) for index, item in enumerate(value))

    def expression(self, key: str) -> Expression | None:
        """An expression, written as a text or a number, or None when absent."""
        value = self.data.get(key)
        return None if value is None else self._parsed(value, key)

    def expressions(self, key: str) -> tuple[Expression, ...] | None:
        """A list of expressions, or None when absent."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.wrong_type(key, value=value, expected='a list of expressions, like ["n", "2 * d"]')
        return tuple(self._parsed(item, key, index) for index, item in enumerate(value))

    def _parsed(self, value: object, *path: str | int) -> Expression:
        if not isinstance(value, str | int | float):
            raise self.wrong_type(*path, value=value, expected='an expression: a text like "2 * d", or a number')
        return Expression.parse(str(value), location=self.value_location(*path))

    def _checked_text(self, value: str, *path: str | int) -> str:
        if "\0" in value:
            raise self.error(*path, message=f"{self.label(*path)} holds a NUL character")
        return value

    def _checked_number(self, value: object, *path: str | int) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong_type(*path, value=value, expected="a number")
        if value != value or value in (float("inf"), float("-inf")):
            raise self.wrong_type(*path, value=value, expected="a finite number")
        return value


def did_you_mean(name: str, known: Collection[str]) -> str | None:
    """`did you mean 'x'?` for the nearest known name, or None when nothing is near."""
    by_folded = {item.lower(): item for item in known}
    close = difflib.get_close_matches(name.lower(), by_folded, 1, 0.6)
    return f"did you mean {by_folded[close[0]]!r}?" if close else None


_TYPE_WORDS: Mapping[type, str] = {
    bool: "a boolean", int: "an integer", float: "a float", str: "a text", list: "a list", dict: "a table",
}  # fmt: skip


def _describe(value: object) -> str:
    """A value with its TOML type, short enough for a message."""
    word = _TYPE_WORDS.get(type(value), f"a {type(value).__name__}")
    shown = repr(value) if not isinstance(value, bool) else str(value).lower()
    return f"{word} ({shown if len(shown) <= 60 else shown[:57] + '...'})"
