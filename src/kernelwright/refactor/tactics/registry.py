"""All tactics, in the order in which they are tried where the predicted effect is the same."""

from __future__ import annotations

from kernelwright.refactor.tactics.arithmetic import FAST_FUNCTIONS, RECIPROCAL
from kernelwright.refactor.tactics.base import Family, Tactic
from kernelwright.refactor.tactics.block_items import BLOCK_ITEMS
from kernelwright.refactor.tactics.block_joins import BLOCK_JOINS
from kernelwright.refactor.tactics.contraction import CONTRACTION_TILES
from kernelwright.refactor.tactics.group_lanes import GROUP_LANES
from kernelwright.refactor.tactics.hints import LAUNCH_BOUNDS, OPTIONS, RESTRICT, UNROLL
from kernelwright.refactor.tactics.hoist import HOIST
from kernelwright.refactor.tactics.hoist_arithmetic import HOIST_ARITHMETIC
from kernelwright.refactor.tactics.join_steps import JOIN_STEPS
from kernelwright.refactor.tactics.launch_shape import LAUNCH_SHAPE
from kernelwright.refactor.tactics.narrow_indices import NARROW_INDICES
from kernelwright.refactor.tactics.plain_launch import Plainly
from kernelwright.refactor.tactics.row_one_pass import ONE_PASS
from kernelwright.refactor.tactics.row_registers import ROW_REGISTERS
from kernelwright.refactor.tactics.row_split import ROW_SPLIT
from kernelwright.refactor.tactics.rows import ROWS
from kernelwright.refactor.tactics.running_indices import RUNNING_INDICES
from kernelwright.refactor.tactics.tiling_stencil import STENCIL_TILES
from kernelwright.refactor.tactics.tiling_transpose import TRANSPOSE_TILES
from kernelwright.refactor.tactics.vector_loops import VECTOR_LOOPS
from kernelwright.refactor.tactics.vector_map import COARSEN, VECTOR_MAP

TACTICS: tuple[Tactic, ...] = (
    CONTRACTION_TILES, TRANSPOSE_TILES, JOIN_STEPS, STENCIL_TILES,
    GROUP_LANES, VECTOR_MAP, ROW_REGISTERS, Plainly(ROW_SPLIT), Plainly(ROWS), ONE_PASS, BLOCK_JOINS, BLOCK_ITEMS,
    VECTOR_LOOPS, COARSEN,
    RECIPROCAL, FAST_FUNCTIONS, UNROLL, RESTRICT, HOIST, RUNNING_INDICES, HOIST_ARITHMETIC,
    NARROW_INDICES, LAUNCH_SHAPE, LAUNCH_BOUNDS, OPTIONS,
)  # fmt: skip
"""One module a tactic or two; a new one is imported above and listed here."""


def by_family(family: Family) -> tuple[Tactic, ...]:
    """The tactics of one family, in order."""
    return tuple(each for each in TACTICS if each.family == family)


def tactic(name: str) -> Tactic | None:
    """The tactic of that name."""
    return next((each for each in TACTICS if each.name == name), None)
