// /// kernelwright
// [parameters]
// BLOCK_X = { values = [32, 64, 128, 256], default = 64, why = "threads of a block along a row" }
// BLOCK_Y = { values = [1, 2, 4, 8, 16], default = 4, why = "strips of a block, below each other" }
// VEC     = { values = [1, 2, 4], default = 4, why = "points of a load and store: 4 are 16 bytes, the widest there is" }
// ROWS    = { values = [1, 2, 4, 8, 16, 32, 64], default = 16, why = "rows that one thread walks down: only the strip's first and last neighbours are read twice" }
// AHEAD   = { values = [1, 2, 4, 8, 16], default = 4, why = "rows that are loaded before the first of them is computed" }
// SIDES   = { values = [0, 1], default = 1, why = "left and right neighbours, 0: by loads, which the first-level cache answers; 1: from the neighbouring thread" }
// WALK    = { values = [0, 1], default = 0, why = "0: blocks follow rows; 1: columns" }
// LOAD    = { values = [0, 1], default = 0, why = "0: plain; 1: read-only" }
// STORE   = { values = [0, 1, 2], default = 0, why = "0: plain; 1: streaming; 2: not kept in the first-level cache" }
// [constraints]
// threads   = "64 <= BLOCK_X * BLOCK_Y <= 1024"
// registers = "AHEAD * VEC <= 32"
// ahead     = "ROWS % AHEAD == 0"
// whole     = "width % VEC == 0"
// fits      = "BLOCK_X * VEC <= width or BLOCK_X == 32"
// [launch]
// grid  = ["ceil_div(width, BLOCK_X * VEC) * ceil_div(height, BLOCK_Y * ROWS)"]
// block = ["BLOCK_X", "BLOCK_Y"]
// ///

// One explicit step of the heat equation (5-point stencil) on a height x width grid of floats whose border keeps its values. A
// thread walks down ROWS rows of VEC columns and keeps the rows above and below in registers. Rows hold whole vectors.

#ifndef BLOCK_X
#define BLOCK_X 64
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 4
#endif
#ifndef VEC
#define VEC 4
#endif
#ifndef ROWS
#define ROWS 16
#endif
#ifndef AHEAD
#define AHEAD 4
#endif
#ifndef SIDES
#define SIDES 1
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

template <int N> struct Floats;
template <> struct Floats<1> { typedef float type; };
template <> struct Floats<2> { typedef float2 type; };
template <> struct Floats<4> { typedef float4 type; };

typedef typename Floats<VEC>::type Packed;

union Vector {
  Packed packed;
  float at[VEC];
  __device__ Vector() {}
};

template <typename T> __device__ __forceinline__ T take(const T *from) {
#if LOAD == 0
  return *from;
#else
  return __ldg(from);
#endif
}

__device__ __forceinline__ void put(float *to, const Vector &own) {
  Packed *at = reinterpret_cast<Packed *>(to);
#if STORE == 0
  *at = own.packed;
#elif STORE == 1
  __stcs(at, own.packed);
#else
  __stcg(at, own.packed);
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
heat_step(const float *__restrict__ now, float *__restrict__ later, const int width, const int height, const float rate) {
  const int across = (width + BLOCK_X * VEC - 1) / (BLOCK_X * VEC);
  const int down = (height + BLOCK_Y * ROWS - 1) / (BLOCK_Y * ROWS);
#if WALK == 0
  const int x = (blockIdx.x % across * BLOCK_X + threadIdx.x) * VEC;
  const int y0 = (blockIdx.x / across * BLOCK_Y + threadIdx.y) * ROWS;
#else
  const int x = (blockIdx.x / down * BLOCK_X + threadIdx.x) * VEC;
  const int y0 = (blockIdx.x % down * BLOCK_Y + threadIdx.y) * ROWS;
#endif
  // Threads beyond the last column stay, as partners of the exchange, and read what their neighbour reads.
  const int col = min(x, width - VEC);
  const int lane = threadIdx.x % 32;
  Vector above, here;
  above.packed = take(reinterpret_cast<const Packed *>(now + (size_t)min(max(y0 - 1, 0), height - 1) * width + col));
  here.packed = take(reinterpret_cast<const Packed *>(now + (size_t)min(y0, height - 1) * width + col));
#pragma unroll 1
  for (int first = 0; first < ROWS; first += AHEAD) {
    Vector below[AHEAD];
    float left[AHEAD], right[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int y = min(y0 + first + i, height - 1);
      below[i].packed = take(reinterpret_cast<const Packed *>(now + (size_t)min(y + 1, height - 1) * width + col));
      const float *row = now + (size_t)y * width;
#if SIDES == 0
      left[i] = take(row + max(col - 1, 0));
      right[i] = take(row + min(col + VEC, width - 1));
#else
      left[i] = lane == 0 ? take(row + max(col - 1, 0)) : 0.0f;
      right[i] = lane == 31 ? take(row + min(col + VEC, width - 1)) : 0.0f;
#endif
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int y = y0 + first + i;
#if SIDES == 1
      const float before = __shfl_up_sync(0xffffffffu, here.at[VEC - 1], 1);
      const float after = __shfl_down_sync(0xffffffffu, here.at[0], 1);
      left[i] = lane == 0 ? left[i] : before;
      right[i] = lane == 31 ? right[i] : after;
#endif
      Vector done;
#pragma unroll
      for (int j = 0; j < VEC; ++j) {
        const float west = j == 0 ? left[i] : here.at[j > 0 ? j - 1 : 0];
        const float east = j == VEC - 1 ? right[i] : here.at[j < VEC - 1 ? j + 1 : j];
        const bool is_border = y == 0 || y == height - 1 || x + j == 0 || x + j == width - 1;
        const float next = here.at[j] + rate * (west + east + above.at[j] + below[i].at[j] - 4.0f * here.at[j]);
        done.at[j] = is_border ? here.at[j] : next;
      }
      if (x < width && y < height) {
        put(later + (size_t)y * width + x, done);
      }
      above = here;
      here = below[i];
    }
  }
}
