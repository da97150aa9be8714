typedef struct { float mean; float inv; } moments_t;

static float row_mean(__global const float *row, int n) {
  float s = 0.f;
  for (int k = 0; k != n; k++) s += row[k];
  return s / (float)n;
}

static moments_t row_moments(__global const float *row, int n, float eps) {
  moments_t m;
  m.mean = row_mean(row, n);
  float v = 0.f;
  for (int k = 0; k < n; k++) {
    float d = row[k] - m.mean;
    v = mad(d, d, v);
  }
  m.inv = rsqrt(v / (float)n + eps);
  return m;
}

__kernel void layernorm(__global const float *x, __global const float *gamma, __global const float *beta, __global float *y, int rows, int n, float eps) {
  int r = get_global_id(0);
  if (r >= rows) return;
  __global const float *row = x + (size_t)r * n;
  moments_t m = row_moments(row, n, eps);
  for (int k = 0; k < n; ++k)
    y[(size_t)r * n + k] = (row[k] - m.mean) * m.inv * gamma[k] + beta[k];
}
