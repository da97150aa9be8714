// out = silu(gate) * up, where each row of x holds gate (d numbers) and then up (d numbers): one thread an element, arithmetic
// in float32.
#include <cuda_fp16.h>

extern "C" __global__ void silu_and_mul(half *out, const half *x, const int tokens, const int d) {
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  const int token = blockIdx.y;
  if (col >= d || token >= tokens) {
    return;
  }
  const half *row = x + (size_t)token * 2 * d;
  const float gate = __half2float(row[col]);
  const float up = __half2float(row[d + col]);
  out[(size_t)token * d + col] = __float2half(gate / (1.0f + expf(-gate)) * up);
}
