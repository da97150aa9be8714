"""The plain form of a staged kernel holds for sizes that the problem does not declare, or says for which it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from opencl_runs import Runner
from tiling_runs import Plain, differences, is_feasible, subject_of

from kernelwright.tactics.base import Effect, Rewrite, Subject, Unfit
from kernelwright.tactics.contraction.tiles import CONTRACTION_TILES
from kernelwright.tactics.tiling.direct import direct
from kernelwright.tactics.tiling.unstaged import also_unstaged

WAIT = "barrier(CLK_LOCAL_MEM_FENCE);"
LINE = {"a": "in float32 n + 200", "o": "out float32 n + 200", "n": "scalar int32 n"}
"""What lies behind the end of `a` is no zero: reading it is seen."""
LINES = ({"n": 250}, {"n": 300}, {"n": 1}, {"n": 65})
SUM = {"a": "in float32 k + 64", "b": "in float32 k + 64", "o": "out float32 n", "n": "scalar int32 n",
       "k": "scalar int32 k"}  # fmt: skip
SUMS = ({"n": 64, "k": 37}, {"n": 65, "k": 16}, {"n": 3, "k": 1}, {"n": 100, "k": 50})
ABC = {"a": "in float32 m + 1,k", "b": "in float32 k + 16,n", "c": "out float32 m,n", "m": "scalar int32 m",
       "n": "scalar int32 n", "k": "scalar int32 k"}  # fmt: skip
PRODUCTS = ({"m": 37, "n": 53, "k": 29}, {"m": 1, "n": 1, "k": 1}, {"m": 65, "n": 24, "k": 7})


def line(name: str, body: str, *, grid: str = "ceil_div(n, 64)") -> Plain:
    """A kernel over one axis, which is declared for whole blocks alone."""
    source = f"""
__kernel void f(__global const float *a, __global float *o, int n) {{
  __local float t[72];
  int l = get_local_id(0), x = get_global_id(0);
  {body}
}}
"""
    return Plain(name, "opencl", source.replace("WAIT", WAIT), LINE, (grid,), ("64",), ({"n": 256},))


def sums(
    name: str, fill: str, join: str, *, loop: str = "int t = 0; t < k; t += 16", start: str = "0", is_ended: bool = True
) -> tuple[Plain, bool]:  # fmt: skip
    """A kernel that walks tiles of 16, which is declared for whole tiles alone, and whether it may end with k."""
    source = f"""
__kernel void f(__global const float *a, __global const float *b, __global float *o, int n, int k) {{
  __local float ta[16], tb[16];
  int l = get_local_id(0), x = get_global_id(0);
  float sum = {start}, more = 0;
  for ({loop}) {{
    {fill}
    WAIT
    for (int i = 0; i < 16; i++) {{ {join} }}
    WAIT
  }}
  if (x < n) o[x] = sum + more;
}}
"""
    source = source.replace("WAIT", WAIT)
    sizes = ({"n": 64, "k": 32},)
    return Plain(name, "opencl", source, SUM, ("ceil_div(n, 16)",), ("16",), sizes), is_ended


PADDED = "ta[l] = t + l < k ? a[t + l] : 0; tb[l] = t + l < k ? b[t + l] : 0;"
PRODUCT = """
__kernel void f(__global const float *a, __global const float *b, __global float *c, int m, int n, int k) {
  __local float as[32][16], bs[16][33];
  int tx = get_local_id(0), ty = get_local_id(1), tid = ty * 8 + tx;
  float acc[4][4];
  for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) acc[i][j] = 0;
  for (int k0 = 0; k0 < k; k0 += 16) {
    for (int i = tid; i < 32 * 16; i += 64) {
      int r = i / 16, q = i % 16, row = get_group_id(1) * 32 + r;
      as[r][q] = (row < m && k0 + q < k) ? a[row * k + k0 + q] : 0;
    }
    for (int i = tid; i < 32 * 16; i += 64) {
      int r = i / 32, q = i % 32, column = get_group_id(0) * 32 + q;
      bs[r][q] = (column < n && k0 + r < k) ? b[(k0 + r) * n + column] : 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int l = 0; l < 16; l++) {
      float x[4], y[4];
      for (int i = 0; i < 4; i++) x[i] = as[ty * 4 + i][l];
      for (int j = 0; j < 4; j++) y[j] = bs[l][tx * 4 + j];
      for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) acc[i][j] += x[i] * y[j];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) {
      int row = get_group_id(1) * 32 + ty * 4 + i, column = get_group_id(0) * 32 + tx * 4 + j;
      if (row < m && column < n) c[row * n + column] = acc[i][j];
    }
}
"""
ONE_SUM = """
__kernel void f(__global const float *a, __global const float *b, __global float *c, int m, int n, int k) {
  __local float ta[8][9], tb[8][9];
  int lx = get_local_id(0), ly = get_local_id(1), gx = get_global_id(0), gy = get_global_id(1);
  float sum = 0;
  for (int t = 0; t < (k + 7) / 8; t++) {
    if (gy < m && t * 8 + lx < k) ta[ly][lx] = a[gy * k + t * 8 + lx]; else ta[ly][lx] = 0;
    if (gx < n && t * 8 + ly < k) tb[ly][lx] = b[(t * 8 + ly) * n + gx]; else tb[ly][lx] = 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < 8; i++) sum = fma(ta[ly][i], tb[i][lx], sum);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (gy < m && gx < n) c[gy * n + gx] = sum;
}
"""
WHOLE_PRODUCTS = ({"m": 32, "n": 64, "k": 32},)
KEPT = (
    line("zeros_behind_the_end", """t[l + 4] = x < n ? a[x] : 0;
  if (l < 4) { t[l] = x >= 4 ? a[x - 4] : 0; t[l + 68] = x + 64 < n ? a[x + 64] : 0; }
  WAIT
  if (x < n) o[x] = t[l] + t[l + 4] * 2 + t[l + 8] * 3;"""),
    line("a_clamp", "t[l] = a[min(x, n - 1)];\n  WAIT\n  if (x >= n) return;\n  o[x] = t[l];"),
    line("a_clamp_and_results_behind_the_end", "t[l] = a[min(x, n - 1)];\n  WAIT\n  o[x] = t[63 - l];"),
    line("filled_under_a_condition", "if (x < n) t[l] = a[x];\n  WAIT\n  float v = t[l]; if (x < n) o[x] = v;"),
    line("zeros_that_are_stored", "t[l] = x < n ? a[x] : 0;\n  WAIT\n  o[x] = t[63 - l] + 1;"),
    line("a_number_behind_the_end", "t[l] = x < n ? a[x] : 7.5f;\n  WAIT\n  o[x] = t[63 - l];"),
    line("an_end_of_its_own", "t[l] = x < 200 ? a[x] : 0;\n  WAIT\n  if (x < n) o[x] = t[l];"),
    line("results_that_end_before_the_tile", "t[l] = x < n ? a[x] : 0;\n  WAIT\n  if (x < n - 1) o[x] = t[l + 1 - 1];"),
    line("results_that_end_behind_the_tile", "t[l] = x < n - 3 ? a[x] : 0;\n  WAIT\n  if (x < n) o[x] = t[l];"),
    line("a_second_result_of_a_function", """t[l] = x < n ? a[x] : 0;
  WAIT
  float second = 1, first = sincos(t[l], &second);
  if (x < n) o[x] = second;"""),
    line("whole_blocks", "t[l] = x < n ? a[x] : 0;\n  WAIT\n  o[x] = t[63 - l] + 1;", grid="n // 64"),
)  # fmt: skip
ENDED = (
    sums("a_product", PADDED, "sum += ta[i] * tb[i];"),
    sums("a_product_by_way_of_variables", PADDED, "float p = ta[i] * 2; float q = p * tb[i]; sum += q;"),
    sums("a_sum", PADDED, "sum += ta[i]; sum -= tb[i];"),
    sums("two_sums", PADDED, "sum += ta[i] * tb[i]; more += ta[i] * ta[i];"),
    sums("a_sum_of_squared_differences", PADDED, "float d = ta[i] - tb[i]; sum += d * d;"),
    sums("a_product_of_a_maximum", PADDED, "sum += fmax(ta[i], 0.0f) * tb[i];"),
    sums("a_second_result_in_an_outer_variable", PADDED, "float q = sincos(ta[i], &more); sum += ta[i] * tb[i];",
         is_ended=False),
    sums("a_sum_that_starts_with_another", PADDED, "sum = ta[i] * tb[i] + more;", is_ended=False),
    sums("a_maximum", PADDED, "sum = fmax(sum, ta[i] * tb[i] - 3);", start="-100", is_ended=False),
    sums("a_minimum_of_numbers", "ta[l] = t + l < k ? a[t + l] : 9.0f;", "sum = fmin(sum, ta[i]);", start="100",
         is_ended=False),
    sums("a_count", PADDED, "sum += ta[i] * tb[i]; more += 1;", is_ended=False),
    sums("a_count_of_zeros", PADDED, "more += ta[i] == 0.0f;", is_ended=False),
    sums("a_decaying_sum", PADDED, "sum = sum * 0.5f + ta[i] * tb[i];", is_ended=False),
    sums("a_variable_of_both", PADDED, "float p = ta[i]; p += 1; sum += p;", is_ended=False),
    sums("two_sums_in_turn", PADDED, "sum += ta[i] * tb[i]; more += sum;", is_ended=False),
    sums("a_product_with_another_sum", PADDED, "sum = fma(ta[i], tb[i], more);", is_ended=False),
    sums("two_ends", "ta[l] = t + l < k - 1 ? a[t + l] : 0; tb[l] = t + l < k ? b[t + l] : 0;",
         "sum += ta[i] * tb[i];", is_ended=False),
    sums("an_end_behind_whole_tiles", "ta[l] = t * 16 + l < k ? a[t * 16 + l] : 0; tb[l] = b[t * 16 + l];",
         "sum += ta[i] * tb[i];", loop="int t = 0; t < k / 16; t++", is_ended=False),
    sums("whole_tiles", "ta[l] = a[t * 16 + l]; tb[l] = b[t * 16 + l];", "sum += ta[i] * tb[i];",
         loop="int t = 0; t < k / 16; t++", is_ended=False),
    sums("a_maximum_in_an_outer_variable", PADDED, "more = ta[i]; sum += ta[i] * tb[i];", is_ended=False),
)  # fmt: skip
PRODUCTS_OF = (
    Plain("a_product_of_16_sums", "opencl", PRODUCT, ABC, ("ceil_div(n, 32)", "ceil_div(m, 32)"), ("8", "8"),
          WHOLE_PRODUCTS),
    Plain("a_product_of_one_sum", "opencl", ONE_SUM, ABC, ("ceil_div(n, 8)", "ceil_div(m, 8)"), ("8", "8"),
          WHOLE_PRODUCTS),
)  # fmt: skip
CASES = (
    *((each, LINES) for each in KEPT), *((each, SUMS) for each, _ in ENDED), *((each, PRODUCTS) for each in PRODUCTS_OF)
)  # fmt: skip


def wrong(runner: Runner, subject: Subject, made: Subject, sizes: Sequence[Mapping[str, int]]) -> list[str]:
    """What a plain form computes otherwise."""
    rewrite = Rewrite("plain", "memory", made.source, made.header, (), "", Effect(1.0, ""))
    return [found for each in sizes for found in differences(runner, subject, rewrite, each, count=0, rtol=1e-6)]


@pytest.mark.opencl
@pytest.mark.parametrize(("staged", "others"), CASES, ids=[each.name for each, _ in CASES])
def test_a_plain_form_holds_for_sizes_that_are_not_declared(
    staged: Plain, others: tuple[Mapping[str, int], ...], tmp_path: Path, runner: Runner
) -> None:
    subject = subject_of(staged, tmp_path)
    made = direct(subject)
    assert not made.header.constraints
    assert not wrong(runner, subject, made, (*staged.sizes, *others))


@pytest.mark.parametrize(("staged", "is_ended"), ENDED, ids=[each.name for each, _ in ENDED])
def test_only_sums_of_zeros_end_before_the_last_tile(staged: Plain, is_ended: bool, tmp_path: Path) -> None:
    assert ("_all < k;" in direct(subject_of(staged, tmp_path)).source) == is_ended


@pytest.mark.opencl
def test_tiles_that_are_read_beyond_the_end_hold_for_whole_tiles_alone(tmp_path: Path, runner: Runner) -> None:
    fill = "ta[l] = a[t + l]; tb[l] = b[t + l];"
    subject = subject_of(sums("unguarded", fill, "sum += ta[i] * tb[i];")[0], tmp_path)
    made = direct(subject)
    assert [each.expression.text for each in made.header.constraints] == ["(k) % 16 == 0"]
    assert not any(is_feasible(made.header, {}, each) for each in SUMS if each["k"] % 16)
    assert not wrong(runner, subject, made, [each for each in SUMS if is_feasible(made.header, {}, each)])


@pytest.mark.opencl
def test_a_tactic_on_a_plain_form_holds_for_sizes_that_are_not_declared(tmp_path: Path, runner: Runner) -> None:
    subject = subject_of(PRODUCTS_OF[1], tmp_path)
    made = also_unstaged(CONTRACTION_TILES).apply(subject)
    assert isinstance(made, Rewrite)
    for sizes in PRODUCTS:
        assert not differences(runner, subject, made, sizes, count=2, rtol=1e-5)


@pytest.mark.opencl
@pytest.mark.parametrize("body", ["t[l] = x < n - 3u ? a[x] : 0;\n  WAIT\n  o[x] = t[63 - l];",
                                  "t[l] = x < n ? a[x] : 0;\n  WAIT\n  if (x < n - 3u) o[x] = t[l];"])  # fmt: skip
def test_unsigned_numbers_that_wrap_for_other_sizes_are_a_constraint(body: str, tmp_path: Path, runner: Runner) -> None:
    subject = subject_of(line("unsigned", body), tmp_path)
    made = direct(subject)
    assert [n for n in range(1, 9) if is_feasible(made.header, {}, {"n": n})] == [3, 4, 5, 6, 7, 8]
    assert not wrong(runner, subject, made, ({"n": 3}, *(each for each in LINES if each["n"] > 1)))


EFFECTS = {
    "a function named like a mathematical one": (
        "__device__ float add(float &sum, float v) { sum += v; return sum; }",
        "t[l] = a[x]; __syncthreads(); float sum = 1, all = add(sum, t[l]); o[x] = sum;", "",
    ),
    "results that a function stores before a barrier": (
        "__device__ void put(float *o, int x);", "put(o, x); t[l] = a[x]; __syncthreads(); o[x ^ 63] = t[l];",
        "__device__ void put(float *o, int x) { o[x] = 1; }",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "body", "behind"), EFFECTS.values(), ids=EFFECTS)
def test_what_functions_of_the_file_do_is_left_alone(before: str, body: str, behind: str, tmp_path: Path) -> None:
    source = f"""{before}
__global__ void f(const float *a, float *o, int n) {{
  __shared__ float t[64];
  int l = threadIdx.x, x = blockIdx.x * 64 + l;
  {body}
}}
{behind}
"""
    staged = Plain("effects", "cuda", source, LINE, ("n // 64",), ("64",), ({"n": 256},))
    with pytest.raises(Unfit, match=r"function of its own|stores results between barriers"):
        direct(subject_of(staged, tmp_path))


UNFILLED = {
    "results of all": "if (x < n) t[l] = a[x];\n  WAIT\n  o[x] = t[l];",
    "results beyond the end": "if (x < n - 1) t[l] = a[x];\n  WAIT\n  if (x < n) o[x] = t[l];",
}


@pytest.mark.parametrize("body", UNFILLED.values(), ids=UNFILLED)
def test_what_declared_sizes_alone_fill_is_left_alone(body: str, tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="not filled in all blocks"):
        direct(subject_of(line("unfilled", body), tmp_path))
