"""A real OpenCL device, found the way users' devices are found."""

from __future__ import annotations

import pytest

from kernelwright.evaluate.device.probe import probe_devices, select_device


@pytest.fixture(scope="session")
def opencl_device():
    """The first OpenCL CPU device; skips with the reason where there is none."""
    report = probe_devices(backends=["opencl"])
    if not report.devices:
        pytest.skip(f"needs an OpenCL device: {report.unavailable['opencl']}")
    return select_device(report, "opencl:cpu")


@pytest.fixture(autouse=True)
def _own_cache_folder(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("KERNELWRIGHT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "kernelwright-cache"))
