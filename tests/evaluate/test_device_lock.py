"""Runs on one device take turns, and a dead one gives its turn back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError, StoreError
from kernelwright.evaluate.device.lock import DeviceLock


def make(tmp_path, device_id="opencl:pocl-3.0:cpu0", **options):
    return DeviceLock(device_id, folder=tmp_path / "locks", **options)


def test_second_holder_waits_and_is_told_who_holds_it(tmp_path):
    reports = []
    with make(tmp_path):
        waiting = make(tmp_path, timeout_s=0.1, on_wait=lambda waited_s, holder: reports.append(holder))
        with pytest.raises(InfrastructureError, match=rf"process {os.getpid()} measures on it"):
            waiting.acquire()
    assert reports == [f"process {os.getpid()}"]
    with waiting:
        pass


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
    with make(tmp_path, timeout_s=5.0):
        pass


def test_holder_that_comes_again_at_once_does_not_starve_the_other(tmp_path):
    """Without a queue the one that sleeps between looks would hardly ever find it free."""
    counts = [0, 0]
    end_s = time.monotonic() + 1.0

    def measure(index):
        lock = make(tmp_path)
        while time.monotonic() < end_s:
            with lock:
                counts[index] += 1
                time.sleep(0.01)

    threads = [threading.Thread(target=measure, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert min(counts) >= max(counts) / 2


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
