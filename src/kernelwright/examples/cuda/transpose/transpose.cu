// /// kernelwright
// [parameters]
// METHOD = { values = [0, 1], default = 0, why = "0: through a tile in shared memory; 1: 4 x 4 floats at a time in registers, with no barrier" }
// TILE_X = { values = [16, 32, 64, 128], default = 64, why = "columns of the input that a block takes" }
// TILE_Y = { values = [16, 32, 64, 128], default = 64, why = "rows of the input that a block takes" }
// BLOCK  = { values = [64, 128, 256, 512, 1024], default = 256, why = "threads of a block" }
// READ   = { values = [1, 2, 4], default = 4, why = "floats per load (method 0)" }
// WRITE  = { values = [1, 2, 4], default = 4, why = "floats per store (method 0)" }
// PAD    = { values = [0, 1, 2, 4], default = 1, why = "extra columns of the tile in shared memory, against bank conflicts (method 0)" }
// DOWN   = { values = [1, 2, 4, 8, 16, 32], default = 1, why = "threads of a warp along the output's rows; the others are along the input's (method 1)" }
// WALK   = { values = [0, 1], default = 0, why = "0: blocks follow the input's rows; 1: the output's rows" }
// LOAD   = { values = [0, 1, 2, 3], default = 0, why = "0: plain; 1: streaming; 2: not kept in the first-level cache; 3: and 256 bytes at a time into the second" }
// STORE  = { values = [0, 1, 2], default = 0, why = "0: plain; 1: streaming; 2: not kept in the first-level cache" }
// [constraints]
// reads   = "METHOD == 1 or TILE_X * TILE_Y >= BLOCK * READ"
// writes  = "METHOD == 1 or TILE_X * TILE_Y >= BLOCK * WRITE"
// work    = "TILE_X * TILE_Y <= 64 * BLOCK"
// tiled   = "METHOD == 1 or DOWN == 1"
// direct  = "METHOD == 0 or (READ == 4 and WRITE == 4 and PAD == 0 and TILE_X * TILE_Y >= 16 * BLOCK)"
// down    = "METHOD == 0 or (4 * DOWN <= TILE_Y and 128 // DOWN <= TILE_X)"
// [launch]
// grid  = ["ceil_div(cols, TILE_X) * ceil_div(rows, TILE_Y)"]
// block = ["BLOCK"]
// shared_bytes = "4 * TILE_Y * (TILE_X + PAD) if METHOD == 0 else 0"
// ///

// dst = src^T for a row-major float32 matrix of `rows` x `cols`. With method 0 a block copies a tile of TILE_Y rows and TILE_X columns
// to shared memory along the input's rows, and from there along the output's rows, so that both sides coalesce. With
// method 1 a thread reads four vectors below each other, exchanges their elements in registers, and writes four: 32 / DOWN threads
// cover a stretch of an input row, DOWN threads one of an output row. Tiles that stick out are cut; on a
// side whose rows do not hold whole vectors floats are moved one by one.

#ifndef METHOD
#define METHOD 0
#endif
#ifndef TILE_X
#define TILE_X 64
#endif
#ifndef TILE_Y
#define TILE_Y 64
#endif
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef READ
#define READ 4
#endif
#ifndef WRITE
#define WRITE 4
#endif
#ifndef PAD
#define PAD 1
#endif
#ifndef DOWN
#define DOWN 1
#endif
#ifndef WALK
#define WALK 0
#endif
#ifndef LOAD
#define LOAD 0
#endif
#ifndef STORE
#define STORE 0
#endif

#define STRIDE (TILE_X + PAD)

template <int N> struct Words {
  unsigned at[N];
};

#if LOAD == 0
#define LOAD_AS "ld.global"
#elif LOAD == 1
#define LOAD_AS "ld.global.cs"
#elif LOAD == 2
#define LOAD_AS "ld.global.nc.L1::no_allocate"
#else
#define LOAD_AS "ld.global.nc.L1::no_allocate.L2::256B"
#endif

#if STORE == 0
#define STORE_AS "st.global"
#elif STORE == 1
#define STORE_AS "st.global.cs"
#else
#define STORE_AS "st.global.L1::no_allocate"
#endif

__device__ __forceinline__ void load(Words<1> &to, const void *from) {
  asm volatile(LOAD_AS ".u32 %0, [%1];" : "=r"(to.at[0]) : "l"(from));
}

__device__ __forceinline__ void load(Words<2> &to, const void *from) {
  asm volatile(LOAD_AS ".v2.u32 {%0, %1}, [%2];" : "=r"(to.at[0]), "=r"(to.at[1]) : "l"(from));
}

__device__ __forceinline__ void load(Words<4> &to, const void *from) {
  asm volatile(LOAD_AS ".v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3]) : "l"(from));
}

__device__ __forceinline__ void store(void *to, const Words<1> &from) {
  asm volatile(STORE_AS ".u32 [%0], %1;" :: "l"(to), "r"(from.at[0]) : "memory");
}

__device__ __forceinline__ void store(void *to, const Words<2> &from) {
  asm volatile(STORE_AS ".v2.u32 [%0], {%1, %2};" :: "l"(to), "r"(from.at[0]), "r"(from.at[1]) : "memory");
}

__device__ __forceinline__ void store(void *to, const Words<4> &from) {
  asm volatile(STORE_AS ".v4.u32 [%0], {%1, %2, %3, %4};"
               :: "l"(to), "r"(from.at[0]), "r"(from.at[1]), "r"(from.at[2]), "r"(from.at[3]) : "memory");
}

template <int N>
__device__ __forceinline__ void read_tile(unsigned *tile, const float *src, const int x0, const int y0, const int rows, const int cols) {
  Words<N> own[TILE_X * TILE_Y / N / BLOCK];
#pragma unroll
  for (int i = 0; i < TILE_X * TILE_Y / N / BLOCK; ++i) {
    const int at = i * BLOCK + threadIdx.x;
    const int x = at % (TILE_X / N) * N, y = at / (TILE_X / N);
    if (x0 + x < cols && y0 + y < rows) {
      load(own[i], src + (size_t)(y0 + y) * cols + x0 + x);
    }
  }
#pragma unroll
  for (int i = 0; i < TILE_X * TILE_Y / N / BLOCK; ++i) {
    const int at = i * BLOCK + threadIdx.x;
    const int x = at % (TILE_X / N) * N, y = at / (TILE_X / N);
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      tile[y * STRIDE + x + lane] = own[i].at[lane];
    }
  }
}

template <int N>
__device__ __forceinline__ void write_tile(const unsigned *tile, float *dst, const int x0, const int y0, const int rows, const int cols) {
#pragma unroll
  for (int i = 0; i < TILE_X * TILE_Y / N / BLOCK; ++i) {
    const int at = i * BLOCK + threadIdx.x;
    const int y = at % (TILE_Y / N) * N, x = at / (TILE_Y / N);
    if (x0 + x < cols && y0 + y < rows) {
      Words<N> own;
#pragma unroll
      for (int lane = 0; lane < N; ++lane) {
        own.at[lane] = tile[(y + lane) * STRIDE + x];
      }
      store(dst + (size_t)(x0 + x) * rows + y0 + y, own);
    }
  }
}

__device__ __forceinline__ void move_blocks(const float *src, float *dst, const int x0, const int y0, const int rows, const int cols) {
  constexpr int ACROSS = 32 / DOWN, WARPS_ACROSS = TILE_X / 4 / ACROSS, WARPS = BLOCK / 32;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < TILE_X * TILE_Y / 16 / BLOCK; ++i) {
    const int warp = i * WARPS + threadIdx.x / 32;
    const int x = x0 + (warp % WARPS_ACROSS * ACROSS + lane % ACROSS) * 4;
    const int y = y0 + (warp / WARPS_ACROSS * DOWN + lane / ACROSS) * 4;
    if (x < cols && y < rows) {
      Words<4> in[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        load(in[j], src + (size_t)(y + j) * cols + x);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Words<4> out;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          out.at[k] = in[k].at[j];
        }
        store(dst + (size_t)(x + j) * rows + y, out);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose(const float *__restrict__ src, float *__restrict__ dst, const int rows, const int cols) {
  const int across = (cols + TILE_X - 1) / TILE_X;
  const int down = (rows + TILE_Y - 1) / TILE_Y;
#if WALK == 0
  const int x0 = blockIdx.x % across * TILE_X;
  const int y0 = blockIdx.x / across * TILE_Y;
#else
  const int x0 = blockIdx.x / down * TILE_X;
  const int y0 = blockIdx.x % down * TILE_Y;
#endif
#if METHOD == 0
  extern __shared__ unsigned tile[];
  if (cols % READ == 0) {
    read_tile<READ>(tile, src, x0, y0, rows, cols);
  } else {
    read_tile<1>(tile, src, x0, y0, rows, cols);
  }
  __syncthreads();
  if (rows % WRITE == 0) {
    write_tile<WRITE>(tile, dst, x0, y0, rows, cols);
  } else {
    write_tile<1>(tile, dst, x0, y0, rows, cols);
  }
#else
  if (rows % 4 == 0 && cols % 4 == 0) {
    move_blocks(src, dst, x0, y0, rows, cols);
  } else {
    for (int at = threadIdx.x; at < TILE_X * TILE_Y; at += BLOCK) {
      const int x = x0 + at / TILE_Y, y = y0 + at % TILE_Y;
      if (x < cols && y < rows) {
        dst[(size_t)x * rows + y] = src[(size_t)y * cols + x];
      }
    }
  }
#endif
}
