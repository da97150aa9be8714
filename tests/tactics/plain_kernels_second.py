"""The second half of the corpus of plain kernels: indirect, ordered, stateful, and what analysis must decline."""

from __future__ import annotations

from plain_kernel_case import Case

SECOND_CASES = (
    Case(
        "embedding_gather",
        "cuda",
        """
__global__ void embed(const float *table, const int *ids, float *out, int d) {
  int t = blockIdx.x;
  int id = ids[t];
  for (int c = threadIdx.x; c < d; c += blockDim.x) out[t * d + c] = table[(size_t)id * d + c];
}
""",
        "gather/scatter",
        "gather",
        roles={"table": "gathered", "ids": "index"},
    ),
    Case(
        "histogram",
        "opencl",
        """
__kernel void hist(__global const uchar *img, __global uint *bins, uint n) {
  for (uint i = get_global_id(0); i < n; i += get_global_size(0)) atomic_inc(&bins[img[i]]);
}
""",
        "gather/scatter",
        "scatter with atomics",
        sweeps=("grid-stride",),
        roles={"bins": "scattered", "img": "index"},
    ),
    Case(
        "running_sum",
        "cuda",
        """
__global__ void cumsum(const float *x, float *y, int rows, int cols) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float acc = 0;
  for (int c = 0; c < cols; ++c) { acc += x[r*cols+c]; y[r*cols+c] = acc; }
}
""",
        "generic",
        near="row-wise",
    ),
    Case(
        "unknown_function",
        "cuda",
        """
#include "mine.cuh"
__global__ void apply(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { x[i] = my_activation(x[i]); }
}
""",
        "generic",
        near="elementwise",
        opaque="my_activation",
    ),
    Case(
        "inline_assembly",
        "cuda",
        """
__global__ void f(const unsigned *x, unsigned *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned v = x[i], r;
  asm("brev.b32 %0, %1;" : "=r"(r) : "r"(v));
  y[i] = r;
}
""",
        "elementwise",
    ),
    Case(
        "assembly_of_a_place",
        "cuda",
        """
__global__ void f(const unsigned *x, unsigned *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned v = x[i], r;
  asm("mov.u32 %0, %%laneid;" : "=r"(r) : "r"(v));
  y[i] = r;
}
""",
        "generic",
        near="elementwise",
        opaque="asm",
    ),
    Case(
        "switch_and_goto",
        "opencl",
        """
__kernel void f(__global float *x, int mode) {
  int i = get_global_id(0);
  switch (mode) { case 0: x[i] = 1; break; case 1: x[i] += 2; break; }
}
""",
        "generic",
        opaque="switch",
    ),
    Case(
        "in_place_neighbour",
        "cuda",
        """
__global__ void shift(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i + 1 < n) x[i] = x[i + 1];
}
""",
        "generic",
        near="elementwise",
    ),
    Case(
        "quadratic_index",
        "cuda",
        """
__global__ void triangle(const float *x, float *y, int n) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r < n) for (int c = 0; c <= r; ++c) y[r * (r + 1) / 2 + c] = x[r * n + c];
}
""",
        "generic",
        elements={("x", "read"): "global.x*n + c"},
    ),
    Case(
        "unusual_formatting",
        "opencl",
        """
// a comment with braces { and a "quote
__kernel
void
  odd ( __global
  float
  * restrict out , /* what? */ __global const float*in , const
  int n )
{ const int
    i =
      (int)
        get_global_id
          ( 0 )
  ; if ( ! ( i < n ) ) { return ; }
  out
    [ i ] = native_exp ( in [ i ] )
  ; }
""",
        "elementwise",
        elements={("in", "read"): "global.x", ("out", "write"): "global.x"},
        roles={"in": "same index", "out": "output"},
    ),
    Case(
        "conditional_compilation",
        "cuda",
        """
#ifndef USE_FAST
#define USE_FAST 0
#endif
#if USE_FAST
#define EXP __expf
#else
#define EXP expf
#endif
__global__ void e(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
#if USE_FAST > 1
    y[i] = x[i];
#else
    y[i] = EXP(x[i]);
#endif
  }
}
""",
        "elementwise",
        roles={"x": "same index"},
    ),
    Case(
        "condition_from_outside",
        "cuda",
        """
__global__ void e(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
#if SQUARE > 1
  if (i < n) y[i] = x[i] * x[i];
#else
  if (i < n) y[i] = x[i];
#endif
}
""",
        "generic",
        near="elementwise",
        opaque="SQUARE",
    ),
    Case(
        "items_per_thread",
        "cuda",
        """
constexpr int ITEMS = 4;
__global__ void saxpy(float a, const float *x, float *y, int n) {
  const int base = blockIdx.x * blockDim.x * ITEMS + threadIdx.x;
#pragma unroll 4
  for (int k = 0; k < ITEMS; ++k) {
    const int i = base + k * blockDim.x;
    if (i < n) y[i] = fmaf(a, x[i], y[i]);
  }
}
""",
        "elementwise",
        contiguity={("x", "read"): "coalesced"},
    ),
    Case(
        "vector_index_variable",
        "opencl",
        """
__kernel void invert(__global const uchar4 *in, __global uchar4 *out, const int2 size) {
  const int2 pos = (int2)(get_global_id(0), get_global_id(1));
  if (pos.x < size.x && pos.y < size.y) {
    const int at = pos.y * size.x + pos.x;
    out[at] = (uchar4)(255) - in[at];
  }
}
""",
        "elementwise",
        elements={("in", "read"): "global.y*size.x + global.x"},
    ),
    Case(
        "private_rows",
        "cuda",
        """
__global__ void rows(const float *x, float *y, int n) {
  float keep[8];
  float s = 0.f;
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  for (int k = 0; k < 8; ++k) { keep[k] = x[r * 8 + k]; s += keep[k]; }
  for (int k = 0; k < 8; ++k) y[r * 8 + k] = keep[k] / s;
}
""",
        "row-wise",
        "normalisation",
        reductions=(("sum", "thread"),),
    ),
    Case(
        "stored_where_data_says",
        "cuda",
        """
__global__ void masked(const float *x, const int *mask, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && mask[i]) y[i] = x[i];
}
""",
        "elementwise",
        confidence="likely",
    ),
    Case(
        "loop_that_ends_early",
        "cuda",
        """
__global__ void first_above(const float *x, float *out, float limit, int rows, int cols) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float s = 0;
  for (int c = 0; c < cols; ++c) { if (s > limit) break; s += x[r * cols + c]; }
  out[r] = s;
}
""",
        "generic",
        near="row-wise",
    ),
    Case(
        "reversed_in_shared",
        "cuda",
        """
__global__ void reverse(float *y, const float *x) {
  __shared__ float s[256];
  int t = threadIdx.x, i = blockIdx.x * 256 + t;
  s[t] = x[i];
  __syncthreads();
  y[i] = s[255 - t];
}
""",
        "generic",
        near="elementwise",
    ),
    Case(
        "stencil_in_shared",
        "cuda",
        """
#define B 128
__global__ void smooth(const float *x, float *y, int n) {
  __shared__ float s[B + 2];
  int i = blockIdx.x * B + threadIdx.x, t = threadIdx.x + 1;
  s[t] = i < n ? x[i] : 0;
  if (threadIdx.x == 0) s[0] = i > 0 ? x[i - 1] : 0;
  if (threadIdx.x == B - 1) s[B + 1] = i + 1 < n ? x[i + 1] : 0;
  __syncthreads();
  if (i < n) y[i] = 0.25f * s[t - 1] + 0.5f * s[t] + 0.25f * s[t + 1];
}
""",
        "stencil",
        confidence="certain",
    ),
    Case(
        "accumulated_in_global",
        "cuda",
        """
__global__ void mm(const float *A, const float *B, float *C, int M, int N, int K) {
  int r = blockIdx.y * blockDim.y + threadIdx.y;
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (r < M && c < N) {
    for (int k = 0; k < K; k++) C[r * N + c] += A[r * K + k] * B[k * N + c];
  }
}
""",
        "contraction",
        "matrix-matrix",
        roles={"A": "left factor", "B": "right factor", "C": "output"},
    ),
    Case(
        "kept_in_local_array",
        "cuda",
        """
__global__ void scale_rows(const float *x, float *y, float a, int n) {
  float keep[4];
  int base = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  #pragma unroll
  for (int k = 0; k < 4; ++k) keep[k] = x[base + k];
  #pragma unroll
  for (int k = 0; k < 4; ++k) y[base + k] = a * keep[k];
}
""",
        "elementwise",
        contiguity={("x", "read"): "strided"},
    ),
    Case(
        "pointers_in_a_struct",
        "cuda",
        """
struct Args { const float *x; float *y; int n; };
__global__ void f(Args args) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < args.n) args.y[i] = args.x[i];
}
""",
        "generic",
        opaque="not followed",
    ),
    Case(
        "last_iteration_kept",
        "cuda",
        """
__global__ void diff(const float *x, float *y, int rows, int n) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float prev = 0;
  for (int k = 0; k < n; k++) { float v = x[r * n + k]; y[r * n + k] = v - prev; prev = v; }
}
""",
        "generic",
        near="elementwise",
    ),
    Case(
        "scan_in_shared",
        "cuda",
        """
__global__ void scan(const float *x, float *y) {
  __shared__ float t[256];
  int i = blockIdx.x * 256 + threadIdx.x;
  t[threadIdx.x] = x[i];
  __syncthreads();
  for (int o = 1; o < 256; o *= 2) {
    float v = 0;
    if (threadIdx.x >= o) v = t[threadIdx.x - o];
    __syncthreads();
    t[threadIdx.x] += v;
    __syncthreads();
  }
  y[i] = t[threadIdx.x];
}
""",
        "generic",
        near="row-wise",
    ),
    Case(
        "periodic_stencil",
        "cuda",
        """
__global__ void derivative(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[(i + 1) % n] - x[(i + n - 1) % n];
}
""",
        "stencil",
        confidence="likely",
    ),
    Case(
        "direct_convolution",
        "cuda",
        """
__global__ void conv(const float *in, const float *w, float *out, int C, int H, int W, int OC, int KH, int KW) {
  int ox = blockIdx.x * blockDim.x + threadIdx.x, oy = blockIdx.y, oc = blockIdx.z;
  int OW = W - KW + 1, OH = H - KH + 1;
  if (ox >= OW) return;
  float s = 0;
  for (int c = 0; c < C; c++)
    for (int i = 0; i < KH; i++)
      for (int j = 0; j < KW; j++)
        s += in[(c * H + oy + i) * W + ox + j] * w[((oc * C + c) * KH + i) * KW + j];
  out[(oc * OH + oy) * OW + ox] = s;
}
""",
        "contraction",
        "convolution",
        roles={"in": "left factor", "w": "right factor"},
    ),
    Case(
        "rotary_pairs",
        "cuda",
        """
__global__ void rope(float *q, const float *cosines, const float *sines, int D) {
  int t = blockIdx.x, i = threadIdx.x, h = D / 2;
  if (i >= h) return;
  float a = q[t * D + i], b = q[t * D + i + h], c = cosines[t * h + i], s = sines[t * h + i];
  q[t * D + i] = a * c - b * s;
  q[t * D + i + h] = a * s + b * c;
}
""",
        "elementwise",
        roles={"q": "several elements, in place"},
    ),
    Case(
        "optimiser_step",
        "hip",
        """
__global__ void adam(float *p, const float *g, float *m, float *v, float lr, float b1, float b2, float eps, int n) {
  for (int i = hipBlockIdx_x * hipBlockDim_x + hipThreadIdx_x; i < n; i += hipBlockDim_x * hipGridDim_x) {
    float gi = g[i], mi = b1 * m[i] + (1 - b1) * gi, vi = b2 * v[i] + (1 - b2) * gi * gi;
    m[i] = mi; v[i] = vi;
    p[i] -= lr * mi / (sqrtf(vi) + eps);
  }
}
""",
        "elementwise",
        sweeps=("grid-stride",),
        roles={"p": "same index, in place", "m": "same index, in place", "g": "same index"},
    ),
    Case(
        "sparse_rows",
        "cuda",
        """
__global__ void spmv(const int *starts, const int *columns, const float *v, const float *x, float *y, int n) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r < n) {
    float s = 0;
    for (int k = starts[r]; k < starts[r + 1]; k++) s += v[k] * x[columns[k]];
    y[r] = s;
  }
}
""",
        "gather/scatter",
        "gather with a reduction",
        roles={"x": "gathered", "columns": "index"},
    ),
    Case(
        "volatile_memory",
        "opencl",
        """
__kernel void f(volatile __global int *flags) { flags[get_global_id(0)] = 1; }
""",
        "generic",
        near="elementwise",
        opaque="volatile",
    ),
    Case(
        "hidden_variable",
        "cuda",
        """
__global__ void f(float *a, int n) {
  int t = threadIdx.x;
  for (int c = 0; c < n; ++c) { a[t] = 0; int t = 5; t += 3; a[t] = 1; }
}
""",
        "generic",
    ),
    Case(
        "many_to_one",
        "cuda",
        """
__global__ void halve(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i / 2] = x[i];
}
""",
        "generic",
        near="elementwise",
    ),
)
