// (a, b, c) -> (a, c, b)
__kernel void permute(__global const float *src, __global float *dst, int na, int nb, int nc) {
  const int c = get_global_id(0);
  const int b = get_global_id(1);
  const int a = get_global_id(2);
  if (a < na && b < nb && c < nc)
    dst[(a * nc + c) * nb + b] = src[(a * nb + b) * nc + c];
}
