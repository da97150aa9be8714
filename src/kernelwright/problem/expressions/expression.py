"""Expressions: the small language of shapes, launches and constraints.

```
constraint = Expression.parse("BX * BY <= device.max_threads_per_block and d % VEC == 0")
constraint.names                                  # {'BX', 'BY', 'VEC', 'd', 'device.max_threads_per_block'}
constraint.evaluate({"BX": 32, "BY": 8, ...})     # exact Python numbers
constraint.evaluate_columns({"BX": array, ...})   # the same for every row at once
```

Numbers, texts, `True` and `False`; names and `device.NAME`; `+ - * / // % ** << >>`; comparisons (chained too), `in
(...)`; `and or not` or C's `&& || !`; `a if c else b`; and the functions of `expression_syntax.ARITY`. `/` is true
division and `//` rounds down, as in Python. Nothing is ever handed to `eval`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kernelwright.errors import Location, SpecError
from kernelwright.problem.config import Value
from kernelwright.problem.expressions.bounds import TEXT, Interval, between, bound_node
from kernelwright.problem.expressions.columns import Array, as_column, evaluate_column
from kernelwright.problem.expressions.scalar import OperationError, evaluate_node
from kernelwright.problem.expressions.syntax import ExpressionNode, parse_text, spec_error


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression. Equal to another of the same text; immutable, hashable and picklable.

    Raises:
        SpecError: the text is not an expression, or uses no names and has no value (`1 // 0`).
    """

    text: str
    location: Location | None = field(default=None, compare=False, repr=False)
    """Where the text stands; with a column, errors point inside it."""
    tree: ExpressionNode = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        tree = parse_text(self.text, location=self.location)
        object.__setattr__(self, "tree", tree)
        if not tree.names:
            self.evaluate({})

    def __str__(self) -> str:
        """The text."""
        return self.text

    @classmethod
    def parse(cls, text: str, *, location: Location | None = None) -> Expression:
        """The expression that `text` says.

        Raises:
            SpecError: anything outside the language, with the column and a caret under the place.
        """
        return cls(text, location)

    @property
    def names(self) -> frozenset[str]:
        """Every name used, dotted ones whole."""
        return self.tree.names

    @property
    def constant(self) -> Value | None:
        """The value, when no name is used."""
        return None if self.tree.names else self.evaluate({})

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """The value for these names.

        Raises:
            SpecError: an unknown name (with the nearest known), or an operation without a value, such as a division by
                zero, with the values involved.
        """
        try:
            return evaluate_node(self.tree, names)
        except OperationError as error:
            raise self._explain(error, names) from None
        except KeyError:
            self.check_names(names)
            raise

    def evaluate_columns(self, names: Mapping[str, Value | Array]) -> Array:
        """The values for many rows at once, equal to what `evaluate` gives row by row.

        Args:
            names: one value for all rows, or an array (rows,) of integers, floats, booleans or texts.

        Returns:
            Array (rows,): boolean, int64, float64 or text; of objects where types mix or 64 bits do not suffice.

        Raises:
            SpecError: as `evaluate` raises, for the first row that has no value.
        """
        self.check_names(names)
        shape = np.broadcast_shapes(*[np.shape(value) for value in names.values()])
        column = evaluate_column(self.tree, {name: as_column(names[name]) for name in self.tree.names})
        if column.bad is not False:
            bad = np.broadcast_to(np.asarray(column.bad), shape)
            if bad.any():
                row = np.unravel_index(int(bad.argmax()), shape)
                self.evaluate({name: _pick(names[name], shape, row) for name in self.tree.names})
                raise AssertionError(f"{self.text!r} has a value by row but not by column")
        values = column.values
        if not isinstance(values, np.ndarray) and isinstance(values, int) and not -(2**63) <= values < 2**63:
            values = np.array(values, object)
        return np.broadcast_to(np.asarray(values), shape)

    def bounds(self, names: Mapping[str, Value | tuple[int | float, int | float]]) -> Interval:
        """Where the value must lie when each name has one value or lies between two, ends included.

        Sound, not tight. `result.is_false` says that a condition cannot hold; `result.may_fail` that some values in the
        intervals may have no result.

        Raises:
            SpecError: an unknown name.
        """
        self.check_names(names)
        intervals: dict[str, Interval] = {}
        for name in self.tree.names:
            value = names[name]
            if isinstance(value, str):
                intervals[name] = TEXT
            else:
                low, high = value if isinstance(value, tuple) else (value, value)
                intervals[name] = between(
                    float(low), float(high), is_whole=isinstance(low, int) and isinstance(high, int)
                )
        return bound_node(self.tree, intervals)

    def check_names(self, known: Mapping[str, object]) -> None:
        """Refuse names that are not in `known`.

        Raises:
            SpecError: naming the first unknown name and the nearest known one.
        """
        unknown = self.tree.names.difference(known)
        if not unknown:
            return
        node = next(node for node in _walk(self.tree) if node.op == "name" and node.value in unknown)
        name = str(node.value)
        close = difflib.get_close_matches(name, known, 1, 0.5)
        listed = ", ".join(sorted(known)) or "none"
        hint = f"did you mean {close[0]!r}? known names: {listed}" if close else f"known names: {listed}"
        raise spec_error(
            f"unknown name {name!r}",
            self.text,
            start=node.start,
            end=node.end,
            location=self.location,
            hint=hint,
        )

    def with_names_replaced(self, by: Mapping[str, Expression]) -> Expression:
        """Each name that is in `by` as the expression that stands for it there, in brackets.

        Raises:
            SpecError: the text becomes too long or too deep.
        """
        found = {node.start: node for node in _walk(self.tree) if node.op == "name" and node.value in by}
        text = self.text
        for start in sorted(found, reverse=True):
            node = found[start]
            text = f"{text[:start]}({by[str(node.value)].text}){text[node.end :]}"
        return Expression(text, self.location) if found else self

    def _explain(self, error: OperationError, names: Mapping[str, Value]) -> SpecError:
        node = error.node or self.tree
        part = self.text[node.start : node.end]
        used = ", ".join(f"{name} = {names[name]!r}" for name in sorted(node.names))
        message = f"{error.message} in {part!r}" + (f" with {used}" if used else "")
        return spec_error(message, self.text, start=node.start, end=node.end, location=self.location, hint=error.hint)


def _pick(value: Value | Array, shape: tuple[int, ...], row: tuple[np.intp, ...]) -> Value:
    if not isinstance(value, np.ndarray):
        return value
    item: Value = np.broadcast_to(value, shape)[row]
    return item.item() if isinstance(item, np.generic) else item


def _walk(node: ExpressionNode) -> list[ExpressionNode]:
    found = [node]
    for item in found:
        found.extend(item.args)
    return found
