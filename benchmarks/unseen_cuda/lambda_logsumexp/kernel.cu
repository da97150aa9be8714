// log(sum(exp(row))) for each row; a block a row, reductions through a lambda.
namespace detail {
template <class F>
__device__ float across_block(float own, float *room, F combine) {
  room[threadIdx.x] = own;
  __syncthreads();
  for (unsigned half = blockDim.x >> 1; half != 0; half >>= 1) {
    if (threadIdx.x < half) room[threadIdx.x] = combine(room[threadIdx.x], room[threadIdx.x + half]);
    __syncthreads();
  }
  const float all = room[0];
  __syncthreads();
  return all;
}
}  // namespace detail

extern "C" __global__ void logsumexp(float *out, const float *x, int rows, int cols) {
  __shared__ float room[128];
  const float *row = x + (size_t)blockIdx.x * cols;
  float peak = -INFINITY;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) peak = fmaxf(peak, row[c]);
  peak = detail::across_block(peak, room, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0.0f;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += expf(row[c] - peak);
  sum = detail::across_block(sum, room, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) out[blockIdx.x] = peak + logf(sum);
}
