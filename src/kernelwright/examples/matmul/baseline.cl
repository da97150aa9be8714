// C = A * B, row-major float32: one work-item an element.
__kernel void matmul(__global const float *a, __global const float *b, __global float *c,
                     const int m, const int n, const int k) {
  const int col = get_global_id(0);
  const int row = get_global_id(1);
  if (row >= m || col >= n) {
    return;
  }
  float sum = 0.0f;
  for (int p = 0; p < k; ++p) {
    sum += a[row * k + p] * b[p * n + col];
  }
  c[row * n + col] = sum;
}
