// Softmax of each row of a row-major rows x cols matrix: one work-item a row, in three passes.
__kernel void softmax(__global const float *x, __global float *y, const int rows, const int cols) {
  const int row = get_global_id(0);
  if (row >= rows) {
    return;
  }
  float highest = x[row * cols];
  for (int col = 1; col < cols; ++col) {
    highest = fmax(highest, x[row * cols + col]);
  }
  float total = 0.0f;
  for (int col = 0; col < cols; ++col) {
    total += exp(x[row * cols + col] - highest);
  }
  for (int col = 0; col < cols; ++col) {
    y[row * cols + col] = exp(x[row * cols + col] - highest) / total;
  }
}
