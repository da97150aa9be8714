// For each group of neighbours in a row: s = max(|x|, 1e-10) / 448; q = e4m3(x / s): a block a group, one thread an element.
#include <cuda_fp8.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef FP16
#define FP16 0
#endif
#if FP16
typedef half number;
#else
typedef __nv_bfloat16 number;
#endif

extern "C" __global__ void per_token_group_quant_fp8(__nv_fp8_e4m3 *q, float *s, const number *x, const int tokens, const int d) {
  extern __shared__ float part[];
  const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  const float value = (float)x[at];
  part[threadIdx.x] = fabsf(value);
  __syncthreads();
  for (int reach = blockDim.x / 2; reach > 0; reach /= 2) {
    if (threadIdx.x < reach) {
      part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + reach]);
    }
    __syncthreads();
  }
  const float scale = fmaxf(part[0], 1e-10f) / 448.0f;
  q[at] = __nv_fp8_e4m3(fminf(fmaxf(value / scale, -448.0f), 448.0f));
  if (threadIdx.x == 0) {
    s[blockIdx.x] = scale;
  }
}
