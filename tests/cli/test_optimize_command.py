"""`kernelwright optimize` as a person types it: words, exit status, resumption, what reads its run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from short_command import COMMAND


def kernelwright(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--policy", "gian"], "did you mean 'gain'?"),
        (["--start", "base"], "did you mean 'baseline'?"),
        (["--searcher", "locl"], "did you mean 'local'?"),
        (["--policy", "zzz"], "say one of default, gain, "),
        (["--policy", "defualt"], "did you mean 'default'?"),
        (["--max-cost", "5usd"], "--max-cost has no effect: rules cost nothing"),
        (["--max-tokens", "5"], "--max-tokens has no effect"),
        (["--jobs", "100000"], "--jobs"),
        (["--rounds", "1000000"], "--rounds"),
        (["--model", "openai:gpt-5"], "OPENAI_API_KEY"),
    ],
)
def test_wrong_words_name_the_nearest(
    saxpy: Path,
    in_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["optimize", str(saxpy), *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.fixture(scope="module")
def optimised(tmp_path_factory: pytest.TempPathFactory, write_saxpy: Callable[..., Path]) -> tuple[Path, str]:
    """A finished run with a tree: its folder, and what was printed."""
    folder = tmp_path_factory.mktemp("optimised")
    problem = write_saxpy(folder / "saxpy", is_beatable=True)
    done = kernelwright(
        "optimize", problem, "--budget", "6", "--searcher", "random", "--run", "run", "--json", folder=folder
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.opencl
def test_one_document_for_scripts(optimised: tuple[Path, str]) -> None:
    summary = json.loads(optimised[1])
    assert summary["nodes"][0]["what"] == "baseline"
    assert any(node["what"] == "given" and node["status"] == "working" for node in summary["nodes"])
    assert summary["is_gain"]
    assert (optimised[0] / "run" / "report.html").is_file()


@pytest.mark.opencl
def test_what_reads_runs_reads_a_tree(
    optimised: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = optimised
    monkeypatch.chdir(folder)
    before = (folder / "run" / "events.jsonl").read_bytes()
    for words in (["resume", "run"], ["show", "run", "run"], ["show", "candidate", "run", "best"], ["export", "run"]):
        try:
            main(words)
        except SystemExit as ended:
            assert ended.code in (0, None), words  # noqa: PT017
    assert (folder / "run" / "events.jsonl").read_bytes() == before
    shown = capsys.readouterr().out
    assert "0 baseline" in shown
    assert "as fast as the baseline" in shown
