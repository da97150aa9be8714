// dst = src^T for a row-major matrix of `rows` x `cols`: one work-item an element, neighbours read neighbouring memory.
__kernel void transpose(__global const float *src, __global float *dst, const int rows, const int cols) {
  const int col = get_global_id(0);
  const int row = get_global_id(1);
  if (row < rows && col < cols) {
    dst[col * rows + row] = src[row * cols + col];
  }
}
