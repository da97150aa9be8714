"""Maps: vectors of neighbouring elements, several of them a thread, blocks of any shape along memory."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from kernelwright.analysis.facts import Access
from kernelwright.tactics.base import DeviceFacts, Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.c_text import c_text
from kernelwright.tactics.common.dialect import dialect
from kernelwright.tactics.common.editing import RewriteBuilder
from kernelwright.tactics.common.iteration_domain import (
    AXES,
    Places,
    is_guarded,
    places_of,
    renamed_kernel,
    require_independent,
    template_arguments,
    total_of,
)
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.common.traffic_model import effect, map_pairs
from kernelwright.tactics.scalar.arithmetic import FAST_FUNCTIONS
from kernelwright.tactics.scalar.compiler_hints import allowed_error
from kernelwright.tactics.vectors.lane_text import LOAD_HINTS, STORE_HINTS, operators_in, prelude
from kernelwright.tactics.vectors.lanes import Vectorizer


@dataclass(frozen=True, slots=True)
class _Names:
    block_x: str
    block_y: str
    vec: str
    count: str
    rows: str


def _vectors(subject: Subject) -> Rewrite:
    _refuse_repeats(subject, "walk-vectors")
    require_independent(subject)
    reasons = []
    for fastest in AXES:
        try:
            return _with_fast_functions(subject, _along(subject, fastest))
        except Unfit as unfit:
            reasons.append(unfit.reason)
    raise Unfit(reasons[0])


def _with_fast_functions(subject: Subject, rewrite: Rewrite) -> Rewrite:
    """On CPUs maps wait for their functions, so how these are computed is one more parameter from the start."""
    if subject.device.kind != "cpu" or subject.language != "opencl":
        return rewrite
    more = FAST_FUNCTIONS.apply(subject.rewritten(rewrite))
    if not isinstance(more, Rewrite):
        return rewrite
    added = (*rewrite.added, *more.added)
    explanation = f"{rewrite.explanation} {more.explanation}"
    return replace(rewrite, source=more.source, header=more.header, added=added, explanation=explanation)


def _refuse_repeats(subject: Subject, *others: str) -> None:
    if {"vector-map", "coarsen", *others} & set(subject.history):
        raise Unfit("its threads were arranged anew before", is_already_so=True)


def _along(subject: Subject, fastest: str) -> Rewrite:
    places = places_of(subject, fastest=fastest)
    plan = RewriteBuilder(subject, "vector-map", "map")
    names = _parameters(plan, subject, places, vectors=True)
    lanes = _lanes(subject, places, names.vec)
    body = subject.analysis.function.body.statements
    lanes.settle(body)
    text = lanes.block(body)
    if lanes.split - lanes.checked:
        raise Unfit("an index is made in a way that is not linear in the lane")
    if not lanes.vector_loads + lanes.vector_stores:
        raise Unfit("nothing that it loads or stores lies side by side for neighbouring threads")
    _cover(plan, subject, places, names)
    _define_sizes(plan, places)
    c_types = {"float"} | {kind.c_type for kind in lanes.kinds.values() if kind.is_varying and kind.c_type}
    c_types |= {lanes.resolved(lanes.types.get(a, "")) for a in subject.analysis.facts.arrays}
    one, many = plan.fresh(f"kw_{subject.entry}_one"), plan.fresh(f"kw_{subject.entry}_vector")
    load = store = ""
    if subject.language == "cuda":
        load = plan.parameter("LOAD", LOAD_HINTS, 0, "0: plain loads; 1: streaming; 2: past the first-level cache")
        store = plan.parameter("STORE", STORE_HINTS, 0, "0: plain stores; 1: streaming")
    words = dialect(subject.language)
    plan.prelude.append(
        prelude(
            words,
            names.vec,
            c_types=c_types,
            mapped=lanes.mapped,
            load=load,
            store=store,
            operators=operators_in(subject.analysis.function.body),
        )
    )
    plan.prelude += [each for each in lanes.clones.values() if each]
    extra = _extra(subject)
    is_apart = subject.device.kind == "cpu"  # what is left over must not make the loop over vectors longer
    plan.prelude.append(renamed_kernel(subject, one, extra, places, is_apart=is_apart))
    plan.prelude.append(
        renamed_kernel(subject, many, extra, places, body=f"{{\n  {''.join(lanes.early)}{text}\n  return 1;\n}}")
    )
    plan.replace(subject.analysis.function.body.place.span, _dispatch(subject, places, names, one, many))
    shape = "x, y" if len(places.axes) > 1 else "x"
    return plan.finish(
        f"Neighbouring elements are loaded, computed and stored as vectors of {names.vec}, "
        f"{names.count} of them a thread, in blocks of a shape that is tuned ({shape}).",
        _effect(subject, lanes, places, int(str(vec_default(plan, names.vec)))),
        properties=("independent",),
    )


_NARROWED_ERROR = 1e-6
"""Results that may have less error are computed in doubles where the source does: a float's rounding is 6e-8."""


def _lanes(subject: Subject, places: Places, vec: str) -> Vectorizer:
    types = {each.name: each.c_type for each in subject.analysis.function.parameters}
    return Vectorizer(
        subject.source, dialect(subject.language), subject.analysis.tree, places.steps, places.ones, types,
        give_up="return 0;", leave="return 1;", vec=vec, narrows=allowed_error(subject) >= _NARROWED_ERROR,
        may_split=True,
    )  # fmt: skip


def _parameters(plan: RewriteBuilder, subject: Subject, places: Places, *, vectors: bool) -> _Names:
    device, is_plane = subject.device, len(places.axes) > 1
    is_cpu = device.kind == "cpu"
    wide = 64 if is_cpu else min(64, _covering(subject, places, vectors)) if is_plane else 128
    block_x = plan.parameter(
        "BLOCK_X", (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024), wide, "threads of a block, side by side"
    )
    high = 1 if is_cpu else max(2, min(16, 128 // wide))
    block_y = plan.parameter("BLOCK_Y", (1, 2, 4, 8, 16), high, "rows of a block") if is_plane else "1"
    vec = "1"
    if vectors:
        widest = _widest(subject, device)
        vec = plan.parameter(
            "VEC", tuple(v for v in (1, 2, 4, 8) if v <= max(widest, 2)), widest, "elements of a vector"
        )
    count = plan.parameter("COUNT", (1, 2, 4, 8, 16), 1, "elements or vectors that a thread takes, a block apart")
    rows = "1"
    if is_plane:
        several = _rows_at_once(subject, places) if is_cpu else 1
        rows = plan.parameter("ROWS", (1, 2, 4, 8, 16), several, "rows that a thread takes")
    return _Names(block_x, block_y, vec, count, rows)


def _covering(subject: Subject, places: Places, vectors: bool) -> int:
    """Threads along x that a row needs, a power of two from 4 on."""
    totals = [total_of(subject, places.axes[0].total, sizes) or 1 for sizes in subject.sizes()]
    threads = -(-max(totals, default=1) // (_widest(subject, subject.device) if vectors else 1))
    return max(4, 1 << (threads - 1).bit_length())


def _rows_at_once(subject: Subject, places: Places) -> int:
    """Rows of a CPU's thread by default: several, where there is enough for all cores then."""
    totals = [total_of(subject, places.axes[1].total, sizes) or 1 for sizes in subject.sizes()]
    cores = subject.device.multiprocessors or 4
    return next((rows for rows in (8, 4, 2) if min(totals, default=1) >= rows * cores * 4), 1)


def _widest(subject: Subject, device: DeviceFacts) -> int:
    """Elements of the widest load of the narrowest array; CPUs like eight of anything."""
    if device.kind == "cpu":
        return 8
    sizes = [array.element_bytes or 4 for array in subject.analysis.facts.arrays.values() if array.is_parameter]
    return min(8, max(1, device.vector_bytes // max(min(sizes, default=4), 1)))


def _extra(subject: Subject) -> str:
    integer = "const size_t" if subject.language == "opencl" else "const unsigned"
    return ", ".join(f"{integer} {name}" for name in ("kw_x", "kw_y", "kw_z", "kw_end_x", "kw_end_y", "kw_end_z"))


def _cover(plan: RewriteBuilder, subject: Subject, places: Places, names: _Names) -> None:
    """The launch, and conditions where nothing in the kernel stops threads beyond the end."""
    per_x = _product(names.block_x, names.vec, names.count)
    per_y = _product(names.block_y, names.rows)
    grid, block = [], [names.block_x]
    for axis, per in zip(places.axes, (per_x, per_y, "1"), strict=False):
        grid.append(f"ceil_div({axis.total}, {per})" if per != "1" else axis.total)
        if per != "1" and not is_guarded(subject, axis, is_exact=False):
            _require_whole(plan, subject, axis.total, per)
    if len(places.axes) > 1:
        block.append(names.block_y)
        plan.constraint("threads", f"{names.block_x} * {names.block_y} <= 1024")
    step = only_shape(subject)
    plan.header = plan.header.relaunched(step.entry, grid=tuple(grid), block=tuple(block))
    function = subject.analysis.function
    for mark in function.attributes:
        if any(word in mark.text for word in ("reqd_work_group_size", "__launch_bounds__", "work_group_size_hint")):
            plan.replace(mark.span, "")


def _define_sizes(plan: RewriteBuilder, places: Places) -> None:
    """Block sizes of the launch as it was, which the kernel asks for."""
    for name, text in places.defines.items():
        plan.header = plan.header.with_define(name, text)
        plan.prelude.append(f"#ifndef {name}\n#define {name} 1\n#endif\n")


def _require_whole(plan: RewriteBuilder, subject: Subject, total: str, per: str) -> None:
    """Only values that divide the total; the defaults shrink until they do.

    Raises:
        Unfit: none do.
    """
    plan.constraint("whole", f"({total}) % ({per}) == 0")
    totals = [total_of(subject, total, sizes) for sizes in subject.sizes()]
    if None in totals:
        raise Unfit("how many threads are needed is not known")
    own = [each for each in plan.header.parameters if each.name in per.split(" * ")]
    choices = itertools.product(*([v for v in reversed(each.values) if v <= each.default] for each in own))  # type: ignore[operator]
    for choice in choices:
        product = math.prod(int(value) for value in choice)
        if all(value is not None and value % product == 0 for value in totals):
            changed = (replace(each, default=value) for each, value in zip(own, choice, strict=True))
            plan.header = plan.header.with_parameters(*changed)
            return
    raise Unfit("nothing stops threads beyond the end, and no block divides the number of threads")


def _product(*factors: str) -> str:
    kept = [each for each in factors if each != "1"]
    return " * ".join(kept) or "1"


def _dispatch(subject: Subject, places: Places, names: _Names, one: str, many: str | None) -> str:
    """The kernel's new body: which places a thread takes."""
    words = dialect(subject.language)
    integer = "size_t" if subject.language == "opencl" else "unsigned"
    arguments = [each.name for each in subject.analysis.function.parameters]
    ends = [_end(subject, axis) for axis in places.axes] + ["0"] * (3 - len(places.axes))
    plain = template_arguments(subject)

    def call(function: str, x: str) -> str:
        return f"{function}{plain}({', '.join([*arguments, x, 'kw_y', 'kw_z', *ends])})"

    z = words.block("z") if len(places.axes) > 2 else "0"
    y = (
        f"({words.block('y')} * {names.rows} + kw_row) * {names.block_y} + {words.thread('y')}"
        if len(places.axes) > 1
        else "0"
    )
    block = words.block("x")
    lines = [
        "{",
        f"  const {integer} kw_z = {z};",
        f"  for (int kw_row = 0; kw_row < {names.rows}; ++kw_row) {{",
        f"    const {integer} kw_y = {y};",
        *(["#pragma unroll"] if subject.language != "opencl" else []),
        f"    for (int kw_item = 0; kw_item < {names.count}; ++kw_item) {{",
        f"      const {integer} kw_x = (({integer})({block} * {names.count} + kw_item) * {names.block_x}"
        f" + {words.thread('x')}) * {names.vec};",
    ]
    if many is not None:
        lines += [
            f"      if ({names.vec} > 1 && {call(many, 'kw_x')}) continue;",
            *(["#pragma unroll 1"] if subject.language != "opencl" else []),
            f"      for (int kw_lane = 0; kw_lane < {names.vec}; ++kw_lane) {call(one, 'kw_x + kw_lane')};",
        ]
    else:
        lines.append(f"      {call(one, 'kw_x')};")
    return "\n".join((*lines, "    }", "  }", "}"))


def _end(subject: Subject, axis: object) -> str:
    loop = getattr(axis, "loop", None)
    if loop is None or loop.bound is None:
        return "0"
    return f"({c_text(loop.bound, subject.analysis.facts.atoms, {})})"


def vec_default(plan: RewriteBuilder, name: str) -> object:
    """The default of a parameter."""
    parameter = plan.header.parameter(name)
    return 1 if parameter is None else parameter.default


def _effect(subject: Subject, lanes: Vectorizer, places: Places, vec: int) -> Effect:
    """By the roofline on a GPU; on a CPU a guess."""
    if subject.device.kind == "cpu":
        return Effect(4.0, f"{lanes.vector_loads + lanes.vector_stores} accesses and all arithmetic become SIMD")
    narrow = min((a.element_bytes or 4 for a in subject.analysis.facts.arrays.values() if a.is_parameter), default=4)
    wasted = [a for a in subject.analysis.facts.accesses if a.contiguity == "strided" and _is_global(a)]
    if wasted:
        return Effect(4.0, f"{len(wasted)} accesses become contiguous along the block")
    threads: list[int | None] = []
    for sizes in subject.sizes():
        totals = [total_of(subject, axis.total, sizes) for axis in places.axes]
        threads.append(None if None in totals else math.prod(each or 1 for each in totals))
    told = f"loads of {narrow} bytes become loads of up to {subject.device.vector_bytes} bytes"
    guess = {1: 1.8, 2: 1.5, 4: 1.15}.get(narrow, 1.05)
    is_loop = any(loop.sweep == "sequential" for loop in subject.analysis.facts.loops)
    pairs = [] if is_loop else map_pairs(subject, threads, 256, vec)
    return effect(pairs, told, otherwise=guess)


def _is_global(access: Access) -> bool:
    return access.space == "global"


def _coarsened(subject: Subject) -> Rewrite:
    _refuse_repeats(subject)
    require_independent(subject)
    places = places_of(subject, fastest=_best_axis(subject))
    plan = RewriteBuilder(subject, "coarsen", "map")
    names = _parameters(plan, subject, places, vectors=False)
    _cover(plan, subject, places, names)
    _define_sizes(plan, places)
    one = plan.fresh(f"kw_{subject.entry}_one")
    plan.prelude.append(renamed_kernel(subject, one, _extra(subject), places))
    plan.replace(subject.analysis.function.body.place.span, _dispatch(subject, places, names, one, None))
    return plan.finish(
        f"A thread takes {names.count} places, in blocks of a shape that is tuned, neighbours along memory.",
        Effect(1.2 if subject.device.kind == "cpu" else 1.1, "fewer threads are started, and their work overlaps"),
        properties=("independent",),
    )


def _best_axis(subject: Subject) -> str:
    """The launch axis along which most accesses are contiguous."""
    movement = subject.analysis.movement
    scores: dict[str, int] = {}
    for axis in AXES:
        for access in subject.analysis.facts.accesses:
            if access.space == "global" and access.element is not None:
                step = movement.by_thread(access.element, axis)
                block = movement.by_block(access.element, axis)
                is_next = (step is not None and step.constant == 1) or (block is not None and block.constant == 1)
                scores[axis] = scores.get(axis, 0) + (2 if access.kind == "read" else 3) * is_next
    return max(AXES, key=lambda axis: (scores.get(axis, 0), -AXES.index(axis)))


VECTOR_MAP = RuleTactic(
    "vector-map", "map",
    "Vectors of neighbouring elements, several a thread, for kernels whose threads do not meet.", _vectors,
)  # fmt: skip
COARSEN = RuleTactic(
    "coarsen", "map", "Several places a thread and blocks of any shape, for kernels whose threads do not meet.",
    _coarsened,
)  # fmt: skip
