"""A block that is carried out with numbers leaves what the block leaves where it runs."""

from __future__ import annotations

import numpy as np
import pytest
import test_tactics_attention
import test_tactics_matrix_rows
import test_tactics_row_order
from cuda_host import HostRunner, is_possible
from tactic_runs import GPU, Subject, inputs, job, replace, subject_of

from kernelwright.tactics.base import Unfit
from kernelwright.tactics.recognised.places import integers_up_to, launched, run_block
from kernelwright.tactics.recognised.replay.values import arbitrary

SEED = 5
KERNELS: dict[str, Subject] = {
    **{f"attention, {name}": make() for name, make in test_tactics_attention.STYLES.items()},
    **{f"order, {name}": subject for name, subject in test_tactics_row_order.STYLES.items()},
    **{f"matrix, {name}": subject for name, subject in test_tactics_matrix_rows.STYLES.items()},
}


@pytest.mark.thorough
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("name", KERNELS)
def test_blocks_leave_what_they_leave_where_they_run(name: str) -> None:
    subject = KERNELS[name]
    sizes = subject.sizes()[0]
    arrays = {}
    for array, values in inputs(subject, sizes).items():
        places = np.arange(values.size)
        numbers = arbitrary(array, places, SEED) if values.dtype.kind == "f" else integers_up_to(SEED)(array, places)
        arrays[array] = numbers.astype(values.dtype).reshape(values.shape)
    outputs = [each.name for each in subject.problem.arguments if each.role == "output"]
    plain = subject.source.replace("extern __shared__ float att[]", "__shared__ float att[99]")
    ran = HostRunner().run(job(subject, plain, subject.header, {}, sizes, arrays))
    assert not ran.error, ran.error
    scalars = {each.name: float(each.value.evaluate(sizes)) for each in subject.problem.arguments
               if each.value is not None and each.dtype == "float32"}  # fmt: skip
    launch = launched(subject, sizes, scalars, SEED)
    for block in (0, launch.blocks - 1):
        carried = run_block(subject, launch, block, SEED, 400_000)
        for output in outputs:
            left = ran.arrays[output].reshape(-1)
            for place, value in carried.written[output].items():
                np.testing.assert_allclose(left[place], value, rtol=1e-4, atol=1e-5, err_msg=f"{output}[{place}]")


ENDLESS = "__global__ void f(float *y) { for (;;) { } y[0] = 1.0f; }"
DEEP = """
__device__ float again(float v) { return again(v + 1.0f); }
__global__ void f(float *y) { y[0] = again(0.0f); }"""
BEYOND = "__global__ void f(float *y) { __shared__ float s[4]; s[threadIdx.x] = 1.0f; y[threadIdx.x] = s[0]; }"
ATOMIC = "__global__ void f(float *y) { atomicAdd(y, 1.0f); }"


@pytest.mark.parametrize(("source", "reason"), [
    (ENDLESS, "too long"), (DEEP, "calls itself"), (BEYOND, "beyond its end"), (ATOMIC, "atomicAdd"),
])  # fmt: skip
def test_what_cannot_be_carried_out_says_why(source: str, reason: str) -> None:
    subject = subject_of(source, {"y": "out float32 64"}, ("1",), ("32",), [{}], language="cuda", device=GPU)
    with pytest.raises(Unfit, match=reason):
        run_block(subject, launched(subject, {}, {}), 0, 0, 20_000)


def test_threads_that_leave_early_do_nothing_more() -> None:
    source = """
    __global__ void f(float *y, int n) {
      int i = threadIdx.x;
      if (i >= n) return;
      for (int k = 0; k < 8; ++k) {
        if (k == 2) continue;
        if (k > i) break;
        y[i] = k;
      }
    }"""
    arguments = {"y": "out float32 64", "n": "int32 =n"}
    subject = subject_of(source, arguments, ("1",), ("32",), [{"n": 5}], language="cuda", device=GPU)
    left = run_block(subject, launched(subject, {"n": 5}, {}), 0, 0, 20_000).written["y"]
    assert left == {0: 0.0, 1: 1.0, 2: 1.0, 3: 3.0, 4: 4.0}
    other = replace(subject, source=source.replace("break", "return"))
    assert run_block(other, launched(other, {"n": 5}, {}), 0, 0, 20_000).written["y"] == left


TILE = """
__global__ void f(const float *x, float *y, int n) {
    __shared__ float tile[2][4][3];
    int a = threadIdx.x / 12, b = threadIdx.x / 3 % 4, c = threadIdx.x % 3;
    tile[a][b][c] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[1 - a][3 - b][c];
}"""


def test_arrays_of_several_extents_are_followed() -> None:
    arguments = {"x": "in float32 n", "y": "out float32 n", "n": "int32 =n"}
    subject = subject_of(TILE, arguments, ["1"], ["24"], [{"n": 24}], language="cuda", device=GPU)
    carried = run_block(subject, launched(subject, {"n": 24}, {}), 0, SEED, 10_000)
    given = arbitrary("x", np.arange(24), SEED).reshape(2, 4, 3)
    assert [carried.written["y"][place] for place in range(24)] == given[::-1, ::-1].reshape(-1).tolist()
