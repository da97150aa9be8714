"""A recorded run as a lookup, for replay: any searcher can run on it with no device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

from kernelwright.errors import Location, StoreError
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Passed
from kernelwright.store.view import RunView, is_partial

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kernelwright.problem.config import Value
    from kernelwright.store.event import BaselineMeasured, Evaluated


@dataclass(frozen=True)
class Recording:
    """What a run measured, by config."""

    view: RunView

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The recording of the run in `folder`.

        Raises:
            StoreError: no run there, a damaged one, or one that evaluated nothing.
        """
        return cls.of(RunView.read(folder))

    @classmethod
    def of(cls, view: RunView) -> Self:
        """The recording of a run.

        Raises:
            StoreError: it evaluated nothing.
        """
        if not view.evaluations:
            raise StoreError(
                "the run holds no evaluation, so there is nothing to replay",
                hint="record one first with `kernelwright tune`",
                location=Location(view.folder) if view.folder is not None else None,
            )
        return cls(view)

    def lookup(self, config: Mapping[str, Value]) -> Evaluated | None:
        """The evaluation of `config`; None when it was not recorded.

        Of several, the first that was fully measured, else the first.
        """
        return self._by_config.get(config if isinstance(config, Config) else Config(config))

    @cached_property
    def configs(self) -> tuple[Config, ...]:
        """Every recorded config once, in the order of the first evaluation."""
        return tuple(self._by_config)

    @cached_property
    def parameters(self) -> Mapping[str, tuple[Value, ...]]:
        """By parameter: the values that occur in `configs`, in the declared order.

        With `configs` as the feasible set, this is a finite space in which every config has a result.
        """
        declared = self.view.started.space.get("parameters", {})
        names = declared if declared.keys() == self.configs[0].keys() else self.configs[0]
        return {name: self._values(name, tuple(declared.get(name, ()))) for name in names}

    @property
    def baseline(self) -> BaselineMeasured | None:
        """The baseline's measurement, which every value is relative to."""
        return self.view.baseline

    def _values(self, name: str, declared: tuple[Value, ...]) -> tuple[Value, ...]:
        found = dict.fromkeys(config[name] for config in self.configs if name in config)
        known = [value for value in declared if value in found]
        return (*known, *(value for value in found if value not in known))

    @cached_property
    def _by_config(self) -> Mapping[Config, Evaluated]:
        found: dict[Config, Evaluated] = {}
        for evaluated in self.view.evaluations:
            config = Config(evaluated.config)
            known = found.get(config)
            if known is None or (not _is_full(known) and _is_full(evaluated)):
                found[config] = evaluated
        return found


def _is_full(evaluated: Evaluated) -> bool:
    return isinstance(evaluated.outcome, Passed) and not is_partial(evaluated)
