"""Loops that load what neighbouring places share: several places a thread, with the same results."""

from __future__ import annotations

import pytest
from opencl_runs import Runner
from tactic_runs import Subject, assert_loads, assert_same, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite
from kernelwright.tactics.registry import tactic

BLOCKS = """
__kernel void f(__global const float *x, __global const float *w, __global const float *bias, __global float *y, int c,
                int o, int h, int d) {
  const int ox = get_global_id(0), oy = get_global_id(1);
  const int k = get_group_id(2) % o, n = get_group_id(2) / o;
  if (ox >= d || oy >= h) return;
  float acc = bias[k];
  for (int i = 0; i < c; ++i)
    for (int r = 0; r < 3; ++r)
      for (int s = 0; s < 3; ++s) {
        const int iy = oy + r - 1, ix = ox + s - 1;
        if (iy < 0 || iy >= h || ix < 0 || ix >= d) continue;
        acc += x[((n * c + i) * h + iy) * d + ix] * w[((k * c + i) * 3 + r) * 3 + s];
      }
  y[((n * o + k) * h + oy) * d + ox] = acc > 0.0f ? acc : 0.0f;
}"""
FLAT = """
__kernel void f(__global const float *x, __global const float *w, __global const float *bias, __global float *y, int c,
                int o, int h, int d) {
  int i = get_global_id(0);
  int oh = h - 2, ow = d - 2;
  if (i < 2 * o * oh * ow) {
    int q = i % ow, r = (i / ow) % oh, k = (i / ow / oh) % o, b = i / ow / oh / o;
    __global const float *row = w + k * c * 9;
    float s = 0;
    float least = bias[k];
    for (int j = 0; j < c; j++)
      for (int u = 0; u < 3; u++)
        for (int v = 0; v < 3; v++) {
          float part = x[b * c * h * d + j * h * d + (r + u) * d + q + v] * row[j * 9 + u * 3 + v];
          s += part;
          least = fmin(least, part);
        }
    if (s < least) s = least;
    y[i] = s + least;
  }
}"""
SHARED_ROWS = """
__kernel void f(__global const float *x, __global const float *w, __global const float *bias, __global float *y, int c,
                int o, int h, int d) {
  const int n = get_global_id(0), m = get_group_id(1);
  if (n >= d) return;
  float near = 1e30f;
  int where = -1;
  for (int k = 0; k < c; k++) {
    float by = x[m * c + k] - w[n * c + k];
    float far = by * by + bias[k];
    if (far < near) { near = far; where = k; }
  }
  y[m * d + n] = near + (float)where;
}"""
SIZES = [{"n": 2, "o": 8, "c": 3, "h": 7, "d": 10}, {"n": 2, "o": 16, "c": 2, "h": 5, "d": 4}]
SCALARS = {"c": "int32 =c", "o": "int32 =o", "h": "int32 =h", "d": "int32 =d"}


def _arguments(x: str, w: str, bias: str, y: str) -> dict[str, str]:
    return {"x": f"in float32 {x}", "w": f"in float32 {w}", "bias": f"in float32 {bias}", "y": f"out float32 {y}",
            **SCALARS}  # fmt: skip


def _blocks(source: str = BLOCKS) -> Subject:
    arguments = _arguments("n,c,h,d", "o,c,9", "o", "n,o,h,d")
    return subject_of(source, arguments, ("ceil_div(d, 8)", "ceil_div(h, 4)", "n * o"), ("8", "4", "1"), SIZES)


def _flat(source: str = FLAT) -> Subject:
    arguments = _arguments("n,c,h,d", "o,c,9", "o", "n,o,h-2,d-2")
    return subject_of(source, arguments, ("ceil_div(n * o * (h - 2) * (d - 2), 16)",), ("16",), SIZES)


def _shared_rows() -> Subject:
    return subject_of(SHARED_ROWS, _arguments("o,c", "d,c", "c", "o,d"), ("ceil_div(d, 8)", "o"), ("8", "1"), SIZES)


def _left_early() -> Subject:
    lines = FLAT.replace("  if (i < 2 * o * oh * ow) {", "  if (i >= 2 * o * oh * ow) return;\n  {")
    assert lines != FLAT
    return _flat(lines)


STYLES = {
    "an axis of blocks": _blocks,
    "a flat index": _flat,
    "a flat index that leaves early": _left_early,
    "rows of one matrix": _shared_rows,
}


def _jammed(subject: Subject) -> Rewrite | NotApplicable:
    chosen = tactic("jam")
    assert chosen is not None
    return chosen.apply(subject)


@pytest.mark.opencl
@pytest.mark.parametrize("style", STYLES)
def test_places_that_share_loads_give_the_same_together(style: str, runner: Runner) -> None:
    subject = STYLES[style]()
    result = _jammed(subject)
    assert isinstance(result, Rewrite), result.reason
    default = result.header.parameter("JAM")
    assert default is not None
    assert default.default == 8
    assert assert_same(runner, subject, result, SIZES, count=5) > 2 * len(SIZES)


def test_groups_of_places_never_cross_an_image() -> None:
    result = _jammed(_flat())
    assert isinstance(result, Rewrite)
    sizes = {"n": 2, "o": 12, "c": 3, "h": 7, "d": 10}
    allowed = [
        count for count in (1, 2, 4, 8, 16)
        if all(each.expression.evaluate({**sizes, "JAM": count}) for each in result.header.constraints)
    ]  # fmt: skip
    assert allowed == [1, 2, 4]


STAYING = {
    "the output is read": ("acc += x", "acc += y[0] * x"),
    "the launch is asked for its size": ("= bias[k]", "= bias[k] + get_num_groups(2)"),
    "a loop's end differs": ("i < c; ++i", "i < k; ++i"),
    "an array of the thread's own differs": ("  y[((n", "  float kept[2]; kept[0] = acc; acc = kept[0];\n  y[((n"),
    "an array is filled under a condition that differs": (
        "  y[((n",
        "  float kept[2]; if (acc > 0.5f) kept[0] = 1.0f;\n  acc = kept[0];\n  y[((n",
    ),
    "a variable is changed by its address": ("  y[((n", "  float *at = &acc; *at = 1.0f;\n  y[((n"),
    "an index is shifted before it is divided": ("get_group_id(2) / o;", "(get_group_id(2) + 1) / o;"),
    "nothing is shared": ("x[((n * c", "x[(((n + k) * c"),
}


@pytest.mark.parametrize("what", STAYING)
def test_places_that_share_nothing_certain_stay(what: str) -> None:
    before, after = STAYING[what]
    assert before in BLOCKS
    assert isinstance(_jammed(_blocks(BLOCKS.replace(before, after))), NotApplicable)


@pytest.mark.few(2)
@pytest.mark.parametrize("style", STYLES)
def test_what_is_written_is_a_template_that_a_run_takes(style: str) -> None:
    subject = STYLES[style]()
    result = _jammed(subject)
    assert isinstance(result, Rewrite), result.reason
    assert_loads(subject, result)
