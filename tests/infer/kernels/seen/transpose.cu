#include <cuda_runtime.h>
const int TILE = 32;
const int ROWS = 8;

__global__ void transpose(float *odata, const float *idata, int width, int height)
{
    __shared__ float tile[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x;
    int y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS)
        if (x < width && y + j < height) tile[threadIdx.y + j][threadIdx.x] = idata[(y + j) * width + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS)
        if (x < height && y + j < width) odata[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}

void run(float *out, const float *in, int width, int height, cudaStream_t stream)
{
    dim3 threads(TILE, ROWS);
    dim3 blocks((width + TILE - 1) / TILE, (height + TILE - 1) / TILE, 1);
    transpose<<<blocks, threads, 0, stream>>>(out, in, width, height);
}
