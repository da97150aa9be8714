#define WG 64

// y = A x: a work-group of 64 adds up each row in local memory.
__kernel void matvec(__global const float *A, __global const float *x, __global float *y, const uint rows,
                     const uint cols, const uint lda)
{
    __local float part[WG];
    uint row = get_group_id(0), lid = get_local_id(0);
    float s = 0.f;
    for (uint c = lid; c < cols; c += WG) s += A[row * lda + c] * x[c];
    part[lid] = s;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint k = WG / 2; k > 0; k /= 2) {
        if (lid < k) part[lid] += part[lid + k];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lid == 0 && row < rows) y[row] = part[0];
}
