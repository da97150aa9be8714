"""What a program of Triton does of a launch in C: places of threads, or blocks with all their threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernelwright.source import nodes
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.triton.values import NOWHERE, TritonValue, bare, terms

AXES = ("x", "y", "z")
PLACES = {"x": "at", "y": "at_y", "z": "at_z"}
"""By axis of the launch, what a program's places along it are called."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the conditions that a mask is made of."""

    text: str
    axes: frozenset[int]
    is_met: bool = False
    """Whether some element of each tile meets it, whatever the sizes."""


Mask = tuple[Part, ...]


@dataclass(slots=True)
class Variable:
    """What a name in C stands for."""

    key: object
    """Of its axes, the same each time that the body is written."""
    text: str
    dtype: str
    mask: Mask = ()
    depth: int = 0
    """Loops around its declaration."""
    is_pointer: bool = False
    place: str = ""
    starts_at_zero: bool = False
    """Whether it is a sum of a lane's own, which is 0 in lanes that had nothing to do."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The axes of a tile, and what a kernel's words for its thread's place mean there.

    A value's place says what it is of the thread's: `x`, `y`, `z` are places among all threads, `row` is the block,
    `lane` the thread in it, `size` its threads, `grid` the blocks; `rowsize`, `all` and `stride` are products and sums
    of these.
    """

    kind: Literal["threads", "rows"]
    extents: tuple[str, ...]
    """Of the axes, in order."""
    places: Mapping[str, frozenset[int]]
    """By launch axis (`threads`), along which axis of the tile its places differ."""
    sizes: Mapping[str, int | None]
    """By launch axis, the threads of a block."""
    totals: Mapping[str, str]
    """By place, how many there are, as an expression of the problem."""
    tile_axis: int | None = None
    """Along which elements of a loop stand."""
    masks: tuple[tuple[str, frozenset[int]], ...] = ()
    is_free: bool = False
    """Whether a block may have another number of threads than the source's."""
    is_wide: bool = False
    """Whether places are 64 bits wide, as the source has them."""
    has_dots: bool = False
    """Whether loops that sum products may be products of matrices: axes are the output's rows and columns."""
    lane_text: str = field(default="lane", init=False)

    @property
    def lane_axis(self) -> int | None:
        """Along which the threads of a block stand."""
        return self.tile_axis if self.kind == "rows" else None

    @property
    def thread_axes(self) -> frozenset[int]:
        """Along which threads differ."""
        return frozenset((0, 1)) if self.kind == "rows" else NOWHERE.union(*self.places.values())

    def shape(self, axes: frozenset[int]) -> str:
        """The shape of a block that differs along these axes."""
        parts = [extent if index in axes else "1" for index, extent in enumerate(self.extents)]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    def along(self, text: str, axis: int) -> str:
        """A vector as a block that differs along one axis."""
        if len(self.extents) == 1:
            return text
        return f"({text})[{', '.join(':' if each == axis else 'None' for each in range(len(self.extents)))}]"

    def value_of(self, node: nodes.Expression) -> TritonValue | None:
        """What an expression is, where it says the thread's place."""
        dtype = "int64" if self.is_wide else "int32"
        if self.kind == "threads":
            axis = self._axis_of(node)
            return TritonValue(PLACES[axis], dtype, self.places[axis], place=axis) if axis else None
        place = self.place(query_text(node))
        match place:
            case "row":
                return TritonValue("row", dtype, frozenset((0,)), place=place)
            case "lane":
                return TritonValue("lane", dtype, frozenset((1,)), place=place)
            case "size":
                return TritonValue(str(self.sizes["x"]), dtype, is_literal=True, place=place)
            case "grid":
                return TritonValue("GRID", dtype, place=place)
            case "all":
                text = f"(row * {self.sizes['x']} + lane)"
                return TritonValue(text, dtype, frozenset((0, 1)), place=place)
            case "y" | "z":
                return TritonValue(PLACES[place], dtype, place=place)
            case "one" | "zero":
                return TritonValue(str(int(place == "one")), dtype, is_literal=True)
        return None

    def place(self, query: str) -> str:
        """What a query asks for (`rows`); empty for what is not known."""
        if self.kind != "rows":
            return ""
        for index, axis in enumerate(AXES):
            group, local = (
                (f"blockIdx.{axis}", f"get_group_id({index})"),
                (f"threadIdx.{axis}", f"get_local_id({index})"),
            )
            size, grid = (
                (f"blockDim.{axis}", f"get_local_size({index})"),
                (f"gridDim.{axis}", f"get_num_groups({index})"),
            )
            if query in group:
                return "row" if axis == "x" else axis
            if query in local:
                return "lane" if axis == "x" else "zero"
            if query in size:
                return "size" if axis == "x" else "one"
            if axis == "x" and query in grid:
                return "grid"
            if query == f"get_global_id({index})":
                return "all" if axis == "x" else axis
            if axis == "x" and query == "get_global_size(0)":
                return "stride"
        return ""

    def place_of_number(self, number: int) -> str:
        """`size`, for a number that may stand for it."""
        return "size" if self.kind == "rows" and number == self.sizes["x"] else ""

    def joined_place(self, operator: str, one: TritonValue, other: TritonValue) -> str:
        """The place that two make."""
        if self.kind != "rows":
            return ""
        places = {self._or_size(one), self._or_size(other)}
        known = {"*": {("row", "size"): "rowsize", ("grid", "size"): "stride"}, "+": {("lane", "rowsize"): "all"}}
        return known.get(operator, {}).get(tuple(sorted(places)), "")  # type: ignore[arg-type]

    def _or_size(self, value: TritonValue) -> str:
        is_size = value.is_literal and value.text == str(self.sizes["x"])
        return value.place or ("size" if is_size else "")

    def step_place(self, value: TritonValue) -> str:
        """What a loop's step is: `size`, `stride`, `one` or nothing."""
        if value.is_literal and value.text == "1" and self.sizes.get("x") != 1:
            return "one"
        return self._or_size(value) if self.kind == "rows" else ""

    def _axis_of(self, node: nodes.Expression) -> str:
        """The launch axis of whose places among all threads an expression is one; empty for anything else."""
        texts = sorted(
            "*".join(sorted(_factor(factor) for factor in terms(bare(term), "*"))) for term in terms(node, "+")
        )
        for index, axis in enumerate(AXES):
            if axis not in self.places:
                continue
            size = self.sizes.get(axis)
            blocks = (f"blockIdx.{axis}", f"get_group_id({index})")
            whole = [
                [f"get_global_id({index})"],
                [f"blockDim.{axis}*blockIdx.{axis}", f"threadIdx.{axis}"],
                [f"get_group_id({index})*get_local_size({index})", f"get_local_id({index})"],
                sorted([f"{size}*blockIdx.{axis}", f"threadIdx.{axis}"]),
                sorted([f"{size}*get_group_id({index})", f"get_local_id({index})"]),
            ]
            if texts in whole or (size == 1 and texts[0] in blocks and len(texts) == 1):
                return axis
        return ""


def _factor(node: nodes.Expression) -> str:
    inner = bare(node)
    return str(inner.value) if isinstance(inner, nodes.Literal) else query_text(inner)
