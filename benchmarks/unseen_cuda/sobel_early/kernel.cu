// Edge strength of a picture; the frame is zero. Early returns, unsigned char in, float out.
__device__ static inline int px(const unsigned char *im, int w, int y, int x) { return im[y * w + x]; }

extern "C" __global__ void sobel(const unsigned char *im, float *edge, int h, int w) {
  int x = blockIdx.x * blockDim.x + threadIdx.x;
  int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= w || y >= h) return;
  if (x == 0 || y == 0 || x == w - 1 || y == h - 1) {
    edge[y * w + x] = 0.0f;
    return;
  }
  int gx = px(im, w, y - 1, x + 1) + 2 * px(im, w, y, x + 1) + px(im, w, y + 1, x + 1)
         - px(im, w, y - 1, x - 1) - 2 * px(im, w, y, x - 1) - px(im, w, y + 1, x - 1);
  int gy = px(im, w, y + 1, x - 1) + 2 * px(im, w, y + 1, x) + px(im, w, y + 1, x + 1)
         - px(im, w, y - 1, x - 1) - 2 * px(im, w, y - 1, x) - px(im, w, y - 1, x + 1);
  edge[y * w + x] = sqrtf((float)(gx * gx + gy * gy));
}
