"""Run folders: made, opened, locked, listed, copied, and refused with one clear message."""

from __future__ import annotations

import dataclasses
import datetime
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kernelwright.errors import StoreError
from kernelwright.identity import content_id
from kernelwright.store.base import RunStore
from kernelwright.store.blobs import BlobStore
from kernelwright.store.event import Event, Noted, RunFinished, RunStarted, SessionStarted
from kernelwright.store.run_folder import RunFolder, default_run_path
from kernelwright.store.runs import list_runs
from kernelwright.store.view import RunView
from kernelwright.testing.sample_runs import FILES, sample_events, write_sample_run

HOLD = """
import sys
from pathlib import Path
from kernelwright.store.run_folder import RunFolder
run = RunFolder.open(Path(sys.argv[1]), writable=True)
print("held", flush=True)
sys.stdin.read()
"""


def hold(run: Path) -> subprocess.Popen[str]:
    """A child that holds the run's lock until it is told to end."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def events_of(files: Mapping[str, bytes]) -> list[Event]:
    """Events of a run of these files."""
    started, *others = sample_events(evaluations=3)
    assert isinstance(started, RunStarted)
    return [dataclasses.replace(started, problem_id=content_id(dict(files))), *others]


def test_new_run_holds_its_problem_and_takes_events(tmp_path: Path) -> None:
    files = {**FILES, "sub/helper.h": b"#define X 1\n"}
    events = events_of(files)
    with RunFolder.create(tmp_path / "runs" / "a", files=files) as run:
        assert isinstance(run, RunStore)
        run.append(events)
        assert run.problem_file.read_bytes() == FILES["problem.toml"]
    again = RunFolder.open(tmp_path / "runs" / "a", writable=False)
    assert list(again.read()) == events
    assert again.problem_files() == files
    assert sorted(path.name for path in again.path.iterdir()) == [
        "README.txt",
        "blobs",
        "events.jsonl",
        "lock",
        "problem",
        "problem.sha256",
    ]


def test_copied_folder_is_the_run_and_moved_folder_too(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "a" / "run", evaluations=20)
    copy = Path(shutil.copytree(run, tmp_path / "elsewhere"))
    shutil.move(tmp_path / "a", tmp_path / "gone")
    view = RunView.read(copy)
    assert view == RunView.of(RunFolder.open(copy, writable=False).read(), folder=copy)
    assert view.baseline is not None
    assert "__kernel" in RunFolder.open(copy, writable=False).blobs.get_text(view.baseline.source_blob)
    with RunFolder.open(copy, writable=True) as resumed:
        resumed.append([Noted("info", "resumed")])


def test_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "run", evaluations=2)
    child = hold(run)
    try:
        with pytest.raises(StoreError, match=f"process {child.pid} is writing to the run"):
            RunFolder.open(run, writable=True)
        assert RunView.read(run).finished is not None, "reading goes on meanwhile"
        assert [summary.state for summary in list_runs(tmp_path)] == ["running"]
    finally:
        child.communicate("")
    RunFolder.open(run, writable=True).close()


def test_lock_is_free_after_kill_9(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "run", evaluations=2)
    child = hold(run)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with RunFolder.open(run, writable=True) as mine:
        with pytest.raises(StoreError, match=f"process {os.getpid()} is writing"):
            RunFolder.open(run, writable=True)
        mine.append([Noted("info", "x")])


def test_reader_changes_nothing_and_may_not_append(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "run", evaluations=2)
    (run / "events.jsonl").write_bytes((run / "events.jsonl").read_bytes() + b'{"torn')
    (run / "lock").unlink()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with RunFolder.open(run, writable=False) as reader:
        list(reader.read())
        with pytest.raises(StoreError, match="opened for reading"):
            reader.append([Noted("info", "x")])
    list_runs(tmp_path)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_missing_run_names_the_nearest(tmp_path: Path) -> None:
    for name in ("matmul-20251121-101500", "matmul-20251121-111500", "softmax-20251120-090000"):
        write_sample_run(tmp_path / "runs" / name, evaluations=0)
    with pytest.raises(StoreError, match="there is no run") as raised:
        RunFolder.open(tmp_path / "runs" / "sofmax-20251120-090000", writable=False)
    assert "did you mean" in str(raised.value)
    assert "softmax-20251120-090000" in str(raised.value)
    with pytest.raises(StoreError) as raised:
        RunFolder.open(tmp_path / "runs" / "matmul", writable=False)
    assert str(raised.value).index("111500") < str(raised.value).index("101500")
    with pytest.raises(StoreError, match=r"did you mean .*runs/softmax"):
        RunFolder.open(tmp_path / "softmax-20251120-090000", writable=False)
    with pytest.raises(StoreError, match="runs there"):
        RunFolder.open(tmp_path / "runs" / "zzz", writable=False)
    with pytest.raises(StoreError, match="no run lies in"):
        RunFolder.open(tmp_path / "nowhere" / "zzz", writable=True)


def test_what_is_not_a_run_is_refused_with_a_way_out(tmp_path: Path) -> None:
    write_sample_run(tmp_path / "runs" / "a", evaluations=0)
    with pytest.raises(StoreError, match="not a run folder") as raised:
        RunFolder.open(tmp_path / "runs", writable=True)
    assert f"it holds runs: {tmp_path / 'runs' / 'a'}" in str(raised.value)
    assert not (tmp_path / "runs" / "lock").exists()
    with pytest.raises(StoreError, match="is a file"):
        RunFolder.open(tmp_path / "runs" / "a" / "README.txt", writable=False)


def test_occupied_folder_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="exists and is not a run folder"):
        RunFolder.create(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    run = write_sample_run(tmp_path / "run", evaluations=1)
    before = (run / "events.jsonl").read_bytes()
    with pytest.raises(StoreError, match=r"already holds a run(.|\n)*resume"):
        RunFolder.create(run)
    assert (run / "events.jsonl").read_bytes() == before
    with pytest.raises(StoreError, match="is a file"):
        RunFolder.create(run / "README.txt")
    with pytest.raises(StoreError, match="a file lies where a folder is needed"):
        RunFolder.create(run / "README.txt" / "below")
    with pytest.raises(StoreError, match=r"a file lies|is a file"):
        default_run_path("p", folder=run / "README.txt")
    with pytest.raises(StoreError, match=r"a file lies|is a file"):
        default_run_path("p", folder=run / "README.txt" / "runs")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "", "a/../../b"])
def test_problem_file_outside_the_folder_is_refused_and_nothing_stays(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="a path inside the folder was expected"):
        RunFolder.create(tmp_path / "runs" / "a", files={"problem.toml": b"", name: b"x"})
    assert list((tmp_path / "runs").iterdir()) == []


def test_default_names_are_new_even_in_the_same_second(tmp_path: Path) -> None:
    now = datetime.datetime(2025, 11, 21, 10, 15, 7, tzinfo=datetime.UTC)
    paths = [default_run_path("silu and/mul", folder=tmp_path, now=now) for _ in range(3)]
    assert [path.name for path in paths] == [
        "silu-and-mul-20251121-101507",
        "silu-and-mul-20251121-101507-2",
        "silu-and-mul-20251121-101507-3",
    ]
    RunFolder.create(paths[1]).close()
    assert [summary.name for summary in list_runs(tmp_path)] == [paths[1].name]
    assert default_run_path("../..", folder=tmp_path, now=now).name == "run-20251121-101507"


def test_list_tells_the_state_of_every_run_even_a_broken_one(tmp_path: Path) -> None:
    finished = write_sample_run(tmp_path / "finished", evaluations=30)
    crashed = RunFolder.create(tmp_path / "crashed", files=FILES)
    crashed.append(sample_events(evaluations=30)[:20])
    crashed.close()
    with RunFolder.create(tmp_path / "stopped", files=FILES) as stopped:
        stopped.append([*sample_events(evaluations=5)[:-1], RunFinished("interrupted", 3.0)])
    resumed = Path(shutil.copytree(finished, tmp_path / "resumed"))
    with RunFolder.open(resumed, writable=True) as run:
        run.append([SessionStarted(1.0, 2, spent_s=1.0)])
    damaged = Path(shutil.copytree(finished, tmp_path / "damaged"))
    content = (damaged / "events.jsonl").read_bytes()
    (damaged / "events.jsonl").write_bytes(content[:300] + b"!" + content[301:])
    RunFolder.create(tmp_path / "begun").close()
    (tmp_path / "not a run").mkdir()
    (tmp_path / "file").touch()
    found = {summary.name: summary for summary in list_runs(tmp_path)}
    assert {name: summary.state for name, summary in found.items()} == {
        "finished": "finished",
        "crashed": "interrupted",
        "stopped": "interrupted",
        "resumed": "interrupted",
        "damaged": "unreadable",
        "begun": "unreadable",
    }
    assert found["finished"].problem_name == "scale"
    assert found["finished"].evaluation_count == 30
    winner = RunView.read(finished).fastest
    assert winner is not None
    assert found["finished"].best_value == winner.ratio
    assert "damaged" in found["damaged"].complaint
    assert "no event" in found["begun"].complaint
    assert list_runs(tmp_path / "nowhere") == []


def test_run_without_a_problem_file_says_so(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", files={"x.cl": b""}) as run, pytest.raises(StoreError, match="0 TOML"):
        _ = run.problem_file
    with RunFolder.create(tmp_path / "other", files={"matmul.toml": b"", "sub/x.toml": b""}) as run:
        assert run.problem_file.name == "matmul.toml"


def test_blob_is_stored_once_and_comes_back_byte_for_byte(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    for content in (b"", b"\x00\xff" * 9, "größe\r\n".encode(), b"x" * 100_000):
        identity = blobs.put(content)
        assert blobs.put(content) == identity
        assert blobs.get(identity) == content
        assert identity in blobs
    assert blobs.put("größe\r\n") == blobs.put("größe\r\n".encode())
    assert blobs.get_text(blobs.put("größe\r\n")) == "größe\r\n"
    assert len(list((tmp_path / "blobs").iterdir())) == 4, "no temporary files stay"


def test_missing_damaged_or_misnamed_blob_is_an_error(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    identity = blobs.put("text")
    (tmp_path / identity).write_bytes(b"other")
    with pytest.raises(StoreError, match="damaged"):
        blobs.get(identity)
    assert blobs.put("text") == identity
    assert blobs.get(identity) == b"text", "putting it again repairs it"
    with pytest.raises(StoreError, match="no blob 0123456789abcdef"):
        blobs.get("0123456789abcdef")
    for wrong in ("", "../../etc/passwd", "0123456789abcdeg", identity + "\n"):
        with pytest.raises(StoreError, match="not the id of a blob"):
            blobs.get(wrong)
        assert wrong not in blobs
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="a file lies where a folder is needed"):
        BlobStore(tmp_path / "file" / "blobs").put("x")
