// out = softmax of each row of d elements: one block of 256 threads a row; a pass for the maximum, one for the sum, one to write.
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

__device__ float block_reduced(float own, const bool is_sum) {
  __shared__ float part[256];
  part[threadIdx.x] = own;
  __syncthreads();
  for (int reach = 128; reach > 0; reach /= 2) {
    if (threadIdx.x < reach) {
      const float other = part[threadIdx.x + reach];
      part[threadIdx.x] = is_sum ? part[threadIdx.x] + other : fmaxf(part[threadIdx.x], other);
    }
    __syncthreads();
  }
  const float total = part[0];
  __syncthreads();
  return total;
}

extern "C" __global__ void softmax(number *out, const number *x, const int rows, const int d) {
  const number *row = x + (size_t)blockIdx.x * d;
  float highest = -3.4e38f;
  for (int col = threadIdx.x; col < d; col += 256) {
    highest = fmaxf(highest, (float)row[col]);
  }
  highest = block_reduced(highest, false);
  float sum = 0.0f;
  for (int col = threadIdx.x; col < d; col += 256) {
    sum += expf((float)row[col] - highest);
  }
  sum = block_reduced(sum, true);
  for (int col = threadIdx.x; col < d; col += 256) {
    out[(size_t)blockIdx.x * d + col] = (number)(expf((float)row[col] - highest) / sum);
  }
}
