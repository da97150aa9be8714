"""Attention of one token in several styles becomes parts of keys; what only looks like it stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cuda_host import HostRunner, is_possible
from tactic_runs import GPU, Subject, assert_loads, assert_same, configs, subject_of
from tiling_runs import compile_cuda, has_nvrtc

from kernelwright.tactics.base import NotApplicable, Rewrite
from kernelwright.tactics.registry import tactic

THREE_PASSES = """
#define THREADS 64
__global__ void f(float* out, const float* q, const float* kcache, const float* vcache, int heads, int ctx, int dim,
                  float scale) {
  extern __shared__ float att[];
  __shared__ float red[THREADS];
  int h = blockIdx.x, b = blockIdx.y, tid = threadIdx.x;
  const float* qh = q + (b * heads + h) * dim;
  for (int t = tid; t < ctx; t += THREADS) {
    const float* kt = kcache + ((size_t)(b * ctx + t) * heads + h) * dim;
    float s = 0.0f;
    for (int i = 0; i < dim; i++) s += qh[i] * kt[i];
    att[t] = s * scale;
  }
  __syncthreads();
  float m = -1e30f;
  for (int t = tid; t < ctx; t += THREADS) m = fmaxf(m, att[t]);
  red[tid] = m;
  __syncthreads();
  for (int s = THREADS / 2; s > 0; s >>= 1) {
    if (tid < s) red[tid] = fmaxf(red[tid], red[tid + s]);
    __syncthreads();
  }
  m = red[0];
  __syncthreads();
  if (tid == 0) {
    float sum = 0.0f;
    for (int t = 0; t < ctx; ++t) sum += WEIGHT;
    red[1] = sum;
  }
  __syncthreads();
  for (int i = tid; i < dim; i += THREADS) {
    float acc = 0.0f;
    for (int t = 0; t < ctx; t++) acc += WEIGHT * vcache[((size_t)(b * ctx + t) * heads + h) * dim + i];
    out[(b * heads + h) * dim + i] = acc / red[1];
  }
}"""
WARPS = """
template <int N> __device__ float lane_sum(float v) {
  for (int o = N / 2; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
  return v;
}
__global__ void f(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* out,
                  int heads, int kv_heads, int len) {
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int b = warp / heads, kv = warp % heads / (heads / kv_heads);
  float qr[2], acc[2];
  for (int i = 0; i < 2; ++i) { qr[i] = q[(long long)warp * 64 + lane + 32 * i]; acc[i] = 0.f; }
  float top = -INFINITY, total = 0.f;
  for (int t = 0; t < len; ++t) {
    const long long base = (((long long)b * len + t) * kv_heads + kv) * 64;
    float s = 0.f;
    for (int i = 0; i < 2; ++i) s += qr[i] * k[base + lane + 32 * i];
    s = lane_sum<32>(s) * rsqrtf(64.0f);
    const float most = fmaxf(top, s), by = expf(top - most), w = expf(s - most);
    total = total * by + w;
    for (int i = 0; i < 2; ++i) acc[i] = acc[i] * by + w * v[base + lane + 32 * i];
    top = most;
  }
  for (int i = 0; i < 2; ++i) out[(long long)warp * 64 + lane + 32 * i] = acc[i] / total;
}"""
PAGES = """
__device__ float block_sum(float v, float *part) {
  for (int o = 16; o > 0; o /= 2) v += __shfl_down_sync(0xffffffff, v, o);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  float r = 0.f;
  for (int w = 0; w < (int)(blockDim.x >> 5); ++w) r += part[w];
  __syncthreads();
  return r;
}
__global__ void f(const float *q, const float *k, const float *v, const int *table, const int *lens, float *o,
                  int heads, int dim, int page, int pages, float scale) {
  __shared__ float part[32];
  const int seq = blockIdx.y, head = blockIdx.x, d = threadIdx.x;
  const int n = lens[seq];
  const int *own = table + seq * pages;
  const float qd = q[(seq * heads + head) * dim + d] * scale;
  float m = -INFINITY, l = 0.f, acc = 0.f;
  for (int j = 0; j < n; ++j) {
    const int at = (own[j / page] * page + j % page) * dim;
    const float s = block_sum(qd * k[at + d], part), to = fmaxf(m, s), p = __expf(s - to), by = __expf(m - to);
    l = l * by + p;
    acc = acc * by + p * v[at + d];
    m = to;
  }
  o[(seq * heads + head) * dim + d] = acc / l;
}"""
MASKED = """
__global__ void f(const float* q, const float* k, const float* v, const int* lens, float* o, int heads, int len,
                  int dim, float scale) {
  __shared__ float raw[256];
  float* sq = raw;
  float* sc = raw + dim;
  const int bh = blockIdx.x, b = bh / heads, t0 = threadIdx.x, n = blockDim.x;
  for (int d = t0; d < dim; d += n) sq[d] = q[bh * dim + d] * scale;
  __syncthreads();
  for (int t = t0; t < len; t += n) {
    float s = -1e30f;
    if (t < lens[b]) {
      s = 0.f;
      for (int d = 0; d < dim; ++d) s = fmaf(sq[d], k[((size_t)bh * len + t) * dim + d], s);
    }
    sc[t] = s;
  }
  __syncthreads();
  float most = -1e30f, total = 0.f;
  for (int t = 0; t < len; ++t) most = fmaxf(most, sc[t]);
  for (int t = 0; t < lens[b]; ++t) total += expf(sc[t] - most);
  for (int d = t0; d < dim; d += n) {
    float a = 0.f;
    for (int t = 0; t < lens[b]; ++t) a += expf(sc[t] - most) * v[((size_t)bh * len + t) * dim + d];
    o[bh * dim + d] = a / total;
  }
}"""
VECTORS = """
__global__ void f(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* o,
                  int len) {
  __shared__ float s[128];
  const int row = blockIdx.x;
  const float4* q4 = reinterpret_cast<const float4*>(q + (size_t)row * 32);
  for (int t = threadIdx.x; t < len; t += blockDim.x) {
    const float4* k4 = reinterpret_cast<const float4*>(k + ((size_t)row * len + t) * 32);
    float acc = 0.f;
    for (int i = 0; i < 8; ++i) {
      const float4 a = q4[i], b = k4[i];
      acc += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }
    s[t] = acc * rsqrtf(32.0f);
  }
  __syncthreads();
  float most = -1e30f, total = 0.f;
  for (int t = 0; t < len; ++t) most = fmaxf(most, s[t]);
  for (int t = 0; t < len; ++t) total += expf(s[t] - most);
  for (int i = threadIdx.x; i < 8; i += blockDim.x) {
    float4 r = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int t = 0; t < len; ++t) {
      const float4 x = reinterpret_cast<const float4*>(v + ((size_t)row * len + t) * 32)[i];
      const float w = expf(s[t] - most);
      r.x += w * x.x; r.y += w * x.y; r.z += w * x.z; r.w += w * x.w;
    }
    float4* to = reinterpret_cast<float4*>(o + (size_t)row * 32);
    to[i] = make_float4(r.x / total, r.y / total, r.z / total, r.w / total);
  }
}"""
ALONE = """
__global__ void f(const float* q, const float* k, const float* v, float* o, int rows, int len, int dim) {
  int id = blockIdx.x * blockDim.x + threadIdx.x;
  if (id >= rows) return;
  float acc[16], top = -1e30f, total = 0.f;
  for (int d = 0; d < dim; d++) acc[d] = 0.f;
  for (int t = 0; t < len; t++) {
    float s = 0.f;
    for (int d = 0; d < dim; d++) s += q[id * dim + d] * k[((size_t)id * len + t) * dim + d];
    s /= sqrtf((float)dim);
    if (s > top) {
      for (int d = 0; d < dim; d++) acc[d] *= expf(top - s);
      total *= expf(top - s);
      top = s;
    }
    total += expf(s - top);
    for (int d = 0; d < dim; d++) acc[d] += expf(s - top) * v[((size_t)id * len + t) * dim + d];
  }
  for (int d = 0; d < dim; d++) o[id * dim + d] = acc[d] / total;
}"""
CONTIGUOUS = {"out": "out float32 b,h,d", "q": "in float32 b,h,d", "kcache": "in float32 b,n,h,d",
              "vcache": "in float32 b,n,h,d", "heads": "int32 =h", "ctx": "int32 =n", "dim": "int32 =d",
              "scale": "float32 =0.5"}  # fmt: skip
GROUPED = {"q": "in float32 b,h,64", "k": "in float32 b,n,g,64", "v": "in float32 b,n,g,64",
           "out": "out float32 b,h,64", "heads": "int32 =h", "kv_heads": "int32 =g", "len": "int32 =n"}  # fmt: skip
PAGED = {"q": "in float32 b,h,d", "k": "in float32 100,p,d", "v": "in float32 100,p,d", "table": "in int32 b,m",
         "lens": "in int32 b", "o": "out float32 b,h,d", "heads": "int32 =h", "dim": "int32 =d", "page": "int32 =p",
         "pages": "int32 =m", "scale": "float32 =0.5"}  # fmt: skip


def _three_passes(weight: str = "expf(att[t] - m)") -> Subject:
    sizes = [{"b": 2, "h": 2, "n": 70, "d": 12}, {"b": 1, "h": 3, "n": 5, "d": 32}]
    return subject_of(THREE_PASSES.replace("WEIGHT", weight), CONTIGUOUS, ("h", "b"), ("64",), sizes, language="cuda",
                      device=GPU, shared_bytes="n * 4")  # fmt: skip


def _warps() -> Subject:
    sizes = [{"b": 2, "h": 8, "g": 2, "n": 45}, {"b": 2, "h": 4, "g": 4, "n": 3}]
    return subject_of(WARPS, GROUPED, ("b * h * 32 // 128",), ("128",), sizes, language="cuda", device=GPU)


def _pages() -> Subject:
    sizes = [{"b": 2, "h": 3, "d": 32, "p": 4, "m": 30}]
    return subject_of(PAGES, PAGED, ("h", "b"), ("d",), sizes, language="cuda", device=GPU)


def _masked() -> Subject:
    arguments = {"q": "in float32 b,h,d", "k": "in float32 b,h,n,d", "v": "in float32 b,h,n,d", "lens": "in int32 b",
                 "o": "out float32 b,h,d", "heads": "int32 =h", "len": "int32 =n", "dim": "int32 =d",
                 "scale": "float32 =0.5"}  # fmt: skip
    sizes = [{"b": 3, "h": 2, "n": 100, "d": 24}]
    return subject_of(MASKED, arguments, ("b * h",), ("64",), sizes, language="cuda", device=GPU)


def _alone() -> Subject:
    arguments = {"q": "in float32 b,d", "k": "in float32 b,n,d", "v": "in float32 b,n,d", "o": "out float32 b,d",
                 "rows": "int32 =b", "len": "int32 =n", "dim": "int32 =d"}  # fmt: skip
    sizes = [{"b": 70, "n": 21, "d": 8}]
    return subject_of(ALONE, arguments, ("ceil_div(b, 32)",), ("32",), sizes, language="cuda", device=GPU)


def _vectors() -> Subject:
    arguments = {"q": "in float32 b,32", "k": "in float32 b,n,32", "v": "in float32 b,n,32", "o": "out float32 b,32",
                 "len": "int32 =n"}  # fmt: skip
    sizes = [{"b": 3, "n": 70}]
    return subject_of(VECTORS, arguments, ("b",), ("32",), sizes, language="cuda", device=GPU)


def _warps_with(text: str, *names: str) -> Subject:
    """The warps' attention that leaves more for each row: `text` is what its first lane stores."""
    plain = _warps()
    parameters = "".join(f"float* {name}, " for name in names)
    source = plain.source.replace("float* out,", f"float* out, {parameters}")
    source = source.replace("acc[i] / total;", f"acc[i] / total; if (lane == 0) {{ {text} }}")
    return _with_arrays(plain, source, names)


def _with_arrays(plain: Subject, source: str, names: tuple[str, ...]) -> Subject:
    known = {"q": "in float32 b,h,64", "k": "in float32 b,n,g,64", "v": "in float32 b,n,g,64",
             "out": "out float32 b,h,64", **dict.fromkeys(names, "out float32 b,h"), "heads": "int32 =h",
             "kv_heads": "int32 =g", "len": "int32 =n"}  # fmt: skip
    grid = ("b * h * 32 // 128",)
    return subject_of(source, known, grid, ("128",), plain.sizes(), language="cuda", device=GPU)


def _log_sums() -> Subject:
    return _warps_with("lse[warp] = top + logf(total);", "lse")


def _states() -> Subject:
    return _warps_with("most[warp] = top; sums[warp] = total;", "most", "sums")


STYLES = {"log-sum-exp": _log_sums, "states": _states, "three passes": _three_passes, "warps": _warps,
          "pages": _pages, "masked": _masked, "alone": _alone, "vectors": _vectors}  # fmt: skip


def _split(subject: Subject) -> Rewrite | NotApplicable:
    chosen = tactic("attention-parts")
    assert chosen is not None
    return chosen.apply(subject)


def _few_values(rewrite: Rewrite) -> Rewrite:
    """With less to be tried: the host takes a second for what a GPU does in a microsecond."""
    most = {"SPLIT": 4, "HEADS": 4, "AHEAD": 2, "BLOCK": 128}
    kept = [
        replace(each, values=tuple(v for v in each.values if v <= most.get(each.name, v)), default=min(
            each.default, most.get(each.name, each.default)))
        for each in rewrite.header.parameters
    ]  # fmt: skip
    return replace(rewrite, header=rewrite.header.with_parameters(*kept))


@pytest.mark.thorough
@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("style", STYLES)
def test_attention_of_one_token_gives_the_same_in_parts(style: str) -> None:
    subject = STYLES[style]()
    result = _split(subject)
    assert isinstance(result, Rewrite), result.reason
    # the host has no memory that a launch sizes
    plain = replace(subject, source=subject.source.replace("extern __shared__ float att[]", "__shared__ float att[99]"))
    sizes = subject.sizes()
    assert assert_same(HostRunner(), plain, _few_values(result), sizes, count=3, rtol=1e-4) > len(sizes)


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
def test_parts_of_half_keys_compile(tmp_path: Path) -> None:
    subject = _warps()
    text = "#include <cuda_fp16.h>\n" + subject.source.replace("*__restrict__", "*").replace(
        "float* __restrict__", "half*"
    )
    result = _split(replace(subject, source=text))
    assert isinstance(result, Rewrite), result.reason
    for config in configs(result.header, subject.sizes()[0], count=1):
        assert compile_cuda(result, config, subject.sizes()[0], tmp_path) == ""


@pytest.mark.parametrize("weight", ["att[t] * att[t]", "expf(att[t] - m) + 1e-3f", "(t > 3 ? expf(att[t] - m) : 0.0f)"])
def test_sums_by_other_weights_stay(weight: str) -> None:
    result = _split(_three_passes(weight))
    assert isinstance(result, NotApplicable)


@pytest.mark.parametrize("text", ["lse[warp] = top + total;", "lse[warp] = top; out[warp * 64] = 0.0f;"])
def test_attention_that_leaves_something_else_beside_its_values_stays(text: str) -> None:
    assert isinstance(_split(_warps_with(text, "lse")), NotApplicable)


def test_keys_beyond_a_limit_that_no_short_trial_reaches_are_not_forgotten() -> None:
    for limit, is_left in ((150, True), (500, False)):  # of 200 keys
        source = _warps().source.replace("w = expf(s - most)", f"w = t < {limit} ? expf(s - most) : 0.f")
        subject = subject_of(source, GROUPED, ("b * h * 32 // 128",), ("128",), [{"b": 2, "h": 8, "g": 2, "n": 200}],
                             language="cuda", device=GPU)  # fmt: skip
        assert isinstance(_split(subject), NotApplicable if is_left else Rewrite)


def test_attention_that_leaves_more_than_its_sum_stays() -> None:
    subject = _warps()
    more = subject.source.replace("acc[i] / total;", "acc[i] / (total + len);")
    assert isinstance(_split(replace(subject, source=more)), NotApplicable)


@pytest.mark.few(2)
@pytest.mark.parametrize("style", STYLES)
def test_what_is_written_is_a_template_that_a_run_takes(style: str) -> None:
    subject = STYLES[style]()
    result = _split(subject)
    assert isinstance(result, Rewrite), result.reason
    assert_loads(subject, result)
