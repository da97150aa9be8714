__kernel void colsum(const __global float *m, __global float *sums, const uint rows, const uint cols)
{
    const uint col = get_group_id(0) * get_local_size(0) + get_local_id(0);
    if (col < cols)
    {
        float acc = 0;
        uint at = col;
        for (uint row = 0; row < rows; row++, at += cols)
            acc += m[at];
        sums[col] = acc;
    }
}
