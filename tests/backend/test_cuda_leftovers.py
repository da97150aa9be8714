"""What launches leave on a real CUDA device, and what the next one finds of it."""

from __future__ import annotations

import numpy as np
import pytest

from kernelwright.backend.base import (
    BoundBuffer,
    BoundLaunch,
    BufferArgument,
    BuildUnit,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.redraw import Redraw, draw_of
from kernelwright.backend.registry import get_backend
from kernelwright.evaluate.device.probe import probe_devices, select_device

pytestmark = pytest.mark.gpu

MARK = 0x1234567
KEEPS = """
extern "C" __global__ void keeps(int *seen, int mark, int n) {
  volatile int mine[WORDS];
  int found = 0;
  for (int i = 0; i < n; ++i) found += mine[i] == mark;
  for (int i = 0; i < n; ++i) mine[i] = mark;
  seen[blockIdx.x * blockDim.x + threadIdx.x] = found;
}
extern "C" __global__ void shares(int *seen, int mark, int n) {
  extern __shared__ volatile int ours[];
  int found = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) found += ours[i] == mark;
  for (int i = threadIdx.x; i < n; i += blockDim.x) ours[i] = mark;
  seen[blockIdx.x * blockDim.x + threadIdx.x] = found;
}
"""


@pytest.fixture(scope="module")
def device():
    report = probe_devices(backends=["cuda"])
    if not report.devices:
        pytest.skip(f"needs an NVIDIA GPU: {report.unavailable['cuda']}")
    return select_device(report, "cuda")


@pytest.fixture(scope="module")
def session(device):
    session = get_backend("cuda").open(device)
    yield session
    session.close()


def launch_of(session, device, tmp_path, entry, *, words, threads, shared=0):
    """A launch on as many threads as the device holds, and how often they found the mark."""
    unit = BuildUnit("cuda", KEEPS, "keeps.cu", (("WORDS", str(words)),), (), (entry,))
    artifact = get_backend("cuda").compile(unit, device, tmp_path)
    per_multiprocessor = threads if shared else device.limits["max_threads_per_multiprocessor"]
    blocks = device.limits["multiprocessors"] * per_multiprocessor // threads
    byte_count = 4 * blocks * threads
    scalars = [ScalarArgument(f"s{value}", "int32", value.to_bytes(4, "little")) for value in (MARK, words)]
    step = PlanStep(entry, (blocks, 1, 1), (threads, 1, 1), shared, (BufferArgument("seen", byte_count), *scalars))
    buffer = session.allocate(byte_count)
    bound = BoundLaunch(session.load(artifact), step, {"seen": BoundBuffer(buffer, 0, byte_count)})

    def found():
        session.time([bound])
        out = np.empty(byte_count, np.uint8)
        session.download(buffer, out)
        return int(out.view(np.int32).sum())

    return found


@pytest.mark.parametrize("words", [16, 64, 1000])
def test_local_memory_of_earlier_threads_is_forgotten(session, device, tmp_path, words):
    found = launch_of(session, device, tmp_path, "keeps", words=words, threads=256)
    found()
    left = found()
    session.forget_module_memory()
    assert found() == 0, f"without forgetting it was found {left} times"
    session.forget_module_memory()
    session.forget_module_memory()
    assert found() == 0


def test_shared_memory_of_earlier_blocks_is_forgotten(session, device, tmp_path):
    byte_count = device.limits["shared_memory_per_block"]
    found = launch_of(session, device, tmp_path, "shares", words=byte_count // 4, threads=1024, shared=byte_count)
    found()
    left = found()
    session.forget_local_memory()
    assert found() == 0, f"without forgetting it was found {left} times"


@pytest.mark.parametrize("byte_count", [1, 4096, 10_000_019])
def test_freed_memory_holds_nothing_of_what_it_held(session, byte_count):
    buffer = session.allocate(byte_count)
    session.fill(buffer, b"\x42", byte_count)
    session.free(buffer)
    again = session.allocate(byte_count)
    assert again.address == buffer.address
    out = np.empty(byte_count, np.uint8)
    session.download(again, out)
    session.free(again)
    assert not (out == 0x42).any()


def test_many_draws_in_a_row_keep_their_order_and_their_numbers(session):
    how, count = Redraw("integers", 4, low=0, span=100), 1 << 20
    base, target = session.allocate(4 * count), session.allocate(4 * count)
    draws = [draw_of(secret, "x", count, how) for secret in range(20)]
    for draw in draws:
        session.redraw(base, target, how, draw, offset_bytes=0)
    session.expect_redrawn(base, target, how, draws[-1], offset_bytes=0)
    assert session.as_expected()
    session.expect_redrawn(base, target, how, draws[-2], offset_bytes=0)
    assert not session.as_expected()
    session.free(base)
    session.free(target)
