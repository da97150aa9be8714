"""Matrix times vector: a warp takes several rows, so that what it loads of the vector serves all of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernelwright.source.edits import Edit
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_arranged, refuse_unread
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.recognised.places import launched, quoted, values_of
from kernelwright.tactics.recognised.products_facts import Product, product_of
from kernelwright.tactics.recognised.products_text import NEAR, ROWS
from kernelwright.tactics.recognised.row_text import RowWriting, filled
from kernelwright.tactics.recognised.trials import floats
from kernelwright.tactics.rows.text import LOAD_HINTS, LOAD_WHY, hinted_access
from kernelwright.tactics.tiling.frame import edited
from kernelwright.tactics.vectors.lane_text import prelude

NAME = "matrix-rows"
_MOST_VECTORS = 16


def _matrix_rows(subject: Subject) -> Rewrite:
    refuse_arranged(subject, "row-split", "block-items", "row-registers", "contraction-tiles")
    refuse_unread(subject)
    if subject.language != "cuda":
        raise Unfit("the threads of a row join by CUDA's shuffles")
    found = product_of(subject)
    many = _vectors(subject, found)
    writing = RowWriting(subject, RewriteBuilder(subject, NAME, "contraction"), found.threads)
    _name(writing, found, many)
    _write(writing, found, many)
    rows = max(total_of(subject, found.rows, sizes) or 1 for sizes in subject.sizes())
    return writing.finish(
        "A warp takes several rows of the matrix in vectors, with one load of the vector for all of them.",
        Effect(9.0 if found.threads < 32 else 2.2, f"{rows} rows of {found.matrix} are loaded once, in whole vectors"),
    )


def _vectors(subject: Subject, found: Product) -> str:
    """How many vectors the matrix is multiplied with, as an expression in sizes: rows of outputs behind each other.

    Raises:
        Unfit: there are more than a few, or they lie in another order.
    """
    argument = {binding.get(found.matrix) for binding in subject.bindings}
    known = argument.pop() if len(argument) == 1 else None
    if known is None:
        raise Unfit(f"how large {found.matrix} is, is not known")
    elements = " * ".join(f"({extent.text})" for extent in known.shape)
    many = f"(({found.rows}) * ({found.length})) // ({elements})"
    for sizes in subject.sizes():
        rows, length = total_of(subject, found.rows, sizes) or 0, total_of(subject, found.length, sizes) or 0
        whole, count = total_of(subject, elements, sizes) or 0, total_of(subject, many, sizes) or 0
        if not 1 <= count <= _MOST_VECTORS or whole * count != rows * length:
            raise Unfit(f"rows of {found.matrix} are needed more than a few times, which tiles are for")
        if not _lie_apart(subject, found, sizes, rows // count, count):
            raise Unfit(f"outputs that need the same row of {found.matrix} lie in an order that is not followed")
    return many


def _lie_apart(subject: Subject, found: Product, sizes: Mapping[str, int], far: int, count: int) -> bool:
    """Whether outputs `far` rows apart need the same row of the matrix."""
    launch = launched(subject, sizes, floats(subject, 0))
    each = launch.threads // found.threads
    rows = np.unique(np.linspace(0, far - 1, 50).astype(np.int64))
    starts = []
    for first in range(count):
        block, own = np.divmod(rows + first * far, each)
        starts.append(values_of(subject, launch, found.matrix_place, block, own * found.threads, {}))
    return all((one == starts[0]).all() for one in starts)


def _name(writing: RowWriting, found: Product, many: str) -> None:
    subject, plan, words = writing.subject, writing.plan, writing.words
    writing.define({"LENGTH": found.length, "ROWS": found.rows, "MANY": many})
    arrays = subject.analysis.facts.arrays
    size = arrays[found.matrix].element_bytes or 4
    lengths = [total_of(subject, found.length, sizes) or 1 for sizes in subject.sizes()]
    vecs = (1, 2, 4, 8, 16)
    vec = max(each for each in vecs if each * size <= 16 and all(length % each == 0 for length in lengths))
    told = {
        "VEC": ("VEC", vecs, vec, "elements of a row that a thread takes at once"),
        "TAKEN": ("TAKEN", (1, 2, 4, 8), 4, "rows that a warp takes together"),
        "SHARE": ("SHARE", (1, 2, 4, 8), 1, "warps that share a row"),
        "BLOCK": ("BLOCK", (64, 128, 256), 128, "threads of a block"),
        "UNROLL": ("UNROLL", (1, 2, 4), 2, "steps along a row that are written out"),
        "LOAD": ("LOAD", LOAD_HINTS, 0, LOAD_WHY),
    }
    for what, (name, values, default, why) in told.items():
        words[what] = plan.parameter(name, values, default, why)
    plan.constraint("whole", f"({found.length}) % {words['VEC']} == 0")
    plan.constraint("registers", f"{words['VEC']} * {words['TAKEN']} * {words['UNROLL']} * {size} <= 512")
    plan.constraint("sums", f"({many}) * {words['TAKEN']} <= 64")
    plan.constraint("shared rows", f"{words['SHARE']} * 32 <= {words['BLOCK']}")


def _write(writing: RowWriting, found: Product, many: str) -> None:
    subject, plan, w = writing.subject, writing.plan, writing.words
    plan.prelude.append(prelude(dialect(subject.language), w["VEC"], c_types=(), mapped=(), operators=frozenset()))
    plan.prelude.append(hinted_access(w["VEC"], w["LOAD"], "0"))
    plan.prelude.append(filled(NEAR, w))
    writing.place_function("matrix_at", found.matrix, found.matrix_place)
    writing.place_function("vector_at", found.vector, found.vector_place)
    writing.place_function("out_at", found.out, found.out_place)
    types = {each.name: each.c_type for each in subject.analysis.function.parameters}
    edits = [Edit(each.place.span, "kw_dot") for each in found.sums]
    text = edited(subject.source, found.result.node.place.span, edits)
    extra = f"const unsigned kw_row, const float kw_dot, {types[found.out]} &kw_to"
    writing.function("result_of", extra, f"{quoted(subject, found.result, {})} kw_to = {text};")
    w |= {"W": found.matrix, "X": found.vector, "O": found.out, "W_TYPE": types[found.matrix],
          "X_TYPE": types[found.vector]}  # fmt: skip
    step = writing.one_launch(ROWS)
    own = f"({found.rows}) // ({many})"
    grid = (f"ceil_div({own}, {w['BLOCK']} // 32 // {w['SHARE']} * {w['TAKEN']})",)
    none = None if step.shared_bytes is None else "0"
    plan.header = plan.header.relaunched(step.entry, grid=grid, block=(w["BLOCK"],), shared_bytes=none)


MATRIX_ROWS = RuleTactic(
    NAME, "contraction", "Matrix times vector: warps take several rows with one load of the vector.", _matrix_rows
)
