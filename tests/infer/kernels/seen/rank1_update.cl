// A += alpha * x * y^T, A has a leading dimension.
__kernel void rank1_update(const int m, const int n, const float alpha, __global const float *x,
                           __global const float *y, __global float *A, const int lda)
{
    const int j = get_global_id(0);
    const int i = get_global_id(1);
    if (i < m && j < n) A[i * lda + j] += alpha * x[i] * y[j];
}
