"""Kernel Tuner's strategies on recorded spaces, through its own simulation mode, for the benchmark.

The recording is written as one of its cache files, with an evaluation's whole recorded cost as compile time, so that
its budget passes as the benchmark's does. From its results: the first result of a configuration costs what was
recorded, later ones nothing (they stay in the trajectory, as the methodology has it); its own measured strategy time
is added; what its simulation itself takes (`framework_time`) is not. Building its search space is not counted either,
as for our own searchers.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import random
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from kernelwright.errors import InfrastructureError, UsageError
from kernelwright.imports import require
from kernelwright_bench.search.recordings import RecordedSpace
from kernelwright_bench.search.score import Repeat, Trajectory

PREFIX = "kernel-tuner:"

PURPOSE = "benchmarking Kernel Tuner's strategies"

_KERNEL = "__global__ void recorded() {}"
_FAILED = "RuntimeFailedConfig"

UNCAPPED = frozenset({"bayes_opt", "random_sample", "greedy_ils", "greedy_mls", "ordered_greedy_mls", "mls"})
"""Strategies that stop after 100 evaluations (or a tenth of the space) unless told a higher limit: they are told the
space's size, so that the time budget alone ends them. Others stop, if at all, where their own defaults end."""


def check_strategy(name: str) -> None:
    """Whether the installed Kernel Tuner has this strategy.

    Raises:
        UsageError: it has not; the message has the nearest name.
        MissingDependency: Kernel Tuner is not installed.
    """
    known = list(require("kernel_tuner.interface", purpose=PURPOSE).strategy_map)
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        raise UsageError(
            f"Kernel Tuner has no strategy {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
            hint=f"choose one of {', '.join(PREFIX + one for one in sorted(known))}",
        )


class KernelTunerReplay:
    """A recorded space as Kernel Tuner sees it: a cache file in a folder of its own, gone on exit."""

    def __init__(self, recorded: RecordedSpace) -> None:
        self._recorded = recorded
        space = recorded.space
        self._values = {parameter.name: list(parameter.values) for parameter in space.parameters}
        self._place = {tuple(config.values()): index for index, config in enumerate(space.iterate())}
        self._folder = tempfile.TemporaryDirectory(prefix="kernelwright-bench-")
        self._file = Path(self._folder.name) / "cache.json"
        self._file.write_text(json.dumps(self._document()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the folder."""
        self._folder.cleanup()

    def run(self, strategy: str, *, seed: int, until_s: float) -> Repeat:
        """One repeat up to a simulated time."""
        results = self._results(strategy, seed=seed, until_s=until_s)
        seen: set[int] = set()
        times, bests, is_new = [], [], []
        spent_s, own_s, best = 0.0, 0.0, np.nan
        for result in results:
            own_s += result["strategy_time"] / 1000
            index = self._place[tuple(result[name] for name in self._values)]
            is_new.append(index not in seen)
            if is_new[-1]:
                spent_s += float(self._recorded.cost_s[index])
            seen.add(index)
            best = np.fmin(best, self._recorded.time_ms[index])
            times.append(spent_s + own_s)
            bests.append(best)
        return Repeat(Trajectory(np.array(times), np.array(bests)), np.array(is_new, dtype=bool), own_s)

    def _document(self) -> dict[str, Any]:
        recorded = self._recorded
        cache: dict[str, Any] = {}
        for values, index in self._place.items():
            time_ms = float(recorded.time_ms[index])
            entry: dict[str, Any] = dict(zip(self._values, values, strict=True))
            entry["time"] = _FAILED if np.isnan(time_ms) else time_ms
            entry |= {"compile_time": 1000 * float(recorded.cost_s[index]), "verification_time": 0.0}
            entry |= {"benchmark_time": 0.0, "strategy_time": 0.0, "framework_time": 0.0}
            cache[",".join(map(str, values))] = entry
        return {
            "device_name": recorded.device,
            "kernel_name": "recorded",
            "problem_size": [1],
            "tune_params_keys": list(self._values),
            "tune_params": self._values,
            "objective": "time",
            "cache": cache,
        }

    def _restrictions(self) -> Any:
        space = self._recorded.space
        if space.feasible_count == space.raw_count:
            return None
        return [constraint.expression.text for constraint in space.constraints] or self._is_recorded

    def _is_recorded(self, *values: Any) -> bool:
        """Kernel Tuner calls a restriction with the values when it builds its space, with a dict when it checks one."""
        if len(values) == 1 and isinstance(values[0], dict):
            values = tuple(values[0][name] for name in self._values)
        return values in self._place

    def _results(self, strategy: str, *, seed: int, until_s: float) -> Sequence[dict[str, Any]]:
        tune_kernel = require("kernel_tuner", purpose=PURPOSE).tune_kernel
        options: dict[str, float] = {"time_limit": until_s}
        if strategy in UNCAPPED:
            options["max_fevals"] = len(self._place)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - its strategies draw from this generator
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                results, _ = tune_kernel(
                    "recorded",
                    _KERNEL,
                    1,
                    [],
                    self._values,
                    restrictions=self._restrictions(),
                    cache=str(self._file),
                    strategy=strategy,
                    strategy_options=options,
                    simulation_mode=True,
                    quiet=True,
                    seed=seed,
                )
            except (ValueError, RuntimeError, KeyError, TypeError, IndexError) as error:
                raise InfrastructureError(
                    f"Kernel Tuner's {strategy!r} failed on {self._recorded.name} with seed {seed}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        found: Sequence[dict[str, Any]] = results
        return found
