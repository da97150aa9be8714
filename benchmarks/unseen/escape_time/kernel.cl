#pragma OPENCL FP_CONTRACT OFF
// How many steps z -> z*z + c stays within radius 2; a loop that breaks, nothing to read.
__kernel void escape(__global int *steps, int width, int height, int most) {
  const int px = get_global_id(0), py = get_global_id(1);
  if (px >= width || py >= height) return;
  const float cr = -2.0f + 3.0f * (float)px / (float)width, ci = -1.5f + 3.0f * (float)py / (float)height;
  float zr = 0.0f, zi = 0.0f;
  int k = 0;
  for (;;) {
    if (k >= most) break;
    const float r2 = zr * zr, i2 = zi * zi;
    if (r2 + i2 > 4.0f) break;
    zi = 2.0f * zr * zi + ci;
    zr = r2 - i2 + cr;
    ++k;
  }
  steps[py * width + px] = k;
}
