// CUDA kernels on the host, for tests of rewritten sources: each thread of a block is a std::thread, warps exchange
// through memory. Slow, and only for small launches.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __constant__
#define __shared__ static
struct uint3 { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static thread_local uint3 threadIdx, blockIdx;
static uint3 blockDim, gridDim;
struct host_barrier {
  std::mutex mutex;
  std::condition_variable condition;
  unsigned waiting = 0, round = 0, size = 0;
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    const unsigned mine = round;
    if (++waiting == size) { waiting = 0; ++round; condition.notify_all(); return; }
    condition.wait(lock, [&] { return round != mine; });
  }
};
static host_barrier host_block, host_warps[32];
static double host_values[1024];
static inline unsigned host_linear() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
static inline void __syncthreads() { host_block.wait(); }
template <class T> static inline T host_exchange(T value, unsigned lane) {
  const unsigned me = host_linear(), warp = me / 32;
  host_values[me] = (double)value;
  host_warps[warp].wait();
  const T result = (T)host_values[lane < 32 ? warp * 32 + lane : me];
  host_warps[warp].wait();
  return result;
}
template <class T> static inline T __shfl_xor_sync(unsigned, T value, int mask) {
  return host_exchange(value, host_linear() % 32 ^ (unsigned)mask);
}
template <class T> static inline T __shfl_down_sync(unsigned, T value, int distance) {
  return host_exchange(value, host_linear() % 32 + (unsigned)distance);
}
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
#define __expf expf
#define __logf logf
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline int __float_as_int(float x) { int bits; memcpy(&bits, &x, sizeof bits); return bits; }
static inline long long __double_as_longlong(double x) { long long bits; memcpy(&bits, &x, sizeof bits); return bits; }
template <class F> static void host_launch(uint3 grid, uint3 block, F kernel) {
  gridDim = grid;
  blockDim = block;
  const unsigned count = block.x * block.y * block.z;
  host_block.size = count;
  for (unsigned w = 0; w < 32; ++w) host_warps[w].size = count >= 32 * (w + 1) ? 32 : count > 32 * w ? count - 32 * w : 0;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        auto one = [&](unsigned t) {
          blockIdx = uint3{x, y, z};
          threadIdx = uint3{t % block.x, t / block.x % block.y, t / block.x / block.y};
          kernel();
        };
        if (count == 1) { one(0); continue; }
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < count; ++t) threads.emplace_back(one, t);
        for (auto &each : threads) each.join();
      }
}
