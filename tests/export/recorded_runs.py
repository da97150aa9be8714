"""Runs with made-up times on a made-up device, of real problem folders: export needs no device."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path

from kernelwright.identity import content_id
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Cost, Failed, Measurement, Outcome, Passed
from kernelwright.store.event import (
    BaselineMeasured,
    Evaluated,
    Event,
    FinalistsCompared,
    RunFinished,
    RunStarted,
    SessionStarted,
)
from kernelwright.store.run_folder import RunFolder
from kernelwright.template.load import problem_files
from kernelwright.tuning.tune import TuningProblem

LIMITS = {
    "max_threads_per_block": 1024,
    "shared_memory_per_block": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "warp_size": 32,
    "multiprocessors": 132,
    "max_threads_per_multiprocessor": 2048,
    "registers_per_block": 65536,
    "registers_per_multiprocessor": 65536,
    "max_blocks_per_multiprocessor": 32,
    "compute_capability": 90,
}


def _passed(time_ms: Mapping[str, float], seed: int) -> Passed:
    generator = random.Random(seed)
    return Passed(
        tuple(
            Measurement(name, tuple(ms * (1 + 0.01 * generator.random()) for _ in range(7)), "made-up")
            for name, ms in time_ms.items()
        )
    )


def record_run_of(problem: Path, configs: list[Mapping[str, object]], folder: Path, *, compare: bool = True) -> Path:
    """Make a run of a problem folder in which the given configs were tried, the later the faster.

    On the k-th workload the k-th last config is the fastest, so that workloads differ in their best.
    """
    subject = TuningProblem.load(problem)
    workloads = subject.problem.workloads
    events: list[Event] = [_started(subject), SessionStarted(1_700_000_000.0, 1)]
    base_ms = {workload.name: 10.0 for workload in workloads}
    events.append(BaselineMeasured("baseline", _passed(base_ms, 0), Cost(build_s=0.1)))
    rows: dict[str, list[tuple[float, ...]]] = {
        w.name: [_passed({w.name: 10.0}, 1).measurements[0].samples_ms] for w in workloads
    }
    tried = []
    for index, values in enumerate(configs):
        config = Config({**subject.template.default, **values})
        time_ms = {
            w.name: 5.0 - index * 0.1 - (1.0 if index == len(configs) - 1 - place else 0.0)
            for place, w in enumerate(workloads)
        }
        outcome: Outcome = _passed(time_ms, index)
        value = math.exp(
            sum(w.weight * math.log(time_ms[w.name] / 10) for w in workloads) / sum(w.weight for w in workloads)
        )
        tried.append(config)
        events.append(
            Evaluated(index, f"c{index}", config, outcome, value, Cost(0.5, 0.2, 0.1, 0.001, 0.002), index + 1.0)
        )
        for w in workloads:
            rows[w.name].append(_passed({w.name: time_ms[w.name]}, 100 + index).measurements[0].samples_ms)
    failed = Failed("build", "compile-error", "no", log="error: x")
    events.append(Evaluated(len(configs), "f", subject.template.default, failed, None, Cost(build_s=0.3), 99.0))
    if compare and tried:
        ids = ("baseline", *(f"c{index}" for index in range(len(tried))))
        samples = {name: tuple(row) for name, row in rows.items()}
        events.append(FinalistsCompared(ids, ({}, *tried), samples))
    events.append(RunFinished("budget", 100.0))
    files = problem_files(subject.problem, subject.template, subject.baseline)
    with RunFolder.create(folder, files=files) as run:
        run.append(events)
    return folder


def _started(subject: TuningProblem) -> RunStarted:
    template = subject.template
    constraints = [{"name": c.name, "text": c.expression.text, "origin": "template"} for c in template.constraints]
    return RunStarted(
        run_id="r1",
        created="2026-01-01T00:00:00+00:00",
        version="0.1.0",
        problem_name=subject.problem.name,
        problem_id=content_id(dict(problem_files(subject.problem, subject.template, subject.baseline))),
        settings={"seed": 0},
        device={"name": "Made-up device", "limits": LIMITS, "facts": {"platform": "Made up"}},
        environment={"python": "3.11"},
        space={
            "parameters": {p.name: list(p.values) for p in template.parameters},
            "feasible_count": 12,
            "raw_count": 16,
            "constraints": constraints,
        },
        workloads={w.name: {**w.sizes, "weight": w.weight} for w in subject.problem.workloads},
    )
