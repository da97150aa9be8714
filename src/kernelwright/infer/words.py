"""The words behind a kernel's name: `rows=2048`, `table=5000x64`, `labels=0..999`, `ids=ids.npy`, `T=half`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelwright.errors import UsageError
from kernelwright.problem.dtypes import dtype_of_c_type

_NUMBER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_MEMBER = re.compile(r"(?<=\w)\.(?=[A-Za-z_])")
"""Between a structure and its member, which is an argument of its own: `shape.rows` is `shape_rows`."""
_EXTENTS = re.compile(r"\d+(?:x\d+)+")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_MOST_CHARACTERS = 1000
"""The longest value: Python does not read integers of 5,000 digits, and nobody means one."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a person says of a kernel's arguments."""

    numbers: Mapping[str, int | float]
    extents: Mapping[str, tuple[int, ...]]
    """Extents of arrays: `table=5000x64`."""
    ranges: Mapping[str, tuple[int, int]]
    """Values of arrays: `labels=0..999`, both ends included."""
    files: Mapping[str, Path]
    """Files of arrays: `ids=ids.npy`."""
    texts: Mapping[str, str]
    """Numbers as they are written."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Types that compile options say: `T=float`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that is named."""
        return tuple(dict.fromkeys((*self.numbers, *self.extents, *self.ranges, *self.files, *self.types)))

    def renamed(self, meant: Mapping[str, str]) -> Words:
        """The same with other names for some."""
        kinds = (self.numbers, self.extents, self.ranges, self.files, self.texts, self.types)
        return Words(*({meant.get(name, name): value for name, value in each.items()} for each in kinds))  # type: ignore[arg-type]


def read_words(words: Sequence[str]) -> Words:
    """The words as data.

    Raises:
        UsageError: one is no `NAME=VALUE`, a value cannot be read, or a name is said twice.
    """
    found = Words({}, {}, {}, {}, {}, {})
    kinds: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = _MEMBER.sub("_", name)
        if not equals or not name.isidentifier() or not value:
            raise UsageError(f"{word!r} is no word of the form NAME=VALUE", hint="say, for example, rows=2048 eps=1e-5")
        if len(value) > _MOST_CHARACTERS:
            raise UsageError(f"the value of {name!r} has {len(value):,} characters", hint="say a shorter one")
        kind = _read(found, name, value, word)
        if kinds.get(name) == kind:
            raise UsageError(f"{name!r} is said twice", hint="say it once")
        kinds[name] = kind
    return found


def _read(found: Words, name: str, value: str, word: str) -> str:
    assert isinstance(found.numbers, dict)
    assert isinstance(found.extents, dict)
    assert isinstance(found.ranges, dict)
    assert isinstance(found.files, dict)
    assert isinstance(found.texts, dict)
    assert isinstance(found.types, dict)
    if _EXTENTS.fullmatch(value):
        found.extents[name] = tuple(int(part) for part in value.split("x"))
        return "extents"
    if between := _RANGE.fullmatch(value):
        low, high = int(between[1]), int(between[2])
        if low > high:
            raise UsageError(f"the range in {word!r} is empty", hint=f"say {name}={high}..{low}")
        found.ranges[name] = low, high
        return "range"
    if value.endswith(".npy"):
        found.files[name] = Path(value)
        return "file"
    if value in ("true", "false"):
        found.numbers[name] = int(value == "true")
        return "number"
    if any(dtype_of_c_type(value, language) is not None for language in ("opencl", "cuda", "hip")):
        found.types[name] = value
        return "type"
    if not _NUMBER.fullmatch(value):
        raise UsageError(
            f"the value in {word!r} is no number",
            hint="say a number, extents like 5000x64, a range like 0..999, a .npy file, or a type",
        )
    is_hexadecimal = "x" in value.lower()
    is_whole = is_hexadecimal or re.fullmatch(r"[-+]?\d+", value)
    found.numbers[name] = int(value, 16 if is_hexadecimal else 10) if is_whole else float(value)
    found.texts[name] = value
    return "number"
