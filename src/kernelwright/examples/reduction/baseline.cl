// The sum of n numbers in two launches. First every group of 256 adds 256 numbers in a tree; then one group adds the groups' sums.
#define GROUP 256

static float tree_sum(__local float *part, const float value) {
  const int item = get_local_id(0);
  part[item] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int reach = GROUP / 2; reach > 0; reach /= 2) {
    if (item < reach) {
      part[item] += part[item + reach];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return part[0];
}

__kernel void sum_blocks(__global const float *x, __global float *block_sums, const int n) {
  __local float part[GROUP];
  const int at = get_global_id(0);
  const float sum = tree_sum(part, at < n ? x[at] : 0.0f);
  if (get_local_id(0) == 0) {
    block_sums[get_group_id(0)] = sum;
  }
}

__kernel void sum_sums(__global const float *block_sums, __global float *total, const int n) {
  __local float part[GROUP];
  const int blocks = (n + GROUP - 1) / GROUP;
  float own = 0.0f;
  for (int at = get_local_id(0); at < blocks; at += GROUP) {
    own += block_sums[at];
  }
  const float sum = tree_sum(part, own);
  if (get_local_id(0) == 0) {
    total[0] = sum;
  }
}
