__kernel void argmax_rows(__global const float *scores, __global int *best, const int rows, const int cols)
{
    const int r = get_global_id(0);
    if (r < rows) {
        int at = 0;
        float top = scores[(long)r * cols];
        for (int c = 1; c < cols; ++c) {
            const float v = scores[(long)r * cols + c];
            if (v > top) { top = v; at = c; }
        }
        best[r] = at;
    }
}
