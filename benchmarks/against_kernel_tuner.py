"""Kernelwright and Kernel Tuner on the same kernel, space, device and verification.

```
python benchmarks/against_kernel_tuner.py --out results.json [--evaluations 500] [--repeats 3] [--seconds 30]
```
Both tune `benchmarks/kernel_tuner/matmul.cu` (true float32, n = 2048) and verify every configuration against float64.

1. Time for N evaluations of random configurations, with nothing built before; where the time goes.
2. Time until within 2 % of the best known, each with its own best searcher and the same limit of seconds.

All times are from the call on: making inputs, the reference and everything else that a tuner does before its first
configuration is in them, for both. What a device can do at most is measured once a week by Kernelwright: before.
Kernel Tuner gets its best settings: its strategy that does best on recorded spaces, and a verification that compares in
one pass instead of `np.allclose`. Its runner for several GPUs, the one that works in parallel, is not used.

What counts as within 2 % is not what a tool measured while it searched: all configurations that were ever the best of
either are measured again, side by side. Needs a GPU, `kernel_tuner` with its CUDA backend, and `kernelwright[cuda]`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent / "kernel_tuner"
SIZE = 2048
WITHIN = 1.02
KNOWN = "AGAINST_KERNEL_TUNER_CEILINGS"
KERNEL_TUNER_STRATEGY = "hybrid_vndx"
"""The best of its strategies on recorded spaces; see docs/measurements/search."""

Trace = list[tuple[float, dict[str, int]]]
"""Seconds since the start, and the configuration that was the best from then on."""


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--evaluations", type=int, default=500)
    words.add_argument("--their-evaluations", type=int, help="of Kernel Tuner, which takes the same for each")
    words.add_argument("--seconds", type=float, default=90.0)
    words.add_argument("--lang", default="NVCUDA", help="Kernel Tuner's backend: NVCUDA or CUPY")
    words.add_argument("--seeds", type=int, default=3, help="of the search to within 2 %%")
    words.add_argument("--repeats", type=int, default=1, help="of the random part")
    words.add_argument("--only", choices=("random", "search"), help="one of the two parts")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as known:
        os.environ[KNOWN] = known
        measure_ceilings(Path(known))
        compare_tuners(given)


def compare_tuners(given: argparse.Namespace) -> None:
    report: dict[str, Any] = {"evaluations": given.evaluations, "seconds": given.seconds, "size": SIZE}
    if given.only != "search":
        random: dict[str, list[Any]] = {"kernelwright": [], "kernel_tuner": []}
        report["random"] = random
        for _ in range(given.repeats):
            random["kernelwright"].append(ours_random(given.evaluations))
            write(given.out, report)
            theirs = theirs_random(given.their_evaluations or given.evaluations, given.lang)
            random["kernel_tuner"].append(theirs)
            write(given.out, report)
    if given.only == "random":
        return
    traces: dict[str, list[Trace]] = {"kernelwright": [], "kernel_tuner": []}
    for seed in range(given.seeds):
        traces["kernelwright"].append(ours_search(given.seconds, seed))
        traces["kernel_tuner"].append(theirs_search(given.seconds, given.lang, seed))
        write(given.out, {**report, "traces": traces})
    report["search"] = judged(traces)
    write(given.out, report)


def write(path: Path, report: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1), flush=True)


# Kernelwright -------------------------------------------------------------------------------------


def measure_ceilings(folder: Path) -> None:
    """What every run on this device finds already measured."""
    from kernelwright.roofline.speed_of_light import device_ceilings
    from kernelwright.tuning.machine import LocalMachine
    from kernelwright.tuning.settings import TuneSettings
    from kernelwright.tuning.tune import TuningProblem

    subject, machine = TuningProblem.load(HERE / "problem.toml"), LocalMachine()
    device = machine.device(None, subject.template.language)
    with machine.runner(subject.problem, device, TuneSettings()) as runner:
        device_ceilings(device, runner.measure_ceilings, folder=folder)


def ours(folder: str, **options: Any) -> tuple[Any, float, float]:
    """The result, the wall time of all of it, and when the call began, as the system's clock has it."""
    from kernelwright import tune

    cache = Path(folder) / "cache"  # nothing is built
    if known := os.environ.get(KNOWN):
        shutil.copytree(known, cache / "ceilings")
    os.environ["KERNELWRIGHT_CACHE_DIR"] = str(cache)
    began_s, start_s = time.time(), time.perf_counter()
    result = tune(HERE / "problem.toml", run=f"{folder}/run", **options)
    return result, time.perf_counter() - start_s, began_s


def since_call(result: Any, event: Any, began_s: float) -> float:
    """Seconds from the call to a recorded event."""
    session = result.view.sessions[0]
    return float(session.time_s - began_s + event.elapsed_s - session.spent_s)


def ours_random(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result, wall_s, began_s = ours(folder, budget=f"{count}", searcher="random", seed=1)
        events = result.view.evaluations
        costs = [event.cost for event in events]
        return {
            "wall_s": wall_s,
            "first_s": since_call(result, events[0], began_s),
            "last_s": since_call(result, events[-1], began_s),
            "count": len(events),
            "failed": len(result.view.failed),
            "build_s": sum(cost.build_s for cost in costs),
            "check_s": sum(cost.check_s for cost in costs),
            "time_s": sum(cost.time_s for cost in costs),
            "overhead_s": sum(cost.framework_s + cost.strategy_s for cost in costs),
        }


def ours_search(seconds: float, seed: int) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        result, _, began_s = ours(folder, budget=f"{seconds:g}s", seed=seed)
        best, trace = float("inf"), []
        for event in result.view.evaluations:
            if event.value is not None and event.value < best:
                best = event.value
                trace.append((since_call(result, event, began_s), dict(event.config)))
        return trace


# Kernel Tuner -------------------------------------------------------------------------------------


def theirs(lang: str, seed: int, **options: Any) -> tuple[list[dict[str, Any]], float, float]:
    """The results, the wall time of all of it, and when the call began, as the system's clock has it."""
    from kernel_tuner import tune_kernel

    parameters, restrictions = declared_space()
    began_s, start_s = time.time(), time.perf_counter()
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(2))
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    arguments = [np.zeros((SIZE, SIZE), np.float32), a, b, np.int32(SIZE)]
    results, _ = tune_kernel(
        "matmul", (HERE / "matmul.cu").read_text(), (SIZE, SIZE), arguments, parameters, lang=lang, quiet=True,
        grid_div_x=["BLOCK_X", "TILE_X"], grid_div_y=["BLOCK_Y", "TILE_Y"], block_size_names=["BLOCK_X", "BLOCK_Y"],
        restrictions=restrictions, answer=[expected, None, None, None], atol=1e-2, verify=is_right, **options,
    )  # fmt: skip
    return results, time.perf_counter() - start_s, began_s


def is_right(answer: Sequence[Any], result: Sequence[Any], *, atol: float) -> bool:
    """One pass; NaN is wrong."""
    return bool(np.max(np.abs(np.asarray(result[0]).reshape(answer[0].shape) - answer[0])) <= atol)


def declared_space() -> tuple[dict[str, list[int]], list[str]]:
    """The parameters and constraints of the template, in Kernel Tuner's words (the expressions are Python)."""
    from kernelwright.tuning.tune import TuningProblem

    template = TuningProblem.load(HERE / "problem.toml").template
    parameters = {each.name: list(each.values) for each in template.parameters}
    restrictions = [each.expression.text.replace(" n ", f" {SIZE} ") for each in template.constraints]
    return parameters, [f"{SIZE}{each[1:]}" if each.startswith("n ") else each for each in restrictions]


def theirs_random(count: int, lang: str) -> dict[str, Any]:
    results, wall_s, began_s = theirs(lang, 1, strategy="random_sample", strategy_options={"max_fevals": count})
    names = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")
    sums = {name.replace("_time", "_s"): sum(float(each.get(name, 0)) for each in results) / 1e3 for name in names}
    failed = sum(not isinstance(each["time"], int | float) for each in results)
    moments = [moment_of(each) - began_s for each in results]
    return {
        "wall_s": wall_s, "first_s": min(moments), "last_s": max(moments), "count": len(results), "failed": failed,
        **sums,
    }  # fmt: skip


def moment_of(result: Mapping[str, Any]) -> float:
    """When a configuration was done, as the system's clock has it."""
    return datetime.datetime.fromisoformat(str(result["timestamp"])).timestamp()


def theirs_search(seconds: float, lang: str, seed: int) -> Trace:
    options = {"time_limit": seconds, "max_fevals": 10**6}
    results, _, began_s = theirs(lang, seed, strategy=KERNEL_TUNER_STRATEGY, strategy_options=options)
    names = list(declared_space()[0])
    best, trace = float("inf"), []
    for each in sorted(results, key=moment_of):
        if isinstance(each["time"], int | float) and each["time"] < best:
            best = float(each["time"])
            trace.append((moment_of(each) - began_s, {name: int(each[name]) for name in names}))
    return trace


# Together -----------------------------------------------------------------------------------------


def judged(traces: Mapping[str, Sequence[Trace]]) -> dict[str, Any]:
    """When each had a configuration within 2 % of the best of all, by one measurement side by side."""
    configs = {json.dumps(config, sort_keys=True) for each in traces.values() for trace in each for _, config in trace}
    times_ms = measured_together(sorted(configs))
    best_ms = min(times_ms.values())
    told = {}
    for name, each in traces.items():
        rows = []
        for trace in each:
            keyed = [(moment_s, json.dumps(config, sort_keys=True)) for moment_s, config in trace]
            known = [(moment_s, times_ms[key]) for moment_s, key in keyed if key in times_ms]
            hits = [moment_s for moment_s, time_ms in known if time_ms <= WITHIN * best_ms]
            final_ms = known[-1][1] if known else None
            rows.append({"within_2_percent_s": min(hits, default=None), "final_ms": final_ms})
        told[name] = rows
    return {"best_ms": best_ms, "compared": len(configs), **told}


def measured_together(configs: Sequence[str], *, rounds: int = 30) -> dict[str, float]:
    """Median times of interleaved rounds, in groups that share the default as a yardstick."""
    from kernelwright.problem.config import Config
    from kernelwright.template.model import Candidate
    from kernelwright.tuning.machine import LocalMachine
    from kernelwright.tuning.settings import TuneSettings
    from kernelwright.tuning.tune import TuningProblem

    subject, machine = TuningProblem.load(HERE / "problem.toml"), LocalMachine()
    device = machine.device(None, subject.template.language)
    ratios: dict[str, float] = {}
    with machine.runner(subject.problem, device, TuneSettings()) as runner:
        runner.calibrate(subject.baseline)
        for start in range(0, len(configs), 12):
            group = configs[start : start + 12]
            candidates = [Candidate(subject.template, Config(json.loads(each))) for each in group]
            comparison = runner.compare([subject.baseline, *candidates], rounds=rounds)
            assert comparison is not None
            rows = next(iter(comparison.samples_ms.values()))
            base_ms = statistics.median(rows[0])
            by_id = dict(zip(comparison.candidate_ids, rows, strict=True))
            for text, candidate in zip(group, candidates, strict=True):
                row = by_id.get(candidate.id)
                if row is not None:
                    paired = statistics.median(own / base for own, base in zip(row, rows[0], strict=True))
                    ratios[text] = paired * base_ms
    return ratios


if __name__ == "__main__":
    main()
