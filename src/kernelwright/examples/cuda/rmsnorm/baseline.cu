// out = x / sqrt(mean(x^2) + eps) * weight for each row of d elements: one block of 256 threads a row, two passes over it.
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

// The sum of `own` over a block of 256 threads.
__device__ float block_sum(float own) {
  __shared__ float part[256];
  part[threadIdx.x] = own;
  __syncthreads();
  for (int reach = 128; reach > 0; reach /= 2) {
    if (threadIdx.x < reach) {
      part[threadIdx.x] += part[threadIdx.x + reach];
    }
    __syncthreads();
  }
  const float total = part[0];
  __syncthreads();
  return total;
}

extern "C" __global__ void rmsnorm(number *out, const number *x, const number *weight, const int rows, const int d, const float eps) {
  const number *row = x + (size_t)blockIdx.x * d;
  float square = 0.0f;
  for (int col = threadIdx.x; col < d; col += 256) {
    const float value = (float)row[col];
    square += value * value;
  }
  const float scale = rsqrtf(block_sum(square) / d + eps);
  for (int col = threadIdx.x; col < d; col += 256) {
    out[(size_t)blockIdx.x * d + col] = (number)((float)row[col] * scale * (float)weight[col]);
  }
}
