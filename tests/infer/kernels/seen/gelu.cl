// x <- gelu(x), in place.
kernel void gelu(global float *x, const uint n)
{
    for (uint i = get_global_id(0); i < n; i += get_global_size(0)) {
        float v = x[i];
        x[i] = 0.5f * v * (1.0f + erf(v * 0.70710678f));
    }
}
