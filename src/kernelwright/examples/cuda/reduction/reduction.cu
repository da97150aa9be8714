// /// kernelwright
// [parameters]
// BLOCK    = { values = [64, 128, 192, 256, 384, 512, 768, 1024], default = 256, why = "threads of a block" }
// VEC      = { values = [1, 2, 4], default = 4, why = "floats of a load: 4 are 16 bytes, the widest there is" }
// COUNT    = { values = [1, 2, 4, 8, 16], default = 4, why = "vectors of a lap that one thread loads before it adds the first" }
// RESIDENT = { values = [1, 2, 3, 4, 6, 8, 12, 16, 32], default = 4, why = "blocks per multiprocessor, which walk over everything" }
// WALK     = { values = [0, 1], default = 0, why = "0: all blocks side by side through memory; 1: each through a stretch of its own" }
// FINISH   = { values = [32, 64, 128, 256, 512, 1024], default = 256, why = "threads of the one block that adds the blocks' sums" }
// LOAD     = { values = [0, 1, 2, 3], default = 2, why = "0: plain; 1: streaming; 2: not kept in the first-level cache; 3: and 256 bytes at a time into the second" }
// [constraints]
// threads   = "RESIDENT * BLOCK <= device.max_threads_per_multiprocessor"
// registers = "VEC * COUNT <= 32"
// [[launch]]
// entry = "sum_blocks"
// grid  = ["RESIDENT * device.multiprocessors"]
// block = ["BLOCK"]
// arguments = ["x", "partials", "n"]
// [[launch]]
// entry = "sum_partials"
// grid  = [1]
// block = ["FINISH"]
// arguments = ["partials", "total"]
// [defines]
// BLOCKS = "RESIDENT * device.multiprocessors"
// [scratch]
// partials = { dtype = "float32", shape = ["RESIDENT * device.multiprocessors"] }
// ///

// The sum of n floats: as many blocks as fit at once add what they walk over, then one block adds their sums. Any n is right.

#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef VEC
#define VEC 4
#endif
#ifndef COUNT
#define COUNT 4
#endif
#ifndef RESIDENT
#define RESIDENT 4
#endif
#ifndef WALK
#define WALK 0
#endif
#ifndef FINISH
#define FINISH 256
#endif
#ifndef LOAD
#define LOAD 2
#endif
#ifndef BLOCKS
#define BLOCKS (RESIDENT * 132)
#endif

template <int N> struct Words {
  unsigned at[N];
};

#if LOAD == 0
#define LOAD_AS "ld.global"
#elif LOAD == 1
#define LOAD_AS "ld.global.cs"
#elif LOAD == 2
#define LOAD_AS "ld.global.nc.L1::no_allocate"
#else
#define LOAD_AS "ld.global.nc.L1::no_allocate.L2::256B"
#endif

__device__ __forceinline__ void load(Words<1> &to, const void *from) {
  asm volatile(LOAD_AS ".u32 %0, [%1];" : "=r"(to.at[0]) : "l"(from));
}

__device__ __forceinline__ void load(Words<2> &to, const void *from) {
  asm volatile(LOAD_AS ".v2.u32 {%0, %1}, [%2];" : "=r"(to.at[0]), "=r"(to.at[1]) : "l"(from));
}

__device__ __forceinline__ void load(Words<4> &to, const void *from) {
  asm volatile(LOAD_AS ".v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3]) : "l"(from));
}

// The sum over a block of THREADS threads, given to thread 0.
template <int THREADS> __device__ __forceinline__ float block_sum(float own) {
  __shared__ float part[THREADS / 32];
#pragma unroll
  for (int reach = 16; reach > 0; reach /= 2) {
    own += __shfl_xor_sync(0xffffffffu, own, reach);
  }
  if (THREADS > 32) {
    if (threadIdx.x % 32 == 0) {
      part[threadIdx.x / 32] = own;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      own = threadIdx.x < THREADS / 32 ? part[threadIdx.x] : 0.0f;
#pragma unroll
      for (int reach = 16; reach > 0; reach /= 2) {
        own += __shfl_xor_sync(0xffffffffu, own, reach);
      }
    }
  }
  return own;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
sum_blocks(const float *__restrict__ x, float *__restrict__ partials, const int n) {
  const unsigned vectors = (unsigned)n / VEC;
#if WALK == 0
  const unsigned last = vectors;
  const unsigned lap = BLOCKS * BLOCK * COUNT;
  unsigned first = blockIdx.x * (BLOCK * COUNT) + threadIdx.x;
#else
  const unsigned stretch = (vectors + BLOCKS - 1) / BLOCKS;
  const unsigned last = min(vectors, (blockIdx.x + 1) * stretch);
  const unsigned lap = BLOCK * COUNT;
  unsigned first = blockIdx.x * stretch + threadIdx.x;
#endif
  float sums[VEC];
#pragma unroll
  for (int i = 0; i < VEC; ++i) {
    sums[i] = 0.0f;
  }
#pragma unroll 1
  for (; first + (COUNT - 1) * BLOCK < last; first += lap) {
    Words<VEC> own[COUNT];
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      load(own[j], x + (size_t)(first + j * BLOCK) * VEC);
    }
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
#pragma unroll
      for (int i = 0; i < VEC; ++i) {
        sums[i] += __uint_as_float(own[j].at[i]);
      }
    }
  }
#pragma unroll 1
  for (int j = 0; j < COUNT && first < last; ++j, first += BLOCK) {  // the lap that does not fill up
    Words<VEC> own;
    load(own, x + (size_t)first * VEC);
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
      sums[i] += __uint_as_float(own.at[i]);
    }
  }
  float own = sums[0];
#pragma unroll
  for (int i = 1; i < VEC; ++i) {
    own += sums[i];
  }
  const unsigned left = vectors * VEC + threadIdx.x;  // fewer than VEC
  if (blockIdx.x == 0 && left < (unsigned)n) {
    own += x[left];
  }
  own = block_sum<BLOCK>(own);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = own;
  }
}

extern "C" __global__ void __launch_bounds__(FINISH)
sum_partials(const float *__restrict__ partials, float *__restrict__ total) {
  float own = 0.0f;
#pragma unroll
  for (int at = threadIdx.x; at < BLOCKS; at += FINISH) {
    own += partials[at];
  }
  own = block_sum<FINISH>(own);
  if (threadIdx.x == 0) {
    total[0] = own;
  }
}
