// out = silu(gate) * up, where each row of x holds gate (d elements) and then up (d elements): one thread an element, arithmetic
// in float32.
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

extern "C" __global__ void silu_and_mul(number *out, const number *x, const int tokens, const int d) {
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  const int token = blockIdx.y;
  if (col >= d || token >= tokens) {
    return;
  }
  const number *row = x + (size_t)token * 2 * d;
  const float gate = (float)row[col];
  const float up = (float)row[d + col];
  out[(size_t)token * d + col] = (number)(gate / (1.0f + expf(-gate)) * up);
}
