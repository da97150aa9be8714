// One explicit step of the heat equation on a height x width grid whose border keeps its values: one work-item a point.
// Four launches, from one grid to the next, make four steps.
__kernel void heat_step(__global const float *now, __global float *later, const int width, const int height, const float rate) {
  const int x = get_global_id(0);
  const int y = get_global_id(1);
  if (x >= width || y >= height) {
    return;
  }
  const int at = y * width + x;
  if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
    later[at] = now[at];
  } else {
    later[at] = now[at] + rate * (now[at - 1] + now[at + 1] + now[at - width] + now[at + width] - 4.0f * now[at]);
  }
}
