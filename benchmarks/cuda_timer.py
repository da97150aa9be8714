"""What the CUDA timer adds to short kernels, and what the cache flush does: measured on the first CUDA device.

```
python benchmarks/cuda_timer.py
```
An empty kernel shows the timer's own bias. Kernels that wait a known time show whether it is a constant: the waiting
loop reads the device's clock, so its own length is known from inside. Reading a buffer smaller than the second-level
cache, with and without a flush before, shows whether the flush works.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import numpy as np

from kernelwright.backend.base import (
    BoundBuffer,
    BoundLaunch,
    BufferArgument,
    BuildRequest,
    BuildUnit,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.registry import get_backend

SOURCE = """
extern "C" __global__ void empty(unsigned long long *out) { }
extern "C" __global__ void wait(unsigned long long *out, unsigned long long cycles) {
  unsigned long long start, now, first, last;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(first));
  asm volatile("mov.u64 %0, %clock64;" : "=l"(start));
  do asm volatile("mov.u64 %0, %clock64;" : "=l"(now)); while (now - start < cycles);
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(last));
  out[0] = last - first;
}
extern "C" __global__ void scan(const uint4 *x, unsigned long long *out, unsigned long long count) {
  unsigned seen = 0;
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    uint4 v = __ldcg(x + i); seen |= v.x | v.y | v.z | v.w;
  }
  if (seen == 12345) out[0] = seen;
}
"""
SAMPLES = 101


def main() -> None:
    backend = get_backend("cuda")
    device = backend.devices()[0]
    print(device.name, device.driver, dict(device.facts))
    with tempfile.TemporaryDirectory() as folder:
        unit = BuildUnit("cuda", SOURCE, "timer.cu", (), (), ("empty", "wait", "scan"))
        artifact = backend.compile(BuildRequest(unit), device, Path(folder))
        session = backend.open(device)
        module = session.load(artifact)
    cache_bytes = device.limits["last_level_cache"]
    out, data = session.allocate(8), session.allocate(cache_bytes)
    session.fill(data, b"\0", cache_bytes)
    session.fill(out, b"\0", 8)

    def launch(entry: str, *scalars: int, blocks: int = 1, x_bytes: int = 0, threads: int = 32) -> BoundLaunch:
        arguments = [ScalarArgument(f"s{i}", "uint64", value.to_bytes(8, "little")) for i, value in enumerate(scalars)]
        buffers = [BufferArgument("x", x_bytes)] if x_bytes else []
        step = PlanStep(entry, (blocks, 1, 1), (threads, 1, 1), 0, (*buffers, BufferArgument("out", 8), *arguments))
        bound = {"out": BoundBuffer(out, 0, 8), "x": BoundBuffer(data, 0, x_bytes)}
        return BoundLaunch(module, step, bound)

    def sample(launches: list[BoundLaunch], *, is_cold: bool = False) -> list[float]:
        times_us = []
        for _ in range(SAMPLES):
            if is_cold:
                session.flush_cache()
            session.synchronize()
            times_us.append(session.time(launches) * 1e3)
        return times_us

    def words(times_us: list[float]) -> str:
        low, middle, high = (float(np.percentile(times_us, q)) for q in (5, 50, 95))
        return f"median {middle:8.2f} us   5 to 95 %: {low:.2f} to {high:.2f}"

    sample([launch("empty")])
    for count in (1, 2, 4, 8):
        print(f"{count} empty kernels:", words(sample([launch("empty")] * count)))
    for cycles in (500, 2000, 5000, 10000, 20000, 50000, 200000):
        times_us = sample([launch("wait", cycles)])
        inside = np.empty(8, np.uint8)
        session.download(out, inside)
        print(f"wait {cycles} cycles: inside {inside.view(np.uint64)[0] / 1e3:8.2f} us  events", words(times_us))
    blocks = 8 * device.limits["multiprocessors"]
    for share in (16, 4, 2):
        x_bytes = cache_bytes // share // 16 * 16
        each = [launch("scan", x_bytes // 16, blocks=blocks, threads=256, x_bytes=x_bytes)]
        hot, cold = (statistics.median(sample(each, is_cold=is_cold)) for is_cold in (False, True))
        rates = [x_bytes / time_us * 1e-3 for time_us in (hot, cold)]
        print(
            f"read {x_bytes >> 20} MiB: hot {hot:.2f} us ({rates[0]:.0f} GB/s), "
            f"cold {cold:.2f} us ({rates[1]:.0f} GB/s)"
        )
    session.close()


if __name__ == "__main__":
    main()
