// Two partial attention outputs, each with the logarithm of its sum of exponentials, become one: one thread an element.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef FP16
#define FP16 1
#endif
#if FP16
typedef half number;
#else
typedef __nv_bfloat16 number;
#endif

extern "C" __global__ void merge_attn_states(number *v, float *s, const number *v_a, const float *s_a, const number *v_b,
                                             const float *s_b, const int tokens, const int heads) {
  const int pair = blockIdx.x;  // token and head
  const int d = blockDim.x;
  const float highest = fmaxf(s_a[pair], s_b[pair]);
  const float weight_a = expf(s_a[pair] - highest);
  const float weight_b = expf(s_b[pair] - highest);
  const size_t at = (size_t)pair * d + threadIdx.x;
  v[at] = (number)((weight_a * (float)v_a[at] + weight_b * (float)v_b[at]) / (weight_a + weight_b));
  if (threadIdx.x == 0) {
    s[pair] = logf(weight_a + weight_b) + highest;
  }
}
