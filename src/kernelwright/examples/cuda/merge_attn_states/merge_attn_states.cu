// /// kernelwright
// [parameters]
// BLOCK    = { values = [32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024], default = 256, why = "threads of a block" }
// VEC      = { values = [2, 4, 8], default = 8, why = "elements of a load and store: 8 are 16 bytes, the widest there is" }
// COUNT    = { values = [1, 2, 4, 8], default = 1, why = "vectors that one thread takes, a block apart: all are loaded before the first is used" }
// RESIDENT = { values = [0, 1, 2, 4, 8, 16, 32], default = 0, why = "0: as many blocks as there is work for; else so many per multiprocessor, which walk over all of it" }
// EXP      = { values = [0, 1], default = 1, why = "0: expf; 1: __expf: weights are at most 1, so its absolute error is far below 16 bits" }
// LOAD     = { values = [0, 1, 2, 3], default = 2, why = "0: plain; 1: streaming; 2: not kept in the first-level cache; 3: and 256 bytes at a time into the second" }
// STORE    = { values = [0, 1, 2], default = 0, why = "0: plain; 1: streaming; 2: not kept in the first-level cache" }
// [constraints]
// registers = "VEC * COUNT <= 32"
// whole     = "d % VEC == 0"
// indices   = "tokens * heads * d <= 4294967295 * VEC"
// threads   = "RESIDENT * BLOCK <= device.max_threads_per_multiprocessor"
// [launch]
// grid  = ["ceil_div(tokens * heads * d, VEC * COUNT * BLOCK) if RESIDENT == 0 else min(ceil_div(tokens * heads * d, VEC * COUNT * BLOCK), RESIDENT * device.multiprocessors)"]
// block = ["BLOCK"]
// [defines]
// LANES = "d // VEC"
// ///

// Two partial attention outputs, each with the logarithm of its sum of exponentials, become one:
//   m = max(s_a, s_b); w_a = exp(s_a - m); w_b = exp(s_b - m); v = (w_a v_a + w_b v_b) / (w_a + w_b); s = log(w_a + w_b) + m
// float16, or bfloat16 with -DFP16=0; arithmetic in float32. The output is one long list of vectors, LANES of them to a head.

#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef VEC
#define VEC 8
#endif
#ifndef COUNT
#define COUNT 1
#endif
#ifndef RESIDENT
#define RESIDENT 0
#endif
#ifndef EXP
#define EXP 1
#endif
#ifndef LOAD
#define LOAD 2
#endif
#ifndef STORE
#define STORE 0
#endif
#ifndef LANES
#define LANES (256 / VEC)
#endif
#ifndef FP16
#define FP16 1
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

__device__ __forceinline__ float exponential(const float x) {
#if EXP == 0
  return expf(x);
#else
  return __expf(x);
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
merge_attn_states(unsigned short *__restrict__ v, float *__restrict__ s, const unsigned short *__restrict__ v_a,
                  const float *__restrict__ s_a, const unsigned short *__restrict__ v_b, const float *__restrict__ s_b,
                  const int tokens, const int heads) {
  const unsigned vectors = (unsigned)tokens * heads * LANES;
  unsigned first = blockIdx.x * (COUNT * BLOCK) + threadIdx.x;
#if RESIDENT > 0
#pragma unroll 1
  for (; first < vectors; first += gridDim.x * (COUNT * BLOCK))
#endif
  {
    Vector a[COUNT], b[COUNT];
    float of_a[COUNT], of_b[COUNT];
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const unsigned at = first + j * BLOCK;
      if (at < vectors) {
        load(a[j], v_a + (size_t)at * VEC);
        load(b[j], v_b + (size_t)at * VEC);
        of_a[j] = __ldg(s_a + at / LANES);
        of_b[j] = __ldg(s_b + at / LANES);
      }
    }
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const unsigned at = first + j * BLOCK;
      if (at < vectors) {
        const float highest = fmaxf(of_a[j], of_b[j]);
        float weight_a = exponential(of_a[j] - highest), weight_b = exponential(of_b[j] - highest);
        const float sum = weight_a + weight_b;
        if (at % LANES == 0) {
          s[at / LANES] = logf(sum) + highest;
        }
        const float share = 1.0f / sum;
        weight_a *= share;
        weight_b *= share;
#pragma unroll
        for (int i = 0; i < VEC / 2; ++i) {
          const float2 p = widen(a[j].at[i]), q = widen(b[j].at[i]);
          a[j].at[i] = narrow(fmaf(weight_a, p.x, weight_b * q.x), fmaf(weight_a, p.y, weight_b * q.y));
        }
        store(v + (size_t)at * VEC, a[j]);
      }
    }
  }
}
