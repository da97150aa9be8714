"""What is known while a kernel is followed from its first statement to its last, and the facts found on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from kernelwright.analysis import facts
from kernelwright.analysis.facts import NO_SOURCES, Access, AccessKind, Array, Guard, Relation, Sources
from kernelwright.analysis.polynomial import ONE, Polynomial
from kernelwright.analysis.values import Atoms, Pointer, Truth, Value
from kernelwright.problem.dtypes import dtype_of_c_type
from kernelwright.source import nodes
from kernelwright.source.language import Language
from kernelwright.source.lowering_expressions import vector_width
from kernelwright.source.preprocess import Opaque, Place
from kernelwright.source.span import Span

MAX_STEPS = 60_000
"""Expressions and statements followed, helpers at every call; a 500-line kernel takes some 5,000."""
MAX_NESTING = 150
"""The deepest nesting that is followed, through helpers: it keeps recursion within Python's limit."""


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer type."""

    bits: int
    is_signed: bool


@dataclass(slots=True)
class _OpenLoop:
    """A loop that is being followed."""

    index: int
    known_before: frozenset[str]
    """The variables that exist outside of it."""
    depth: int
    """How many helpers deep it stands: variables of others have the same names."""
    guard_count: int
    """How many conditions hold around it."""


@dataclass(slots=True)
class State:
    """All that is known at one point of a kernel."""

    tree: nodes.SyntaxTree
    language: Language
    atoms: Atoms = field(default_factory=Atoms)
    variables: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, Value] = field(default_factory=dict)
    """What names at file scope stand for."""
    exchanged: set[str] = field(default_factory=set)
    """Atoms that came from another thread of the warp."""
    types: dict[str, str] = field(default_factory=dict)
    """What type names stand for: typedefs, template parameters."""
    declared_types: dict[str, str] = field(default_factory=dict)
    """The type of each variable."""
    auto_types: dict[str, Integer | None] = field(default_factory=dict)
    """The types of integers that are declared `auto`."""
    parameter_types: dict[str, str] = field(default_factory=dict)
    """The types of the kernel's by-value parameters."""
    arrays: dict[str, Array] = field(default_factory=dict)
    array_sources: dict[str, Sources] = field(default_factory=dict)
    """What has been stored in each shared or local array."""
    active_guards: list[int] = field(default_factory=list)
    open_loops: list[_OpenLoop] = field(default_factory=list)
    inlined: list[str] = field(default_factory=list)
    steps: int = 0
    nesting: int = 0
    helpers: dict[str, None] = field(default_factory=dict)
    thread_indices: list[facts.ThreadIndex] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    loops: list[facts.LoopFact] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    viewed: dict[str, set[str]] = field(default_factory=dict)
    """By array, the types of the pointers that it is reached by."""
    reductions: list[facts.Reduction] = field(default_factory=list)
    barriers: list[facts.Barrier] = field(default_factory=list)
    exchanges: list[facts.ThreadExchange] = field(default_factory=list)
    math: list[facts.MathCall] = field(default_factory=list)
    casts: list[facts.CastFact] = field(default_factory=list)
    opaque: dict[Opaque, None] = field(default_factory=dict)
    _data: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        self._data = self.tree.source.encode("utf-8", "surrogatepass")

    def open_loop(self, index: int, known: frozenset[str]) -> None:
        """A loop is followed from here on; `known`: the variables that exist outside of it."""
        self.open_loops.append(_OpenLoop(index, known, len(self.inlined), len(self.active_guards)))

    def text(self, place: Place) -> str:
        """What the source says at a place."""
        return self._data[place.span.start : place.span.end].decode("utf-8", "replace")

    @property
    def inlined_in(self) -> str:
        """The helper function that is being followed; empty in the kernel itself."""
        return self.inlined[-1] if self.inlined else ""

    @property
    def loop_indices(self) -> tuple[int, ...]:
        """The open loops, outermost first."""
        return tuple(loop.index for loop in self.open_loops)

    def loops_around(self, variable: str) -> tuple[int, ...]:
        """The open loops in which a variable lives on from one iteration to the next."""
        depth = len(self.inlined)
        return tuple(
            loop.index for loop in self.open_loops if loop.depth == depth and variable in loop.known_before
        )  # fmt: skip

    def is_exchanged(self, value: Value) -> bool:
        """Whether a value came from another thread of the warp."""
        return isinstance(value, Polynomial) and not self.exchanged.isdisjoint(value.names)

    def is_array_variable(self, name: str) -> bool:
        """Whether a variable is an array, not a pointer to one."""
        value = self.variables.get(name)
        if not isinstance(value, Pointer) or value.array.partition("#")[0] != name:
            return False
        return value.array in self.arrays and not self.arrays[value.array].is_parameter

    @contextmanager
    def nested(self, place: Place, names: frozenset[str] = frozenset()) -> Iterator[bool]:
        """One level of what is followed; gives False, and says so in the facts, where it gets too much."""
        self.steps += 1
        self.nesting += 1
        is_possible = self.steps <= MAX_STEPS and self.nesting <= MAX_NESTING
        if not is_possible:
            self.not_understood(place, "too large or nested too deeply to follow", names)
        yield is_possible
        self.nesting -= 1

    # Opaque things

    def not_understood(self, place: Place, reason: str, names: frozenset[str] = frozenset()) -> None:
        """Note that a place is not understood; anything may have happened to `names`."""
        self.opaque[Opaque(place.span, reason)] = None
        for name in sorted(names):
            self.spoil(name, place)

    def spoil(self, name: str, place: Place) -> None:
        """A variable may have any value now; an array may have been read and written anywhere."""
        value = self.variables.get(name)
        if isinstance(value, Pointer):
            self.access(value, "unknown", place, reason="used by something that is not understood")
        elif value is not None:
            self.variables[name] = self.atoms.fresh(
                "float" if self.is_float_type(self.declared_types.get(name, "")) else "unknown",
                self.atoms.sources(value),
            )

    # Types

    def resolved_type(self, c_type: str) -> str:
        """What a type name stands for."""
        for _ in range(10):
            known = self.types.get(c_type) or self.tree.types.get(c_type)
            if known is None or known == c_type:
                break
            c_type = known
        return c_type

    def element_bytes(self, c_type: str) -> int | None:
        """The size of one value; None where it is not known."""
        resolved = self.resolved_type(c_type)
        dtype = dtype_of_c_type(resolved, self.language)
        if dtype is None:
            return None
        width = self.width(resolved)
        return dtype.item_bytes * (4 if width == 3 and self.language == "opencl" else width)

    def width(self, c_type: str) -> int:
        """Components of a type: 4 for `float4`."""
        resolved = self.resolved_type(c_type)
        return vector_width(resolved) or 1

    def is_float_type(self, c_type: str) -> bool:
        """Whether a type holds no integers, as far as is known: what is not known may."""
        resolved = self.resolved_type(c_type)
        if resolved in ("auto", "bool", "", "intptr_t", "uintptr_t", "dim3"):
            return False
        dtype = dtype_of_c_type(resolved, self.language)
        return dtype is None or dtype.kind == "float"

    # Guards

    @contextmanager
    def guarded(
        self, truth: Truth, text: str, place: Place, scope: Span, *, kind: str, holds: bool = True
    ) -> Iterator[None]:
        """Whatever is found inside happens only where a condition holds (or does not)."""
        self.push_guard(truth, text, place, scope, kind=kind, holds=holds)
        yield
        self.active_guards.pop()

    def push_guard(self, truth: Truth, text: str, place: Place, scope: Span, *, kind: str, holds: bool) -> None:
        """From here on a condition holds (or does not)."""
        comparisons = truth.yes if holds else truth.no
        is_complete = truth.says_all_of_yes if holds else truth.says_all_of_no
        index = len(self.guards)
        self.guards.append(Guard(index, kind, text, comparisons, is_complete, place.span, scope))  # type: ignore[arg-type]
        self.active_guards.append(index)

    def note_early_end(self, *, of_all_loops: bool) -> None:
        """A `break` or `return` stands here: unless only index bounds decide on it, its loops may end early."""
        depth = len(self.inlined)
        own = [loop for loop in self.open_loops if loop.depth == depth]
        for loop in own if of_all_loops else own[-1:]:
            guards = [self.guards[index] for index in self.active_guards[loop.guard_count :]]
            if not guards or not all(guard.is_complete and self._is_bound(guard) for guard in guards):
                self.loops[loop.index] = replace(self.loops[loop.index], ends_early=True)

    def _is_bound(self, guard: Guard) -> bool:
        names = {name for c in guard.comparisons for side in (c.left, c.right) for name in side.names}
        return all(self.atoms.by_name[name].kind not in ("data", "carried", "unknown", "float") for name in names)

    # Accesses

    def access(
        self,
        pointer: Pointer,
        kind: AccessKind,
        place: Place,
        *,
        width: Polynomial | None = None,
        is_atomic: bool = False,
        sources: Sources = NO_SOURCES,
        reason: str = "",
    ) -> Access:
        """Note that the elements at a pointer are touched."""
        array = self.arrays.get(pointer.array)
        self.viewed.setdefault(pointer.array, set()).add(pointer.c_type)
        element: Polynomial | None = None
        if kind != "unknown":
            if pointer.unit is None:
                reason = reason or "through a pointer to another type, whose size does not fit"
            elif not pointer.offset.is_small:
                reason = "its index is too long"
            else:
                element = self.atoms.canonical(pointer.offset)
        found = Access(
            len(self.accesses),
            pointer.array,
            array.space if array is not None else "global",
            kind,
            element,
            width if width is not None else pointer.unit or ONE,
            is_atomic,
            tuple(self.active_guards),
            self.loop_indices,
            sources,
            place.span,
            place.is_exact,
            self.inlined_in,
            reason,
        )
        self.accesses.append(found)
        if kind != "read":
            stored = self.array_sources.get(pointer.array, NO_SOURCES) | sources
            self.array_sources[pointer.array] = stored
        return found

    def sources_of_read(self, access: Access) -> Sources:
        """What a value that was just read is made of: the read, and what was stored there before."""
        before = (
            self.array_sources.get(access.array, NO_SOURCES) if access.space in ("shared", "private") else NO_SOURCES
        )
        return Sources(frozenset((access.index,))) | before


def negated(comparison: Relation) -> Relation:
    """The comparison that holds where this one does not."""
    opposite = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
    return replace(comparison, operator=opposite[comparison.operator])  # type: ignore[arg-type]


def opposite(truth: Truth) -> Truth:
    """The truth of `!condition`."""
    return Truth(truth.no, truth.yes, truth.says_all_of_no, truth.says_all_of_yes, truth.sources)


def both(left: Truth, right: Truth) -> Truth:
    """The truth of `left && right`."""
    return Truth(
        left.yes + right.yes,
        (),
        left.says_all_of_yes and right.says_all_of_yes,
        False,
        left.sources | right.sources,
    )
