"""A block's size becomes a parameter only where what the block computes does not depend on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from opencl_runs import Runner
from tiling_runs import Plain, differences, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite
from kernelwright.tactics.launch.block_shape import LAUNCH_SHAPE

SUM = """
__kernel void f(__global const float *x, __global float *o, int d) {
  __local float s[64];
  int t = get_local_id(0), row = get_group_id(0);
  float sum = 0.0f;
  for (int i = t; i < d; i += get_local_size(0)) sum += x[row * d + i];
  s[t] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k = get_local_size(0) / 2; k > 0; k /= 2) {
    if (t < k) s[t] += s[t + k];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (t == 0) o[row] = s[0];
}
"""
ROWS = Plain("sum_of_rows", "opencl", SUM, {"x": "in float32 r,d", "o": "out float32 r", "d": "scalar int32 d"},
             ("r",), ("64",), ({"r": 5, "d": 200},))  # fmt: skip


@pytest.mark.opencl
def test_a_sum_of_rows_is_the_same_with_blocks_of_any_size(tmp_path: Path, runner: Runner) -> None:
    subject = subject_of(ROWS, tmp_path)
    result = LAUNCH_SHAPE.apply(subject)
    assert isinstance(result, Rewrite), result
    assert not differences(runner, subject, result, ROWS.sizes[0], count=3, rtol=1e-5)


LEFT_ALONE = {
    "a sum that begins with 1": ({"sum = 0.0f": "sum = 1.0f"}, "begins with something else than 0"),
    "a sum that is set to 2": ({"float sum = 0.0f;": "float sum; sum = 2;"}, "begins with something else than 0"),
    "a sum with a part before": ({"sum = 0.0f;": "sum = 0; sum += 0.5f;"}, "begins with something else than 0"),
    "a sum written out": ({"sum = 0.0f": "sum = 3", "sum += x": "sum = sum + x"}, "begins with something else than 0"),
    "a product that begins with 0.5": ({"sum = 0.0f": "sum = 0.5f", "sum += x": "sum *= x", "s[t] += s[t + k]":
                                        "s[t] *= s[t + k]"}, "begins with something else than 1"),
    "a mean of threads": ({"= s[0];": "= s[0] / get_local_size(0);"}, "a part of what it stores"),
    "a mean of threads by a name": ({"int t =": "int size = get_local_size(0), t =", "= s[0];": "= s[0] / size;"},
                                    "a part of what it stores"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_depends_on_the_size_of_blocks_is_left_alone(changes: dict[str, str], reason: str, tmp_path: Path) -> None:
    source = SUM
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new)
    result = LAUNCH_SHAPE.apply(subject_of(replace(ROWS, source=source), tmp_path))
    assert isinstance(result, NotApplicable)
    assert reason in result.reason


BY_MACRO = "#define BLOCK 64\n" + SUM.replace("get_local_size(0)", "BLOCK").replace("s[64]", "s[BLOCK]")
AS_DATA = {
    "the place": ("sum += x[row * d + i]", "sum += x[row * d + i] * t"),
    "the place and the size": ("sum += x[row * d + i]", "sum += x[row * d + i] + i % BLOCK * t"),
    "the size": ("o[row] = s[0]", "o[row] = s[0] / BLOCK"),
    "a number made of them": ("sum += x[row * d + i]", "int w = i % BLOCK; sum += x[row * d + i] * w"),
    "a number that is set to the place": ("sum += x[row * d + i]", "int w; w = t; sum += x[row * d + i] * w"),
    "a number that grows by the size": ("sum += x[row * d + i]", "int w = 0; w += BLOCK; sum += x[row * d + i] * w"),
    "the size, added by all": ("o[row] = s[0]", "int w = atomic_add((__global int *)o, BLOCK)"),
    "what is chosen by the place": ("s[t] = sum", "s[t] = sum > 0.0f ? t : sum"),
    "a sum that begins with 1": ("sum = 0.0f", "sum = 1.0f"),
}


@pytest.mark.parametrize(("old", "new"), AS_DATA.values(), ids=AS_DATA)
def test_a_macro_that_is_the_size_stays_where_places_are_data(old: str, new: str, tmp_path: Path) -> None:
    plain = replace(ROWS, source=BY_MACRO)
    assert isinstance(LAUNCH_SHAPE.apply(subject_of(plain, tmp_path)), Rewrite)
    changed = replace(ROWS, source=BY_MACRO.replace(f"{old};", f"{{ {new}; }}" if "int" in new else f"{new};"))
    assert changed.source != BY_MACRO
    assert isinstance(LAUNCH_SHAPE.apply(subject_of(changed, tmp_path)), NotApplicable)
