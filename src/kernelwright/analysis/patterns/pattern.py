"""Which well-known shape a kernel has: a map, a row-wise reduction, a transpose, a stencil, a contraction.

A pattern is a statement about the whole kernel, so whatever is not understood makes it `generic`: then `near` says
which pattern it would be, and what is missing.
"""

from __future__ import annotations

from kernelwright.analysis.analysis import Analysis
from kernelwright.analysis.patterns.indices import Indices
from kernelwright.analysis.patterns.maps import recognise_map
from kernelwright.analysis.patterns.reductions import recognise_reduction
from kernelwright.analysis.patterns.types import NearMiss, Pattern

__all__ = ["NearMiss", "Pattern", "recognise"]


def recognise(analysis: Analysis) -> Pattern:
    """The pattern of one kernel, with the evidence and what is missing."""
    indices = Indices(analysis)
    blockers = _blockers(analysis, indices)
    if not indices.writes and not blockers:
        return Pattern("generic", evidence=("It stores nothing in global memory.",))
    gathered = None if _is_beside_rows(indices) else _gather(indices)
    found = gathered or recognise_reduction(indices) or recognise_map(indices)
    if blockers and isinstance(found, Pattern):
        found = NearMiss(found.kind, blockers)
    return Pattern("generic", near=(found,), missing=blockers) if isinstance(found, NearMiss) else found


def _blockers(analysis: Analysis, indices: Indices) -> tuple[str, ...]:
    """Why no statement about the whole kernel can be made."""
    source = analysis.source
    found = [f"line {each.span.line(source)} is not understood: {each.reason}" for each in analysis.facts.opaque]
    for access in indices.unplaced:
        line = access.span.line(source)
        why = access.reason or "its index is a product of indices"
        found.append(f"line {line}: which element of {access.array} is touched is not known ({why})")
    for touch in indices.touches.values():
        lost = [name for name in touch.atoms if not indices.is_followed(name) and not indices.is_data(name)]
        if lost:
            line = touch.access.span.line(source)
            found.append(f"line {line}: the index of {touch.array} changes in a way that is not followed")
    found += [
        f"line {loop.span.line(source)}: the loop may end early, by a condition on data"
        for loop in analysis.facts.loops
        if loop.ends_early
    ]
    return tuple(dict.fromkeys(found))


def _is_beside_rows(indices: Indices) -> bool:
    """Whether all that is gathered are single elements, outside of the loops that reduce, of arrays nobody writes."""
    facts = indices.facts
    written = {write.array for write in indices.writes}
    reads = [t for t in indices.reads if any(indices.is_data(name) for name in t.atoms)]
    if not facts.reductions or any(t.access.loops or t.array in written for t in reads):
        return False
    if any(indices.is_data(name) for t in indices.writes for name in t.atoms):
        return False
    reduced = {index for each in facts.reductions for index in each.sources.accesses}
    return not any(t.access.index in reduced for t in reads)


def _gather(indices: Indices) -> Pattern | None:
    """Indices that were read from memory."""
    reads = [t for t in indices.reads if any(indices.is_data(name) for name in t.atoms)]
    writes = [t for t in indices.writes if any(indices.is_data(name) for name in t.atoms)]
    if not reads and not writes:
        return None
    evidence, roles = [], {}
    for touch, word in [*((t, "gathered") for t in reads), *((t, "scattered") for t in writes)]:
        tables = sorted(
            {indices.facts.accesses[index].array for name in touch.atoms for index in _read_for(indices, name)}
        )
        roles[touch.array] = word
        where = "read" if word == "gathered" else "written"
        evidence.append(f"{touch.array} is {where} at an index that comes from {' and '.join(tables) or 'memory'}.")
        for table in tables:
            roles.setdefault(table, "index")
    variant = "scatter" if writes else "gather"
    if writes and any(t.access.is_atomic for t in writes):
        variant = "scatter with atomics"
    elif any(indices.facts.reductions):
        variant += " with a reduction"
    return Pattern("gather/scatter", variant, tuple(dict.fromkeys(evidence)), roles=roles)


def _read_for(indices: Indices, atom: str) -> frozenset[int]:
    return indices.facts.atoms[atom].sources.accesses
