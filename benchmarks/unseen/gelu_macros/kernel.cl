// Tanh-approximated GELU, as a header full of macros has it.
#define GLOBAL_ID ((int)get_global_id(0))
#define CUBE(v) ((v) * (v) * (v))
#define INNER(v) (0.7978845608f * ((v) + 0.044715f * CUBE(v)))
#define GELU(v) (0.5f * (v) * (1.0f + tanh(INNER(v))))
#define FOR_MY_ELEMENT(i, n) const int i = GLOBAL_ID; if (i < (n))

__kernel void gelu(__global const float* restrict in, __global float* restrict out, int count)
{
    FOR_MY_ELEMENT(i, count)
    {
        out[i] = GELU(in[i]);
    }
}
