"""What may vary: parameters and the constraints between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kernelwright.errors import Location
from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tunable: a macro of the template (or a launch or option value), with the values it may take."""

    name: str
    values: tuple[Value, ...]
    """Distinct, in the order that "adjacent" refers to; all of one type (numbers, booleans or strings)."""
    default: Value
    why: str = ""
    location: Location | None = field(default=None, compare=False)

    @property
    def is_ordinal(self) -> bool:
        """True when the order of the values means something (numbers), false for categories (strings, booleans)."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition over parameters, sizes and `device.*` that every feasible config meets, for every workload."""

    name: str
    expression: Expression
    origin: Literal["template", "device", "learned"] = "template"
    """Who declared it: the template, the device's limits, or a failure seen during a run."""
