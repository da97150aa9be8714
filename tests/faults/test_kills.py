"""Whatever is killed, closed, full or locked: what was measured stays, and a run goes on or can be resumed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runs import PATIENCE_S, CliRun, children_of, evaluations, events, is_running, start, wait_until

from kernelwright.cli.main import main
from kernelwright.evaluate.device.lock import DeviceLock
from kernelwright.evaluate.process.scratch import sweep
from kernelwright.store.view import RunView

pytestmark = pytest.mark.opencl

BUDGET = 10
UNREACHED = 16
"""The whole space: of a run that is stopped long before."""

Start = Callable[..., CliRun]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def start_tune(beatable_saxpy: Path, folder: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a small search; what is still running at the end of the test is killed."""
    started: list[CliRun] = []

    def begin(*words: object, folder: Path = folder, budget: int = BUDGET) -> CliRun:
        fixed = ("tune", beatable_saxpy, "--run", folder, "--budget", budget, "--searcher", "random", "--jobs", 1)
        short = ("--finalists", 2, "--rounds", 9)
        started.append(start(*fixed, *short, *words, folder=folder, scratch=tmp_path / "scratch"))
        return started[-1]

    yield begin
    for run in started:
        run.process.kill()
        run.process.communicate()


def resume(folder: Path, tmp_path: Path) -> tuple[int, str, str]:
    return start("resume", folder, folder=folder, scratch=tmp_path / "scratch").finish()


def assert_complete(folder: Path, *, budget: int = BUDGET) -> None:
    """The whole budget was used, once, and every candidate is accounted for."""
    view = RunView.read(folder)
    assert [event.index for event in view.evaluations] == list(range(budget))
    assert len({event.candidate_id for event in view.evaluations}) == budget
    assert not view.failed
    assert view.finished is not None
    assert view.finished.reason == "budget"
    assert view.comparison is not None


def assert_clean(run: CliRun, workers: set[int]) -> None:
    """No worker lives on, and nothing is left in memory."""
    wait_until(lambda: not any(is_running(pid) for pid in workers), patience_s=PATIENCE_S)
    assert list(run.scratch.iterdir()) == []


def complaints(err: str) -> list[str]:
    assert "Traceback" not in err
    return [line for line in err.splitlines() if line.startswith("kernelwright:")]


# -- kill -9 -------------------------------------------------------------------------------------------------------


def test_a_killed_run_is_resumed_to_the_same_budget(
    start_tune: Start, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start_tune()
    run.wait_for_evaluations(2)
    run.process.send_signal(signal.SIGSTOP)  # however long it takes to ask

    with pytest.raises(SystemExit) as exit_:  # its writer lives
        main(["resume", str(folder)])
    assert exit_.value.code == 2
    (complaint,) = complaints(capsys.readouterr().err)
    assert f"process {run.process.pid} is writing to the run" in complaint

    workers = children_of(run.process.pid)
    assert workers
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not any(is_running(pid) for pid in workers), patience_s=PATIENCE_S)
    before = evaluations(folder)
    with (folder / "events.jsonl").open("ab") as log:  # what a power cut leaves of the record in flight
        log.write(b'{"crc": "00000000", "i": 99, "kind": "evalua')

    status, out, err = resume(folder, tmp_path)
    assert (status, complaints(err)) == (0, [])
    assert "as fast as the baseline" in out or "No significant gain" in out or "No gain" in out
    assert evaluations(folder)[: len(before)] == before
    assert_complete(folder)
    assert len(RunView.read(folder).sessions) == 2
    assert_clean(run, set())  # also of what the killed one left


@pytest.mark.thorough
def test_killed_workers_cost_time_and_blame_nobody(start_tune: Start, folder: Path) -> None:
    run = start_tune()
    for count, role in enumerate(("device", "referee", "build-0", "device", "referee"), start=1):
        run.wait_for_evaluations(count)
        run.kill_worker(role)
    status, _, err = run.finish()
    assert (status, complaints(err)) == (0, [])
    assert_complete(folder)


def test_a_machine_that_fails_stops_the_run_and_blames_nobody(start_tune: Start, folder: Path) -> None:
    run = start_tune(budget=UNREACHED)
    run.wait_for_evaluations(1)
    while run.process.poll() is None:  # whatever is started is killed
        with contextlib.suppress(KeyError, OSError):
            os.kill(run.workers()["device"], signal.SIGKILL)
        time.sleep(0.01)
    status, _, err = run.finish()
    assert status == 3
    assert len(complaints(err)) == 1
    assert "the baseline does not run either" in err
    assert f"kernelwright resume {folder}" in err
    view = RunView.read(folder)
    assert 1 <= len(view.evaluations) < UNREACHED
    assert not view.failed
    assert list(run.scratch.iterdir()) == []


@pytest.mark.thorough
def test_workers_killed_while_the_baseline_is_measured_are_replaced(start_tune: Start, folder: Path) -> None:
    run = start_tune(budget=1)
    wait_until(lambda: bool(events(folder)))  # the run has begun: the baseline is next
    run.kill_worker("device")
    run.kill_worker("referee")
    status, _, err = run.finish()
    assert (status, complaints(err)) == (0, [])
    assert_complete(folder, budget=1)


# -- being asked to stop -------------------------------------------------------------------------------------------


def assert_stopped(run: CliRun) -> str:
    """Ended by request, with the best so far on the disk; gives standard output."""
    status, out, err = run.finish()
    assert (status, complaints(err)) == (130, [])
    view = RunView.read(run.folder)
    assert 2 <= len(view.evaluations) < UNREACHED
    assert view.fastest is not None
    assert view.finished is not None
    assert view.finished.reason == "interrupted"
    return out


def test_interrupt_keeps_the_best_and_says_how_to_go_on(start_tune: Start, folder: Path) -> None:
    run = start_tune(budget=UNREACHED)
    run.wait_for_evaluations(3)
    workers = children_of(run.process.pid)
    run.process.send_signal(signal.SIGINT)
    out = assert_stopped(run)
    assert "Best so far" in out
    assert f"kernelwright resume {folder}" in out.replace("\n", "")
    assert (folder / "report.html").is_file()
    assert (folder / "export" / "saxpy.cl").is_file()
    assert_clean(run, workers)


@pytest.mark.thorough
def test_termination_stops_a_run_also_while_it_waits_for_the_device(start_tune: Start, folder: Path) -> None:
    run = start_tune(budget=UNREACHED)
    run.wait_for_evaluations(3)
    workers = children_of(run.process.pid)
    with DeviceLock(device_of(folder)):
        run.process.send_signal(signal.SIGTERM)
        assert_stopped(run)
        assert_clean(run, workers)


@pytest.mark.thorough
def test_second_interrupt_ends_at_once_with_nothing_lost(start_tune: Start, folder: Path) -> None:
    run = start_tune(budget=UNREACHED)
    run.wait_for_evaluations(3)
    workers = children_of(run.process.pid)
    before = evaluations(folder)
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    run.process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(timeout=20)
    if run.process.poll() is None:  # Python drops what a signal raises inside a destructor: press again
        run.process.send_signal(signal.SIGINT)
    status, _, err = run.finish()
    assert status == 130
    assert len(complaints(err)) <= 1
    kept = evaluations(folder)  # without the last one, if the interrupt came before its record was safe
    assert kept[: len(before) - 1] == before[:-1]
    sweep(run.scratch)  # it may have had no time to; the next run does so
    assert_clean(run, workers)


def test_a_stop_before_the_run_has_begun_leaves_nothing(start_tune: Start, folder: Path) -> None:
    run = start_tune()
    wait_until(lambda: bool(children_of(run.process.pid)))  # it looks for devices
    run.process.send_signal(signal.SIGINT)
    status, _, err = run.finish()
    assert status == 130
    assert len(complaints(err)) == 1
    assert not folder.exists()


@pytest.mark.thorough
def test_a_stop_while_the_baseline_is_measured_is_recorded_and_resumed(
    start_tune: Start, folder: Path, tmp_path: Path
) -> None:
    run = start_tune(budget=1)
    wait_until(lambda: bool(events(folder)))
    workers = children_of(run.process.pid)
    run.process.send_signal(signal.SIGTERM)
    assert run.finish()[0] == 130
    assert_clean(run, workers)
    assert RunView.read(folder).finished is not None
    assert resume(folder, tmp_path)[0] == 0
    assert_complete(folder, budget=1)


@pytest.mark.thorough
def test_a_stop_while_a_model_is_waited_for_is_recorded_and_resumed(
    beatable_saxpy: Path, folder: Path, tmp_path: Path
) -> None:
    """The service takes requests and never answers, which is no reason to wait for it."""
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        service.settimeout(PATIENCE_S)
        model = f"openai:silent@http://127.0.0.1:{service.getsockname()[1]}/v1"
        begin = (
            "optimize",
            beatable_saxpy,
            "--model",
            model,
            "--in-flight",
            3,
            "--budget",
            "600s",
            "--run",
            folder,
            "--searcher",
            "random",
        )
        for words, number in ((begin, signal.SIGTERM), (("resume", folder), signal.SIGINT)):
            run = start(*words, folder=folder, scratch=tmp_path / "scratch")
            stack.callback(run.process.communicate)
            stack.callback(run.process.kill)
            asked = stack.enter_context(service.accept()[0])
            assert asked.recv(4) == b"POST"
            workers = children_of(run.process.pid)
            run.process.send_signal(number)
            status, out, err = run.finish()
            assert status == 130, err
            assert f"continue with: kernelwright resume {folder}" in out
            assert complaints(err) == []
            assert_clean(run, workers)
            found = RunView.read(folder).finished
            assert found is not None
            assert found.reason == "interrupted"


# -- other people's pipes, runs and disks --------------------------------------------------------------------------


@pytest.mark.thorough
def test_closed_pipes_and_a_failing_report_do_not_cost_the_run(
    start_tune: Start, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start_tune(budget=2)
    assert run.process.stdout is not None
    assert run.process.stderr is not None
    assert run.process.stderr.readline()
    run.process.stderr.close()
    run.process.stdout.close()
    run.process.wait(timeout=PATIENCE_S)
    assert run.process.returncode in (0, 1)  # 1: the table had no reader
    assert_complete(folder, budget=2)
    assert (folder / "export" / "saxpy.cl").is_file()

    words = ("show", "run", folder, "--json")
    reader = start(*words, folder=folder, scratch=folder.parent / "scratch").process
    assert reader.stdout is not None
    reader.stdout.close()
    assert reader.stderr is not None
    assert reader.stderr.read() == ""
    reader.wait(timeout=PATIENCE_S)

    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()  # as bad as a full disk
    with pytest.raises(SystemExit) as exit_:
        main(["resume", str(folder)])  # of a finished run: shows it
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert len(complaints(captured.err)) == 1
    assert "configuration:" in captured.out


def device_of(folder: Path) -> str:
    return str(RunView.read(folder).started.device["id"])


def waits_for_a_device(run: CliRun) -> bool:
    """Whether it has the file open that only those have who wait; also one that has ended waits for ever."""
    opened = []
    for each in Path(f"/proc/{run.process.pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            opened.append(each.readlink().name)
    return run.process.poll() is not None or any(name.endswith(".lock.turn") for name in opened)


@pytest.mark.thorough
def test_two_runs_take_turns_on_one_device(start_tune: Start, tmp_path: Path) -> None:
    runs = [start_tune(folder=tmp_path / name, budget=5) for name in ("a", "b")]
    for run in runs:
        run.wait_for_evaluations(1)
    with DeviceLock(device_of(runs[0].folder)):  # as a third run would hold it
        wait_until(lambda: all(map(waits_for_a_device, runs)))
        counts = [run.evaluation_count for run in runs]
        time.sleep(0.7)
        assert all(map(waits_for_a_device, runs))
        for run, before in zip(runs, counts, strict=True):
            assert run.evaluation_count <= before + 1, "only what had been measured may still be written"
    for run in runs:
        assert run.finish()[0] == 0
        assert_complete(run.folder, budget=5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own in memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the right to mount a small file system: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.thorough
def test_a_full_disk_ends_the_run_with_what_it_has(start_tune: Start, small_disk: Path, tmp_path: Path) -> None:
    folder = small_disk / "run"
    run = start_tune(folder=folder)
    run.wait_for_evaluations(2)
    run.process.send_signal(signal.SIGSTOP)
    fill(small_disk / "ballast")
    run.process.send_signal(signal.SIGCONT)
    status, _, err = run.finish()
    assert status == 2
    (complaint,) = complaints(err)
    assert "the disk is full" in complaint
    assert "events.jsonl" in complaint
    kept = evaluations(folder)
    assert 2 <= len(kept) < BUDGET
    assert list(run.scratch.iterdir()) == []

    (small_disk / "ballast").unlink()
    assert resume(folder, tmp_path)[0] == 0
    assert evaluations(folder)[: len(kept)] == kept
    assert_complete(folder)


def fill(file: Path) -> None:
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as ballast:
        while ballast.write(bytes(1024)):
            pass
    assert shutil.disk_usage(file.parent).free == 0


@pytest.fixture
def read_only(tmp_path: Path, small_disk: Path) -> Path:
    """A folder that nobody may write, root included."""
    (small_disk / "inside").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    return small_disk / "inside"


def test_a_run_folder_that_cannot_be_written_is_one_message(
    beatable_saxpy: Path, read_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["tune", str(beatable_saxpy), "--run", str(read_only / "run"), "--budget", "1"])
    assert exit_.value.code == 2
    (complaint,) = complaints(capsys.readouterr().err)
    assert str(read_only / "run") in complaint
    assert "read-only" in complaint


def test_a_cache_that_cannot_be_written_is_one_message(
    beatable_saxpy: Path,
    folder: Path,
    read_only: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERNELWRIGHT_CACHE_DIR", str(read_only))
    with pytest.raises(SystemExit) as exit_:
        main(["tune", str(beatable_saxpy), "--run", str(folder), "--budget", "1"])
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    (complaint,) = complaints(captured.err)
    assert str(read_only) in complaint
    assert "KERNELWRIGHT_CACHE_DIR" in captured.err
    assert not folder.exists()


def test_scratch_that_cannot_be_written_is_one_message(
    beatable_saxpy: Path,
    folder: Path,
    read_only: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERNELWRIGHT_SCRATCH_DIR", str(read_only))
    with pytest.raises(SystemExit) as exit_:
        main(["tune", str(beatable_saxpy), "--run", str(folder), "--budget", "1"])
    assert exit_.value.code == 2
    (complaint,) = complaints(capsys.readouterr().err)
    assert str(read_only) in complaint
    assert not folder.exists()
