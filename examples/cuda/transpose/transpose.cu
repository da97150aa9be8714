// /// kernelwright
// [parameters]
// TILE_X = { values = [16, 32, 64, 128], default = 32, why = "columns of the input that a block takes" }
// TILE_Y = { values = [16, 32, 64, 128], default = 32, why = "rows of the input that a block takes" }
// BLOCK  = { values = [64, 128, 256, 512, 1024], default = 256, why = "threads of a block" }
// READ   = { values = [1, 2, 4], default = 1, why = "floats per load" }
// WRITE  = { values = [1, 2, 4], default = 1, why = "floats per store" }
// PAD    = { values = [0, 1, 2, 4], default = 1, why = "extra columns of the tile in shared memory, against bank conflicts" }
// WALK   = { values = [0, 1], default = 0, why = "0: blocks follow the input's rows; 1: the output's rows" }
// HINT   = { values = [0, 1], default = 0, why = "1: streaming loads and stores: nothing is used twice" }
// [constraints]
// reads  = "TILE_X * TILE_Y >= BLOCK * READ"
// writes = "TILE_X * TILE_Y >= BLOCK * WRITE"
// work   = "TILE_X * TILE_Y <= 64 * BLOCK"
// [launch]
// grid  = ["ceil_div(cols, TILE_X) * ceil_div(rows, TILE_Y)"]
// block = ["BLOCK"]
// shared_bytes = "4 * TILE_Y * (TILE_X + PAD)"
// ///

// dst = src^T for a row-major matrix of `rows` x `cols`. A block copies a tile of TILE_Y rows and TILE_X columns to shared memory
// along the input's rows, and from there along the output's rows, so that both sides coalesce. Matrices whose rows do not
// hold whole vectors are moved float by float on that side.

#ifndef TILE_X
#define TILE_X 32
#endif
#ifndef TILE_Y
#define TILE_Y 32
#endif
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef READ
#define READ 1
#endif
#ifndef WRITE
#define WRITE 1
#endif
#ifndef PAD
#define PAD 1
#endif
#ifndef WALK
#define WALK 0
#endif
#ifndef HINT
#define HINT 0
#endif

#define STRIDE (TILE_X + PAD)

template <int N> struct Packed;
template <> struct Packed<1> { typedef float type; };
template <> struct Packed<2> { typedef float2 type; };
template <> struct Packed<4> { typedef float4 type; };

template <int N> union Vector {
  typename Packed<N>::type packed;
  float lane[N];
  __device__ Vector() {}
};

template <int N> __device__ __forceinline__ void load_tile(float *tile, const float *src, int x0, int y0, int rows, int cols) {
#pragma unroll
  for (int i = 0; i < TILE_X * TILE_Y / N / BLOCK; ++i) {
    const int at = i * BLOCK + threadIdx.x;
    const int x = at % (TILE_X / N) * N;
    const int y = at / (TILE_X / N);
    if (x0 + x < cols && y0 + y < rows) {
      const auto *from = reinterpret_cast<const typename Packed<N>::type *>(src + (size_t)(y0 + y) * cols + x0 + x);
      Vector<N> vector;
#if HINT
      vector.packed = __ldcs(from);
#else
      vector.packed = *from;
#endif
#pragma unroll
      for (int lane = 0; lane < N; ++lane) {
        tile[y * STRIDE + x + lane] = vector.lane[lane];
      }
    }
  }
}

template <int N> __device__ __forceinline__ void store_tile(const float *tile, float *dst, int x0, int y0, int rows, int cols) {
#pragma unroll
  for (int i = 0; i < TILE_X * TILE_Y / N / BLOCK; ++i) {
    const int at = i * BLOCK + threadIdx.x;
    const int y = at % (TILE_Y / N) * N;
    const int x = at / (TILE_Y / N);
    if (x0 + x < cols && y0 + y < rows) {
      Vector<N> vector;
#pragma unroll
      for (int lane = 0; lane < N; ++lane) {
        vector.lane[lane] = tile[(y + lane) * STRIDE + x];
      }
      auto *to = reinterpret_cast<typename Packed<N>::type *>(dst + (size_t)(x0 + x) * rows + y0 + y);
#if HINT
      __stcs(to, vector.packed);
#else
      *to = vector.packed;
#endif
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose(const float *__restrict__ src, float *__restrict__ dst, const int rows, const int cols) {
  extern __shared__ float tile[];
  const int across = (cols + TILE_X - 1) / TILE_X;
  const int down = (rows + TILE_Y - 1) / TILE_Y;
#if WALK == 0
  const int x0 = blockIdx.x % across * TILE_X;
  const int y0 = blockIdx.x / across * TILE_Y;
#else
  const int x0 = blockIdx.x / down * TILE_X;
  const int y0 = blockIdx.x % down * TILE_Y;
#endif
  if (cols % READ == 0) {
    load_tile<READ>(tile, src, x0, y0, rows, cols);
  } else {
    load_tile<1>(tile, src, x0, y0, rows, cols);
  }
  __syncthreads();
  if (rows % WRITE == 0) {
    store_tile<WRITE>(tile, dst, x0, y0, rows, cols);
  } else {
    store_tile<1>(tile, dst, x0, y0, rows, cols);
  }
}
