"""The analytical estimate: what arithmetic says of a launch, offered to searchers as one more source."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kernelwright.problem.config import Config
from kernelwright.search.analytic import SOURCE_NAME, DeviceShape, LaunchShape, analytic_priors, estimate
from kernelwright.search.registry import create
from kernelwright.testing.synthetic import matmul_space

DEVICE = DeviceShape(multiprocessors=100, threads=2048, shared_bytes=100_000, balance=2.0)
GOOD = LaunchShape(threads=256, blocks=80_000, results=8)


def time_of(**changed: Any) -> float:
    found = estimate(dataclasses.replace(GOOD, **changed), DEVICE)
    assert found is not None
    return found


def test_a_block_that_does_not_fit_has_no_estimate() -> None:
    assert estimate(dataclasses.replace(GOOD, shared_bytes=100_001), DEVICE) is None
    assert estimate(dataclasses.replace(GOOD, threads=4096), DEVICE) is None
    assert estimate(dataclasses.replace(GOOD, blocks=0), DEVICE) is None


@pytest.mark.parametrize(
    "worse",
    [
        {"threads": 257},  # a warp with one lane
        {"blocks": 801},  # a wave with one block
        {"results": 1.0},  # nothing of its own to hide latency with
        {"shared_bytes": 60_000},  # one block at once
        {"traffic": 8.0},
    ],
)
def test_what_uses_the_device_worse_is_estimated_slower(worse: dict[str, float]) -> None:
    assert time_of(**worse) > time_of()


def test_too_many_results_spill() -> None:
    assert time_of(results=1000.0) > time_of(results=100.0)


def test_estimates_are_a_source_that_leaves_out_what_is_not_known() -> None:
    space = matmul_space()

    def launch_of(config: Config) -> LaunchShape | None:
        threads = int(config["BLOCK_M"]) * int(config["BLOCK_N"]) // int(config["THREAD_M"]) // int(config["THREAD_N"])
        results = float(int(config["THREAD_M"]) * int(config["THREAD_N"]))
        return LaunchShape(threads, 1024**2 // int(threads * results), results) if config["PREFETCH"] else None

    priors = analytic_priors(space, launch_of, DEVICE, limit=500)
    assert 100 < len(priors) < 500
    assert {prior.source for prior in priors} == {SOURCE_NAME}
    assert all(prior.config["PREFETCH"] for prior in priors)
    assert priors == analytic_priors(space, launch_of, DEVICE, limit=500)
    assert create("surrogate", space, seed=0, priors=priors).ask(2)
