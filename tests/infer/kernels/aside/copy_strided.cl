// Copies a matrix between two pitches.
__kernel void copy_strided(__global const float *restrict src, int src_stride,
                           __global float *restrict dst, int dst_stride,
                           int width, int height)
{
    for (int y = get_group_id(0); y < height; y += get_num_groups(0))
        for (int x = get_local_id(0); x < width; x += get_local_size(0))
            dst[y * dst_stride + x] = src[y * src_stride + x];
}
