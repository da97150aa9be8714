// One explicit step of the heat equation on a height x width grid whose border keeps its values: one thread a point.
extern "C" __global__ void heat_step(const float *now, float *later, const int width, const int height, const float rate) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) {
    return;
  }
  const size_t at = (size_t)y * width + x;
  if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
    later[at] = now[at];
  } else {
    later[at] = now[at] + rate * (now[at - 1] + now[at + 1] + now[at - width] + now[at + width] - 4.0f * now[at]);
  }
}
