"""What an NVIDIA device can do at most, measured: bandwidth of memory and caches, arithmetic, launches.

Each figure is the best of several plain kernels and launch shapes, so it is a rate that was reached and no data
sheet's. The arithmetic kernels keep registers busy and touch no memory; a fused multiply-add counts 2 operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kernelwright.backend.base import (
    BoundBuffer,
    BoundLaunch,
    Buffer,
    BufferArgument,
    BuildUnit,
    DeviceInfo,
    DeviceSession,
    LaunchFailed,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.cuda.compile.build import compile_unit
from kernelwright.backend.cuda.driver import load_driver
from kernelwright.backend.cuda.handles import CudaModule

SOURCE = r"""
#define UNROLLED _Pragma("unroll")
typedef unsigned long long u64;

extern "C" __global__ void empty(uint4 *y, u64 n) {}
extern "C" __global__ void copy1(const uint4 *x, uint4 *y, u64 n) {
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += step) y[i] = x[i];
}
extern "C" __global__ void copy4(const uint4 *x, uint4 *y, u64 n) {
  u64 tile = 4ull * blockDim.x, step = gridDim.x * tile;
  for (u64 base = blockIdx.x * tile + threadIdx.x; base + 3ull * blockDim.x < n; base += step) {
    uint4 v[4];
    UNROLLED for (int k = 0; k < 4; ++k) v[k] = __ldcs(x + base + k * (u64)blockDim.x);
    UNROLLED for (int k = 0; k < 4; ++k) __stcs(y + base + k * (u64)blockDim.x, v[k]);
  }
}
extern "C" __global__ void read4(const uint4 *x, uint4 *y, u64 n) {
  u64 tile = 4ull * blockDim.x, step = gridDim.x * tile;
  unsigned seen = 0;
  for (u64 base = blockIdx.x * tile + threadIdx.x; base + 3ull * blockDim.x < n; base += step) {
    uint4 v[4];
    UNROLLED for (int k = 0; k < 4; ++k) v[k] = __ldcs(x + base + k * (u64)blockDim.x);
    UNROLLED for (int k = 0; k < 4; ++k) seen |= v[k].x | v[k].y | v[k].z | v[k].w;
  }
  if (seen == 12345u) y[0].x = seen;
}
extern "C" __global__ void write4(const uint4 *x, uint4 *y, u64 n) {
  u64 tile = 4ull * blockDim.x, step = gridDim.x * tile;
  for (u64 base = blockIdx.x * tile + threadIdx.x; base + 3ull * blockDim.x < n; base += step) {
    UNROLLED for (int k = 0; k < 4; ++k) __stcs(y + base + k * (u64)blockDim.x, make_uint4(1, 2, 3, 4));
  }
}
// Reads the same n words `passes` times, past the first-level cache.
extern "C" __global__ void cached(const uint4 *x, uint4 *y, u64 n, u64 passes) {
  u64 step = (u64)gridDim.x * blockDim.x;
  unsigned seen = 0;
  for (u64 pass = 0; pass < passes; ++pass) {
    u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
      uint4 a = __ldcg(x + i), b = __ldcg(x + i + step), c = __ldcg(x + i + 2 * step), d = __ldcg(x + i + 3 * step);
      seen |= a.x | a.y | a.z | a.w | b.x | b.y | b.z | b.w | c.x | c.y | c.z | c.w | d.x | d.y | d.z | d.w;
    }
  }
  if (seen == 12345u) y[0].x = seen;
}

#define CHAINS 8
#define ARITHMETIC(NAME, TYPE, INIT, STEP, USE)                                      \
extern "C" __global__ void NAME(uint4 *y, u64 rounds) {                              \
  TYPE a[CHAINS]; TYPE b = INIT(threadIdx.x + 1), c = INIT(blockIdx.x + 2);          \
  UNROLLED for (int k = 0; k < CHAINS; ++k) a[k] = INIT(threadIdx.x + k);            \
  for (u64 r = 0; r < rounds; ++r) {                                                 \
    UNROLLED for (int s = 0; s < 16; ++s)                                            \
      UNROLLED for (int k = 0; k < CHAINS; ++k) a[k] = STEP;                         \
  }                                                                                  \
  unsigned seen = 0;                                                                 \
  UNROLLED for (int k = 0; k < CHAINS; ++k) seen ^= USE(a[k]);                       \
  if (seen == 12345u) y[0].x = seen;                                                 \
}
#define AS_FLOAT(v) ((float)(v) * 1e-3f)
#define AS_DOUBLE(v) ((double)(v) * 1e-3)
#define AS_INT(v) ((unsigned)(v))
#define AS_HALF2(v) (0x3c003c00u + (unsigned)(v))
__device__ __forceinline__ unsigned hfma2(unsigned a, unsigned b, unsigned c) {
  unsigned d; asm volatile("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d;
}
#define BITS_F(v) __float_as_uint(v)
#define BITS_D(v) ((unsigned)__double_as_longlong(v))
#define BITS_I(v) (v)
ARITHMETIC(fma_fp32, float, AS_FLOAT, fmaf(a[k], b, c), BITS_F)
ARITHMETIC(fma_fp64, double, AS_DOUBLE, fma(a[k], b, c), BITS_D)
ARITHMETIC(fma_fp16, unsigned, AS_HALF2, hfma2(a[k], b, c), BITS_I)
ARITHMETIC(mad_int32, unsigned, AS_INT, a[k] * b + c, BITS_I)

#if __CUDA_ARCH__ >= 800
extern "C" __global__ void mma_fp16(uint4 *y, u64 rounds) {
  float d[4][4] = {}; unsigned a[4], b[2];
  UNROLLED for (int k = 0; k < 4; ++k) a[k] = 0x3c003c00u + threadIdx.x;
  UNROLLED for (int k = 0; k < 2; ++k) b[k] = 0x3c003c00u + threadIdx.x;
  for (u64 r = 0; r < rounds; ++r) {
    UNROLLED for (int s = 0; s < 8; ++s)
      UNROLLED for (int k = 0; k < 4; ++k)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[k][0]), "+f"(d[k][1]), "+f"(d[k][2]), "+f"(d[k][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  float seen = 0;
  UNROLLED for (int k = 0; k < 4; ++k) seen += d[k][0] + d[k][1] + d[k][2] + d[k][3];
  if (seen == 12345.0f) y[0].x = 1;
}
#endif
"""

LARGE_BYTES = 1 << 30
"""Each buffer of a bandwidth measurement is so large that the cache hides a few percent of it."""
REPEATS = 5

_MEMORY_KERNELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "copy_bytes_per_s": ("copy1", "copy4"),
        "read_bytes_per_s": ("read4",),
        "write_bytes_per_s": ("write4",),
    }
)


@dataclass(frozen=True, slots=True)
class _Pipe:
    """One kind of arithmetic."""

    figure: str
    entry: str
    operations_per_round: int
    """Each thread does so many."""
    least_capability: int = 0


PIPES: Sequence[_Pipe] = (
    _Pipe("fp32_operations_per_s", "fma_fp32", 2 * 8 * 16),
    _Pipe("fp64_operations_per_s", "fma_fp64", 2 * 8 * 16),
    _Pipe("fp16_operations_per_s", "fma_fp16", 4 * 8 * 16),
    _Pipe("int32_operations_per_s", "mad_int32", 2 * 8 * 16),
    _Pipe("tensor_fp16_operations_per_s", "mma_fp16", 2 * 16 * 8 * 16 * 4 * 8 // 32, least_capability=80),
)
"""`tensor_fp16` is by `mma.sync` with float32 sums, which on Hopper and Blackwell is not all that the tensor cores can
do."""


def measure_ceilings(session: DeviceSession, device: DeviceInfo) -> dict[str, float]:
    """Rates by name, in bytes, operations and launches per second; what does not run is left out.

    Raises:
        BuildFailed: the compiler refuses these kernels.
        InfrastructureError: the device fails.
    """
    capability = device.limits.get("compute_capability", 0)
    pipes = [pipe for pipe in PIPES if capability >= pipe.least_capability]
    entries = ("empty", *itertools.chain(*_MEMORY_KERNELS.values()), "cached", *(pipe.entry for pipe in pipes))
    compiled = compile_unit(BuildUnit("cuda", SOURCE, "ceilings.cu", (), (), tuple(entries)), device)
    bench = _Bench(session, CudaModule(load_driver(), compiled.cubin, compiled.names), device)
    try:
        return {**bench.memory(), **bench.cache(), **bench.arithmetic(pipes), **bench.launches()}
    finally:
        bench.close()


class _Bench:
    """Runs the kernels above on two buffers."""

    def __init__(self, session: DeviceSession, module: CudaModule, device: DeviceInfo) -> None:
        self._session = session
        self._module = module
        self._multiprocessors = device.limits.get("multiprocessors", 1)
        self._cache_bytes = device.limits.get("last_level_cache", 4 << 20)
        free_bytes = session.free_memory_bytes() or 4 * LARGE_BYTES
        self._byte_count = min(LARGE_BYTES, free_bytes // 4) // 65536 * 65536
        self._x, self._y = session.allocate(self._byte_count), session.allocate(self._byte_count)
        for buffer in (self._x, self._y):
            session.fill(buffer, b"\0", self._byte_count)

    def close(self) -> None:
        for buffer in (self._x, self._y):
            self._session.free(buffer)

    def memory(self) -> dict[str, float]:
        """The best rate of each kind; a copy counts bytes read and written."""
        rates = {}
        for figure, kernels in _MEMORY_KERNELS.items():
            moved = self._byte_count * (2 if figure.startswith("copy") else 1)
            shapes = itertools.product(kernels, (2, 4, 8, 16, 32), (256, 512, 1024))
            times_ms = [
                self._time_ms(entry, self._multiprocessors * blocks, threads, self._byte_count // 16)
                for entry, blocks, threads in shapes
            ]
            rates[figure] = 1e3 * moved / min(times_ms)
        return rates

    def cache(self) -> dict[str, float]:
        """Reading up to half of the second-level cache over and over; whole rounds of all threads."""
        rates = []
        for blocks, threads in itertools.product((1, 2, 4, 8), (256, 512, 1024)):
            round_words = 4 * self._multiprocessors * blocks * threads
            words = self._cache_bytes // 2 // 16 // round_words * round_words
            if words and blocks * threads <= 2048:
                passes = max(1, 8 * self._cache_bytes // (16 * words))
                time_ms = self._time_ms("cached", self._multiprocessors * blocks, threads, words, passes)
                rates.append(1e3 * passes * 16 * words / time_ms)
        return {"cache_bytes_per_s": max(rates)} if rates else {}

    def arithmetic(self, pipes: Sequence[_Pipe]) -> dict[str, float]:
        """Full occupancy and eight independent chains a thread; runs of about a millisecond."""
        rates = {}
        for pipe in pipes:
            best = 0.0
            for blocks, threads in ((4, 512), (2, 1024), (8, 256), (4, 256)):
                count = self._multiprocessors * blocks
                rounds = 64
                try:
                    while (time_ms := self._time_ms(pipe.entry, count, threads, rounds, has_input=False)) < 0.5:
                        rounds *= 4
                except LaunchFailed:
                    continue
                best = max(best, 1e3 * pipe.operations_per_round * rounds * count * threads / time_ms)
            if best:
                rates[pipe.figure] = best
        return rates

    def launches(self) -> dict[str, float]:
        """The rate of empty launches, a block on each multiprocessor: no kernel on all of them is over sooner."""
        time_ms = self._time_ms("empty", self._multiprocessors, 32, 0, has_input=False)
        return {"launches_per_s": 1e3 / time_ms} if time_ms > 0 else {}

    def _time_ms(self, entry: str, blocks: int, threads: int, *numbers: int, has_input: bool = True) -> float:
        names = ("x", "y") if has_input else ("y",)
        arguments = [BufferArgument(name, self._byte_count) for name in names]
        scalars = [ScalarArgument(f"n{i}", "uint64", value.to_bytes(8, "little")) for i, value in enumerate(numbers)]
        step = PlanStep(entry, (blocks, 1, 1), (threads, 1, 1), 0, (*arguments, *scalars))
        launch = BoundLaunch(self._module, step, dict(self._bound(names)))
        return min(self._session.time([launch]) for _ in range(REPEATS))

    def _bound(self, names: Sequence[str]) -> Iterator[tuple[str, BoundBuffer]]:
        buffers: Mapping[str, Buffer] = {"x": self._x, "y": self._y}
        for name in names:
            yield name, BoundBuffer(buffers[name], 0, self._byte_count)
