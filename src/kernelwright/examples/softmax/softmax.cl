// /// kernelwright
// [parameters]
// LANES  = { values = [1, 2, 4, 8, 16, 32, 64, 128, 256], default = 32, why = "work-items that share a row" }
// ROWS   = { values = [1, 2, 4, 8, 16], default = 4, why = "rows of one group" }
// VEC    = { values = [1, 2, 4, 8], default = 4, why = "floats per load and store" }
// UNROLL = { values = [1, 2, 4], default = 1, why = "vectors of the inner loops that are written out" }
// METHOD = { values = [0, 1, 2], default = 0, why = "0: maximum, sum, write; 1: the sum stores its exponentials; 2: maximum and sum in one pass" }
// EXP    = { values = [0, 1, 2], default = 0, why = "0: exp; 1: native_exp, as accurate as the device has it; 2: a polynomial, within 2 ulp" }
// [constraints]
// threads = "LANES * ROWS <= min(256, device.max_threads_per_block)"
// busy    = "LANES * VEC <= cols"
// unroll  = "UNROLL == 1 or LANES * VEC * UNROLL * 2 <= cols"
// shared  = "4 * LANES * ROWS <= device.shared_memory_per_block"
// [launch]
// grid  = ["ceil_div(rows, ROWS)"]
// block = ["LANES", "ROWS"]
// ///

// Softmax of each row of a row-major rows x cols matrix. LANES work-items share a row: lane 0 takes the vectors 0, LANES,
// 2 * LANES ..., and what does not fill a vector is done one by one. Any size is right.

#ifndef LANES
#define LANES 32
#endif
#ifndef ROWS
#define ROWS 4
#endif
#ifndef VEC
#define VEC 4
#endif
#ifndef UNROLL
#define UNROLL 1
#endif
#ifndef METHOD
#define METHOD 0
#endif
#ifndef EXP
#define EXP 0
#endif

#define JOIN_(x, y) x##y
#define JOIN(x, y) JOIN_(x, y)
#if VEC == 1
typedef float vec_t;
typedef int ivec_t;
#define AS_INT as_int
#define AS_VEC as_float
#else
typedef JOIN(float, VEC) vec_t;
typedef JOIN(int, VEC) ivec_t;
#define AS_INT JOIN(as_int, VEC)
#define AS_VEC JOIN(as_float, VEC)
#endif
// A vector that may start at any float, unlike vec_t. Plain loads and stores of it, not vloadn and vstoren: some compilers
// turn those into calls.
typedef vec_t __attribute__((aligned(4))) any_vec_t;
#define LOAD(p) (*(__global const any_vec_t *)(p))
#define STORE(v, p) (*(__global any_vec_t *)(p) = (v))

// Likewise an operator instead of fmax().
#define HIGHER(a, b) ((a) > (b) ? (a) : (b))

// e^x for x <= 0: each lane of a vector.
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
  const vec_t scaled = p * AS_VEC((AS_INT(shifted) - 0x4B400000 + 127) << 23);
  return x < -87.0f ? (vec_t)(0.0f) : scaled;
#endif
}

// The same for one number, in lane 0 of a vector, so that every element is computed alike.
static float power_of(const float x) {
  const vec_t filled = power((vec_t)(x));
#if VEC == 1
  return filled;
#else
  return filled.s0;
#endif
}

static float highest_lane(const vec_t v) {
#if VEC == 1
  return v;
#elif VEC == 2
  return HIGHER(v.s0, v.s1);
#elif VEC == 4
  const float2 half_ = HIGHER(v.lo, v.hi);
  return HIGHER(half_.s0, half_.s1);
#else
  const float4 half_ = HIGHER(v.lo, v.hi);
  const float2 quarter = HIGHER(half_.lo, half_.hi);
  return HIGHER(quarter.s0, quarter.s1);
#endif
}

static float sum_of_lanes(const vec_t v) {
#if VEC == 1
  return v;
#elif VEC == 2
  return v.s0 + v.s1;
#elif VEC == 4
  const float2 half_ = v.lo + v.hi;
  return half_.s0 + half_.s1;
#else
  const float4 half_ = v.lo + v.hi;
  const float2 quarter = half_.lo + half_.hi;
  return quarter.s0 + quarter.s1;
#endif
}

#if LANES == 1
#define SHARE(value, part, lane, COMBINE)
#else
// Every work-item of a row gets COMBINE over the values of all.
#define SHARE(value, part, lane, COMBINE)                     \
  part[lane] = value;                                         \
  barrier(CLK_LOCAL_MEM_FENCE);                               \
  for (int reach = LANES / 2; reach > 0; reach /= 2) {        \
    if (lane < reach) {                                       \
      part[lane] = COMBINE(part[lane], part[lane + reach]);   \
    }                                                         \
    barrier(CLK_LOCAL_MEM_FENCE);                             \
  }                                                           \
  value = part[0];                                            \
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
#define PLUS(a, b) ((a) + (b))

__kernel __attribute__((reqd_work_group_size(LANES, ROWS, 1)))
void softmax(__global const float *restrict x, __global float *restrict y, const int rows, const int cols) {
  const int lane = get_local_id(0);
  const int wanted = get_group_id(0) * ROWS + get_local_id(1);
  // Work-items past the last row must still meet the barriers: they repeat it and write nothing.
  const bool writes = wanted < rows;
  const int row = writes ? wanted : rows - 1;
  __global const float *from = x + row * cols;
  __global float *to = y + row * cols;
  const int filled = cols / VEC * VEC;
#if LANES > 1
  __local float parts[ROWS][LANES];
  __local float *part = parts[get_local_id(1)];
#endif

#if METHOD == 2
  vec_t tops = (vec_t)(-FLT_MAX);
  vec_t totals = (vec_t)(0.0f);
#pragma unroll UNROLL
  for (int at = lane * VEC; at < filled; at += LANES * VEC) {
    const vec_t value = LOAD(from + at);
    const vec_t higher = HIGHER(value, tops);
    totals = totals * power(tops - higher) + power(value - higher);
    tops = higher;
  }
  float top = highest_lane(tops);
  float total = sum_of_lanes(totals * power(tops - top));
  for (int at = filled + lane; at < cols; at += LANES) {
    const float higher = HIGHER(from[at], top);
    total = total * power_of(top - higher) + power_of(from[at] - higher);
    top = higher;
  }
  const float own_top = top;
  SHARE(top, part, lane, HIGHER)
  total *= power_of(own_top - top);
  SHARE(total, part, lane, PLUS)
#else
  vec_t tops = (vec_t)(-FLT_MAX);
#pragma unroll UNROLL
  for (int at = lane * VEC; at < filled; at += LANES * VEC) {
    const vec_t value = LOAD(from + at);
    tops = HIGHER(value, tops);
  }
  float top = highest_lane(tops);
  for (int at = filled + lane; at < cols; at += LANES) {
    top = HIGHER(from[at], top);
  }
  SHARE(top, part, lane, HIGHER)

  vec_t totals = (vec_t)(0.0f);
#pragma unroll UNROLL
  for (int at = lane * VEC; at < filled; at += LANES * VEC) {
    const vec_t value = power(LOAD(from + at) - top);
    totals += value;
#if METHOD == 1
    if (writes) {
      STORE(value, to + at);
    }
#endif
  }
  float total = sum_of_lanes(totals);
  for (int at = filled + lane; at < cols; at += LANES) {
    const float value = power_of(from[at] - top);
    total += value;
#if METHOD == 1
    if (writes) {
      to[at] = value;
    }
#endif
  }
  SHARE(total, part, lane, PLUS)
#endif

  if (!writes) {
    return;
  }
  const float scale = 1.0f / total;
#pragma unroll UNROLL
  for (int at = lane * VEC; at < filled; at += LANES * VEC) {
#if METHOD == 1
    STORE(LOAD(to + at) * scale, to + at);
#else
    STORE(power(LOAD(from + at) - top) * scale, to + at);
#endif
  }
  for (int at = filled + lane; at < cols; at += LANES) {
#if METHOD == 1
    to[at] *= scale;
#else
    to[at] = power_of(from[at] - top) * scale;
#endif
  }
}
