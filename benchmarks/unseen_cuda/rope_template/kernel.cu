// Rotary position embedding, halves rotated against each other, in place.
template <typename T, int HALF>
__device__ __forceinline__ void rotate(T *head, int lane, float c, float s) {
  const T a = head[lane], b = head[lane + HALF];
  head[lane] = a * c - b * s;
  head[lane + HALF] = b * c + a * s;
}

template <typename T, int HALF>
__global__ void rope(T *q, const float *cosines, const float *sines, int tokens, int heads) {
  const int token = blockIdx.x;
  if (token >= tokens) return;
  for (int i = threadIdx.x; i < heads * HALF; i += blockDim.x) {
    const int head = i / HALF, lane = i % HALF;
    rotate<T, HALF>(q + ((long)token * heads + head) * 2 * HALF, lane, cosines[token * HALF + lane], sines[token * HALF + lane]);
  }
}
