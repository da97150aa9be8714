"""The problem: what is computed, on which shapes, to which accuracy. Frozen data, made by `problem.load.problem`.

Vocabulary: an *argument* is one kernel parameter; a *workload* is one set of sizes with a weight; *sizes* are the named
integers that shapes, launches and constraints are written in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kernelwright.errors import Location
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source.language import LANGUAGE_OF_SUFFIX, Language

Role = Literal["input", "output", "inout", "scalar", "scratch", "local"]
"""`scratch`: global memory that no one reads afterwards (its shape may use parameters). `local`: an OpenCL `__local`
pointer argument, sized by its shape."""

Fresh = Literal["redraw", "permute", "keep"]
"""What happens to an input before each launch that is timed: other values of its distribution, the same values in
another order, or nothing."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """How an input is filled. `normal`: mean 0, deviation 1, scaled by `high` when given."""

    kind: Literal["normal", "uniform", "integers", "constant", "file"] = "normal"
    low: float | None = None
    high: float | None = None
    """For `uniform` and `integers` the inclusive range, which hostile datasets also respect."""
    file: Path | None = None
    """A `.npy` file with the argument's shape, for `file`."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel parameter, in the kernel's order."""

    name: str
    role: Role
    dtype: str
    """A name from `problem.dtypes.DTYPES`, e.g. `float32`, `bfloat16`, `float8_e4m3fn`, `int32`."""
    shape: tuple[Expression, ...] = ()
    """Extents, outermost first; empty for a scalar."""
    value: Expression | None = None
    """A scalar's value, in sizes (and parameters)."""
    distribution: Distribution = field(default_factory=Distribution)
    location: Location | None = field(default=None, compare=False)
    special: bool = False
    """Whether it is also fed what its dtype has beside usual numbers: NaN, infinities, the ends of its range. Results
    in it may be infinite or NaN on any data."""
    fresh: Fresh = "redraw"
    """`keep` for what is no input, and for constants."""
    after: tuple[str, ...] = ()
    """An input that something outside the kernels makes of these outputs, between launches: who reads it comes after
    who writes them."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`|candidate - reference| <= atol + rtol * |reference|`, elementwise, and why that is right."""

    rtol: float
    atol: float
    because: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """One set of sizes, with its weight in the objective (a weighted geometric mean)."""

    name: str
    sizes: Mapping[str, int]
    weight: float = 1.0
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """One kernel launch; a problem may need several, in order. Grids count blocks, blocks count threads."""

    entry: str
    grid: tuple[Expression, ...]
    """1 to 3 extents, x first, in blocks (work-groups)."""
    block: tuple[Expression, ...]
    """1 to 3 extents, x first, in threads (work-items)."""
    shared_bytes: Expression | None = None
    """Dynamic shared memory, where the backend has it (OpenCL: use a `local` argument)."""
    arguments: tuple[str, ...] | None = None
    """Names in this kernel's order; None = all arguments of the problem, in order."""
    location: Location | None = field(default=None, compare=False)
    cluster: tuple[Expression, ...] = ()
    """CUDA: 1 to 3 extents of a thread block cluster, in blocks, x first; empty: what the kernel itself declares."""
    is_cooperative: bool = False
    """CUDA: all blocks run at once and may wait for each other (`cooperative_groups::this_grid().sync()`)."""
    constants: tuple[tuple[str, str], ...] = ()
    """CUDA: `__constant__` (or `__device__`) variable and the input that it is filled from before the launch."""


@dataclass(frozen=True, slots=True)
class ReferenceSpec:
    """What defines what is right: a function in Python, called with float64 (or integer) arrays, or in C; a kernel.

    It takes the inputs, inouts and scalars by the arguments' names and returns one array, a tuple in the order of the
    output and inout arguments, or a dict by name. It never runs in the parent process.
    """

    file: Path
    function: str
    location: Location | None = None

    @property
    def is_c(self) -> bool:
        """Whether it is a function in C, see `problem.c_reference`."""
        return self.file.suffix in (".h", ".c")

    @property
    def is_kernel(self) -> bool:
        """Whether it is a kernel, which the referee launches: then `function` is its name."""
        return self.file.suffix in LANGUAGE_OF_SUFFIX and self.file.suffix != ".py"


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A kernel source as the problem names it: the template (or plain kernel), and the baseline."""

    file: Path
    language: Language
    steps: tuple[LaunchStep, ...]
    """Empty when the template's own header declares them."""
    options: tuple[str, ...] = ()
    """Compile options of the user's own build; expressions in braces."""
    location: Location | None = None
    entry: str | None = None
    """The kernel of launches that name none, also of those in the template's header."""
    entry_location: Location | None = None
    include_paths: tuple[Path, ...] = ()
    """Folders inside the problem's, searched for headers after the source's own."""


Pipe = Literal["fp64", "fp32", "fp16", "int32", "tensor"]
"""Units of a device that compute; `tensor`: matrix units."""


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of one workload, for the roofline. None: derived from the arguments, or unknown."""

    operations: Expression | None = None
    """Arithmetic operations (a fused multiply-add counts 2)."""
    bytes: Expression | None = None
    """Global traffic floor; None: each input read once and each output written once."""
    pipe: Pipe | None = None
    """Which unit does the operations; None: that of the widest float type."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that a run needs to know about what is computed.

    Lifecycle: `load_problem(path)` checks the files and gives this; nothing changes it.
    """

    name: str
    file: Path
    """The problem's TOML file; relative paths in it are relative to its folder."""
    kernel: SourceSpec
    baseline: SourceSpec | None
    """What speedups are measured against; None: the kernel itself, at its parameters' defaults."""
    reference: ReferenceSpec
    arguments: tuple[Argument, ...]
    workloads: tuple[Workload, ...]
    tolerances: Mapping[str, Tolerance]
    """By output; outputs without one get a tolerance derived from dtype and the baseline's own error."""
    work: Work = field(default_factory=Work)
    allows_assembly: bool = False
    """Whether OpenCL kernels may hold inline assembly."""
    numbers: tuple[float, ...] = ()
    """Those that the original kernel and the reference name, see `source_numbers`: one dataset holds them."""

    @property
    def size_names(self) -> tuple[str, ...]:
        """The names that every workload gives a value to."""
        return tuple(self.workloads[0].sizes)

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """Arguments that the reference's result is compared with, in order."""
        return tuple(argument for argument in self.arguments if argument.role in ("output", "inout"))

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """Arguments that are filled before a launch, in order."""
        return tuple(argument for argument in self.arguments if argument.role in ("input", "inout"))
