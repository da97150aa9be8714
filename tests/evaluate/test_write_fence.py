"""A fenced process, and its threads and children, write into its own folder and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.backend.base import (
    Artifact,
    BufferArgument,
    BuildUnit,
    PlanStep,
)
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildPool
from kernelwright.evaluate.device.worker import DeviceWorkerArgument
from kernelwright.evaluate.process.worker_process import WorkerProcess, WorkerSettings
from kernelwright.evaluate.process.write_fence import fence_writes
from kernelwright.tuning.machine import LocalMachine

PROGRAM = """
import os, subprocess, sys, threading
from pathlib import Path
from kernelwright.evaluate.process.write_fence import fence_writes

own, other = Path(sys.argv[1]), Path(sys.argv[2])
kept = os.open(other / "open", os.O_WRONLY)
print("fence", fence_writes([own]) or "up")

def tried(what, action):
    try:
        action()
        print(what, "done")
    except OSError as error:
        print(what, type(error).__name__)

tried("own", lambda: (own / "new").write_text("x"))
tried("own-move", lambda: (own / "new").rename(own / "moved"))
tried("read", lambda: (other / "kept").read_text())
tried("write", lambda: (other / "kept").write_text("x"))
tried("new", lambda: (other / "new").write_text("x"))
tried("remove", lambda: (other / "kept").unlink())
tried("truncate", lambda: os.truncate(other / "kept", 0))
tried("link", lambda: os.link(other / "kept", own / "link"))
tried("parent", lambda: os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR))
tried("null", lambda: Path(os.devnull).write_text("x"))
tried("before", lambda: os.write(kept, b"x"))
thread = threading.Thread(target=lambda: tried("thread", lambda: (other / "kept").write_text("x")))
thread.start()
thread.join()
child = subprocess.run([sys.executable, "-c", f"open({str(other / 'kept')!r}, 'w')"], stderr=subprocess.DEVNULL)
print("child", child.returncode)
"""


@pytest.fixture
def told(tmp_path: Path) -> dict[str, str]:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    for name in ("kept", "open"):
        (other / name).write_text("as it was")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(own), str(other)],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    if found["fence"] != "up":
        pytest.skip(f"this system has no fence: {found['fence']}")
    assert (other / "kept").read_text() == "as it was"
    return found


def test_what_is_not_its_own_is_only_read(told: dict[str, str]) -> None:
    refused = {"write", "new", "remove", "truncate", "link", "parent", "thread"}
    assert not {name for name in refused if told[name] == "done"}
    assert told["child"] == "1"


def test_its_own_folder_and_what_was_open_are_as_before(told: dict[str, str]) -> None:
    assert {told[name] for name in ("own", "own-move", "read", "null", "before")} == {"done"}


def test_a_folder_that_is_not_there_is_told_and_no_traceback(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from kernelwright.evaluate.process.write_fence import fence_writes\n"
        "print(fence_writes([Path(sys.argv[1])]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "none")], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout.strip()


def test_elsewhere_than_on_linux_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "plan9")
    assert fence_writes([]) == "not on Linux"


@pytest.fixture
def without_code(tmp_path: Path) -> Iterator[Path]:
    """A scratch folder from which no code may be loaded, as /dev/shm often is."""
    folder = tmp_path / "noexec"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the right to mount a file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.thorough
@pytest.mark.opencl
def test_fenced_processes_work_where_scratch_allows_no_code(
    without_code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    device = LocalMachine().device("opencl", "opencl")
    unit = BuildUnit("opencl", "__kernel void k(__global int *x) { x[0] = 1; }", "k.cl", (), (), ("k",))
    plan = (PlanStep("k", (1, 1, 1), (1, 1, 1), 0, (BufferArgument("x", 4),)),)
    cache = ArtifactCache(tmp_path / "cache" / "artifacts")
    pool = BuildPool("opencl", device, process_count=1, cache=cache, scratch=without_code)
    try:
        built, _ = pool.submit(unit, (plan,)).result(timeout=300)
    finally:
        pool.close()
    assert isinstance(built, Artifact)
    assert not pool.warnings
    factory = "kernelwright.evaluate.device.worker:make_device_worker"
    settings = WorkerSettings("device", factory, DeviceWorkerArgument(device, writable=without_code))
    with WorkerProcess(settings, scratch=without_code) as worker:
        assert isinstance(worker.call("notes", timeout_s=120), tuple)
