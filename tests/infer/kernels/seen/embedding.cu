// out[t] = table[ids[t]], a block of threads per token.
extern "C" __global__ void embedding(const float *__restrict__ table, const int *__restrict__ ids,
                                     float *__restrict__ out, int tokens, int vocabulary, int dim)
{
    int t = blockIdx.x;
    if (t >= tokens) return;
    int id = ids[t];
    if (id < 0 || id >= vocabulary) return;
    for (int d = threadIdx.x; d < dim; d += blockDim.x)
        out[t * dim + d] = table[id * dim + d];
}
