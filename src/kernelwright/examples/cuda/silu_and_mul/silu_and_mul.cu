// /// kernelwright
// [parameters]
// BLOCK    = { values = [32, 64, 96, 128, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024], default = 256, why = "threads of a block" }
// VEC      = { values = [2, 4, 8], default = 8, why = "elements of a load and store: 8 are 16 bytes, the widest there is; fewer spread short rows over more blocks" }
// COUNT    = { values = [1, 2, 4, 8], default = 1, why = "vectors that one thread takes, a block apart: all are loaded before the first is used" }
// RESIDENT = { values = [0, 1, 2, 4, 8, 16, 32], default = 0, why = "0: as many blocks as there is work for; else so many per multiprocessor, which walk over all of it" }
// EXP      = { values = [0, 1], default = 1, why = "0: expf; 1: __expf, within 2 ulp near 0 and exact enough for 16 bits everywhere" }
// DIVIDE   = { values = [0, 1], default = 1, why = "0: a correctly rounded division; 1: __fdividef" }
// LOAD     = { values = [0, 1, 2, 3], default = 2, why = "0: plain; 1: streaming; 2: not kept in the first-level cache; 3: and 256 bytes at a time into the second" }
// STORE    = { values = [0, 1, 2], default = 0, why = "0: plain; 1: streaming; 2: not kept in the first-level cache" }
// [constraints]
// registers = "VEC * COUNT <= 32"
// whole     = "d % VEC == 0"
// indices   = "2 * tokens * d <= 4294967295 * VEC"
// threads   = "RESIDENT * BLOCK <= device.max_threads_per_multiprocessor"
// [launch]
// grid  = ["ceil_div(tokens * d, VEC * COUNT * BLOCK) if RESIDENT == 0 else min(ceil_div(tokens * d, VEC * COUNT * BLOCK), RESIDENT * device.multiprocessors)"]
// block = ["BLOCK"]
// ///

// out = silu(gate) * up, where each row of x holds gate (d elements) and then up (d elements); bfloat16, or float16 with
// -DFP16=1; arithmetic in float32. The output is one long list of vectors: no thread is idle at the end of a row, whatever d is.

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
#ifndef DIVIDE
#define DIVIDE 1
#endif
#ifndef LOAD
#define LOAD 2
#endif
#ifndef STORE
#define STORE 0
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

__device__ __forceinline__ float activate(const float gate, const float up) {
#if EXP == 0
  const float scale = 1.0f + expf(-gate);
#else
  const float scale = 1.0f + __expf(-gate);
#endif
#if DIVIDE == 0
  return gate / scale * up;
#else
  // __fdividef gives 0 for divisors from 2^126 on, where the true quotient rounds to 0 as well.
  return __fdividef(gate, scale) * up;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
silu_and_mul(unsigned short *__restrict__ out, const unsigned short *__restrict__ x, const int tokens, const int d) {
  const unsigned row_vectors = (unsigned)d / VEC;
  const unsigned vectors = (unsigned)tokens * row_vectors;
  unsigned first = blockIdx.x * (COUNT * BLOCK) + threadIdx.x;
#if RESIDENT > 0
#pragma unroll 1
  for (; first < vectors; first += gridDim.x * (COUNT * BLOCK))
#endif
  {
    Words<VEC / 2> gates[COUNT], ups[COUNT];
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const unsigned at = first + j * BLOCK;
      if (at < vectors) {
        const unsigned short *gate = x + (size_t)(at + at / row_vectors * row_vectors) * VEC;
        load(gates[j], gate);
        load(ups[j], gate + d);
      }
    }
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const unsigned at = first + j * BLOCK;
      if (at < vectors) {
#pragma unroll
        for (int i = 0; i < VEC / 2; ++i) {
          const float2 gate = widen(gates[j].at[i]), up = widen(ups[j].at[i]);
          gates[j].at[i] = narrow(activate(gate.x, up.x), activate(gate.y, up.y));
        }
        store(out + (size_t)at * VEC, gates[j]);
      }
    }
  }
}
