// Ported from a HIP code base: its spelling is kept, with a shim for NVRTC.
#ifndef __HIP_PLATFORM_AMD__
#define hipThreadIdx_x threadIdx.x
#define hipBlockIdx_x blockIdx.x
#define hipBlockDim_x blockDim.x
#endif

extern "C" __global__ void swish(const float* __restrict__ in, float* __restrict__ out, float beta, size_t count)
{
    size_t tid = hipBlockIdx_x * (size_t)hipBlockDim_x + hipThreadIdx_x;
    if (tid < count) {
        float value = in[tid];
        out[tid] = value / (1.0f + expf(-beta * value));
    }
}
