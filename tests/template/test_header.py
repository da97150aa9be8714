"""The header of a template: all the comment styles, and complaints at the line of the source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelwright.errors import SpecError
from kernelwright.template.load import parse_header

FILE = Path("k.cl")

BODY = """\
[parameters]
BLOCK = { values = [64, 128, 256], default = 128, why = "threads" }
VEC = { powers_of_two = [1, 8], default = 4 }
STEP = { range = [10, 30, 10], default = 20 }
RATIO = { values = [1, 0.5], default = 1 }
FAST = { values = [false, true], default = false }
TYPE = { values = ["float", "double"], default = "float" }
[constraints]
vector = "n % VEC == 0"
[launch]
grid = ["ceil_div(n, BLOCK)"]
block = ["BLOCK"]
[defines]
ROW = "2 * n"
[scratch]
tmp = { dtype = "float32", shape = ["n"] }
tile = { role = "local", dtype = "float32", shape = ["BLOCK"] }
"""


def line_style(body: str, mark: str = "//") -> str:
    lines = "".join(f"{mark} {line}\n" if line else f"{mark}\n" for line in body.rstrip("\n").split("\n"))
    return f"{mark} /// kernelwright\n{lines}{mark} ///\n"


STYLES = {
    "lines": line_style(BODY),
    "lines after a licence": "// Copyright\n\n" + line_style(BODY),
    "indented lines": re.sub("(?m)^", "  ", line_style(BODY)),
    "windows": line_style(BODY).replace("\n", "\r\n"),
    "block": f"/*\n/// kernelwright\n{BODY}///\n*/\n",
    "block opened on the line": f"/* /// kernelwright\n{BODY}/// */\n",
    "starred block": "/**\n * /// kernelwright\n" + re.sub("(?m)^(.)", r" * \1", BODY) + " * ///\n */\n",
    "python": line_style(BODY.replace('block = ["BLOCK"]\n', ""), "#"),
}


@pytest.mark.parametrize("style", STYLES)
def test_every_comment_style_reads_the_same(style: str) -> None:
    header = parse_header(STYLES[style] + "kernel void k() {}\n", FILE, entry="k")
    values = {parameter.name: parameter.values for parameter in header.parameters}
    assert values == {
        "BLOCK": (64, 128, 256),
        "VEC": (1, 2, 4, 8),
        "STEP": (10, 20, 30),
        "RATIO": (1.0, 0.5),
        "FAST": (False, True),
        "TYPE": ("float", "double"),
    }
    assert [parameter.default for parameter in header.parameters] == [128, 4, 20, 1.0, False, "float"]
    assert header.parameters[0].why == "threads"
    assert [constraint.name for constraint in header.constraints] == ["vector"]
    assert header.steps[0].entry == "k"
    assert header.defines["ROW"].text == "2 * n"
    assert [(each.name, each.role) for each in header.scratch] == [("tmp", "scratch"), ("tile", "local")]


@pytest.mark.parametrize("style", STYLES)
def test_every_comment_style_points_into_the_source(style: str) -> None:
    text = STYLES[style].replace("n % VEC", "n $ VEC")
    with pytest.raises(SpecError) as caught:
        parse_header(text, FILE, entry="k")
    location = caught.value.location
    assert location is not None
    assert text.split("\n")[location.line - 1][location.column - 1 :].startswith("$ VEC")


def test_a_plain_source_has_an_empty_header() -> None:
    header = parse_header("// a kernel\nkernel void k() {}\n", FILE)
    assert header.parameters == ()
    assert header.location is None


def test_an_empty_header_is_a_header() -> None:
    header = parse_header("// /// kernelwright\n// ///\n", FILE)
    assert header.location is not None
    assert header.parameters == ()


@dataclass(frozen=True)
class Case:
    """One mistake in the header: `old` becomes `new`, and the complaint stands at `at`."""

    name: str
    old: str
    new: str
    message: str
    at: str
    hint: str = ""

    def __str__(self) -> str:
        return self.name


VALUES = "values = [64, 128, 256], default = 128"
BAD = [
    Case("unknown table", "[constraints]", "[constraint]", "unknown key 'constraint'", "[constraint]", "'constraints'"),
    Case("arguments in the header", "[constraints]", "[arguments]", "unknown key", "[arguments]", "problem.toml"),
    Case("unknown key of a parameter", "values = [64", "value = [64", "unknown key 'value'", "value = [64", "'values'"),
    Case("parameter is a list", f"{{ {VALUES}, why = \"threads\" }}", "[64, 128]", "expected a table", "[64, 128]"),
    Case("no values", VALUES, "default = 128", "'values' is missing", "BLOCK", "powers_of_two"),
    Case("empty values", VALUES, "values = [], default = 128", "has no values", "[], default"),
    Case("two forms", VALUES, "values = [1], range = [1, 2], default = 1", "both 'values' and 'range'", "range ="),
    Case("no default", ", default = 128", "", "'default' is missing", "BLOCK", "default = 128"),
    Case("default not among the values", "default = 128", "default = 100", "100 is not among the values 64, 128, 256",
         "100", "the nearest is 128"),
    Case("default of another type", "default = 128", 'default = "128"', "is not among the values", '128"', "numbers"),
    Case("boolean default of numbers", "values = [64, 128, 256], default = 128", "values = [0, 1], default = true",
         "true is not among the values 0, 1", "true", "numbers"),
    Case("duplicate values", "[64, 128, 256]", "[64, 128, 64]", "has the value 64 twice", "64], default"),
    Case("duplicate across types", "[64, 128, 256]", "[64, 128, 64.0]", "has the value 64.0 twice", "64.0"),
    Case("mixed types", "[64, 128, 256]", '[64, 128, "x"]', "mix numbers and texts: 64 and 'x'", 'x"'),
    Case("booleans among numbers", "[64, 128, 256]", "[64, 128, true]", "mix numbers and booleans", "true"),
    Case("values that are lists", "[64, 128, 256]", "[64, [128]]", "expected a number, a boolean or a text", "[128]]"),
    Case("values that are no list", "[64, 128, 256]", "64", "expected a list", "64, default"),
    Case("values that are endless", "[64, 128, 256]", "[64, inf]", "expected a number", "inf"),
    Case("text with a line break", '["float", "double"]', '["float", "a\\nb"]', "cannot be the text of a macro",
         "a\\n"),
    Case("range upside down", "[10, 30, 10]", "[30, 10, 10]", "is empty or endless", "[30"),
    Case("range without step", "[10, 30, 10]", "[10, 30, 0]", "is empty or endless", "[10, 30, 0]"),
    Case("range of one number", "[10, 30, 10]", "[10]", "expected [low, high]", "[10]"),
    Case("range of texts", "[10, 30, 10]", '["a", "b"]', "expected [low, high]", '["a"'),
    Case("range without end", "[10, 30, 10]", "[0, 1000000000]", "has 1000000001 values", "[0, 1"),
    Case("powers that are none", "[1, 8]", "[1, 6]", "both powers of two", "[1, 6]"),
    Case("powers upside down", "[1, 8]", "[8, 1]", "both powers of two", "[8, 1]"),
    Case("powers of floats", "[1, 8]", "[1.0, 8]", "both powers of two", "[1.0"),
    Case("parameter that is no identifier", "BLOCK =", '"BLOCK-X" =', "not an identifier", '"BLOCK-X"', "BLOCK_X"),
    Case("parameter with a C keyword", "BLOCK =", "while =", "reserved word", "while ="),
    Case("parameter with a function's name", "BLOCK =", "max =", "is a function of expressions", "max ="),
    Case("constraint that is no text", '"n % VEC == 0"', "3", "expected a condition", "3"),
    Case("constraint that is no expression", "n % VEC == 0", "n % VEC = 0", "cannot read the expression", "= 0", "=="),
    Case("unknown key of the launch", "block =", "blok =", "unknown key 'blok'", "blok", "'block'"),
    Case("launch without block", 'block = ["BLOCK"]\n', "", "'block' is missing", "[launch]"),
    Case("scratch with a wrong role", 'role = "local"', 'role = "input"', "unknown role 'input'", 'input"'),
    Case("scratch without dtype", 'dtype = "float32", shape = ["n"]', 'shape = ["n"]', "'dtype' is missing", "tmp ="),
    Case("scratch with data", 'shape = ["n"]', 'shape = ["n"], range = [0, 1]', "is scratch", "range"),
    Case("define that is no identifier", "ROW =", '"R W" =', "not an identifier", '"R W"'),
    Case("not TOML", "values = [64", "values = 64,", "not valid TOML", ", 128"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=str)
def test_a_mistake_is_named_with_its_place(case: Case) -> None:
    assert case.old in BODY, "the case changes nothing"
    text = "\n// licence\n" + line_style(BODY.replace(case.old, case.new, 1))
    with pytest.raises(SpecError, match=re.escape(case.message)) as caught:
        parse_header(text, FILE, entry="k")
    error = caught.value
    assert case.hint in (error.hint or "")
    assert error.location is not None
    assert text.split("\n")[error.location.line - 1][error.location.column - 1 :].startswith(case.at)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("// /// kernelwright\n// [parameters]\nkernel void k() {}\n", "line 3 is not part of it", 1),
        ("// /// kernelwright\n// [parameters]", "not closed", 1),
        ("\n/*\n/// kernelwright\n[parameters]\n*/\n", "not closed: line 5", 3),
        ("# /// kernelwright\n# [parameters]\nimport triton\n", "not closed", 1),
        ("/// kernelwright\n/// [parameters]\n", "not in a comment", 1),
        ("// /// kernelwright\n// ///\n// /// kernelwright\n// ///\n", "a second header", 3),
        ("\n// /// kernelwrigth\n// ///\n", "says 'kernelwrigth'", 2),
    ],
)
def test_a_header_that_cannot_be_found_whole_is_refused(text: str, message: str, line: int) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse_header(text, FILE)
    assert caught.value.location is not None
    assert caught.value.location.line == line
    assert caught.value.hint


def test_doxygen_comments_are_not_headers() -> None:
    assert parse_header("/// Adds two arrays.\n/// kernel\n// /// other\nvoid f();\n", FILE).location is None


def test_a_launch_without_entry_needs_one() -> None:
    with pytest.raises(SpecError, match="'entry' is missing"):
        parse_header(line_style(BODY), FILE)
