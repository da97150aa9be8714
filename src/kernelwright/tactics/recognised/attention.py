"""Attention of one token, split: warps take keys, blocks take parts of the keys, and a second launch joins the parts.

Each part keeps the largest product, the sum of weights and the weighted values; joined, each side is rescaled to the
larger of both (Milakov and Gimelshein 2018). Rows that read the same keys are taken together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kernelwright.source import nodes
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_arranged, refuse_unread
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.common.traffic_model import MOST
from kernelwright.tactics.recognised.attention_facts import Attention, Keys, attention_of
from kernelwright.tactics.recognised.attention_text import JOIN, PARTS
from kernelwright.tactics.recognised.places import QuotedIndex, launched, numbers_of, quoted, values_of
from kernelwright.tactics.recognised.row_text import RowWriting
from kernelwright.tactics.recognised.trials import floats
from kernelwright.tactics.rows.text import LOAD_HINTS, LOAD_WHY, hinted_access
from kernelwright.tactics.vectors.lane_text import prelude

NAME = "attention-parts"
_SPLITS = (1, 2, 4, 8, 16, 32, 64)
_SHORTEST = 128
"""Keys of a part below which joining costs more than it brings; a guess."""


@dataclass
class _Writing(RowWriting):
    """Attention while its text is made."""

    found: Attention = field(kw_only=True)


def _parts(subject: Subject) -> Rewrite:
    if NAME in subject.history:
        raise Unfit("its keys are split already", is_already_so=True)
    refuse_arranged(subject, "row-split", "block-items", "row-registers")
    refuse_unread(subject)
    if subject.language != "cuda":
        raise Unfit("parts of warps are joined by CUDA's shuffles")
    if subject.analysis.function.template_parameters:
        raise Unfit("it is a template: what its second launch is called is not known")
    found = attention_of(subject)
    writing = _Writing(subject, RewriteBuilder(subject, NAME, "row"), found.threads, found=found)
    _name(writing)
    _constrain(writing)
    _functions(writing)
    _launches(writing)
    rows = max(total_of(subject, found.rows, sizes) or 1 for sizes in subject.sizes())
    return writing.finish(
        "Warps take keys in vectors, blocks take parts of the keys, and a second launch joins the parts.",
        Effect(MOST, f"{rows} rows read keys and values once, in vectors, on all multiprocessors"),
    )


# Names


def _name(writing: _Writing) -> None:
    """Parameters, macros and scratch, with their defaults."""
    subject, found, plan, words = writing.subject, writing.found, writing.plan, writing.words
    writing.define({"DIM": found.dim, "ROWS": found.rows})
    dims = [total_of(subject, found.dim, sizes) or 1 for sizes in subject.sizes()]
    size = max(_element_bytes(subject, each) for each in (found.key, found.value))
    vecs = (1, 2, 4, 8, *((16,) if size == 1 else ()))
    vec = max(each for each in vecs if each * size <= 16 and all(dim % each == 0 for dim in dims))
    lanes = next((n for n in (4, 8, 16, 32) if n * vec >= max(dims)), 32)
    heads = _sharing(writing)
    told = {
        "VEC": ("VEC", vecs, vec, "numbers of a key that a thread takes at once"),
        "LANES": ("LANES", (4, 8, 16, 32), lanes, "threads that share a key"),
        "BLOCK": ("BLOCK", (64, 128, 256), 128, "threads of a block"),
        "HEADS": ("HEADS", (1, 2, 4, 8), heads, "rows that a block takes together, which should share keys"),
        "AHEAD": ("AHEAD", (1, 2, 4, 8), 4 if heads <= 2 else 2, "keys that a thread loads before it uses them"),
        "SPLIT": ("SPLIT", _SPLITS, _split(writing, heads), "parts of the keys that blocks of their own take"),
    }
    for what, (name, values, default, why) in told.items():
        words[what] = plan.parameter(name, values, default, why)
    words["LOAD"] = plan.parameter("LOAD", LOAD_HINTS, 0, LOAD_WHY)
    for what in ("parts", "tops", "sums"):
        words[what] = plan.fresh(f"kw_{what}")
    words["joined"] = plan.fresh(f"{subject.entry}_joined")


def _element_bytes(subject: Subject, keys: Keys) -> int:
    return subject.analysis.facts.arrays[keys.array].element_bytes or 4


def _sharing(writing: _Writing) -> int:
    """How many neighbouring rows start at the same key."""
    subject, found = writing.subject, writing.found
    launch = launched(subject, subject.sizes()[0], floats(subject, 0))
    each = launch.threads // found.threads
    rows = np.arange(min(8, launch.blocks * each))
    starts = [
        values_of(subject, launch, keys.place, rows // each, rows % each * found.threads, {}).tolist()
        for keys in (found.key, found.value)
    ]  # fmt: skip
    alike = sum(all(s[row] == s[0] for s in starts) for row in range(len(rows)))
    return max(n for n in (1, 2, 4, 8) if n <= max(1, alike) and all(len(set(s[:n])) == 1 for s in starts))


def _split(writing: _Writing, heads: int) -> int:
    """Enough parts for all multiprocessors."""
    subject, found = writing.subject, writing.found
    units = subject.device.multiprocessors or 100
    rows = min(total_of(subject, found.rows, sizes) or 1 for sizes in subject.sizes())
    wanted = max(1, -(-8 * units * heads // rows))
    lengths = []
    for sizes in subject.sizes():
        launch = launched(subject, sizes, floats(subject, 0))
        zero = np.zeros(1, np.int64)
        lengths.append(int(numbers_of(subject, launch, found.length, zero, zero)[0]))
    is_data = any(isinstance(n, nodes.Element) for n in _all_nodes(found.length))
    most = 16 if is_data else max(1, min(lengths) // _SHORTEST)
    return max(each for each in _SPLITS if each <= max(1, min(wanted, most)))


def _all_nodes(what: QuotedIndex) -> list[nodes.Node]:
    parts = [what.node, *(each.initial for each in what.declared if each.initial is not None)]
    return [node for part in parts for node in nodes.walk(part)]


def _constrain(writing: _Writing) -> None:
    plan, w = writing.plan, writing.words
    dim = writing.found.dim
    plan.constraint("whole", f"({dim}) % {w['VEC']} == 0")
    plan.constraint("registers", f"ceil_div({dim}, {w['LANES']} * {w['VEC']}) * {w['VEC']} * {w['HEADS']} <= 64")
    plan.constraint("ahead", f"ceil_div({dim}, {w['LANES']} * {w['VEC']}) * {w['VEC']} * {w['AHEAD']} <= 64")
    plan.constraint("shared", f"{w['BLOCK']} // 32 * {w['HEADS']} * (({dim}) + 2) * 4 <= 48000")


# Text


def _functions(writing: _Writing) -> None:
    """Functions of a row, and of a key: where they start, how many there are, what rows must have in common."""
    subject, found, w = writing.subject, writing.found, writing.words
    plan, words = writing.plan, dialect(subject.language)
    plan.prelude.append(prelude(words, w["VEC"], c_types=(), mapped=(), operators=frozenset()))
    plan.prelude.append(hinted_access(w["VEC"], w["LOAD"], "0"))
    for what, keys in (("query", found.query), ("key", found.key), ("value", found.value), ("out", found.out)):
        writing.place_function(f"{what}_at", keys.array, keys.place, keys.along)
    for index, (keys, _) in enumerate(found.more):
        writing.place_function(f"more_{index}_at", keys.array, keys.place)
    writing.number_function("length_of", found.length)
    common = {**_common(writing, found.key), **_common(writing, found.value)}
    lines = " ".join(f"{{ {lead} kw_to[{i}] = (long long)({text}); }}" for i, (text, lead) in enumerate(common.items()))
    w["MARKS"] = str(len(common) + 1)
    text = found.length.node.place.span.text(subject.source)
    last = f"{{ {quoted(subject, found.length, {})} kw_to[{len(common)}] = {text}; }}"
    writing.function("marks_of", f"const unsigned kw_row, long long (&kw_to)[{w['MARKS']}]", f"{lines} {last}")


def _common(writing: _Writing, keys: Keys) -> Mapping[str, str]:
    """By text, with the declarations that it needs: what rows must agree on to have the same keys.

    These are the largest parts of the index that do not depend on the key.
    """
    source = writing.subject.source
    depends = {keys.along}
    for each in keys.place.declared:
        if each.initial is not None and _mentions(each.initial, depends):
            depends.add(each.name)
    still = tuple(each for each in keys.place.declared if each.name not in depends)
    free = tuple(each for each in keys.place.free if each.name != keys.along)
    found: dict[str, str] = {}
    moving = [each.initial for each in keys.place.declared if each.name in depends and each.initial is not None]
    waiting: list[nodes.Node] = [keys.place.node, *moving]
    while waiting:
        node = waiting.pop()
        if _mentions(node, depends) or node is keys.place.node:
            waiting += nodes.children(node)
        elif not isinstance(node, nodes.Literal) and _is_of_row(node):
            text = node.place.span.text(source)
            found[text] = quoted(writing.subject, QuotedIndex(keys.place.node, still, free), {})
    return found


def _mentions(node: nodes.Node, names: set[str]) -> bool:
    return any(isinstance(each, nodes.Name) and each.name in names for each in nodes.walk(node))


def _is_of_row(node: nodes.Node) -> bool:
    return any(isinstance(each, nodes.Name) or query_text(each) for each in nodes.walk(node))


def _launches(writing: _Writing) -> None:
    """Both kernels, and their launches one after the other."""
    found, w = writing.found, writing.words
    types = {each.name: each.c_type for each in writing.subject.analysis.function.parameters}
    roles = (("Q", found.query), ("K", found.key), ("V", found.value), ("O", found.out))
    w |= {what: keys.array for what, keys in roles} | {f"{what}_TYPE": types[keys.array] for what, keys in roles}
    stores = [
        f"{{ long long kw_o; {w[f'more_{index}_at']}(@ARGS@, kw_row, 0, kw_o); "
        f"{keys.array}[kw_o] = ({types[keys.array]})({text}); }}"
        for index, (keys, text) in enumerate(found.more)
    ]
    bodies = [each.replace("@MORE@", " ".join(stores)) for each in (PARTS, JOIN)]
    w["SCALE"] = found.scale.replace("KW_DIM", w["DIM"])
    each = f"({found.rows}) * {w['SPLIT']}"
    counts = (("parts", f"{each} * ({found.dim})"), ("tops", each), ("sums", each))
    step = writing.two_launches(bodies[0], bodies[1], [(what, "float", "float32", count) for what, count in counts])
    none = None if step.shared_bytes is None else "0"
    header = writing.plan.header
    grid = (f"ceil_div({found.rows}, {w['HEADS']})", w["SPLIT"])
    joined = f"min({found.rows}, ({w['SPLIT']} - 1) * ({found.rows}) + 1)"  # one block where nothing is to be joined
    header = header.relaunched(step.entry, grid=grid, block=(w["BLOCK"],), shared_bytes=none)
    writing.plan.header = header.relaunched(w["joined"], grid=(joined,), block=("128",), shared_bytes=none)


ATTENTION_PARTS = RuleTactic(
    NAME, "row", "Attention of one token: keys in vectors, parts of them in blocks of their own, joined.", _parts
)
