"""`triton.autotune` over the space of a Triton problem, and its winner beside other configurations of it.

```
python benchmarks/triton_device/autotuned.py PROBLEM --out FILE [--beside '{"NAME": CONFIG, ...}'] [--winner CONFIG]
```
What the autotuner takes is its benchmarks, whose wall time is measured, and its builds, one after the other. To save
time on the device, the builds are made before, in many processes, and the autotuner finds them in Triton's cache. Their
time is the sum of what each took, times what a few of them took alone over what the same took beside others. Then its
winner, which may be given from before, the default and the given configurations are launched in turns: with a
second-level cache full of what was written, as the autotuner has it, of what was read, and as a launch before left it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime import jit

from kernelwright.backend.cuda.compile.triton_build import (
    constants_of,
    find_kernel,
    launch_arguments,
    run_file,
    stand_in,
)
from kernelwright.backend.interpreter.backend import interpreter_device
from kernelwright.evaluate.builds.render import render_workload
from kernelwright.problem.config import Config
from kernelwright.template.model import Candidate
from kernelwright.tuning.device_limits import build_space
from kernelwright.tuning.tune import TuningProblem

ALONE = 4
"""Builds that are made alone, too."""
ROUNDS = 100
RESAMPLED = 400


class Kernel:
    """A problem's only kernel on its first workload, as people who keep Triton launch it."""

    def __init__(self, folder: Path) -> None:
        self.subject = TuningProblem.load(folder)
        self._device = interpreter_device()
        template, self._workload = self.subject.template, self.subject.problem.workloads[0]
        (self._step,) = template.steps
        self.function = find_kernel(
            run_file(template.source, template.file.name), self._step.entry, template.file.name, jit.JITFunction
        )
        self.space = build_space(self.subject.problem, template, self._device)

    def unit(self, config: Config) -> Any:
        candidate = Candidate(self.subject.template, config)
        return render_workload(candidate, self.subject.problem, self._workload, self._device).unit

    def given(self, config: Config) -> tuple[dict[str, object], dict[str, object]]:
        """Triton's options, and the kernel's constants."""
        return constants_of(self.unit(config), self.function.arg_names)

    def grid(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """Of a configuration, or of what the autotuner gives a grid."""
        own = {each.name: config[each.name] for each in self.subject.template.parameters if each.name in config}
        names = {**self._workload.sizes, **own}
        return tuple(int(each.evaluate(names)) for each in self._step.grid)  # type: ignore[arg-type]

    def arguments(self) -> dict[str, Any]:
        sizes = self._workload.sizes
        made: dict[str, Any] = {}
        for each in self.subject.problem.arguments:
            if each.role == "scalar":
                assert each.value is not None
                made[each.name] = each.value.evaluate(sizes)
                continue
            shape = [int(extent.evaluate(sizes)) for extent in each.shape]  # type: ignore[arg-type]
            dtype = getattr(torch, each.dtype)
            drawn = torch.randn(shape, device="cuda") if dtype.is_floating_point else torch.ones(shape, device="cuda")
            made[each.name] = drawn.to(dtype)
        return made

    @property
    def changed(self) -> list[str]:
        """Arguments that a launch reads and writes."""
        return [each.name for each in self.subject.problem.arguments if each.role == "inout"]


class Built:
    """What processes that are forked build."""

    kernel: Kernel


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("problem", type=Path)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--beside", default="{}")
    words.add_argument("--winner", help="the autotuner's, found before: only the last part is done")
    words.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    words.add_argument("--builds-only", action="store_true", help="where there is no GPU")
    given = words.parse_args()
    kernel = Built.kernel = Kernel(given.problem)
    configs = list(kernel.space)
    row: dict[str, Any] = {"problem": given.problem.name, "configurations": len(configs)}

    def told(**more: Any) -> None:
        row.update(more)
        given.out.write_text(json.dumps(row, indent=1))

    beside = {name: Config(each) for name, each in json.loads(given.beside).items()}
    beside = {"default": kernel.subject.template.default, **beside}
    if given.winner is not None:
        told(**in_turns({**beside, "autotune": Config(json.loads(given.winner))}, kernel.arguments()))
        return
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.perf_counter()
        told(**built(configs, Path(folder), given.processes), builds_wall_s=time.perf_counter() - begin_s)
        if given.builds_only:
            return
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/all"
        known = len(list(Path(folder, "all").iterdir()))
        arguments = kernel.arguments()
        told(**autotuned(configs, arguments))
        told(
            built_again=len(list(Path(folder, "all").iterdir())) - known,
            autotune_s=row["benchmarks_s"] + row["builds_s"],
        )
        told(**in_turns({**beside, "autotune": Config(row["winner"])}, arguments))


# Builds


def start_build_process(folder: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = folder
    stand_in()


def build(config: Config) -> tuple[float, str]:
    """Seconds, and what was refused."""
    options, constants = Built.kernel.given(config)
    unit = Built.kernel.unit(config)
    kinds = launch_arguments(unit, Built.kernel.function.__name__)
    mocks = [jit.MockTensor(each[1:]) if isinstance(each, str) else each for each in kinds]
    names = [each for each in Built.kernel.function.arg_names if each not in constants]
    begin_s = time.perf_counter()
    failed = ""
    try:
        Built.kernel.function.warmup(grid=(1,), **dict(zip(names, mocks, strict=True)), **constants, **options)
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"[:200]
    return time.perf_counter() - begin_s, failed


def built(configs: list[Config], folder: Path, processes: int) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")  # nothing here has touched the GPU yet
    sample = configs[:: max(1, len(configs) // ALONE)][:ALONE]
    with context.Pool(1, start_build_process, (str(folder / "alone"),)) as pool:
        pool.map(build, sample[:1])  # what is loaded once
        (folder / "alone").rename(folder / "first")
        alone = [each for each, _ in pool.map(build, sample[1:], chunksize=1)]
    with context.Pool(processes, start_build_process, (str(folder / "all"),)) as pool:
        found = pool.map(build, configs, chunksize=1)
    beside = [found[configs.index(each)][0] for each in sample[1:]]
    ratio = sum(alone) / sum(beside)
    return {
        "builds_s": sum(each for each, _ in found) * ratio,
        "alone_over_beside": ratio,
        "refused": [each for _, each in found if each][:4],
        "refused_count": sum(bool(each) for _, each in found),
    }


# On the device


def autotuned(configs: list[Config], arguments: dict[str, Any]) -> dict[str, Any]:
    listed = []
    for config in configs:
        options, constants = Built.kernel.given(config)
        listed.append(triton.Config(constants, **options))
    tuner = triton.autotune(configs=listed, key=[], restore_value=Built.kernel.changed or None)(Built.kernel.function)
    own = {str(each): config for each, config in zip(listed, configs, strict=True)}
    begin_s = time.perf_counter()
    tuner[Built.kernel.grid](**arguments)
    torch.cuda.synchronize()
    taken_s = time.perf_counter() - begin_s
    timed = [each[0] if isinstance(each, list | tuple) else each for each in tuner.configs_timings.values()]
    return {
        "benchmarks_s": taken_s,
        "winner": dict(own[str(tuner.best_config)]),
        "out_of_resources": sum(each == float("inf") for each in timed),
        "best_ms": min(timed),
    }


def in_turns(candidates: dict[str, Config], arguments: dict[str, Any]) -> dict[str, Any]:
    """By state of the cache and name, the time, and the speed beside the winner's, with an interval of 95 %."""
    calls = {}
    for name, config in candidates.items():
        options, constants = Built.kernel.given(config)
        calls[name] = (Built.kernel.function[Built.kernel.grid(config)], {**arguments, **constants, **options})
        calls[name][0](**calls[name][1])
    memory = torch.zeros(1 << 26, dtype=torch.float32, device="cuda")
    found: dict[str, Any] = {"beside": {name: dict(each) for name, each in candidates.items()}}
    for state, flush in {"written": memory.zero_, "read": memory.sum, "kept": None}.items():
        times = timed(calls, flush)
        found[f"median_ms, {state}"] = {name: statistics.median(each) for name, each in times.items()}
        found[f"over_autotune, {state}"] = {name: interval(times["autotune"], each) for name, each in times.items()}
    return found


def timed(calls: Mapping[str, Any], flush: Callable[[], object] | None) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        events = []
        for name in random.Random(turn).sample(list(calls), len(calls)):
            launch, passed = calls[name]
            if flush is None:
                launch(**passed)
            else:
                flush()
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            launch(**passed)
            last.record()
            events.append((name, first, last))
        torch.cuda.synchronize()
        for name, first, last in events:
            times[name].append(first.elapsed_time(last))
    return times


def interval(base: list[float], own: list[float]) -> list[float]:
    ratios = [one / other for one, other in zip(base, own, strict=True)]
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED))
    return [statistics.median(ratios), medians[RESAMPLED // 40], medians[-1 - RESAMPLED // 40]]


if __name__ == "__main__":
    main()
