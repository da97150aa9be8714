"""Devices are found in a process of their own, and chosen by words."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from kernelwright.errors import MissingDependency, UsageError
from kernelwright.evaluate.device.probe import ProbeReport, begun_probes, probe_devices, select_device, select_devices
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerProcess, WorkerSettings
from kernelwright.testing.fault_backend import FAULT_BACKEND, FAULT_DEVICE

GPU = replace(FAULT_DEVICE, backend="opencl", id="opencl:nvidia-cuda-13.0:gpu0", name="NVIDIA H100", kind="gpu")
CPU = replace(FAULT_DEVICE, backend="opencl", id="opencl:pocl-3.0:cpu0", name="EPYC", kind="cpu")
REPORT = ProbeReport((GPU, CPU), {})


def test_probe_asks_each_backend():
    report = probe_devices(backends=[FAULT_BACKEND])
    assert report.devices == (FAULT_DEVICE,)
    assert report.unavailable == {}


@pytest.mark.parametrize("class_name", ["CrashingBackend", "UnavailableBackend"])
def test_backend_without_devices_is_a_reason_and_the_others_count(class_name):
    name = f"lost_backends:{class_name}"
    report = probe_devices(backends=[name, FAULT_BACKEND])
    assert report.devices == (FAULT_DEVICE,)
    expected = {"CrashingBackend": "crashed", "UnavailableBackend": "not today"}[class_name]
    assert expected in report.unavailable[name]


def test_a_probe_that_is_begun_early_answers_once_and_ends_with_its_block():
    with begun_probes(FAULT_BACKEND) as begun:
        worker = begun.take(FAULT_BACKEND)
        assert worker is not None
        assert worker.alive
        begun.keep(FAULT_BACKEND, worker)
        assert probe_devices(backends=[FAULT_BACKEND], begun=begun).devices == (FAULT_DEVICE,)
        assert not worker.alive
        assert begun.take(FAULT_BACKEND) is None
        assert probe_devices(backends=[FAULT_BACKEND], begun=begun).devices == (FAULT_DEVICE,)
    with begun_probes(FAULT_BACKEND) as begun:
        unasked = begun.take(FAULT_BACKEND)
        assert unasked is not None
        begun.keep(FAULT_BACKEND, unasked)
    assert not unasked.alive


@pytest.mark.parametrize("class_name", ["CrashingBackend", "UnavailableBackend"])
def test_a_probe_that_is_begun_early_and_fails_is_asked_anew(class_name):
    name = f"lost_backends:{class_name}"
    with begun_probes(name) as begun:
        report = probe_devices(backends=[name, FAULT_BACKEND], begun=begun)
    assert report.devices == (FAULT_DEVICE,)
    assert {"CrashingBackend": "crashed", "UnavailableBackend": "not today"}[class_name] in report.unavailable[name]


def test_a_driver_that_hangs_is_waited_for_once():
    class Silent(WorkerProcess):
        def call(self, job, *, timeout_s, watch=None):
            raise JobTimeout(self.settings.name, timeout_s, "")

    with begun_probes() as begun:
        begun.keep(FAULT_BACKEND, Silent(WorkerSettings("silent", "nothing:nothing", None), scratch=begun.scratch))
        report = probe_devices(backends=[FAULT_BACKEND], begun=begun)
    assert report.unavailable[FAULT_BACKEND].startswith("its driver did not answer within")
    assert report.devices == ()


def test_probe_loads_no_gpu_library_here():
    code = (
        "import sys; from kernelwright.evaluate.device.probe import probe_devices; probe_devices();"
        "print([name for name in ('pyopencl', 'torch', 'cuda') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_backend_is_told():
    with pytest.raises(UsageError, match="no backend is called 'opengl'"):
        probe_devices(backends=["opengl"])


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        (None, GPU), ("", GPU), ("opencl", GPU), ("gpu", GPU), ("cpu", CPU), ("opencl:cpu", CPU), ("opencl:gpu", GPU),
        ("opencl:pocl-3.0:cpu0", CPU), ("opencl:pocl-3.0", CPU), ("h100", GPU), ("epyc", CPU),
    ],
)  # fmt: skip
def test_selector_means_the_first_that_fits(selector, chosen):
    assert select_device(REPORT, selector) is chosen


def test_selector_that_fits_none_lists_what_is_there_and_the_nearest():
    with pytest.raises(UsageError) as caught:
        select_device(REPORT, "opencl:pocl-3.1:cpu0")
    assert "opencl:nvidia-cuda-13.0:gpu0 (NVIDIA H100), opencl:pocl-3.0:cpu0 (EPYC)" in caught.value.message
    assert caught.value.hint == "did you mean 'opencl:pocl-3.0:cpu0'?"


def test_no_device_at_all_says_why_and_what_to_install():
    report = ProbeReport((), {"opencl": "the package 'pyopencl' cannot be imported"})
    with pytest.raises(MissingDependency, match="'pyopencl' cannot be imported") as caught:
        select_device(report)
    assert "pip install 'kernelwright[opencl]'" in caught.value.hint


def test_device_that_does_not_take_the_language_is_no_choice():
    assert select_device(REPORT, "cpu", language="opencl") is CPU
    with pytest.raises(MissingDependency, match="no device here runs cuda kernels"):
        select_device(REPORT, "cpu", language="cuda")


TWINS = (replace(GPU, id="cuda:0", backend="cuda"), replace(GPU, id="cuda:1", backend="cuda"))
MANY = ProbeReport((*TWINS, GPU, CPU), {})


@pytest.mark.parametrize(
    ("selector", "ids"),
    [
        (None, ["cuda:0"]), ("cuda:1", ["cuda:1"]), ("cuda:1,cuda:0", ["cuda:1", "cuda:0"]),
        ("all", ["cuda:0", "cuda:1"]), ("cuda:all", ["cuda:0", "cuda:1"]), ("opencl:all", [GPU.id]),
    ],
)  # fmt: skip
def test_several_devices_of_one_model_are_chosen_together(selector, ids):
    assert [device.id for device in select_devices(MANY, selector)] == ids


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ("cuda:0,cuda:0", "a device twice"),
        ("cuda:0,cpu", "one run needs one model"),
        ("cuda:0,cuda:7", "no device fits"),
    ],
)
def test_devices_that_do_not_go_together_are_refused(selector, words):
    with pytest.raises(UsageError, match=words):
        select_devices(MANY, selector)
