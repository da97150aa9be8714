"""`optimize FILE` and `init FILE` up to the problem folder: five lines, one message, nothing overwritten."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

import pytest
from kernel_truths import FOLDER

from kernelwright.cli.commands import infer as infer_command
from kernelwright.cli.commands.infer import KernelWords, inferred_problem, problem_of_kernel
from kernelwright.cli.main import main
from kernelwright.errors import UsageError
from kernelwright.evaluate.data.layout import layouts_for
from kernelwright.evaluate.judge.trial_launch import Launch, trial_launches
from kernelwright.problem.load.problem import load_problem


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(FOLDER / "seen" / "layer_norm.cl", tmp_path))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_everything_missing_is_asked_in_one_message(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, error = run(capsys, "optimize", kernel.name, "rows=64")
    assert (status, out) == (2, "")
    assert error.count("kernelwright:") == 1
    assert "hidden=NUMBER" not in error, "a size can be chosen"
    assert "eps=NUMBER" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rows"], "NAME=VALUE"),
        (["rows=many"], "no number"),
        (["rows=" + "9" * 5000], "5,000 characters"),
        (["rows=1", "rows=2"], "said twice"),
        (["rows=1", "hidden=1", "eps=1", "--grid", "1,2,3,4"], "expected 1 to 3"),
        (["rows=1", "hidden=1", "eps=1", "--block", "1,,2"], "expected 1 to 3"),
        (["rows=1", "hidden=1", "eps=1", "--block", "0"], "at least 1"),
        (["rows=1", "hidden=1", "eps=1", "--grid", "rows +"], "--grid"),
    ],
)
def test_bad_words_are_told_by_name(
    words: list[str], message: str, kernel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, error = run(capsys, "optimize", kernel.name, *words)
    assert status == 2
    assert message in error
    assert "Traceback" not in error


def test_words_behind_a_problem_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only for a kernel source"):
        inferred_problem(KernelWords(tmp_path, ("rows=1",)), is_silent=True)


def test_five_lines_and_a_folder_that_loads(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = KernelWords(kernel, ("rows=64", "hidden=32", "eps=1e-5"))
    folder = inferred_problem(said, is_silent=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["kernel", "launch", "sizes", "guesses", "problem"]
    assert "a usual block" in lines[3]
    problem = load_problem(folder)
    assert dict(problem.workloads[0].sizes) == {"rows": 64, "hidden": 32}
    assert (folder / "layer_norm.cl").read_bytes() == kernel.read_bytes()
    assert problem.reference.is_kernel


def test_a_folder_is_used_again_or_left_alone(kernel: Path) -> None:
    words = ("rows=64", "hidden=32", "eps=1e-5")
    first = inferred_problem(KernelWords(kernel, words), is_silent=True)
    assert inferred_problem(KernelWords(kernel, words), is_silent=True) == first
    (first / "problem.toml").write_text("mine")
    second = inferred_problem(KernelWords(kernel, words), is_silent=True)
    assert second != first
    assert (first / "problem.toml").read_text() == "mine"
    with pytest.raises(UsageError, match="already holds"):
        inferred_problem(KernelWords(kernel, words, out=first), is_silent=True)


def test_one_of_several_kernels_is_named_behind_the_file(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(FOLDER / "seen" / "two_step_sum.cl", kernel.parent)
    status, _, error = run(capsys, "optimize", "two_step_sum.cl", "n=10")
    assert status == 2
    assert "partial_sums" in error
    assert "::" in error
    folder = inferred_problem(KernelWords(Path("two_step_sum.cl::partial_sums"), ("n=1000",)), is_silent=True)
    assert load_problem(folder).kernel.entry == "partial_sums"


def test_a_file_that_is_not_there_is_told(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = run(capsys, "optimize", "absent.cl", "n=1")
    assert status == 2
    assert "absent.cl" in error


def test_init_guesses_a_size_that_only_the_launch_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "__global__ void k(float *x) { x[blockIdx.x * 128 + threadIdx.x] *= 2.f; }\n"
    Path("k.cu").write_text(text + "void f(float *x, int total) { k<<<total / 128, 128>>>(x); }\n")
    status, out, error = run(capsys, "init", "k.cu")
    assert status == 0, error
    assert "launch:    grid (total // 128), block (128), from the host's launch" in out
    assert " total = " in out.split("guesses:")[1]
    status, _, error = run(capsys, "optimize", "k.cu")
    assert status == 2
    assert "total=NUMBER" in error


def test_init_writes_guesses_without_any_word(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, error = run(capsys, "init", kernel.name)
    assert (status, error) == (0, "")
    assert "kernelwright optimize layer_norm" in out
    text = (kernel.parent / "layer_norm" / "problem.toml").read_text()
    assert "# guess" in text
    load_problem(kernel.parent / "layer_norm")


class FakeTrials:
    """A device on which a launch takes a microsecond for each so many bytes."""

    bytes_per_us = 100.0
    memory_bytes: int | None = None
    asked: ClassVar[list[float]] = []

    def __init__(self, scratch: Path) -> None:
        del scratch

    def launch(self, problem_file: Path) -> tuple[float, int | None]:
        problem = load_problem(problem_file)
        byte_count = sum(each.byte_count for each in layouts_for(problem, problem.workloads[0]))
        self.asked.append(byte_count)
        return 1e-6 * byte_count / self.bytes_per_us, self.memory_bytes

    def __enter__(self) -> Launch:
        return self.launch

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("bytes_per_us", "memory_bytes"), [(1e6, None), (1e6, 1 << 20), (1.0, None), (0.05, None), (1.0, 1 << 22)]
)
def test_sizes_that_nobody_says_are_chosen_for_the_device(
    kernel: Path, monkeypatch: pytest.MonkeyPatch, bytes_per_us: float, memory_bytes: int | None
) -> None:
    monkeypatch.setattr(infer_command, "trial_launches", FakeTrials)
    monkeypatch.setattr(FakeTrials, "bytes_per_us", bytes_per_us)
    monkeypatch.setattr(FakeTrials, "memory_bytes", memory_bytes)
    monkeypatch.setattr(FakeTrials, "asked", [])
    folder = problem_of_kernel(KernelWords(kernel, ("eps=1e-5",)), is_silent=True)
    problem = load_problem(folder)
    byte_count = sum(each.byte_count for each in layouts_for(problem, problem.workloads[0]))
    assert byte_count == FakeTrials.asked[-1]
    assert 1e-6 * byte_count / bytes_per_us <= 0.25
    if memory_bytes is not None:
        assert byte_count <= memory_bytes / 4
    assert len(FakeTrials.asked) <= 8


def test_sizes_that_are_said_are_not_tried(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_command, "trial_launches", None)
    words = ("eps=1e-5", "rows=64", "hidden=32")
    (workload,) = load_problem(problem_of_kernel(KernelWords(kernel, words), is_silent=True)).workloads
    assert dict(workload.sizes) == {"rows": 64, "hidden": 32}


@pytest.mark.opencl
def test_a_trial_launches_the_kernel_in_a_process_of_its_own(kernel: Path, tmp_path: Path) -> None:
    folder = problem_of_kernel(KernelWords(kernel, ("eps=1e-5", "rows=64", "hidden=32")), is_silent=True)
    with trial_launches(tmp_path / "scratch") as launch:
        launched = launch(folder / "problem.toml")
        assert launched is not None
        assert launched[0] > 0
        source = folder / "layer_norm.cl"
        original = folder / "original.cl"
        original.write_text(source.read_text().replace("{", "{ not C", 1))
        assert launch(folder / "problem.toml") is None, "the run says why it does not build"


@pytest.mark.opencl
def test_a_kernel_that_nobody_launches_need_not_build(kernel: Path, tmp_path: Path) -> None:
    kernel.write_text(
        kernel.read_text() + "\n__kernel void another(__global float *y) { y[0] = not_on_this_device(1.0f); }\n"
    )
    words = KernelWords(Path(f"{kernel}::layer_norm"), ("eps=1e-5", "rows=64", "hidden=32"))
    folder = problem_of_kernel(words, is_silent=True)
    assert "not_on_this_device" in (folder / "layer_norm.cl").read_text(), "the file stays whole"
    with trial_launches(tmp_path / "scratch") as launch:
        assert launch(folder / "problem.toml") is not None
