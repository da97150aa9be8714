"""A header that is written reads back as it was, and one that is read is written with every key and value."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.errors import SpecError
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import LaunchStep
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.template.header import (
    Header,
    expressions,
    header_toml,
    parse_header,
    scratch_argument,
    strip_header,
)

ROOT = Path(__file__).parents[2]
FILE = Path("template.cu")

NAMES = st.from_regex(r"P_[A-Z0-9_]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
LINES = st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")), max_size=12)
EXPRESSIONS = st.sampled_from(
    (
        "1",
        "n",
        "ceil_div(n, BLOCK)",
        "(n + 3) // 4",
        "T == 'float'",
        'T == "a b"',
        "a  +\tb",
        "device.warp_size * 2",
        "0.5 * n",
    )
).map(Expression.parse)
SCRATCH_ROLES = st.sampled_from(("scratch", "local"))
DTYPE_NAMES = st.sampled_from(sorted(DTYPES))
OPTIONS = st.sampled_from(("-cl-mad-enable", "--maxrregcount={R}", "-DA='x \"y\"'"))


@st.composite
def _parameters(draw: st.DrawFn, name: str) -> Parameter:
    kinds = (
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
        LINES,
    )
    values = draw(st.lists(draw(st.sampled_from(kinds)), min_size=1, max_size=4, unique=True))
    return Parameter(name, tuple(values), draw(st.sampled_from(values)), draw(TEXTS))


@st.composite
def _steps(draw: st.DrawFn) -> LaunchStep:
    extents = st.lists(EXPRESSIONS, min_size=1, max_size=3).map(tuple)
    return LaunchStep(
        draw(TEXTS.filter(bool)),
        draw(extents),
        draw(extents),
        draw(st.none() | EXPRESSIONS),
        draw(st.none() | st.lists(TEXTS, max_size=3).map(tuple)),
        cluster=draw(st.just(()) | extents),
        is_cooperative=draw(st.booleans()),
        constants=tuple(draw(st.dictionaries(TEXTS, TEXTS, max_size=2)).items()),
    )


@st.composite
def _headers(draw: st.DrawFn) -> Header:
    names = draw(st.lists(NAMES, max_size=5, unique=True))
    declared, defined = names[: len(names) // 2], names[len(names) // 2 :]
    shapes = st.lists(EXPRESSIONS, min_size=1, max_size=2)
    return Header(
        parameters=tuple(draw(_parameters(name)) for name in declared),
        constraints=tuple(Constraint(*each) for each in draw(st.dictionaries(TEXTS, EXPRESSIONS, max_size=3)).items()),
        steps=tuple(draw(st.lists(_steps(), max_size=3))),
        defines={name: draw(EXPRESSIONS) for name in defined},
        scratch=tuple(
            scratch_argument(f"s_{name}", draw(DTYPE_NAMES), draw(shapes), draw(SCRATCH_ROLES)) for name in defined
        ),
        options=tuple(draw(st.lists(OPTIONS, max_size=2))),
    )


@settings(max_examples=30)
@given(_headers(), st.sampled_from(("//", "#")))
def test_what_is_written_reads_back_as_it_was(header: Header, mark: Any) -> None:
    if mark == "#":  # of Triton, whose compiler decides the rest of a launch
        header = replace(header, mark=mark, steps=tuple(map(_of_triton, header.steps)))
    text = header.render()
    assert parse_header(text, FILE) == header
    assert parse_header(text, FILE).render() == text
    assert strip_header(text + "int x;\n") == "int x;\n"


def _of_triton(step: LaunchStep) -> LaunchStep:
    return LaunchStep(step.entry, step.grid, (), None, step.arguments)


def test_a_triton_header_writes_no_block_and_refuses_one() -> None:
    header = Header(
        steps=(LaunchStep("k", expressions(("n",)), expressions(("32 * num_warps",)), None, ("x",)),), mark="#"
    )
    assert "block" not in header.render()
    assert parse_header(header.render(), FILE).steps[0].block == ()
    with pytest.raises(SpecError, match="'block' in the launch of a Triton kernel"):
        parse_header("# /// kernelwright\n# [launch]\n# entry = 'k'\n# grid = ['1']\n# block = ['32']\n# ///\n", FILE)


def test_launches_keep_what_only_some_have() -> None:
    step = LaunchStep(
        "k", expressions(("n",)), expressions(("64",)), None, ("x",),
        cluster=expressions(("2", "1")), is_cooperative=True, constants=(("TABLE", "table"),),
    )  # fmt: skip
    header = Header(steps=(step,))
    assert parse_header(header.render(), FILE) == header
    changed = header.relaunched("k", grid=("m",), block=("32",)).steps[0]
    assert (changed.cluster, changed.is_cooperative, changed.constants) == (step.cluster, True, step.constants)


# Every template there is


def _texts() -> Iterator[tuple[str, str]]:
    """By place, every file and every text of a test with a header."""
    for folder in ("src/kernelwright/examples", "tests", "benchmarks", "src/kernelwright_bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cl", ".cu", ".hip", ".py") and path != Path(__file__):
                text = path.read_text(encoding="utf-8", errors="replace")
                name = path.relative_to(ROOT).as_posix()
                if "/// kernelwright" not in text:
                    continue
                if path.suffix == ".py":
                    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
                    kept = (node for node in nodes if isinstance(node.value, str) and "/// kernelwright" in node.value)
                    yield from ((f"{name}:{node.lineno}", str(node.value)) for node in kept)
                yield name, text


def _said(toml: str) -> Any:
    """What a header says, in one spelling: each range as its values, numbers in expressions as texts."""
    data = tomllib.loads(toml)
    for each in data.get("parameters", {}).values():
        for form in ("range", "powers_of_two"):
            if form in each:
                each["values"] = each.pop(form)
    steps = data.pop("launch", [])
    data["launch"] = steps if isinstance(steps, list) else [steps]
    for table in (*data["launch"], *data.get("scratch", {}).values()):
        for key in ("grid", "block", "cluster", "shape"):
            if key in table:
                table[key] = [str(extent) for extent in table[key]]
        if "shared_bytes" in table:
            table["shared_bytes"] = str(table["shared_bytes"])
    for name in ("constraints", "defines"):
        data[name] = {key: str(value) for key, value in data.get(name, {}).items()}
    return data


def _without_lost_forms(said: Any, header: Header) -> Any:
    for each in header.parameters:
        said["parameters"][each.name]["values"] = list(each.values)
    for table in said["launch"]:
        table.setdefault("entry", "k")
        if table.get("cooperative") is False:
            del table["cooperative"]
    for table in said.get("scratch", {}).values():
        table.setdefault("role", "scratch")
    for name in ("parameters", "scratch", "options"):
        said[name] = said.get(name) or {}
    return said


def test_every_template_there_is_keeps_every_key_and_value() -> None:
    count = 0
    for place, text in _texts():
        try:
            header = parse_header(text, FILE, entry="k")
        except SpecError:
            continue  # a template that is wrong, which a test is about
        if header.location is None:
            continue
        count += 1
        again = header.render() + strip_header(text)
        assert parse_header(again, FILE) == header, place
        assert strip_header(again).strip() == strip_header(text).strip(), place
        was, now = (_without_lost_forms(_said(header_toml(each)), header) for each in (text, again))
        assert now == was, place
    assert count > 50
