"""When stacks of a CPU driver's threads may be overwritten: a busy machine changes nothing, a restless thread does."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import ctypes, hashlib, os, sys, threading, time
from kernelwright.backend.opencl.cpu.thread_stacks import ThreadStacks
from kernelwright.errors import InfrastructureError
go, done, task = threading.Lock(), threading.Lock(), []
go.acquire()
done.acquire()
def serve(work):
    task.append(threading.get_native_id())
    with go:  # taken by the main thread: here it waits for another one, as a driver's does
        work()
    done.acquire()
def start(work):
    threading.Thread(target=serve, args=(work,), daemon=True).start()
    while not task: time.sleep(0.001)
    stacks = ThreadStacks(must_rest=True)
    while not stacks.is_told: stacks.overwrite()
    return stacks
def end():
    sys.stdout.flush()
    os._exit(0)
"""
STARVED = """
def work(): hashlib.pbkdf2_hmac("sha256", b"", b"", 8000)  # a few milliseconds, without Python's lock
stacks = start(work)
core = min(os.sched_getaffinity(0))
busy = os.fork()
if not busy:
    os.sched_setaffinity(0, {core})
    while os.getppid() != 1: pass
while time.clock_gettime(~busy << 3 | 2) < 0.02: time.sleep(0.001)
os.sched_setaffinity(task[0], {core})
os.sched_setscheduler(task[0], os.SCHED_IDLE, os.sched_param(0))
clock = ~task[0] << 3 | 6
go.release()
while not time.clock_gettime(clock): pass
stacks.overwrite()
os.kill(busy, 9)
print("missed" if stacks.missed else "rested")
end()
"""
RESTLESS = """
stacks = start(lambda: {work})
go.release()
time.sleep(0.1)
try: stacks.overwrite()
except InfrastructureError as error: print(error.message)
end()
"""
SPIN = 'hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)'
SLEEP = "time.sleep(1e6)"
OFTEN = "[time.sleep(1e-4) for _ in iter(int, 1)]"


def said(script: str) -> str:
    command = [sys.executable, "-c", BEGIN + script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_thread_that_waits_for_a_core_is_waited_for() -> None:
    """However long: one that gets hardly any of its core takes seconds for some milliseconds."""
    assert said(STARVED) == "rested"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("work", [SPIN, SLEEP, OFTEN], ids=["computes", "sleeps", "sleeps again and again"])
def test_a_thread_that_does_not_rest_ends_the_launch(work: str) -> None:
    """A note would let a kernel keep its results on a stack, by keeping some thread awake."""
    assert said(RESTLESS.format(work=work)).startswith("1 of the driver's threads went on")


PIPE = """
end_of_a_pipe, _ = os.pipe()
threading.Thread(target=os.read, args=(end_of_a_pipe, 1), daemon=True).start()
threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
time.sleep(0.1)
stacks = ThreadStacks(must_rest=True, with_python=False)
stacks.overwrite()
print("missed" if stacks.missed else "rested")
end()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_of_python_may_do_as_they_like() -> None:
    """No kernel runs on them, and those of a server or a test run wait for messages."""
    assert said(PIPE) == "rested"
