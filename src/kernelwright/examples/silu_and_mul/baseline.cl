// out = silu(gate) * up, where each row of x holds gate (d numbers) and then up (d numbers), stored as float16: one work-item
// an element, arithmetic in float32.
__kernel void silu_and_mul(__global half *out, __global const half *x, const int tokens, const int d) {
  const int col = get_global_id(0);
  const int token = get_global_id(1);
  if (col >= d || token >= tokens) {
    return;
  }
  const float gate = vload_half(token * 2 * d + col, x);
  const float up = vload_half(token * 2 * d + d + col, x);
  vstore_half(gate / (1.0f + exp(-gate)) * up, token * d + col, out);
}
