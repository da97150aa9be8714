"""Every backend is held to the same contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.backend.base import DeviceInfo, DeviceSession
from kernelwright.backend.registry import get_backend
from kernelwright.testing.contracts_backend import BackendContract, BackendSubject

OPENCL_SCALE = """__kernel void scale(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = FACTOR * x[i];
}
"""

CUDA_SCALE = """extern "C" __global__ void scale(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = FACTOR * x[i];
}
"""


@pytest.fixture(scope="module")
def opencl_session(opencl_device: DeviceInfo) -> Iterator[DeviceSession]:
    session = get_backend("opencl").open(opencl_device)
    yield session
    session.close()


@pytest.mark.opencl
class TestOpenCL(BackendContract):
    @pytest.fixture
    def subject(self, opencl_device: DeviceInfo, opencl_session: DeviceSession, tmp_path: Path) -> BackendSubject:
        return BackendSubject(
            backend=get_backend("opencl"),
            device=opencl_device,
            session=opencl_session,
            folder=tmp_path,
            language="opencl",
            scale_source=OPENCL_SCALE,
            broken_source=OPENCL_SCALE.replace("FACTOR", "undeclared_thing"),
        )


@pytest.fixture(scope="module")
def cuda() -> Iterator[tuple[DeviceInfo, DeviceSession]]:
    backend = get_backend("cuda")
    reason = backend.unavailable_because()
    if reason:
        pytest.skip(f"needs an NVIDIA GPU: {reason}")
    device = backend.devices()[0]
    session = backend.open(device)
    yield device, session
    session.close()


@pytest.mark.gpu
class TestCuda(BackendContract):
    @pytest.fixture
    def subject(self, cuda: tuple[DeviceInfo, DeviceSession], tmp_path: Path) -> BackendSubject:
        return BackendSubject(
            backend=get_backend("cuda"),
            device=cuda[0],
            session=cuda[1],
            folder=tmp_path,
            language="cuda",
            scale_source=CUDA_SCALE,
            broken_source=CUDA_SCALE.replace("FACTOR", "undeclared_thing"),
        )
