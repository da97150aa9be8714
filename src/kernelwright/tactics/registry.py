"""All tactics, in the order in which they are tried where the predicted effect is the same."""

from __future__ import annotations

from kernelwright.tactics.base import Family, Tactic
from kernelwright.tactics.contraction.tiles import CONTRACTION_TILES
from kernelwright.tactics.hoisting.arithmetic import HOIST_ARITHMETIC
from kernelwright.tactics.hoisting.jam import JAM
from kernelwright.tactics.hoisting.loads import HOIST
from kernelwright.tactics.hoisting.sums import REGISTER_SUMS, summed
from kernelwright.tactics.launch.block_shape import LAUNCH_SHAPE
from kernelwright.tactics.launch.loop_parts import LOOP_PARTS
from kernelwright.tactics.launch.plain_launch import plainly
from kernelwright.tactics.recognised.attention import ATTENTION_PARTS
from kernelwright.tactics.recognised.extremes import ROW_ORDER
from kernelwright.tactics.recognised.matrix_products import also_recognised
from kernelwright.tactics.recognised.products import MATRIX_ROWS
from kernelwright.tactics.reductions.block_reductions import BLOCK_JOINS
from kernelwright.tactics.reductions.items_per_thread import BLOCK_ITEMS
from kernelwright.tactics.reductions.private_bins import PRIVATE_BINS
from kernelwright.tactics.rows.groups import GROUP_LANES
from kernelwright.tactics.rows.one_pass import ONE_PASS
from kernelwright.tactics.rows.registers import ROW_REGISTERS
from kernelwright.tactics.rows.scan import ROW_SCAN
from kernelwright.tactics.rows.split import ROW_SPLIT
from kernelwright.tactics.rows.threads_per_row import ROWS
from kernelwright.tactics.scalar.arithmetic import FAST_FUNCTIONS, RECIPROCAL
from kernelwright.tactics.scalar.compiler_hints import LAUNCH_BOUNDS, OPTIONS, RESTRICT, UNROLL
from kernelwright.tactics.scalar.narrow_indices import NARROW_INDICES
from kernelwright.tactics.scalar.running_indices import RUNNING_INDICES
from kernelwright.tactics.stencil.tiles import STENCIL_TILES
from kernelwright.tactics.stencil.time_steps import JOIN_STEPS
from kernelwright.tactics.tiling.unstaged import also_unstaged
from kernelwright.tactics.transpose.tiles import TRANSPOSE_TILES
from kernelwright.tactics.vectors.loops import VECTOR_LOOPS
from kernelwright.tactics.vectors.map import COARSEN, VECTOR_MAP
from kernelwright.tactics.vectors.walks import WALK_VECTORS

TACTICS: tuple[Tactic, ...] = (
    also_recognised(also_unstaged(CONTRACTION_TILES)), also_unstaged(TRANSPOSE_TILES), JOIN_STEPS,
    also_unstaged(STENCIL_TILES), ATTENTION_PARTS, ROW_ORDER, also_unstaged(MATRIX_ROWS), GROUP_LANES,
    also_unstaged(summed(VECTOR_MAP)),
    plainly(ROW_REGISTERS), summed(plainly(ROW_SPLIT)), also_unstaged(summed(plainly(ROWS))), plainly(ROW_SCAN),
    plainly(ONE_PASS), plainly(BLOCK_JOINS), plainly(BLOCK_ITEMS), plainly(PRIVATE_BINS),
    also_unstaged(plainly(VECTOR_LOOPS)), also_unstaged(WALK_VECTORS), also_unstaged(JAM), also_unstaged(COARSEN),
    also_unstaged(LOOP_PARTS),
    RECIPROCAL, FAST_FUNCTIONS, UNROLL, RESTRICT, REGISTER_SUMS, HOIST, RUNNING_INDICES, HOIST_ARITHMETIC,
    NARROW_INDICES, also_unstaged(LAUNCH_SHAPE), LAUNCH_BOUNDS, OPTIONS,
)  # fmt: skip
"""One module a tactic or two; a new one is imported above and listed here."""


def by_family(family: Family) -> tuple[Tactic, ...]:
    """The tactics of one family, in order."""
    return tuple(each for each in TACTICS if each.family == family)


def tactic(name: str) -> Tactic | None:
    """The tactic of that name."""
    return next((each for each in TACTICS if each.name == name), None)
