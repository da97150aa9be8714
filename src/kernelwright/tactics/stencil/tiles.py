"""Stencils with several points of a thread: neighbours that points share are loaded once.

Three ways, chosen by a parameter: long runs through the caches, whose inner part has no conditions (what compilers for
CPUs turn into vectors); a window of rows and columns in registers; a tile with its halo in shared memory. Near borders,
and wherever the kernel's conditions may not hold for all points, the kernel's own code does each point as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelwright.analysis.polynomial import ZERO, Polynomial
from kernelwright.source.edits import Edit
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.stencil.facts import Stencil, apart, inside_text, narrow_text, stencil_of
from kernelwright.tactics.stencil.neighbours import inside_edits, window_edits
from kernelwright.tactics.stencil.tiles_text import (
    CUDA_LOAD,
    CUDA_STORE,
    CUDA_WIDE,
    EDGE,
    EDGE_LEGAL,
    NO_EDGE,
    OPENCL_LOAD,
    OPENCL_STORE,
    OPENCL_WIDE,
    ORIGIN,
    RUNS,
    SCALAR_LOAD,
    SCALAR_STORE,
    TILE,
    WINDOW,
)
from kernelwright.tactics.tiling.frame import drop_sized_attributes, place_attribute
from kernelwright.tactics.tiling.store import (
    VECTOR_TYPES,
    marked_value_edits,
    value_edits,
)
from kernelwright.tactics.tiling.text import fill, indented, put_macro

NAME = "stencil-tiles"
_RUNS, _WINDOW, _TILE = 0, 1, 2


def _needed(found: Stencil, rows: str, columns: str) -> str:
    """Macros that say which elements of a window some point of it reads."""
    cells, middles = [], []
    for each in dict.fromkeys((n.across, n.down) for n in found.window.neighbours):
        (x0, x1), (y0, y1) = each
        by_row = f"(kw_r) - ({y0}) >= 0 && (kw_r) - ({y1}) < {rows}"
        cells.append(f"({by_row} && (kw_c) - ({x0}) >= 0 && (kw_c) - ({x1}) < {columns})")
        if x0 <= 0 <= x1:
            middles.append(f"({by_row})")
    return (
        f"#define KW_NEEDED(kw_r, kw_c) ({' || '.join(cells)})\n"
        f"#define KW_ROW_NEEDED(kw_r) ({' || '.join(middles) or '0'})\n"
    )


# Text


def _functions(plan: RewriteBuilder, found: Stencil, values: Mapping[str, object]) -> dict[str, str]:
    """The kernel's own code before it: whole, without conditions, and from a window; and their calls."""
    frame, subject, entry = found.frame, plan.subject, plan.subject.entry
    is_opencl = frame.dialect.is_opencl
    edits: tuple[Edit, ...] = tuple(edit for loop in found.loops for edit in loop.edits)
    loops = [f"const int {loop.parameter}" for loop in found.loops]
    held = inside_edits(subject, found.inside)
    names = {word: plan.fresh(f"{entry}_{word}") for word in ("whole", "inner", "value")}
    plan.prelude.append(frame.function(names["whole"], edits=edits, extra=", ".join(loops)) + "\n")
    if is_opencl:
        plan.prelude.append(frame.function(names["inner"], edits=(*edits, *held), extra=", ".join(loops)) + "\n")
    space = "KW_SPACE " if is_opencl else ""
    extra = [*loops, f"{space}const {found.type_in} *kw_window", "const int kw_i", "const int kw_j",
             f"{found.type_out} *kw_value"]  # fmt: skip
    changed = apart((*edits, *held, *window_edits(subject, found.window), *value_edits(found.stores)))
    text = frame.function(names["value"], edits=changed, extra=", ".join(extra))
    plan.prelude.append(text + "\n")
    calls = {}
    if found.has_edge:
        edge = plan.fresh(f"{entry}_edge")
        changed = apart((*edits, *window_edits(subject, found.window), *marked_value_edits(found.stores)))
        text = frame.function(edge, edits=changed, extra=", ".join([*extra, "int *kw_is_made"]))
        guard = f"#if {values['METHOD']} == {_WINDOW} && {values['EDGES']}\n"
        plan.prelude.append(f"{guard}{text}#endif\n\n")
        calls["VALUE_EDGE"] = found.call(edge, "kw_window", "kw_i", "kw_j", "&kw_own[kw_j]", "&kw_is_made[kw_j]")
    return calls | {
        "WHOLE": found.call(names["whole"]),
        "INNER": found.call(names["inner"]),
        "VALUE_WINDOW": found.call(names["value"], "kw_window", "kw_i", "kw_j", "&kw_own[kw_j]"),
        "VALUE_TILE": found.call(names["value"], "kw_window", "kw_row", "kw_column", "&kw_own[0]"),
    }


def _batch(found: Stencil) -> str:
    if len(found.batch) > 2:
        raise Unfit("it has more than two further indices")
    query = found.frame.dialect.block
    lines = [f"const int kw_batch_{number} = {query('yz'[number])};" for number in range(len(found.batch))]
    lines += [f"if (kw_batch_{number} >= {index.end}) {{\n  return;\n}}" for number, index in enumerate(found.batch)]
    return "\n".join(lines)


def _common(plan: RewriteBuilder, found: Stencil, names: Mapping[str, object]) -> dict[str, object]:
    x, y, window = found.across.atom, found.down.atom, found.window
    own = {x: ("kw_x0", "kw_x0 + @VEC@"), y: ("kw_y0", "kw_y0 + @ROWS@")}
    block = {x: ("kw_tile_x", "kw_tile_x + KW_TILE_X"), y: ("kw_tile_y", "kw_tile_y + KW_TILE_Y")}
    row = {x: ("kw_first", "kw_last")}
    values: dict[str, object] = {
        **names, "END_X": found.across.end, "END_Y": found.down.end, "BATCH": _batch(found),
        "BLOCK_INDEX": found.frame.dialect.block("x"), "THREAD_X": found.frame.dialect.thread("x"),
        "THREAD_Y": found.frame.dialect.thread("y"), "IN": found.type_in, "OUT": found.type_out,
        "FROM": window.array, "TO": found.main.touch.array, "ELEMENT_IN": found.text(found.element_in),
        "ELEMENT_OUT": found.text(found.element_out), "ABOVE": window.above, "BELOW": window.below,
        "LEFT": window.left, "RIGHT": window.right, "NARROW": narrow_text(found),
        "SPACE": "__global " if found.frame.dialect.is_opencl else "", "BARRIER": found.frame.dialect.barrier,
    }  # fmt: skip
    values |= {
        "INSIDE_THREAD": fill(inside_text(found, own), values),
        "INSIDE_BLOCK": fill(inside_text(found, block), values),
        "ROW_INSIDE": fill(inside_text(found, row), values),
    }
    values |= _functions_text(plan, found, values)
    return values


def _functions_text(plan: RewriteBuilder, found: Stencil, values: Mapping[str, object]) -> dict[str, object]:
    calls = _functions(plan, found, values)
    more: dict[str, object] = {**values, **calls, "LONG": found.frame.dialect.signed_64}
    edge = {"LEGAL": NO_EDGE}
    if found.has_edge:
        edge = _legal(found, more)
    return {**calls, **edge, "ORIGIN": fill(ORIGIN, values), "LONG": more["LONG"]}


def _legal(found: Stencil, values: Mapping[str, object]) -> dict[str, str]:
    """The elements of the window's array that may surely be read, and when there are any."""
    window, names = found.window, found.names
    sides: dict[str, str] = {}
    for word, atom, end in (("X", found.across.atom, "kw_end_x"), ("Y", found.down.atom, "kw_end_y")):
        lows = [f"(int)({found.frame.text(low)})" for low in found.inside.lows.get(atom, ()) if low != ZERO]
        highs = [f"(int)({found.frame.text(high)})" for high in found.inside.highs.get(atom, ())]
        sides |= {f"LOW_{word}": _nested("max", ["0", *lows]), f"HIGH_{word}": _nested("min", [end, *highs])}
    ends = []
    places = (
        (min((each.down[0], each.across[0]) for each in window.neighbours), "kw_low_x", "kw_low_y"),
        (max((each.down[1], each.across[1]) for each in window.neighbours), "kw_high_x - 1", "kw_high_y - 1"),
    )
    for (down, across), x, y in places:
        at = {**names, found.across.atom: f"({x} + {across})"}
        if found.down.atom:
            at[found.down.atom] = f"({y} + {down})"
        ends.append(found.frame.text(found.element_in, at, cast=f"({found.frame.dialect.signed_64})"))
    rows = {found.down.atom: ("kw_y0", "kw_y0 + @ROWS@")} if found.down.atom else {}
    is_row_inside = inside_text(found, rows, without=found.across.atom)
    reach = window.left + window.right
    pitch = f" && {found.frame.text(window.pitch)} > {reach}" if window.pitch.terms else ""
    legal = fill(f"{is_row_inside} && kw_low_x < kw_high_x && kw_low_y < kw_high_y{pitch}", values)
    return {"LEGAL": fill(EDGE_LEGAL, {**values, **sides, "LEAST": ends[0], "MOST": ends[1], "MAY": legal})}


def _nested(function: str, values: Sequence[str]) -> str:
    """`min(a, min(b, c))`."""
    text = values[-1]
    for value in reversed(values[:-1]):
        text = f"{function}({value}, {text})"
    return text


def _macros(found: Stencil, values: Mapping[str, object]) -> str:
    """What functions and bodies use; before them."""
    method = values["METHOD"]
    is_opencl = found.frame.dialect.is_opencl
    text = f"#if {method} == {_RUNS}\n#define KW_TILE_X (@BLOCK_X@ * @RUN@)\n#else\n" if is_opencl else ""
    text += "#define KW_TILE_X (@BLOCK_X@ * @VEC@)\n"
    text += "#endif\n" if is_opencl else ""
    text += (
        "#define KW_TILE_Y (@BLOCK_Y@ * @ROWS@)\n"
        f"#if {method} == {_TILE}\n"
        "#define KW_PITCH (KW_TILE_X + @LEFT@ + @RIGHT@)\n#define KW_HEIGHT (KW_TILE_Y + @ABOVE@ + @BELOW@)\n"
        f"{_needed(found, 'KW_TILE_Y', 'KW_TILE_X')}"
        f"{'#define KW_SPACE __local' if is_opencl else ''}\n"
        "#else\n"
        "#define KW_PITCH (@VEC@ + @LEFT@ + @RIGHT@)\n#define KW_HEIGHT (@ROWS@ + @ABOVE@ + @BELOW@)\n"
        f"{_needed(found, '@ROWS@', '@VEC@')}"
        f"{'#define KW_SPACE' if is_opencl else ''}\n"
        "#endif\n"
        "#define KW_AT(kw_dx, kw_dy) "
        "(kw_window[(kw_i + (kw_dy) + @ABOVE@) * KW_PITCH + kw_j + (kw_dx) + @LEFT@])\n"
    )
    for word in ("IN", "OUT") if is_opencl else ():
        text += (
            f"#if @VEC@ == 1\n#define KW_VECTOR_{word} @{word}@\n#else\n"
            f"#define KW_VECTOR_{word} KW_JOIN(@{word}@, @VEC@)\n#endif\n"
        )
    start = "#define KW_JOIN_(x, y) x##y\n#define KW_JOIN(x, y) KW_JOIN_(x, y)\n" if is_opencl else ""
    return start + fill(text, values)


def _undefines(found: Stencil) -> str:
    words = ["LEGAL", "MAY", "TILE_X", "TILE_Y", "PITCH", "HEIGHT", "NEEDED", "ROW_NEEDED", "AT"]
    if found.frame.dialect.is_opencl:
        words += ["SPACE", "VECTOR_IN", "VECTOR_OUT", "JOIN", "JOIN_"]
    else:
        words += ["PUT", "WORD_OUT"]
    return "".join(f"#undef KW_{word}\n" for word in words)


def _rule(subject: Subject) -> Rewrite:
    plan = RewriteBuilder(subject, NAME, "stencil")
    found = stencil_of(subject, plan)
    drop_sized_attributes(subject, plan)
    return _opencl(plan, found) if subject.language == "opencl" else _cuda(plan, found)


def _grid(found: Stencil, tile_x: str, tile_y: str) -> tuple[str, ...]:
    tiles = f"ceil_div({found.across.host}, {tile_x})"
    tiles += f" * ceil_div({found.down.host}, {tile_y})" if found.down.atom else ""
    return (tiles, *(index.host for index in found.batch))


def _rows(plan: RewriteBuilder, found: Stencil, default: int) -> dict[str, object]:
    if not found.down.atom:
        return {"ROWS": 1}
    values = (1, 2, 4, 8, 16, 32)
    return {"ROWS": plan.parameter("ROWS", values, default, "rows of points that one thread makes")}


def _edges(plan: RewriteBuilder, found: Stencil) -> dict[str, object]:
    if not found.has_edge:
        return {"EDGES": 0}
    why = "points near borders are made, 0: one by one; 1: from the window too; 2: and all others that way (method 1)"
    default = 1 if plan.subject.language == "opencl" else 2  # on GPUs a warp that goes two ways takes the time of both
    return {"EDGES": plan.parameter("EDGES", (0, 1, 2), default, why)}


# CUDA and HIP


def _covering(found: Stencil, vec: int) -> int:
    """Threads along a row by default: as many as it needs, from 16 to 64."""
    subject = found.frame.subject
    totals = [total_of(subject, found.across.host, sizes) or 1 for sizes in subject.sizes()]
    threads = -(-max(totals, default=1) // vec)
    return min(64, max(16, 1 << (threads - 1).bit_length()))


def _cuda(plan: RewriteBuilder, found: Stencil) -> Rewrite:
    add, subject = plan.parameter, plan.subject
    widths = tuple(n for n in (1, 2, 4, 8) if n * max(found.bytes_in, found.bytes_out) <= 16)
    wide = _covering(found, widths[-1])
    names: dict[str, object] = {
        "METHOD": add("METHOD", (_WINDOW, _TILE), _WINDOW, "1: a window in registers; 2: a tile in shared memory"),
        "BLOCK_X": add("BLOCK_X", (16, 32, 64, 128, 256), wide, "threads of a block along the rows"),
        "BLOCK_Y": add("BLOCK_Y", (1, 2, 4, 8, 16), 256 // wide, "threads of a block down the rows")
        if found.down.atom
        else 1,
        "VEC": add(
            "VEC", widths, widths[-1], "points of a row that one thread makes; wide loads where they are aligned"
        ),
        **_rows(plan, found, 2),
        "WALK": add("WALK", (0, 1), 0, "0: blocks follow rows; 1: columns"),
        "RUN": 1,
        **_edges(plan, found),
        "STORING": 0,
    }
    if subject.language == "cuda" and len(widths) > 1:
        why = "vectors that were stored are kept in caches, 0: as usual; 1: as little as can be (method 1)"
        names["STORING"] = add("STORING", (0, 1), 0, why)
    shared = fill(
        f"{found.bytes_in} * (@BLOCK_X@ * @VEC@ + {found.window.left + found.window.right}) "
        f"* (@BLOCK_Y@ * @ROWS@ + {found.window.above + found.window.below})",
        names,
    )
    reach = found.window.left + found.window.right, found.window.above + found.window.below
    for name, condition in (
        ("threads", "64 <= @BLOCK_X@ * @BLOCK_Y@ <= 1024"),
        ("registers", f"@METHOD@ == {_TILE} or (@VEC@ + {reach[0]}) * (@ROWS@ + {reach[1]}) <= 128"),
        ("points", "@VEC@ * @ROWS@ <= 64"),
        ("edges", f"@METHOD@ == {_WINDOW} or @EDGES@ == {2 * int(found.has_edge)}"),
        ("shared", f"@METHOD@ == {_WINDOW} or {shared} <= device.shared_memory_per_block"),
    ):
        plan.constraint(name, fill(condition, names))
    if names["STORING"]:
        plan.constraint("hints", fill(f"@STORING@ == 0 or (@METHOD@ == {_WINDOW} and @VEC@ > 1)", names))
    values = _common(plan, found, names)
    values |= {"TILE_MEMORY": _cuda_memory(plan, found), "WIDE_IN": _wide(found, found.element_in, found.window.array),
               "WIDE_OUT": _wide(found, found.element_out, found.main.touch.array)}  # fmt: skip
    values |= {word: fill(str(values[word]), values) for word in ("WIDE_IN", "WIDE_OUT", "TILE_MEMORY")}
    values |= {
        "WIDE": fill(CUDA_WIDE, values),
        "LOAD_VECTOR": fill(CUDA_LOAD, values),
        "STORE_VECTOR": fill(CUDA_STORE, values),
    }
    values["EDGE"] = fill(EDGE, values) if found.has_edge else ""
    put = put_macro(names["VEC"], found.bytes_out, names["STORING"])
    plan.prelude.insert(0, "\n" + _macros(found, values) + put + "\n")
    body = (
        f"{{\n#if {names['METHOD']} == {_WINDOW}\n{indented(fill(WINDOW, values))}#else\n"
        f"{indented(fill(TILE, values))}#endif\n}}\n"
        f"{_undefines(found)}"
    )
    plan.replace(subject.analysis.function.body.place.span, body)
    place_attribute(subject, plan, fill("__launch_bounds__(@BLOCK_X@ * @BLOCK_Y@)", values))
    plan.header = plan.header.relaunched(
        only_shape(subject).entry,
        grid=_grid(found, fill("@BLOCK_X@ * @VEC@", names), fill("@BLOCK_Y@ * @ROWS@", names)),
        block=(str(names["BLOCK_X"]), str(names["BLOCK_Y"])),
        shared_bytes=f"({shared}) if {names['METHOD']} == {_TILE} else 0",
    )
    return _finished(plan, found)


def _cuda_memory(plan: RewriteBuilder, found: Stencil) -> str:
    memory = plan.fresh("kw_memory")
    return (
        f"extern __shared__ __align__(16) unsigned char {memory}[];\n"
        f"{found.type_in} *const kw_window = reinterpret_cast<{found.type_in} *>({memory});"
    )


def _wide(found: Stencil, element: Polynomial, array: str) -> str:
    """Whether vectors are aligned wherever a thread's columns start."""
    c_type = found.type_in if array == found.window.array else found.type_out
    parts = [f"(size_t){array} % (sizeof({c_type}) * @VEC@) == 0"]
    rest = element
    for atom, name in found.names.items():
        coefficient = element.coefficient(atom) if atom else None
        if not atom or coefficient is None:
            continue
        rest = rest.without([atom])
        if name != "kw_x":
            parts.append(f"({found.text(coefficient)}) % @VEC@ == 0")
    if rest.terms:
        parts.append(f"({found.text(rest)}) % @VEC@ == 0")
    return " && ".join(parts)


# OpenCL


def _opencl(plan: RewriteBuilder, found: Stencil) -> Rewrite:
    add, is_cpu = plan.parameter, plan.subject.device.kind == "cpu"
    is_vector = {found.type_in, found.type_out} <= VECTOR_TYPES
    why = "0: runs through the caches; 1: a window in registers; 2: a tile in local memory"
    names: dict[str, object] = {
        "METHOD": add("METHOD", (_RUNS, _WINDOW, _TILE), _RUNS if is_cpu else _WINDOW, why),
        "BLOCK_X": add(
            "BLOCK_X", (1, 2, 4, 8, 16, 32, 64), 1 if is_cpu else 32, "work-items of a group along the rows"
        ),
        "BLOCK_Y": add("BLOCK_Y", (1, 2, 4, 8, 16), 1 if is_cpu else 8, "work-items of a group down the rows")
        if found.down.atom
        else 1,
        "VEC": add(
            "VEC", (1, 2, 4, 8), 1 if is_cpu else 4, "points of a row that one work-item makes (methods 1 and 2)"
        ),
        **_rows(plan, found, 16 if is_cpu else 4),
        "RUN": add("RUN", (16, 64, 256, 1024, 4096), 1024, "points of a row that one work-item makes (method 0)"),
        "WALK": add("WALK", (0, 1), 0, "0: groups follow rows; 1: columns"),
        **_edges(plan, found),
    }
    width = fill("(@BLOCK_X@ * @VEC@ + ", names) + f"{found.window.left + found.window.right})"
    height = fill("(@BLOCK_Y@ * @ROWS@ + ", names) + f"{found.window.above + found.window.below})"
    reach = found.window.left + found.window.right, found.window.above + found.window.below
    for name, condition in (
        ("threads", "@BLOCK_X@ * @BLOCK_Y@ <= device.max_threads_per_block"),
        ("registers", f"@METHOD@ != {_WINDOW} or (@VEC@ + {reach[0]}) * (@ROWS@ + {reach[1]}) <= 128"),
        ("points", f"@METHOD@ == {_RUNS} or @VEC@ * @ROWS@ <= 64"),
        ("edges", f"@METHOD@ == {_WINDOW} or @EDGES@ == {int(found.has_edge)}"),
        ("runs", f"@METHOD@ == {_RUNS} or @RUN@ == 1024"),
        ("vectors", f"@METHOD@ != {_RUNS} or @VEC@ == 1"),
        ("sharing", f"@METHOD@ != {_TILE} or @BLOCK_X@ * @BLOCK_Y@ >= 32"),
        ("shared", f"@METHOD@ != {_TILE} or {found.bytes_in} * {width} * {height} <= device.shared_memory_per_block"),
    ):
        plan.constraint(name, fill(condition, names))
    subject = plan.subject
    values = _common(plan, found, names)
    values |= {
        "TILE_MEMORY": f"__local {found.type_in} kw_window[KW_HEIGHT * KW_PITCH];",
        "WIDE": fill(OPENCL_WIDE, values) if is_vector else "// Elements have no vectors.",
        "LOAD_VECTOR": fill(OPENCL_LOAD if is_vector else SCALAR_LOAD, values),
        "STORE_VECTOR": fill(OPENCL_STORE if is_vector else SCALAR_STORE, values),
    }
    values["EDGE"] = fill(EDGE, values) if found.has_edge else ""
    plan.prelude.insert(0, "\n" + _macros(found, values) + "\n")
    body = (
        f"{{\n#if {names['METHOD']} == {_RUNS}\n{indented(fill(RUNS, values))}#elif {names['METHOD']} == {_WINDOW}\n"
        f"{indented(fill(WINDOW, values))}#else\n{indented(fill(TILE, values))}#endif\n}}\n{_undefines(found)}"
    )
    plan.replace(subject.analysis.function.body.place.span, body)
    place_attribute(subject, plan, fill("__attribute__((reqd_work_group_size(@BLOCK_X@, @BLOCK_Y@, 1)))", values))
    columns = fill(f"(@RUN@ if @METHOD@ == {_RUNS} else @VEC@)", names)
    plan.header = plan.header.relaunched(
        only_shape(subject).entry,
        grid=_grid(found, fill(f"@BLOCK_X@ * {columns}", names), fill("@BLOCK_Y@ * @ROWS@", names)),
        block=(str(names["BLOCK_X"]), str(names["BLOCK_Y"])),
    )
    return _finished(plan, found)


def _finished(plan: RewriteBuilder, found: Stencil) -> Rewrite:
    count = len({(each.across, each.down) for each in found.window.neighbours})
    sentence = (
        f"A thread makes several points from neighbours of {found.window.array} that it loads once for all of them, in "
        "registers, in shared memory or in runs without conditions; near borders the kernel's own code does each point."
    )
    because = f"each element of {found.window.array} is loaded about once for its points instead of {count} times"
    return plan.finish(sentence, Effect(2.0, because))


STENCIL_TILES = RuleTactic(
    NAME, "stencil", "Gives a thread several points of a stencil, which share the neighbours that they load.", _rule
)
