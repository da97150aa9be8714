"""Scratch files that have no room are nobody's fault but the folder's."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelwright.cli.main import main
from kernelwright.errors import InfrastructureError, ScratchFull, UserError
from kernelwright.evaluate.process.scratch import refuse_unwritten, reserve, told_when_full


def test_a_reserved_file_has_its_size_and_replaces_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "x.bin"
    file.write_bytes(b"old")
    for byte_count in (0, 1, 5000):
        reserve(file, byte_count)
        assert file.read_bytes() == bytes(byte_count)


def test_no_room_is_said_with_the_folder_to_set_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setenv("KERNELWRIGHT_SCRATCH_DIR", str(tmp_path))
    with pytest.raises(ScratchFull, match=r"x\.bin needs 5\.0 MB") as caught:
        reserve(tmp_path / "x.bin", 5_000_000)
    assert caught.value.exit_status == 3
    assert str(tmp_path) in caught.value.message
    assert "KERNELWRIGHT_SCRATCH_DIR" in (caught.value.hint or "")
    assert not list(tmp_path.iterdir())
    assert not isinstance(caught.value, InfrastructureError | UserError)  # nothing is retried, nobody is blamed


def test_a_build_that_finds_no_room_names_the_folder_to_set() -> None:
    with pytest.raises(ScratchFull, match="/scratch/build/x") as caught, told_when_full():
        raise OSError(errno.ENOSPC, "No space left on device", "/scratch/build/x")
    assert "KERNELWRIGHT_SCRATCH_DIR" in (caught.value.hint or "")


def test_other_errors_of_a_build_are_left_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), told_when_full():
        raise FileNotFoundError(errno.ENOENT, "No such file", "nvcc")
    refuse_unwritten(tmp_path)


def test_a_compiler_that_failed_on_a_full_disk_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(ScratchFull, match="is full"):
        refuse_unwritten(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for the inputs of the small problem, and not for what a launch leaves."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the right to mount a small file system: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("free_kb", [100, 400])
def test_a_full_scratch_folder_is_not_blamed_on_the_baseline(
    free_kb: int,
    saxpy: Path,
    small_disk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (small_disk / "ballast").write_bytes(bytes((1024 - free_kb) * 1024))
    monkeypatch.setenv("KERNELWRIGHT_SCRATCH_DIR", str(small_disk))
    with pytest.raises(SystemExit) as ended:
        main(["tune", str(saxpy), "--budget", "3", "--run", str(tmp_path / "run")])
    error = capsys.readouterr().err
    assert ended.value.code == 3, error
    assert f"the scratch folder {small_disk} is full" in error
    assert "KERNELWRIGHT_SCRATCH_DIR" in error
    assert "baseline does not run" not in error
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]
