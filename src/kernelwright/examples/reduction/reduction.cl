// /// kernelwright
// [parameters]
// GROUPS = { values = [16, 32, 64, 128, 256, 512, 1024], default = 256, why = "partial sums, one from each group of the first kernel" }
// GROUP  = { values = [1, 4, 16, 32, 64, 128, 256], default = 64, why = "work-items of such a group" }
// VEC    = { values = [1, 2, 4, 8], default = 4, why = "numbers per load" }
// SUMS   = { values = [1, 2, 4, 8], default = 2, why = "independent vectors of sums of one work-item, to hide the latency of addition" }
// WALK   = { values = [0, 1], default = 0, why = "0: work-items read side by side; 1: each reads a stretch of its own" }
// FINISH = { values = [1, 64, 256], default = 64, why = "work-items of the second kernel" }
// [constraints]
// threads  = "max(GROUP, FINISH) <= device.max_threads_per_block"
// accuracy = "GROUPS * GROUP * VEC * SUMS * 4096 >= n"
// work     = "GROUPS * GROUP * VEC * SUMS * 4 <= n"
// shared   = "4 * max(GROUP, FINISH) <= device.shared_memory_per_block"
// finish   = "FINISH <= GROUPS"
// [scratch]
// partials = { dtype = "float32", shape = ["GROUPS"] }
// [[launch]]
// entry     = "sum_parts"
// grid      = ["GROUPS"]
// block     = ["GROUP"]
// arguments = ["x", "partials", "n"]
// [[launch]]
// entry     = "sum_partials"
// grid      = ["1"]
// block     = ["FINISH"]
// arguments = ["partials", "total"]
// ///

// The sum of n numbers in two launches: GROUPS groups leave a partial sum each, then one group adds those. Any n is right.

#ifndef GROUPS
#define GROUPS 256
#endif
#ifndef GROUP
#define GROUP 64
#endif
#ifndef VEC
#define VEC 4
#endif
#ifndef SUMS
#define SUMS 2
#endif
#ifndef WALK
#define WALK 0
#endif
#ifndef FINISH
#define FINISH 64
#endif

#define JOIN_(x, y) x##y
#define JOIN(x, y) JOIN_(x, y)
#if VEC == 1
typedef float vec_t;
#else
typedef JOIN(float, VEC) vec_t;
#endif
// A vector that may start at any float, unlike vec_t. A plain load of it, not vloadn: some compilers turn that into a call.
typedef vec_t __attribute__((aligned(4))) any_vec_t;
#define LOAD(p) (*(__global const any_vec_t *)(p))

static float sum_of_lanes(const vec_t v) {
#if VEC == 1
  return v;
#elif VEC == 2
  return v.s0 + v.s1;
#elif VEC == 4
  return (v.s0 + v.s1) + (v.s2 + v.s3);
#else
  return ((v.s0 + v.s1) + (v.s2 + v.s3)) + ((v.s4 + v.s5) + (v.s6 + v.s7));
#endif
}

// The sum of `own` over the group, given to work-item 0. `part` has one place for each work-item.
static float group_sum(__local float *part, const float own, const int size) {
  const int item = get_local_id(0);
  part[item] = own;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int reach = size / 2; reach > 0; reach /= 2) {
    if (item < reach) {
      part[item] += part[item + reach];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return part[0];
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void sum_parts(__global const float *restrict x, __global float *restrict partials, const int n) {
  const int item = get_global_id(0);
  const int vectors = n / VEC;
#if WALK == 0
  const int step = GROUPS * GROUP;
  const int last = vectors;
  int at = item;
#else
  const int stretch = (vectors + GROUPS * GROUP - 1) / (GROUPS * GROUP);
  const int step = 1;
  const int last = min((item + 1) * stretch, vectors);
  int at = item * stretch;
#endif
  vec_t sums[SUMS];
#pragma unroll
  for (int i = 0; i < SUMS; ++i) {
    sums[i] = (vec_t)(0.0f);
  }
  for (; at + (SUMS - 1) * step < last; at += SUMS * step) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
      sums[i] += LOAD(x + (at + i * step) * VEC);
    }
  }
  for (; at < last; at += step) {
    sums[0] += LOAD(x + at * VEC);
  }
#pragma unroll
  for (int i = 1; i < SUMS; ++i) {
    sums[0] += sums[i];
  }
  float own = sum_of_lanes(sums[0]);
  // What does not fill a vector: fewer than VEC numbers, so the first work-items have one each.
  for (int left = vectors * VEC + item; left < n; left += GROUPS * GROUP) {
    own += x[left];
  }
#if GROUP > 1
  __local float part[GROUP];
  own = group_sum(part, own, GROUP);
#endif
  if (get_local_id(0) == 0) {
    partials[get_group_id(0)] = own;
  }
}

__kernel __attribute__((reqd_work_group_size(FINISH, 1, 1)))
void sum_partials(__global const float *restrict partials, __global float *restrict total) {
  float own = 0.0f;
  for (int at = get_local_id(0); at < GROUPS; at += FINISH) {
    own += partials[at];
  }
#if FINISH > 1
  __local float part[FINISH];
  own = group_sum(part, own, FINISH);
#endif
  if (get_local_id(0) == 0) {
    total[0] = own;
  }
}
