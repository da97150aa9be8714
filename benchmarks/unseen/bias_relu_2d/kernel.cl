// y = max(x + bias, 0), one work-item an element, in two dimensions.
__kernel void bias_relu(__global const float *x, __global const float *bias, __global float *y, const int h, const int w) {
  const size_t c = get_global_id(1), r = get_global_id(0);
  if (r >= (size_t)h) return;
  if (c >= (size_t)w) return;
  float v = x[r * w + c];
  v += bias[c];
  if (v < 0.0f) v = 0.0f;
  y[r * w + c] = v;
}
