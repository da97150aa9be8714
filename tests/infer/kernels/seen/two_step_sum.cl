// A sum in two steps: partial sums of groups, then the sum of those.
__kernel void partial_sums(__global const float *in, __global float *out, __local float *scratch, uint n)
{
    uint i = get_global_id(0), l = get_local_id(0);
    scratch[l] = (i < n) ? in[i] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint s = get_local_size(0) / 2; s > 0; s >>= 1) {
        if (l < s) scratch[l] += scratch[l + s];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (l == 0) out[get_group_id(0)] = scratch[0];
}

__kernel void total(__global const float *partials, __global float *sum, uint count)
{
    float s = 0.0f;
    for (uint i = 0; i < count; ++i) s += partials[i];
    if (get_global_id(0) == 0) sum[0] = s;
}
