"""Worker processes survive, and tell of, everything that a job can do to them."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kernelwright.backend.base import BuildFailed
from kernelwright.evaluate.process import reply, worker_main, worker_process
from kernelwright.evaluate.process.worker_process import (
    JobTimeout,
    RemoteError,
    WorkerDied,
    WorkerProcess,
    WorkerSettings,
)
from kernelwright_bench.operators.messages import Screened

HANDLER = "kernelwright.testing.fault_jobs:make_handler"


@pytest.fixture
def worker(tmp_path):
    with WorkerProcess(WorkerSettings("w", HANDLER, "the argument"), scratch=tmp_path) as worker:
        yield worker


def call(worker, *job, timeout_s=120.0):
    return worker.call(job, timeout_s=timeout_s)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition, *, patience_s: float = 120.0) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_hang_is_a_timeout_and_the_next_call_works(worker):
    with pytest.raises(JobTimeout) as caught:
        call(worker, "sleep", 600.0, timeout_s=0.2)
    assert caught.value.timeout_s == 0.2
    assert not worker.alive
    assert call(worker, "echo", 1) == 1
    assert worker.start_count == 2


def test_worker_that_ignores_signals_is_killed_all_the_same(worker):
    call(worker, "echo", 1)
    pid = worker.pid
    with pytest.raises(JobTimeout):
        call(worker, "ignore_signals_and_hang", timeout_s=0.3)
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("job", "signal_name", "exit_code"),
    [("abort", "SIGABRT", -6), ("segfault", "SIGSEGV", -11), ("exit", None, 7)],
)
def test_death_is_told_with_its_cause(worker, job, signal_name, exit_code):
    with pytest.raises(WorkerDied) as caught:
        call(worker, job, *([7] if job == "exit" else []))
    assert (caught.value.signal_name, caught.value.exit_code) == (signal_name, exit_code)
    assert call(worker, "echo", "again") == "again"


def test_death_carries_what_the_worker_printed_during_that_job_only(worker):
    call(worker, "print", "an earlier job", 1)
    with pytest.raises(WorkerDied) as caught:
        call(worker, "abort")
    assert "about to abort" in caught.value.log_tail
    assert "Fatal Python error: Aborted" in caught.value.log_tail
    assert "an earlier job" not in caught.value.log_tail


def test_job_exception_arrives_verbatim_with_the_remote_traceback(worker):
    with pytest.raises(BuildFailed) as caught:
        call(worker, "raise_build_failed")
    assert (caught.value.message, caught.value.log) == ("no such variable", "line 3: x")
    assert "_raise_build_failed" in caught.value.__notes__[0]
    assert call(worker, "count") == 2, "an exception must not cost the worker"


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        ("raise_unpicklable", "_UnpicklableFault"),
        ("return_no_data", "UntrustedReply"),
        ("return_lambda", ("AttributeError", "PicklingError")),
    ],
)
def test_what_cannot_travel_is_a_remote_error_and_costs_no_worker(worker, job, kind):
    if job == "return_lambda":  # the built-in exceptions of pickle are rebuilt
        with pytest.raises((AttributeError, RemoteError), match="lambda"):
            call(worker, job)
    else:
        with pytest.raises(RemoteError) as caught:
            call(worker, job)
        assert caught.value.kind == kind
    assert call(worker, "count") == 2


def test_reply_that_names_a_function_is_refused(worker):
    class Attack:
        def __reduce__(self):
            return (os.system, ("true",))

    with pytest.raises(reply.UntrustedReply, match=r"posix\.system"):
        reply.loads_reply(pickle.dumps(Attack()))


def test_reply_may_hold_data_classes_of_the_package_whose_factory_made_the_worker_and_of_no_other():
    body = pickle.dumps(Screened((1.0, 1.5)))
    with pytest.raises(reply.UntrustedReply, match=r"kernelwright_bench\.operators\.messages\.Screened"):
        reply.loads_reply(body)
    assert reply.loads_reply(body, "kernelwright_bench") == Screened((1.0, 1.5))
    with pytest.raises(reply.UntrustedReply, match=r"posix\.system"):
        reply.loads_reply(pickle.dumps(os.system), "kernelwright_bench")


def test_what_was_sent_unasked_is_no_answer(worker):
    call(worker, "echo", 1)
    assert call(worker, "speak_unasked") is None
    assert call(worker, "echo", 2) == 2
    assert worker.start_count == 1


def test_errors_cross_process_boundaries_with_their_fields():
    for error in (
        JobTimeout("w", 2.0, "log"),
        WorkerDied("w", -11, "log"),
        RemoteError("ValueError", "bad", "text"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert vars(copy) == vars(error)


def test_huge_print_does_not_block_and_its_end_is_kept(worker):
    assert call(worker, "print", "y" * 1000, 5000) == 5000
    assert worker.log_tail(max_chars=10) == "y" * 9 + "\n"


def test_endless_print_does_not_fill_the_disk(worker, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "MAX_LOG_BYTES", 1 << 20)
    monkeypatch.setattr(worker_process, "_LOG_CHECK_INTERVAL_S", 0.05)
    log = tmp_path / "w.log"

    def was_emptied():
        before, sizes[:] = sizes[-1:], [log.stat().st_size]
        return bool(before) and sizes[0] < before[0]

    sizes, found = [], []
    call(worker, "echo", 1)
    watching = threading.Thread(target=lambda: (found.append(wait_until(was_emptied)), worker.kill()))
    watching.start()
    with pytest.raises(WorkerDied):
        call(worker, "print_for_ever", timeout_s=600)
    watching.join()
    assert found == [True], "it was never emptied"


def test_grandchildren_die_with_a_timeout(worker, tmp_path):
    pid_file = tmp_path / "pids"
    for timeout_s in (1.5, 15, 120):  # until it was long enough for a grandchild to be started
        with pytest.raises(JobTimeout):
            call(worker, "hang_with_grandchild", str(pid_file), timeout_s=timeout_s)
        if pid_file.exists() and pid_file.read_text():
            break
    pids = [int(text) for text in pid_file.read_text().split()]
    assert len(pids) == 2
    assert wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death notice is Linux's")
@pytest.mark.parametrize("starts_in_thread", [False, True])
def test_worker_and_grandchild_die_with_a_killed_parent(tmp_path, starts_in_thread):
    pid_file = tmp_path / "pids"
    script = textwrap.dedent(f"""
        import sys, threading
        from pathlib import Path
        from kernelwright.evaluate.process.worker_process import WorkerProcess, WorkerSettings
        worker = WorkerProcess(WorkerSettings("w", {HANDLER!r}, None), scratch=Path({str(tmp_path)!r}))
        job = ("hang_with_grandchild", {str(pid_file)!r})
        run = lambda: worker.call(job, timeout_s=300)
        if {starts_in_thread}:
            starter = threading.Thread(target=worker.warm)
            starter.start()
            starter.join()
        run()
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        assert wait_until(lambda: pid_file.exists() and len(pid_file.read_text().split()) == 2)
        pids = [int(text) for text in pid_file.read_text().split()]
        assert all(map(is_alive, pids)), "the worker must outlive the thread that started it"
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death notice is Linux's")
def test_a_worker_whose_parent_dies_before_it_listens_ends_by_itself(tmp_path):
    """A process that is killed closes its files first, and is still its children's parent for a moment."""
    end, closed = os.pipe()
    os.close(closed)
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    words = ["--lifeline", str(end), "--parent", str(os.getpid()), "--", *program]
    worker = subprocess.Popen([sys.executable, worker_main.__file__, *words], pass_fds=[end], start_new_session=True)
    os.close(end)
    try:
        assert worker.wait(timeout=60) == 1
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death notice is Linux's")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_program_that_is_tied_goes_with_the_process_that_waits_for_it(tmp_path, number):
    pid_file = tmp_path / "pids"
    program = f"from kernelwright.testing import fault_jobs; fault_jobs._hang_with_grandchild({str(pid_file)!r})"
    script = textwrap.dedent(f"""
        import os, sys
        from kernelwright.evaluate.process.child import run_tied
        run_tied([sys.executable, "-c", {program!r}], timeout_s=600, environment=os.environ)
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: pid_file.exists() and len(pid_file.read_text().split()) == 2)
        pids = [int(text) for text in pid_file.read_text().split()]
        assert all(map(is_alive, pids))
    finally:
        parent.send_signal(number)
        parent.wait()
    assert wait_until(lambda: not any(map(is_alive, pids)))


def test_secrets_stay_out_of_the_environment(tmp_path, monkeypatch):
    for name in (
        "OPENAI_API_KEY",
        "CUDA_API_KEY",
        "POCL_TOKEN",
        "KERNELWRIGHT_SECRET",
        "MY_PASSWORD",
        "UNKNOWN",
    ):
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("POCL_AFFINITY", "1")
    settings = WorkerSettings("w", HANDLER, None, environment={"EXTRA": "yes"})
    with WorkerProcess(settings, scratch=tmp_path) as worker:
        environment = call(worker, "environment")
    assert "hush" not in environment.values()
    assert environment["POCL_AFFINITY"] == "1"
    assert environment["EXTRA"] == "yes"
    assert environment["TMPDIR"] == str(tmp_path / "w")


def test_worker_has_its_own_folder_and_no_input(worker, tmp_path):
    facts = call(worker, "facts")
    assert facts["cwd"] == str(tmp_path / "w")
    assert facts["stdin"] == ""
    assert facts["main"].endswith("worker_main.py"), "the user's own main module is not imported again"


def test_scratch_is_emptied_by_a_restart_and_removed_by_close(tmp_path):
    worker = WorkerProcess(WorkerSettings("w", HANDLER, None), scratch=tmp_path)
    call(worker, "write", "left")
    assert (tmp_path / "w" / "left").exists()
    worker.restart()
    assert call(worker, "facts")["files"] == []
    worker.close()
    assert list(tmp_path.iterdir()) == []


def test_closed_worker_leaves_no_process_and_no_descriptor(tmp_path):
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    worker = WorkerProcess(WorkerSettings("w", HANDLER, None), scratch=tmp_path)
    call(worker, "echo", 1)
    pid = worker.pid
    worker.close()
    assert not is_alive(pid)
    assert worker.pid is None
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_kill_from_another_thread_ends_a_call_at_once(worker):
    call(worker, "echo", 1)
    threading.Timer(0.2, worker.kill).start()
    with pytest.raises(WorkerDied) as caught:
        call(worker, "sleep", 600.0)
    assert caught.value.signal_name == "SIGKILL"
    assert call(worker, "echo", 2) == 2


def test_death_between_calls_is_noticed_and_repaired(worker):
    call(worker, "echo", 1)
    os.kill(worker.pid, signal.SIGKILL)
    assert wait_until(lambda: not worker.alive)
    assert call(worker, "echo", 2) == 2


def test_four_megabytes_travel_both_ways(worker):
    array = call(worker, "array", 4 << 20)
    assert np.array_equal(call(worker, "echo", array), array)


def test_factory_error_is_raised_by_the_call(tmp_path):
    settings = WorkerSettings("w", "kernelwright.testing.fault_jobs:make_failing_handler", "no device")
    with WorkerProcess(settings, scratch=tmp_path) as worker, pytest.raises(BuildFailed, match="no device"):
        call(worker, "echo", 1)


def test_crash_at_start_up_is_told_with_its_prints(tmp_path):
    settings = WorkerSettings("w", "kernelwright.testing.fault_jobs:make_crashing_handler", "9")
    with WorkerProcess(settings, scratch=tmp_path) as worker, pytest.raises(WorkerDied) as caught:
        call(worker, "echo", 1)
    assert caught.value.exit_code == 9
    assert "falling over" in caught.value.log_tail


def test_memory_limit_turns_a_large_allocation_into_an_error(tmp_path):
    settings = WorkerSettings("w", HANDLER, None, memory_limit_bytes=2 << 30)
    with WorkerProcess(settings, scratch=tmp_path) as worker:
        with pytest.raises(MemoryError):
            call(worker, "allocate", 4 << 30)
        assert call(worker, "allocate", 1 << 20) == 1 << 20


def test_interrupted_call_does_not_hand_its_answer_to_the_next(worker):
    call(worker, "echo", 1)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        call(worker, "sleep", 30.0)
    assert call(worker, "echo", "mine") == "mine"


def test_warm_returns_before_the_worker_is_up(worker):
    worker.warm()
    assert worker.alive
    assert call(worker, "echo_argument") == "the argument"
    assert worker.start_count == 1
