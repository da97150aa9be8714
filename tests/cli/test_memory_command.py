"""`kernelwright memory`: what is remembered can be seen, and forgotten."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from kernelwright.cli.main import app
from kernelwright.errors import UsageError
from kernelwright.memory.lesson import Circumstances, Lesson, Measured
from kernelwright.memory.library import Library

WHERE = Circumstances("transpose", "opencl", "a CPU", "cpu", "streaming", "float32")


def lesson(run: str, key: str, **changes: object) -> Lesson:
    fields: dict[str, object] = {"measured": Measured(2.5, 2.0, 3.0, 0.95), "problem": "mine", **changes}
    return Lesson("step", key, WHERE, run, 1, "2026-11-20T10:00:00+00:00", **fields)  # type: ignore[arg-type]


def said(*words: str) -> str:
    result = CliRunner().invoke(app, ["memory", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def two() -> list[Lesson]:
    lessons = [lesson("aaaa", "tiles", text="int x;"), lesson("bbbb", "rows", expired="it did not hold")]
    Library().add(lessons)
    return lessons


def test_an_empty_library_says_so() -> None:
    assert "nothing is remembered" in said("list")
    assert json.loads(said("list", "--json")) == []


def test_the_list_shows_claims_with_evidence_and_hides_what_expired(two: list[Lesson]) -> None:
    text = said("list")
    assert "tiles on transpose kernels gains 2.50x [2.00, 3.00]" in text
    assert "run aaaa node 1 of mine" in text
    assert "rows on" not in text
    assert "expired: it did not hold" in said("list", "--expired")
    assert "rows on" not in said("list", "--expired", "--run", "aaaa")
    assert "0 shown" in said("list", "--pattern", "stencil") or "nothing" in said("list", "--pattern", "stencil")


def test_one_lesson_is_shown_with_its_template(two: list[Lesson]) -> None:
    text = said("show", two[0].id[:6])
    assert "int x;" in text
    assert "proposed by: rules" in text
    assert json.loads(said("show", two[0].id, "--json"))["key"] == "tiles"
    with pytest.raises(UsageError, match="no lesson"):
        said("show", "zzzz")


def test_forgetting_asks_what(two: list[Lesson]) -> None:
    with pytest.raises(UsageError, match="was not said"):
        said("forget")
    assert "forgot 1 lesson in" in said("forget", two[0].id)
    assert "forgot 1 lesson in" in said("forget", "--run", "bbbb")
    assert Library().read().lessons == ()
    assert "forgot 0 lessons" in said("forget", "--all")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--run", "aaab"), "no lesson fits --run aaab, so nothing was forgotten.*did you mean --run aaaa"),
        (("--pattern", "Transpoze"), "did you mean --pattern transpose"),
        (("--device", "the CPU"), "did you mean --device a CPU"),
        (("--problem", "mein"), "did you mean --problem mine"),
        (("--problem", "mine", "--run", "cccccccc"), "fits --run cccccccc --problem mine.*memory list"),
        (("zzzz",), "'zzzz' is no lesson"),
    ],
)
def test_forgetting_what_is_not_there_is_an_error_that_names_the_nearest(
    two: list[Lesson], words: tuple[str, ...], told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        said("forget", *words)
    assert caught.value.exit_status == 2
    assert re.search(told, str(caught.value).replace("\n", " ")), str(caught.value)
    assert len(Library().read().lessons) == 2


def test_an_id_that_is_nearly_one_is_told(two: list[Lesson]) -> None:
    identity = two[0].id
    wrong = identity[:-1] + ("0" if identity[-1] != "0" else "1")
    with pytest.raises(UsageError, match="no lesson") as caught:
        said("forget", wrong)
    assert identity in str(caught.value)
