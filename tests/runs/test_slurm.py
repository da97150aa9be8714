"""Workers as jobs: words for Slurm are checked first, jobs that end are followed, and none outlives a run."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from spool_runs import PATIENCE_S, in_thread
from test_spool_runs import wait_until

from kernelwright.errors import BaselineFailed, InfrastructureError, UsageError
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.runners import absolute, check_runner, minutes_of, read_slurm
from kernelwright.worker import slurm_jobs
from kernelwright.worker.slurm_jobs import keep_jobs
from kernelwright.worker.worker import Ended


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("partion=gpu", "did you mean 'partition'"),
        ("partition=gpu\n#SBATCH --wrap=x", "no value for Slurm"),
        ("partition=a b", "no value for Slurm"),
        ("gres=", "no value for Slurm"),
        ("jobs=0", "no number from 1 to 1000"),
        ("jobs=many", "no number from 1 to 1000"),
        ("jobs=000000001999999999", "no number from 1 to 1000"),
        ("spool=", "no value for Slurm"),
        ("time=30s", "no time of a minute or more"),
        ("time=400", "no time of a minute or more"),
        ("partition=gpu,local", "'local' is no word"),
    ],
)
def test_words_that_make_no_sense_are_refused(words: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_runner(absolute(f"slurm:{words}"))
    assert told in str(caught.value)


def test_words_are_read() -> None:
    read = read_slurm("partition=gpu,gres=gpu:h100:1,time=2h,jobs=4,cores=8,spool=/shared/spool")
    numbers = {"time": "2h", "jobs": "4", "cores": "8", "spool": "/shared/spool"}
    assert read == {"partition": "gpu", "gres": "gpu:h100:1", **numbers}
    assert minutes_of(read) == 120
    assert read_slurm("local,jobs=2") == {"local": "", "jobs": "2"}


@pytest.mark.parametrize("address", ["nowhere", "ray://head:10001", "head:0", "head:99999", "head:6379 --x", ""])
def test_what_is_no_address_of_ray_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="address"):
        check_runner(f"ray:{address}")


def test_folders_in_words_are_named_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("spool:there") == f"spool:{tmp_path}/there"
    assert absolute("slurm:jobs=2,spool=there,time=2h") == f"slurm:jobs=2,spool={tmp_path}/there,time=2h"
    assert absolute("slurm:spool=there") == f"slurm:spool={tmp_path}/there"
    assert absolute("ray:head:6379") == "ray:head:6379"


class FakeJob:
    """A job of submitit."""

    def __init__(self, number: int, folder: Path) -> None:
        self.job_id = str(number)
        self.is_done = False
        self.is_cancelled = False
        self.paths = self
        self.stderr = folder / f"{number}.err"
        self.stderr.write_text("Traceback\nNo module named 'kernelwright'\n")

    def done(self) -> bool:
        return self.is_done

    def cancel(self, *, check: bool) -> None:
        self.is_cancelled = self.is_done = True


Jobs = tuple[Callable[..., Ended], list[FakeJob]]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Two jobs at once, of a fake submitit."""
    begun: list[FakeJob] = []

    class Executor:
        def __init__(self, folder: Path, cluster: str) -> None:
            assert cluster == "local"

        def update_parameters(self, **_: object) -> None: ...

        def submit(self, *_: object) -> FakeJob:
            begun.append(FakeJob(len(begun), tmp_path))
            return begun[-1]

    class Submitit:
        AutoExecutor = Executor

    monkeypatch.setattr(slurm_jobs, "LOOK_S", 0.01)
    monkeypatch.setattr(slurm_jobs, "require", lambda *_, **__: Submitit)
    return functools.partial(keep_jobs, SpoolFolder(tmp_path / "spool"), read_slurm("local,jobs=2")), begun


def test_a_job_that_ends_is_followed_and_all_are_cancelled_at_the_end(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, begun = jobs
    monkeypatch.setattr(slurm_jobs, "SHORT_S", 0.0)
    stop = threading.Event()
    thread, _ = in_thread(lambda: keeper(stop=stop))
    wait_until(lambda: len(begun) == 2)
    (tmp_path / "spool" / "workers" / "host-job0-17.json").touch()  # its worker was there
    begun[0].is_done = True
    wait_until(lambda: len(begun) == 3)
    stop.set()
    thread.join(PATIENCE_S)
    assert [job.is_cancelled for job in begun] == [False, True, True]


def test_jobs_that_fail_at_once_end_the_run_with_what_they_said(
    jobs: Jobs,
) -> None:
    keeper, begun = jobs
    thread, found = in_thread(keeper)
    for number in range(4):
        wait_until(lambda number=number: len(begun) > number or not thread.is_alive())  # type: ignore[misc]
        if len(begun) > number:
            begun[number].is_done = True
    thread.join(PATIENCE_S)
    assert isinstance(found[0], InfrastructureError)
    assert "No module named 'kernelwright'" in found[0].message
    assert all(job.is_done for job in begun)


# -- submitit itself


def alive(words: str) -> list[str]:
    """Processes whose words hold a text."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [text] if words in text else []
    return found


@pytest.mark.thorough
@pytest.mark.opencl
def test_a_local_job_answers_a_run_and_none_is_left(tmp_path: Path, write_saxpy: Callable[..., Path]) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'kernelwright[slurm]'")
    spool = tmp_path / "spool"
    broken = write_saxpy(tmp_path / "saxpy", ("#ifndef", "#error nobody builds this\n#ifndef"))
    with pytest.raises(BaselineFailed, match=r"the worker .* says: .* does not build"):
        optimize(broken, settings=OptimizeSettings(runner=f"slurm:local,spool={spool}"), run=tmp_path / "run")
    assert len(list((spool / "jobs").glob("*_submitted.pkl"))) == 1
    wait_until(lambda: not alive(str(spool)))
