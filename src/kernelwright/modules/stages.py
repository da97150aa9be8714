"""Stages of a program, and the kernels that they are fused into.

A kernel loops over a *layout*: segments of a row-major array, of which the outer ones say which work-item, and the
inner ones are loops. Stages with the same layout become one kernel where each reads of the others only what its own
work-item has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from kernelwright.modules.expression import ElementFormula, Value, stored
from kernelwright.modules.graph import Tensor
from kernelwright.modules.index import TensorIndex, flattened, unflattened, variable

Combiner = Literal["sum", "prod", "max", "min", "fmax", "argmax", "argmin"]
"""`max` and `min` give NaN where one is joined, `fmax` passes over it; `argmax` and `argmin` give the first place."""


MOST_WRITTEN_OUT = 64
"""Operations of an element that may be computed again wherever it is read. A guess."""
MOST_AGAIN = 32
"""Operations of an element that has several readers; what needs more is stored. A guess; Inductor's is 30."""
MOST_CHEAP = 8
"""Operations on one load that cost no more than a load. A guess."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of adjacent axes."""

    extent: int
    is_inner: bool


Layout = tuple[Segment, ...]


@dataclass(slots=True, eq=False)
class Stage:
    """One thing that a kernel does: a reduction, a scan, which stores each step of one, a number, or a store.

    A number is computed once for a work-item, and needs no loop.
    """

    kind: Literal["reduce", "scan", "number", "store"]
    buffer: str
    """What it computes."""
    dtype: str
    element: ElementFormula
    """What is combined or stored."""
    index: TensorIndex
    """Where it goes."""
    is_inside: bool = True
    """Whether a store is in the loops; else once for a work-item."""
    combiner: Combiner = "sum"


@dataclass(slots=True, eq=False)
class Kernel:
    """Stages that one launch does, in order."""

    layout: Layout
    covers: bool
    """Whether the layout is that of one array, in its order."""
    stages: list[Stage] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    """The module's operators that its reductions and stores belong to; maps are computed where they are read."""

    @property
    def variables(self) -> tuple[TensorIndex, ...]:
        """One for each segment."""
        outer, inner = iter(range(99)), iter(range(99))
        return tuple(
            variable(f"k{next(inner)}" if each.is_inner else f"i{next(outer)}", each.extent) for each in self.layout
        )

    @property
    def count(self) -> int:
        """Work-items."""
        return _product(each.extent for each in self.layout if not each.is_inner)

    @property
    def place(self) -> TensorIndex:
        """The number of the work-item."""
        outer = [(index, each.extent) for index, each in zip(self.variables, self.layout, strict=True)
                 if not each.is_inner]  # fmt: skip
        return flattened([index for index, _ in outer], [extent for _, extent in outer])

    @property
    def flat(self) -> TensorIndex:
        """The place in the array that the layout covers."""
        return flattened(self.variables, [each.extent for each in self.layout])

    def computed(self) -> set[str]:
        """Buffers that hold one number of each work-item."""
        return {stage.buffer for stage in self.stages if stage.kind in ("reduce", "number")}

    def written(self) -> set[str]:
        """All buffers that it computes."""
        return {stage.buffer for stage in self.stages}


Body = Callable[[tuple[TensorIndex, ...]], ElementFormula]
"""An element by the layout's variables."""


class Stages:
    """The kernels of a program, as they are added to."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.buffers: dict[str, Tensor] = {}
        """What kernels compute."""
        self.node = ""
        """The operator that is lowered."""
        self.taken: set[tuple[str, int]] = set()
        """Results of operators with several, by the operator's name and the place, that others take."""
        self.given: dict[str, int] = {}
        """What a library computes, and how many kernels come before that: readers come after it."""
        self.shown: dict[str, None] = {}
        """What kernels compute and a library reads."""

    def reduce(
        self, layout: Layout, combiner: Combiner, body: Body, tensor: Tensor, *, covers: bool, name: str = ""
    ) -> Value:
        """Combine the elements of the inner segments; `tensor` has one element for each work-item."""
        buffer = self._new(name, tensor)
        for kernel in self._homes(layout, covers=covers):
            element = body(kernel.variables)
            if self._fits(kernel, [element]):
                break
        else:
            kernel = self._kernel(layout, covers=covers)
            element = body(kernel.variables)
        stage = Stage("reduce", buffer, tensor.dtype, element, kernel.place, combiner=combiner)
        self._add(kernel, stage)
        return stored(buffer, tensor)

    def scan(self, layout: Layout, combiner: Combiner, body: Body, tensor: Tensor) -> Value:
        """Each step of combining the elements of the inner segments; the layout is that of `tensor`, in its order."""
        buffer = self._new("", tensor)
        kernel = self._kernel(layout, covers=True)
        stage = Stage("scan", buffer, tensor.dtype, body(kernel.variables), kernel.flat, combiner=combiner)
        self._add(kernel, stage)
        return stored(buffer, tensor)

    def once(self, value: Value) -> Value:
        """The value, computed once for each work-item of what it is made of; unchanged where no kernel can do that."""
        tensor = value.tensor
        for kernel in reversed(self.kernels):
            if tensor.count == kernel.count:
                element = value.at(unflattened(kernel.place, tensor.shape))
                if {each.buffer for each in loads_of([element])} & kernel.computed() and self._fits(kernel, [element]):
                    buffer = self._new("", tensor)
                    self._add(kernel, Stage("number", buffer, tensor.dtype, element, kernel.place, is_inside=False))
                    return stored(buffer, tensor)
        return value

    def store(self, value: Value, *, name: str = "", only_after_product: bool = False) -> Value:
        """The value in memory; with `only_after_product`, unchanged unless a product's kernel can do it too."""
        tensor = value.tensor
        for kernel in reversed(self.kernels):
            if only_after_product and kernel.covers:
                continue
            for is_inside, flat in self._ways(kernel, tensor):
                element = value.at(unflattened(flat, tensor.shape))
                loads = {each.buffer for each in loads_of([element])}
                at_hand = self._at_hand(kernel, element)
                if (at_hand or loads & kernel.computed()) and self._fits(kernel, [element]):
                    for each in at_hand:
                        each.kind, each.is_inside = "number", False
                    buffer = self._new(name, tensor)
                    self._add(kernel, Stage("store", buffer, tensor.dtype, element, flat, is_inside))
                    return stored(buffer, tensor)
        if only_after_product:
            return value
        buffer = self._new(name, tensor)
        kernel = self._kernel((Segment(tensor.count, is_inner=False),), covers=True)
        element = value.at(unflattened(kernel.flat, tensor.shape))
        self._add(kernel, Stage("store", buffer, tensor.dtype, element, kernel.flat))
        return stored(buffer, tensor)

    def drop_copies(self) -> None:
        """A scan that is only copied to an output becomes that output."""
        scans = {stage.buffer: stage for each in self.kernels for stage in each.stages if stage.kind == "scan"}
        reads = [
            str(load.buffer) for each in self.kernels for load in loads_of([stage.element for stage in each.stages])
        ]
        for kernel in list(self.kernels):
            only = kernel.stages[0]
            name, index = only.element.buffer, only.element.index
            if len(kernel.stages) > 1 or name not in scans or index != only.index:
                continue
            if reads.count(name) > 1 or name in self.shown:
                continue
            scans[name].buffer = only.buffer
            del self.buffers[name]
            self.kernels.remove(kernel)

    def read_what_is_kept(self) -> None:
        """What is stored before is read, where computing it again needs more: chains of steps stay short."""
        done: set[str] = set()
        for kernel in self.kernels:
            known: dict[int, ElementFormula] = {}
            own: set[str] = set()
            for stage in kernel.stages:
                is_there = partial(_is_there, done, own, kernel.place)
                stage.element = _reading(stage.element, is_there, known)
                if stage.buffer in kernel.computed():
                    own.add(stage.buffer)
                    known.clear()
            done |= kernel.written()

    def _at_hand(self, kernel: Kernel, element: ElementFormula) -> list[Stage]:
        """Stores of a number for each work-item that an element is made of."""
        kept = {each.kept.buffer for each in _parts_of(element) if each.kept is not None}
        has_loops = any(each.is_inner for each in kernel.layout)
        return [
            each
            for each in kernel.stages
            if each.kind == "store" and each.buffer in kept and not (each.is_inside and has_loops)
        ]

    def _ways(self, kernel: Kernel, tensor: Tensor) -> Iterator[tuple[bool, TensorIndex]]:
        """How a kernel can go through all elements of a tensor: in its loops, or one a work-item."""
        if tensor.count == kernel.count:
            yield False, kernel.place
        elif kernel.covers and tensor.count == _product(each.extent for each in kernel.layout):
            yield True, kernel.flat

    def _homes(self, layout: Layout, *, covers: bool) -> Iterator[Kernel]:
        yield from (each for each in reversed(self.kernels) if each.layout == layout and each.covers and covers)

    def _fits(self, kernel: Kernel, elements: list[ElementFormula]) -> bool:
        """Whether the kernel can compute the elements: what it computes itself is read by its own work-item only."""
        later: set[str] = set()
        for each in self.kernels[self.kernels.index(kernel) + 1 :]:
            later |= each.written()
        own, place = kernel.written(), self.kernels.index(kernel)
        for load in loads_of(elements):
            if load.buffer in later or self.given.get(str(load.buffer), 0) > place:
                return False
            if load.buffer in own and (load.buffer not in kernel.computed() or load.index != kernel.place):
                return False
        return True

    def _kernel(self, layout: Layout, *, covers: bool) -> Kernel:
        kernel = Kernel(layout, covers)
        self.kernels.append(kernel)
        return kernel

    def _add(self, kernel: Kernel, stage: Stage) -> None:
        kernel.stages.append(stage)
        if self.node and self.node not in kernel.nodes:
            kernel.nodes.append(self.node)

    def _new(self, name: str, tensor: Tensor) -> str:
        name = name or f"t{len(self.buffers) + 1}"
        self.buffers[name] = tensor
        return name


def in_memory(stages: Stages, value: Value) -> Value:
    """The value, stored where it is not yet."""
    found = value.in_memory
    if found is None:
        found = stages.store(value)
        value.keep(found)
    return found


def stored_if_long(stages: Stages, value: Value) -> None:
    """Put a value of several readers into memory where computing it again needs much."""
    if value.in_memory is not None or not value.tensor.count:
        return
    element = value.at(unflattened(variable("i", value.tensor.count), value.shape))
    if element.buffer is None and _needs_more(element, MOST_AGAIN, loads=MOST_AGAIN):
        in_memory(stages, value)


def under_condition(stages: Stages, value: Value) -> Value:
    """The value as it may stand under a condition, where what it shares is written out at each use: stored if long.

    Without it the text of a chain of 20 squares has a million operations.
    """
    if value.in_memory is not None:
        return value.in_memory
    element = value.at(unflattened(variable("i", value.tensor.count), value.shape))
    distinct, written_out = operations_of(element)
    return in_memory(stages, value) if written_out > max(MOST_WRITTEN_OUT, 2 * distinct) else value


def _is_there(done: set[str], own: set[str], place: TensorIndex, load: ElementFormula) -> bool:
    """Whether a work-item can read the number: of a kernel before, or its own."""
    return load.buffer in done or (load.buffer in own and load.index == place)


def _reading(
    element: ElementFormula, is_there: Callable[[ElementFormula], bool], known: dict[int, ElementFormula]
) -> ElementFormula:
    """The element with loads in place of what is kept and can be read."""
    if id(element) in known:
        return known[id(element)]
    found = element
    if element.kept is not None and is_there(element.kept) and _needs_more(element, MOST_CHEAP, loads=1):
        found = element.kept
    elif element.parts:
        parts = tuple(_reading(each, is_there, known) for each in element.parts)
        if any(new is not old for new, old in zip(parts, element.parts, strict=True)):
            found = replace(element, parts=parts)
    known[id(element)] = found
    return found


def _needs_more(element: ElementFormula, most: int, *, loads: int) -> bool:
    """Whether an element needs more operations, or more loads, than so many; what it is made of and is kept, is one."""
    seen, read = {id(element)}, int(element.buffer is not None)
    waiting = list(element.parts)
    while waiting and len(seen) <= most and read <= loads:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        is_load = each.buffer is not None or each.kept is not None
        read += is_load
        waiting += () if each.kept is not None else each.parts
    return len(seen) > most or read > loads


def _parts_of(element: ElementFormula) -> Iterator[ElementFormula]:
    """An element and what it is made of, each once, down to what is kept."""
    seen: set[int] = set()
    waiting = [element]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += () if each.kept is not None else each.parts


def operations_of(element: ElementFormula) -> tuple[int, int]:
    """How many nodes an element has, and how many its text would have without anything shared."""
    sizes: dict[int, int] = {}
    waiting = [element]
    while waiting:
        each = waiting[-1]
        missing = [part for part in each.parts if id(part) not in sizes]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        uses = (max(1, each.form.count(f"{{{place}}}")) for place in range(len(each.parts)))
        sizes[id(each)] = 1 + sum(times * sizes[id(part)] for times, part in zip(uses, each.parts, strict=True))
    return len(sizes), sizes[id(element)]


def loads_of(elements: list[ElementFormula]) -> Iterator[ElementFormula]:
    """All loads in elements, each once."""
    seen: set[int] = set()
    waiting = list(elements)
    while waiting:
        element = waiting.pop()
        if id(element) in seen:
            continue
        seen.add(id(element))
        if element.buffer is not None:
            yield element
        waiting += element.parts


def _product(extents: Iterator[int]) -> int:
    product = 1
    for extent in extents:
        product *= extent
    return product
