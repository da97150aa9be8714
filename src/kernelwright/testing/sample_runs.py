"""Synthetic runs for tests of everything that reads a run: the same shapes, units and oddities as a real one.

The times come from a made-up cost function of the parameters and a seeded generator, on a made-up device,
whose name says so.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kernelwright.identity import content_id
from kernelwright.problem.config import Config, Value
from kernelwright.problem.outcome import Cost, Failed, Measurement, Outcome, OutputError, Passed
from kernelwright.store.event import (
    BaselineMeasured,
    Evaluated,
    Event,
    FinalistsCompared,
    Noted,
    RunFinished,
    RunStarted,
    SessionStarted,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PARAMETERS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {
        "BLOCK": (32, 64, 128, 256, 512, 1024),
        "VEC": (1, 2, 4, 8),
        "UNROLL": (1, 2, 4, 8),
        "USE_LOCAL": (False, True),
        "ORDER": ("row", "column", "tiled"),
        "SCALE": (0.5, 1.0),
    }
)
"""Every type of value that a parameter may have."""

BASELINE_ID = content_id("sample", "baseline")

SOURCE = """// /// kernelwright
// [parameters]
// BLOCK = { values = [32, 64, 128, 256, 512, 1024], default = 128 }
// VEC = { values = [1, 2, 4, 8], default = 1 }
// ///
__kernel void scale(__global float *y, __global const float *x, int n) {
    for (int i = get_global_id(0) * VEC; i < n; i += get_global_size(0) * VEC)
        for (int k = 0; k < VEC; ++k) y[i + k] = 2.0f * x[i + k];
}
"""

PROBLEM = """name = "scale"
kernel = "scale.cl"
entry = "scale"
reference = "reference.py:scale"
"""

REFERENCE = '''def scale(x, n):
    """Twice `x`."""
    return 2 * x
'''

FILES: Mapping[str, bytes] = MappingProxyType(
    {
        "problem.toml": PROBLEM.encode(),
        "scale.cl": SOURCE.encode(),
        "reference.py": REFERENCE.encode(),
    }
)
"""The frozen problem of a sample run."""

_FINALISTS = 3
_ROUNDS = 20
_BUILD_LOG = """<kernel>:7:31: error: use of undeclared identifier 'acc'
        for (int k = 0; k < VEC; ++k) acc[k] = x[i + k];
                              ^
1 error generated.
"""


def sample_events(*, evaluations: int = 200, workloads: int = 2, seed: int = 0, failures: bool = True) -> list[Event]:
    """A whole run from start to end: the same events for the same arguments.

    Two sessions (it was resumed half way), some evaluations stopped early, some answered from the store,
    failures of every stage when `failures` is true, and a comparison of 20 rounds unless nothing passed.
    """
    sample = _Sample(random.Random(seed), _workloads(workloads))
    head: list[Event] = [
        _started(sample, seed),
        SessionStarted(time_s=1_763_700_000.0, process_id=4242),
        sample.baseline(),
    ]
    evaluated = _evaluations(sample, evaluations, failures=failures)
    spent_s = evaluated[-1].elapsed_s if evaluated else 0.0
    half = len(evaluated) // 2
    resumed_s = evaluated[half - 1].elapsed_s if half else 0.0
    middle: list[Event] = [
        *evaluated[:half],
        SessionStarted(time_s=1_763_700_600.0, process_id=4711, spent_s=resumed_s),
        *evaluated[half:],
    ]
    tail: list[Event] = [
        Noted("info", "the baseline's own error is 0.2 of the tolerance on the dataset 'large'"),
        Noted("warning", "the clock of the device changed by 4 % during the run"),
    ]
    comparison = _compared(sample, evaluated)
    tail += [comparison] if comparison is not None else []
    tail.append(RunFinished(reason="budget", spent_s=spent_s + 2.5))
    return head + middle + tail


def write_sample_run(folder: Path, **arguments: Any) -> Path:
    """Write the run of `sample_events(**arguments)` as a new run folder, and return the folder.

    Raises:
        StoreError: the folder exists or cannot be written.
    """
    from kernelwright.store.run_folder import RunFolder

    with RunFolder.create(folder, files=FILES) as run:
        blob = run.blobs.put(SOURCE)
        events = sample_events(**arguments)
        run.append([_with_source(event, blob) for event in events])
    return folder


def _with_source(event: Event, blob: str) -> Event:
    if isinstance(event, BaselineMeasured):
        return BaselineMeasured(event.candidate_id, event.outcome, event.cost, source_blob=blob)
    return event


def _workloads(count: int) -> dict[str, dict[str, float]]:
    sizes = [1 << (18 + 2 * place) for place in range(count)]
    return {f"n={n}": {"n": float(n), "weight": 2.0 if place == 0 else 1.0} for place, n in enumerate(sizes)}


def _started(sample: _Sample, seed: int) -> RunStarted:
    raw_count = math.prod(len(values) for values in PARAMETERS.values())
    return RunStarted(
        run_id=content_id("sample", seed),
        created="2025-11-21T04:00:00+00:00",
        version="0.1.0",
        problem_name="scale",
        problem_id=content_id(dict(FILES)),
        settings={
            "searcher": "surrogate",
            "seed": seed,
            "budget_evaluations": 200,
            "racing": True,
            "options": {},
        },
        device={
            "name": "Synthetic device (sample data)",
            "vendor": "none",
            "backend": "synthetic",
            "max_threads_per_block": 1024,
            "shared_memory_per_block": 49152,
            "multiprocessors": 8,
        },
        environment={"python": "3.11.7", "platform": "Linux-x86_64", "numpy": "2.3.5"},
        space={
            "parameters": {name: list(values) for name, values in PARAMETERS.items()},
            "feasible_count": sum(_is_feasible(config) for config in _all_configs()),
            "raw_count": raw_count,
            "constraints": [
                {"name": "useful", "text": "BLOCK * VEC <= 4096", "origin": "template"},
                {"name": "threads", "text": "BLOCK <= device.max_threads_per_block", "origin": "device"},
            ],
        },
        workloads=sample.sizes,
    )


def _all_configs() -> list[Config]:
    rows = itertools.product(*PARAMETERS.values())
    return [Config(dict(zip(PARAMETERS, row, strict=True))) for row in rows]


def _is_feasible(config: Config) -> bool:
    block, vec = config["BLOCK"], config["VEC"]
    assert isinstance(block, int)
    assert isinstance(vec, int)
    return block * vec <= 4096


@dataclass(frozen=True, slots=True)
class _Sample:
    """The made-up device: times from a cost function with noise."""

    random: random.Random
    sizes: Mapping[str, Mapping[str, float]]

    def true_ms(self, config: Mapping[str, Value], workload: str) -> float:
        """The time without noise; the best `BLOCK` differs between workloads."""
        n = self.sizes[workload]["n"]
        if not config:
            return n / 4e5
        block, vec, unroll = (float(config[name]) for name in ("BLOCK", "VEC", "UNROLL"))
        wanted = 6.5 + 0.75 * math.log2(n / 2**18)
        factor = 0.22 + 0.05 * (math.log2(block) - wanted) ** 2 + 0.09 * (math.log2(vec) - 2) ** 2
        factor += 0.03 * abs(math.log2(unroll) - 1) + {"row": 0.0, "tiled": 0.05, "column": 0.6}[str(config["ORDER"])]
        factor += -0.04 if config["USE_LOCAL"] and block >= 128 else 0.02
        return n / 4e5 * factor

    def samples_ms(self, config: Mapping[str, Value], workload: str, count: int) -> tuple[float, ...]:
        """Noisy times: never below the true one, with a long tail."""
        true_ms = self.true_ms(config, workload)
        return tuple(true_ms * (1.0 + self.random.lognormvariate(-4.5, 0.8)) for _ in range(count))

    def baseline(self) -> BaselineMeasured:
        """The baseline's measurement on every workload."""
        measured = tuple(
            Measurement(name, self.samples_ms({}, name, 30), "synthetic", wall_ratio=1.1, warmup_count=5)
            for name in self.sizes
        )
        return BaselineMeasured(
            candidate_id=BASELINE_ID,
            outcome=Passed(measured, errors=(OutputError("y", 1.2e-7, 0.2),)),
            cost=Cost(build_s=0.4, check_s=0.3, time_s=0.2, framework_s=0.002),
        )


def _evaluations(sample: _Sample, count: int, *, failures: bool) -> list[Evaluated]:
    baseline = sample.baseline()
    assert isinstance(baseline.outcome, Passed)
    baseline_ms = {m.workload: median(m.samples_ms) for m in baseline.outcome.measurements}
    elapsed_s, best = 0.0, math.inf
    done: list[Evaluated] = []
    for index, config in enumerate(_proposed(sample, count)):
        if index % 40 == 39:
            known = dataclasses.replace(done[-20], index=index, cost=Cost(), elapsed_s=elapsed_s, source="known")
            done.append(known)
            continue
        cost = _cost(sample.random)
        elapsed_s += cost.total_s
        outcome: Outcome | None = _failure(sample.random, index, config) if failures else None
        value: float | None = None
        if outcome is None:
            passed, value = _passed(sample, config, baseline_ms, best)
            best = best if passed.stopped_early else min(best, value)
            outcome = passed
        identity = content_id("sample", config)
        done.append(Evaluated(index, identity, dict(config), outcome, value, cost, elapsed_s))
    return done


def _proposed(sample: _Sample, count: int) -> list[Config]:
    """A third at random, then the promising ones; over again when there are not enough."""
    configs = [config for config in _all_configs() if _is_feasible(config)]
    sample.random.shuffle(configs)
    explored, promising = configs[: count // 3], configs[count // 3 :]
    promising.sort(key=lambda config: sample.true_ms(config, next(iter(sample.sizes))))
    return list(itertools.islice(itertools.cycle(explored + promising), count))


def _cost(generator: random.Random) -> Cost:
    return Cost(
        build_s=generator.uniform(0.05, 0.25),
        check_s=generator.uniform(0.02, 0.08),
        time_s=generator.uniform(0.02, 0.1),
        framework_s=generator.uniform(0.0005, 0.002),
        strategy_s=generator.uniform(0.0002, 0.02),
        is_build_cached=generator.random() < 0.1,
    )


def _passed(sample: _Sample, config: Config, baseline_ms: Mapping[str, float], best: float) -> tuple[Passed, float]:
    """The outcome and its value; clearly slower than the best so far is stopped on its first workload."""
    measurements: list[Measurement] = []
    logs: list[tuple[float, float]] = []
    for name, entry in sample.sizes.items():
        stops = sample.true_ms(config, name) / baseline_ms[name] > 3.0 * best
        samples_ms = sample.samples_ms(config, name, 3 if stops else 15)
        measurements.append(
            Measurement(name, samples_ms, "synthetic", wall_ratio=1.2, warmup_count=3, stopped_early=stops)
        )
        logs.append((entry["weight"], math.log(median(samples_ms) / baseline_ms[name])))
        if stops:
            break
    value = math.exp(sum(weight * log for weight, log in logs) / sum(weight for weight, _ in logs))
    errors = (OutputError("y", 1.3e-7, sample.random.uniform(0.05, 0.5)),)
    resources = {"scale": {"local_memory_bytes": 4.0 * float(config["BLOCK"]) * float(config["USE_LOCAL"])}}
    return Passed(tuple(measurements), errors=errors, resources=resources), value


def _failure(generator: random.Random, index: int, config: Config) -> Failed | None:
    """One failure in six, of every stage in turn."""
    if index % 6 != 5:
        return None
    block = config["BLOCK"]
    kinds = (
        Failed("render", "undefined-macro", "the source has no macro 'ORDER' for the value 'tiled'"),
        Failed("build", "compile-error", "the compiler reported 1 error", log=_BUILD_LOG),
        Failed(
            "resources",
            "too-many-threads",
            f"{block} threads in a block, but the built kernel allows 256 on this device",
        ),
        Failed("launch", "timeout", "no result after 10.0 s", log="worker killed after 10.0 s\n", workload=None),
        Failed("launch", "crash", "the worker died of SIGSEGV", log="Segmentation fault (core dumped)\n"),
        Failed(
            "check",
            "mismatch",
            "y[1023]: 3.0 where 2.0 was expected (tolerance 2e-06)",
            log="worst elements of y:\n  [1023]  got 3.0  expected 2.0\n  [2047]  got 0.0  expected 2.0\n",
            workload="n=262144",
        ),
        Failed("check", "not-finite", "y holds 17 NaN <&> 3 inf", workload="n=262144"),
        Failed(
            "time",
            "nondeterministic",
            "y changed between two launches on the same input",
            workload="n=262144",
        ),
    )
    return kinds[(index // 6 + generator.randrange(2)) % len(kinds)]


def _compared(sample: _Sample, evaluated: Sequence[Evaluated]) -> FinalistsCompared | None:
    """The best few, in all and per workload, against the baseline; one more failed the thorough check."""
    full = [e for e in evaluated if isinstance(e.outcome, Passed) and not e.outcome.stopped_early]
    ranked = {e.candidate_id: e for e in sorted(full, key=lambda e: e.value or math.inf)}
    if not ranked:
        return None
    per_workload = [min(ranked.values(), key=lambda e: sample.true_ms(e.config, name)) for name in sample.sizes]
    chosen = {e.candidate_id: e for e in [*list(ranked.values())[:_FINALISTS], *per_workload]}
    finalists = list(chosen.values())
    rejected = [e for e in ranked.values() if e.candidate_id not in chosen][:1]
    configs: list[Mapping[str, Value]] = [{}, *(dict(e.config) for e in finalists)]
    rows: dict[str, tuple[tuple[float, ...], ...]] = {}
    for name in sample.sizes:
        drift = [1.0 + 0.02 * math.sin(turn) for turn in range(_ROUNDS)]
        rows[name] = tuple(
            tuple(
                time_ms * factor
                for time_ms, factor in zip(sample.samples_ms(config, name, _ROUNDS), drift, strict=True)
            )
            for config in configs
        )
    return FinalistsCompared(
        candidate_ids=(BASELINE_ID, *(e.candidate_id for e in finalists)),
        configs=tuple(configs),
        samples_ms=rows,
        rejected={e.candidate_id: "y differs on the dataset 'denormals'" for e in rejected},
    )
