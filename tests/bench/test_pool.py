"""Processes of long simulations do not outlive the one that asked for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelwright_bench.processes import process_pool

PARENT = """
import sys, time
from kernelwright_bench.processes import process_pool
import jobs
if __name__ == "__main__":
    with process_pool(2) as pool:
        running = [pool.submit(jobs.work, sys.argv[1]) for _ in range(2)]
        [each.result() for each in running]
"""

JOBS = """
import os, pathlib, sys, time
def work(folder):
    pathlib.Path(folder, f"{os.getpid()}.pid").touch()
    while True:
        sum(range(1000))
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def patiently(condition) -> bool:
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_busy_processes_end_with_the_one_that_asked_for_them(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "parent.py").write_text(PARENT)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    with subprocess.Popen(
        [sys.executable, tmp_path / "parent.py", tmp_path], env={**os.environ, "PYTHONPATH": path}
    ) as parent:
        assert patiently(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
        workers = [int(each.stem) for each in tmp_path.glob("*.pid")]
        assert all(is_running(pid) for pid in workers)
        parent.send_signal(number)
    assert patiently(lambda: not any(is_running(pid) for pid in workers))


def test_what_is_asked_is_answered() -> None:
    with process_pool(2) as pool:
        assert list(pool.map(abs, [-1, 2, -3])) == [1, 2, 3]
