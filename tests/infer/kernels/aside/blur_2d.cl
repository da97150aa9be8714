/* A convolution of one grey image with a small square filter; zero outside. */
kernel void blur_2d(global const float *restrict image,
                    constant float *filter,
                    global float *restrict result,
                    const uint width,
                    const uint height,
                    const int radius)
{
    const int x = get_global_id(0);
    const int y = get_global_id(1);
    if (x >= (int)width || y >= (int)height)
        return;

    const int side = 2 * radius + 1;
    float sum = 0.0f;
    for (int dy = -radius; dy <= radius; dy++) {
        for (int dx = -radius; dx <= radius; dx++) {
            const int xx = x + dx;
            const int yy = y + dy;
            if (xx >= 0 && xx < (int)width && yy >= 0 && yy < (int)height)
                sum += image[yy * width + xx] * filter[(dy + radius) * side + (dx + radius)];
        }
    }
    result[y * width + x] = sum;
}
