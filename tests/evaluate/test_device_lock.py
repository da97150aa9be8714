"""Runs on one device take turns, and a dead one gives its turn back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError, StoreError
from kernelwright.evaluate.device.lock import DeviceLock

PATIENCE_S = 120.0


def make(tmp_path, device_id="opencl:pocl-3.0:cpu0", **options):
    return DeviceLock(device_id, folder=tmp_path / "locks", **options)


class Waiting:
    """Another holder, in a thread of its own."""

    def __init__(self, tmp_path):
        self.holders = set()
        self._told = threading.Event()
        self._lock = make(tmp_path, on_wait=self._hear)

    def _hear(self, waited_s, holder):
        self.holders.add(holder)
        self._told.set()

    def begin(self, act):
        """Want the lock, which somebody has, and then do something with it; returns when it waits."""

        def hold():
            with self._lock:
                act()

        self._thread = threading.Thread(target=hold, daemon=True)
        self._thread.start()
        assert self._told.wait(PATIENCE_S)

    def end(self):
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def test_second_holder_waits_and_is_told_who_holds_it(tmp_path):
    waiting, reports = Waiting(tmp_path), []
    with make(tmp_path):
        with pytest.raises(InfrastructureError, match=rf"process {os.getpid()} measures on it"):
            make(tmp_path, timeout_s=0.1).acquire()
        waiting.begin(lambda: reports.append("held"))
        assert reports == []
    waiting.end()
    assert reports == ["held"]
    assert waiting.holders == {f"process {os.getpid()}"}


def test_other_devices_are_free(tmp_path):
    with make(tmp_path), make(tmp_path, "opencl:pocl-3.0:cpu1", timeout_s=0.0):
        pass


def test_killed_holder_gives_the_device_back(tmp_path):
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from kernelwright.evaluate.device.lock import DeviceLock
        with DeviceLock("opencl:pocl-3.0:cpu0", folder=Path({str(tmp_path / "locks")!r})):
            print("held", flush=True)
            time.sleep(600)
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(InfrastructureError, match=f"process {holder.pid}"):
            make(tmp_path, timeout_s=0.05).acquire()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with make(tmp_path, timeout_s=60.0):
        pass


def test_holder_that_comes_again_at_once_does_not_starve_the_other(tmp_path):
    """Without a queue the one that sleeps between looks would hardly ever find it free."""
    lock, order = make(tmp_path), []
    lock.acquire()
    for _ in range(3):
        waiting = Waiting(tmp_path)
        waiting.begin(lambda: order.append("the other"))
        lock.release()
        lock.acquire()
        order.append("again")
        waiting.end()
    lock.release()
    assert order == ["the other", "again"] * 3


def test_lock_is_released_by_an_exception(tmp_path):
    with pytest.raises(ZeroDivisionError), make(tmp_path):
        raise ZeroDivisionError
    with make(tmp_path, timeout_s=0.0):
        pass


def test_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "locks").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be opened"):
        make(tmp_path).acquire()


def gpu(device_id: str, uuid: str) -> DeviceInfo:
    return DeviceInfo("cuda", device_id, "a GPU", "gpu", {}, facts={"uuid": uuid} if uuid else {})


def test_a_gpu_has_one_lock_whatever_number_a_process_knows_it_by():
    """Batch systems and `CUDA_VISIBLE_DEVICES` show a process some of a host's devices, counted from 0."""
    assert gpu("cuda:0", "aa").lock_name == gpu("cuda:3", "aa").lock_name
    assert gpu("cuda:0", "aa").lock_name != gpu("cuda:0", "bb").lock_name
    assert gpu("cuda:0", "").lock_name == "cuda:0"
