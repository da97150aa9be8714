"""What builds machine code for PoCL runs none of it: no candidate can answer for what is built beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.backend.base import (
    Artifact,
    BufferArgument,
    BuildUnit,
    DeviceInfo,
    PlanStep,
)
from kernelwright.backend.opencl.cpu.unloaded_kernels import load_nothing_from
from kernelwright.backend.opencl.driver import is_pocl
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildPool

pytestmark = pytest.mark.opencl

HOSTILE = {
    "it runs for ever": "volatile int stays = 1; while (stays) { }",
    "it crashes": "*(volatile __global int *)8 = 1;",
    "it overwrites its process's memory": "for (long i = 0; i < 1L << 40; ++i) ((volatile __global int *)x)[i] = 1;",
}
PLAN = (PlanStep("k", (4, 1, 1), (8, 1, 1), 0, (BufferArgument("x", 128),)),)


@pytest.fixture
def pool(opencl_device: DeviceInfo, tmp_path: Path) -> Iterator[BuildPool]:
    if not is_pocl(opencl_device):
        pytest.skip("only PoCL compiles by launching")
    pool = BuildPool(
        "opencl", opencl_device, process_count=1, cache=ArtifactCache(tmp_path / "cache"), scratch=tmp_path / "scratch",
        specialise_timeout_s=120.0,
    )  # fmt: skip
    yield pool
    pool.close()


def built(pool: BuildPool, source: str) -> object:
    unit = BuildUnit("opencl", source, "k.cl", (), (), ("k",))
    return pool.submit(unit, (PLAN,)).result(timeout=240)[0]


@pytest.mark.parametrize("what", HOSTILE)
def test_machine_code_is_made_and_not_run(pool: BuildPool, what: str) -> None:
    result = built(pool, f"__kernel void k(__global int *x) {{ {HOSTILE[what]} x[get_global_id(0)] = 1; }}")
    assert isinstance(result, Artifact)
    assert not pool.warnings
    assert list(result.folder.rglob("*.so"))
    assert pool._workers[0].start_count == 1


@pytest.mark.thorough
def test_many_kernels_are_made_by_one_process(pool: BuildPool) -> None:
    """More than PoCL keeps loaded, so that it lets go of what it never loaded."""
    results = [built(pool, f"__kernel void k(__global int *x) {{ x[{index}] = {index}; }}") for index in range(140)]
    assert all(isinstance(each, Artifact) and list(each.folder.rglob("*.so")) for each in results)
    assert pool._workers[0].start_count == 1


def test_a_driver_that_cannot_be_led_is_told(tmp_path: Path) -> None:
    assert not load_nothing_from(tmp_path, "libthereisnosuchdriver")
