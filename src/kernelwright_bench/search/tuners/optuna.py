"""Optuna's samplers behind the ask/tell seam, for the benchmark.

Optuna knows no constraints between parameters. Its proposal is moved to the nearest feasible config
(`Space.nearest`); the trial is told the value of that config, under the proposal's own parameters, as a program
around Optuna does. A config that was evaluated before is told again without cost, at most `REPEAT_LIMIT` times in a
row; then a random new one is asked. A failure is told as a pruned trial, from which its samplers learn, unlike from a
failed one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelwright.errors import UsageError
from kernelwright.imports import require

if TYPE_CHECKING:
    from kernelwright.problem.config import Config, Value
    from kernelwright.search.base import Observation
    from kernelwright.space.feasible import Space

PREFIX = "optuna:"

SAMPLERS: Mapping[str, str] = MappingProxyType(
    {"tpe": "TPESampler", "random": "RandomSampler", "nsga2": "NSGAIISampler"}
)

REPEAT_LIMIT = 10
"""Proposals in a row that may fall on evaluated configs."""

PURPOSE = "benchmarking Optuna's samplers"


def check_sampler(name: str) -> ModuleType:
    """The package, when this sampler of it is wrapped here.

    Raises:
        UsageError: it is not.
        MissingDependency: Optuna is not installed.
    """
    if name not in SAMPLERS:
        raise UsageError(
            f"there is no wrapped sampler {PREFIX + name!r}",
            hint=f"choose one of {', '.join(PREFIX + one for one in SAMPLERS)}",
        )
    return require("optuna", purpose=PURPOSE)


class OptunaSearch:
    """One of Optuna's samplers at its defaults; `pending` and batches are beyond what the benchmark needs of it."""

    def __init__(self, space: Space, sampler: str, *, seed: int) -> None:
        optuna = check_sampler(sampler)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._rng = np.random.default_rng(seed)
        self._pruned = optuna.trial.TrialState.PRUNED
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of experimental features
            self._study = optuna.create_study(sampler=getattr(optuna.samplers, SAMPLERS[sampler])(seed=seed))
        self._trials: dict[Config, Any] = {}
        self._values: dict[Config, float | None] = {}

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        """One config that was not asked before; none when the space is exhausted."""
        del count, pending
        if len(self._trials) >= self._space.feasible_count:
            return []
        for _ in range(REPEAT_LIMIT):
            trial = self._study.ask()
            config = self._space.nearest(self._proposed(trial))
            if config not in self._trials:
                self._trials[config] = trial
                return [config]
            self._tell(trial, self._values[config])
        (config,) = self._space.sample(1, self._rng, exclude=self._trials)
        self._trials[config] = None
        return [config]

    def tell(self, observations: Sequence[Observation]) -> None:
        """Take in one evaluation."""
        for observation in observations:
            self._values[observation.config] = observation.value
            trial = self._trials.get(observation.config)
            if trial is not None:
                self._tell(trial, observation.value)

    def _tell(self, trial: Any, value: float | None) -> None:
        if value is None:
            self._study.tell(trial, state=self._pruned)
        else:
            self._study.tell(trial, value)

    def _proposed(self, trial: Any) -> dict[str, Value]:
        """Numbers by their place in the list, which the sampler may treat as ordered; others as categories."""
        proposed: dict[str, Value] = {}
        for parameter in self._space.parameters:
            values = parameter.values
            if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
                proposed[parameter.name] = values[trial.suggest_int(parameter.name, 0, len(values) - 1)]
            else:
                proposed[parameter.name] = values[trial.suggest_categorical(parameter.name, range(len(values)))]
        return proposed
