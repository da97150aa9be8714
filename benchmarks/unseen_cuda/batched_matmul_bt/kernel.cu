// C[b] = A[b] B[b]^T, three-dimensional grid, early return.
extern "C" __global__ void bmm_nt(const float *A, const float *B, float *C, int M, int N, int K) {
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  const long batch = blockIdx.z;
  if (row >= M || col >= N) return;
  A += batch * M * K;
  B += batch * N * K;
  C += batch * M * N;
  float acc = 0.f;
  for (int k = 0; k < K; k++) acc = fmaf(A[row * K + k], B[col * K + k], acc);
  C[row * N + col] = acc;
}
