// C = A B for row-major float32 matrices (A m x k, B k x n): one thread an element of C, neighbours along a row.
extern "C" __global__ void matmul(const float *a, const float *b, float *c, const int m, const int n, const int k) {
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || col >= n) {
    return;
  }
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) {
    sum += a[(size_t)row * k + i] * b[(size_t)i * n + col];
  }
  c[(size_t)row * n + col] = sum;
}
