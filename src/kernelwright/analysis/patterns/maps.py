"""Patterns without a reduction: elementwise maps, transposes, stencils."""

from __future__ import annotations

from kernelwright.analysis.facts import Confidence
from kernelwright.analysis.patterns.indices import Indices, Touch, difference, steps_apart
from kernelwright.analysis.patterns.types import NearMiss, Pattern, PatternKind
from kernelwright.analysis.polynomial import Polynomial


def recognise_map(indices: Indices) -> Pattern | NearMiss:
    """A kernel whose every result is made of a fixed number of loads."""
    missing = _why_no_map(indices)
    if missing:
        return NearMiss("elementwise", tuple(missing))
    return _transpose(indices) or _stencil(indices) or _tiled_stencil(indices) or _elementwise(indices)


def _why_no_map(indices: Indices) -> list[str]:
    facts, missing = indices.facts, []
    if not indices.writes:
        return ["no store whose element is known"]
    missing += [f"{touch.array} is changed atomically" for touch in indices.writes if touch.access.is_atomic]
    for touch in indices.writes:
        if not touch.atoms:
            missing.append(f"{touch.array} is stored at one place, by all threads")
        if indices.needs_earlier_iteration(touch):
            missing.append(f"{touch.array} is made of what an earlier iteration left")
        extra = [i for i in touch.access.loops if facts.loops[i].atom not in touch.atoms]
        if extra and (indices.feeding(touch) or touch.access.kind == "accumulate"):
            missing.append(f"{touch.array} is stored again in every iteration of a loop")
    if facts.exchanges:
        missing.append("threads pass values to each other")
    if any(access.space == "shared" and access.is_atomic for access in facts.accesses):
        missing.append("threads count in shared memory")
    return missing


# Stencils


def _stencil(indices: Indices) -> Pattern | None:
    """Loads of one array at places that different threads share."""
    for write in indices.writes:
        by_array: dict[str, list[Touch]] = {}
        for read in indices.feeding(write):
            by_array.setdefault(read.array, []).append(read)
        for array, reads in by_array.items():
            offsets = _neighbours(indices, reads)
            if offsets:
                return _stencil_pattern(indices, write, array, reads, offsets)
    return None


def _tiled_stencil(indices: Indices) -> Pattern | None:
    """Neighbours that come from a tile in shared memory."""
    for name, array in indices.facts.arrays.items():
        reads = list(indices.local_reads(name)) if array.space == "shared" else []
        offsets = {str(d) for each in reads if (d := difference(each, reads[0])) is not None and d.terms}
        if not offsets or indices.is_kept_in_place(name) or not indices.facts.barriers:
            continue
        write = indices.writes[0]
        loaded = sorted({each.array for each in indices.feeding(write)})
        evidence = (
            f"Each element of {write.array} is made of {len(offsets) + 1} neighbours in the tile {name} in shared "
            f"memory: beside the first, {'; '.join(sorted(offsets))}.",
            f"The tile is filled from {' and '.join(loaded)}.",
        )
        roles = {write.array: "output"} | dict.fromkeys(loaded, "neighbourhood")
        missing = ("that the tile holds the neighbours of the thread's own element is not checked",)
        axes = {"output": " + ".join(sorted(write.atoms))}
        return Pattern("stencil", "tiled", evidence, "likely", missing, roles=roles, axes=axes)
    return None


def _neighbours(indices: Indices, reads: list[Touch]) -> list[str]:
    """How loads are apart, in words, where one thread's is another's."""
    found: dict[str, None] = {}
    first = reads[0]
    for read in reads[1:]:
        distance = difference(read, first)
        if distance is None or not distance.terms:
            continue
        moving = frozenset(name for name in first.atoms if _is_walked_by_threads(indices, name))
        bounds = indices.bounds(first) | indices.bounds(read)
        steps = steps_apart(distance, first.form, bounds, moving)
        if steps:
            words = [f"{indices.name(atom)} {_signed(step)}" for atom, step in sorted(steps.items())]
            found[", ".join(words)] = None
    return list(found)


def _is_walked_by_threads(indices: Indices, atom: str) -> bool:
    loop = indices.loop(atom)
    return loop is None or loop.sweep != "sequential" or loop.start is not None


def _signed(step: Polynomial) -> str:
    text = str(step)
    return text if text.startswith("-") else f"+{text}"


def _stencil_pattern(
    indices: Indices, write: Touch, array: str, reads: list[Touch], offsets: list[str]
) -> Pattern:  # fmt: skip
    is_clamped = any(read.is_clamped for read in reads)
    evidence = [
        f"Each element of {write.array} is made of {len(offsets) + 1} neighbours in {array}: "
        f"beside the first, {'; '.join(offsets[:8])}."
    ]
    if is_clamped:
        evidence.append(f"The index of {array} is kept inside its range at the borders.")
    roles = {write.array: "output", array: "neighbourhood"}
    for read in indices.feeding(write):
        roles.setdefault(read.array, relation(indices, read, write)[0])
    missing = _conditions(indices)
    if any(read.array == write.array for read in indices.feeding(write)):
        missing = (f"{write.array} is read and written: another thread's result may be read", *missing)
    confidence: Confidence = "likely" if missing or is_clamped else "certain"
    if any(read.array == write.array for read in indices.feeding(write)):
        confidence = "guess"
    axes = {"output": " + ".join(sorted(write.atoms))}
    return Pattern("stencil", "", tuple(evidence), confidence, missing, roles=roles, axes=axes)


# Transposes


def _transpose(indices: Indices) -> Pattern | None:
    """Stores whose fastest index is another than that of the loads they are made of."""
    for write in indices.writes:
        for read in indices.feeding(write):
            if read.array == write.array:
                continue
            if _is_permuted(indices.aligned(read, write), write):
                return _transpose_pattern(indices, read, write, "")
            if _is_tiled_transpose(indices, read, write):
                return _transpose_pattern(indices, read, write, "tiled")
    return None


def _is_permuted(read: Touch, write: Touch) -> bool:
    if read.atoms != write.atoms or len(read.atoms) < 2 or not read.unit_atoms or not write.unit_atoms:
        return False
    return read.unit_atoms != write.unit_atoms


def _is_tiled_transpose(indices: Indices, read: Touch, write: Touch) -> bool:
    """Blocks change places, and shared memory does the rest: each side is contiguous in its own order."""
    has_tile = any(access.space == "shared" for access in indices.facts.accesses)
    if not has_tile or not indices.facts.barriers:
        return False
    swapped = 0
    for axis in "xy":
        by_read = read.form.terms.get(f"block.{axis}", read.form.terms.get(f"global.{axis}"))
        by_write = write.form.terms.get(f"block.{axis}", write.form.terms.get(f"global.{axis}"))
        if by_read is None or by_write is None:
            return False
        swapped += _degree(by_read) != _degree(by_write)
    return swapped == 2


def _degree(value: Polynomial) -> int:
    """Degree in sizes of arrays: launch sizes do not count."""
    return max((sum(not name.startswith("block_size.") for name in m) for m, _ in value.terms), default=0)


def _transpose_pattern(indices: Indices, read: Touch, write: Touch, variant: str) -> Pattern:
    def order(touch: Touch) -> str:
        terms = sorted(touch.form.terms.items(), key=lambda term: (_degree(term[1]), str(term[1])), reverse=True)
        return ", ".join(f"{indices.name(name)}: {c}" for name, c in terms)

    evidence = [
        f"{read.array} is read at {{{order(read)}}} and {write.array} written at {{{order(write)}}}: "
        "the fastest index is another."
    ]
    contiguity = {"read": read.access.contiguity, "write": write.access.contiguity}
    evidence.append(f"Along x the load is {contiguity['read']} and the store {contiguity['write']}.")
    if variant:
        evidence.append("A tile in shared memory stands between them.")
    others = [each for each in indices.feeding(write) if each.array != read.array]
    if len(write.atoms) > 2 and not variant:
        variant = "permutation"
    roles = {read.array: "permuted", write.array: "output"}
    for each in others:
        roles.setdefault(each.array, relation(indices, each, write)[0])
    return Pattern("transpose", variant, tuple(evidence), roles=roles, axes={"output": " + ".join(sorted(write.atoms))})


# Elementwise maps


def relation(indices: Indices, read: Touch, write: Touch) -> tuple[str, str]:
    """How a load's element follows from the store's: a word, and a sentence's end."""
    read = indices.aligned(read, write)
    if read.form == write.form:
        return "same index", "at the same index"
    names = read.atoms - write.atoms
    if names:
        return "other", f"at an index with {', '.join(sorted(map(indices.name, names)))} in it"
    left_out = write.atoms - read.atoms
    if not read.atoms:
        return "broadcast over everything", "at one place for all"
    if left_out:
        words = " and ".join(sorted(map(indices.name, left_out)))
        return f"broadcast over {words}", f"without {words}"
    if read.form.terms == write.form.terms:
        return "shifted", f"shifted by {read.form.offset - write.form.offset}"
    if read.form.offset.terms:
        return "strided", f"at a stride, from {read.form.offset} on"
    return "strided", "at a stride"


def _elementwise(indices: Indices) -> Pattern | NearMiss:
    roles: dict[str, str] = {}
    evidence: list[str] = []
    missing: list[str] = []
    kind: PatternKind = "elementwise"
    for write in indices.writes:
        index = ", ".join(f"{indices.name(name)}: {c}" for name, c in write.form.terms.items())
        evidence.append(f"{write.array} is stored at {{{index}}}.")
        roles[write.array] = "same index, in place" if write.access.kind == "accumulate" else "output"
    missing += [
        f"{name} in {array.space} memory is loaded at another element than it was stored at"
        for name, array in indices.facts.arrays.items()
        if array.space in ("shared", "private") and not indices.is_kept_in_place(name)
    ]
    for write in indices.writes:
        for read in indices.feeding(write):
            word, sentence = relation(indices, read, write)
            if word == "other":
                missing.append(f"{read.array} is read {sentence}, which {write.array} has not")
            own = [each.form for each in indices.writes if each.array == read.array]
            if own and indices.aligned(read, write).form not in own:
                missing.append(f"{read.array} is read {sentence} and written: threads may meet")
            evidence.append(f"{read.array} is read {sentence}.")
            roles[read.array] = _joined_role(roles.get(read.array), word, indices, read, write)
    if missing:
        return NearMiss(kind, tuple(dict.fromkeys(missing)))
    is_fill = not any(indices.feeding(w) or w.access.kind == "accumulate" for w in indices.writes)
    variant = "fill" if is_fill else ""
    if any(role == "strided halves" for role in roles.values()):
        variant = "strided halves"
    unsure = _unsure(indices)
    confidence: Confidence = "likely" if unsure else "certain"
    axes = {"output": " + ".join(sorted(indices.writes[0].atoms))}
    return Pattern(kind, variant, tuple(dict.fromkeys(evidence)), confidence, unsure, roles=roles, axes=axes)


def _unsure(indices: Indices) -> tuple[str, ...]:
    found = []
    if any(access.space == "shared" for access in indices.facts.accesses):
        found.append("values go through shared memory, at the thread's own element")
    if any(touch.is_clamped for touch in indices.touches.values()):
        found.append("an index is kept inside its range")
    return (*found, *_conditions(indices))


def _conditions(indices: Indices) -> tuple[str, ...]:
    """Stores that do not happen for every element, by conditions that are more than bounds."""
    found = []
    for write in indices.writes:
        others = [each for each in indices.writes if each is not write and each.form == write.form]
        for text, kind in indices.conditions(write):
            opposites = [(t, k == "branch") for each in others for t, k in indices.conditions(each)]
            if (text, kind != "branch") not in opposites:
                found.append(f"{write.array} is stored only where `{text}` decides it")
    return tuple(dict.fromkeys(found))


def _joined_role(before: str | None, word: str, indices: Indices, read: Touch, write: Touch) -> str:
    """The role of an array that is read in several ways: `strided halves` for silu_and_mul's input."""
    if before is None:
        return word
    if before == "output" or before.endswith("in place"):
        is_one = word == "same index" and not before.startswith("several")
        return "same index, in place" if is_one else "several elements, in place"
    if {before, word} <= {"strided", "strided halves"}:
        offset = read.form.offset
        is_half = any(offset + offset == c for c in read.form.terms.values()) or _is_pair(indices, read, write)
        return "strided halves" if offset.terms and is_half else before or word
    return before if before == word else f"{before}; {word}"


def _is_pair(indices: Indices, read: Touch, write: Touch) -> bool:
    """Whether an offset is half of what a row of loads has more than a row of stores."""
    for name, coefficient in read.form.terms.items():
        own = write.form.terms.get(name)
        if own is not None and own + own == coefficient and read.form.offset == own:
            return True
    return False
