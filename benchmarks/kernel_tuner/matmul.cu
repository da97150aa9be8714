// /// kernelwright
// [parameters]
// BLOCK_X = { values = [8, 16, 32, 64, 128], default = 16, why = "threads along the columns" }
// BLOCK_Y = { values = [2, 4, 8, 16, 32], default = 16, why = "threads along the rows" }
// TILE_X = { values = [1, 2, 4, 8], default = 1, why = "columns of one thread" }
// TILE_Y = { values = [1, 2, 4, 8], default = 1, why = "rows of one thread" }
// TILE_K = { values = [8, 16, 32], default = 16, why = "depth of a shared tile" }
// UNROLL = { values = [1, 4, 8], default = 1, why = "of the loop over a tile's depth" }
// [constraints]
// threads = "64 <= BLOCK_X * BLOCK_Y and BLOCK_X * BLOCK_Y <= 1024"
// shared = "4 * TILE_K * (BLOCK_X * TILE_X + BLOCK_Y * TILE_Y) <= 49152"
// columns = "n % (BLOCK_X * TILE_X) == 0"
// rows = "n % (BLOCK_Y * TILE_Y) == 0"
// [launch]
// grid = ["n // (BLOCK_X * TILE_X)", "n // (BLOCK_Y * TILE_Y)"]
// block = ["BLOCK_X", "BLOCK_Y"]
// ///
// C = A B for square row-major matrices, with tiles in shared memory and several results per thread.

#ifndef BLOCK_X
#define BLOCK_X 16
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 16
#endif
#ifndef TILE_X
#define TILE_X 1
#endif
#ifndef TILE_Y
#define TILE_Y 1
#endif
#ifndef TILE_K
#define TILE_K 16
#endif
#ifndef UNROLL
#define UNROLL 1
#endif

#define COLUMNS (BLOCK_X * TILE_X)
#define ROWS (BLOCK_Y * TILE_Y)
#define THREADS (BLOCK_X * BLOCK_Y)

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y) matmul(float *c, const float *a, const float *b, int n) {
    __shared__ float rows[TILE_K][ROWS];
    __shared__ float columns[TILE_K][COLUMNS];
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    const int first_row = blockIdx.y * ROWS, first_column = blockIdx.x * COLUMNS;
    float sums[TILE_Y][TILE_X] = {};
    for (int start = 0; start < n; start += TILE_K) {
        for (int each = thread; each < ROWS * TILE_K; each += THREADS)
            rows[each % TILE_K][each / TILE_K] = a[(size_t)(first_row + each / TILE_K) * n + start + each % TILE_K];
        for (int each = thread; each < COLUMNS * TILE_K; each += THREADS)
            columns[each / COLUMNS][each % COLUMNS] = b[(size_t)(start + each / COLUMNS) * n + first_column + each % COLUMNS];
        __syncthreads();
#pragma unroll UNROLL
        for (int k = 0; k < TILE_K; ++k) {
            float left[TILE_Y], right[TILE_X];
#pragma unroll
            for (int y = 0; y < TILE_Y; ++y) left[y] = rows[k][threadIdx.y + y * BLOCK_Y];
#pragma unroll
            for (int x = 0; x < TILE_X; ++x) right[x] = columns[k][threadIdx.x + x * BLOCK_X];
#pragma unroll
            for (int y = 0; y < TILE_Y; ++y)
#pragma unroll
                for (int x = 0; x < TILE_X; ++x) sums[y][x] += left[y] * right[x];
        }
        __syncthreads();
    }
    for (int y = 0; y < TILE_Y; ++y)
        for (int x = 0; x < TILE_X; ++x)
            c[(size_t)(first_row + threadIdx.y + y * BLOCK_Y) * n + first_column + threadIdx.x + x * BLOCK_X] = sums[y][x];
}
