"""The exported header is enough to launch the tuned kernels: a host that has nothing else gets the right results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from header_hosts import run_host

pytestmark = pytest.mark.opencl

EXAMPLES = Path(__file__).resolve().parents[2] / "src/kernelwright/examples"


def test_two_launches_with_scratch(record_run: Callable[..., Path], tmp_path: Path) -> None:
    configs: list[dict[str, object]] = [{"GROUPS": 128}, {"GROUP": 32, "VEC": 8}]
    run = record_run(EXAMPLES / "reduction", configs, name="reduction")
    x = np.random.default_rng(0).random(4194304, np.float32)
    found = run_host(run, {"n": x.size}, {"x": x}, ["sum_parts", "sum_partials"], tmp_path)
    assert np.frombuffer(found["total"], np.float32)[0] == pytest.approx(float(x.sum(dtype=np.float64)), rel=3e-4)


def test_a_shape_that_was_not_tuned(record_run: Callable[..., Path], tmp_path: Path) -> None:
    run = record_run(EXAMPLES / "silu_and_mul", [{"GROUP": 32}, {"GROUP": 16, "COUNT": 2}], name="silu_and_mul")
    sizes = {"tokens": 256, "d": 2048}
    x = np.random.default_rng(0).standard_normal((256, 4096)).astype(np.float16)
    found = run_host(run, sizes, {"x": x}, ["silu_and_mul"], tmp_path)
    gate, up = x[:, :2048].astype(np.float64), x[:, 2048:].astype(np.float64)
    out = np.frombuffer(found["out"], np.float16).reshape(256, 2048)
    np.testing.assert_allclose(out, gate / (1 + np.exp(-gate)) * up, rtol=2e-3, atol=1e-6)
