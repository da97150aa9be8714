#include <hip/hip_runtime.h>

// Rotary position embedding of q [tokens, heads, dim], in place; the tables have dim / 2 columns.
__global__ void rope_inplace(float* q, const float* cos_table, const float* sin_table, const int* positions,
                             int tokens, int heads, int dim)
{
    int half_dim = dim / 2;
    int total = tokens * heads * half_dim;
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int d = idx % half_dim;
    int h = (idx / half_dim) % heads;
    int t = idx / (half_dim * heads);
    int p = positions[t];
    float c = cos_table[p * half_dim + d];
    float s = sin_table[p * half_dim + d];
    float* base = q + ((size_t)t * heads + h) * dim;
    float a = base[d];
    float b = base[d + half_dim];
    base[d] = a * c - b * s;
    base[d + half_dim] = b * c + a * s;
}
