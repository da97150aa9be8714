/* Layer normalisation of each row, a work-item per row. */
__kernel void layer_norm(__global const float *x, __global const float *gamma, __global const float *beta,
                         __global float *y, int rows, int hidden, float eps)
{
    int row = get_global_id(0);
    if (row >= rows) return;
    __global const float *in = x + row * hidden;
    float sum = 0.0f, squares = 0.0f;
    for (int i = 0; i < hidden; i++) {
        sum += in[i];
        squares += in[i] * in[i];
    }
    float mean = sum / hidden;
    float scale = rsqrt(squares / hidden - mean * mean + eps);
    for (int i = 0; i < hidden; i++)
        y[row * hidden + i] = (in[i] - mean) * scale * gamma[i] + beta[i];
}
