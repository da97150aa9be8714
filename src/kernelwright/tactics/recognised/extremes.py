"""Rows in order: argmax, top-k and gates. Threads keep their elements in registers, and take one after the other.

A row is shared by as many threads as suit its length. Few long rows are walked in parts, which a second launch joins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_arranged, refuse_unread
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.recognised.extremes_facts import Extremes, RowResult, extremes_of
from kernelwright.tactics.recognised.extremes_text import JOIN, ORDER, ROWS, STORES
from kernelwright.tactics.recognised.row_text import RowWriting, filled
from kernelwright.tactics.vectors.lane_text import prelude

NAME = "row-order"
_SPLITS = (1, 2, 4, 8, 16, 32, 64)
_SHORTEST = 4096
"""Elements of a part below which joining costs more than it brings; a guess."""
_LANES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_IN_REGISTERS = 16
"""Elements that a thread starts with; a guess."""
_MOST_KEPT = 64


@dataclass
class _Writing(RowWriting):
    """An order while its text is made."""

    found: Extremes = field(kw_only=True)

    def numbers(self, text: str) -> list[int]:
        """An expression's value on every workload."""
        return [total_of(self.subject, text, sizes) or 1 for sizes in self.subject.sizes()]

    @property
    def needs_all(self) -> bool:
        """Whether a result is made of all elements of its row."""
        return any("kw_all" in each.text for each in self.found.outputs)


def _order(subject: Subject) -> Rewrite:
    refuse_arranged(subject, "row-split", "block-items", "row-registers", "row-scan")
    refuse_unread(subject)
    if subject.language != "cuda":
        raise Unfit("threads of a row exchange by CUDA's shuffles")
    if subject.analysis.function.template_parameters:
        raise Unfit("it is a template: what its second launch is called is not known")
    found = extremes_of(subject)
    writing = _Writing(subject, RewriteBuilder(subject, NAME, "row"), found.threads, found=found)
    if max(writing.numbers(found.count)) > _MOST_KEPT:
        raise Unfit(f"it keeps more than {_MOST_KEPT} elements of a row")
    _name(writing)
    _launches(writing)
    rows = max(writing.numbers(found.rows))
    return writing.finish(
        "Threads keep their share of a row in registers, and join by shuffles what comes next in its order.",
        Effect(_gain(writing), f"{rows} rows are loaded once, in vectors, and joined without serial scans"),
    )


def _gain(writing: _Writing) -> float:
    """Guesses: most where one thread walked a row, least where a whole block looked for one element."""
    if writing.found.threads == 1:
        return 6.0
    return 1.5 if writing.found.threads > 32 and max(writing.numbers(writing.found.count)) == 1 else 2.5


def _name(writing: _Writing) -> None:
    """Parameters, macros and scratch, with their defaults."""
    subject, found, plan, words = writing.subject, writing.found, writing.plan, writing.words
    writing.define({"LENGTH": found.length, "ROWS": found.rows, "KEPT": found.count})
    size = subject.analysis.facts.arrays[found.array].element_bytes or 4
    lengths, rows = writing.numbers(found.length), min(writing.numbers(found.rows))
    vecs = (1, 2, 4, 8)
    vec = max(each for each in vecs if each * size <= 16 and all(length % each == 0 for length in lengths))
    most = max(lengths)
    lanes = next((n for n in _LANES if n * _IN_REGISTERS >= most), 256)
    lanes = max(lanes, 4) if most >= 4 * vec else lanes
    units = subject.device.multiprocessors or 100
    wanted = max(1, min(-(-4 * units // rows), min(lengths) // _SHORTEST))
    splits = (1,) if writing.needs_all else _SPLITS
    told = {
        "VEC": ("VEC", vecs, vec, "elements of a row that a thread takes at once"),
        "LANES": ("LANES", _LANES, min(lanes, 256), "threads that share a row"),
        "BLOCK": ("BLOCK", (64, 128, 256, 512, 1024), 256, "threads of a block"),
        "AHEAD": ("AHEAD", (1, 2, 4, 8), 4, "vectors that a thread loads before it uses them, in long rows"),
        "SPLIT": ("SPLIT", splits, max(n for n in splits if n <= wanted), "parts of a row in blocks of their own"),
    }
    for what, (name, values, default, why) in told.items():
        words[what] = plan.parameter(name, values, default, why)
    for what in ("tops", "found"):
        words[what] = plan.fresh(f"kw_{what}")
    words["joined"] = plan.fresh(f"{subject.entry}_joined")
    plan.constraint("whole", f"({found.length}) % {words['VEC']} == 0")
    plan.constraint("block", f"{words['LANES']} <= {words['BLOCK']}")
    plan.constraint("part", f"({found.length}) >= {words['VEC']} * {words['SPLIT']} * {words['LANES']} or "
                            f"({words['SPLIT']} == 1 and {words['LANES']} <= 32)")  # fmt: skip


def _launches(writing: _Writing) -> None:
    """Both kernels, and their launches one after the other."""
    subject, found, plan, w = writing.subject, writing.found, writing.plan, writing.words
    plan.prelude.append(prelude(dialect(subject.language), w["VEC"], c_types=(), mapped=(), operators=frozenset()))
    w |= {"TIES": filled(found.ties, w), "TAKES_INFINITE": "true" if found.takes_infinite else "false"}
    plan.prelude.append(filled(ORDER, w))
    writing.place_function("row_at", found.array, found.place)
    types = {each.name: each.c_type for each in subject.analysis.function.parameters}
    stores = []
    for index, each in enumerate(found.outputs):
        writing.place_function(f"out_{index}_at", each.array, each.place)
        name = w[f"out_{index}_at"]
        missing = "kw_is_none" if each.text in ("kw_i", "kw_v") else "kw_is_empty"
        chosen = f"({missing} ? {_number_text(each)} : {each.text})"
        text = f"{chosen} * {each.factor}" if each.factor else chosen
        stores.append(f"{{ long long kw_o; {name}(@ARGS@, kw_row, 0, kw_o); "
                      f"{each.array}[kw_o + kw_k] = ({types[each.array]})({text}); }}")  # fmt: skip
    few = max(writing.numbers(found.count)) <= 16
    w |= {"X": found.array, "TYPE": types[found.array], "SIGN": "-" if found.is_least else "",
          "UNROLLED": '_Pragma("unroll")' if few else '_Pragma("unroll 1")',
          "NEEDS_ALL": "true" if writing.needs_all else "false"}  # fmt: skip
    text = STORES.replace("@EACH@", "\n    ".join(stores))
    bodies = [each.replace("@STORES@", text) for each in (ROWS, JOIN)]
    each_count = f"({found.rows}) * {w['SPLIT']} * ({found.count})"
    step = writing.two_launches(
        bodies[0], bodies[1], [("tops", "float", "float32", each_count), ("found", "int", "int32", each_count)]
    )
    none = None if step.shared_bytes is None else "0"
    grid = (f"ceil_div({found.rows}, {w['BLOCK']} // {w['LANES']})", w["SPLIT"])
    header = plan.header.relaunched(step.entry, grid=grid, block=(w["BLOCK"],), shared_bytes=none)
    blocks = f"ceil_div({found.rows}, 4)"
    joined_grid = (f"min({blocks}, ({w['SPLIT']} - 1) * {blocks} + 1)",)  # one block where nothing is to be joined
    plan.header = header.relaunched(w["joined"], grid=joined_grid, block=("128",), shared_bytes=none)


def _number_text(result: RowResult) -> str:
    """What a result is without elements, as C text."""
    if result.text == "kw_i":
        return str(int(result.none))
    sign = "-" if math.copysign(1.0, result.none) < 0 else ""
    if math.isnan(result.none):
        return "NAN"
    return f"{sign}INFINITY" if math.isinf(result.none) else f"{result.none!r}f"


ROW_ORDER = RuleTactic(
    NAME, "row", "The largest or smallest elements of rows, with their places: rows in registers, joined by shuffles.",
    _order,
)  # fmt: skip
