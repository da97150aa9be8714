"""What was inferred of a kernel: arguments, launch, sizes, how sure each is, and what must be asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kernelwright.problem.dtypes import Dtype
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Role
from kernelwright.source.language import Language

Values = Literal["random", "distinct", "offsets", "zeros"]
"""Any; none twice, since threads write where they say; none below the one before, since they cut others into parts;
nothing but 0, since the host's code sets them so before the launch."""


@dataclass(frozen=True, slots=True)
class InferredArgument:
    """One kernel parameter, as a problem declares it."""

    name: str
    role: Role
    dtype: Dtype
    shape: tuple[str, ...] = ()
    """Extents, outermost first, in sizes; empty for a scalar."""
    value: str = ""
    """A scalar's."""
    bounds: tuple[float, float] | None = None
    """The range of an array's values, both ends included: of those that index others whole numbers."""
    file: str = ""
    """The `.npy` file of an array that is given."""
    values: Values = "random"
    """Which values within `bounds` the array holds; the file is made here where they are distinct or offsets."""
    note: str = ""
    """Why it is a guess; empty: the source or a person says it."""
    chosen: str | None = None
    """Elements that are moved where the values of others choose all that are touched: with values that are drawn, in
    the mean, at least; empty: nobody can say. None: nothing chooses."""
    is_accumulated: bool = False
    """Whether the kernel only adds to it, or touches it by atomics: a histogram, a counter of blocks."""


@dataclass(frozen=True, slots=True)
class InferredLaunch:
    """Grid and block along x, y, z, as expressions in sizes."""

    grid: tuple[str, ...]
    block: tuple[str, ...]
    origin: str
    """Where it comes from, in words."""
    note: str = ""
    """Why it is a guess; empty: it is certain."""
    shared_bytes: str = ""
    """Dynamic shared memory; empty: none."""


@dataclass(frozen=True, slots=True)
class InferredStep:
    """One of several launches that make one evaluation."""

    entry: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared_bytes: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What cannot be inferred, and the word that answers it."""

    word: str
    """As it is written on the command line: `eps=VALUE`, `--grid X,Y`."""
    why: str


@dataclass(frozen=True, slots=True)
class Inferred:
    """Everything of one kernel."""

    file: Path
    language: Language
    entry: str
    source: str
    """The file's text; of a template kernel, with the instance that is meant."""
    arguments: tuple[InferredArgument, ...]
    """In the kernel's order."""
    launch: InferredLaunch
    sizes: Mapping[str, int]
    guessed_sizes: frozenset[str]
    """The sizes that nobody said."""
    questions: tuple[Question, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What is left out, in sentences."""
    options: tuple[str, ...] = ()
    """Compile options: macros that were said."""

    steps: int = 1
    """What one launch does, roughly: threads times the trips of their loops."""

    halvings: int = 0
    """How often the sizes that nobody said were halved."""

    launches: tuple[InferredStep, ...] = ()
    """A whole program's launches, in order; empty: `launch` is the only one."""

    @property
    def array_bytes(self) -> int:
        """Bytes of all arrays together, on the workload."""
        total = 0
        for each in self.arguments:
            if each.role not in ("scalar", "local"):
                extents = [Expression.parse(extent).evaluate(dict(self.sizes)) for extent in each.shape]
                total += math.prod(int(extent) for extent in extents) * each.dtype.item_bytes
        return total

    @property
    def guesses(self) -> tuple[str, ...]:
        """What is not certain, in words; in the order in which a person would check it."""
        found = [f"launch ({self.launch.note})"] if self.launch.note else []
        found += [f"{name} = {self.sizes[name]}" for name in self.sizes if name in self.guessed_sizes]
        found += [f"{each.name} ({each.note})" for each in self.arguments if each.note]
        return tuple(found)
