"""Why a space is empty: constraints that cannot hold together, none of them needless."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.errors import EmptySpace
from kernelwright.space.automaton import TooManyStates
from kernelwright.space.construct import Conjunct, Declared, build

_MAX_EDGES = 2_000_000
"""Each try stops here; a constraint whose removal cannot be judged stays in the message."""


def explain_empty(declared: Declared, atoms: Sequence[Conjunct]) -> EmptySpace:
    """The error for an empty space, naming a minimal conflicting set of constraints with the place of each."""
    core = conflicting(declared, atoms)
    parts = []
    for index in core:
        constraint = declared.constraints[index]
        location = constraint.expression.location
        place = f"{location}: " if location else ""
        parts.append(f'"{constraint.name}" ({place}{constraint.expression.text})')
    used = sorted(frozenset().union(*[declared.constraints[index].expression.names for index in core]))
    parameters = {parameter.name: parameter for parameter in declared.parameters}
    known = []
    for name in used:
        if name in parameters:
            listed = ", ".join(map(repr, parameters[name].values[:12]))
            known.append(f"{name} in ({listed}{', ...' if len(parameters[name].values) > 12 else ''})")
        else:
            values = dict.fromkeys(mapping[name] for mapping in declared.names)
            known.append(f"{name} = {' or '.join(map(repr, values))}")
    message = "no configuration satisfies: " + " together with ".join(parts)
    return EmptySpace(
        message + (f"\n    where {'; '.join(known)}" if known else ""),
        hint="add values to a parameter, or relax one of these constraints",
        location=next((declared.constraints[i].expression.location for i in core), None),
    )


def conflicting(declared: Declared, atoms: Sequence[Conjunct]) -> list[int]:
    """Indices of constraints that no configuration satisfies together; each one is needed for that."""
    core = sorted({atom.constraint for atom in atoms})
    for index in reversed(core.copy()):
        fewer = [other for other in core if other != index]
        chosen = [atom for atom in atoms if atom.constraint in fewer]
        try:
            is_empty = build(declared, chosen, max_edges=_MAX_EDGES).count == 0
        except TooManyStates:
            continue
        if is_empty:
            core = fewer
    return core
