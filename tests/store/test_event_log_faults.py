"""Real faults: killed writers, full and read-only disks, failing system calls."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kernelwright.errors import StoreError
from kernelwright.store.blobs import BlobStore
from kernelwright.store.event import Event, Noted
from kernelwright.store.log import EventLog

APPEND_FOREVER = """
import itertools, os, sys
from pathlib import Path
from kernelwright.store.event import Noted
from kernelwright.store.log import EventLog
log = EventLog(Path(sys.argv[1])).open()
count = sum(1 for _ in log.read())
for index in itertools.count(count):
    log.append([Noted("info", f"{index} " + "x" * (index * 131 % 9000))])
    os.write(1, b"%d\\n" % index)
"""


def notes(count: int) -> list[Event]:
    return [Noted("info", f"note {index}") for index in range(count)]


def run_child(script: str, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_every_acknowledged_event_survives_kill_9(tmp_path: Path) -> None:
    path, chance = tmp_path / "events.jsonl", random.Random(7)
    acknowledged = -1
    for _ in range(5):
        child = subprocess.Popen([sys.executable, "-c", APPEND_FOREVER, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        first = child.stdout.readline() + child.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.08))
        child.send_signal(signal.SIGKILL)
        lines = (first + child.stdout.read()).splitlines()
        child.wait()
        assert child.returncode == -signal.SIGKILL
        assert lines, "the child ended before it appended anything"
        acknowledged = int(lines[-1])
        found = list(EventLog(path).read())
        assert acknowledged + 1 <= len(found) <= acknowledged + 2
        for index, event in enumerate(found):
            assert isinstance(event, Noted)
            assert event.text.startswith(f"{index} ")
    with EventLog(path) as log:
        log.append(notes(1))
    assert acknowledged > 5


NAMESPACE = ("unshare", "--map-root-user", "--mount")
SMALL_DISK = """
import json, os, subprocess, sys
from pathlib import Path
from kernelwright.errors import StoreError
from kernelwright.store.event import Noted
from kernelwright.store.log import EventLog
from kernelwright.store.run_folder import RunFolder
disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], check=True)
said = {}
def attempt(name, action):
    try:
        action()
        said[name] = "fine"
    except StoreError as error:
        said[name] = str(error)
filler = disk / "filler"
filler.write_bytes(bytes(100_000))
run = RunFolder.create(disk / "run", files={"problem.toml": b"x"})
count = 0
try:
    while count < 10_000:
        run.append([Noted("info", f"{count} " + "x" * 3000)])
        count += 1
except StoreError as error:
    said["full"] = str(error)
said["count"] = count
said["readable"] = len(list(RunFolder.open(disk / "run", writable=False).read()))
said["ends_whole"] = (disk / "run/events.jsonl").read_bytes().endswith(b"\\n")
attempt("blob on a full disk", lambda: run.blobs.put("y" * 50_000))
said["parts"] = [path.name for path in (disk / "run/blobs").iterdir()]
attempt("run on a full disk", lambda: RunFolder.create(disk / "other", files={"a": b"z" * 50_000}))
said["other"] = (disk / "other").exists()
filler.unlink()
attempt("after making room", lambda: run.append([Noted("info", f"{count} again")]))
said["after"] = len(list(run.read()))
run.close()
subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
attempt("read-only create", lambda: RunFolder.create(disk / "third"))
attempt("read-only open", lambda: RunFolder.open(disk / "run", writable=True))
attempt("read-only log", lambda: EventLog(disk / "run/events.jsonl").append([Noted("info", "x")]))
said["still readable"] = len(list(RunFolder.open(disk / "run", writable=False).read()))
print(json.dumps(said))
"""


def test_full_and_read_only_disk_lose_nothing_and_say_so(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or run_child("", prefix=NAMESPACE).returncode != 0:
        pytest.skip("needs a mount namespace (unshare --map-root-user --mount) for a small disk")
    child = run_child(SMALL_DISK, str(tmp_path), prefix=NAMESPACE)
    assert child.returncode == 0, child.stderr
    said = json.loads(child.stdout)
    assert "the disk is full" in said["full"]
    assert "hint: free some space" in said["full"]
    assert said["count"] > 10
    assert said["readable"] == said["count"]
    assert said["ends_whole"]
    assert "the disk is full" in said["blob on a full disk"]
    assert said["parts"] == []
    assert "the disk is full" in said["run on a full disk"]
    assert not said["other"], "a run folder that could not be completed is taken away again"
    assert said["after making room"] == "fine"
    assert said["after"] == said["count"] + 1
    for attempt in ("read-only create", "read-only open", "read-only log"):
        assert "the file system is read-only" in said[attempt]
    assert said["still readable"] == said["count"] + 1


SIZE_LIMIT = """
import resource, sys
from pathlib import Path
from kernelwright.errors import StoreError
from kernelwright.store.event import Noted
from kernelwright.store.log import EventLog
log = EventLog(Path(sys.argv[1])).open()
log.append([Noted("info", "before")])
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
try:
    log.append([Noted("info", "x" * 5000)])
except StoreError as error:
    print(error.message)
log.append([Noted("info", "after")])
print(len(list(log.read())))
"""


def test_partial_write_at_a_size_limit_is_taken_back(tmp_path: Path) -> None:
    child = run_child(SIZE_LIMIT, str(tmp_path / "log"))
    assert child.returncode == 0, child.stderr
    message, count = child.stdout.splitlines()
    assert "size limit" in message
    assert count == "2"
    assert [event.text for event in EventLog(tmp_path / "log").read() if isinstance(event, Noted)] == [
        "before",
        "after",
    ]


def fail_after(monkeypatch: pytest.MonkeyPatch, *, written_bytes: int, error: BaseException) -> None:
    """Let the next `os.write` write a part, and the one after it raise."""
    real, calls = os.write, iter([True, False])

    def write(descriptor: int, data: bytes) -> int:
        if next(calls):
            return real(descriptor, bytes(data)[:written_bytes])
        monkeypatch.setattr(os, "write", real)
        raise error

    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("written_bytes", [1, 40, 100])
def test_full_disk_in_the_middle_of_a_record_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_bytes: int
) -> None:
    with EventLog(tmp_path / "log") as log:
        log.append(notes(2))
        before = log.path.read_bytes()
        fail_after(monkeypatch, written_bytes=written_bytes, error=OSError(errno.ENOSPC, "No space left"))
        with pytest.raises(StoreError, match="the disk is full"):
            log.append(notes(3))
        assert log.path.read_bytes() == before
        log.append(notes(3)[2:])
        assert list(log.read()) == notes(3)


def test_interrupt_in_the_middle_of_a_record_does_not_spoil_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventLog(tmp_path / "log") as log:
        log.append(notes(2))
        fail_after(monkeypatch, written_bytes=30, error=KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            log.append([Noted("info", "never acknowledged")])
        assert list(EventLog(log.path).read()) == notes(2)
        log.append(notes(3)[2:])
        assert list(EventLog(log.path).read()) == notes(3)


def test_log_takes_nothing_more_after_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdatasync
    calls = iter([OSError(errno.EIO, "Input/output error")])

    def fdatasync(descriptor: int) -> None:
        for error in calls:
            raise error
        real(descriptor)

    with EventLog(tmp_path / "log") as log:
        log.append(notes(2))
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        with pytest.raises(StoreError, match="the disk reported a failure"):
            log.append(notes(3)[2:])
        with pytest.raises(StoreError, match="takes no more events"):
            log.append(notes(3)[2:])
        assert list(log.read()) == notes(2)
    with EventLog(tmp_path / "log") as log:
        log.append(notes(3)[2:])
        assert list(log.read()) == notes(3)


def test_append_syncs_the_file_and_creation_syncs_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "fdatasync", record)
    with EventLog(tmp_path / "log") as log:
        assert synced == [tmp_path.name]
        log.append(notes(2))
        assert synced == [tmp_path.name, "log"]


def test_blob_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    real = os.fdatasync

    def record(descriptor: int) -> None:
        steps.append("sync")
        assert list((tmp_path / "blobs").glob("[0-9a-f]*")) == []
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", record)
    BlobStore(tmp_path / "blobs").put("text")
    assert steps == ["sync"]


def test_torn_tail_is_saved_beside_the_log_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for number, tail in enumerate([b'{"crc":"12', bytes(100), b"half a rec"], start=1):
        with EventLog(path) as log:
            log.append([Noted("info", "note")])
        with path.open("ab") as file:
            file.write(tail)
        list(EventLog(path).read())
        assert not (tmp_path / f"events.jsonl.torn-{number}").exists(), "reading changes nothing"
        EventLog(path).open().close()
        assert (tmp_path / f"events.jsonl.torn-{number}").read_bytes() == tail
        assert path.read_bytes().endswith(b"}\n")
    assert len(list(tmp_path.iterdir())) == 4


def test_second_writer_without_the_lock_is_noticed(tmp_path: Path) -> None:
    with EventLog(tmp_path / "log") as one, EventLog(tmp_path / "log") as two:
        one.append(notes(1))
        with pytest.raises(StoreError, match="something else has changed it"):
            two.append(notes(1))
        assert list(one.read()) == notes(1)


def test_log_below_a_file_or_in_no_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="a file lies where a folder is needed"):
        EventLog(tmp_path / "file" / "log").append(notes(1))
    with pytest.raises(StoreError, match="does not exist"):
        EventLog(tmp_path / "none" / "log").append(notes(1))
    with pytest.raises(StoreError, match="does not exist"):
        list(EventLog(tmp_path / "none").read())
    with pytest.raises(StoreError, match=r"cannot (open|read)"):
        list(EventLog(tmp_path).read())
