/* The kernel with its host program: how a sample often comes. */
#ifdef __OPENCL_VERSION__
__kernel void saxpy(const float a, __global const float4 *x, __global float4 *y, const int n4)
{
    const int i = get_global_id(0);
    if (i < n4) y[i] += a * x[i];
}
#else
#include <CL/cl.h>
void run(cl_command_queue queue, cl_kernel kernel, int n4)
{
    size_t local[1] = {64};
    size_t global[1] = {((n4 + 63) / 64) * 64};
    clEnqueueNDRangeKernel(queue, kernel, 1, NULL, global, local, 0, NULL, NULL);
}
#endif
