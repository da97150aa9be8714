// /// kernelwright
// [parameters]
// TM         = { values = [4, 8, 16], default = 8, why = "rows of the result that one thread computes" }
// TN         = { values = [4, 8, 16], default = 8, why = "columns of the result that one thread computes" }
// LANES_M    = { values = [2, 4, 8], default = 4, why = "threads of a warp down the rows; 32 / LANES_M are along the columns" }
// WARPS_M    = { values = [1, 2, 4, 8], default = 4, why = "warps of a block down the rows" }
// WARPS_N    = { values = [1, 2, 4, 8], default = 2, why = "warps of a block along the columns" }
// BK         = { values = [8, 16, 32], default = 16, why = "depth of a tile in shared memory" }
// KV         = { values = [1, 2, 4], default = 4, why = "neighbours of a row of A that one load takes from shared memory" }
// STAGES     = { values = [2, 3, 4, 5], default = 3, why = "tiles in shared memory: one is computed with, the others are on their way" }
// PAD        = { values = [4, 8], default = 4, why = "extra floats of a row of A in shared memory, against bank conflicts" }
// AHEAD      = { values = [0, 1], default = 0, why = "1: the operands of the next step are loaded from shared memory before this step is computed" }
// MIN_BLOCKS = { values = [1, 2, 3, 4], default = 1, why = "blocks of a multiprocessor that registers must leave room for" }
// BAND       = { values = [1, 2, 4, 8, 16], default = 8, why = "rows of blocks that advance along the columns together, so that what they share stays in cache" }
// [constraints]
// sizes     = "n % 4 == 0 and k % 4 == 0"
// threads   = "64 <= 32 * WARPS_M * WARPS_N <= 512"
// tile_m    = "32 <= TM * LANES_M * WARPS_M <= 256"
// tile_n    = "32 <= TN * (32 // LANES_M) * WARPS_N <= 256"
// loads_a   = "TM * LANES_M * WARPS_M * BK % (128 * WARPS_M * WARPS_N) == 0"
// loads_b   = "TN * (32 // LANES_M) * WARPS_N * BK % (128 * WARPS_M * WARPS_N) == 0"
// sums      = "16 <= TM * TN <= 128"
// registers = "(TM * TN + (1 + AHEAD) * (TM * KV + TN) + 32) * 32 * WARPS_M * WARPS_N * MIN_BLOCKS <= device.registers_per_multiprocessor and TM * TN + (1 + AHEAD) * (TM * KV + TN) + 32 <= 255"
// shared    = "(4 * STAGES * (TM * LANES_M * WARPS_M * (BK + PAD) + BK * TN * (32 // LANES_M) * WARPS_N) + 1024) * MIN_BLOCKS <= device.shared_memory_per_multiprocessor"
// [launch]
// grid  = ["ceil_div(m, TM * LANES_M * WARPS_M) * ceil_div(n, TN * (32 // LANES_M) * WARPS_N)"]
// block = ["32 * WARPS_M * WARPS_N"]
// shared_bytes = "4 * STAGES * (TM * LANES_M * WARPS_M * (BK + PAD) + BK * TN * (32 // LANES_M) * WARPS_N)"
// ///

// C = A B for row-major float32 matrices (A m x k, B k x n), every product and sum in float32. A block computes a tile of C,
// a warp a part of it, a thread TM rows and TN columns of that. Tiles of A and B travel to shared memory past the registers
// (cp.async), STAGES - 1 of them ahead. A's rows lie there as they are in memory, a little apart, and threads take KV neighbours
// of a row at a time. What sticks out of A and B is read as zeros. n and k are multiples of 4, for 16-byte vectors.

#ifndef TM
#define TM 8
#endif
#ifndef TN
#define TN 8
#endif
#ifndef LANES_M
#define LANES_M 4
#endif
#ifndef WARPS_M
#define WARPS_M 4
#endif
#ifndef WARPS_N
#define WARPS_N 2
#endif
#ifndef BK
#define BK 16
#endif
#ifndef KV
#define KV 4
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef PAD
#define PAD 4
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#ifndef BAND
#define BAND 8
#endif

#define LANES_N (32 / LANES_M)
#define THREADS (32 * WARPS_M * WARPS_N)
#define BM (TM * LANES_M * WARPS_M)
#define BN (TN * LANES_N * WARPS_N)
#define PITCH (BK + PAD)
#define STAGE_FLOATS (BM * PITCH + BK * BN)
#define STEPS (BK / KV)

// 16 bytes to shared memory without passing registers; zeros if not `is_inside`.
__device__ __forceinline__ void copy_vector(float *to, const float *from, const bool is_inside) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(to);
  const int bytes = is_inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy_tiles(float *stage, const float *a, const float *b, const int m0, const int n0,
                                           const int k0, const int m, const int n, const int k) {
#pragma unroll
  for (int i = 0; i < BM * BK / 4 / THREADS; ++i) {
    const int at = i * THREADS + threadIdx.x;
    const int row = at / (BK / 4), col = at % (BK / 4) * 4;
    const bool is_inside = m0 + row < m && k0 + col < k;
    copy_vector(stage + row * PITCH + col, is_inside ? a + (size_t)(m0 + row) * k + k0 + col : a, is_inside);
  }
#pragma unroll
  for (int i = 0; i < BK * BN / 4 / THREADS; ++i) {
    const int at = i * THREADS + threadIdx.x;
    const int row = at / (BN / 4), col = at % (BN / 4) * 4;
    const bool is_inside = k0 + row < k && n0 + col < n;
    copy_vector(stage + BM * PITCH + row * BN + col, is_inside ? b + (size_t)(k0 + row) * n + n0 + col : b, is_inside);
  }
}

template <int N> struct Floats;
template <> struct Floats<1> { typedef float type; };
template <> struct Floats<2> { typedef float2 type; };
template <> struct Floats<4> { typedef float4 type; };

// What one step needs of A: for each of the thread's rows, which are LANES_M apart, KV neighbours.
__device__ __forceinline__ void take_a(float (&own)[TM][KV], const float *rows, const int step) {
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    *reinterpret_cast<typename Floats<KV>::type *>(own[i]) =
        *reinterpret_cast<const typename Floats<KV>::type *>(rows + i * LANES_M * PITCH + step * KV);
  }
}

// One row of B: the thread's columns, four neighbours at a time, 4 * LANES_N apart.
__device__ __forceinline__ void take_b(float (&own)[TN], const float *cols, const int row) {
#pragma unroll
  for (int j = 0; j < TN / 4; ++j) {
    *reinterpret_cast<float4 *>(own + 4 * j) = *reinterpret_cast<const float4 *>(cols + row * BN + j * 4 * LANES_N);
  }
}

__device__ __forceinline__ void add_products(float (&sums)[TM][TN], const float (&a)[TM][KV], const float (&b)[TN], const int u) {
#pragma unroll
  for (int i = 0; i < TM; ++i) {
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      const int turn = i % 2 ? TN - 1 - j : j;  // back and forth, so that neighbours share an operand
      sums[i][turn] = fmaf(a[i][u], b[turn], sums[i][turn]);
    }
  }
}

__device__ __forceinline__ void compute(float (&sums)[TM][TN], const float *rows, const float *cols) {
#if AHEAD
  float a[2][TM][KV], b[2][TN];
  take_a(a[0], rows, 0);
  take_b(b[0], cols, 0);
#pragma unroll
  for (int row = 0; row < BK; ++row) {
    if (row + 1 < BK) {
      if ((row + 1) % KV == 0) {
        take_a(a[(row + 1) / KV % 2], rows, (row + 1) / KV);
      }
      take_b(b[(row + 1) % 2], cols, row + 1);
    }
    add_products(sums, a[row / KV % 2], b[row % 2], row % KV);
  }
#else
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    float a[TM][KV];
    take_a(a, rows, step);
#pragma unroll
    for (int u = 0; u < KV; ++u) {
      float b[TN];
      take_b(b, cols, step * KV + u);
      add_products(sums, a, b, u);
    }
  }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
matmul(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, const int m, const int n, const int k) {
  extern __shared__ float4 memory[];
  float *shared = reinterpret_cast<float *>(memory);
  const int down = (m + BM - 1) / BM, across = (n + BN - 1) / BN;
  const int band = blockIdx.x / (BAND * across) * BAND;
  const int height = min(BAND, down - band);
  const int place = blockIdx.x % (BAND * across);
  const int m0 = (band + place % height) * BM, n0 = place / height * BN;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int own_row = warp / WARPS_N * (TM * LANES_M) + lane / LANES_N;
  const int own_col = warp % WARPS_N * (TN * LANES_N) + lane % LANES_N * 4;
  float sums[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; ++i) {
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      sums[i][j] = 0.0f;
    }
  }

  const int tiles = (k + BK - 1) / BK;
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    if (i < tiles) {
      copy_tiles(shared + i * STAGE_FLOATS, a, b, m0, n0, i * BK, m, n, k);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  int reading = 0, writing = STAGES - 1;
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
    __syncthreads();  // this tile is there for all threads, and all are done with the one before
    if (tile + STAGES - 1 < tiles) {
      copy_tiles(shared + writing * STAGE_FLOATS, a, b, m0, n0, (tile + STAGES - 1) * BK, m, n, k);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    const float *stage = shared + reading * STAGE_FLOATS;
    compute(sums, stage + own_row * PITCH, stage + BM * PITCH + own_col);
    reading = reading + 1 == STAGES ? 0 : reading + 1;
    writing = writing + 1 == STAGES ? 0 : writing + 1;
  }

#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int row = m0 + own_row + i * LANES_M;
#pragma unroll
    for (int j = 0; j < TN / 4; ++j) {
      const int col = n0 + own_col + j * 4 * LANES_N;
      if (row < m && col < n) {
        *reinterpret_cast<float4 *>(c + (size_t)row * n + col) =
            make_float4(sums[i][4 * j], sums[i][4 * j + 1], sums[i][4 * j + 2], sums[i][4 * j + 3]);
      }
    }
  }
}
