"""The ask/tell seam.

```
searcher = create("surrogate", space, seed=7)
while budget_left:
    configs = searcher.ask(8, pending=in_flight)       # empty: the space is exhausted
    searcher.tell([Observation(config, value, failure, cost_s), ...])
```

Contract (tested for every searcher by `kernelwright.testing.contracts_search.SearcherContract`):

- `ask` gives at most `count` configs: feasible, distinct, none told before, none in `pending`; empty only when
  nothing is left.
- State is a function of (space, seed, options, priors, told observations in order): a searcher that is rebuilt and told
  the same observations asks the same next configs. `ask` may therefore use no hidden counter other than what is told
  and pending; randomness comes from a generator derived from the seed and the number of observations.
- A failure is information (`value is None`), never a number.
- A searcher opens no file, starts no thread, and uses at most one core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kernelwright.problem.config import Config, Value


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of one config after its evaluation."""

    config: Config
    value: float | None
    """The objective, lower is better (time relative to the baseline, > 0); None: the candidate failed."""
    failure: str | None = None
    """`stage:reason` of a failure, e.g. `build:compile-error`."""
    cost_s: float = 0.0
    is_partial: bool = False
    """True when racing stopped the measurement: `value` is then an estimate that is certain only to lose."""


@dataclass(frozen=True, slots=True)
class Prior:
    """A config with what an earlier run (another device, shape or template version) measured for it."""

    config: Config
    value: float | None
    source: str
    """Where it comes from, in words a person understands."""


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One documented option of a searcher."""

    name: str
    default: Value
    """Its type is the option's type; a float option takes whole numbers too."""
    description: str
    choices: tuple[Value, ...] = ()
    """The values it may take; empty: any of its type."""
    minimum: float | None = None
    """The lowest number it may be, inclusive."""
    maximum: float | None = None
    """The highest number it may be, inclusive."""


@runtime_checkable
class Searcher(Protocol):
    """Proposes configs; see the module's contract."""

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        """Up to `count` new configs to evaluate next."""
        ...

    def tell(self, observations: Sequence[Observation]) -> None:
        """Take in finished evaluations, in the order they finished."""
        ...


@dataclass(frozen=True, slots=True)
class ExpectedGain:
    """What going on would bring: by how much the best is expected to fall, as fractions of it in [0, 1)."""

    evaluation_count: int
    """How many further evaluations this is about; fewer than asked for where the space ends."""
    fraction: float
    """On average."""
    bound_fraction: float
    """Exceeded with probability `1 - confidence` at most."""
    confidence: float


@runtime_checkable
class Forecaster(Protocol):
    """A searcher that knows when to stop: an optional capability, a pure function of what was told."""

    def expected_gain(self, count: int, *, confidence: float = 0.9) -> ExpectedGain | None:
        """What the next `count` evaluations would bring; None while too little was told."""
        ...


@dataclass(frozen=True, slots=True)
class SearcherInfo:
    """What a person may know of a searcher before choosing it."""

    name: str
    summary: str
    options: tuple[OptionInfo, ...] = ()

    def resolve(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """Defaults with `given` over them.

        Raises:
            KeyError: an option that this searcher does not have.
        """
        known = {option.name: option.default for option in self.options}
        for name in given:
            if name not in known:
                raise KeyError(name)
        return {**known, **given}
