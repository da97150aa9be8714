// /// kernelwright
// [parameters]
// GROUP_X = { values = [1, 2, 4, 8, 16], default = 8, why = "work-items of a group along the columns of C" }
// GROUP_Y = { values = [1, 2, 4, 8, 16], default = 8, why = "work-items of a group along the rows of C" }
// ROWS    = { values = [2, 4, 6, 8], default = 4, why = "rows of C that one work-item keeps in registers" }
// CHUNKS  = { values = [1, 2, 4], default = 1, why = "vectors of columns that one work-item keeps in registers" }
// VEC     = { values = [1, 2, 4, 8], default = 4, why = "floats per load of B and store of C" }
// UNROLL  = { values = [1, 2, 4], default = 1, why = "steps of the inner loop that are written out" }
// STAGE   = { values = [0, 1], default = 0, why = "1: tiles of A and B pass through local memory; 0: through the caches" }
// DEPTH   = { values = [8, 16], default = 8, why = "slice of the inner dimension that is staged at a time" }
// [constraints]
// threads   = "GROUP_X * GROUP_Y <= device.max_threads_per_block"
// reuse     = "ROWS * CHUNKS * VEC >= 16"
// registers = "ROWS * CHUNKS * VEC <= 128"
// code      = "UNROLL == 1 or UNROLL * ROWS * CHUNKS <= 32"
// fits_m    = "GROUP_Y * ROWS <= m"
// fits_n    = "GROUP_X * CHUNKS * VEC <= n"
// shared    = "STAGE * 4 * DEPTH * (GROUP_Y * ROWS + GROUP_X * CHUNKS * VEC) <= device.shared_memory_per_block"
// sharing   = "STAGE == 0 or GROUP_X * GROUP_Y >= 32"
// staging   = "STAGE == 1 or DEPTH == 8"
// [launch]
// grid  = ["ceil_div(n, GROUP_X * CHUNKS * VEC)", "ceil_div(m, GROUP_Y * ROWS)"]
// block = ["GROUP_X", "GROUP_Y"]
// ///

// C = A * B, row-major float32. A work-item owns ROWS rows and CHUNKS vectors of VEC neighbouring columns; the vectors of
// a work-item lie GROUP_X * VEC columns apart, so that neighbouring work-items read neighbouring memory. Tiles that stick
// out of C take a guarded path, so every size is right.

#ifndef GROUP_X
#define GROUP_X 8
#endif
#ifndef GROUP_Y
#define GROUP_Y 8
#endif
#ifndef ROWS
#define ROWS 4
#endif
#ifndef CHUNKS
#define CHUNKS 1
#endif
#ifndef VEC
#define VEC 4
#endif
#ifndef UNROLL
#define UNROLL 1
#endif
#ifndef STAGE
#define STAGE 0
#endif
#ifndef DEPTH
#define DEPTH 8
#endif

#define JOIN_(x, y) x##y
#define JOIN(x, y) JOIN_(x, y)
#if VEC == 1
typedef float vec_t;
#else
typedef JOIN(float, VEC) vec_t;
#endif
// A vector that may start at any float, unlike vec_t. Plain loads and stores of it, not vloadn and vstoren: some compilers
// turn those into calls, and then nothing stays in registers.
typedef vec_t __attribute__((aligned(4))) any_vec_t;
#define LOAD(p) (*(__global const any_vec_t *)(p))
#define LOAD_LOCAL(p) (*(__local const any_vec_t *)(p))
#define STORE(v, p) (*(__global any_vec_t *)(p) = (v))

#define TILE_M (GROUP_Y * ROWS)
#define TILE_N (GROUP_X * CHUNKS * VEC)

// Stores one vector; only the lanes that lie inside the row when it sticks out.
static inline void store_row(__global float *c, const vec_t value, const int col, const int n) {
  if (col + VEC <= n) {
    STORE(value, c + col);
  } else {
    float lanes[VEC];
    *(any_vec_t *)lanes = value;
    for (int lane = 0; lane < VEC && col + lane < n; ++lane) {
      c[col + lane] = lanes[lane];
    }
  }
}

#if STAGE

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void matmul(__global const float *restrict a, __global const float *restrict b, __global float *restrict c,
            const int m, const int n, const int k) {
  __local float tile_a[TILE_M * DEPTH];
  __local float tile_b[DEPTH * TILE_N];
  const int x = get_local_id(0);
  const int y = get_local_id(1);
  const int first_row = get_group_id(1) * TILE_M;
  const int first_col = get_group_id(0) * TILE_N;
  const int item = y * GROUP_X + x;

  vec_t sum[ROWS][CHUNKS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int j = 0; j < CHUNKS; ++j) {
      sum[i][j] = (vec_t)(0.0f);
    }
  }

  for (int start = 0; start < k; start += DEPTH) {
    for (int at = item; at < TILE_M * DEPTH; at += GROUP_X * GROUP_Y) {
      const int row = first_row + at / DEPTH;
      const int p = start + at % DEPTH;
      tile_a[at] = (row < m && p < k) ? a[row * k + p] : 0.0f;
    }
    for (int at = item; at < DEPTH * TILE_N; at += GROUP_X * GROUP_Y) {
      const int p = start + at / TILE_N;
      const int col = first_col + at % TILE_N;
      tile_b[at] = (p < k && col < n) ? b[p * n + col] : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll UNROLL
    for (int p = 0; p < DEPTH; ++p) {
      vec_t right[CHUNKS];
#pragma unroll
      for (int j = 0; j < CHUNKS; ++j) {
        right[j] = LOAD_LOCAL(tile_b + p * TILE_N + (j * GROUP_X + x) * VEC);
      }
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        const vec_t left = (vec_t)(tile_a[(y * ROWS + i) * DEPTH + p]);
#pragma unroll
        for (int j = 0; j < CHUNKS; ++j) {
          sum[i][j] += left * right[j];
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int row = first_row + y * ROWS + i;
#pragma unroll
    for (int j = 0; j < CHUNKS; ++j) {
      const int col = first_col + (j * GROUP_X + x) * VEC;
      if (row < m && col < n) {
        store_row(c + row * n, sum[i][j], col, n);
      }
    }
  }
}

#else

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void matmul(__global const float *restrict a, __global const float *restrict b, __global float *restrict c,
            const int m, const int n, const int k) {
  const int x = get_local_id(0);
  const int y = get_local_id(1);
  const int first_row = get_group_id(1) * TILE_M + y * ROWS;
  const int first_col = get_group_id(0) * TILE_N + x * VEC;

  if (first_row + ROWS <= m && first_col + (CHUNKS - 1) * GROUP_X * VEC + VEC <= n) {
    vec_t sum[ROWS][CHUNKS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
      for (int j = 0; j < CHUNKS; ++j) {
        sum[i][j] = (vec_t)(0.0f);
      }
    }
    __global const float *left_rows = a + first_row * k;
    __global const float *right_row = b + first_col;
#pragma unroll UNROLL
    for (int p = 0; p < k; ++p) {
      vec_t right[CHUNKS];
#pragma unroll
      for (int j = 0; j < CHUNKS; ++j) {
        right[j] = LOAD(right_row + p * n + j * GROUP_X * VEC);
      }
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        const vec_t left = (vec_t)(left_rows[i * k + p]);
#pragma unroll
        for (int j = 0; j < CHUNKS; ++j) {
          sum[i][j] += left * right[j];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
      for (int j = 0; j < CHUNKS; ++j) {
        STORE(sum[i][j], c + (first_row + i) * n + first_col + j * GROUP_X * VEC);
      }
    }
  } else {
    for (int i = 0; i < ROWS && first_row + i < m; ++i) {
      for (int j = 0; j < CHUNKS; ++j) {
        for (int lane = 0; lane < VEC; ++lane) {
          const int col = first_col + j * GROUP_X * VEC + lane;
          if (col < n) {
            float sum = 0.0f;
            for (int p = 0; p < k; ++p) {
              sum += a[(first_row + i) * k + p] * b[p * n + col];
            }
            c[(first_row + i) * n + col] = sum;
          }
        }
      }
    }
  }
}

#endif
