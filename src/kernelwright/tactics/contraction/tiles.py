"""Contractions in tiles: through shared memory or registers, each load serving many sums.

The plain kernel computes one sum a thread. Here a block computes a tile and a thread some rows and columns of it; the
kernel's own code before and behind the loop stays and runs once for each sum, so every epilogue is kept as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelwright.analysis.polynomial import named
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder
from kernelwright.tactics.common.iteration_domain import total_of
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.contraction.facts import STEP, Contraction, Factor, contraction_of
from kernelwright.tactics.contraction.tiles_text import (
    CUDA_BODY,
    CUDA_MACROS,
    CUDA_UNDEFINES,
    OPENCL_DIRECT,
    OPENCL_MACROS,
    OPENCL_STAGED,
    OPENCL_START,
    OPENCL_UNDEFINES,
)
from kernelwright.tactics.tiling.frame import Index, drop_sized_attributes, place_attribute
from kernelwright.tactics.tiling.text import fill

NAME = "contraction-tiles"
_WHOLE_TILE = 128
"""Rows and columns of a block's tile to begin with, where the output has as many."""
_VECTOR_TYPES = frozenset(("float", "double", "int", "uint", "long", "ulong"))


def _rule(subject: Subject) -> Rewrite:
    plan = RewriteBuilder(subject, NAME, "contraction")
    found = contraction_of(subject, plan)
    drop_sized_attributes(subject, plan)
    if subject.language == "opencl":
        return _opencl(plan, found)
    return _cuda(plan, found)


def _functions(plan: RewriteBuilder, found: Contraction, *, is_whole: bool) -> dict[str, str]:
    """The kernel as functions before it; how they are called, in `kw_m`, `kw_n` and the sum."""
    frame = found.frame
    place = frame.place({**_names(found, found.left, "kw_m", ""), **_names(found, found.right, "kw_n", "")})
    finish = plan.fresh(f"{plan.subject.entry}_finish")
    plan.prelude.append(frame.function(finish, edits=found.finish_edits, extra=f"const {found.c_type} kw_sum") + "\n")
    lanes = "kw_lanes[kw_q]" if frame.dialect.is_opencl else "kw_sums[kw_i][kw_j]"
    calls = {"FINISH": frame.call(finish, place, lanes)}
    if is_whole:
        whole = plan.fresh(f"{plan.subject.entry}_whole")
        plan.prelude.append(frame.function(whole) + "\n")
        calls["WHOLE"] = frame.call(whole, place)
    return calls


def _names(found: Contraction, factor: Factor, own: str, k: str) -> dict[str, str]:
    """C text of all indices that a factor knows, of its own as one and of the steps."""
    names = _digits(factor.own, own) | ({**_digits(found.loops, k), STEP: k} if k else {})
    names |= {index.atom: f"kw_batch_{number}" for number, index in enumerate(found.batch)}
    return {**{f"block.{atom[7:]}": text for atom, text in names.items() if atom.startswith("global.")}, **names}


def _digits(indices: Sequence[Index], whole: str) -> dict[str, str]:
    """What each of some indices is, fastest first, where one counts them all."""
    found, slower = {}, whole
    for number, each in enumerate(indices):
        is_last = number + 1 == len(indices)
        found[each.atom] = each.text(slower if is_last else f"({slower} % ({each.end}))")
        slower = f"({slower} / ({each.end}))"
    return found


def _where(found: Contraction, factor: Factor, own: str) -> str:
    """What more must hold where a factor has an element."""
    names = _names(found, factor, own, "kw_k")
    return "".join(f" && {found.frame.text(each, names)} >= 0" for each in factor.needed)


def _common(plan: RewriteBuilder, found: Contraction) -> dict[str, object]:
    """What both dialects fill in."""
    frame = found.frame
    cast = f"({frame.dialect.signed_64})"
    query = frame.dialect.block
    if len(found.batch) > 2:
        raise Unfit("it has more than two further indices")
    lines = [
        f"const int kw_batch_{number} = {query('yz'[number])};" for number, index in enumerate(found.batch)
    ] + [
        f"if (kw_batch_{number} >= {index.end}) {{\n  return;\n}}" for number, index in enumerate(found.batch)
    ]  # fmt: skip
    values: dict[str, object] = {
        "T": found.c_type, "END_M": _end(found.left), "END_N": _end(found.right), "FIRST_K": found.first_k,
        "END_K": found.end_k, "BATCH": "\n".join(lines) or "// There are no further indices.",
    }  # fmt: skip
    for letter, factor, own in (("A", found.left, "kw_m"), ("B", found.right, "kw_n")):
        values |= {
            f"TYPE_{letter}": factor.c_type, f"ARRAY_{letter}": factor.array, f"FACTOR_{letter}": factor.expression,
            f"ELEMENT_{letter}": frame.text(factor.element, _names(found, factor, own, "kw_k"), cast=cast),
            f"WHERE_{letter}": _where(found, factor, own),
        }  # fmt: skip
    return values


def _end(factor: Factor) -> str:
    ends = [each.end for each in factor.own]
    return ends[0] if len(ends) == 1 else " * ".join(f"({each})" for each in ends)


# CUDA and HIP


def _cuda_parameters(plan: RewriteBuilder, found: Contraction) -> dict[str, object]:
    size = found.sum_bytes or 8
    small = size == 4
    widest = 16 // size if found.sum_bytes is not None else 1
    add = plan.parameter
    warps = _warps(plan.subject, found) if small else (2, 2)
    names = {
        "TM": add("TM", (4, 8, 16), 8 if small else 4, "rows of sums that one thread keeps"),
        "TN": add("TN", (4, 8, 16), 8 if small else 4, "columns of sums that one thread keeps"),
        "LANES_M": add("LANES_M", (2, 4, 8), 4, "threads of a warp down the rows; 32 / LANES_M are along the columns"),
        "WARPS_M": add("WARPS_M", (1, 2, 4, 8), warps[0], "warps of a block down the rows"),
        "WARPS_N": add("WARPS_N", (1, 2, 4, 8), warps[1], "warps of a block along the columns"),
        "BK": add("BK", (8, 16, 32), 16 if small else 8, "steps of the sum that are in shared memory at a time"),
        "UNROLL": add("UNROLL", (4, 8, 16, 32), 16 if small else 8, "steps that are written out"),
        "STAGES": add("STAGES", (1, 2), 2, "slices in shared memory: with 2 one is filled while the other is used"),
        "PAD": add("PAD", (0, 4, 8), 4, "extra elements of a step of the left factor, against bank conflicts"),
        "MIN_BLOCKS": add("MIN_BLOCKS", (1, 2, 3, 4), 1, "blocks of a multiprocessor that registers leave room for"),
        "BAND": add(
            "BAND", (1, 2, 4, 8, 16), 8, "rows of blocks that go along the columns together, to share in cache"
        ),
    }
    for letter, factor in (("A", found.left), ("B", found.right)):
        widths = _widths(factor)
        why = f"elements of {factor.array} that one load takes where they are aligned"
        names[f"LOAD_{letter}"] = add(f"LOAD_{letter}", widths, widths[-1], why)
    for letter, factor in (("A", found.left), ("B", found.right)):
        if factor.unit == "k":
            why = f"threads side by side read {factor.array}, 0: along a row; 1: of several rows, for the banks"
            names[f"WALK_{letter}"] = add(f"WALK_{letter}", (0, 1), 0, why)
    return {**names, "WIDEST": widest, "SIZE": size}


def _warps(subject: Subject, found: Contraction) -> tuple[int, int]:
    """Warps of a block down the rows and along the columns to begin with: no tile is far larger than the output."""
    rows, columns = (
        max(total_of(subject, _host(each), sizes) or _WHOLE_TILE for sizes in subject.sizes())
        for each in (found.left, found.right)
    )
    if columns <= _WHOLE_TILE // 2:
        return 4, 1
    return (4, 2) if rows > _WHOLE_TILE // 2 else (2, 4) if rows > _WHOLE_TILE // 4 else (1, 4)


def _widths(factor: Factor) -> tuple[int, ...]:
    if not factor.unit or factor.element_bytes is None or not factor.is_affine or factor.needed:
        return (1,)
    return tuple(width for width in (1, 2, 4, 8) if width * factor.element_bytes <= 16 and width <= 4)


def _cuda_constraints(plan: RewriteBuilder, names: Mapping[str, object]) -> None:
    threads = fill("32 * @WARPS_M@ * @WARPS_N@", names)
    rows, columns = fill("@TM@ * @LANES_M@ * @WARPS_M@", names), fill("@TN@ * (32 // @LANES_M@) * @WARPS_N@", names)
    more = {**names, "THREADS": threads, "ROWS": rows, "COLUMNS": columns}
    registers = "@TM@ * @TN@ + @TM@ + @TN@ + (@ROWS@ + @COLUMNS@) * @BK@ // (@THREADS@) + 32"
    for name, condition in (
        ("threads", "64 <= @THREADS@ <= 512"),
        ("tile_m", "32 <= @ROWS@ <= 256"),
        ("tile_n", "32 <= @COLUMNS@ <= 256"),
        ("loads_a", "@ROWS@ * @BK@ % (@LOAD_A@ * @THREADS@) == 0 and @ROWS@ % @LOAD_A@ == 0"),
        ("loads_b", "@COLUMNS@ * @BK@ % (@LOAD_B@ * @THREADS@) == 0 and @COLUMNS@ % @LOAD_B@ == 0"),
        ("sums", "16 <= @TM@ * @TN@ <= 128"),
        ("code", "@UNROLL@ <= @BK@ and @UNROLL@ * @TM@ * @TN@ <= 2048"),
        ("registers", f"({registers}) * @SIZE@ <= 1020"),
        (
            "resident",
            f"({registers}) * (@SIZE@ // 4) * @THREADS@ * @MIN_BLOCKS@ <= device.registers_per_multiprocessor",
        ),
        ("shared", "@SIZE@ * @STAGES@ * @BK@ * (@ROWS@ + @PAD@ + @COLUMNS@) <= device.shared_memory_per_block"),
    ):
        plan.constraint(name, fill(fill(condition, more | {"SIZE": names["SIZE"]}), more))


def _cuda(plan: RewriteBuilder, found: Contraction) -> Rewrite:
    names = _cuda_parameters(plan, found)
    _cuda_constraints(plan, names)
    memory = plan.fresh("kw_memory")
    values = {**names, **_common(plan, found), "MEMORY": memory, **_functions(plan, found, is_whole=False)}
    for letter, factor, own, end in (("A", found.left, "kw_m", "kw_end_m"), ("B", found.right, "kw_n", "kw_end_n")):
        values |= _cuda_loads(found, letter, factor, own, end, values)
    subject = plan.subject
    plan.prelude.append(fill(CUDA_MACROS, values) + "\n")
    body = subject.analysis.function.body.place.span
    plan.replace(body, fill(CUDA_BODY, values) + fill(CUDA_UNDEFINES, values))
    place_attribute(subject, plan, fill("__launch_bounds__(KW_THREADS, @MIN_BLOCKS@)", values))
    rows, columns = fill("@TM@ * @LANES_M@ * @WARPS_M@", names), fill("@TN@ * (32 // @LANES_M@) * @WARPS_N@", names)
    plan.header = plan.header.relaunched(
        only_shape(subject).entry,
        grid=_grid(found, rows, columns),
        block=(fill("32 * @WARPS_M@ * @WARPS_N@", names),),
        shared_bytes=fill(f"@SIZE@ * @STAGES@ * @BK@ * ({rows} + @PAD@ + {columns})", names),
    )
    return _finished(plan, found, "shared memory")


def _cuda_loads(
    found: Contraction, letter: str, factor: Factor, own: str, end: str, values: Mapping[str, object]
) -> dict[str, object]:
    """How loads of a factor go over a tile: along its unit index, `LOAD` neighbours at a time."""
    frame, load = found.frame, values[f"LOAD_{letter}"]
    tile = "KW_BM" if letter == "A" else "KW_BN"
    pitch = "KW_PITCH" if letter == "A" else "KW_BN"
    walk = values.get(f"WALK_{letter}")
    by_step = f"kw_at % (@BK@ / {load}) * {load}", f"kw_at / (@BK@ / {load})"
    by_row = f"kw_at / {tile} * {load}", f"kw_at % {tile}"
    if factor.unit == "k":
        step, row = (f"({walk} == 0 ? {a} : {b})" for a, b in zip(by_step, by_row, strict=True))
        whole, inside = f"{own} < {end} && kw_k + {load} <= kw_end_k", f"{own} < {end} && kw_k + kw_q < kw_end_k"
        unit, turn, others = factor.by_k, pitch, [factor.by_own, factor.start]
    else:
        row, step = f"kw_at % ({tile} / {load}) * {load}", f"kw_at / ({tile} / {load})"
        whole, inside = f"kw_k < kw_end_k && {own} + {load} <= {end}", f"kw_k < kw_end_k && {own} + kw_q < {end}"
        unit, turn, others = factor.by_own, "1", [factor.by_k, factor.start]
    cast = f"({frame.dialect.signed_64})"
    start = frame.text(factor.start, _names(found, factor, own, "kw_k"), cast=cast)
    along = frame.text(others[0], cast=cast)
    first = f" && kw_first_k % {load} == 0" if factor.unit == "k" else ""
    wide = f"({along}) % {load} == 0 && ({start}) % {load} == 0{first}"
    wide += f" && (size_t){factor.array} % (sizeof({factor.c_type}) * {load}) == 0"
    wide, inside = (wide if len(_widths(factor)) > 1 else "false"), inside + _where(found, factor, own)
    result = {f"STEP_{letter}": step, f"ROW_{letter}": row, f"WHOLE_{letter}": whole, f"INSIDE_{letter}": inside,
              f"UNIT_{letter}": frame.text(unit), f"TURN_{letter}": turn, f"WIDE_{letter}": wide}  # fmt: skip
    return {name: fill(str(text), values) for name, text in result.items()}


def _grid(found: Contraction, rows: str, columns: str) -> tuple[str, ...]:
    tiles = f"ceil_div({_host(found.left)}, {rows}) * ceil_div({_host(found.right)}, {columns})"
    return (tiles, *(index.host for index in found.batch))


def _host(factor: Factor) -> str:
    """How many places a factor has for itself, as an expression in sizes."""
    hosts = [each.host for each in factor.own]
    return hosts[0] if len(hosts) == 1 else " * ".join(f"({each})" for each in hosts)


# OpenCL


def _opencl_parameters(plan: RewriteBuilder, *, is_direct: bool) -> dict[str, object]:
    add, is_cpu = plan.parameter, plan.subject.device.kind == "cpu"
    vectors = (1, 2, 4, 8, 16) if is_cpu else (1, 2, 4)
    lanes = max(4, min(16, plan.subject.device.vector_bytes // 4)) if is_cpu else 4
    names: dict[str, object] = {
        "GROUP_X": add("GROUP_X", (1, 2, 4, 8, 16), 1 if is_cpu else 16, "work-items of a group along the columns"),
        "GROUP_Y": add("GROUP_Y", (1, 2, 4, 8, 16), 4 if is_cpu else 16, "work-items of a group along the rows"),
        "ROWS": add("ROWS", (2, 4, 6, 8), 4, "rows of sums that one work-item keeps in registers"),
        "CHUNKS": add("CHUNKS", (1, 2, 4), 2 if is_cpu else 1, "vectors of columns that one work-item keeps"),
        "VEC": add("VEC", vectors, lanes, "elements of a vector of sums"),
        "UNROLL": add("UNROLL", (1, 2, 4), 1, "steps of the sum that are written out"),
        "DEPTH": add("DEPTH", (8, 16, 32), 16, "steps of the sum that are in local memory at a time"),
        "PAD": add("PAD", (0, 1, 4), 0, "extra elements of a step of the left factor in local memory"),
        "BAND": add("BAND", (1, 4, 16), 4, "rows of groups that go along the columns together, to share in cache"),
    }
    if is_direct:
        why = "1: slices pass through local memory; 0: factors are read through the caches"
        names["STAGE"] = add("STAGE", (0, 1), 0 if is_cpu else 1, why)
    else:
        names["STAGE"] = 1
    return names


def _opencl_constraints(plan: RewriteBuilder, names: Mapping[str, object], size: int) -> None:
    for name, condition in (
        ("threads", "@GROUP_X@ * @GROUP_Y@ <= device.max_threads_per_block"),
        ("reuse", "@ROWS@ * @CHUNKS@ * @VEC@ >= 8"),
        ("registers", "@ROWS@ * @CHUNKS@ * @VEC@ <= 128"),
        ("code", "@UNROLL@ * @ROWS@ * @CHUNKS@ <= 32"),
        (
            "shared",
            f"@STAGE@ * {size} * @DEPTH@ * (@GROUP_Y@ * @ROWS@ + @PAD@ + @GROUP_X@ * @CHUNKS@ * @VEC@) "
            "<= device.shared_memory_per_block",
        ),
    ):
        plan.constraint(name, fill(condition, names))
    if names["STAGE"] != 1:
        default = 16
        plan.constraint("staging", fill(f"@STAGE@ == 1 or (@DEPTH@ == {default} and @PAD@ == 0)", names))


def _opencl(plan: RewriteBuilder, found: Contraction) -> Rewrite:
    if found.c_type not in _VECTOR_TYPES:
        raise Unfit(f"there are no vectors of {found.c_type} here")
    left, right = found.left, found.right
    is_direct = right.unit == "own" and left.is_plain and right.is_plain
    is_direct &= left.c_type == right.c_type == found.c_type and not _is_constant(plan.subject, left, right)
    is_direct &= all(each.is_affine and not each.needed for each in (left, right))
    names = _opencl_parameters(plan, is_direct=is_direct)
    _opencl_constraints(plan, names, found.sum_bytes or 8)
    values = {**names, **_common(plan, found), **_functions(plan, found, is_whole=is_direct)}
    values |= _opencl_places(found, names)
    values["START"] = fill(OPENCL_START, values).strip("\n")
    staged = fill(OPENCL_STAGED, values)
    subject = plan.subject
    if is_direct:
        direct = fill(OPENCL_DIRECT, values)
        text = f"\n#if {names['STAGE']}\n{staged}\n#else\n{direct}\n#endif\n"
    else:
        text = staged
    plan.prelude.append(fill(OPENCL_MACROS, values) + "\n")
    plan.replace(subject.analysis.function.body.place.span, text + fill(OPENCL_UNDEFINES, values))
    place_attribute(
        subject, plan, fill("__attribute__((reqd_work_group_size(@GROUP_X@, @GROUP_Y@, 1)))", values)
    )  # fmt: skip
    rows, columns = fill("@GROUP_Y@ * @ROWS@", names), fill("@GROUP_X@ * @CHUNKS@ * @VEC@", names)
    plan.header = plan.header.relaunched(
        only_shape(subject).entry,
        grid=_grid(found, rows, columns),
        block=(str(names["GROUP_X"]), str(names["GROUP_Y"])),
    )
    return _finished(plan, found, "local memory or the caches" if is_direct else "local memory")


def _is_constant(subject: Subject, *factors: Factor) -> bool:
    arrays = subject.analysis.facts.arrays
    return any(arrays[factor.array].space != "global" for factor in factors)


def _opencl_places(found: Contraction, names: Mapping[str, object]) -> dict[str, object]:
    frame = found.frame
    left, right = found.left, found.right
    cast = f"({frame.dialect.signed_64})"
    result: dict[str, object] = {}
    for letter, factor, tile in (("A", left, "KW_BM"), ("B", right, "KW_BN")):
        by_k = factor.unit == "k"
        result[f"STEP_{letter}"] = f"kw_at % {names['DEPTH']}" if by_k else f"kw_at / {tile}"
        result[f"ROW_{letter}"] = f"kw_at / {names['DEPTH']}" if by_k else f"kw_at % {tile}"
    first_m = left.start + left.by_own * named(left.own[0].atom)
    first_n = right.start + right.by_own * named(right.own[0].atom)
    result |= {
        "START_A": frame.text(first_m, _names(found, left, "kw_row", ""), cast=cast),
        "START_B": frame.text(first_n, _names(found, right, "kw_column", ""), cast=cast),
        "BY_OWN_A": frame.text(left.by_own), "BY_K_A": frame.text(left.by_k), "BY_K_B": frame.text(right.by_k),
    }  # fmt: skip
    return result


# The finished rewrite


def _finished(plan: RewriteBuilder, found: Contraction, through: str) -> Rewrite:
    left, right = found.left, found.right
    sentence = (
        f"Tiles of {left.array} and {right.array} go through {through}, and a thread keeps several rows and columns of "
        "sums in registers, so that each load serves many of them; the code around the loop runs once for each sum."
    )
    is_cpu = plan.subject.device.kind == "cpu"
    because = "each element of both factors is loaded once for a tile of sums instead of once for each sum"
    return plan.finish(sentence, Effect(16.0 if is_cpu else 8.0, because))


CONTRACTION_TILES = RuleTactic(
    NAME, "contraction", "Computes a contraction in tiles, with several sums of a thread in registers.", _rule
)
