// CUDA kernels on the host, for tests of rewritten sources: each thread of a block is a fibre that runs until it waits,
// warps exchange through memory. Those that wait are taken up by rising number and by falling number in turn, so that
// what needs a barrier and has none reads too early in one of them. Slow, and only for small launches.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ucontext.h>
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
struct alignas(16) float4 { float x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }
static uint3 threadIdx, blockIdx;
static uint3 blockDim, gridDim;
static ucontext_t host_scheduler;
static std::vector<ucontext_t> host_fibres;
static std::vector<char> host_done;
static unsigned host_running;
static bool host_moved;
static std::function<void()> host_kernel;
static void host_yield() { swapcontext(&host_fibres[host_running], &host_scheduler); }
static void host_fibre() {
  host_kernel();
  host_done[host_running] = 1;
  host_yield();
}
struct host_barrier {
  unsigned waiting = 0, round = 0, size = 0;
  void wait() {
    const unsigned mine = round;
    host_moved = true;
    if (++waiting == size) { waiting = 0; ++round; }
    else while (round == mine) host_yield();
    host_moved = true;
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
template <class T> static inline T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  const unsigned lane = host_linear() % 32;
  return host_exchange(value, mask < width ? lane ^ (unsigned)mask : lane);
}
template <class T> static inline T __shfl_down_sync(unsigned, T value, int distance) {
  return host_exchange(value, host_linear() % 32 + (unsigned)distance);
}
template <class T> static inline T __shfl_up_sync(unsigned, T value, int distance, int width = 32) {
  const int lane = (int)(host_linear() % 32);
  return host_exchange(value, (unsigned)(lane % width >= distance ? lane - distance : lane));
}
template <class T> static inline T __shfl_sync(unsigned, T value, int from, int width = 32) {
  return host_exchange(value, host_linear() % 32 / width * width + (unsigned)(from % width));
}
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
#define __expf expf
#define __sinf sinf
#define __cosf cosf
#define __logf logf
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline int __float_as_int(float x) { int bits; memcpy(&bits, &x, sizeof bits); return bits; }
static inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, sizeof bits); return bits; }
static inline long long __double_as_longlong(double x) { long long bits; memcpy(&bits, &x, sizeof bits); return bits; }
static void host_block_of(unsigned count, uint3 block, char *stacks, size_t stack) {
  for (unsigned t = 0; t < count; ++t) {
    getcontext(&host_fibres[t]);
    host_fibres[t].uc_stack.ss_sp = stacks + t * stack;
    host_fibres[t].uc_stack.ss_size = stack;
    host_fibres[t].uc_link = nullptr;
    makecontext(&host_fibres[t], host_fibre, 0);
    host_done[t] = 0;
  }
  unsigned left = count;
  for (bool is_rising = true; left; is_rising = !is_rising) {
    host_moved = false;
    for (unsigned i = 0; i < count; ++i) {
      const unsigned t = is_rising ? i : count - 1 - i;
      if (host_done[t]) continue;
      host_running = t;
      threadIdx = uint3{t % block.x, t / block.x % block.y, t / block.x / block.y};
      swapcontext(&host_scheduler, &host_fibres[t]);
      if (host_done[t]) { --left; host_moved = true; }
    }
    if (!host_moved) exit(4);  // all wait for one that is not to come
  }
}
template <class F> static void host_launch(uint3 grid, uint3 block, F kernel) {
  gridDim = grid;
  blockDim = block;
  host_kernel = kernel;
  const unsigned count = block.x * block.y * block.z;
  const size_t stack = 256 << 10;
  char *stacks = (char *)malloc(count * stack);
  host_fibres.resize(count);
  host_done.resize(count);
  host_block.size = count;
  for (unsigned w = 0; w < 32; ++w) host_warps[w].size = count >= 32 * (w + 1) ? 32 : count > 32 * w ? count - 32 * w : 0;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = uint3{x, y, z};
        host_block_of(count, block, stacks, stack);
      }
  free(stacks);
}
