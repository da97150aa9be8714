"""The table of attempts is counted from run folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.errors import StoreError
from kernelwright.insights.attempt_table import attempt_table, kind_of

RECORDINGS = Path(__file__).parents[1] / "agent" / "recordings"


def test_the_recorded_runs_are_counted() -> None:
    table = attempt_table([RECORDINGS])
    assert sorted(each.run.name for each in table.runs) == sorted(each.name for each in RECORDINGS.iterdir())
    softmax = next(each for each in table.runs if each.run.name == "softmax")
    assert (softmax.figures.attempt_count, softmax.figures.correct_count, softmax.reply_count) == (6, 5, 17)
    assert softmax.sent_back == ("the source is refused: ... is declared and not defined",)
    assert dict(table.mistakes)["attempt failed: build: compile-error"] == 1
    counts = [count for _, count in table.mistakes]
    assert counts == sorted(counts, reverse=True)


def test_the_table_is_markdown_with_a_line_for_each_run_and_one_for_all() -> None:
    text = attempt_table([RECORDINGS / "softmax", RECORDINGS / "stencil"]).markdown()
    first, _, second = text.partition("\n\n")
    lines = first.splitlines()
    assert len(lines) == 2 + 2 + 1
    assert len({line.count("|") for line in lines}) == 1
    assert lines[-1].startswith("| all |")
    assert second.startswith("| what went wrong | times |")
    assert "| all |" not in attempt_table([RECORDINGS / "softmax"]).markdown()


def test_kinds_leave_names_and_numbers_out() -> None:
    one = kind_of("the source is refused: 'VSTORE' is declared and not defined: everything must be in its source")
    other = kind_of("the source is refused: 'f' is declared and not defined: everything must be in its source")
    assert one == other == "the source is refused: ... is declared and not defined"
    assert kind_of("expected one begin, found 2 and 1, at lines 3, 9") == kind_of(
        "expected one begin, found 1 and 0, at lines 7, 12"
    )


def test_what_holds_no_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreError, match="holds no run"):
        attempt_table([tmp_path])
    with pytest.raises(SystemExit) as ended:
        main(["show", "attempts", str(tmp_path)])
    assert ended.value.code == 2
    assert "holds no run" in capsys.readouterr().err


def test_the_command_prints_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["show", "attempts", str(RECORDINGS / "stencil"), *words])
        assert ended.value.code in (0, None)
        text = capsys.readouterr().out
        if words:
            assert json.loads(text)["runs"][0]["attempts"] == 6
        else:
            assert text.startswith("| run |")
