// /// kernelwright
// [parameters]
// BLOCK  = { values = [64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024], default = 256, why = "threads of a block, side by side in a row" }
// VEC    = { values = [1, 2, 4, 8], default = 8, why = "numbers per load and store: 8 are 16 bytes, the widest there is" }
// COUNT  = { values = [1, 2, 4, 8], default = 1, why = "vectors that one thread takes, a block apart: all are loaded before the first is used" }
// ROWS   = { values = [1, 2, 4, 8], default = 1, why = "tokens that one block takes, one after the other" }
// EXP    = { values = [0, 1], default = 0, why = "0: expf; 1: __expf, within 2 ulp near 0 and exact enough for float16 everywhere" }
// DIVIDE = { values = [0, 1], default = 0, why = "0: a correctly rounded division; 1: __fdividef" }
// LOAD   = { values = [0, 1, 2], default = 0, why = "0: plain; 1: read-only and streaming (__ldcs); 2: past the first-level cache (__ldcg)" }
// STORE  = { values = [0, 1], default = 0, why = "0: plain; 1: streaming (__stcs)" }
// [constraints]
// registers = "VEC * COUNT <= 32"
// useful    = "BLOCK * VEC * (COUNT - 1) < d"
// small     = "ROWS == 1 or tokens >= ROWS"
// [launch]
// grid  = ["ceil_div(d, BLOCK * VEC * COUNT)", "ceil_div(tokens, ROWS)"]
// block = ["BLOCK"]
// ///

// out = silu(gate) * up, where each row of x holds gate (d numbers) and then up (d numbers), stored as float16; arithmetic is
// float32. Any d is right: rows whose vectors would not be aligned are done number by number.

#include <cuda_fp16.h>

#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef VEC
#define VEC 8
#endif
#ifndef COUNT
#define COUNT 1
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef EXP
#define EXP 0
#endif
#ifndef DIVIDE
#define DIVIDE 0
#endif
#ifndef LOAD
#define LOAD 0
#endif
#ifndef STORE
#define STORE 0
#endif

template <int N> struct Packed;
template <> struct Packed<1> { typedef unsigned short type; };
template <> struct Packed<2> { typedef unsigned int type; };
template <> struct Packed<4> { typedef uint2 type; };
template <> struct Packed<8> { typedef uint4 type; };

union Vector {
  typename Packed<VEC>::type packed;
  half lane[VEC];
  __device__ Vector() {}
};

__device__ __forceinline__ Vector load(const half *from) {
  const auto *at = reinterpret_cast<const typename Packed<VEC>::type *>(from);
  Vector vector;
#if LOAD == 0
  vector.packed = *at;
#elif LOAD == 1
  vector.packed = __ldcs(at);
#else
  vector.packed = __ldcg(at);
#endif
  return vector;
}

__device__ __forceinline__ void store(half *to, const Vector &vector) {
  auto *at = reinterpret_cast<typename Packed<VEC>::type *>(to);
#if STORE == 0
  *at = vector.packed;
#else
  __stcs(at, vector.packed);
#endif
}

__device__ __forceinline__ half activate(const half gate_half, const half up_half) {
  const float gate = __half2float(gate_half);
  const float up = __half2float(up_half);
#if EXP == 0
  const float scale = 1.0f + expf(-gate);
#else
  const float scale = 1.0f + __expf(-gate);
#endif
#if DIVIDE == 0
  return __float2half(gate / scale * up);
#else
  // __fdividef gives 0 for divisors from 2^126 on, where the true quotient rounds to 0 as well.
  return __float2half(__fdividef(gate, scale) * up);
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
silu_and_mul(half *__restrict__ out, const half *__restrict__ x, const int tokens, const int d) {
  const int first = (blockIdx.x * COUNT * BLOCK + threadIdx.x) * VEC;
#pragma unroll 1
  for (int i = 0; i < ROWS; ++i) {
    const int token = blockIdx.y * ROWS + i;
    if (token >= tokens) {
      return;
    }
    const half *gate = x + (size_t)token * 2 * d;
    const half *up = gate + d;
    half *to = out + (size_t)token * d;
    if (d % VEC == 0) {
      Vector gates[COUNT], ups[COUNT];
#pragma unroll
      for (int j = 0; j < COUNT; ++j) {
        const int col = first + j * BLOCK * VEC;
        if (col < d) {
          gates[j] = load(gate + col);
          ups[j] = load(up + col);
        }
      }
#pragma unroll
      for (int j = 0; j < COUNT; ++j) {
        const int col = first + j * BLOCK * VEC;
        if (col < d) {
#pragma unroll
          for (int lane = 0; lane < VEC; ++lane) {
            gates[j].lane[lane] = activate(gates[j].lane[lane], ups[j].lane[lane]);
          }
          store(to + col, gates[j]);
        }
      }
    } else {
      for (int j = 0; j < COUNT; ++j) {
        for (int lane = 0; lane < VEC; ++lane) {
          const int col = first + j * BLOCK * VEC + lane;
          if (col < d) {
            to[col] = activate(gate[col], up[col]);
          }
        }
      }
    }
  }
}
