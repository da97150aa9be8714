"""Patterns with a reduction: row-wise, whole, contractions, and windows (stencils written as loops)."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.analysis.facts import Confidence, Reduction, Sources
from kernelwright.analysis.patterns.indices import Indices, Touch
from kernelwright.analysis.patterns.types import NearMiss, Pattern


@dataclass(frozen=True, slots=True)
class _Reduced:
    """One reduction of loaded data."""

    reduction: Reduction
    reads: tuple[Touch, ...]


def recognise_reduction(indices: Indices) -> Pattern | NearMiss | None:
    """A kernel that joins loaded values; None when it joins none."""
    reduced = [each for each in (_reduced(indices, r) for r in indices.facts.reductions) if each.reads]
    if not reduced:
        return None
    running = _running(indices)
    if running is not None:
        return NearMiss("row-wise", (running,))
    return (
        _contraction(indices, reduced)
        or _window(indices, reduced)
        or _whole(indices, reduced)
        or _row_wise(indices, reduced)
        or NearMiss("row-wise", _why_not_row_wise(indices))
    )


def _reduced(indices: Indices, reduction: Reduction) -> _Reduced:
    reads = tuple(t for t in indices.reads if t.access.index in reduction.sources.accesses)
    return _Reduced(reduction, reads)


def _running(indices: Indices) -> str | None:
    """Why results are running ones: what is stored for an element joins only what stands before it."""
    facts = indices.facts
    for write in indices.writes:
        if indices.needs_earlier_iteration(write):
            return f"{write.array} is stored inside a loop from what its earlier iterations left: a running result"
    for exchange in facts.exchanges:
        if "_up" in exchange.function or "scan" in exchange.function:
            return f"{exchange.function} gives every thread a result of its own: a running result"
    for reduction in facts.reductions:
        array = facts.arrays.get(reduction.target)
        if array is None or array.space != "shared" or reduction.scope != "block":
            continue
        loads = [access for access in facts.accesses if access.array == reduction.target and access.kind == "read"]
        if not any(a.element is not None and not indices.thread_axes_of(a.element) for a in loads):
            return f"no load of {reduction.target} is the same for all threads: a running result, or a histogram"
    return None


# Contractions


def _contraction(indices: Indices, reduced: list[_Reduced]) -> Pattern | None:
    """A sum of products whose factors depend on different indices of the output."""
    for each in reduced:
        reduction = each.reduction
        if reduction.operation != "sum" or reduction.scope != "thread" or len(reduction.factors) < 2:
            continue
        output = _output_of(indices, reduction)
        if output is None:
            continue
        found = _factors(indices, reduction, output)
        if found is None:
            continue
        first, second, own_first, own_second = found
        if own_first and own_second:
            is_tiled = any(access.space == "shared" for access in indices.facts.accesses)
            is_window = bool(_windowed(indices, each, output)) and not is_tiled
            variant = "convolution" if is_window else "matrix-matrix"
            return _contraction_pattern(indices, reduction, output, found, variant)
        is_vector = not _moving(indices, first if not own_first else second, output)
        if (own_first or own_second) and is_vector and not _windowed(indices, each, output):
            return _contraction_pattern(indices, reduction, output, found, "matrix-vector")
    return None


def _output_of(indices: Indices, reduction: Reduction) -> Touch | None:
    for write in indices.writes:
        if reduction.index in write.access.sources.reductions or (
            write.array == reduction.target and write.access.kind == "accumulate"
        ):
            return write
    return None


_Factors = tuple[tuple[Touch, ...], tuple[Touch, ...], frozenset[str], frozenset[str]]


def _factors(indices: Indices, reduction: Reduction, output: Touch) -> _Factors | None:
    """Two factors' loads, and the output's axes that only the one or only the other depends on."""
    parts = [(_loads(indices, factor), _dependence(indices, factor, output)) for factor in reduction.factors]
    for index, (first, axes_of_first) in enumerate(parts):
        for second, axes_of_second in parts[index + 1 :]:
            arrays = ({t.array for t in first}, {t.array for t in second})
            if first and second and arrays[0] != arrays[1] and axes_of_first != axes_of_second:
                return first, second, axes_of_first - axes_of_second, axes_of_second - axes_of_first
    return None


def _loads(indices: Indices, factor: Sources) -> tuple[Touch, ...]:
    return tuple(t for t in indices.reads if t.access.index in factor.accesses)


def _dependence(indices: Indices, factor: Sources, output: Touch) -> frozenset[str]:
    """What of the output's index a factor depends on: launch axes and loops.

    A factor that comes from shared memory depends on the thread as its load from there does, and on the block as the
    load that filled it.
    """
    found: set[str] = set()
    from_shared = [
        indices.facts.accesses[i] for i in factor.accesses if indices.facts.accesses[i].space == "shared"
    ]  # fmt: skip
    for touch in _loads(indices, factor):
        element = touch.access.element
        assert element is not None
        if not from_shared:
            found |= indices.axes_of(element)
        else:
            found |= {axis for axis in "xyz" if (c := indices.movement.by_block(element, axis)) is None or c.terms}
        found |= {name for name in touch.atoms & output.atoms if indices.loop(name) is not None}
    for access in from_shared:
        if access.element is not None:
            found |= indices.thread_axes_of(access.element)
    assert output.access.element is not None
    of_output = indices.axes_of(output.access.element) | output.atoms
    return frozenset(found & of_output)


def _moving(indices: Indices, loads: tuple[Touch, ...], output: Touch) -> bool:
    return any(touch.access.element is not None and indices.axes_of(touch.access.element) for touch in loads) or any(
        touch.atoms & output.atoms for touch in loads
    )


def _contraction_pattern(
    indices: Indices, reduction: Reduction, output: Touch, found: _Factors, variant: str
) -> Pattern:  # fmt: skip
    first, second, own_first, own_second = found
    loops = [indices.facts.loops[i] for i in reduction.loops]
    reduced_words = ", ".join(loop.variable or "a loop" for loop in loops)
    left, right = first[0].array, second[0].array
    evidence = [
        f"{output.array} is a sum over {reduced_words} of products of {left} and {right}.",
        f"{left} depends on {_axes_in_words(own_first)} of the output and {right} on {_axes_in_words(own_second)}: "
        "each load serves many outputs." if own_first and own_second else
        f"{left if own_first else right} has the output's rows, {right if own_first else left} is shared by all.",
    ]  # fmt: skip
    if any(access.space == "shared" for access in indices.facts.accesses) and indices.facts.barriers:
        evidence.append("Tiles of the inputs are kept in shared memory.")
        variant += ", tiled"
    roles = {left: "left factor", right: "right factor", output.array: "output"}
    axes = {
        "output": " + ".join(sorted(output.atoms)),
        "reduced": " + ".join(loop.atom for loop in loops if loop.atom),
    }
    return Pattern("contraction", variant, tuple(evidence), roles=roles, axes=axes)


def _axes_in_words(axes: frozenset[str]) -> str:
    return " and ".join(sorted(axes)) or "nothing"


# Windows


def _window(indices: Indices, reduced: list[_Reduced]) -> Pattern | None:
    for each in reduced:
        output = _output_of(indices, each.reduction)
        if output is not None and _windowed(indices, each, output):
            pairs = _windowed(indices, each, output)
            read = next(t for t in each.reads if any(name in t.atoms for _, name in pairs))
            words = ", ".join(f"{indices.name(o)} with {indices.name(k)}" for o, k in pairs)
            evidence = (
                f"{read.array} is joined over a window that moves with the output ({words} move its index alike).",
            )
            roles = {read.array: "neighbourhood", output.array: "output"}
            for other in each.reads:
                roles.setdefault(other.array, "weights" if not other.atoms & output.atoms else "input")
            confidence: Confidence = "likely" if read.is_clamped else "certain"
            axes = {"output": " + ".join(sorted(output.atoms))}
            return Pattern("stencil", "window", evidence, confidence, roles=roles, axes=axes)
    return None


def _windowed(indices: Indices, each: _Reduced, output: Touch) -> list[tuple[str, str]]:
    """Pairs of an output's index and a joined loop that move a load by the same amount."""
    pairs = []
    joined = {indices.facts.loops[i].atom for i in each.reduction.loops} - {""}
    for read in each.reads:
        for atom in sorted(read.atoms & output.atoms - joined):
            for name in sorted(read.atoms & joined):
                loop = indices.loop(name)
                is_plain = loop is not None and loop.sweep == "sequential"
                if is_plain and read.form.terms[name] == read.form.terms[atom]:
                    pairs.append((atom, name))
    return list(dict.fromkeys(pairs))


# Whole reductions


def _whole(indices: Indices, reduced: list[_Reduced]) -> Pattern | None:
    """Everything that all threads read becomes one number, or one a block."""
    writes = indices.writes
    if not writes or any(write.access.element is None for write in writes):
        return None
    if any(indices.thread_axes_of(w.access.element) for w in writes if w.access.element is not None):
        return None
    reads = [read for each in reduced for read in each.reads]
    is_one = all(not write.atoms for write in writes)
    if not is_one and not all(_is_flat(indices, read) for read in reads):
        return None
    joined = next((e.reduction for e in reduced if e.reduction.operation != "recurrence"), reduced[-1].reduction)
    variant = "one result" if is_one else "one result a block"
    is_atomic = any(write.access.is_atomic for write in writes)
    if is_atomic:
        variant += ", atomics"
    arrays = sorted({read.array for read in reads})
    evidence = [
        f"All elements of {' and '.join(arrays)} are joined ({joined.operation}) into {writes[0].array}.",
        f"Its index is {'the same for all threads' if is_one else 'that of the block'}.",
    ]
    scopes = sorted({each.reduction.scope for each in reduced})
    evidence.append(f"Values are joined within: {', '.join(scopes)}.")
    roles = dict.fromkeys(arrays, "reduced") | {write.array: "output" for write in writes}
    axes = {"reduced": " + ".join(sorted({name for read in reads for name in read.atoms}))}
    return Pattern("whole reduction", variant, tuple(evidence), roles=roles, axes=axes)


def _is_flat(indices: Indices, read: Touch) -> bool:
    """Whether loads walk an array from end to end: no row starts at a multiple of a size."""
    bounds = indices.bounds(read)
    lengths = [bounds[name] for name in read.atoms if name in bounds and indices.loop(name) is not None]
    for name, coefficient in read.form.terms.items():
        if not name.startswith(("block.", "global.")):
            continue
        sizes = {each for each in coefficient.names if not each.startswith(("block_size.", "grid_size."))}
        if sizes - set(indices.facts.defaults) or coefficient in lengths:
            return False
    return True


# Row-wise


def _row_wise(indices: Indices, reduced: list[_Reduced]) -> Pattern | None:
    """Each row becomes one value, or is stored again from such values."""
    rows = _rows(indices, reduced)
    if rows is None:
        return None
    row, column, reads = rows
    arrays = sorted({read.array for read in reads})
    sweeps = _sweeps(indices, arrays[0], row)
    made = [write for write in indices.writes if _is_made_of(indices, write)]
    is_normalised = [write for write in made if write.atoms - row]
    per_row = [write for write in made if not write.atoms - row]
    if not is_normalised and not per_row:
        return None
    variant = "normalisation" if is_normalised else "reduction"
    is_online = any(each.reduction.operation == "recurrence" for each in reduced)
    row_words = " + ".join(sorted(map(indices.name, row))) or "the block"
    operations = list(dict.fromkeys(each.reduction.operation for each in reduced))
    evidence = [f"Each row of {' and '.join(arrays)} (row: {row_words}) is joined by {', '.join(operations)}."]
    if is_normalised:
        names = sorted({w.array for w in is_normalised})
        evidence.append(f"{' and '.join(names)} is stored for every element of the row, from the joined value.")
    else:
        evidence.append(f"{per_row[0].array} gets one value a row.")
    evidence.append(_passes_in_words(len(sweeps), is_online=is_online))
    contiguous = [read for read in reads if any(name in read.unit_atoms for name in column)]
    if column and not contiguous:
        variant += " over columns"
        evidence.append("What is joined does not lie side by side in memory.")
    scope = "block" if any(e.reduction.scope in ("block", "warp") for e in reduced) else "thread"
    evidence.append(f"One {'block or warp' if scope == 'block' else 'thread'} works on a row.")
    roles = dict.fromkeys(arrays, "row")
    for write in indices.writes:
        roles[write.array] = "output"
        for read in indices.feeding(write):
            roles.setdefault(read.array, "per column" if not read.atoms & row else "per row")
    axes = {"row": " + ".join(sorted(row)), "column": " + ".join(sorted(column))}
    nested = [e.reduction for e in reduced if e.reduction.scope == "thread" and len(e.reduction.loops) > 1]
    missing = (f"what is joined is walked by {len(nested[0].loops)} loops, one in the other",) if nested else ()
    return Pattern(
        "row-wise", variant, tuple(dict.fromkeys(evidence)), "likely" if missing else "certain", missing,
        roles=roles, axes=axes, passes=len(sweeps),
    )  # fmt: skip


def _passes_in_words(count: int, *, is_online: bool) -> str:
    times = {0: "not in a loop", 1: "once", 2: "twice"}.get(count, f"{count} times")
    ending = ", joining as it goes (one recurrence)" if is_online else ""
    return f"The row is walked {times}{ending}."


def _rows(
    indices: Indices, reduced: list[_Reduced]
) -> tuple[frozenset[str], frozenset[str], list[Touch]] | None:  # fmt: skip
    """What chooses the row, what walks it, and the loads of the rows that are joined."""
    row: frozenset[str] | None = None
    column: set[str] = set()
    kept: list[Touch] = []
    for each in reduced:
        joined = {indices.facts.loops[i].atom for i in each.reduction.loops} - {""}
        for read in each.reads:
            walked = {name for name in read.atoms if name in joined or _walks_row(indices, name)}
            rest = frozenset(read.atoms - walked)
            if not walked or (not rest and not _block_row(indices, read)):
                continue
            row = rest if row is None else row & rest if row & rest else row
            column |= walked
            kept.append(read)
    if row is None or not kept:
        return None
    return row, frozenset(column), kept


def _walks_row(indices: Indices, name: str) -> bool:
    """Whether the threads of a block or warp walk along a row with this atom."""
    loop = indices.loop(name)
    if loop is not None:
        return loop.sweep in ("block-stride", "warp-stride") or loop.sweep == "sequential"
    is_joined_in_block = any(r.scope in ("block", "warp") for r in indices.facts.reductions)
    return is_joined_in_block and name == "thread.x"


def _block_row(indices: Indices, read: Touch) -> bool:
    """Whether each block has one element a thread: `x[global.x]` with a reduction inside the block."""
    return "global.x" in read.atoms


def _is_made_of(indices: Indices, write: Touch) -> bool:
    """Whether a store holds a joined value."""
    is_target = any(each.target == write.array for each in indices.facts.reductions)
    return bool(write.access.sources.reductions) or (is_target and write.access.kind == "accumulate")


def _sweeps(indices: Indices, array: str, row: frozenset[str]) -> set[int]:
    """The loops that walk a row of an array; one that goes on where another ended is the same walk."""
    found: set[int] = set()
    for read in indices.reads:
        if read.array == array and row <= read.atoms:
            loops = [i for i in read.access.loops if indices.facts.loops[i].atom in read.atoms]
            found |= set(loops[:1])
    return {i for i in found if not any(_continues(indices, i, j) for j in found if j < i)}


def _continues(indices: Indices, index: int, before: int) -> bool:
    """Whether a loop starts where an earlier one ended: the rest that vectors leave."""
    start, bound = indices.facts.loops[index].start, indices.facts.loops[before].bound
    if start is None or bound is None or not bound.terms:
        return False
    moving = [name for name in start.names if indices.facts.atoms[name].kind != "size"]
    return start.without(moving) == bound


def _why_not_row_wise(indices: Indices) -> tuple[str, ...]:
    if not any(_is_made_of(indices, write) for write in indices.writes):
        return ("no store is made of what is joined",)
    return ("what chooses the row and what walks it could not be told apart",)
