// r = x + residual; residual = r; x = r / sqrt(mean(r^2) + eps) * weight, in place, for each row of d elements: one block of 256
// threads a row, the row's sums in shared memory.
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

extern "C" __global__ void fused_add_rmsnorm(number *x, number *residual, const number *weight, const int rows, const int d,
                                             const float eps) {
  extern __shared__ float sums[];
  number *row = x + (size_t)blockIdx.x * d;
  number *rest = residual + (size_t)blockIdx.x * d;
  float square = 0.0f;
  for (int col = threadIdx.x; col < d; col += 256) {
    const float sum = (float)row[col] + (float)rest[col];
    rest[col] = (number)sum;
    sums[col] = sum;
    square += sum * sum;
  }
  const float scale = rsqrtf(block_sum(square) / d + eps);
  for (int col = threadIdx.x; col < d; col += 256) {
    row[col] = (number)(sums[col] * scale * (float)weight[col]);
  }
}
