"""Run folders of which a part was changed, lost or damaged since the run: nothing is exported, measured or claimed."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.errors import StoreError
from kernelwright.export.run import export_run
from kernelwright.identity import content_id
from kernelwright.optimization import optimize as engine_optimize
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.report.page import write_report
from kernelwright.store.frozen import MANIFEST_NAME
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.template.load import files_as_written
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning import tune as engine_tune
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem, replay, tune

SETTINGS = TuneSettings(budget=Budget(evaluations=24), searcher="random", data_seed=1, comparison_rounds=10)
CHANGED = "is not what this run recorded"


def cost(config: Config, workload: Workload) -> float:
    time_ms = workload.sizes["n"] * 1e-4
    return time_ms / float(config.get("TILE", 1)) / (2.0 if config.get("BLOCK") == 64 else 1.0)  # type: ignore[arg-type]


def machine() -> SimulatedMachine:
    return SimulatedMachine(cost, noise=0.005)


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_tune, "LocalMachine", machine)
    monkeypatch.setattr(engine_optimize, "LocalMachine", machine)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, write_saxpy: Callable[..., Path]) -> Path:
    """A folder with a finished run of `tune` and one of `optimize`."""
    folder = tmp_path_factory.mktemp("made")
    saxpy, plain = write_saxpy(folder / "saxpy"), write_saxpy(folder / "plain")
    source = (plain / "saxpy.cl").read_text()
    (plain / "saxpy.cl").write_text(source[source.index("#ifndef") :])
    tune(saxpy, settings=SETTINGS, run=folder / "tuned", machine=machine())
    agent = ScriptedAgent((ScriptedTactic("tile", 3.0, "memory"),), lifted=ScriptedTactic("lift", 1.0, "launch"))
    settings = OptimizeSettings(tune=SETTINGS, memory="off")
    result = optimize(plain, settings=settings, run=folder / "tree", machine=machine(), agent=agent)
    assert result.winner is not None
    assert result.winner.index == 2
    return folder


@pytest.fixture
def tuned(made: Path, in_tmp: Path) -> Path:
    return Path(shutil.copytree(made / "tuned", in_tmp / "tuned"))


@pytest.fixture
def tree(made: Path, in_tmp: Path) -> Path:
    return Path(shutil.copytree(made / "tree", in_tmp / "tree"))


def cut(run: Path, count: int) -> None:
    """Leave out the last events, as a kill does."""
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join(lines[:-count]))


def add(file: Path, text: str = "int x = ;\n") -> Path:
    with file.open("a") as stream:
        stream.write(text)
    return file


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    """Exit status and standard error of a command."""
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    code = exit_.value.code
    assert isinstance(code, int | None)
    return code or 0, capsys.readouterr().err


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Standard output of a command."""
    with pytest.raises(SystemExit):
        main([str(word) for word in words])
    return capsys.readouterr().out


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}


# -- the problem was changed


@pytest.mark.parametrize("command", ["export", "resume", "report", "dispatch"])
def test_of_a_changed_problem_nothing_is_claimed_and_the_file_is_named(
    command: str, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = add(tuned / "problem" / "saxpy.cl")
    before = contents(tuned)
    status, words = said(capsys, command, tuned)
    assert status == 2, words
    assert f"{file} {CHANGED}: it was changed" in words
    assert "hint: " in words
    assert contents(tuned) == before


def test_a_run_that_was_killed_is_not_resumed_with_another_problem(
    tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut(tuned, 2)
    add(tuned / "problem" / "saxpy.cl", "// another kernel\n")
    before = contents(tuned)
    status, words = said(capsys, "resume", tuned)
    assert status == 2
    assert CHANGED in words
    assert contents(tuned) == before


def test_what_was_added_or_is_missing_is_named(tuned: Path, tmp_path: Path) -> None:
    added = add(tuned / "problem" / "helper.h")
    with pytest.raises(StoreError) as caught:
        export_run(tuned, tmp_path / "out")
    assert caught.value.message == f"{added} {CHANGED}: it was added"
    added.unlink()
    (tuned / "problem" / "reference.py").unlink()
    with pytest.raises(StoreError) as caught:
        export_run(tuned, tmp_path / "out")
    assert caught.value.message.startswith(f"{tuned / 'problem' / 'reference.py'} is missing")
    assert not (tmp_path / "out").exists()


def test_without_the_list_of_files_the_folder_is_named(tuned: Path, tmp_path: Path) -> None:
    (tuned / MANIFEST_NAME).unlink()  # as runs of earlier versions are
    assert export_run(tuned, tmp_path / "out", formats=["json"])
    add(tuned / "problem" / "saxpy.cl")
    with pytest.raises(StoreError, match=f"problem {CHANGED}: one of its files"):
        export_run(tuned, tmp_path / "other")


def test_a_list_of_files_that_was_changed_too_hides_nothing(tuned: Path, tmp_path: Path) -> None:
    add(tuned / "problem" / "saxpy.cl")
    lines = [f"{_digest(path)}  problem/{path.name}\n" for path in sorted((tuned / "problem").iterdir())]
    (tuned / MANIFEST_NAME).write_text("".join(lines))
    with pytest.raises(StoreError, match=f"problem {CHANGED}"):
        export_run(tuned, tmp_path / "out")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_an_editor_leaves_beside_the_files_is_no_part_of_the_problem(tuned: Path, tmp_path: Path) -> None:
    add(tuned / "problem" / "saxpy.cl~")
    (tuned / "problem" / "__pycache__").mkdir()
    add(tuned / "problem" / "__pycache__" / "reference.cpython-311.pyc")
    assert export_run(tuned, tmp_path / "out", formats=["json"])
    assert sorted(RunFolder.open(tuned, writable=False).problem_files()) == ["problem.toml", "reference.py", "saxpy.cl"]


def test_the_list_of_files_is_one_that_sha256sum_checks(tuned: Path) -> None:
    program = shutil.which("sha256sum")
    if program is None:
        pytest.skip("no sha256sum here")
    words = [program, "--check", "--strict", MANIFEST_NAME]
    assert subprocess.run(words, cwd=tuned, check=False, capture_output=True).returncode == 0
    add(tuned / "problem" / "saxpy.cl")
    assert subprocess.run(words, cwd=tuned, check=False, capture_output=True).returncode == 1


def test_a_run_that_recorded_no_id_is_taken_as_it_is(tuned: Path, tmp_path: Path) -> None:
    events = list(RunFolder.open(tuned, writable=False).read())
    files = RunFolder.open(tuned, writable=False).problem_files()
    old = tmp_path / "old"
    with RunFolder.create(old, files=files) as folder:
        folder.append([dataclasses.replace(events[0], problem_id=""), *events[1:]])  # type: ignore[type-var]
    add(old / "problem" / "saxpy.cl", "// a word\n")
    assert export_run(old, tmp_path / "out", formats=["json"])


def test_figures_are_shown_with_a_warning(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "show", "run", tuned) == (0, "")
    add(tuned / "problem" / "saxpy.cl")
    status, words = said(capsys, "show", "run", tuned)
    assert status == 0
    assert words.startswith(f"warning: {tuned / 'problem' / 'saxpy.cl'} {CHANGED}")


@pytest.mark.parametrize("is_empty", [False, True])
def test_where_the_problem_is_gone_the_figures_are_shown_and_one_sentence_says_so(
    tuned: Path, capsys: pytest.CaptureFixture[str], *, is_empty: bool
) -> None:
    whole = printed(capsys, "show", "run", tuned)
    shutil.rmtree(tuned / "problem")
    if is_empty:
        (tuned / "problem").mkdir()
    missing = f"{tuned / 'problem'} is missing: it holds what this run measured"
    for words in (["run", tuned], ["run", tuned, "--json"], ["candidate", tuned, "best"], [tuned]):
        status, text = said(capsys, "show", *words)
        assert status == 0
        assert text.startswith(f"warning: {missing}")
        assert len(text.splitlines()) == 1
    assert printed(capsys, "show", "run", tuned) == whole
    before = contents(tuned)
    for command in ("export", "resume", "dispatch"):
        status, text = said(capsys, command, tuned)
        assert status == 2
        assert missing in text
    assert contents(tuned) == before
    status, text = said(capsys, "report", tuned)
    assert (status, text.startswith(f"warning: {missing}")) == (0, True)


def test_where_a_structures_problem_is_gone_it_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(tree / "problem")
    shutil.rmtree(tree / "nodes" / "002" / "problem")
    status, text = said(capsys, "show", "run", tree)
    assert status == 0
    assert [line.partition(" is missing")[0] for line in text.splitlines()] == [
        f"warning: {tree / 'problem'}",
        f"warning: {tree / 'nodes' / '002' / 'problem'}",
    ]


def test_a_replay_of_a_changed_problem_is_refused(tuned: Path, tmp_path: Path) -> None:
    add(tuned / "problem" / "saxpy.cl")
    with pytest.raises(StoreError, match=CHANGED):
        replay(tuned, run=tmp_path / "again")
    assert not (tmp_path / "again").exists()


# -- a node's problem was changed


@pytest.mark.parametrize("killed", [False, True])
def test_a_winner_whose_source_was_changed_is_not_lost_without_a_word(
    tree: Path, capsys: pytest.CaptureFixture[str], *, killed: bool
) -> None:
    if killed:
        cut(tree, 2)
    file = add(next((tree / "nodes" / "002" / "problem").glob("*template*.cl")))
    before = contents(tree)
    for command in ("resume", "report", *(() if killed else ("export", "dispatch"))):
        status, words = said(capsys, command, tree)
        assert status == 2, words
        assert f"{file} {CHANGED}" in words
    assert contents(tree) == before
    status, words = said(capsys, "show", "node", tree, "2")
    assert status == 0
    assert words.startswith(f"warning: {file} {CHANGED}")
    assert said(capsys, "show", "node", tree, "1") == (0, "")


def test_the_problem_of_the_whole_run_counts_too(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = add(tree / "problem" / "saxpy.cl", "// a word\n")
    for words in (["export", tree], ["resume", tree], ["optimize", "--replay", tree]):
        status, text = said(capsys, *words)
        assert status == 2, text
        assert f"{file} {CHANGED}" in text


# -- a node's folder is missing, or its record is damaged


def test_a_missing_node_is_said_to_be_missing(tree: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tree / "nodes" / "002"
    shutil.rmtree(folder)
    before = contents(tree)
    for words in (
        ["export", tree],
        ["show", "candidate", tree, "best"],
        ["optimize", "--replay", tree, "--run", in_tmp / "again"],
        ["resume", tree],
    ):
        status, text = said(capsys, *words)
        assert status == 2, text
        assert f"{folder} is missing: node 2 was built" in text
        assert "hint: restore it from a copy" in text
    assert contents(tree) == before
    assert not (in_tmp / "again").exists()
    status, text = said(capsys, "show", "node", tree, "2")
    assert (status, text.startswith(f"warning: {folder} is missing")) == (0, True)
    status, text = said(capsys, "report", tree)
    assert (status, text.startswith(f"warning: {folder} is missing")) == (0, True)


def test_a_killed_run_with_a_missing_node_is_not_measured_anew(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut(tree, 2)
    shutil.rmtree(tree / "nodes" / "001")
    status, text = said(capsys, "resume", tree)
    assert status == 2
    assert f"{tree / 'nodes' / '001'} is missing" in text
    assert not (tree / "nodes" / "001").exists()


@pytest.mark.parametrize("killed", [False, True])
def test_a_damaged_node_is_told_and_never_removed(
    tree: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str], *, killed: bool
) -> None:
    if killed:
        cut(tree, 2)
    log = tree / "nodes" / "002" / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:4], lines[4].replace(b'":', b'";', 1), *lines[5:]]))
    before = contents(tree)
    for words in (["resume", tree], ["optimize", "--replay", tree, "--run", in_tmp / "again"]):
        status, text = said(capsys, *words)
        assert status == 2, text
        assert f"{log}:5: the run's record is damaged here" in text
    assert contents(tree) == before
    for words in (["show", "node", tree, "2"], ["report", tree, "--out", in_tmp / "x.html"]):
        status, text = said(capsys, *words)
        assert status == 0
        assert text.startswith(f"warning: {log}:5: the run's record is damaged here")
    assert "record is damaged here" in (in_tmp / "x.html").read_text(), "the page has a note of it"
    assert said(capsys, "show", "node", tree, "1") == (0, "")


def test_the_hint_of_damage_is_a_command_that_works_from_anywhere(
    tuned: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.move(tuned, in_tmp / "a run"))
    log = run / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:6], b"x" + lines[6], *lines[7:]])
    log.write_bytes(damaged)
    status, text = said(capsys, "show", "run", run)
    assert status == 2
    assert "keep the 6 records before the damage" in text
    command = text.split("`")[1]
    subprocess.run(["/bin/sh", "-c", command], check=True, cwd=os.sep)
    assert said(capsys, "show", "run", run) == (0, "")
    assert len(list(RunFolder.open(run, writable=False).read())) == 6
    assert (run / "events.jsonl.damaged").read_bytes() == damaged


def test_damage_of_the_first_record_leaves_nothing_to_keep(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tuned / "events.jsonl"
    log.write_bytes(b"x" + log.read_bytes())
    status, text = said(capsys, "show", "run", tuned)
    assert status == 2
    assert f"hint: restore {log} from a copy: its first record is damaged" in text
    assert "head" not in text


# -- problems without a name


@pytest.mark.parametrize("first", ["", "# a problem\n", "\n", "\ufeff# a problem\r\n"])
def test_the_name_that_a_folder_gave_is_kept_with_the_run(
    first: str, write_saxpy: Callable[..., Path], in_tmp: Path
) -> None:
    folder = write_saxpy(in_tmp / "fancy_saxpy")
    text = (folder / "problem.toml").read_text().removeprefix('name = "saxpy"\n')
    (folder / "problem.toml").write_text(first + text, newline="")
    tune(folder, settings=SETTINGS, run=in_tmp / "run", machine=machine())
    names = [path.name for path in export_run(in_tmp / "run", in_tmp / "out", formats=["header", "json"])]
    assert names == ["kernelwright_fancy_saxpy.h", "fancy_saxpy.json"]
    assert "KERNELWRIGHT_FANCY_SAXPY_H" in (in_tmp / "out" / names[0]).read_text()
    assert TuningProblem.load(in_tmp / "run" / "problem").problem.name == "fancy_saxpy"
    frozen = (in_tmp / "run" / "problem" / "problem.toml").read_bytes()
    if first:
        assert len(frozen.splitlines()) == len((folder / "problem.toml").read_bytes().splitlines()), (
            "lines keep numbers"
        )
    replayed = replay(in_tmp / "run", run=in_tmp / "again")
    assert replayed.view.started.problem_name == "fancy_saxpy"
    assert write_report(in_tmp / "again", in_tmp / "again.html").exists()


def test_an_older_run_that_kept_no_name_is_exported_by_its_own(
    write_saxpy: Callable[..., Path], in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_saxpy(in_tmp / "fancy_saxpy")
    text = (folder / "problem.toml").read_text().removeprefix('name = "saxpy"\n')
    (folder / "problem.toml").write_text(text)
    tune(folder, settings=SETTINGS, run=in_tmp / "run", machine=machine())
    events = list(RunFolder.open(in_tmp / "run", writable=False).read())
    subject = TuningProblem.load(folder)
    files = files_as_written(subject.problem, subject.template, subject.baseline)
    assert b"name" not in files["problem.toml"].splitlines()[0]
    with RunFolder.create(in_tmp / "old", files=files) as old:
        old.append([dataclasses.replace(events[0], problem_id=content_id(dict(files))), *events[1:]])  # type: ignore[type-var]
    (written,) = export_run(in_tmp / "old", in_tmp / "out", formats=["header"])
    assert written.name == "kernelwright_fancy_saxpy.h"
    status, words = said(capsys, "tune", folder, "--replay", in_tmp / "old", "--run", in_tmp / "again")
    assert status == 0, words


def test_two_nameless_problems_of_optimize_get_headers_that_do_not_meet(
    write_saxpy: Callable[..., Path], in_tmp: Path
) -> None:
    guards = set()
    for name in ("first", "second"):
        plain = write_saxpy(in_tmp / name)
        source = (plain / "saxpy.cl").read_text()
        (plain / "saxpy.cl").write_text(source[source.index("#ifndef") :])
        toml = (plain / "problem.toml").read_text().removeprefix('name = "saxpy"\n')
        (plain / "problem.toml").write_text(toml)
        agent = ScriptedAgent((ScriptedTactic("tile", 3.0, "memory"),), lifted=ScriptedTactic("lift", 1.0, "launch"))
        settings = OptimizeSettings(tune=SETTINGS, memory="off")
        run = in_tmp / f"run-{name}"
        optimize(plain, settings=settings, run=run, machine=machine(), agent=agent)
        assert RunView.read(run).started.problem_name == name
        (header,) = export_run(run, in_tmp / "out", formats=["header"])
        guards.add(next(line for line in header.read_text().splitlines() if line.startswith("#ifndef")))
    assert guards == {"#ifndef KERNELWRIGHT_FIRST_H", "#ifndef KERNELWRIGHT_SECOND_H"}
