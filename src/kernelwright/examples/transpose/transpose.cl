// /// kernelwright
// [parameters]
// GROUP_X  = { values = [1, 2, 4, 8, 16, 32], default = 8, why = "work-items of a group along the columns of the input" }
// GROUP_Y  = { values = [1, 2, 4, 8, 16], default = 8, why = "work-items of a group along its rows" }
// BLOCKS_X = { values = [1, 2, 4, 8], default = 1, why = "blocks of VEC columns that one work-item takes" }
// BLOCKS_Y = { values = [1, 2, 4, 8], default = 1, why = "blocks of VEC rows that one work-item takes" }
// VEC      = { values = [1, 2, 4, 8], default = 4, why = "side of the block that is transposed in registers" }
// WALK     = { values = [0, 1], default = 0, why = "0: groups and blocks follow the input's rows; 1: the output's rows" }
// STAGE    = { values = [0, 1], default = 0, why = "1: through a tile of local memory, so that reads and writes both coalesce" }
// PAD      = { values = [0, 1], default = 0, why = "extra column of the local tile, against bank conflicts" }
// [constraints]
// threads   = "GROUP_X * GROUP_Y <= device.max_threads_per_block"
// tile      = "GROUP_X * BLOCKS_X * VEC * GROUP_Y * BLOCKS_Y * VEC <= 8192"
// registers = "BLOCKS_X * BLOCKS_Y * VEC <= 64"
// fits_x    = "GROUP_X * BLOCKS_X * VEC <= cols"
// fits_y    = "GROUP_Y * BLOCKS_Y * VEC <= rows"
// shared    = "STAGE * 4 * GROUP_Y * BLOCKS_Y * (GROUP_X * BLOCKS_X + PAD) <= device.shared_memory_per_block"
// scalars   = "STAGE == 0 or VEC == 1"
// sharing   = "STAGE == 0 or GROUP_X * GROUP_Y >= 32"
// direct    = "STAGE == 1 or PAD == 0"
// [launch]
// grid  = ["ceil_div(cols, GROUP_X * BLOCKS_X * VEC) * ceil_div(rows, GROUP_Y * BLOCKS_Y * VEC)", "1"]
// block = ["GROUP_X", "GROUP_Y"]
// ///

// dst = src^T for a row-major matrix of `rows` x `cols`. A group owns a tile of TILE_Y rows and TILE_X columns of the input.
// Without staging, a work-item moves blocks of VEC x VEC through registers: vector loads, a shuffle network, vector stores.
// With staging, the group copies the tile to local memory row by row and from there to the output row by row.

#ifndef GROUP_X
#define GROUP_X 8
#endif
#ifndef GROUP_Y
#define GROUP_Y 8
#endif
#ifndef BLOCKS_X
#define BLOCKS_X 1
#endif
#ifndef BLOCKS_Y
#define BLOCKS_Y 1
#endif
#ifndef VEC
#define VEC 4
#endif
#ifndef WALK
#define WALK 0
#endif
#ifndef STAGE
#define STAGE 0
#endif
#ifndef PAD
#define PAD 0
#endif

#define TILE_X (GROUP_X * BLOCKS_X * VEC)
#define TILE_Y (GROUP_Y * BLOCKS_Y * VEC)

// Where this group's tile starts: the groups walk the tiles row by row, or column by column.
static int2 tile_origin(const int rows, const int cols) {
  const int across = (cols + TILE_X - 1) / TILE_X;
  const int down = (rows + TILE_Y - 1) / TILE_Y;
  const int group = get_group_id(0);
#if WALK == 0
  return (int2)(group % across * TILE_X, group / across * TILE_Y);
#else
  return (int2)(group / down * TILE_X, group % down * TILE_Y);
#endif
}

#if STAGE

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void transpose(__global const float *restrict src, __global float *restrict dst, const int rows, const int cols) {
  __local float tile[TILE_Y][TILE_X + PAD];
  const int2 origin = tile_origin(rows, cols);
  const int item = get_local_id(1) * GROUP_X + get_local_id(0);

  for (int at = item; at < TILE_X * TILE_Y; at += GROUP_X * GROUP_Y) {
    const int x = at % TILE_X;
    const int y = at / TILE_X;
    if (origin.x + x < cols && origin.y + y < rows) {
      tile[y][x] = src[(origin.y + y) * cols + origin.x + x];
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int at = item; at < TILE_X * TILE_Y; at += GROUP_X * GROUP_Y) {
    const int x = at / TILE_Y;
    const int y = at % TILE_Y;
    if (origin.x + x < cols && origin.y + y < rows) {
      dst[(origin.x + x) * rows + origin.y + y] = tile[y][x];
    }
  }
}

#else

#define JOIN_(x, y) x##y
#define JOIN(x, y) JOIN_(x, y)
#if VEC == 1
typedef float vec_t;
#else
typedef JOIN(float, VEC) vec_t;
#endif
// A vector that may start at any float, unlike vec_t. Plain loads and stores of it, not vloadn and vstoren: some compilers
// turn those into calls.
typedef vec_t __attribute__((aligned(4))) any_vec_t;

// The first and the second half of two vectors' elements in turn: a0 b0 a1 b1 ...
#if VEC == 2
#define ZIP_LOW(a, b) (vec_t)(a.s0, b.s0)
#define ZIP_HIGH(a, b) (vec_t)(a.s1, b.s1)
#elif VEC == 4
#define ZIP_LOW(a, b) (vec_t)(a.s0, b.s0, a.s1, b.s1)
#define ZIP_HIGH(a, b) (vec_t)(a.s2, b.s2, a.s3, b.s3)
#elif VEC == 8
#define ZIP_LOW(a, b) (vec_t)(a.s0, b.s0, a.s1, b.s1, a.s2, b.s2, a.s3, b.s3)
#define ZIP_HIGH(a, b) (vec_t)(a.s4, b.s4, a.s5, b.s5, a.s6, b.s6, a.s7, b.s7)
#endif

// Transposes the VEC x VEC block whose corner in the input is (x, y). Zipping row i with row i + VEC / 2, log2(VEC) times,
// is a transposition.
static void move_block(__global const float *src, __global float *dst, const int x, const int y, const int rows,
                       const int cols) {
  vec_t line[VEC];
#pragma unroll
  for (int i = 0; i < VEC; ++i) {
    line[i] = *(__global const any_vec_t *)(src + (y + i) * cols + x);
  }
#if VEC > 1
#pragma unroll
  for (int step = 1; step < VEC; step *= 2) {
    vec_t zipped[VEC];
#pragma unroll
    for (int i = 0; i < VEC / 2; ++i) {
      zipped[2 * i] = ZIP_LOW(line[i], line[i + VEC / 2]);
      zipped[2 * i + 1] = ZIP_HIGH(line[i], line[i + VEC / 2]);
    }
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
      line[i] = zipped[i];
    }
  }
#endif
#pragma unroll
  for (int i = 0; i < VEC; ++i) {
    *(__global any_vec_t *)(dst + (x + i) * rows + y) = line[i];
  }
}

// The same where the block sticks out of the matrix.
static void move_edge(__global const float *src, __global float *dst, const int x, const int y, const int rows,
                      const int cols) {
  for (int i = x; i < min(x + VEC, cols); ++i) {
    for (int j = y; j < min(y + VEC, rows); ++j) {
      dst[i * rows + j] = src[j * cols + i];
    }
  }
}

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void transpose(__global const float *restrict src, __global float *restrict dst, const int rows, const int cols) {
  const int2 origin = tile_origin(rows, cols);
  // Blocks of one work-item lie a group apart, so that neighbouring work-items touch neighbouring memory.
  const int first_x = origin.x + get_local_id(0) * VEC;
  const int first_y = origin.y + get_local_id(1) * VEC;
  for (int block = 0; block < BLOCKS_X * BLOCKS_Y; ++block) {
#if WALK == 0
    const int x = first_x + block % BLOCKS_X * GROUP_X * VEC;
    const int y = first_y + block / BLOCKS_X * GROUP_Y * VEC;
#else
    const int x = first_x + block / BLOCKS_Y * GROUP_X * VEC;
    const int y = first_y + block % BLOCKS_Y * GROUP_Y * VEC;
#endif
    if (x + VEC <= cols && y + VEC <= rows) {
      move_block(src, dst, x, y, rows, cols);
    } else {
      move_edge(src, dst, x, y, rows, cols);
    }
  }
}

#endif
