"""The exported header is enough to launch the tuned kernels: a host that has nothing else gets the right results."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernelwright.export.run import export_run

pytestmark = pytest.mark.opencl

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GLUE = """#include "{header}"
int most_arguments(void) {{
    {prefix}_launch launch;
    return (int)(sizeof launch.arguments / sizeof launch.arguments[0]);
}}
int step_count(void) {{ return {count}; }}
static {prefix}_sizes sizes_of(const long long *values) {{
    {prefix}_sizes sizes;
    memcpy(&sizes, values, sizeof sizes);
    return sizes;
}}
const char *build_options(const long long *values) {{
    {prefix}_sizes sizes = sizes_of(values);
    const {prefix}_config *config = {prefix}_select(&sizes);
    return config == NULL ? NULL : config->build_options;
}}
{prefix}_launch launch_of(int step, const long long *values) {{
    {prefix}_sizes sizes = sizes_of(values);
    const {prefix}_config *config = {prefix}_select(&sizes);
    (void)step;
{choices}}}
"""


def run_host(
    run: Path, sizes: dict[str, int], arrays: dict[str, np.ndarray], entries: list[str], folder: Path
) -> dict[str, bytes]:
    """What the host computes, by output."""
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    gcc = shutil.which("gcc") or pytest.skip("no gcc on this machine")
    (header,) = export_run(run, folder / "out", formats=["header"])
    prefix = header.stem
    *others, last = [f"return {prefix}_launch_{entry}(config, &sizes);\n" for entry in entries]
    choices = "".join(f"    if (step == {place}) {other}" for place, other in enumerate(others)) + f"    {last}"
    (folder / "glue.c").write_text(GLUE.format(header=header, prefix=prefix, count=len(entries), choices=choices))
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([gcc, *flags, "-o", folder / "glue.so", folder / "glue.c", "-lm"], check=True, timeout=60)
    np.savez(folder / "data.npz", **arrays)
    (source,) = (run / "problem").glob(f"{run.name}.cl")
    words = [f"{name}={value}" for name, value in sizes.items()]
    host = Path(__file__).with_name("opencl_host.py")
    subprocess.run(
        [sys.executable, host, folder / "glue.so", source, folder / "data.npz", *words],
        check=True,
        timeout=120,
        env={**os.environ, "POCL_CACHE_DIR": str(folder)},
    )
    return {name: data.tobytes() for name, data in np.load(folder / "data.npz").items()}


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
