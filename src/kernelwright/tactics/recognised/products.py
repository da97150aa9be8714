"""Matrix times vector: a warp takes several rows, so that what it loads of the vector serves all of them."""

from __future__ import annotations

from kernelwright.source.edits import Edit
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_arranged, refuse_unread
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.common.traffic_model import array_bytes
from kernelwright.tactics.recognised.places import quoted
from kernelwright.tactics.recognised.products_facts import Product, product_of
from kernelwright.tactics.recognised.products_text import NEAR, ROWS
from kernelwright.tactics.recognised.row_text import RowWriting, filled
from kernelwright.tactics.rows.text import LOAD_HINTS, LOAD_WHY, hinted_access
from kernelwright.tactics.tiling.frame import edited
from kernelwright.tactics.vectors.lane_text import prelude

NAME = "matrix-rows"


def _matrix_rows(subject: Subject) -> Rewrite:
    refuse_arranged(subject, "row-split", "block-items", "row-registers", "contraction-tiles")
    refuse_unread(subject)
    if subject.language != "cuda":
        raise Unfit("the threads of a row join by CUDA's shuffles")
    found = product_of(subject)
    _refuse_repeated(subject, found)
    writing = RowWriting(subject, RewriteBuilder(subject, NAME, "contraction"), found.threads)
    _name(writing, found)
    _write(writing, found)
    rows = max(total_of(subject, found.rows, sizes) or 1 for sizes in subject.sizes())
    return writing.plan.finish(
        "A warp takes several rows of the matrix in vectors, with one load of the vector for all of them.",
        Effect(9.0 if found.threads < 32 else 2.2, f"{rows} rows of {found.matrix} are loaded once, in whole vectors"),
    )


def _refuse_repeated(subject: Subject, found: Product) -> None:
    """Rows that several outputs need are a matter of tiles.

    Raises:
        Unfit: the matrix has fewer elements than all outputs load.
    """
    size = subject.analysis.facts.arrays[found.matrix].element_bytes or 4
    for sizes in subject.sizes():
        rows, length = total_of(subject, found.rows, sizes), total_of(subject, found.length, sizes)
        whole = array_bytes(subject, found.matrix, sizes)
        if not rows or not length or whole is None or whole < rows * length * size:
            raise Unfit(f"rows of {found.matrix} are needed several times, which tiles are for")


def _name(writing: RowWriting, found: Product) -> None:
    subject, plan, words = writing.subject, writing.plan, writing.words
    writing.define({"LENGTH": found.length, "ROWS": found.rows})
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
    plan.constraint("shared rows", f"{words['SHARE']} * 32 <= {words['BLOCK']}")


def _write(writing: RowWriting, found: Product) -> None:
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
    grid = (f"ceil_div({found.rows}, {w['BLOCK']} // 32 // {w['SHARE']} * {w['TAKEN']})",)
    none = None if step.shared_bytes is None else "0"
    plan.header = plan.header.relaunched(step.entry, grid=grid, block=(w["BLOCK"],), shared_bytes=none)


MATRIX_ROWS = RuleTactic(
    NAME, "contraction", "Matrix times vector: warps take several rows with one load of the vector.", _matrix_rows
)
