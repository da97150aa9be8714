// Counts bytes: a local histogram of each group, added to the global one at the end.
#define BINS 256

__kernel void histogram256(__global const uchar *data, __global uint *hist, uint n)
{
    __local uint mine[BINS];
    uint lid = get_local_id(0);
    for (uint b = lid; b < BINS; b += get_local_size(0))
        mine[b] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);

    for (uint i = get_global_id(0); i < n; i += get_global_size(0))
        atomic_inc(&mine[data[i]]);
    barrier(CLK_LOCAL_MEM_FENCE);

    for (uint b = lid; b < BINS; b += get_local_size(0))
        atomic_add(&hist[b], mine[b]);
}
