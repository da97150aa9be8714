"""Argmax, top-k and gates in several styles become rows in order; what only looks like them stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_host import HostRunner, is_possible
from tactic_runs import GPU, Subject, assert_loads, configs, inputs, job, subject_of

from kernelwright.tactics.base import NotApplicable, Rewrite
from kernelwright.tactics.registry import tactic

INSERTED = """
#define MAX_K 4
__global__ void f(const float *x, float *v, int *i, int rows, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= rows) return;
  const float *row = x + (long long)t * n;
  float best[MAX_K];
  int where[MAX_K];
  for (int k = 0; k < MAX_K; ++k) { best[k] = -INFINITY; where[k] = -1; }
  for (int e = 0; e < n; ++e) {
    float value = row[e];
    if (value > best[MAX_K - 1]) {
      int j = MAX_K - 1;
      while (j > 0 && best[j - 1] < value) { best[j] = best[j - 1]; where[j] = where[j - 1]; --j; }
      best[j] = value;
      where[j] = e;
    }
  }
  float sum = 0.f;
  for (int k = 0; k < MAX_K; ++k) sum += expf(best[k] - best[0]);
  for (int k = 0; k < MAX_K; ++k) {
    v[t * MAX_K + k] = expf(best[k] - best[0]) / sum;
    i[t * MAX_K + k] = where[k];
  }
}"""
WARPS = """
__global__ void f(const float* __restrict__ x, float* __restrict__ v, int* __restrict__ i, int rows, int n) {
  const int lane = threadIdx.x & 31, row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (row >= rows) return;
  const float* g = x + (size_t)row * n;
  float mx = -INFINITY, sum = 0.f;
  for (int e = lane; e < n; e += 32) mx = fmaxf(mx, g[e]);
  for (int o = 16; o > 0; o >>= 1) mx = fmaxf(mx, __shfl_xor_sync(0xffffffff, mx, o));
  for (int e = lane; e < n; e += 32) sum += expf(g[e] - mx);
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
  unsigned taken = 0;
  for (int k = 0; k < 4; ++k) {
    float bv = -INFINITY;
    int bi = 1 << 20;
    for (int e = lane, bit = 0; e < n; e += 32, ++bit) {
      if (!(taken >> bit & 1) && g[e] > bv) { bv = g[e]; bi = e; }
    }
    for (int o = 16; o > 0; o >>= 1) {
      const float ov = __shfl_xor_sync(0xffffffff, bv, o);
      const int oi = __shfl_xor_sync(0xffffffff, bi, o);
      if (ov > bv || (ov == bv && oi < bi)) { bv = ov; bi = oi; }
    }
    if (bi % 32 == lane) taken |= 1u << bi / 32;
    if (lane == 0) { v[row * 4 + k] = expf(bv - mx) / sum; i[row * 4 + k] = bi; }
  }
}"""
TREE = """
__global__ void f(const float *x, float *v, int *i, int n) {
  __shared__ float sv[64];
  __shared__ int si[64];
  const int t = threadIdx.x;
  float best = -3.4e38f;
  int where = 0;
  for (int c = t; c < n; c += 64) {
    float each = x[blockIdx.x * n + c];
    if (each > best) { best = each; where = c; }
  }
  sv[t] = best; si[t] = where;
  __syncthreads();
  for (int s = 32; s > 0; s >>= 1) {
    if (t < s && sv[t + s] > sv[t]) { sv[t] = sv[t + s]; si[t] = si[t + s]; }
    __syncthreads();
  }
  if (t == 0) { v[blockIdx.x] = sv[0]; i[blockIdx.x] = si[0]; }
}"""
GATES = """
__global__ void f(const float *x, float *v, int *i, int n, float scale) {
  __shared__ float s[256];
  const int t = blockIdx.x;
  for (int e = threadIdx.x; e < n; e += blockDim.x) s[e] = 1.f / (1.f + expf(-x[t * n + e]));
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.f;
    for (int j = 0; j < 4; ++j) {
      int b = 0;
      float m = -1.f;
      for (int e = 0; e < n; ++e) if (s[e] > m) { m = s[e]; b = e; }
      v[t * 4 + j] = m; i[t * 4 + j] = b; total += m; s[b] = -1.f;
    }
    for (int j = 0; j < 4; ++j) v[t * 4 + j] = v[t * 4 + j] / total * scale;
  }
}"""
STRUCTS = """
struct Best { float d; int i; };
__device__ inline Best pick(Best a, Best b) { return (b.d < a.d || (b.d == a.d && b.i < a.i)) ? b : a; }
__device__ inline Best warp_pick(Best x) {
  for (int o = 16; o; o >>= 1) {
    Best y;
    y.d = __shfl_down_sync(0xffffffff, x.d, o);
    y.i = __shfl_down_sync(0xffffffff, x.i, o);
    x = pick(x, y);
  }
  return x;
}
__global__ void f(const float *x, int *i, int n) {
  __shared__ Best part[2];
  Best mine = {3.0e38f, 0};
  for (int j = threadIdx.x; j < n; j += blockDim.x) {
    Best c = {x[blockIdx.x * (long)n + j], j};
    mine = pick(mine, c);
  }
  mine = warp_pick(mine);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) { mine = pick(part[0], part[1]); i[blockIdx.x] = mine.i; }
}"""
ROWS = [{"rows": 21, "n": 96}, {"rows": 9, "n": 256}]
KEPT = {"x": "in float32 rows,n", "v": "out float32 rows,4", "i": "out int32 rows,4", "rows": "int32 =rows",
        "n": "int32 =n"}  # fmt: skip
GATED = {name: text for name, text in KEPT.items() if name != "rows"}
ONE = {"x": "in float32 rows,n", "v": "out float32 rows", "i": "out int32 rows", "n": "int32 =n"}
PLACE = {"x": "in float32 rows,n", "i": "out int32 rows", "n": "int32 =n"}


def _subject(source: str, arguments: dict[str, str], grid: str, block: str) -> Subject:
    return subject_of(source, arguments, (grid,), (block,), ROWS, language="cuda", device=GPU)


STYLES = {
    "one thread inserts": _subject(INSERTED, KEPT, "ceil_div(rows, 8)", "8"),
    "warps in rounds": _subject(WARPS, KEPT, "ceil_div(rows, 2)", "64"),
    "a tree that prefers no place": _subject(TREE, ONE, "rows", "64"),
    "gates in shared memory": _subject(GATES, {**GATED, "scale": "float32 =2.5"}, "rows", "32"),
    "structs in shuffles": _subject(STRUCTS, PLACE, "rows", "64"),
}


def _ordered(subject: Subject) -> Rewrite | NotApplicable:
    chosen = tactic("row-order")
    assert chosen is not None
    return chosen.apply(subject)


@pytest.mark.thorough
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("style", STYLES)
def test_rows_in_order_give_the_same_also_where_many_elements_are_equal(style: str) -> None:
    subject, runner = STYLES[style], HostRunner()
    result = _ordered(subject)
    assert isinstance(result, Rewrite), result.reason
    done = 0
    for sizes in ROWS:
        arrays = inputs(subject, sizes)
        arrays["x"] = np.round(arrays["x"] * 2) / 2
        expected = runner.run(job(subject, subject.source, subject.header, {}, sizes, arrays))
        assert not expected.error, expected.error
        for config in configs(result.header, sizes, count=4, seed=done):
            found = runner.run(job(subject, result.source, result.header, config, sizes, arrays))
            assert not found.error, f"{config} on {sizes}: {found.error}"
            assert (found.arrays["i"] == expected.arrays["i"]).all(), f"{config} on {sizes}"
            if "v" in arrays:
                np.testing.assert_allclose(found.arrays["v"], expected.arrays["v"], rtol=1e-5)
            done += 1
    assert done > len(ROWS)


def _leaves_the_same(subject: Subject, result: Rewrite, rows: np.ndarray, sizes: dict[str, int]) -> None:
    """Whether source and rewrite leave the same for rows with special elements."""
    runner = HostRunner()
    arrays = {**inputs(subject, sizes), "x": rows}
    expected = runner.run(job(subject, subject.source, subject.header, {}, sizes, arrays))
    assert not expected.error, expected.error
    for config in configs(result.header, sizes, count=4):
        found = runner.run(job(subject, result.source, result.header, config, sizes, arrays))
        assert not found.error, f"{config}: {found.error}"
        np.testing.assert_array_equal(found.arrays["i"], expected.arrays["i"], err_msg=str(config))
        if "v" in arrays:
            np.testing.assert_allclose(found.arrays["v"], expected.arrays["v"], rtol=1e-5, err_msg=str(config))


@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.few(2)
@pytest.mark.parametrize("style", STYLES)
def test_rows_of_nan_and_of_infinities_leave_what_the_source_leaves(style: str) -> None:
    subject, sizes = STYLES[style], {"rows": 9, "n": 256}
    result = _ordered(subject)
    assert isinstance(result, Rewrite), result.reason
    rows = inputs(subject, sizes)["x"]
    rows[0], rows[4], rows[5], rows[8] = np.nan, -np.inf, np.inf, np.nan
    _leaves_the_same(subject, result, rows, sizes)


WIDE_TREE = TREE.replace("64", "128").replace("s = 32", "s = 64")


@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_threads_that_are_more_than_a_trial_has_elements_keep_their_order_of_equal_ones() -> None:
    sizes = [{"rows": 5, "n": 1000}]
    subject = subject_of(WIDE_TREE, ONE, ("rows",), ("128",), sizes, language="cuda", device=GPU)
    result = _ordered(subject)
    assert isinstance(result, Rewrite), result.reason
    rows = np.round(inputs(subject, sizes[0])["x"])
    _leaves_the_same(subject, result, rows, sizes[0])


@pytest.mark.parametrize("condition", ["value == value", "value > -1.0e30f", "!isnan(value)"])
def test_a_condition_that_only_special_elements_answer_otherwise_is_met_by_them(condition: str) -> None:
    source = INSERTED.replace("if (value > best", f"if ({condition} && value > best")
    assert isinstance(_ordered(_subject(source, KEPT, "ceil_div(rows, 8)", "8")), Rewrite)


@pytest.mark.parametrize(("condition", "rest"), [("e < 1000", ""), ("e < most", ", int most"), ("e >= n - 500", "")])
def test_a_limit_of_places_beyond_all_trials_is_met_where_rows_are_longer(condition: str, rest: str) -> None:
    source = INSERTED.replace("if (value > best", f"if ({condition} && value > best")
    source = source.replace("int rows, int n", f"int rows, int n{rest}")
    arguments = {**KEPT, **({"most": "int32 =900"} if rest else {})}
    for longest, is_limited in ((1500, True), (400, False)):
        sizes = [{"rows": 21, "n": longest}]
        subject = subject_of(source, arguments, ("ceil_div(rows, 8)",), ("8",), sizes, language="cuda", device=GPU)
        assert isinstance(_ordered(subject), NotApplicable if is_limited else Rewrite), longest


OTHERS = {
    "another result": ("expf(best[k] - best[0]) / sum", "best[k] * best[k]"),
    "places that are moved": ("i[t * MAX_K + k] = where[k]", "i[t * MAX_K + k] = where[k] + 1"),
    "only some elements": ("e < n; ++e", "e < n; e += 2"),
    "elements below a limit": ("if (value > best", "if (row[e] < 50.0f && value > best"),
    "elements below a limit that were loaded before": ("if (value > best", "if (value < 50.0f && value > best"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_results_of_rows_stay(what: str) -> None:
    before, after = OTHERS[what]
    assert before in INSERTED
    assert isinstance(
        _ordered(_subject(INSERTED.replace(before, after), KEPT, "ceil_div(rows, 8)", "8")), NotApplicable
    )


CHANGED = {
    "a limit of places in long rows": "if (v > best && i < 4000) { best = v; at = i; }",
    "one place that is left out": "if (v > best && i != 777) { best = v; at = i; }",
    "a clip": "v = fminf(v, 2.f); if (v > best) { best = v; at = i; }",
    "a clip far away": "v = fminf(v, 50.f); if (v > best) { best = v; at = i; }",
    "a clip by a condition": "v = v > 2.f ? 2.f : v; if (v > best) { best = v; at = i; }",
    "a rounding": "v = rintf(v * 4096.f); if (v > best) { best = v; at = i; }",
    "small elements as zero": "if (fabsf(v) < 1e-30f) v = 0; if (v > best) { best = v; at = i; }",
    "small elements as zero by two limits": "if (v > -1e-30f && v < 1e-30f) v = 0; if (v > best) { best = v; at = i; }",
    "a power": "v = v * v * v; if (v > best) { best = v; at = i; }",
    "a power where it is assigned": "v *= 1e-20f; if (v > best) { best = v; at = i; }",
}
ARGMAX = """
__global__ void f(const float *x, int *i_out, int n) {
  int row = blockIdx.x, lid = threadIdx.x;
  __shared__ float sv[128];
  __shared__ int si[128];
  float best = -INFINITY;
  int at = 0;
  for (int i = lid; i < n; i += 128) { float v = x[row * n + i]; BODY }
  sv[lid] = best; si[lid] = at;
  __syncthreads();
  for (int o = 64; o > 0; o >>= 1) {
    if (lid < o && (sv[lid + o] > sv[lid] || (sv[lid + o] == sv[lid] && si[lid + o] < si[lid]))) {
      sv[lid] = sv[lid + o]; si[lid] = si[lid + o];
    }
    __syncthreads();
  }
  if (lid == 0) i_out[row] = si[0];
}"""


def _argmax(body: str) -> Rewrite | NotApplicable:
    arguments = {"x": "in float32 rows,n", "i_out": "out int32 rows", "n": "int32 =n"}
    sizes = [{"rows": 64, "n": 5000}]
    source = ARGMAX.replace("BODY", body)
    return _ordered(subject_of(source, arguments, ("rows",), ("128",), sizes, language="cuda", device=GPU))


@pytest.mark.parametrize("what", CHANGED)
def test_elements_that_are_changed_or_left_out_before_they_are_compared_stay(what: str) -> None:
    assert isinstance(_argmax(CHANGED[what]), NotApplicable)


def test_the_same_rows_are_ordered_where_nothing_is_changed() -> None:
    assert isinstance(_argmax("if (v > best) { best = v; at = i; }"), Rewrite)


@pytest.mark.parametrize("clip", ["fminf(x[t * n + e], 2.f)", "rintf(x[t * n + e] * 4096.f)"])
def test_gates_of_elements_that_are_changed_stay(clip: str) -> None:
    source = GATES.replace("expf(-x[t * n + e])", f"expf(-{clip})")
    assert isinstance(_ordered(replace(STYLES["gates in shared memory"], source=source)), NotApplicable)


def test_an_order_that_threads_race_for_stays() -> None:
    source = TREE.replace("si[t] = si[t + s]; }", "si[t] = (si[t] + si[t + s]) / 2; }")
    assert isinstance(_ordered(replace(STYLES["a tree that prefers no place"], source=source)), NotApplicable)


@pytest.mark.few(2)
@pytest.mark.parametrize("style", STYLES)
def test_what_is_written_is_a_template_that_a_run_takes(style: str) -> None:
    subject = STYLES[style]
    result = _ordered(subject)
    assert isinstance(result, Rewrite), result.reason
    assert_loads(subject, result)
