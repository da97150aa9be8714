"""How short kernels are timed: CUPTI's records and events against the clock inside a kernel and many launches together.

```
python benchmarks/cuda_timer.py [--json FILE]
```
Kernels that wait a known time by the device's clock tell their own length. A kernel's time is at least that: starting
and ending come on top, which is part of the kernel, while what events add lies beside it. `back to back` and `graph`
are the time of many launches divided by their number, the other usual way to time a short kernel: they hold the gap
from one kernel to the next. The last rows are kernels that move memory, in the cache.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelwright.backend.base import (
    BoundBuffer,
    BoundLaunch,
    BufferArgument,
    BuildUnit,
    DeviceInfo,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.cuda.driver import load_driver
from kernelwright.backend.cuda.errors import call
from kernelwright.backend.cuda.session import CudaSession
from kernelwright.backend.registry import get_backend

SOURCE = """
extern "C" __global__ void empty(unsigned long long *out) { }
extern "C" __global__ void wait(unsigned long long *out, unsigned long long ns) {
  unsigned long long first, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(first));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - first < ns);
  out[0] = now - first;
}
extern "C" __global__ void twice(float4 *x, unsigned long long *out, unsigned long long count) {
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    float4 v = x[i]; v.x *= 2; v.y *= 2; v.z *= 2; v.w *= 2; x[i] = v;
  }
}
"""
SAMPLES = 101
TOGETHER = 200


class Bench:
    """One session. CUPTI records every kernel of its process, so whatever must not feel it comes before."""

    def __init__(self, device: DeviceInfo, artifact: Any, *, use_cupti: bool) -> None:
        self.session = CudaSession(device, use_cupti=use_cupti)
        self._module = self.session.load(artifact)
        self._out, self._x = self.session.allocate(8), self.session.allocate(1 << 26)

    def launch(self, case: Case) -> BoundLaunch:
        arguments = [
            ScalarArgument(f"s{i}", "uint64", each.to_bytes(8, "little")) for i, each in enumerate(case.scalars)
        ]
        buffers = [BufferArgument("x", case.x_bytes)] if case.x_bytes else []
        parameters = (*buffers, BufferArgument("out", 8), *arguments)
        step = PlanStep(case.entry, (case.blocks, 1, 1), (case.threads, 1, 1), 0, parameters)
        bound = {"out": BoundBuffer(self._out, 0, 8), "x": BoundBuffer(self._x, 0, case.x_bytes)}
        return BoundLaunch(self._module, step, bound)

    def alone_us(self, case: Case) -> tuple[float, float]:
        """Median and spread (5 to 95 %) of launches one at a time."""
        launch, times_us = self.launch(case), []
        for _ in range(SAMPLES + 10):
            self.session.synchronize()
            times_us.append(self.session.time([launch]) * 1e3)
        low, middle, high = np.percentile(times_us[10:], (5, 50, 95))
        return float(middle), float(high - low)

    def together_us(self, case: Case) -> float:
        """Many launches on the stream, each one's share."""
        launch, shares = self.launch(case), []
        for _ in range(11):
            self.session.synchronize()
            shares.append(self.session.time([launch] * TOGETHER) * 1e3 / TOGETHER)
        return float(np.median(shares))

    def graph_us(self, case: Case) -> float:
        """The same as one CUDA graph, which the device runs by itself."""
        driver, stream = load_driver(), self.session._stream  # noqa: SLF001
        bound = self.session._bind(self.launch(case))  # noqa: SLF001
        call(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        for _ in range(TOGETHER):
            bound.launch()
        ready = call(driver.cuGraphInstantiate(call(driver.cuStreamEndCapture(stream)), 0))
        first, last, shares = call(driver.cuEventCreate(0)), call(driver.cuEventCreate(0)), []
        for _ in range(11):
            call(driver.cuEventRecord(first, stream))
            call(driver.cuGraphLaunch(ready, stream))
            call(driver.cuEventRecord(last, stream))
            call(driver.cuEventSynchronize(last))
            shares.append(call(driver.cuEventElapsedTime(first, last)) * 1e3 / TOGETHER)
        return float(np.median(shares))

    def inside_us(self) -> float:
        inside = np.empty(8, np.uint8)
        self.session.download(self._out, inside)
        return float(inside.view(np.uint64)[0]) / 1e3


@dataclass(frozen=True)
class Case:
    """One kernel and its launch."""

    name: str
    entry: str
    scalars: tuple[int, ...] = ()
    blocks: int = 1
    threads: int = 32
    x_bytes: int = 0


def cases(multiprocessors: int) -> list[Case]:
    found = [Case("empty", "empty")]
    found += [Case(f"waits {us} us", "wait", (1000 * us,)) for us in (1, 2, 5, 10, 20, 100)]
    for kib in (64, 512, 4096, 32768):
        blocks = min(4 * multiprocessors, kib * 64 // 256)
        found.append(Case(f"doubles {kib} KiB", "twice", (kib * 64,), blocks, 256, kib << 10))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    backend = get_backend("cuda")
    device = backend.devices()[0]
    with tempfile.TemporaryDirectory() as folder:
        unit = BuildUnit("cuda", SOURCE, "timer.cu", (), (), ("empty", "wait", "twice"))
        artifact = backend.compile(unit, device, Path(folder))
        listed = cases(device.limits["multiprocessors"])
        rows: list[dict[str, Any]] = [{"kernel": case.name} for case in listed]
        bench = Bench(device, artifact, use_cupti=False)
        for row, case in zip(rows, listed, strict=True):
            row["events"], row["events_spread"] = bench.alone_us(case)
            row["back to back"], row["graph"] = bench.together_us(case), bench.graph_us(case)
        bench = Bench(device, artifact, use_cupti=True)
        for row, case in zip(rows, listed, strict=True):
            row["cupti"], row["cupti_spread"] = bench.alone_us(case)
            if case.entry == "wait":
                row["inside"] = bench.inside_us()
    notes = {bench.session.timer: bench.session.timer_note}
    print(device.name, device.driver, notes, bench.session.read_state())
    columns = ("kernel", "inside", "cupti", "cupti_spread", "events", "events_spread", "back to back", "graph")
    print("".join(f"{column:>17}" for column in columns), " (us)")
    for row in rows:
        print(
            "".join(f"{row[c]:>17.2f}" if isinstance(row.get(c), float) else f"{row.get(c, ''):>17}" for c in columns)
        )
    if options.json:
        options.json.write_text(
            json.dumps({"device": device.name, "driver": device.driver, "notes": notes, "rows": rows})
        )


if __name__ == "__main__":
    main()
