"""A machine without a device: times come from a function of the config. Tests the whole loop in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np

from kernelwright.backend.base import DeviceInfo
from kernelwright.evaluate.base import Comparison, EvaluationFuture, EvaluationRequest
from kernelwright.problem.config import Config
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.outcome import Cost, Failed, Measurement, Outcome, Passed
from kernelwright.source.language import Language
from kernelwright.template.model import Candidate
from kernelwright.tuning.settings import TuneSettings

CostFunction = Callable[[Config, Workload], float | Failed]
"""Milliseconds of a config on a workload, or why it fails. The baseline is asked for with an empty config."""

SIMULATED_DEVICE = DeviceInfo(
    backend="simulated",
    id="simulated:0",
    name="simulated device",
    kind="simulated",
    limits={"max_threads_per_block": 1024, "shared_memory_per_block": 49152, "warp_size": 32, "multiprocessors": 4},
)


NO_CEILINGS: Mapping[str, float] = MappingProxyType({})


class SimulatedRunner:
    """Answers at once with `sample_count` noisy samples of the cost function."""

    def __init__(
        self,
        problem: Problem,
        cost: CostFunction,
        *,
        noise: float = 0.01,
        seed: int = 0,
        capacity: int = 1,
        sample_count: int = 5,
        ceilings: Mapping[str, float] = NO_CEILINGS,
    ) -> None:
        self._problem = problem
        self._cost = cost
        self._noise = noise
        self._rng = np.random.default_rng(seed)
        self._capacity = capacity
        self._sample_count = sample_count
        self._ceilings = ceilings

    @property
    def capacity(self) -> int:
        """As given."""
        return self._capacity

    @property
    def notes(self) -> Sequence[str]:
        """None."""
        return ()

    def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
        """The cost of the baseline's config."""
        outcome, cost = self._evaluate(baseline)
        assert isinstance(outcome, Passed), "a simulated baseline works"
        return outcome, cost

    def measure_ceilings(self) -> Mapping[str, float]:
        """As given."""
        return dict(self._ceilings)

    def submit(self, request: EvaluationRequest) -> EvaluationFuture:
        """Done before it returns."""
        future: EvaluationFuture = Future()
        future.set_result(self._evaluate(request.candidate))
        return future

    def compare(self, candidates: Sequence[Candidate], *, rounds: int) -> Comparison | None:
        """Fresh noisy samples of every candidate."""
        samples: dict[str, tuple[tuple[float, ...], ...]] = {}
        for workload in self._problem.workloads:
            rows = []
            for candidate in candidates:
                time_ms = self._cost(candidate.config, workload)
                assert not isinstance(time_ms, Failed), "finalists have passed"
                rows.append(self._samples(time_ms, rounds))
            samples[workload.name] = tuple(rows)
        return Comparison(tuple(candidate.id for candidate in candidates), samples)

    def _evaluate(self, candidate: Candidate) -> tuple[Outcome, Cost]:
        measurements = []
        for workload in self._problem.workloads:
            time_ms = self._cost(candidate.config, workload)
            if isinstance(time_ms, Failed):
                return time_ms, Cost(build_s=0.1)
            samples_ms = self._samples(time_ms, self._sample_count)
            measurements.append(Measurement(workload.name, samples_ms, "simulated"))
        return Passed(tuple(measurements)), Cost(build_s=0.1, time_s=0.05)

    def _samples(self, time_ms: float, count: int) -> tuple[float, ...]:
        noise = np.exp(self._rng.normal(0.0, self._noise, count))
        return tuple(float(time_ms * factor) for factor in noise)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to release."""


class SimulatedMachine:
    """Gives a run a `SimulatedRunner`."""

    def __init__(
        self,
        cost: CostFunction,
        *,
        noise: float = 0.01,
        seed: int = 0,
        capacity: int = 1,
        ceilings: Mapping[str, float] = NO_CEILINGS,
    ) -> None:
        self._cost = cost
        self._ceilings = ceilings
        self._noise = noise
        self._seed = seed
        self._capacity = capacity

    def device(self, selector: str | None, language: Language) -> DeviceInfo:
        """Always the simulated one."""
        del selector, language
        return SIMULATED_DEVICE

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> SimulatedRunner:
        """A new runner with the same cost function."""
        del device, settings
        return SimulatedRunner(
            problem,
            self._cost,
            noise=self._noise,
            seed=self._seed,
            capacity=self._capacity,
            ceilings=self._ceilings,
        )
