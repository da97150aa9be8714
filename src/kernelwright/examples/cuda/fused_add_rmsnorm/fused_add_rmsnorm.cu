// /// kernelwright
// [parameters]
// THREADS    = { values = [16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024], default = 256, why = "threads that share a row; those that divide its vectors leave none idle" }
// ROWS       = { values = [1, 2, 4, 8, 16, 32], default = 1, why = "rows side by side in a block, for short rows" }
// VEC        = { values = [2, 4, 8], default = 8, why = "elements of a load and store: 8 are 16 bytes, the widest there is" }
// RESIDENT   = { values = [0, 1, 2, 3, 4, 6, 8, 16], default = 0, why = "0: one block for each ROWS rows; else so many per multiprocessor, which take one after the other" }
// MIN_BLOCKS = { values = [1, 2, 3, 4, 6, 8], default = 1, why = "blocks of a multiprocessor that registers must leave room for" }
// WEIGHT     = { values = [0, 1], default = 0, why = "0: weights are loaded when they are used; 1: before the sum, whose latency hides them" }
// LOAD       = { values = [0, 1, 2, 3], default = 2, why = "0: plain; 1: streaming; 2: not kept in the first-level cache; 3: and 256 bytes at a time into the second" }
// STORE      = { values = [0, 1, 2], default = 0, why = "0: plain; 1: streaming; 2: not kept in the first-level cache" }
// [constraints]
// whole     = "d % VEC == 0"
// registers = "ceil_div(d, THREADS * VEC) * VEC <= 64"
// busy      = "THREADS * VEC < d + 32 * VEC"
// threads   = "32 <= THREADS * ROWS <= 1024"
// small     = "ROWS == 1 or rows >= ROWS"
// room      = "THREADS * ROWS * max(MIN_BLOCKS, RESIDENT) <= device.max_threads_per_multiprocessor"
// fits      = "THREADS * ROWS * MIN_BLOCKS * (ceil_div(d, THREADS * VEC) * VEC * (2 + WEIGHT) // 2 + 40) <= device.registers_per_multiprocessor"
// walks     = "RESIDENT == 0 or RESIDENT >= MIN_BLOCKS"
// [launch]
// grid  = ["ceil_div(rows, ROWS) if RESIDENT == 0 else min(ceil_div(rows, ROWS), RESIDENT * device.multiprocessors)"]
// block = ["THREADS", "ROWS"]
// [defines]
// STEPS = "ceil_div(d, THREADS * VEC)"
// ///

// r = x + residual; residual = r; x = r / sqrt(mean(r^2) + eps) * weight, both in place, for each row of d elements; bfloat16, or
// float16 with -DFP16=1; arithmetic in float32. A row stays in registers: everything is read once and written once.

#ifndef THREADS
#define THREADS 256
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef VEC
#define VEC 8
#endif
#ifndef RESIDENT
#define RESIDENT 0
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#ifndef WEIGHT
#define WEIGHT 0
#endif
#ifndef LOAD
#define LOAD 2
#endif
#ifndef STORE
#define STORE 0
#endif
#ifndef STEPS  // vectors of a thread: enough for d <= STEPS * THREADS * VEC
#define STEPS 2
#endif
#ifndef FP16
#define FP16 0
#endif

// Elements travel as 32-bit words of two; conversions are the device's own instructions, so no header is needed.
template <int N> struct Words {
  unsigned at[N];
};

#if LOAD == 0
#define LOAD_AS "ld.global"
#elif LOAD == 1
#define LOAD_AS "ld.global.cs"
#elif LOAD == 2
#define LOAD_AS "ld.global.L1::no_allocate"
#else
#define LOAD_AS "ld.global.L1::no_allocate.L2::256B"
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

// Two elements of a word as floats, and back.
__device__ __forceinline__ float2 widen(const unsigned word) {
#if FP16
  float2 pair;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(pair.x), "=f"(pair.y) : "r"(word));
  return pair;
#else
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
#endif
}

__device__ __forceinline__ unsigned narrow(const float low, const float high) {
  unsigned word;
#if FP16
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#endif
  return word;
}

typedef Words<VEC / 2> Vector;

// The sum over the threads of one row, given to all of them. `part` has a place for each warp and is not in use.
__device__ __forceinline__ float row_sum(float own, float *part) {
#pragma unroll
  for (int reach = (THREADS < 32 ? THREADS : 32) / 2; reach > 0; reach /= 2) {
    own += __shfl_xor_sync(0xffffffffu, own, reach);
  }
#if THREADS > 32
  if (threadIdx.x % 32 == 0) {
    part[threadIdx.x / 32] = own;
  }
  __syncthreads();
  own = 0.0f;
#pragma unroll
  for (int i = 0; i < THREADS / 32; ++i) {
    own += part[i];
  }
#endif
  return own;
}

extern "C" __global__ void __launch_bounds__(THREADS * ROWS, MIN_BLOCKS)
fused_add_rmsnorm(unsigned short *x, unsigned short *residual, const unsigned short *__restrict__ weight, const int rows,
                  const int d, const float eps) {
  __shared__ float parts[2][ROWS][(THREADS + 31) / 32];
  int turn = 0;
  int first = blockIdx.x * ROWS;
#if RESIDENT > 0
#pragma unroll 1
  for (; first < rows; first += gridDim.x * ROWS, turn ^= 1)  // with two sets of parts one barrier a turn is enough
#endif
  {
    const int row = first + threadIdx.y;
    const bool is_row = ROWS == 1 || row < rows;
    unsigned short *to = x + (size_t)row * d, *rest = residual + (size_t)row * d;
    Vector own[STEPS], other[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int col = (i * THREADS + threadIdx.x) * VEC;
      if (is_row && col < d) {
        load(own[i], to + col);
        load(other[i], rest + col);
      }
    }
#if WEIGHT == 1
    Vector scales[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int col = (i * THREADS + threadIdx.x) * VEC;
      if (col < d) {
        scales[i] = *reinterpret_cast<const Vector *>(weight + col);
      }
    }
#endif
    float sums[STEPS][VEC];
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int col = (i * THREADS + threadIdx.x) * VEC;
      if (is_row && col < d) {
#pragma unroll
        for (int j = 0; j < VEC / 2; ++j) {
          const float2 a = widen(own[i].at[j]), b = widen(other[i].at[j]);
          const float low = a.x + b.x, high = a.y + b.y;
          square = fmaf(low, low, square);
          square = fmaf(high, high, square);
          sums[i][2 * j] = low;
          sums[i][2 * j + 1] = high;
          other[i].at[j] = narrow(low, high);
        }
        store(rest + col, other[i]);
      }
    }
    const float scale = rsqrtf(row_sum(square, parts[turn][threadIdx.y]) / d + eps);
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int col = (i * THREADS + threadIdx.x) * VEC;
      if (is_row && col < d) {
#if WEIGHT == 1
        const Vector factors = scales[i];
#else
        const Vector factors = *reinterpret_cast<const Vector *>(weight + col);
#endif
#pragma unroll
        for (int j = 0; j < VEC / 2; ++j) {
          const float2 factor = widen(factors.at[j]);
          own[i].at[j] = narrow(sums[i][2 * j] * scale * factor.x, sums[i][2 * j + 1] * scale * factor.y);
        }
        store(to + col, own[i]);
      }
    }
  }
}
