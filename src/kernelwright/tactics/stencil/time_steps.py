"""Several time steps of a stencil in one launch: each makes a tile with as much around it as the steps will need.

A chain of launches moves its whole grid through memory once a launch. Here a thread (on CPUs) or a block makes several
steps of its tile before it writes it back; what lies around the tile is made by its neighbours as well, a little more
arithmetic for a fraction of the traffic. Each cell is made by the kernel's own code, of the same values, at its own
place in the grid: so borders stay what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelwright.analysis.polynomial import named
from kernelwright.source.edits import Edit
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder, refuse_hidden_branches
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.common.launches import extents, only_shape, steps_of
from kernelwright.tactics.common.traffic_model import LATENCY_S, LEAST, MOST, launch_s
from kernelwright.tactics.stencil.facts import Stencil, apart, inside_text, narrow_text, stencil_of
from kernelwright.tactics.stencil.neighbours import Window, inside_edits
from kernelwright.tactics.stencil.step_cells import reads_of
from kernelwright.tactics.stencil.step_chain import Chain, chain_of
from kernelwright.tactics.stencil.step_text import ORIGIN, ROW, STRIP, TILE
from kernelwright.tactics.tiling.frame import drop_sized_attributes, place_attribute
from kernelwright.tactics.tiling.store import value_edits
from kernelwright.tactics.tiling.text import fill, indented
from kernelwright.template.header import expressions

NAME = "join-steps"
Tile = tuple[int, int]
"""Columns and rows."""

SHARED_BYTES = 49152
"""What a block has on GPUs without asking for more, and what is assumed where it is not known."""

_STRIPS: tuple[Tile, ...] = ((512, 128), (256, 128), (128, 128), (64, 64))
_TILES: tuple[Tile, ...] = ((64, 32), (64, 16), (32, 16), (32, 8))
_LINES: tuple[Tile, ...] = ((256, 1), (128, 1), (64, 1), (32, 1))
"""By default; the first that fits."""

_ROWS_GAIN = 1.1
"""On CPUs, from rows whose inner part has no conditions; as measured of `stencil-tiles`, which has such rows too."""

_OPERATIONS_A_READ = 2
"""A cell's operations for each read, for predictions; a guess."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """A chain of steps, and what each cell of one is made of."""

    stencil: Stencil
    chain: Chain
    reads: Window
    clamped: Mapping[int, str]
    """By access, the element as written, of reads that `min` and `max` keep inside of the grid."""

    @property
    def reach_x(self) -> int:
        """Columns that one step needs more than it makes."""
        return self.reads.left + self.reads.right

    @property
    def reach_y(self) -> int:
        """Rows that one step needs more than it makes."""
        return self.reads.above + self.reads.below

    def edits(self, *, is_inner: bool) -> tuple[Edit, ...]:
        """Let reads come from `KW_AT`, and near borders those that are kept inside of the grid from `KW_CELL`."""
        return tuple(
            Edit(each.touch.access.span, f"KW_AT({each.across_text}, {each.down_text})")
            if is_inner or each.touch.access.index not in self.clamped
            else Edit(each.touch.access.span, f"KW_CELL({self.clamped[each.touch.access.index]})")
            for each in self.reads.neighbours
        )

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows that a cell is made of, as arguments."""
        return tuple(f"kw_row_{index}" for index in range(self.reach_y + 1))


def _join(subject: Subject) -> Rewrite:
    if NAME in subject.history:
        raise Unfit("its steps are joined already", is_already_so=True)
    if len(steps_of(subject)) < 2:
        raise Unfit("it is launched once: there are no steps to join")
    refuse_hidden_branches(subject)
    plan = RewriteBuilder(subject, NAME, "stencil")
    stencil = stencil_of(subject, plan)
    chain = chain_of(subject, stencil.window.array, stencil.main.touch.array)
    found = _Steps(stencil, chain, *reads_of(stencil))
    drop_sized_attributes(subject, plan)
    is_strip = stencil.frame.dialect.is_opencl and subject.device.kind == "cpu"
    return _strips(plan, found) if is_strip else _tiles(plan, found)


# What both ways need


def _values(found: _Steps) -> dict[str, object]:
    stencil, words, reads = found.stencil, found.stencil.frame.dialect, found.reads
    names: dict[str, object] = {
        "STEPS": found.chain.together, "TYPE": stencil.type_in, "HELPER": words.helper, "RESTRICT": words.restrict,
        "PARAMETERS": stencil.frame.parameters(is_restrict=True), "NARROW": narrow_text(stencil),
        "END_X": stencil.across.end, "END_Y": stencil.down.end, "GROUP": words.block("x"),
        "LEFT": reads.left, "RIGHT": reads.right, "ABOVE": reads.above, "BELOW": reads.below,
        "FROM": found.chain.taken, "TO": found.chain.given, "ELEMENT": stencil.text(stencil.element_in),
        "BARRIER": words.barrier, "SHARED": words.shared, "THREAD_X": words.thread("x"), "THREAD_Y": words.thread("y"),
    }  # fmt: skip
    x, y = stencil.across.atom, stencil.down.atom
    row = {x: ("kw_first", "kw_last"), y: ("kw_y", "kw_y + 1")}
    block = {x: ("kw_x0", "kw_x1"), y: ("kw_y0", "kw_y1")}
    return names | {"ROW_INSIDE": inside_text(stencil, row), "BLOCK_INSIDE": inside_text(stencil, block)}


def _macros(found: _Steps, values: Mapping[str, object], *, height: str, pitch: str) -> str:
    stencil = found.stencil
    row, column = (f"(int)((kw_cell) {sign} ({stencil.text(stencil.window.pitch)}))" for sign in "/%")
    places = (f"{row} - kw_{stencil.down.axis} + @ABOVE@", f"{column} - kw_{stencil.across.axis}")
    if not stencil.down.atom:
        places = ("0", f"(int)(kw_cell) - kw_{stencil.across.axis}")
    cell = f"#define KW_CELL(kw_cell) (kw_rows[{places[0]}][kw_j + {places[1]}])\n" if found.clamped else ""
    return fill(
        f"#define KW_HEIGHT ({height})\n#define KW_PITCH ({pitch})\n"
        "#define KW_AT(kw_dx, kw_dy) (kw_rows[(kw_dy) + @ABOVE@][kw_j + (kw_dx)])\n" + cell, values
    )  # fmt: skip


def _undefines(found: _Steps, *words: str) -> str:
    own = ("HEIGHT", "PITCH", "AT", *(("CELL",) if found.clamped else ()), *words)
    return "".join(f"#undef KW_{word}\n" for word in own)


def _cell_functions(plan: RewriteBuilder, found: _Steps, space: str) -> tuple[str, dict[str, str]]:
    """One cell of a step from rows in some memory: where all conditions hold, and anywhere; and their calls."""
    stencil, subject, entry = found.stencil, plan.subject, plan.subject.entry
    stores, held = value_edits(stencil.stores), inside_edits(subject, stencil.inside)
    inner = (*found.edits(is_inner=True), *stores, *held)
    edge = (*found.edits(is_inner=False), *stores)
    space_of = f"{space} " if space else ""
    extra = f"{space_of}const {stencil.type_in} *const *kw_rows, const int kw_j, {stencil.type_in} *kw_value"
    text, calls = "", {}
    for word, edits in (("inner", inner), ("edge", edge)):
        name = plan.fresh(f"{entry}_{word}{space.replace('__', '_')}")
        text += stencil.frame.function(name, edits=apart(edits), extra=extra) + "\n"
        calls[word.upper()] = stencil.call(name, "kw_rows", "kw_x - kw_from", "&kw_own")
    return text, calls


def _relaunch(plan: RewriteBuilder, found: _Steps, tile_x: str, tile_y: str, block: tuple[str, str]) -> None:
    """Fewer launches, each over tiles."""
    subject, stencil = plan.subject, found.stencil
    names = tuple(each.name for each in subject.analysis.facts.parameters)
    old = steps_of(subject)
    grid = f"ceil_div({stencil.across.host}, {tile_x})"
    grid += f" * ceil_div({stencil.down.host}, {tile_y})" if stencil.down.atom else ""
    shape = replace(found.chain.step, grid=expressions((grid,)), block=expressions(block), shared_bytes=None)
    made = tuple(replace(shape, arguments=arguments) for arguments in found.chain.launches(names))
    at = plan.header.steps.index(old[0])
    rest = tuple(each for each in plan.header.steps[at:] if each not in old)
    plan.header = replace(plan.header, steps=(*plan.header.steps[:at], *made, *rest))


def _chosen(
    subject: Subject, found: _Steps, tiles: Sequence[Tile], bytes_of: Callable[[int, Tile], int]
) -> tuple[_Steps, Tile]:  # fmt: skip
    """With as many steps a launch as the prediction likes best, and the first of some tiles that fits into memory.

    Raises:
        Unfit: none does.
    """
    known = subject.device.shared_bytes_per_block or SHARED_BYTES
    most = known if subject.device.kind == "cpu" else min(known, SHARED_BYTES)
    options: list[tuple[_Steps, Tile]] = []
    for count in found.chain.counts:
        fitting = [tile for tile in tiles if bytes_of(count, tile) <= most]
        options += [(replace(found, chain=replace(found.chain, together=count)), tile) for tile in fitting[:1]]
    if not options:
        raise Unfit("a tile with what lies around it does not fit into local memory")
    return max(options, key=lambda option: _effect(subject, *option).factor)


def _finished(plan: RewriteBuilder, found: _Steps, tile: Tile) -> Rewrite:
    count = found.chain.together
    sentence = (
        f"Each launch makes {count} of the {found.chain.length} steps: a tile with what lies around it is made several "
        "steps further before it is written back."
    )
    return plan.finish(sentence, _effect(plan.subject, found, tile))


def _effect(subject: Subject, found: _Steps, tile: Tile) -> Effect:
    """The gain by traffic and arithmetic, for tiles of so many columns and rows."""
    chain, stencil, device = found.chain, found.stencil, subject.device
    count, launches = chain.together, chain.length // chain.together
    wider = [(side + reach * (count - 1) / 2) / side
             for side, reach in zip(tile, (found.reach_x, found.reach_y), strict=True)]  # fmt: skip
    share, logs = math.prod(wider), []
    whole = extents(only_shape(subject))
    for sizes in subject.sizes():
        totals = [total_of(subject, each.total, sizes) for each in whole]
        cells = math.prod(each or 1 for each in totals)
        work = 2.0 * stencil.bytes_in * cells
        is_rated = device.operations_per_s is not None and device.copy_bytes_per_s is not None
        busy = _OPERATIONS_A_READ * len(found.reads.neighbours) * cells / (device.operations_per_s or 1) * is_rated
        block = math.prod(int(each.block) if each.block.isdigit() else 16 for each in whole)
        before = chain.length * max(launch_s(device, work, cells, block, LATENCY_S), busy)
        moved = launch_s(device, work * (1 + share) / 2, cells, block, LATENCY_S)
        logs.append(math.log(before / (launches * max(moved, count * share * busy))))
    gain = math.exp(math.fsum(logs) / len(logs)) if logs else count / 2
    factor = min(MOST, max(LEAST, gain * (_ROWS_GAIN if device.kind == "cpu" else 1.0)))
    often = "once" if launches == 1 else f"{launches} times"
    because = (
        f"the grid goes through memory {often} instead of {chain.length} times, for {share - 1:.0%} more arithmetic"
    )
    return Effect(factor, because)


# A thread a tile


def _strips(plan: RewriteBuilder, found: _Steps) -> Rewrite:
    stencil, size = found.stencil, found.stencil.bytes_in * (found.reach_y + 1)
    has_rows = bool(stencil.down.atom)
    strips = _STRIPS if has_rows else tuple((columns, 1) for columns, _ in _STRIPS)
    found, tile = _chosen(
        plan.subject, found, strips, lambda steps, tile: size * (steps - 1) * (tile[0] + found.reach_x * (steps - 1))
    )
    add, count = plan.parameter, found.chain.together
    rows = (8, 16, 32, 64, 128, 256)
    names: dict[str, object] = {
        "TILE_X": add("TILE_X", (64, 128, 256, 512, 1024, 2048), tile[0], "columns that a work-item finishes"),
        "TILE_Y": add("TILE_Y", rows, tile[1], "rows that a work-item finishes") if has_rows else 1,
    }
    values = _values(found) | names
    pitch = fill(f"@TILE_X@ + {found.reach_x * (count - 1)}", names)
    plan.constraint(
        "shared",
        f"{size * (count - 1)} * ({pitch}) <= device.shared_memory_per_block",
    )
    plan.prelude.append("\n" + _macros(found, values, height=str(found.reach_y + 1), pitch=pitch) + "\n")
    own, calls = {}, {}
    for space in ("__global", "__local"):
        text, own[space] = _cell_functions(plan, found, space)
        plan.prelude.append(text)
    for word, taken, given in (("first", "__global", "__local"), ("middle", "__local", "__local"),
                               ("last", "__local", "__global")):  # fmt: skip
        if word != "middle" or count > 2:
            text, calls[word.upper()] = _row_function(plan, found, word, (taken, given), values | own[taken])
            plan.prelude.append(text)
    values |= {"MIDDLE": "", **calls}
    values["ORIGIN"] = fill(ORIGIN, values)
    body = "{\n" + indented(fill(STRIP, values)) + "}\n"
    plan.replace(plan.subject.analysis.function.body.place.span, body + _undefines(found))
    place_attribute(plan.subject, plan, "__attribute__((reqd_work_group_size(1, 1, 1)))")
    _relaunch(plan, found, str(names["TILE_X"]), str(names["TILE_Y"]), ("1", "1"))
    return _finished(plan, found, tile)


def _row_function(
    plan: RewriteBuilder, found: _Steps, word: str, spaces: tuple[str, str], values: Mapping[str, object]
) -> tuple[str, str]:  # fmt: skip
    """A function that makes one row of one step, and its call."""
    stencil = found.stencil
    name = plan.fresh(f"{plan.subject.entry}_{word}_row")
    rows = ", ".join(f"{spaces[0]} const {stencil.type_in} *restrict {each}" for each in found.rows)
    text = fill(ROW, {**values, "NAME": name, "ROWS": rows, "ROW_NAMES": ", ".join(found.rows)})
    text = text.replace("KW_TAKEN", spaces[0]).replace("KW_GIVEN", f"{spaces[1]} ") + "\n"
    step = {"first": "1", "middle": "kw_s", "last": fill("@STEPS@", values)}[word]
    above = found.reads.above
    taken, places = [], range(-above, found.reads.below + 1)
    for place in places:
        row = f"kw_y + {place}" if place >= 0 else f"kw_y - {-place}"
        if word == "first":
            inside = f"min(max({row}, 0), kw_end_y - 1)" if place else "kw_y"
            taken.append(f"{found.chain.taken} + ({_row_start(found, inside)})")
        else:
            taken.append(_kept(found, f"{step} - 1", row))
    given = f"{found.chain.given} + ({_row_start(found, 'kw_y')})" if word == "last" else _kept(found, step, "kw_y")
    wider = f"(@STEPS@ - {step})"
    ends = (f"max(kw_tile_x - @LEFT@ * {wider}, 0)", f"min(kw_stop_x + @RIGHT@ * {wider}, kw_end_x)")
    origin = "0" if word == "first" else "kw_from", "0" if word == "last" else "kw_from"
    own = [each.name for each in plan.subject.analysis.facts.parameters]
    call = ", ".join((*own, *taken, origin[0], given, origin[1], "kw_y", *ends))
    return text, fill(f"{name}({call})", values)


def _kept(found: _Steps, step: str, row: str) -> str:
    height = found.reach_y + 1
    slot = "0" if height == 1 else f"({row} + {height}) % {height}"
    return f"kw_kept + (({step} - 1) * KW_HEIGHT + {slot}) * KW_PITCH"


def _row_start(found: _Steps, row: str) -> str:
    """The element in column 0 of a row, as C text."""
    stencil = found.stencil
    start = stencil.element_in - named(stencil.across.atom)
    return stencil.frame.text(start, {stencil.down.atom: f"({row})"}, cast=f"({stencil.frame.dialect.signed_64})")


# A block a tile


def _tiles(plan: RewriteBuilder, found: _Steps) -> Rewrite:
    add, stencil, subject = plan.parameter, found.stencil, plan.subject
    has_rows = bool(stencil.down.atom)
    found, tile = _chosen(subject, found, _TILES if has_rows else _LINES, lambda steps, tile: (
        2 * stencil.bytes_in * (tile[0] + found.reach_x * steps) * (tile[1] + found.reach_y * steps)
    ))  # fmt: skip
    count = found.chain.together
    names: dict[str, object] = {
        "TILE_X": add("TILE_X", (32, 64, 128, 256, 512), tile[0], "columns that a block finishes"),
        "TILE_Y": add("TILE_Y", (8, 16, 32, 64), tile[1], "rows that a block finishes") if has_rows else 1,
        "BLOCK_X": add("BLOCK_X", (16, 32, 64, 128, 256), 64, "threads of a block along the rows"),
        "BLOCK_Y": add("BLOCK_Y", (1, 2, 4, 8, 16), 4, "threads of a block down the rows") if has_rows else 1,
    }
    values = _values(found) | names
    height, pitch = (
        fill(text, names) for text in (f"@TILE_Y@ + {found.reach_y * count}", f"@TILE_X@ + {found.reach_x * count}")
    )
    most = "device.max_threads_per_block" if stencil.frame.dialect.is_opencl else "1024"
    plan.constraint("threads", fill(f"@BLOCK_X@ * @BLOCK_Y@ <= {most}", names))
    plan.constraint(
        "shared",
        f"{2 * stencil.bytes_in} * ({height}) * ({pitch}) <= min({SHARED_BYTES}, device.shared_memory_per_block)",
    )
    space = "__local" if stencil.frame.dialect.is_opencl else ""
    text, calls = _cell_functions(plan, found, space)
    plan.prelude += ["\n" + _macros(found, values, height=height, pitch=pitch) + "\n", text]
    rows = ", ".join(
        f"kw_now + (kw_y - kw_from_y + {place}) * KW_PITCH"
        for place in range(-found.reads.above, found.reads.below + 1)
    )
    values |= {**calls, "TILE_ROWS": rows}
    values["ORIGIN"] = fill(ORIGIN, values)
    own = ("LOW_X", "HIGH_X", "LOW_Y", "HIGH_Y")
    body = "{\n" + indented(fill(TILE, values)).replace("KW_TAKEN ", f"{space} " if space else "") + "}\n"
    plan.replace(subject.analysis.function.body.place.span, body + _undefines(found, *own))
    mark = (
        "__attribute__((reqd_work_group_size(@BLOCK_X@, @BLOCK_Y@, 1)))"
        if space
        else "__launch_bounds__(@BLOCK_X@ * @BLOCK_Y@)"
    )
    place_attribute(subject, plan, fill(mark, names))
    _relaunch(plan, found, str(names["TILE_X"]), str(names["TILE_Y"]), (str(names["BLOCK_X"]), str(names["BLOCK_Y"])))
    return _finished(plan, found, tile)


JOIN_STEPS = RuleTactic(
    NAME, "stencil", "Makes several time steps of a stencil in one launch, on tiles with what lies around them.", _join
)
