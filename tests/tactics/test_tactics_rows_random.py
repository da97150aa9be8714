"""Random CUDA kernels whose blocks walk rows, or have a thread an element: rewritten, they compute the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cuda_host import HostRunner, is_possible
from tactic_runs import GPU, assert_same, configs, example, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.tactics.base import Rewrite, Subject, Tactic
from kernelwright.tactics.rows.groups import GROUP_LANES
from kernelwright.tactics.rows.registers import ROW_REGISTERS
from tiers import TIMES

SEEDS = range(3 * TIMES)

JOIN = """
__device__ float join(float v, const bool is_sum) {
  __shared__ float part[SIZE];
  part[threadIdx.x] = v;
  __syncthreads();
  for (int reach = SIZE / 2; reach > 0; reach /= 2) {
    if (threadIdx.x < reach) {
      const float other = part[threadIdx.x + reach];
      part[threadIdx.x] = is_sum ? part[threadIdx.x] + other : fmaxf(part[threadIdx.x], other);
    }
    __syncthreads();
  }
  const float all = part[0];
  __syncthreads();
  return all;
}
"""


def row_kernel(draw: random.Random) -> Subject:
    """A kernel with one to three passes over a row."""
    size = draw.choice((32, 64, 128))
    step = draw.choice((str(size), "blockDim.x"))
    variable = draw.choice(("c", "col"))
    own, row = draw.choice(
        (
            (f"row[{variable}]", "const float *row = x + (size_t)blockIdx.x * n;"),
            (f"x[blockIdx.x * n + {variable}]", ""),
            (f"x[first + {variable}]", "const int first = blockIdx.x * n;"),
        )
    )
    element = draw.choice(("v", "v * v", f"v * w[{variable}]", "fabsf(v)", f"v + b[blockIdx.x * n + {variable}]"))
    head = f"for (int {variable} = threadIdx.x; {variable} < n; {variable} += {step})"
    kept = draw.random() < 0.4
    read, lines = own, [row] if row else []
    if kept:
        lines.append("__shared__ float kept[512];")
    is_max = draw.random() < 0.4
    keep = f" kept[{variable}] = v;" if kept else ""
    if is_max:
        lines += ["float top = -3e38f;", f"{head} {{ const float v = {own};{keep} top = fmaxf(top, {element}); }}",
                  "top = join(top, false);"]  # fmt: skip
    else:
        lines += ["float top = 0.0f;", f"{head} {{ const float v = {own};{keep} top += {element}; }}",
                  "const float all = join(top, true) / n;"]  # fmt: skip
    result = "top" if is_max else "all"
    if kept:
        read = f"kept[{variable}]"
    term = draw.choice((f"expf(0.1f * {read} - 0.1f * {result})", f"({read} - {result}) * ({read} - {result})"))
    if draw.random() < 0.6:
        lines += ["float sum = 0;", f"{head} sum += {term};", "sum = join(sum, true);"]
        value = draw.choice(
            (f"{term} / sum", f"{read} * rsqrtf(sum / n + 1e-5f)", f"({read} - {result}) / (1.0f + sum)")
        )
    else:
        value = draw.choice((f"{read} * {result} * w[{variable}]", f"{read} / (2.0f + {result})", term))
    lines.append(f"{head} {{ const int at = blockIdx.x * n + {variable}; y[at] = {value}; }}")
    if draw.random() < 0.5:
        lines.append(f"if (threadIdx.x == 0) s[blockIdx.x] = {result};")
    else:
        lines.append(f"if (!threadIdx.x) {{ s[blockIdx.x] = 2.0f * {result}; }}")
    body = "\n  ".join(lines)
    source = JOIN.replace("SIZE", str(size)) + (
        'extern "C" __global__ void f(const float *x, const float *w, const float *b, float *y, float *s, const int n)'
        f" {{\n  {body}\n}}\n"
    )
    arguments = {"x": "in float32 rows,n", "w": "in float32 n", "b": "in float32 rows,n", "y": "out float32 rows,n",
                 "s": "out float32 rows", "n": "int32 =n"}  # fmt: skip
    sizes = [{"rows": draw.choice((1, 2, 4)), "n": draw.choice((8, 40, 37, 136, 264, 500))}]
    return subject_of(source, arguments, ("rows",), (str(size),), sizes, language="cuda", device=GPU)


def group_kernel(draw: random.Random) -> Subject:
    """A kernel with a thread for each element of a group."""
    element = draw.choice(("fabsf(v)", "v * v", "fmaxf(v, 0.0f)", "v"))
    is_max = draw.random() < 0.5
    both = "fmaxf(part[threadIdx.x], part[threadIdx.x + reach])"
    if not is_max:
        both = "part[threadIdx.x] + part[threadIdx.x + reach]"
    halve = draw.choice(("reach /= 2", "reach >>= 1"))
    join = f"""__shared__ float part[128];
  part[threadIdx.x] = {element};
  __syncthreads();
  for (int reach = blockDim.x / 2; reach > 0; {halve}) {{
    if (threadIdx.x < reach) part[threadIdx.x] = {both};
    __syncthreads();
  }}
  const float all = part[0] + 1.5f;"""
    if draw.random() < 0.3:
        join = "const float all = fmaxf(w[blockIdx.x], 0.5f);"
    value = draw.choice(("v / all", "v * all + b[at]", "v > 0.0f ? v / all : b[at]", "b[at] - v"))
    end = draw.choice(("", "if (threadIdx.x == 0) s[blockIdx.x] = all;"))
    index = draw.choice(("(size_t)blockIdx.x * blockDim.x + threadIdx.x", "blockIdx.x * d + threadIdx.x"))
    if not end:
        end = "if (0 == threadIdx.x) { s[blockIdx.x] = 1.0f; }"
    source = f"""
extern "C" __global__ void f(const float *x, const float *b, const float *w, float *y, float *s) {{
  const int d = blockDim.x;
  const size_t at = {index};
  const float v = x[at];
  {join}
  y[at] = {value};
  {end}
}}
"""
    arguments = {"x": "in float32 groups,d", "b": "in float32 groups,d", "w": "in float32 groups",
                 "y": "out float32 groups,d", "s": "out float32 groups"}  # fmt: skip
    sizes = [{"groups": draw.choice((1, 3, 7)), "d": draw.choice((8, 32, 64, 128))}]
    return subject_of(source, arguments, ("groups",), ("d",), sizes, language="cuda", device=GPU)


@pytest.mark.few(1)
@pytest.mark.parametrize(("tactic", "kernel"), [(ROW_REGISTERS, row_kernel), (GROUP_LANES, group_kernel)],
                         ids=["rows", "groups"])  # fmt: skip
@pytest.mark.skipif(not is_possible(), reason="needs g++")
def test_random_kernels_compute_the_same(tactic: Tactic, kernel: object) -> None:
    done = 0
    for seed in SEEDS:
        subject = kernel(random.Random(seed))  # type: ignore[operator]
        result = tactic.apply(subject)
        if isinstance(result, Rewrite):
            done += assert_same(HostRunner(), subject, result, subject.sizes(), count=2, rtol=2e-4, seed=seed) > 0
        else:
            assert "defect" not in result.reason
    assert done >= 0.6 * len(SEEDS)


@pytest.mark.few(2)
@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC: pip install 'kernelwright[cuda]'")
@pytest.mark.parametrize(("name", "tactic"), [
    ("rmsnorm", ROW_REGISTERS), ("softmax", ROW_REGISTERS), ("fused_add_rmsnorm", ROW_REGISTERS),
    ("merge_attn_states", GROUP_LANES), ("per_token_group_quant_fp8", GROUP_LANES),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_the_cuda_text_compiles(name: str, tactic: Tactic, tmp_path: Path) -> None:
    subject = example(f"cuda/{name}", GPU)
    rewrite = tactic.apply(subject)
    assert isinstance(rewrite, Rewrite), rewrite.reason
    sizes = subject.sizes()[0]
    for config in configs(rewrite.header, sizes, count=3):
        assert not compile_cuda(rewrite, config, sizes, tmp_path)
