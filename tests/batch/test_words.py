"""`kernelwright optimize` with several problems, as a person types it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.cli.batch.words import batch_words
from kernelwright.cli.commands.infer import KernelWords
from kernelwright.cli.main import main
from kernelwright.errors import UsageError
from short_command import COMMAND


def named(*words: str) -> list[tuple[str, tuple[str, ...]]] | None:
    found = batch_words(KernelWords(Path(words[0]), words[1:]))
    return None if found is None else [(each.source.name, each.words) for each in found]


@pytest.fixture
def kernels(in_tmp: Path) -> Path:
    for name in ("a.cl", "b.cl"):
        (in_tmp / name).write_text("__kernel void k() {}")
    return in_tmp


@pytest.mark.usefixtures("kernels")
def test_each_kernel_has_the_values_behind_it() -> None:
    assert named("a.cl", "n=4", "b.cl", "m=2", "k=1") == [("a.cl", ("n=4",)), ("b.cl", ("m=2", "k=1"))]
    assert named("a.cl::k", "b.cl::k") == [("a.cl::k", ()), ("b.cl::k", ())]


@pytest.mark.usefixtures("kernels")
def test_one_problem_is_no_batch_and_a_wrong_word_stays_one() -> None:
    assert named("a.cl", "n=4") is None
    assert named("a.cl", "c.cl") is None  # which is told as a word that is no NAME=VALUE


def test_a_folder_of_problems_is_all_of_them(in_tmp: Path, write_saxpy: Callable[..., Path]) -> None:
    (in_tmp / "all").mkdir()
    for name in ("two", "one"):
        write_saxpy(in_tmp / "all" / name)
    assert named("all") == [("one", ()), ("two", ())]
    assert named("all/one") is None


@pytest.mark.usefixtures("kernels")
def test_an_option_of_one_kernel_is_refused() -> None:
    with pytest.raises(UsageError, match="of which of 2 problems"):
        batch_words(KernelWords(Path("a.cl"), ("b.cl",), grid="64"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["one", "--profile", "x.csv"], "one is named"),
        (["one", "two", "--profile", "x.csv"], "the profile x.csv cannot be read"),
        (["one", "two", "--budget", "100"], "evaluations of several problems cannot be added up"),
        (["one", "two", "--policy", "gian"], "did you mean 'gain'?"),
    ],
)
def test_wrong_words_are_one_message(
    in_tmp: Path, write_saxpy: Callable[..., Path], capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    for name in ("one", "two"):
        write_saxpy(in_tmp / name)
    with pytest.raises(SystemExit) as ended:
        main(["optimize", *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
    assert not (in_tmp / "runs").exists()


@pytest.mark.opencl
@pytest.mark.thorough
def test_two_problems_from_the_command_to_the_page(in_tmp: Path, write_saxpy: Callable[..., Path]) -> None:
    for name in ("one", "two"):
        write_saxpy(in_tmp / name, is_beatable=True)
    words = ["optimize", "one", "two", "--budget", "90s", "--searcher", "random", "--run", "batch", "--json"]
    done = subprocess.run([*COMMAND, *words], cwd=in_tmp, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [each["problem"] for each in told["problems"]] == ["one", "two"]
    assert (in_tmp / "batch" / "report.html").is_file()
    for words in (["show", "run", "batch"], ["report", "batch"], ["resume", "batch"], ["show", "runs", "batch"]):
        again = subprocess.run([*COMMAND, *words], cwd=in_tmp, capture_output=True, text=True, check=False)
        assert again.returncode == 0, again.stderr
