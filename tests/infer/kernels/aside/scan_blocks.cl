#ifndef GROUP
#define GROUP 256
#endif

/* Inclusive prefix sums within each group of GROUP elements, and each group's total. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void scan_blocks(__global const int *in, __global int *out, __global int *totals, const int n)
{
    __local int a[GROUP];
    const int gid = get_global_id(0);
    const int lid = get_local_id(0);
    int v = gid < n ? in[gid] : 0;
    a[lid] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = 1; step < GROUP; step <<= 1) {
        int other = lid >= step ? a[lid - step] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        a[lid] += other;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (gid < n)
        out[gid] = a[lid];
    if (lid == GROUP - 1)
        totals[get_group_id(0)] = a[lid];
}
