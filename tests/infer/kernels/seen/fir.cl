// y[i] = sum of taps[k] * x[i + k]: only where the window is whole.
__kernel void fir(__global const float* x, __constant float* taps, __global float* y, int n, int taps_count) {
  size_t i = get_global_id(0);
  if (i + taps_count > n) return;
  float acc = 0;
  for (int k = 0; k < taps_count; k++) acc += x[i + k] * taps[k];
  y[i] = acc;
}
