"""The softmax of very long rows on an OpenCL CPU device: the plain kernel, `rows`, and `one-pass`.

```
python benchmarks/long_rows.py [--rows 64] [--cols 262144] [--rounds 15]
```
The plain kernel is the baseline of the example `softmax`. Each tactic runs at the best of four configurations of one
thread a row, found before; then all three take turns. Told are median wall times, and the least processor time of all
threads, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

import numpy as np
import pyopencl as cl

from kernelwright.problem.model import Workload
from kernelwright.tactics.base import Rewrite, Subject
from kernelwright.tactics.registry import tactic

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "tactics"))
from tactic_runs import example  # noqa: E402

CONFIGS = tuple({"LANES": 1, "ROWS": 1, "VEC": vec, "UNROLL": unroll} for vec in (4, 8) for unroll in (1, 2))


@dataclass
class Way:
    """One kernel with its times."""

    name: str
    kernel: Any
    threads: tuple[int, int]
    block: tuple[int, int]
    wall_ms: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)

    def run(self, queue: Any) -> None:
        """Once, with its times."""
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        cl.enqueue_nd_range_kernel(queue, self.kernel, self.threads, self.block)
        queue.finish()
        self.wall_ms.append((time.perf_counter() - start) * 1e3)
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.processor_ms.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--rows", type=int, default=64)
    words.add_argument("--cols", type=int, default=262144)
    words.add_argument("--rounds", type=int, default=15)
    given = words.parse_args()
    subject = example("softmax")
    sizes = {"rows": given.rows, "cols": given.cols}
    subject = replace(subject, problem=replace(subject.problem, workloads=(Workload("long", sizes),)))
    device = next(d for p in cl.get_platforms() for d in p.get_devices() if d.type & cl.device_type.CPU)
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    x = np.random.default_rng(0).normal(size=(given.rows, given.cols)).astype(np.float32)
    buffers = (cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=x),
               cl.Buffer(context, cl.mem_flags.READ_WRITE, x.nbytes))  # fmt: skip
    ways = [plain(subject, context, buffers, given.rows, given.cols)]
    ways += [
        best(name, subject, context, queue, buffers, given.rows, given.cols) for name in ("rows", "one-pass")
    ]  # fmt: skip
    for _ in range(given.rounds):
        for way in ways:
            way.run(queue)
    print(f"{device.name}, {given.rows} x {given.cols}, load average {os.getloadavg()[0]:.0f}")
    for way in ways:
        print(f"{way.name}: {statistics.median(way.wall_ms):.1f} ms, processor {min(way.processor_ms):.1f} ms")


def built(context: Any, source: str, options: list[str], buffers: tuple[Any, Any], rows: int, cols: int) -> Any:
    """The kernel with its arguments."""
    kernel = cl.Kernel(cl.Program(context, source).build(options), "softmax")
    kernel.set_args(*buffers, np.int32(rows), np.int32(cols))
    return kernel


def plain(subject: Subject, context: Any, buffers: tuple[Any, Any], rows: int, cols: int) -> Way:
    """The kernel as it is."""
    kernel = built(context, subject.source, [], buffers, rows, cols)
    return Way("plain", kernel, (-(-rows // 64) * 64, 1), (64, 1))


def best(
    name: str, subject: Subject, context: Any, queue: Any, buffers: tuple[Any, Any], rows: int, cols: int
) -> Way:  # fmt: skip
    """What a tactic makes of it, at its best configuration; times of the search are forgotten."""
    chosen = tactic(name)
    assert chosen is not None
    rewrite = chosen.apply(subject)
    assert isinstance(rewrite, Rewrite), rewrite.reason
    found = []
    for config in CONFIGS:
        options = [f"-D{key}={value}" for key, value in config.items()]
        way = Way(f"{name} {config}", built(context, rewrite.source, options, buffers, rows, cols), (rows, 1), (1, 1))
        for _ in range(4):
            way.run(queue)
        found.append(way)
    way = min(found, key=lambda each: min(each.processor_ms))
    way.wall_ms.clear()
    way.processor_ms.clear()
    return way


if __name__ == "__main__":
    main()
