// /// kernelwright
// [parameters]
// BLOCK    = { values = [32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024], default = 256, why = "threads of a block" }
// LANES    = { values = [4, 8, 16, 32], default = 16, why = "threads that share a group" }
// VEC      = { values = [2, 4, 8], default = 8, why = "elements of a load: 8 are 16 bytes, the widest there is" }
// LAYOUT   = { values = [0, 1], default = 0, why = "0: a thread's elements are neighbours and its stores up to 16 bytes; 1: its vectors are LANES apart and its stores VEC bytes" }
// COUNT    = { values = [1, 2, 4, 8], default = 1, why = "groups that LANES threads take, all loaded before the first is used" }
// RESIDENT = { values = [0, 1, 2, 4, 8, 16, 32], default = 0, why = "0: as many blocks as there is work for; else so many per multiprocessor, which walk over all of it" }
// DIVIDE   = { values = [0, 1], default = 1, why = "0: each element by a division; 1: by a multiplication with the reciprocal, which is computed once" }
// LOAD     = { values = [0, 1, 2, 3], default = 2, why = "0: plain; 1: streaming; 2: not kept in the first-level cache; 3: and 256 bytes at a time into the second" }
// STORE    = { values = [0, 1, 2], default = 0, why = "0: plain; 1: streaming; 2: not kept in the first-level cache" }
// [constraints]
// shared    = "group % LANES == 0 and (group // LANES) % VEC == 0"
// stores    = "(LAYOUT == 0 and group // LANES >= 4) or (LAYOUT == 1 and VEC >= 4 and group // LANES > VEC)"
// power     = "is_power_of_two(group)"
// registers = "group // LANES * COUNT <= 64"
// indices   = "tokens * d // group * LANES <= 2147483647"
// threads   = "RESIDENT * BLOCK <= device.max_threads_per_multiprocessor"
// [launch]
// grid  = ["ceil_div(tokens * d // group * LANES, COUNT * BLOCK) if RESIDENT == 0 else min(ceil_div(tokens * d // group * LANES, COUNT * BLOCK), RESIDENT * device.multiprocessors)"]
// block = ["BLOCK"]
// [defines]
// GROUP = "group"
// ///

// For each group of GROUP neighbours in a row: s = max(|x|, 1e-10) / 448; q = e4m3(x / s). x is bfloat16, or float16 with
// -DFP16=1; q one byte an element; s float32. Rows hold whole groups, so the matrix is one long list of groups.

#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef LANES
#define LANES 16
#endif
#ifndef VEC
#define VEC 8
#endif
#ifndef LAYOUT
#define LAYOUT 0
#endif
#ifndef COUNT
#define COUNT 1
#endif
#ifndef RESIDENT
#define RESIDENT 0
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
#ifndef GROUP
#define GROUP 128
#endif
#ifndef FP16
#define FP16 0
#endif

#define OWN (GROUP / LANES)  // elements of a thread
#define LOADS (OWN / VEC)
#if LAYOUT == 0
#define WIDE (OWN < 16 ? OWN : 16)  // bytes of a store
#define FIRST(i) (lane * OWN + (i) * VEC)
#define TARGET(i) (lane * OWN + (i) * WIDE)
#else
#define WIDE VEC
#define FIRST(i) (((i) * LANES + lane) * VEC)
#define TARGET(i) FIRST(i)
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

__device__ __forceinline__ unsigned to_fp8(const float a, const float b, const float c, const float d) {
  unsigned word;  // saturating, to nearest even
  asm("{.reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;"
      " mov.b32 %0, {low, high};}"
      : "=r"(word) : "f"(a), "f"(b), "f"(c), "f"(d));
  return word;
}

__device__ __forceinline__ float scaled(const float x, const float scale) {
#if DIVIDE == 0
  return x / scale;
#else
  return x * scale;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
per_token_group_quant_fp8(unsigned char *__restrict__ q, float *__restrict__ s, const unsigned short *__restrict__ x,
                          const int tokens, const int d) {
  const int groups = (int)((size_t)tokens * d / GROUP);
  const int lane = threadIdx.x % LANES;
  int first = blockIdx.x * (COUNT * BLOCK / LANES) + threadIdx.x / LANES;
#if RESIDENT > 0
#pragma unroll 1
  // The last lap is whole warps long, because threads of a warp exchange their maxima.
  for (; first - (int)(threadIdx.x % 32) / LANES < groups; first += gridDim.x * (COUNT * BLOCK / LANES))
#endif
  {
    Words<VEC / 2> own[COUNT][LOADS];
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const int group = first + j * (BLOCK / LANES);
      if (group < groups) {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
          load(own[j][i], x + (size_t)group * GROUP + FIRST(i));
        }
      }
    }
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const int group = first + j * (BLOCK / LANES);
      float values[OWN];
      float highest = 1e-10f;
      if (group < groups) {
#pragma unroll
        for (int i = 0; i < OWN / 2; ++i) {
          const float2 pair = widen(own[j][i / (VEC / 2)].at[i % (VEC / 2)]);
          values[2 * i] = pair.x;
          values[2 * i + 1] = pair.y;
          highest = fmaxf(highest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
        }
      }
#pragma unroll
      for (int reach = LANES / 2; reach > 0; reach /= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, reach));
      }
      if (group < groups) {
        const float scale = highest / 448.0f;
        if (lane == 0) {
          s[group] = scale;
        }
#if DIVIDE == 0
        const float by = scale;
#else
        const float by = 448.0f / highest;
#endif
#pragma unroll
        for (int i = 0; i < OWN / WIDE; ++i) {
          Words<WIDE / 4> bytes;
#pragma unroll
          for (int k = 0; k < WIDE / 4; ++k) {
            const float *four = values + i * WIDE + k * 4;
            bytes.at[k] = to_fp8(scaled(four[0], by), scaled(four[1], by), scaled(four[2], by), scaled(four[3], by));
          }
          store(q + (size_t)group * GROUP + TARGET(i), bytes);
        }
      }
    }
  }
}
