"""Plain kernels in deliberately different styles, each with what must be understood of it."""

from __future__ import annotations

from plain_kernel_case import Case
from plain_kernels_second import SECOND_CASES

__all__ = ["CASES", "Case"]

CASES = (
    Case(
        "macro_index",
        "opencl",
        """
#define IDX(r, c, w) ((r) * (w) + (c))
#define GID(d) get_global_id(d)
__kernel void add(__global const float *a, __global const float *b, __global float *c, int w, int h) {
  if (GID(0) >= w || GID(1) >= h) return;
  c[IDX(GID(1), GID(0), w)] = a[IDX(GID(1), GID(0), w)] + b[IDX(GID(1), GID(0), w)];
}
""",
        "elementwise",
        elements={("a", "read"): "global.y*w + global.x", ("c", "write"): "global.y*w + global.x"},
        contiguity={("a", "read"): "coalesced"},
        roles={"a": "same index", "b": "same index", "c": "output"},
    ),
    Case(
        "statement_macro",
        "cuda",
        """
#define FOR_EACH(i, n) \\
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
#define KERNEL extern "C" __global__ void
KERNEL relu(float *__restrict__ x, const long n)
{
  FOR_EACH(i, n) { x[i] = x[i] > 0 ? x[i] : 0; }
}
""",
        "elementwise",
        elements={("x", "accumulate"): "i"},
        contiguity={("x", "accumulate"): "coalesced"},
        sweeps=("grid-stride",),
        roles={"x": "same index, in place"},
    ),
    Case(
        "helper_index",
        "cuda",
        """
__device__ __forceinline__ int at(int row, int col, int ld) { return row * ld + col; }
__device__ float gelu(float v) { const float t = tanhf(0.79788456f * (v + 0.044715f * v * v * v)); return 0.5f*v*(1+t); }
__global__ void bias_gelu(float* out, const float* in, const float* bias, int rows, int cols) {
  auto c = blockIdx.x*blockDim.x+threadIdx.x; auto r = blockIdx.y*blockDim.y+threadIdx.y;
  if (r < rows && c < cols) out[at(r, c, cols)] = gelu(in[at(r, c, cols)] + bias[c]);
}
""",
        "elementwise",
        elements={("in", "read"): "cols*global.y + global.x", ("bias", "read"): "global.x"},
        roles={"in": "same index", "bias": "broadcast over r", "out": "output"},
    ),
    Case(
        "template_grid_stride",
        "cuda",
        """
template <typename T, int UNROLL = 4>
__global__ void __launch_bounds__(256, 2) axpby(const T *x, T *y, T a, T b, size_t n) {
  const size_t step = (size_t)gridDim.x * blockDim.x;
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  while (i < n) {
    y[i] = a * x[i] + b * y[i];
    i += step;
  }
}
""",
        "elementwise",
        elements={("x", "read"): "i", ("y", "write"): "i"},
        contiguity={("x", "read"): "coalesced", ("y", "write"): "coalesced"},
        sweeps=("grid-stride",),
    ),
    Case(
        "hip_spelling",
        "hip",
        """
#include <hip/hip_runtime.h>
extern "C" __global__ void scale(float* data, float factor, int n)
{
    int gid = hipBlockIdx_x * hipBlockDim_x + hipThreadIdx_x;
    if (gid >= n)
        return;
    data[gid] *= factor;
}
""",
        "elementwise",
        elements={("data", "accumulate"): "global.x"},
        roles={"data": "same index, in place"},
    ),
    Case(
        "hip_dynamic_shared",
        "hip",
        """
__global__ void block_sums(const float* in, float* out, int n) {
  HIP_DYNAMIC_SHARED(float, buf)
  unsigned tid = threadIdx.x, i = blockIdx.x * blockDim.x + tid;
  buf[tid] = i < n ? in[i] : 0.0f;
  __syncthreads();
  for (unsigned s = blockDim.x >> 1; s; s >>= 1) {
    if (tid < s) buf[tid] += buf[tid + s];
    __syncthreads();
  }
  if (!tid) out[blockIdx.x] = buf[0];
}
""",
        "whole reduction",
        "one result a block",
        elements={("in", "read"): "global.x", ("out", "write"): "block.x"},
        reductions=(("sum", "block"),),
        roles={"in": "reduced", "out": "output"},
    ),
    Case(
        "vector_type",
        "cuda",
        """
__global__ void copy4(const float4* __restrict__ src, float4* __restrict__ dst, int n4) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n4) { float4 v = src[i]; v.x *= 2.f; v.w = v.x; dst[i] = v; }
}
""",
        "elementwise",
        elements={("src", "read"): "global.x", ("dst", "write"): "global.x"},
        contiguity={("src", "read"): "coalesced"},
    ),
    Case(
        "vector_cast",
        "cuda",
        """
__global__ void half_to_float(const float *in, float *out, int n) {
  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i + 3 < n) {
    float4 v = *reinterpret_cast<const float4*>(in + i);
    reinterpret_cast<float4*>(out)[i / 4] = v;
  }
}
""",
        "elementwise",
        elements={("in", "read"): "4*global.x", ("out", "write"): "4*global.x"},
        contiguity={("in", "read"): "coalesced", ("out", "write"): "coalesced"},
    ),
    Case(
        "opencl_vload",
        "opencl",
        """
kernel void mul(global const half *a, global const half *b, global half *c, const uint n) {
  const uint i = get_group_id(0) * get_local_size(0) + get_local_id(0);
  if (4 * i + 3 >= n) return;
  const float4 v = vload_half4(i, a) * vload_half4(i, b);
  vstore_half4(v, i, c);
}
""",
        "elementwise",
        elements={("a", "read"): "4*global.x", ("c", "write"): "4*global.x"},
        contiguity={("a", "read"): "coalesced"},
    ),
    Case(
        "flat_two_dimensional",
        "cuda",
        """
__global__ void add_row_bias(float *x, const float *bias, int rows, int cols)
{
    const int idx = blockDim.x * blockIdx.x + threadIdx.x;
    if (idx < rows * cols) {
        const int row = idx / cols;
        const int col = idx % cols;
        x[row * cols + col] = x[idx] + bias[row];
    }
}
""",
        "elementwise",
        elements={("x", "write"): "global.x", ("x", "read"): "global.x", ("bias", "read"): "(global.x / cols)"},
        contiguity={("x", "write"): "coalesced"},
    ),
    Case(
        "strided_halves_pointer",
        "cuda",
        """
#include <cuda_fp16.h>
__global__ void swiglu(__half* __restrict__ o, __half const* __restrict__ x, int d) {
  const __half *g = x + blockIdx.x * 2 * d, *u = g + d;
  __half *row = o + blockIdx.x * d;
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    float a = __half2float(g[i]);
    row[i] = __float2half_rn(a / (1.0f + __expf(-a)) * __half2float(u[i]));
  }
}
""",
        "elementwise",
        "strided halves",
        elements={("o", "write"): "block.x*d + i"},
        sweeps=("block-stride",),
        roles={"x": "strided halves", "o": "output"},
    ),
    Case(
        "row_sum_thread",
        "opencl",
        """
__kernel void row_sum(__global float *m, int cols, __global float *out, int rows){int r=get_global_id(0);if(r<rows){
float s=0;for(int c=0;c<cols;c++)s+=m[r*cols+c];out[r]=s;}}
""",
        "row-wise",
        "reduction",
        elements={("m", "read"): "cols*global.x + c", ("out", "write"): "global.x"},
        contiguity={("m", "read"): "strided", ("out", "write"): "coalesced"},
        reductions=(("sum", "thread"),),
        roles={"m": "row", "out": "output"},
    ),
    Case(
        "column_max",
        "cuda",
        """
__global__ void column_max(const float* a, float* best, int rows, int cols) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= cols) return;
  float m = a[c];
  const float* p = a + c;
  for (int r = 1; r < rows; ++r) {
    p += cols;
    if (*p > m) m = *p;
  }
  best[c] = m;
}
""",
        "row-wise",
        "reduction over columns",
        contiguity={("a", "read"): "coalesced"},
        reductions=(("max", "thread"),),
    ),
    Case(
        "layernorm_two_pass",
        "cuda",
        """
__inline__ __device__ float block_sum(float v, float* sh) {
  int t = threadIdx.x;
  sh[t] = v; __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s /= 2) { if (t < s) sh[t] = sh[t] + sh[t + s]; __syncthreads(); }
  float r = sh[0]; __syncthreads();
  return r;
}
__global__ void layernorm(const float *x, const float *gamma, const float *beta, float *y, int n, float eps) {
  extern __shared__ float sh[];
  const float *row = &x[(size_t)blockIdx.x * n];
  float s = 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += row[i];
  float mean = block_sum(s, sh) / n;
  float q = 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) { float d = row[i] - mean; q += d * d; }
  float inv = rsqrtf(block_sum(q, sh) / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    y[(size_t)blockIdx.x * n + i] = (row[i] - mean) * inv * gamma[i] + beta[i];
}
""",
        "row-wise",
        "normalisation",
        elements={("y", "write"): "block.x*n + i#3", ("gamma", "read"): "i#3"},
        sweeps=("block-stride", "sequential", "block-stride", "sequential", "block-stride"),
        roles={"x": "row", "gamma": "per column", "beta": "per column", "y": "output"},
    ),
    Case(
        "online_softmax",
        "cuda",
        """
__global__ void softmax(float *y, const float *x, int V) {
  x += (long)blockIdx.x * V; y += (long)blockIdx.x * V;
  float m = -INFINITY, d = 0.0f;
  for (int i = 0; i < V; i++) {
    float v = x[i];
    float mn = fmaxf(m, v);
    d = d * expf(m - mn) + expf(v - mn);
    m = mn;
  }
  for (int i = 0; i < V; i++) y[i] = expf(x[i] - m) / d;
}
""",
        "row-wise",
        "normalisation",
        elements={("y", "write"): "V*block.x + i#2"},
        reductions=(("recurrence", "thread"),),
    ),
    Case(
        "warp_per_row",
        "cuda",
        """
#define WARP 32
__device__ float warp_max(float v) {
#pragma unroll
  for (int mask = WARP / 2; mask > 0; mask >>= 1) {
    float other = __shfl_xor_sync(~0u, v, mask);
    v = v > other ? v : other;
  }
  return v;
}
__global__ void row_absmax(const float *x, float *scales, int rows, int cols) {
  int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
  int lane = threadIdx.x & (WARP - 1);
  if (row >= rows) return;
  float m = 0;
  for (int c = lane; c < cols; c += WARP) m = fmaxf(m, fabsf(x[row * cols + c]));
  m = warp_max(m);
  if (lane == 0) scales[row] = m / 127.f;
}
""",
        "row-wise",
        "reduction",
        sweeps=("warp-stride", "sequential"),
        reductions=(("max", "thread"), ("max", "warp")),
    ),
    Case(
        "atomic_total",
        "cuda",
        """
__global__ void dot(const double *a, const double *b, double *r, int n) {
  double t = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) t += a[i] * b[i];
  atomicAdd(r, t);
}
""",
        "whole reduction",
        "one result, atomics",
        reductions=(("sum", "thread"), ("sum", "device")),
        roles={"a": "reduced", "b": "reduced", "r": "output"},
    ),
    Case(
        "naive_transpose_flat",
        "opencl",
        """
__kernel void t(__global float *o, __global const float *i, int w, int h) {
  size_t g = get_global_id(0);
  if (g < (size_t)w * h) o[(g % w) * h + g / w] = i[g];
}
""",
        "transpose",
        elements={("i", "read"): "global.x"},
        contiguity={("i", "read"): "coalesced", ("o", "write"): "strided"},
    ),
    Case(
        "tiled_transpose",
        "cuda",
        """
#define T 32
#define R 8
__global__ void transpose(float *odata, const float *idata, int width, int height) {
  __shared__ float tile[T][T+1];
  int x = blockIdx.x * T + threadIdx.x, y = blockIdx.y * T + threadIdx.y;
  for (int j = 0; j < T; j += R) tile[threadIdx.y+j][threadIdx.x] = idata[(y+j)*width + x];
  __syncthreads();
  x = blockIdx.y * T + threadIdx.x;
  y = blockIdx.x * T + threadIdx.y;
  for (int j = 0; j < T; j += R) odata[(y+j)*height + x] = tile[threadIdx.x][threadIdx.y + j];
}
""",
        "transpose",
        "tiled",
        contiguity={("idata", "read"): "coalesced", ("odata", "write"): "coalesced"},
    ),
    Case(
        "permute_nhwc",
        "cuda",
        """
__global__ void nchw_to_nhwc(const float* in, float* out, int C, int H, int W) {
  int w = blockIdx.x*blockDim.x+threadIdx.x, h = blockIdx.y, n = blockIdx.z;
  if (w >= W) return;
  for (int c = 0; c < C; ++c)
    out[((n*H + h)*W + w)*C + c] = in[((n*C + c)*H + h)*W + w];
}
""",
        "transpose",
        "permutation",
        contiguity={("in", "read"): "coalesced", ("out", "write"): "strided"},
    ),
    Case(
        "stencil_clamped",
        "opencl",
        """
__kernel void blur3(__global const uchar *src, __global uchar *dst, int w, int h) {
  int x = get_global_id(0), y = get_global_id(1);
  if (x >= w || y >= h) return;
  int l = max(x - 1, 0), r = min(x + 1, w - 1);
  dst[y*w+x] = (src[y*w+l] + 2*src[y*w+x] + src[y*w+r]) / 4;
}
""",
        "stencil",
        roles={"src": "neighbourhood", "dst": "output"},
        confidence="likely",
    ),
    Case(
        "stencil_3d",
        "cuda",
        """
__global__ void laplace(const float * __restrict__ u, float * __restrict__ v, int nx, int ny, int nz) {
  int i = blockIdx.x * blockDim.x + threadIdx.x + 1;
  int j = blockIdx.y * blockDim.y + threadIdx.y + 1;
  int plane = nx * ny;
  for (int k = 1; k < nz - 1; ++k) {
    if (i < nx - 1 && j < ny - 1) {
      int c = k * plane + j * nx + i;
      v[c] = u[c-1] + u[c+1] + u[c-nx] + u[c+nx] + u[c-plane] + u[c+plane] - 6.f * u[c];
    }
  }
}
""",
        "stencil",
        roles={"u": "neighbourhood"},
    ),
    Case(
        "window_loop",
        "cuda",
        """
#ifndef RADIUS
#define RADIUS 3
#endif
__constant__ float weights[2 * RADIUS + 1];
__global__ void conv1d(const float* in, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float acc = 0.f;
  for (int k = -RADIUS; k <= RADIUS; ++k) {
    int p = i + k;
    if (p >= 0 && p < n) acc += in[p] * weights[k + RADIUS];
  }
  out[i] = acc;
}
""",
        "stencil",
        "window",
        elements={("in", "read"): "global.x + k"},
        roles={"in": "neighbourhood", "weights": "weights", "out": "output"},
    ),
    Case(
        "matmul_tiled",
        "cuda",
        """
template<int BS> __global__ void gemm(float *C, float *A, float *B, int wA, int wB) {
  int bx = blockIdx.x, by = blockIdx.y, tx = threadIdx.x, ty = threadIdx.y;
  int aBegin = wA * BS * by, aEnd = aBegin + wA - 1, aStep = BS;
  int bBegin = BS * bx, bStep = BS * wB;
  float Csub = 0;
  for (int a = aBegin, b = bBegin; a <= aEnd; a += aStep, b += bStep) {
    __shared__ float As[BS][BS];
    __shared__ float Bs[BS][BS];
    As[ty][tx] = A[a + wA * ty + tx];
    Bs[ty][tx] = B[b + wB * ty + tx];
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < BS; ++k) { Csub += As[ty][k] * Bs[k][tx]; }
    __syncthreads();
  }
  int c = wB * BS * by + BS * bx;
  C[c + wB * ty + tx] = Csub;
}
""",
        "contraction",
        "matrix-matrix, tiled",
        roles={"A": "left factor", "B": "right factor", "C": "output"},
        contiguity={("A", "read"): "coalesced", ("B", "read"): "coalesced"},
    ),
    Case(
        "matmul_fma_pointers",
        "opencl",
        """
__kernel void sgemm_nt(const int M, const int N, const int K, const __global float* A, const __global float* B,
                       __global float* restrict C)
{
  const int m = get_global_id(1);
  const int n = get_global_id(0);
  float acc = 0.0f;
  for (int k = 0; k < K; k++) acc = fma(A[m*K + k], B[n*K + k], acc);
  C[mad24(m, N, n)] = acc;
}
""",
        "contraction",
        "matrix-matrix",
        contiguity={("A", "read"): "broadcast", ("B", "read"): "strided", ("C", "write"): "coalesced"},
    ),
    Case(
        "matrix_vector",
        "cuda",
        """
__global__ void gemv(const float *A, const float *x, float *y, int m, int n) {
  int row = threadIdx.x + blockIdx.x * blockDim.x;
  if (row < m) { float dot = 0; for (int j = 0; j != n; ++j) dot += A[row*n+j] * x[j]; y[row] = dot; }
}
""",
        "contraction",
        "matrix-vector",
        roles={"y": "output"},
    ),
    Case(
        "batched_rows_dot",
        "cuda",
        """
__global__ void row_dot(const float *a, const float *b, float *out, int n, int d) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= n) return;
  float s = 0.f;
  for (int k = 0; k < d; ++k) s += a[r * d + k] * b[r * d + k];
  out[r] = s;
}
""",
        "row-wise",
        "reduction",
        roles={"a": "row", "b": "row", "out": "output"},
    ),
    *SECOND_CASES,
)
