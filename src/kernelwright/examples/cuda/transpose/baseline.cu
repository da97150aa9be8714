// dst = src^T for a row-major matrix of `rows` x `cols`: one thread an element, neighbours read neighbouring memory.
extern "C" __global__ void transpose(const float *src, float *dst, const int rows, const int cols) {
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row < rows && col < cols) {
    dst[(size_t)col * rows + row] = src[(size_t)row * cols + col];
  }
}
