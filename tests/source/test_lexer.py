"""The one reader of C text: what is code, what is hidden, what a line is; in one pass, whatever the text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.source.lexer import (
    definitions_of,
    directives,
    hidden_parts,
    joined_lines,
    masked,
    tokens_of,
    without_directives,
)

PACKAGE = Path(__file__).parents[2] / "src" / "kernelwright"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a // b\nc", "a     \nc"),
        ("a // b \\\nc\nd", "a       \n \nd"),
        ("a // b \\\\\nc\nd", "a        \n \nd"),
        ("a /* b\nc */ d", "a     \n     d"),
        ("a /* b", "a     "),
        ('a "b" c', 'a " " c'),
        ('a "\\"" c', 'a "  " c'),
        ('c = L\'"\'; b("");', "c = L' '; b(\"\");"),
        ('u8"//" b', 'u8"  " b'),
        ("n = 1'000; 'a'", "n = 1'000; ' '"),
        ("n'a'b", "n' 'b"),
        ('R"(a)" b', 'R"   " b'),
        ('R"x(a)")x" b', 'R"       " b'),
        ('LR"(a', 'LR"  '),
        ('R"a" b', 'R" " b'),
        ("#error don't /* a\nb", "#error don't /* a\nb"),
        ("a / b", "a / b"),
    ],
)
def test_comments_and_the_insides_of_literals_are_blanks(text: str, code: str) -> None:
    assert masked(text) == code


def test_c_has_no_raw_strings_and_no_quotes_between_digits() -> None:
    assert masked('R"("; asm(); ")"', is_cpp=False) == 'R" "; asm(); " "'
    assert masked("1'\"' b '\"'", is_cpp=False) == "1' ' b ' '"
    assert masked("1'0' b", is_cpp=False) == "1' ' b"


def test_what_nothing_closes_is_told() -> None:
    found = [(each.kind, each.text, each.is_closed) for each in hidden_parts("'a\n\"b\\\nc\n/*/ d")]
    assert found == [("open", "'a", False), ("open", '"b\\\nc', False), ("comment", "/*/ d", False)]
    assert all(each.is_closed for each in hidden_parts('/**/ // a\n\'b\' "c" R"(d)"'))


@pytest.mark.parametrize(
    ("text", "joined", "places"),
    [
        ("a\\\nb\\\r\nc", "abc", (1, 2)),
        ("a\\ \nb", "a\\ \nb", ()),
        ("// a\\\\\n\nb", "// a\\ \nb", (6,)),
        ("\\\\\n\\\n\nb", "\\ \nb", (1, 2)),
        ("??/\nb", "??/\nb", ()),
    ],
)
def test_lines_are_joined_once(text: str, joined: str, places: tuple[int, ...]) -> None:
    found = joined_lines(text)
    assert (found.text, found.places) == (joined, places)


def test_compilers_differ_in_what_joins_lines() -> None:
    assert joined_lines("a\\ \t\nb", with_blanks=True).text == "ab"
    assert joined_lines("a??/\nb", with_trigraphs=True).text == "ab"


def test_directives_are_lines_with_those_that_go_on_from_them() -> None:
    code = "int a;\n # \\\n define F(x, \\\n y) x \\\n + y\n#endif\n%:pragma once\n#\n"
    found = list(directives(code))
    assert [(each.word, each.is_digraph) for each in found] == [
        ("define", False), ("endif", False), ("pragma", True), ("", False),
    ]  # fmt: skip
    assert code[found[0].start : found[0].end] == " # \\\n define F(x, \\\n y) x \\\n + y"
    (defined,) = definitions_of(code)
    assert (defined.name, defined.parameters, defined.words) == ("F", ("x", "y"), [])
    assert without_directives(code).split() == ["int", "a;"]


def test_a_macro_with_arguments_keeps_its_name() -> None:
    (plain, other) = definitions_of("#define JOIN(a, b) a##b\n#define SIZE (4)\n")
    assert (plain.name, plain.parameters, other.name, other.parameters) == ("JOIN", ("a", "b"), "SIZE", None)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("#ifndef A", "A"),
        ("#if !defined(A)", "A"),
        ("#if ! defined A", "A"),
        ("#if !defined(A) && B", ""),
        ("#if defined(A)", ""),
        ("#ifdef A", ""),
    ],
)
def test_a_guard_asks_for_one_name(line: str, name: str) -> None:
    assert next(directives(line)).guarded == name


@given(st.text("aR8L.01'\"/*\\\n #(){}$é\r", max_size=40))
def test_tokens_are_the_text_and_agree_with_its_mask(text: str) -> None:
    end = 0
    for token in tokens_of(text):
        assert token.span.start == end
        end = token.span.end
        if token.kind != "space":
            assert token.text == text[token.span.start : end]
    assert end == len(text)
    code = masked(text)
    assert len(code) == len(text)
    for token in tokens_of(text):
        if token.kind in ("word", "number", "sign", "open"):
            assert code[token.span.start : token.span.end] == token.text
    parts = [each.start for each in hidden_parts(text) if each.kind in ("text", "open")]
    assert parts == [token.span.start for token in tokens_of(text) if token.kind in ("text", "open")]


ENDLESS = {
    "escaped quotes": '\\"', "escaped apostrophes": "'\\", "raw strings": 'R"a(', "raw quotes": 'R"', "numbers": "1.",
    "digits with quotes": "1'", "comments": "/*", "slashes": "/", "backslashes": "\\", "joined lines": "\\\n",
    "hashes": "#", "lines of hashes": "#\n", "going on": "# \\\n", "definitions": "#define a(", "letters": "u8R",
    "blanks": " ", "empty lines": " \n", "characters": "''", "open characters": "'a\n",
}  # fmt: skip


@pytest.mark.timeout(60)  # what takes the square of the length takes many minutes
@pytest.mark.parametrize("what", ENDLESS)
def test_time_is_linear_in_the_text(what: str) -> None:
    text = ENDLESS[what] * (200_000 // len(ENDLESS[what]))
    for is_cpp in (False, True):
        masked(text, is_cpp=is_cpp)
    joined_lines(text, with_blanks=True, with_trigraphs=True)
    for each in directives(text):
        assert each.definition is None or each.definition.name == "a"
    without_directives(text)


# Nobody else reads C text

_READS_C = {
    "comments": re.compile(r"//\(?(?:\?:)?\[\^|/\\\*+\.\*"),
    "literals": re.compile(r"""\[\^["']\\{2}|\(\?:\[\^["']"""),
    "directives": re.compile(r"\#.*(?:define|include|ifn?def|undef|pragma|endif)|(?:HASH|DIRECTIVE)\b"),
}
_OTHERS = {
    "problem/toml/file.py": "TOML has texts and comments of its own",
    "problem/toml/positions.py": "TOML has texts and comments of its own",
    "backend/cuda/driver.py": "a header of the toolkit, not a kernel",
}


def _patterns(path: Path) -> Iterator[str]:
    """Every regular expression that a module compiles or uses, as far as it is written out."""
    text = path.read_text(encoding="utf-8")
    if not any(reads.search(text) for reads in _READS_C.values()):
        return
    for node in ast.walk(ast.parse(text)):
        function = node.func if isinstance(node, ast.Call) and node.args else None
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re":
            assert isinstance(node, ast.Call)
            parts = (each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant))
            yield "".join(part.decode() if isinstance(part, bytes) else str(part) for part in parts)


def test_nothing_but_the_lexer_reads_comments_literals_or_directives() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), what)
        for path in PACKAGE.rglob("*.py")
        if path.name != "lexer.py"
        for pattern in _patterns(path)
        for what, reads in _READS_C.items()
        if reads.search(pattern)
    }
    assert {file for file, _ in found} - _OTHERS.keys() == set()
    assert _OTHERS.keys() <= {file for file, _ in found}, "an exception that is none any more"


def test_the_lexer_stands_below_all_others() -> None:
    text = (PACKAGE / "source" / "lexer.py").read_text(encoding="utf-8")
    assert re.findall(r"^from (kernelwright\S*)", text, re.MULTILINE) == ["kernelwright.source.span"]
