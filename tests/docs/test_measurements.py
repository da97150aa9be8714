"""The record of measurements: every file is whole, every table of the page comes from its files."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILES = sorted((DOCS / "measurements").rglob("*.toml"))
PAGE = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
SECTIONS = [each for each in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:] if "\n|" in each]
LINK = re.compile(r"\]\((measurements/[^)]+\.toml)\)")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e\d+)?")


def rows_of(section: str) -> list[str]:
    """The rows of a section's tables, without their heads and without links."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    ruled = [index for index, line in enumerate(lines) if re.fullmatch(r"[|:-]+", line)]
    heads = {index for each in ruled for index in (each - 1, each)}
    return [re.sub(r"\]\([^)]*\)", "]", line) for index, line in enumerate(lines) if index not in heads]


def numbers(text: str) -> set[str]:
    return {each.replace(",", "") for each in NUMBER.findall(text)}


def test_there_are_measurements_and_tables() -> None:
    assert len(FILES) > 50
    assert len(SECTIONS) > 8


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_measurement_says_how_where_and_when(file: Path) -> None:
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    assert set(table) <= {"title", "command", "device", "date", "columns", "rows", "notes"}
    assert all(table[key] for key in ("title", "command", "device"))
    assert date.fromisoformat(table["date"])
    assert len(set(table["columns"])) == len(table["columns"])
    assert table["rows"]
    assert all(len(row) == len(table["columns"]) for row in table["rows"])


def test_every_measurement_is_linked_from_the_page() -> None:
    assert set(LINK.findall(PAGE)) == {str(file.relative_to(DOCS)) for file in FILES}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0])
def test_every_figure_of_a_table_stands_in_the_files_of_its_section(section: str) -> None:
    recorded: set[str] = set()
    for name in LINK.findall(section):
        recorded |= numbers((DOCS / name).read_text(encoding="utf-8"))
    for row in rows_of(section):
        assert numbers(row) <= recorded, row
