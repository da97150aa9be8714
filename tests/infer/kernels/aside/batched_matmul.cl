// C[b] = A[b] * B[b] for many small matrices.
__kernel void bmm(__global const float* A, __global const float* B, __global float* C,
                  const int M, const int N, const int K, const int batch)
{
    const int col = get_global_id(0), row = get_global_id(1), b = get_global_id(2);
    if (row >= M || col >= N || b >= batch) return;
    float acc = 0.0f;
    for (int k = 0; k < K; k++)
        acc = fma(A[(b * M + row) * K + k], B[(b * K + k) * N + col], acc);
    C[(b * M + row) * N + col] = acc;
}
