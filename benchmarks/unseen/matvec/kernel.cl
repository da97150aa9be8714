/* y = A x, one row a work-item */
__kernel void mv(__global const float* A, __global const float* x, __global float* y, const int M, const int N)
{
    int m = get_global_id(0); if (m >= M) { return; }
    float dot_ = 0;
    for (int j = 0; j < N; j++) { dot_ += A[m*N + j] * x[j]; }
    y[m] = dot_;
}
