"""Plain kernels in several styles, each with its sizes, its launch, and NumPy that computes the same."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Plain:
    """One kernel."""

    source: str
    words: tuple[str, ...]
    reference: str
    """The body of a function of the input arrays."""
    suffix: str = ".cu"
    launch: dict[str, str] = field(default_factory=dict)


PLAIN = {
    "softmax_block": Plain(
        source="""
__global__ void softmax_block(const float *x, float *y, int cols) {
    __shared__ float s[256];
    int row = blockIdx.x, t = threadIdx.x;
    const float *in = x + row * cols;
    float m = -INFINITY;
    for (int i = t; i < cols; i += blockDim.x) m = fmaxf(m, in[i]);
    s[t] = m;
    __syncthreads();
    for (int h = blockDim.x / 2; h > 0; h >>= 1) {
        if (t < h) s[t] = fmaxf(s[t], s[t + h]);
        __syncthreads();
    }
    m = s[0];
    __syncthreads();
    float sum = 0.0f;
    for (int i = t; i < cols; i += blockDim.x) sum += expf(in[i] - m);
    s[t] = sum;
    __syncthreads();
    for (int h = blockDim.x / 2; h > 0; h >>= 1) {
        if (t < h) s[t] += s[t + h];
        __syncthreads();
    }
    sum = s[0];
    for (int i = t; i < cols; i += blockDim.x) y[row * cols + i] = expf(in[i] - m) / sum;
}
""",
        words=("rows=37", "cols=150"),
        reference="""v = x.reshape(37, 150)
e = np.exp(v - v.max(1, keepdims=True))
return (e / e.sum(1, keepdims=True)).reshape(x.shape)""",
        launch={"grid": "rows", "block": "256"},
    ),
    "softmax_online": Plain(
        source="""
__global__ void softmax_online(const float *x, float *y, int rows, int cols) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r < rows) {
        float m = -INFINITY, s = 0.0f;
        for (int c = 0; c < cols; c++) {
            float v = x[r * cols + c];
            float n = fmaxf(m, v);
            s = s * expf(m - n) + expf(v - n);
            m = n;
        }
        for (int c = 0; c < cols; c++) y[r * cols + c] = expf(x[r * cols + c] - m) / s;
    }
}
""",
        words=("rows=37", "cols=150"),
        reference="""v = x.reshape(37, 150)
e = np.exp(v - v.max(1, keepdims=True))
return (e / e.sum(1, keepdims=True)).reshape(x.shape)""",
    ),
    "layer_norm_block": Plain(
        source="""
__device__ float warp_sum(float v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
__device__ float block_sum(float v) {
    __shared__ float part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = warp_sum(v);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / 32 ? part[lane] : 0.0f;
    if (warp == 0) v = warp_sum(v);
    if (threadIdx.x == 0) part[0] = v;
    __syncthreads();
    v = part[0];
    __syncthreads();
    return v;
}
__global__ void layer_norm_block(const float *x, const float *gamma, const float *beta,
    float *y, int cols, float eps) {
    int row = blockIdx.x;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += x[row * cols + i];
    float mean = block_sum(sum) / cols;
    float sq = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) { float d = x[row * cols + i] - mean; sq += d * d; }
    float rstd = rsqrtf(block_sum(sq) / cols + eps);
    for (int i = threadIdx.x; i < cols; i += blockDim.x)
        y[row * cols + i] = (x[row * cols + i] - mean) * rstd * gamma[i] + beta[i];
}
""",
        words=("rows=29", "cols=200", "eps=0.00001"),
        reference="""v = x.reshape(29, 200)
d = v - v.mean(1, keepdims=True)
s = np.sqrt((d * d).mean(1, keepdims=True) + 1e-5)
return (d / s * gamma.reshape(-1) + beta.reshape(-1)).reshape(x.shape)""",
        launch={"grid": "rows", "block": "256"},
    ),
    "rms_norm_warp": Plain(
        source="""
__global__ void rms_norm_warp(const float *x, const float *w, float *y, int rows,
    int cols, float eps) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sq = 0.0f;
    for (int i = lane; i < cols; i += 32) { float v = x[row * cols + i]; sq += v * v; }
    for (int o = 16; o > 0; o /= 2) sq += __shfl_xor_sync(0xffffffff, sq, o);
    float scale = rsqrtf(sq / cols + eps);
    for (int i = lane; i < cols; i += 32) y[row * cols + i] = x[row * cols + i] * scale * w[i];
}
""",
        words=("rows=29", "cols=200", "eps=0.00001"),
        reference="""v = x.reshape(29, 200)
s = np.sqrt((v * v).mean(1, keepdims=True) + 1e-5)
return (v / s * w.reshape(-1)).reshape(x.shape)""",
        launch={"grid": "(rows + 3) // 4", "block": "128"},
    ),
    "rms_norm_half": Plain(
        source="""
#include <cuda_fp16.h>
__global__ void rms_norm_half(const __half *x, const __half *w, __half *y, int cols, float eps) {
    __shared__ float part[128];
    const int tid = threadIdx.x;
    float acc = 0.f;
    for (int j = tid; j < cols; j += 128) { float v = __half2float(x[blockIdx.x * cols + j]); acc += v * v; }
    part[tid] = acc;
    __syncthreads();
    for (int s = 64; s > 0; s >>= 1) { if (tid < s) part[tid] += part[tid + s]; __syncthreads(); }
    float inv = rsqrtf(part[0] / cols + eps);
    for (int j = tid; j < cols; j += 128)
        y[blockIdx.x * cols + j] = __float2half(__half2float(x[blockIdx.x * cols + j]) * inv * __half2float(w[j]));
}
""",
        words=("rows=29", "cols=200", "eps=0.00001"),
        reference="""v = x.reshape(29, 200)
s = np.sqrt((v * v).mean(1, keepdims=True) + 1e-5)
return (v / s * w.reshape(-1)).reshape(x.shape)""",
        launch={"grid": "rows", "block": "128"},
    ),
    "argmax": Plain(
        source="""
__global__ void argmax(const float *x, int *best, int rows, int cols) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float top = x[r * cols];
    int at = 0;
    for (int c = 1; c < cols; ++c) {
        if (x[r * cols + c] > top) { top = x[r * cols + c]; at = c; }
    }
    best[r] = at;
}
""",
        words=("rows=37", "cols=150"),
        reference="""return x.reshape(37, 150).argmax(1).astype(np.int32)""",
    ),
    "cross_entropy": Plain(
        source="""
__global__ void cross_entropy(const float *logits, const int *target, float *loss,
    int rows, int cols) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r < rows) {
        const float *row = logits + (size_t)r * cols;
        float top = row[0];
        for (int c = 1; c < cols; ++c) top = fmaxf(top, row[c]);
        float total = 0.0f;
        for (int c = 0; c < cols; ++c) total += expf(row[c] - top);
        loss[r] = logf(total) + top - row[target[r]];
    }
}
""",
        words=("rows=37", "cols=150"),
        reference="""v = logits.reshape(37, 150)
m = v.max(1)
return np.log(np.exp(v - m[:, None]).sum(1)) + m - v[np.arange(37), target.reshape(-1)]""",
    ),
    "column_sums": Plain(
        source="""
__global__ void column_sums(const float *x, float *out, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < cols) {
        float acc = 0.0f;
        for (int r = 0; r < rows; ++r) acc += x[r * cols + c];
        out[c] = acc;
    }
}
""",
        words=("rows=300", "cols=75"),
        reference="""return x.reshape(300, 75).sum(0)""",
    ),
    "dot_atomic": Plain(
        source="""
__global__ void dot_atomic(const float *a, const float *b, float *out, int n) {
    __shared__ float cache[256];
    float t = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) t += a[i] * b[i];
    cache[threadIdx.x] = t;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s /= 2) {
        if (threadIdx.x < s) cache[threadIdx.x] += cache[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(out, cache[0]);
}
""",
        words=("n=5003",),
        reference="""return out + np.dot(a.reshape(-1), b.reshape(-1))""",
        launch={"grid": "8", "block": "256"},
    ),
    "partial_sums": Plain(
        source="""
__global__ void partial_sums(const float *x, float *partial, int n) {
    __shared__ float s[128];
    int t = threadIdx.x;
    float acc = 0.0f;
    for (int i = blockIdx.x * 128 + t; i < n; i += 128 * gridDim.x) acc += x[i];
    s[t] = acc;
    __syncthreads();
    for (int h = 64; h > 0; h >>= 1) { if (t < h) s[t] += s[t + h]; __syncthreads(); }
    if (t == 0) partial[blockIdx.x] = s[0];
}
""",
        words=("n=5003",),
        reference="""p = np.zeros(8 * 128 * ((5003 + 1023) // 1024))
p[:5003] = x.reshape(-1)
return p.reshape(-1, 8, 128).sum((0, 2))""",
        launch={"grid": "8", "block": "128"},
    ),
    "gather_rows": Plain(
        source="""
__global__ void gather_rows(const float *table, const int *ids, float *out, int rows,
    int cols, int vocab) {
    int row = blockIdx.x;
    int id = ids[row];
    for (int c = threadIdx.x; c < cols; c += blockDim.x)
        out[row * cols + c] = id >= 0 && id < vocab ? table[id * cols + c] : 0.0f;
}
""",
        words=("rows=40", "cols=70", "vocab=99"),
        reference="""t = table.reshape(-1, 70)
i = ids.reshape(-1)
ok = (i >= 0) & (i < 99)
return np.where(ok[:, None], t[np.where(ok, i, 0)], 0).reshape(-1)""",
        launch={"grid": "rows", "block": "128"},
    ),
    "matmul_tiled": Plain(
        source="""
#define T 16
__global__ void matmul_tiled(const float *a, const float *b, float *c, int m, int n, int k) {
    __shared__ float sa[T][T], sb[T][T];
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.y * T + ty, col = blockIdx.x * T + tx;
    float acc = 0.0f;
    for (int p = 0; p < (k + T - 1) / T; ++p) {
        sa[ty][tx] = row < m && p * T + tx < k ? a[row * k + p * T + tx] : 0.0f;
        sb[ty][tx] = p * T + ty < k && col < n ? b[(p * T + ty) * n + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i < T; ++i) acc += sa[ty][i] * sb[i][tx];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = acc;
}
""",
        words=("m=48", "n=64", "k=80"),
        reference="""return (a.reshape(48, 80) @ b.reshape(80, 64)).reshape(-1)""",
        launch={"grid": "(n + 15) // 16,(m + 15) // 16", "block": "16,16"},
    ),
    "rounded": Plain(
        source="""
__global__ void rounded(const float *x, float *y) {
    int i = blockIdx.x * 64 + threadIdx.x;
    y[i] = rintf(x[i]) - 0.5f * truncf(x[i]);
}
""",
        words=(),
        reference="""return np.rint(x) - 0.5 * np.trunc(x)""",
        launch={"grid": "5", "block": "64"},
    ),
    "gemm_nt_bias_gelu": Plain(
        source="""
#include <cuda_fp16.h>
__global__ void gemm_nt_bias_gelu(const __half *x, const __half *w, const float *bias,
    __half *y, int m, int n, int k) {
    int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += __half2float(x[row * k + i]) * __half2float(w[col * k + i]);
    float v = sum + bias[col];
    v = 0.5f * v * (1.0f + erff(v * 0.70710678f));
    y[row * n + col] = __float2half(v);
}
""",
        words=("m=45", "n=70", "k=50"),
        reference="""import math
v = x.reshape(45, 50) @ w.reshape(70, 50).T + bias.reshape(-1)
return (0.5 * v * (1 + np.vectorize(math.erf)(v * 0.70710678))).reshape(-1)""",
    ),
    "gemm_tn_alpha_beta": Plain(
        source="""
__kernel void gemm_tn_alpha_beta(__global const float *a, __global const float *b,
    __global float *c, int m, int n, int k, float alpha, float beta) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < m && j < n) {
        float acc = 0.0f;
        for (int p = 0; p < k; p++) acc += a[p * m + i] * b[p * n + j];
        c[i * n + j] = alpha * acc + beta * c[i * n + j];
    }
}
""",
        words=("m=45", "n=70", "k=50", "alpha=1.5", "beta=0.5"),
        reference="""return (1.5 * a.reshape(50, 45).T @ b.reshape(50, 70) + 0.5 * c.reshape(45, 70)).reshape(-1)""",
        suffix=".cl",
    ),
    "argmax_pairs": Plain(
        source="""
__global__ void argmax_pairs(const float *x, int *y, int cols) {
    __shared__ float sv[32];
    __shared__ int si[32];
    const int t = threadIdx.x;
    const float *in = x + blockIdx.x * cols;
    float v = -INFINITY;
    int at = 0;
    for (int i = t; i < cols; i += blockDim.x)
        if (in[i] > v) { v = in[i]; at = i; }
    sv[t] = v;
    si[t] = at;
    __syncthreads();
    for (unsigned int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (t < s) {
            int o = t + s;
            if (sv[o] > sv[t] || (sv[o] == sv[t] && si[o] < si[t])) {
                sv[t] = sv[o];
                si[t] = si[o];
            }
        }
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = si[0];
}
""",
        words=("rows=3", "cols=77"),
        reference="return x.reshape(3, 77).argmax(1)",
        launch={"grid": "rows", "block": "32"},
    ),
    "deviation_welford": Plain(
        source="""
#define N 32
__global__ void deviation_welford(const float *x, float *y, int rows, int cols) {
    __shared__ float mean[N], m2[N], count[N];
    int row = blockIdx.x, t = threadIdx.x;
    float mu = 0.0f, sq = 0.0f, n = 0.0f;
    for (int c = t; c < cols; c += N) {
        float v = x[row * cols + c], d = v - mu;
        n += 1.0f;
        mu += d / n;
        sq += d * (v - mu);
    }
    mean[t] = mu; m2[t] = sq; count[t] = n;
    __syncthreads();
    for (int s = N / 2; s >= 1; s /= 2) {
        if (t < s) {
            float all = count[t] + count[t + s];
            if (all > 0.0f) {
                float d = mean[t + s] - mean[t];
                m2[t] += m2[t + s] + d * d * count[t] * count[t + s] / all;
                mean[t] += d * count[t + s] / all;
                count[t] = all;
            }
        }
        __syncthreads();
    }
    if (t == 0) y[row] = sqrtf(m2[0] / count[0]) + mean[0];
}
""",
        words=("rows=3", "cols=45"),
        reference="rows = x.reshape(3, 45)\nreturn rows.std(1) + rows.mean(1)",
        launch={"grid": "rows", "block": "32"},
    ),
    "log_sum_exp_pairs": Plain(
        source="""
__kernel void log_sum_exp_pairs(__global const float *x, __global float *y, int rows, int cols) {
    __local float sm[32], sd[32];
    int row = get_group_id(0), t = get_local_id(0);
    float m = -1e30f, d = 0.0f;
    for (int c = t; c < cols; c += 32) {
        float v = x[row * cols + c], higher = fmax(m, v);
        d = d * exp(m - higher) + exp(v - higher);
        m = higher;
    }
    sm[t] = m;
    sd[t] = d;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = get_local_size(0) / 2; s > 0; s >>= 1) {
        if (t < s) {
            float own = sm[t], higher = fmax(own, sm[t + s]);
            sd[t] = sd[t] * exp(own - higher) + sd[t + s] * exp(sm[t + s] - higher);
            sm[t] = higher;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (t == 0) y[row] = sm[0] + log(sd[0]);
}
""",
        words=("rows=3", "cols=77"),
        reference="return np.log(np.exp(x.reshape(3, 77)).sum(1))",
        suffix=".cl",
        launch={"grid": "rows", "block": "32"},
    ),
    "transpose_32x8": Plain(
        source="""
__global__ void transpose_32x8(const float *a, float *b, int w, int h) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < w && y + j < h) tile[threadIdx.y + j][threadIdx.x] = a[(y + j) * w + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < h && y + j < w) b[(y + j) * h + x] = tile[threadIdx.x][threadIdx.y + j];
}
""",
        words=("w=77", "h=51"),
        reference="return a.reshape(51, 77).T",
        launch={"grid": "ceil_div(w, 32),ceil_div(h, 32)", "block": "32,8"},
    ),
    "blend_32x8": Plain(
        source="""
__global__ void blend_32x8(const float *a, const float *b, float *c, int w, int h) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y0 = blockIdx.y * (blockDim.y * 4) + threadIdx.y;
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int y = y0 + k * blockDim.y;
        if (x < w && y < h) c[y * w + x] = a[y * w + x] * 0.25f + b[y * w + x];
    }
}
""",
        words=("w=77", "h=51"),
        reference="return a * 0.25 + b",
        launch={"grid": "ceil_div(w, 32),ceil_div(h, 32)", "block": "32,8"},
    ),
    "names": Plain(
        source="""
__global__ void tl(const float *lambda, float *tl, int BLOCK, int triton,
    float num_warps, const float *range, const float *float_) {
    unsigned at = blockIdx.x * 64u + threadIdx.x;
    if (at >= BLOCK) return;
    float list = 0x1p-2f, mask1 = 1e-3f;
    for (int tile = 0; tile < triton; ++tile) list += lambda[at * triton + tile] * range[tile % 3u] + float_[0] * mask1;
    tl[at] = list * 2u * num_warps;
}
""",
        words=("BLOCK=37", "triton=70", "num_warps=1.0"),
        reference="""l = lambda_.reshape(37, 70)
return 2 * (0.25 + (l * range.reshape(-1)[np.arange(70) % 3]).sum(1) + 70 * float_.reshape(-1)[0] * 1e-3)""",
        launch={"grid": "(BLOCK + 63) // 64", "block": "64"},
    ),
}

TILES = {
    "batched_tiles": Plain(
        source="""
#define TS 16
__global__ void batched_tiles(const float *A, const float *B, float *C, int batch, int M, int N, int K) {
    __shared__ float As[TS][TS];
    __shared__ float Bs[TS][TS];
    int b = blockIdx.z;
    int row = blockIdx.y * TS + threadIdx.y, col = blockIdx.x * TS + threadIdx.x;
    const float *first = A + b * M * K, *second = B + b * K * N;
    float *c = C + b * M * N;
    float acc = 0.0f;
    for (int t = 0; t < (K + TS - 1) / TS; t++) {
        int ak = t * TS + threadIdx.x, bk = t * TS + threadIdx.y;
        As[threadIdx.y][threadIdx.x] = (row < M && ak < K) ? first[row * K + ak] : 0.0f;
        Bs[threadIdx.y][threadIdx.x] = (bk < K && col < N) ? second[bk * N + col] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TS; k++) acc += As[threadIdx.y][k] * Bs[k][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N) c[row * N + col] = acc;
}
""",
        words=("batch=3", "M=35", "N=50", "K=40"),
        reference="""return (A.reshape(3, 35, 40) @ B.reshape(3, 40, 50)).reshape(-1)""",
        launch={"grid": "(N + 15) // 16,(M + 15) // 16,batch", "block": "16,16"},
    ),
    "tiles_without_bounds": Plain(
        source="""
__global__ void tiles_without_bounds(const float *A, const float *B, float *C, int M, int N, int K) {
    __shared__ float As[16][16], Bs[16][16];
    int tx = threadIdx.x, ty = threadIdx.y;
    float acc = 0.0f;
    for (int t = 0; t < K / 16; t++) {
        As[ty][tx] = A[(blockIdx.y * 16 + ty) * K + t * 16 + tx];
        Bs[ty][tx] = B[(t * 16 + ty) * N + blockIdx.x * 16 + tx];
        __syncthreads();
        for (int k = 0; k < 16; k++) acc += As[ty][k] * Bs[k][tx];
        __syncthreads();
    }
    C[(blockIdx.y * 16 + ty) * N + blockIdx.x * 16 + tx] = acc;
}
""",
        words=("M=48", "N=80", "K=64"),
        reference="""return (A.reshape(48, 64) @ B.reshape(64, 80)).reshape(-1)""",
        launch={"grid": "N // 16,M // 16", "block": "16,16"},
    ),
}
"""Products through shared memory, beside `matmul_tiled`."""
