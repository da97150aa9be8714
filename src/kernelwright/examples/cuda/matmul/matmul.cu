// /// kernelwright
// [parameters]
// TM         = { values = [4, 8, 16], default = 8, why = "rows of the result that one thread computes" }
// TN         = { values = [4, 8, 16], default = 8, why = "columns of the result that one thread computes" }
// LANES_M    = { values = [2, 4, 8], default = 8, why = "threads of a warp down the rows; 32 / LANES_M are along the columns" }
// WARPS_M    = { values = [1, 2, 4, 8], default = 1, why = "warps of a block down the rows" }
// WARPS_N    = { values = [1, 2, 4, 8], default = 8, why = "warps of a block along the columns" }
// BK         = { values = [16, 32], default = 32, why = "depth of a tile in shared memory" }
// STEPS      = { values = [8, 16, 32], default = 32, why = "of the depth, written out one after the other: fewer need less of the instruction cache" }
// TURNED     = { values = [0, 1], default = 1, why = "A in shared memory, 0: as it is, 16 bytes a copy, a thread takes four neighbours of a row at once; 1: turned, 4 bytes a copy, half the registers" }
// STAGES     = { values = [2, 3, 4], default = 2, why = "tiles in shared memory: one is computed with, the others are on their way" }
// MIN_BLOCKS = { values = [1, 2, 3], default = 1, why = "blocks of a multiprocessor that registers must leave room for" }
// ORDER      = { values = [0, 1], default = 1, why = "a step's products, 0: row by row; 1: column by column" }
// AHEAD      = { values = [0, 1], default = 0, why = "1: a thread takes what the next step needs before it computes this one, also across tiles" }
// BAND       = { values = [2, 4, 8, 16], default = 8, why = "rows of blocks that advance along the columns together, so that what they share stays in cache" }
// [constraints]
// sizes     = "n % 4 == 0 and k % 4 == 0"
// threads   = "64 <= 32 * WARPS_M * WARPS_N <= 512"
// tile_m    = "32 <= TM * LANES_M * WARPS_M <= 256"
// tile_n    = "32 <= TN * (32 // LANES_M) * WARPS_N <= 256"
// copies_a  = "TM * LANES_M * WARPS_M * BK % ((32 if TURNED == 1 else 128) * WARPS_M * WARPS_N) == 0"
// copies_b  = "TN * (32 // LANES_M) * WARPS_N * BK % (128 * WARPS_M * WARPS_N) == 0"
// ahead     = "AHEAD == 0 or TURNED == 1"
// sums      = "64 <= TM * TN <= 128"
// steps     = "STEPS <= BK and (AHEAD == 0 or STEPS == BK)"
// registers = "(TM * TN + TM * (2 if TURNED == 1 else 4) + 2 * TN + 20) * 32 * WARPS_M * WARPS_N * MIN_BLOCKS <= device.registers_per_multiprocessor and TM * TN + TM * (2 if TURNED == 1 else 4) + 2 * TN + 20 <= 255"
// shared    = "(4 * STAGES * BK * (TM * LANES_M * WARPS_M + TN * (32 // LANES_M) * WARPS_N) + 16 * STAGES * (BK if TURNED == 1 else TM * LANES_M * WARPS_M) + 1024) * MIN_BLOCKS <= device.shared_memory_per_multiprocessor"
// [launch]
// grid  = ["ceil_div(m, TM * LANES_M * WARPS_M) * ceil_div(n, TN * (32 // LANES_M) * WARPS_N)"]
// block = ["32 * WARPS_M * WARPS_N"]
// shared_bytes = "4 * STAGES * BK * (TM * LANES_M * WARPS_M + TN * (32 // LANES_M) * WARPS_N) + 16 * STAGES * (BK if TURNED == 1 else TM * LANES_M * WARPS_M)"
// ///

// C = A B for row-major float32 matrices (A m x k, B k x n), every product and sum in float32. A block computes a tile of C,
// a warp a part of it, a thread TM rows and TN columns of that. Tiles of A and B travel to shared memory past the registers
// (cp.async), STAGES - 1 of them ahead. What sticks out of A and B is read as zeros. n and k are multiples of 4.

#ifndef TM
#define TM 8
#endif
#ifndef TN
#define TN 8
#endif
#ifndef LANES_M
#define LANES_M 8
#endif
#ifndef WARPS_M
#define WARPS_M 1
#endif
#ifndef WARPS_N
#define WARPS_N 8
#endif
#ifndef BK
#define BK 32
#endif
#ifndef TURNED
#define TURNED 1
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef STEPS
#define STEPS BK
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#ifndef ORDER
#define ORDER 1
#endif
#ifndef BAND
#define BAND 8
#endif
#ifndef AHEAD
#define AHEAD 0
#endif

#define PAD 4  // extra floats of a row of A's tile: four neighbours stay aligned, and rows begin in other banks
#define LANES_N (32 / LANES_M)
#define THREADS (32 * WARPS_M * WARPS_N)
#define BM (TM * LANES_M * WARPS_M)
#define BN (TN * LANES_N * WARPS_N)
#if TURNED
#define COPY_A 1  // floats of a copy
#define PITCH (BM + PAD)
#define A_FLOATS (BK * PITCH)
#define PLACE_A(row, col) ((col) * PITCH + (row))
#define OWN_ROW(i) ((i) / 4 * 4 * LANES_M + (i) % 4)  // from the thread's first row on
#else
#define COPY_A 4
#define PITCH (BK + PAD)
#define A_FLOATS (BM * PITCH)
#define PLACE_A(row, col) ((row) * PITCH + (col))
#define OWN_ROW(i) ((i) * LANES_M)
#endif
#define STAGE_FLOATS (A_FLOATS + BK * BN)
#define ROWS_APART (THREADS * COPY_A / BK)  // rows of A between two copies of a thread
#define B_VECTORS (BN / 4)

// N floats to shared memory without passing registers; zeros if not `is_inside`.
template <int N> __device__ __forceinline__ void copy(float *to, const float *from, const bool is_inside) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(to);
  const int bytes = is_inside ? 4 * N : 0;
  if (N == 4) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(address), "l"(from), "r"(bytes) : "memory");
  }
}

template <int N> __device__ __forceinline__ void copy(float *to, const float *from) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(to);
  if (N == 4) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(address), "l"(from) : "memory");
  }
}

// The thread's share of a tile of A and a tile of B that lie inside: `a` and `b` point to its first elements.
__device__ __forceinline__ void copy_whole(float *stage, const float *a, const float *b, const int n, const int k) {
  const int row = threadIdx.x / (BK / COPY_A), col = threadIdx.x % (BK / COPY_A) * COPY_A;
#pragma unroll
  for (int i = 0; i < BM / ROWS_APART; ++i) {
    copy<COPY_A>(stage + PLACE_A(row + i * ROWS_APART, col), a + i * ROWS_APART * k);
  }
#pragma unroll
  for (int i = 0; i < BK * B_VECTORS / THREADS; ++i) {
    const int at = i * THREADS + threadIdx.x;
    const int apart = B_VECTORS >= THREADS ? at / B_VECTORS * n + (at % B_VECTORS - (int)threadIdx.x % B_VECTORS) * 4
                                           : i * (THREADS / B_VECTORS) * n;
    copy<4>(stage + A_FLOATS + at * 4, b + apart);
  }
}

// The same where a tile sticks out.
__device__ __forceinline__ void copy_part(float *stage, const float *a, const float *b, const int m0, const int n0,
                                          const int k0, const int m, const int n, const int k) {
  const int row = threadIdx.x / (BK / COPY_A), col = threadIdx.x % (BK / COPY_A) * COPY_A;
#pragma unroll 1
  for (int i = 0; i < BM / ROWS_APART; ++i) {
    const int from = m0 + row + i * ROWS_APART;
    const bool is_inside = from < m && k0 + col < k;
    copy<COPY_A>(stage + PLACE_A(row + i * ROWS_APART, col), is_inside ? a + (size_t)from * k + k0 + col : a, is_inside);
  }
#pragma unroll 1
  for (int i = 0; i < BK * B_VECTORS / THREADS; ++i) {
    const int at = i * THREADS + threadIdx.x;
    const int from = k0 + at / B_VECTORS, to = n0 + at % B_VECTORS * 4;
    const bool is_inside = from < k && to < n;
    copy<4>(stage + A_FLOATS + at * 4, is_inside ? b + (size_t)from * n + to : b, is_inside);
  }
}

__device__ __forceinline__ void take_four(float *own, const float *from) {
  *reinterpret_cast<float4 *>(own) = *reinterpret_cast<const float4 *>(from);
}

// All products of one step, back and forth, so that neighbours share an operand.
__device__ __forceinline__ void add_products(float (&sums)[TM][TN], const float (&a)[TM], const float (&b)[TN]) {
#if ORDER == 0
#pragma unroll
  for (int i = 0; i < TM; ++i) {
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      const int turn = i % 2 ? TN - 1 - j : j;
      sums[i][turn] = fmaf(a[i], b[turn], sums[i][turn]);
    }
  }
#else
#pragma unroll
  for (int j = 0; j < TN; ++j) {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const int turn = j % 2 ? TM - 1 - i : i;
      sums[turn][j] = fmaf(a[turn], b[j], sums[turn][j]);
    }
  }
#endif
}

// What one step needs of A and B.
__device__ __forceinline__ void take(float (&a)[TM], float (&b)[TN], const float *rows, const float *cols) {
#pragma unroll
  for (int i = 0; i < TM; i += 4) {
    take_four(a + i, rows + OWN_ROW(i));
  }
#pragma unroll
  for (int j = 0; j < TN; j += 4) {
    take_four(b + j, cols + j * LANES_N);
  }
}

// One tile: `rows` and `cols` point to what the thread needs first of A and B.
__device__ __forceinline__ void compute(float (&sums)[TM][TN], const float *rows, const float *cols) {
#if TURNED
  constexpr int together = STEPS;  // nvcc reads no macro behind "unroll"
#pragma unroll together
  for (int step = 0; step < BK; ++step) {
    float a[TM], b[TN];
    take(a, b, rows + step * PITCH, cols + step * BN);
    add_products(sums, a, b);
  }
#else
  constexpr int together = STEPS / 4;
#pragma unroll together
  for (int step = 0; step < BK; step += 4) {
    float a[TM][4];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      take_four(a[i], rows + OWN_ROW(i) * PITCH + step);
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      float column[TM], b[TN];
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        column[i] = a[i][u];
      }
#pragma unroll
      for (int j = 0; j < TN; j += 4) {
        take_four(b + j, cols + (step + u) * BN + j * LANES_N);
      }
      add_products(sums, column, b);
    }
  }
#endif
}

// Adds the products of all tiles: of those that lie inside, or of any.
template <bool IS_WHOLE>
__device__ __forceinline__ void add_tiles(float (&sums)[TM][TN], float *shared, const float *a, const float *b, const int m0,
                                          const int n0, const int own_row, const int own_col, const int m, const int n, const int k) {
  const float *next_a = a + (size_t)(m0 + threadIdx.x / (BK / COPY_A)) * k + threadIdx.x % (BK / COPY_A) * COPY_A;
  const float *next_b = b + (size_t)(threadIdx.x / B_VECTORS) * n + n0 + threadIdx.x % B_VECTORS * 4;
  const int tiles = (k + BK - 1) / BK;
#if AHEAD
  float next[2][TM], cols[2][TN];
#endif
#pragma unroll 1
  for (int tile = 1 - STAGES; tile < tiles; ++tile) {  // the first STAGES - 1 turns only start copies
#if AHEAD
    if (tile == 0) {
      asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
      __syncthreads();
      take(next[0], cols[0], shared + PLACE_A(own_row, 0), shared + A_FLOATS + own_col);
    }
#else
    if (tile >= 0) {
      asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
      __syncthreads();  // this tile is there for all threads, and all are done with the one before
    }
#endif
    const int coming = tile + STAGES - 1;
    if (coming < tiles) {
      float *stage = shared + coming % STAGES * STAGE_FLOATS;
      if (IS_WHOLE) {
        copy_whole(stage, next_a, next_b, n, k);
        next_a += BK;
        next_b += (size_t)BK * n;
      } else {
        copy_part(stage, a, b, m0, n0, coming * BK, m, n, k);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (tile >= 0) {
      const float *stage = shared + tile % STAGES * STAGE_FLOATS;
#if AHEAD
#pragma unroll
      for (int step = 0; step < BK; ++step) {
        const float *from = stage;
        if (step == BK - 1) {  // all that this tile has was taken by all threads, and the next one is there
          asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
          __syncthreads();
          from = shared + (tile + 1) % STAGES * STAGE_FLOATS;
        }
        const int coming_step = (step + 1) % BK;
        take(next[(step + 1) % 2], cols[(step + 1) % 2], from + PLACE_A(own_row, 0) + coming_step * PITCH,
             from + A_FLOATS + own_col + coming_step * BN);
        add_products(sums, next[step % 2], cols[step % 2]);
      }
#else
      compute(sums, stage + PLACE_A(own_row, 0), stage + A_FLOATS + own_col);
#endif
    }
  }
}

__device__ __forceinline__ float moved(const float x, const unsigned as_it_is) {
  return __uint_as_float(__byte_perm(__float_as_uint(x), 0u, as_it_is));
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
  const int own_row = warp / WARPS_N * (TM * LANES_M) + lane / LANES_N * (TURNED ? 4 : 1);
  const int own_col = warp % WARPS_N * (TN * LANES_N) + lane % LANES_N * 4;
  float sums[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; ++i) {
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      sums[i][j] = 0.0f;
    }
  }

  if (m0 + BM <= m && n0 + BN <= n && k % BK == 0) {
    add_tiles<true>(sums, shared, a, b, m0, n0, own_row, own_col, m, n, k);
  } else {
    add_tiles<false>(sums, shared, a, b, m0, n0, own_row, own_col, m, n, k);
  }

  // Stores take four neighbours in aligned registers. If the sums had to lie so from the beginning, most products would read two
  // operands from one bank of registers; an operation that changes nothing, which the compiler cannot know, sets them free.
  const unsigned as_it_is = 0x3210u | (unsigned)(k >> 31);
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int row = m0 + own_row + OWN_ROW(i);
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      const int col = n0 + own_col + j * LANES_N;
      if (row < m && col < n) {
        *reinterpret_cast<float4 *>(c + (size_t)row * n + col) =
            make_float4(moved(sums[i][j], as_it_is), moved(sums[i][j + 1], as_it_is), moved(sums[i][j + 2], as_it_is),
                        moved(sums[i][j + 3], as_it_is));
      }
    }
  }
}
