// The sum of n floats: blocks of 256 threads add what they walk over, in a tree in shared memory; one block adds their sums.
__device__ void block_sum(float own, float *to) {
  __shared__ float part[256];
  part[threadIdx.x] = own;
  __syncthreads();
  for (int reach = 128; reach > 0; reach /= 2) {
    if (threadIdx.x < reach) {
      part[threadIdx.x] += part[threadIdx.x + reach];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *to = part[0];
  }
}

extern "C" __global__ void sum_blocks(const float *x, float *partials, const int n) {
  float own = 0.0f;
  for (int at = blockIdx.x * 256 + threadIdx.x; at < n; at += gridDim.x * 256) {
    own += x[at];
  }
  block_sum(own, partials + blockIdx.x);
}

extern "C" __global__ void sum_partials(const float *partials, float *total) {
  float own = 0.0f;
  for (int at = threadIdx.x; at < 1024; at += 256) {
    own += partials[at];
  }
  block_sum(own, total);
}
