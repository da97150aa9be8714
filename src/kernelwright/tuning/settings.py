"""What a person decides about a run. Recorded in the run folder, so that `resume` needs no words."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelwright.errors import UsageError
from kernelwright.evaluate.device.timing import TimingPlan
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.problem.config import Value

FORECAST_COUNT = 50
"""Over how many further evaluations the expected gain is judged; as many as `no-gain` waits for one. A guess."""


@dataclass(frozen=True, slots=True)
class Budget:
    """When the search stops; the first limit that is reached counts. No limit at all means: the whole space."""

    evaluations: int | None = None
    seconds: float | None = None
    """Wall time of the whole run, baseline and final comparison included."""
    patience: int | None = None
    """Stop after this many evaluations in a row without a gain of at least `min_gain_fraction`."""
    min_gain_fraction: float = 0.01
    min_expected_gain_fraction: float | None = None
    """Stop when `FORECAST_COUNT` further evaluations would, with a confidence of 90 %, bring less than this."""
    floor_fraction: float | None = None
    """Stop when the best reaches this share of what the device allows (floor over time, geometric mean)."""

    def __post_init__(self) -> None:
        """Refuse limits that no run can have."""
        for name in ("evaluations", "seconds", "patience"):
            value = getattr(self, name)
            is_count = name != "seconds"
            if value is not None and not (_is_number(value, whole=is_count) and value > 0):
                number = "a whole number of at least 1" if is_count else "more than 0"
                raise UsageError(f"the budget's {name} is {value!r}, expected {number}")
        for name in ("min_gain_fraction", "min_expected_gain_fraction", "floor_fraction"):
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                raise UsageError(f"the budget's {name} is {value!r}, expected a number")
        if self.floor_fraction is not None and not 0 < self.floor_fraction <= 1:
            raise UsageError(f"the budget's floor_fraction is {self.floor_fraction!r}, expected more than 0, at most 1")


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """Everything that `tune` can be told."""

    budget: Budget = field(default_factory=lambda: Budget(seconds=60.0))
    searcher: str = "auto"
    searcher_options: Mapping[str, Value] = field(default_factory=dict)
    seed: int = 0
    """The searcher's seed."""
    data_seed: int | None = None
    """The seed of the inputs; None: drawn anew for each run, so that no kernel can know them, and kept with it."""
    device: str | None = None
    """A device id or a part of its name; None: the best one."""
    build_processes: int | None = None
    """None: all cores, at most eight, on a CPU device, which rests meanwhile; all but two, at most 32, on a GPU; at
    least one."""
    finalists: int = 5
    comparison_rounds: int = 20
    cache: Literal["hot", "cold"] | None = None
    """State of the last-level cache before each timed launch; None: cold on a GPU, hot on a CPU device."""
    precision: float = 0.02
    """Relative half-width of the median's interval at which a measurement is precise enough."""
    seconds_per_measurement: float = 0.75
    """Most seconds of a candidate on a workload in the search, with warm-up; claims come from the finals."""
    launch_timeout_s: float = 10.0
    worker_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything is started."""
        if not isinstance(self.budget, Budget):
            raise UsageError(f"the budget is {self.budget!r}, expected a Budget")
        for name in ("searcher", "device"):
            value = getattr(self, name)
            if not isinstance(value, str | None if name == "device" else str):
                raise UsageError(f"{name} is {value!r}, expected a name")
        least = {
            "seed": 0, "build_processes": 1, "finalists": 1, "comparison_rounds": 5, "precision": 1e-6,
            "seconds_per_measurement": 1e-6, "launch_timeout_s": 1e-3, "worker_memory_bytes": 1 << 28,
        }  # fmt: skip
        for name, minimum in least.items():
            value = getattr(self, name)
            is_whole = isinstance(minimum, int)
            if value is not None and not (_is_number(value, whole=is_whole) and value >= minimum):
                number = "a whole number of at least" if is_whole else "at least"
                raise UsageError(f"{name} is {value!r}, expected {number} {minimum}")
        if self.cache not in (None, "hot", "cold"):
            raise UsageError(f"cache {self.cache!r} is not known", hint="say hot or cold")

    def evaluation(self, *, is_cpu: bool, core_count: int) -> EvaluationSettings:
        """The runner's settings on a device of this kind."""
        spare, most = (0, 8) if is_cpu else (2, 32)  # a GPU is watched by a process that spins
        build_processes = self.build_processes or max(1, min(most, core_count - spare))
        return EvaluationSettings(
            build_processes=build_processes,
            launch_timeout_s=self.launch_timeout_s,
            specialise_timeout_s=self.launch_timeout_s,  # what it saves is the compiling in the first launch
            worker_memory_bytes=self.worker_memory_bytes,
            timing=TimingPlan(precision=self.precision, max_seconds=self.seconds_per_measurement),
            seed=self.seed if self.data_seed is None else self.data_seed,
            cache=self.cache_of(is_cpu=is_cpu),
        )

    def cache_of(self, *, is_cpu: bool) -> Literal["hot", "cold"]:
        """The state of the cache before timed launches on a device of this kind."""
        return self.cache or ("hot" if is_cpu else "cold")

    def as_record(self) -> dict[str, Any]:
        """JSON-ready, for the run folder."""
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TuneSettings:
        """The settings of a recorded run; fields that this version does not know are ignored."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in record.items() if name in known and name != "budget"}
        budget_fields = {field.name for field in dataclasses.fields(Budget)}
        budget = {name: value for name, value in record.get("budget", {}).items() if name in budget_fields}
        return cls(budget=Budget(**budget), **values)


def _is_number(value: object, *, whole: bool = False) -> bool:
    return isinstance(value, numbers.Integral if whole else numbers.Real) and not isinstance(value, bool)


def as_budget(given: Budget | str | int) -> Budget:
    """A budget as it is, from words as `parse_budget` reads them, or from a number of evaluations.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(given, Budget):
        return given
    if isinstance(given, str):
        return parse_budget(given)
    if isinstance(given, numbers.Integral) and not isinstance(given, bool):
        return Budget(evaluations=int(given))
    raise UsageError(
        f"the budget is {given!r}, expected words, a whole number of evaluations, or a Budget",
        hint='for example budget="90s", budget=200, or Budget(evaluations=200, seconds=90)',
    )


_UNITS_S: Mapping[str, float] = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_budget(text: str) -> Budget:
    """A budget from words: one of these, or several joined by commas.

    `200` or `200 evals`, `90s`, `5m`, `1h`, `no-gain`, `gain<1%`, `floor>97%`.

    Raises:
        UsageError: a part is none of these.
    """
    budget = Budget()
    for part in (part.strip().lower() for part in text.split(",")):
        budget = _with_part(budget, part, text)
    return budget


def bare_number_words(text: str) -> str:
    """What a budget that is a bare number means, for whoever meant seconds; empty: it says its unit."""
    bare = next((part.strip() for part in text.split(",") if part.strip().isdecimal()), "")
    if not bare:
        return ""
    return f"--budget {text}: {bare} evaluations, without a limit in time; {bare} seconds are {bare}s"


def _with_part(budget: Budget, part: str, text: str) -> Budget:
    if part in ("no-gain", "nogain", "until-no-gain"):
        return dataclasses.replace(budget, patience=50)
    if part.startswith("floor>"):
        return dataclasses.replace(budget, floor_fraction=_percent(part, "floor>", text))
    if part.startswith(("gain<", "until-gain-below")):
        return dataclasses.replace(budget, min_expected_gain_fraction=_gain_fraction(part, text))
    number = part.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = part[len(number) :].strip()
    try:
        amount = float(number)
    except ValueError:
        amount = float("nan")
    if not 0 < amount < 1e9:
        raise UsageError(
            f"{part!r} in the budget {text!r} is not an amount",
            hint="say evaluations (200), time (90s, 5m, 1h), no-gain, gain<1%, floor>97%, or several joined by commas",
        )
    if unit in ("", "evals", "evaluations") and amount.is_integer():
        return dataclasses.replace(budget, evaluations=int(amount))
    if unit in _UNITS_S:
        return dataclasses.replace(budget, seconds=amount * _UNITS_S[unit])
    raise UsageError(
        f"{part!r} in the budget {text!r} has no known unit",
        hint="units are s, m, h for time and none (or evals) for whole evaluations",
    )


def _percent(part: str, prefix: str, text: str) -> float:
    """The fraction in `floor>97%`."""
    try:
        percent = float(part.removeprefix(prefix).strip(" %"))
    except ValueError:
        percent = float("nan")
    if not (part.endswith("%") and 0 < percent <= 100):
        raise UsageError(
            f"{part!r} in the budget {text!r} is not a share in percent",
            hint="say floor>97% to stop when the best takes at most 1/0.97 of the least time that the device allows",
        )
    return percent / 100


def _gain_fraction(part: str, text: str) -> float:
    """The fraction in `gain<1%`."""
    number = part.removeprefix("gain<").removeprefix("until-gain-below-").removeprefix("until-gain-below").strip(" %")
    try:
        percent = float(number)
    except ValueError:
        percent = float("nan")
    if not (part.endswith("%") and 0 < percent < 100):
        raise UsageError(
            f"{part!r} in the budget {text!r} is not a gain in percent",
            hint="say gain<1% to stop when 50 further evaluations would bring less than that",
        )
    return percent / 100
