// Symmetric int8 quantisation by rows: q = round(x / scale), scale = max |x| / 127.
void kernel quantise_rows(global float const *x, global char *q, global float *scale, ulong rows, ulong cols)
{
    size_t r = get_global_id(0);
    if (r >= rows)
        return;
    float top = 0.0f;
    for (ulong c = 0; c < cols; ++c)
        top = max(top, fabs(x[r * cols + c]));
    float s = top > 0.0f ? top / 127.0f : 1.0f;
    scale[r] = s;
    for (ulong c = 0; c < cols; ++c)
        q[r * cols + c] = convert_char_sat_rte(x[r * cols + c] / s);
}
