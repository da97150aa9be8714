"""The seam by which calls and assignments have the expressions inside them evaluated; `expressions` is behind it."""

from __future__ import annotations

from typing import Protocol

from kernelwright.analysis.polynomial import Polynomial
from kernelwright.analysis.state import Integer
from kernelwright.analysis.values import Pointer, Value
from kernelwright.analysis.wraparound import INT, Integers
from kernelwright.source import nodes
from kernelwright.source.preprocess import Place


class Evaluator(Protocol):
    """Evaluates the expressions of one kernel in its state."""

    @property
    def integers(self) -> Integers:
        """The types of integer expressions."""

    def inline(self, node: nodes.Call, /) -> Value | None:
        """Follow a call of a function of the file; None when it is not one."""

    def value(self, node: nodes.Expression) -> Value:
        """What an expression is worth; something unknown where that is not followed."""

    def parts(self, whole: nodes.Expression, wanted: tuple[nodes.Expression, ...]) -> list[Value]:
        """Evaluate an expression, for what happens on the way; gives the values of some of its parts."""

    def integer(self, node: nodes.Expression) -> Polynomial:
        """The value of an index, a size, a step."""

    def unknown(self, *values: Value, is_float: bool = False) -> Polynomial:
        """A value that is not followed, made of others."""

    def named(self, node: nodes.Name) -> Value:
        """The value of a variable, a constant of the file, or a size that comes from outside."""

    def combined(self, operator: str, left: Value, right: Value, kind: Integer | None = INT) -> Value:
        """`left operator right` for numbers, calculated in a type."""

    def pointer_arithmetic(self, operator: str, left: Value, right: Value) -> Value:
        """`pointer + steps` in its spellings."""

    def pointing_to(self, value: Value, c_type: str) -> Value:
        """A `void *` as a pointer of another type that it is stored in; any other value as it is."""

    def moved(self, pointer: Pointer, steps: Polynomial) -> Pointer:
        """`pointer + steps`."""

    def pointer_to(self, node: nodes.Expression) -> Pointer | None:
        """Where an element lies, without touching it; None for what lies in no array."""

    def load(self, pointer: Pointer, place: Place, *, width: Polynomial | None = None) -> Value:
        """Read what a pointer points to."""

    def store(self, target: nodes.Expression, value: Value, place: Place, kind: Integer | None = None) -> None:
        """`target = value`, for a value of a type that is known already."""

    def set_variable(self, name: str, value: Value, kind: Integer | None = None) -> None:
        """A variable gets a value of a type, as what it is declared."""
