// out[t, :] = table[ids[t], :]
__kernel void gather(__global const float *table, __global const int *ids, __global float *out, int tokens, int width) {
  int flat = get_global_id(0);
  if (!(flat < tokens * width)) { return; }
  int t = flat / width;
  int c = flat % width;
  out[flat] = table[ids[t] * width + c];
}
