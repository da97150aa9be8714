"""A space, launch and data that another tool's file declares for a kernel, in the words of a template header."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from kernelwright.errors import SpecError
from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter


@dataclass(frozen=True, slots=True)
class DeclaredArgument:
    """What is said of one kernel parameter; None: nothing."""

    name: str = ""
    role: str | None = None
    element_count: int | None = None
    value: float | None = None
    """A scalar's value, or the constant that fills an array."""


@dataclass(frozen=True)
class DeclaredSpace:
    """What `scaffold_problem` takes instead of guesses."""

    origin: str
    """The file, for what is said of it."""
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...]
    grid: tuple[str, ...]
    """Blocks along x, y, z; or threads, where `counts_threads`."""
    block: tuple[str, ...]
    counts_threads: bool
    options: tuple[str, ...] = ()
    arguments: tuple[DeclaredArgument, ...] = ()

    @cached_property
    def names(self) -> Collection[str]:
        """Every parameter."""
        return {parameter.name for parameter in self.parameters}

    def launch(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Grid in blocks and block, without axes of extent 1 at the end; None when one cannot be read here."""
        pairs = [(_readable(grid, self.names), _readable(block, self.names)) for grid, block in self._axes()]
        while len(pairs) > 1 and pairs[-1] == ("1", "1"):
            pairs.pop()
        grid, block = [each for each, _ in pairs], [each for _, each in pairs]
        if None in grid or None in block or not pairs:
            return None
        whole = tuple(text for text in block if text is not None)
        threads = zip((text for text in grid if text is not None), whole, strict=True)
        if self.counts_threads:
            return tuple(f"ceil_div(int(ceil({count})), {extent})" for count, extent in threads), whole
        return tuple(f"int(ceil({count}))" if "/" in count.replace("//", "") else count for count, _ in threads), whole

    def _axes(self) -> Iterator[tuple[str, str]]:
        for axis in range(max(len(self.grid), len(self.block))):
            yield (
                self.grid[axis] if axis < len(self.grid) else "1",
                self.block[axis] if axis < len(self.block) else "1",
            )

    def argument(self, name: str, index: int, count: int) -> DeclaredArgument:
        """What is said of a kernel's parameter: by its name, or by its place where all are told."""
        named = [each for each in self.arguments if each.name == name]
        if named:
            return named[0]
        return self.arguments[index] if len(self.arguments) == count else DeclaredArgument()

    def restricted(self, used: Collection[str]) -> tuple[tuple[Parameter, ...], tuple[Constraint, ...], list[str]]:
        """Parameters that are used, at defaults that meet the constraints over them; and what was left out, and why.

        Raises:
            EmptySpace: no configuration meets the constraints.
        """
        kept = tuple(parameter for parameter in self.parameters if parameter.name in used)
        names = {parameter.name for parameter in kept}
        constraints = tuple(each for each in self.constraints if each.expression.names <= names)
        notes = []
        unused = [parameter.name for parameter in self.parameters if parameter.name not in names]
        if unused:
            lost = [each.expression.text for each in self.constraints if each not in constraints]
            notes.append(
                f"left out of {self.origin}: {', '.join(unused)}, which neither the source nor the launch uses"
                + (f", and the conditions on them: {'; '.join(lost)}" if lost else "")
            )
        wanted: Mapping[str, Value] = {parameter.name: parameter.default for parameter in kept}
        if kept and constraints:
            wanted = Space.build(kept, constraints, names=[{}]).nearest(wanted)
        parameters = tuple(
            Parameter(each.name, each.values, wanted[each.name], each.why, each.location) for each in kept
        )
        return parameters, constraints, notes


def _readable(text: str, names: Collection[str]) -> str | None:
    """An extent as an expression over parameters, or None."""
    plain = re.sub(r"\bmath\.(ceil|floor|sqrt|log2)\b", r"\1", text.strip())
    try:
        expression = Expression.parse(plain)
    except SpecError:
        return None
    return plain if expression.names <= set(names) else None
