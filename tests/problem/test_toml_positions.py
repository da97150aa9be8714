"""TOML with positions: every key and value points at its own text."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.errors import Location, SpecError
from kernelwright.problem.toml.file import parse_toml, read_text

FILE = Path("a.toml")

TRICKY = '''\
a.b . "c d" = 1 # = not this
s = """multi
[x]
y = 1
"""
t = \'\'\'
[z]\'\'\'
[arguments]   # ] comment
out = { role = "output", shape = ["tokens", "d # 1"], n = { q = 'x]' } }
list = [
  1, # one
  [2, "three"], { k = 4 },
]
d = 1979-05-27 07:32:00
"q=\\"]" = "a\\"b"
[[w]]
x = 1
[w.sub]
y = -0.5
[[w]]
x = 2
[[w.k]]
z = 1
'''


def text_at(text: str, location: Location) -> str:
    return text.split("\n")[location.line - 1][location.column - 1 :]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("a", "b", "c d"), '"c d" = 1'),
        (("arguments",), "[arguments]"),
        (("arguments", "out"), "out = {"),
        (("arguments", "out", "n", "q"), "q = 'x]'"),
        (("arguments", "list", 1), '[2, "three"]'),
        (("arguments", "list", 2, "k"), "k = 4"),
        (("arguments", 'q="]'), '"q='),
        (("w", 0, "sub", "y"), "y = -0.5"),
        (("w", 1), "[[w]]"),
        (("w", 1, "x"), "x = 2"),
        (("w", 1, "k", 0, "z"), "z = 1"),
    ],
)
def test_keys_are_found(path: tuple[str | int, ...], expected: str) -> None:
    assert text_at(TRICKY, parse_toml(TRICKY, FILE).key_location(path)).startswith(expected)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("a", "b", "c d"), "1 #"),
        (("s",), '"""multi'),
        (("arguments", "out", "shape", 1), 'd # 1"'),
        (("arguments", "list", 1, 1), 'three"'),
        (("arguments", "d"), "1979"),
        (("w", 0, "sub", "y"), "-0.5"),
    ],
)
def test_values_are_found_inside_their_quotes(path: tuple[str | int, ...], expected: str) -> None:
    assert text_at(TRICKY, parse_toml(TRICKY, FILE).value_location(path)).startswith(expected)


def test_a_missing_key_points_at_its_table() -> None:
    document = parse_toml(TRICKY, FILE)
    assert document.key_location(("w", 1, "absent")) == document.key_location(("w", 1))
    assert document.key_location(("absent",)) == Location(FILE, 1, 1)


KEYS = st.text('abcXYZ019_- ."=#[]é', min_size=1, max_size=6)
SCALARS = (
    st.integers(-99, 99)
    | st.booleans()
    | st.floats(-9, 9).map(lambda value: round(value, 3))
    | st.text("ab \"'\\[]{}#=,\n", max_size=6)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


def write(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "{" + ", ".join(f"{write_key(key)} = {write(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(write(item) for item in value) + "]"
        case str():
            return json.dumps(value, ensure_ascii=False)
    return str(value)


def write_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def check_positions(text: str, data: object, path: tuple[str | int, ...]) -> None:
    document = parse_toml(text, FILE)
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        inner = (*path, key)
        shown = write(item).removeprefix('"')
        assert text_at(text, document.value_location(inner)).startswith(shown)
        if isinstance(key, str):
            assert text_at(text, document.key_location(inner)).startswith(write_key(key))
        check_positions(text, item, inner)


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.dictionaries(KEYS, VALUES, max_size=3))
def test_every_key_and_value_of_any_document_is_found(top: dict[str, object], table: dict[str, object]) -> None:
    top.pop("T T", None)
    lines = [f"{write_key(key)} = {write(value)} # [c] = {{" for key, value in top.items()]
    lines += ["  ['T T']  ", *(f"\t{write_key(key)}={write(value)}" for key, value in table.items())]
    text = "\n".join(lines)
    assert tomllib.loads(text) == {**top, "T T": table}
    check_positions(text, top, ())
    check_positions(text, table, ("T T",))


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a = 1\nb = tokens\n", 2, 5),
        ("a = 1\na = 2\n", 2, 6),
        ("[x]\n[x]\n", 2, 3),
        ("a = [1,\n 2", 2, 0),
        ('a = "open\n', 1, 10),
        ("a 1", 1, 3),
    ],
)
def test_syntax_errors_have_their_place(text: str, line: int, column: int) -> None:
    with pytest.raises(SpecError, match="not valid TOML") as caught:
        parse_toml(text, FILE)
    assert caught.value.location is not None
    assert caught.value.location.line == line
    if column:
        assert caught.value.location.column == column


def test_embedded_text_points_into_its_file() -> None:
    origins = [(11, 3), (12, 5)]
    document = parse_toml("a = 1\nb = 2", Path("k.cl"), origins=origins)
    assert document.value_location(("b",)) == Location(Path("k.cl"), 12, 10)
    with pytest.raises(SpecError) as caught:
        parse_toml("a = 1\nb = ?", Path("k.cl"), origins=origins)
    assert caught.value.location == Location(Path("k.cl"), 12, 10)


def test_windows_line_ends_keep_their_places() -> None:
    document = parse_toml('a = 1\r\nb = ["x",\r\n "y"]\r\n', FILE)
    assert document.value_location(("b", 1)) == Location(FILE, 3, 3)
    assert document.data == {"a": 1, "b": ["x", "y"]}


def test_an_expression_error_points_into_the_string() -> None:
    table = parse_toml('[launch]\ngrid = ["n", "d $ 2"]', FILE).root.table("launch")
    assert table is not None
    with pytest.raises(SpecError) as caught:
        table.expressions("grid")
    assert caught.value.location == Location(FILE, 2, 17)


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "problem.toml").write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(SpecError, match="not UTF-8") as caught:
        read_text(tmp_path / "problem.toml", what="the problem file")
    assert caught.value.location is not None
    assert caught.value.location.line == 2
    with pytest.raises(SpecError, match="does not exist") as caught:
        read_text(tmp_path / "problm.toml", what="the problem file")
    assert caught.value.hint == "did you mean 'problem.toml'?"
    with pytest.raises(SpecError, match="is a folder"):
        read_text(tmp_path, what="the problem file")
