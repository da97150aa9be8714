// Layer normalisation, one block per row, tree reduction in shared memory, launched from this file.
#include <cuda_runtime.h>
#include <vector>

#define THREADS 256

__global__ void layer_norm(const float* __restrict__ in, const float* gamma, const float* beta, float* out,
                           int hidden, float eps) {
    __shared__ float buf[THREADS];
    const float* row = in + blockIdx.x * hidden;
    float* dst = out + blockIdx.x * hidden;
    float acc = 0.f;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) acc += row[i];
    buf[threadIdx.x] = acc;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) buf[threadIdx.x] += buf[threadIdx.x + s];
        __syncthreads();
    }
    const float mean = buf[0] / hidden;
    __syncthreads();
    acc = 0.f;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        float d = row[i] - mean;
        acc += d * d;
    }
    buf[threadIdx.x] = acc;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) buf[threadIdx.x] += buf[threadIdx.x + s];
        __syncthreads();
    }
    const float inv = rsqrtf(buf[0] / hidden + eps);
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) dst[i] = (row[i] - mean) * inv * gamma[i] + beta[i];
}

int main() {
    const int rows = 4096, hidden = 1024;
    float *x, *g, *b, *y;
    cudaMalloc(&x, sizeof(float) * rows * hidden);
    cudaMalloc(&g, sizeof(float) * hidden);
    cudaMalloc(&b, sizeof(float) * hidden);
    cudaMalloc(&y, sizeof(float) * rows * hidden);
    layer_norm<<<rows, THREADS>>>(x, g, b, y, hidden, 1e-5f);
    cudaDeviceSynchronize();
    return 0;
}
