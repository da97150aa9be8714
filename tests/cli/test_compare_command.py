"""`kernelwright bench compare` as a person types it, with rules on the CPU device."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from short_command import COMMAND


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--max-cost", "5usd"], "--max-cost has no effect: rules cost nothing"),
        (["--jobs", "100000"], "--jobs"),
        (["--rounds", "1000000"], "--rounds"),
    ],
)
def test_words_without_effect_and_beyond_bounds_are_refused(
    saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "compare", str(saxpy), *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
    assert not list(in_tmp.iterdir())


def test_an_unknown_policy_names_the_nearest(saxpy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "compare", str(saxpy), "--policies", "default,starkk"])
    assert ended.value.code == 2
    assert "did you mean 'stark'?" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.opencl
def test_rules_are_compared_and_nothing_runs_twice(tmp_path: Path, write_saxpy: Callable[..., Path]) -> None:
    problem = write_saxpy(tmp_path / "saxpy", is_beatable=True, is_small=True)
    words = ["bench", "compare", str(problem), "--policies", "direct,tune-only", "--repeats", "1", "--budget", "3"]
    command = [*COMMAND, *words, "--rounds", "5", "--searcher", "random", "--out", "cmp", "--json"]

    def told() -> dict[str, object]:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    first = told()
    cells = first["cells"]
    assert isinstance(cells, list)
    assert [cell["arm"] for cell in cells] == ["direct", "tune-only"]
    assert all(cell["speedup"] >= 1 for cell in cells)
    assert told() == first
