"""What is known of a kernel: one dataclass a kind of fact, each with its place and how sure it is.

Index arithmetic is polynomials over *atoms*, in one vocabulary for all dialects: `thread.x` (in its block), `block.x`,
`global.x` (both together), `block_size.x`, `grid_size.x` (in blocks), loop indices by their names, sizes by theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernelwright.analysis.polynomial import Polynomial
from kernelwright.source.nodes import FunctionParameter
from kernelwright.source.preprocess import Mark, Opaque
from kernelwright.source.span import Span

Confidence = Literal["certain", "likely", "guess"]
"""`certain`: the source says it. `likely`: under an assumption that the fact names. `guess`: a heuristic."""

AtomKind = Literal[
    "thread", "loop", "size", "quotient", "remainder", "data", "select", "carried", "float", "unknown"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sources:
    """What a value was made of."""

    accesses: frozenset[int] = frozenset()
    """Indices of reads."""
    reductions: frozenset[int] = frozenset()
    carried: frozenset[int] = frozenset()
    """Loops whose earlier iterations left a part of it."""

    def __or__(self, other: Sources) -> Sources:
        return Sources(self.accesses | other.accesses, self.reductions | other.reductions, self.carried | other.carried)

    def after(self, loop: int) -> Sources:
        """The same once a loop has ended."""
        return Sources(self.accesses, self.reductions, self.carried - {loop})


NO_SOURCES = Sources()


@dataclass(frozen=True, slots=True)
class Atom:
    """One quantity that polynomials are made of.

    `thread`: a thread or block index. `loop`: a loop's index. `size`: the same for all threads. `quotient` and
    `remainder`: of a division that is not exact. `data`: read from memory. `select`: one of several values. `carried`:
    changes from one iteration to the next in a way that is not followed. `float`: no integer.
    """

    name: str
    kind: AtomKind
    sources: Sources = NO_SOURCES
    parts: tuple[Polynomial, ...] = ()
    """A quotient or remainder has what is divided, by what; a select has its values."""
    usual: Polynomial | None = None
    """The index, where a select only keeps it inside its range."""
    factors: tuple[Sources, ...] = ()
    """What each factor of a float product was made of."""


@dataclass(frozen=True, slots=True)
class ThreadIndex:
    """A local variable, or a place, whose value is index arithmetic on the thread's position."""

    name: str
    """Empty where it has no variable of its own."""
    value: Polynomial
    span: Span
    confidence: Confidence = "certain"


@dataclass(frozen=True, slots=True)
class Relation:
    """`left operator right`, for integers."""

    left: Polynomial
    operator: Literal["<", "<=", "==", "!=", ">", ">="]
    right: Polynomial
    needs: tuple[Polynomial, ...] = ()
    """Sizes that must be at least 0 for this to hold; below, unsigned numbers wrap around."""

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that holds wherever code in `scope` runs."""

    index: int
    kind: Literal["branch", "else", "early-exit", "expression"]
    """`early-exit`: after `if (...) return;`. `expression`: inside `?:`, `&&` or `||`."""
    text: str
    """The condition as written; of an early exit and an else, the condition that does not hold."""
    comparisons: tuple[Relation, ...]
    """What holds, as far as it is understood."""
    is_complete: bool
    """Whether the comparisons say all of the condition."""
    span: Span
    """The condition's place."""
    scope: Span


@dataclass(frozen=True, slots=True)
class IndexStep:
    """What a loop's index does from one iteration to the next."""

    kind: Literal["add", "multiply", "divide"]
    amount: Polynomial


LoopSweep = Literal["sequential", "grid-stride", "block-stride", "warp-stride", "other"]


@dataclass(frozen=True, slots=True)
class LoopFact:
    """One loop."""

    index: int
    atom: str
    """The index's name in polynomials; empty for a loop without one."""
    variable: str
    start: Polynomial | None
    operator: str
    """How the index is compared with the bound."""
    bound: Polynomial | None
    step: IndexStep | None
    parent: int | None
    """The loop around it."""
    sweep: LoopSweep
    """Who walks: one thread alone, or all threads of the warp, the block or the grid together."""
    pragmas: tuple[Mark, ...]
    span: Span
    is_exact: bool
    """Whether the span is the loop and nothing else (false where a macro gives the loop and more)."""
    body: Span
    inlined_in: str
    """The helper function that it stands in; empty for the kernel itself."""
    confidence: Confidence = "certain"
    ends_early: bool = False
    """Whether a second condition may end it, or a `break` or `return` that depends on data or on more than bounds."""


@dataclass(frozen=True, slots=True)
class Array:
    """Memory with a name: a pointer parameter, shared memory, a local array."""

    name: str
    space: Literal["global", "shared", "constant", "private"]
    c_type: str
    element_bytes: int | None
    extents: tuple[Polynomial | None, ...]
    """Outermost first; empty for a pointer, None for an extent that the launch decides."""
    is_parameter: bool
    is_float: bool
    width: int
    """Scalars of one element: 4 for `float4`."""
    span: Span

    @property
    def bytes(self) -> Polynomial | None:
        """Its size; None where it is not known."""
        if self.element_bytes is None or not self.extents:
            return None
        total = Polynomial((((), self.element_bytes),))
        for extent in self.extents:
            if extent is None:
                return None
            total = total * extent
        return total


AccessKind = Literal["read", "write", "accumulate", "unknown"]
Contiguity = Literal["broadcast", "coalesced", "strided", "irregular", "unknown"]


@dataclass(frozen=True, slots=True)
class Access:
    """One place that reads or writes an array's elements."""

    index: int
    array: str
    space: str
    kind: AccessKind
    """`accumulate`: reads, then writes the same element. `unknown`: given to something that was not looked into."""
    element: Polynomial | None
    """Which element (of the array's own element type); None where it is not known."""
    width: Polynomial
    """Consecutive elements that it touches."""
    is_atomic: bool
    guards: tuple[int, ...]
    loops: tuple[int, ...]
    """Outermost first."""
    sources: Sources
    """What the value of a write was made of."""
    span: Span
    is_exact: bool
    inlined_in: str
    reason: str = ""
    """Why the element is not known."""
    contiguity: Contiguity = "unknown"
    """How neighbouring threads along x touch memory together."""
    stride: Polynomial | None = None
    """Elements from one thread to the next along x; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """Values joined into one by an operation."""

    index: int
    operation: Literal["sum", "product", "max", "min", "and", "or", "xor", "recurrence"]
    """`recurrence`: each iteration needs the one before in a way that is none of the others (online softmax)."""
    target: str
    scope: Literal["thread", "warp", "block", "device"]
    """Who joins: a loop of one thread, shuffles, shared memory, atomics on global memory."""
    loops: tuple[int, ...]
    """The loops that it joins over, outermost first."""
    sources: Sources
    factors: tuple[Sources, ...]
    """What each factor of the joined value is made of, where it is a product."""
    span: Span
    inlined_in: str
    confidence: Confidence = "certain"


@dataclass(frozen=True, slots=True)
class Barrier:
    """A place where threads wait for each other, or memory is fenced."""

    scope: Literal["block", "warp", "fence", "grid"]
    guards: tuple[int, ...]
    loops: tuple[int, ...]
    span: Span
    inlined_in: str


@dataclass(frozen=True, slots=True)
class ThreadExchange:
    """Values passed between the threads of a warp or work-group without memory."""

    function: str
    scope: Literal["warp", "block"]
    span: Span
    inlined_in: str


@dataclass(frozen=True, slots=True)
class MathCall:
    """A call of a mathematical function."""

    function: str
    name: str
    """Without the dialect's decoration: `exp` for `__expf` and `native_exp`."""
    flavour: Literal["precise", "fast"]
    loops: tuple[int, ...]
    span: Span
    is_exact: bool
    inlined_in: str


@dataclass(frozen=True, slots=True)
class LiteralFact:
    """A number that may be worth tuning, or that a launch must agree with."""

    value: int
    role: Literal[
        "macro", "parameter", "constant", "shared extent", "private extent", "block size", "loop bound", "loop step",
        "unroll", "launch bound", "vector width",
    ]  # fmt: skip
    name: str
    """The macro, constant, array or loop index; may be empty."""
    span: Span
    uses: tuple[Span, ...] = ()
    """Where a macro is used."""


@dataclass(frozen=True, slots=True)
class CastFact:
    """A conversion."""

    c_type: str
    is_pointer: bool
    is_reinterpreting: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Reuse:
    """Why one access touches the same elements more than once."""

    access: int
    threads: tuple[str, ...]
    """Launch axes of which the element does not depend: `x`, `y`, `z`."""
    loops: tuple[int, ...]
    """Loops around it of which the element does not depend."""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Everything that is known of one kernel. Indices in facts are positions in these tuples."""

    name: str
    span: Span
    body: Span
    parameters: tuple[FunctionParameter, ...]
    attributes: tuple[Mark, ...]
    template_parameters: tuple[str, ...]
    atoms: Mapping[str, Atom]
    names: Mapping[str, str]
    """By atom, the variable that the source keeps it in."""
    defaults: Mapping[str, Polynomial]
    """The values that parameters of the source have where nothing else is said."""
    arrays: Mapping[str, Array]
    thread_indices: tuple[ThreadIndex, ...]
    guards: tuple[Guard, ...]
    loops: tuple[LoopFact, ...]
    accesses: tuple[Access, ...]
    reuses: tuple[Reuse, ...]
    reductions: tuple[Reduction, ...]
    barriers: tuple[Barrier, ...]
    exchanges: tuple[ThreadExchange, ...]
    math: tuple[MathCall, ...]
    literals: tuple[LiteralFact, ...]
    casts: tuple[CastFact, ...]
    helpers: tuple[str, ...]
    """Functions of the file that were followed."""
    opaque: tuple[Opaque, ...]
    aligned: tuple[tuple[Polynomial, int], ...] = ()
    """Sizes in bytes that are multiples of a number, or else elements would not be aligned."""
    viewed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By array, the types of the pointers that it is reached by."""
