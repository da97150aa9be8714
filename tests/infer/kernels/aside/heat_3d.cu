#include <cstdio>
#include <utility>

#define IDX(i, j, k) ((size_t)(k) * ny * nx + (size_t)(j) * nx + (i))

__global__ void heat(const double *u, double *v, const int nx, const int ny, const int nz, const double alpha)
{
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    int j = threadIdx.y + blockIdx.y * blockDim.y;
    int k = threadIdx.z + blockIdx.z * blockDim.z;
    if (i > 0 && i < nx - 1 && j > 0 && j < ny - 1 && k > 0 && k < nz - 1) {
        double c = u[IDX(i, j, k)];
        v[IDX(i, j, k)] = c + alpha * (u[IDX(i - 1, j, k)] + u[IDX(i + 1, j, k)] + u[IDX(i, j - 1, k)] +
                                       u[IDX(i, j + 1, k)] + u[IDX(i, j, k - 1)] + u[IDX(i, j, k + 1)] - 6.0 * c);
    }
}

void step(double *a, double *b, int nx, int ny, int nz, int steps)
{
    dim3 block(32, 4, 2);
    dim3 grid((nx + block.x - 1) / block.x, (ny + block.y - 1) / block.y, (nz + block.z - 1) / block.z);
    for (int t = 0; t < steps; t++) {
        heat<<<grid, block>>>(a, b, nx, ny, nz, 0.1);
        std::swap(a, b);
    }
}
