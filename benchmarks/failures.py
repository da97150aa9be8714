"""What a failing candidate costs, by kind, beside a working one, on the device at hand.

```
python benchmarks/failures.py [--device NAME] [--megabytes 8] [--repeats 3] [--kinds crash,hang] [--json FILE]
```
Each failing candidate is followed by a working one, which bears what the failure leaves behind. A cost is what both
take, less what a working one takes after another. All is built before.
Processor seconds are those of this process and of all that it starts. A hanging launch waits `--timeout` seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright import knobs
from kernelwright.backend.base import DeviceInfo
from kernelwright.evaluate.base import EvaluationRequest, Incumbent
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildPool
from kernelwright.evaluate.builds.render import plans_by_unit, render
from kernelwright.evaluate.device.probe import probe_devices, select_device
from kernelwright.evaluate.device_queue.queue import medians_ms
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.template.load import load_baseline, load_template
from kernelwright.template.model import Candidate
from kernelwright.tuning.environment import usable_core_count
from kernelwright.tuning.settings import TuneSettings

REFUSED = "refused launch"
MOST_BLOCK = 1 << 20
"""Threads of a block that no device takes."""

KINDS = {
    "works": "y[i] = 2.0f * x[i];",
    "slow": "for (int k = 0; k < 400; ++k) ((volatile GLOBAL float *)y)[i] = 2.0f * x[i];",
    "build error": "this is no statement;",
    "wrong": "y[i] = 2.0f * x[i] + 1.0f;",
    "one element wrong": "y[i] = 2.0f * x[i] + (i == n / 2 ? 1.0f : 0.0f);",
    "out of bounds": "y[i] = 2.0f * x[i]; if (i == n - 1) y[n + 3] = 1.0f;",
    REFUSED: "y[i] = 2.0f * x[i];",
    "crash": "y[i] = 2.0f * x[i]; if (i == 0) ((volatile GLOBAL int *)64)[0] = 1;",
    "hang": "y[i] = 2.0f * x[i]; for (volatile int k = 1; k;) k = 1;",
}
HEADS = {
    "opencl": "#define GLOBAL __global\n__kernel void doubled(GLOBAL const float *x, GLOBAL float *y, const int n) {\n"
    "  const int i = get_global_id(0);\n",
    "cuda": '#define GLOBAL\nextern "C" __global__ void doubled(const float *x, float *y, const int n) {\n'
    "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n",
}
TEMPLATE = """// /// kernelwright
// [parameters]
// KIND  = {{ values = {kinds}, default = 0 }}
// BLOCK = {{ values = [256, {most_block}], default = 256 }}
// SALT  = {{ values = {salts}, default = 0 }}
// [launch]
// grid  = ["ceil_div(n, BLOCK)"]
// block = ["BLOCK"]
// ///
{head}  if (n < 0) y[0] = SALT;
  if (i < n) {{
{cases}
  }}
}}
"""
PROBLEM = """name = "doubled"
kernel = "doubled.{ending}"
entry = "doubled"
reference = "reference.py:doubled"

[arguments]
x = {{ role = "input", dtype = "float32", shape = ["n"] }}
y = {{ role = "output", dtype = "float32", shape = ["n"] }}
n = {{ role = "scalar", dtype = "int32", value = "n" }}

[[workloads]]
name = "all"
n = {n}
"""
REFERENCE = "def doubled(x, n):\n    return 2 * x\n"


@dataclass(frozen=True, slots=True)
class Spent:
    """One evaluation, whose build was cached."""

    wall_s: float
    cpu_s: float
    said: str


def write_problem(folder: Path, backend: str, *, megabytes: float, salt_count: int) -> Path:
    """The problem's folder, for a device of this backend; no two salts have the same machine code."""
    ending = {"opencl": "cl", "cuda": "cu"}[backend]
    cases = "\n".join(f"#if KIND == {index}\n    {body}\n#endif" for index, body in enumerate(KINDS.values()))
    numbers = {"kinds": list(range(len(KINDS))), "salts": list(range(salt_count)), "most_block": MOST_BLOCK}
    text = TEMPLATE.format(**numbers, head=HEADS[backend], cases=cases)
    (folder / f"doubled.{ending}").write_text(text)
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "problem.toml").write_text(PROBLEM.format(ending=ending, n=int(megabytes * 1e6 / 8)))
    return folder


def cpu_s() -> float:
    """Processor seconds of this process and of all its descendants, ended ones included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = ended.ru_utime + ended.ru_stime + own.ru_utime + own.ru_stime
    parents, ticks = {}, {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(each.name)] = int(fields[1])
            ticks[int(each.name)] = sum(map(int, fields[11:15]))
    for process in parents:
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and process != os.getpid():
            total += ticks[process] / os.sysconf("SC_CLK_TCK")
    return total


def evaluate(runner: LocalRunner, candidate: Candidate, incumbent: Incumbent) -> Spent:
    """Submit one, and wait for it."""
    start_s, start_cpu_s = time.perf_counter(), cpu_s()
    outcome, _ = runner.submit(EvaluationRequest(candidate, incumbent=incumbent)).result()
    said = f"{outcome.stage}: {outcome.reason}" if isinstance(outcome, Failed) else "passed"
    return Spent(time.perf_counter() - start_s, cpu_s() - start_cpu_s, said)


def build_all(candidates: Sequence[Candidate], problem: Problem, device: DeviceInfo) -> None:
    """Fill the artifact cache, so that no build is measured."""
    with tempfile.TemporaryDirectory() as scratch:
        cache = ArtifactCache(knobs.cache_dir() / "artifacts")
        pool = BuildPool(device.backend, device, process_count=2, cache=cache, scratch=Path(scratch))
        rendered = [render(candidate, problem, device) for candidate in candidates]
        units = [each for one in rendered if not isinstance(one, Failed) for each in plans_by_unit(one).items()]
        for future in [pool.submit(unit, plans) for unit, plans in units]:
            future.result()
        pool.close()


def median_of(pairs: Sequence[tuple[Spent, Spent]], usual: Sequence[Spent], name: str) -> float:
    """What a candidate and the next one take, less what one takes after a working one."""
    one = statistics.median(getattr(each, name) for each in usual)
    return statistics.median(getattr(bad, name) + getattr(after, name) - one for bad, after in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device")
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--timeout", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kinds = [kind.strip() for kind in options.kinds.split(",")]
    device = select_device(probe_devices(), options.device)
    settings = TuneSettings(data_seed=secrets.randbits(31), launch_timeout_s=options.timeout).evaluation(
        is_cpu=device.kind == "cpu", core_count=usable_core_count()
    )
    wanted = ["works"] * (options.repeats + 2)
    wanted += [each for kind in kinds for _ in range(options.repeats) for each in (kind, "works")]
    rows = {}
    with tempfile.TemporaryDirectory() as place:
        problem = load_problem(
            write_problem(Path(place), device.backend, megabytes=options.megabytes, salt_count=len(wanted))
        )
        template = load_template(problem)
        candidates = [
            Candidate(template, {
                "KIND": list(KINDS).index(kind), "BLOCK": MOST_BLOCK if kind == REFUSED else 256, "SALT": salt,
            })
            for salt, kind in enumerate(wanted)
        ]  # fmt: skip
        build_all(candidates, problem, device)
        with LocalRunner(problem, device, settings) as runner:
            outcome, _ = runner.calibrate(load_baseline(problem, template))
            assert isinstance(outcome, Passed)
            times_ms = medians_ms(outcome.measurements)
            incumbent = Incumbent(times_ms, {"all": 1.0}, {name: each / 2 for name, each in times_ms.items()}, 0.5)
            spent = [evaluate(runner, candidate, incumbent) for candidate in candidates]
    usual, rest = spent[2 : options.repeats + 2], spent[options.repeats + 2 :]
    for index, kind in enumerate(kinds):
        own = rest[2 * options.repeats * index :][: 2 * options.repeats]
        pairs = list(zip(own[::2], own[1::2], strict=True))
        wall_s, used_s = (median_of(pairs, usual, name) for name in ("wall_s", "cpu_s"))
        said, after = ({each.said for each in column} for column in zip(*pairs, strict=True))
        rows[kind] = {"wall_s": wall_s, "cpu_s": used_s, "said": sorted(said), "next": sorted(after)}
        print(f"{kind:18} {wall_s:6.2f} s wall {used_s:6.2f} s of processors  {', '.join(said)}")
    found = {"device": device.name, "megabytes": options.megabytes, "timeout_s": options.timeout, "kinds": rows}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
