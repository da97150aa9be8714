// /// kernelwright
// [parameters]
// GROUP  = { values = [1, 4, 16, 32, 64, 128, 256], default = 64, why = "work-items of a group, side by side in a row" }
// VEC    = { values = [1, 2, 4, 8], default = 4, why = "numbers per load and store" }
// COUNT  = { values = [1, 2, 4, 8, 16], default = 1, why = "vectors that one work-item takes, a group apart" }
// ROWS   = { values = [1, 2, 4, 8], default = 1, why = "tokens that one group takes" }
// EXP    = { values = [0, 1, 2], default = 0, why = "0: exp; 1: native_exp, as accurate as the device has it; 2: a polynomial, within 2 ulp of float32" }
// DIVIDE = { values = [0, 1], default = 0, why = "0: a correctly rounded division; 1: native_divide" }
// [constraints]
// threads = "GROUP <= device.max_threads_per_block"
// useful  = "GROUP * VEC * COUNT <= d"
// work    = "VEC * COUNT * ROWS <= 256"
// grain   = "GROUP * COUNT * ROWS >= 16"
// [launch]
// grid  = ["ceil_div(d, GROUP * VEC * COUNT)", "ceil_div(tokens, ROWS)"]
// block = ["GROUP", "1"]
// ///

// out = silu(gate) * up, where each row of x holds gate (d numbers) and then up (d numbers), stored as float16. Arithmetic is
// float32, so no device needs half arithmetic. Any d is right: what does not fill a vector is done one by one.

#ifndef GROUP
#define GROUP 64
#endif
#ifndef VEC
#define VEC 4
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

#if VEC == 1
typedef float vec_t;
typedef uint uvec_t;
#define AS_VEC as_float
#define AS_UINT as_uint
#define VLOAD_HALF vload_half
#define VSTORE_HALF vstore_half_rte
#elif VEC == 2
typedef float2 vec_t;
typedef uint2 uvec_t;
#define AS_VEC as_float2
#define AS_UINT as_uint2
#define VLOAD_HALF vload_half2
#define VSTORE_HALF vstore_half2_rte
#elif VEC == 4
typedef float4 vec_t;
typedef uint4 uvec_t;
#define AS_VEC as_float4
#define AS_UINT as_uint4
#define VLOAD_HALF vload_half4
#define VSTORE_HALF vstore_half4_rte
#elif VEC == 8
typedef float8 vec_t;
typedef uint8 uvec_t;
#define AS_VEC as_float8
#define AS_UINT as_uint8
#define VLOAD_HALF vload_half8
#define VSTORE_HALF vstore_half8_rte
#endif

// e^x for each lane.
static vec_t power(const vec_t x) {
#if EXP == 0
  return exp(x);
#elif EXP == 1
  return native_exp(x);
#else
  // e^x = 2^n * e^r with n the integer nearest to x / ln 2. Adding 1.5 * 2^23 leaves n in the low bits; ln 2 comes in two parts,
  // so that r is exact. The polynomial is the minimax one of Cephes' expf.
  const vec_t shifted = x * 1.44269504f + 12582912.0f;
  const vec_t n = shifted - 12582912.0f;
  const vec_t r = x - n * 0.693359375f + n * 2.12194440e-4f;
  vec_t p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const vec_t scaled = p * AS_VEC((AS_UINT(shifted) - 0x4B400000u + 127u) << 23);
  const vec_t bounded = x > 88.0f ? (vec_t)(INFINITY) : scaled;
  return x < -87.0f ? (vec_t)(0.0f) : bounded;
#endif
}

static vec_t activate(const vec_t gate, const vec_t up) {
#if DIVIDE == 0
  return gate / (1.0f + power(-gate)) * up;
#else
  return native_divide(gate, 1.0f + power(-gate)) * up;
#endif
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void silu_and_mul(__global half *restrict out, __global const half *restrict x, const int tokens, const int d) {
  const int first = (get_group_id(0) * COUNT * GROUP + get_local_id(0)) * VEC;
  for (int i = 0; i < ROWS; ++i) {
    const int token = get_group_id(1) * ROWS + i;
    if (token >= tokens) {
      return;
    }
    for (int j = 0; j < COUNT; ++j) {
      const int col = first + j * GROUP * VEC;
      __global const half *gate = x + token * 2 * d + col;
      __global half *to = out + token * d + col;
      if (col + VEC <= d) {
        VSTORE_HALF(activate(VLOAD_HALF(0, gate), VLOAD_HALF(0, gate + d)), 0, to);
      } else {
        for (int lane = 0; col + lane < d; ++lane) {
          const float g = vload_half(lane, gate);
          const float u = vload_half(lane, gate + d);
          vstore_half_rte(g / (1.0f + exp(-g)) * u, lane, to);
        }
      }
    }
  }
}
