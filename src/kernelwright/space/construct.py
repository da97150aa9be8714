"""From parameters and constraints to a diagram: fill in sizes, split, filter single values, group, order, build."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelwright.errors import SpecError
from kernelwright.problem.config import Config, Value
from kernelwright.problem.expressions.columns import Column, evaluate_column, pack, truths
from kernelwright.problem.expressions.syntax import ExpressionNode
from kernelwright.space.automaton import TABLE_CELLS, Component, Domain, Goal, TooManyStates, may_fail
from kernelwright.space.dense import Array
from kernelwright.space.diagram import Diagram, build_diagram
from kernelwright.space.ordering import order_parameters
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.space.residual import conjuncts, flattened, is_boolean, lowered, substitute

Names = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Conjunct:
    """One conjunct of one constraint under one mapping of sizes and limits; in the order of evaluation."""

    original: ExpressionNode
    """As declared, sizes filled in."""
    tree: ExpressionNode
    """The same with flattened sums and products."""
    constraint: int
    mapping: int


@dataclass(frozen=True, slots=True)
class Declared:
    """What a space is made from, checked."""

    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...]
    names: tuple[Names, ...]
    columns: tuple[Column, ...]
    """Each parameter's values, as the evaluator wants them."""

    @property
    def index_of(self) -> dict[str, int]:
        """Position of each parameter, by name."""
        return {parameter.name: index for index, parameter in enumerate(self.parameters)}


def declare(parameters: Sequence[Parameter], constraints: Sequence[Constraint], names: Sequence[Names]) -> Declared:
    """Check what was declared.

    Raises:
        SpecError: a parameter without values or with repeated ones, two of one name, a constraint with an unknown
        name or
            one that is no condition.
    """
    seen: set[str] = set()
    for parameter in parameters:
        if parameter.name in seen:
            raise SpecError(f"two parameters are named {parameter.name!r}", location=parameter.location)
        seen.add(parameter.name)
        if not parameter.values:
            raise SpecError(f"parameter {parameter.name!r} has no values", location=parameter.location)
        if len(set(parameter.values)) < len(parameter.values):
            raise SpecError(f"parameter {parameter.name!r} lists a value twice", location=parameter.location)
    columns = tuple(pack(parameter.values, (len(parameter.values),)) for parameter in parameters)
    declared = Declared(tuple(parameters), tuple(constraints), tuple(names) or ({},), columns)
    booleans = frozenset(p.name for p in parameters if all(isinstance(value, bool) for value in p.values))
    for constraint in constraints:
        for mapping in declared.names:
            _check(constraint, seen, booleans, mapping)
    return declared


def _check(constraint: Constraint, parameters: set[str], booleans: frozenset[str], mapping: Names) -> None:
    expression = constraint.expression
    if not expression.names <= parameters:
        try:
            expression.check_names({**mapping, **dict.fromkeys(parameters, 0)})
        except SpecError as error:
            message = f"constraint {constraint.name!r}: {error.message}"
            raise SpecError(message, hint=error.hint, location=error.location) from None
        booleans = booleans | {name for name in expression.names if isinstance(mapping.get(name), bool)}
    if not is_boolean(expression.tree, booleans):
        raise SpecError(
            f"constraint {constraint.name!r} is {expression.text!r}, which is a value and not a condition",
            hint="compare it, as in `d % VEC == 0`",
            location=expression.location,
        )


def make_atoms(declared: Declared) -> tuple[Conjunct, ...]:
    """All distinct conjuncts of all constraints under all mappings, in the order of evaluation.

    An atom that always holds is left out; one without names is false, or has no value.
    """
    if not declared.constraints:
        return ()
    sizes = [parameter.values for parameter in declared.parameters]
    single = {p.name: values[0] for p, values in zip(declared.parameters, sizes, strict=True) if len(values) == 1}
    largest = {
        parameter.name: max(abs(int(value)) for value in values)
        for parameter, values in zip(declared.parameters, sizes, strict=True)
        if all(isinstance(value, int) for value in values)
    }
    variable = {parameter.name for parameter in declared.parameters} - single.keys()
    atoms: dict[ExpressionNode, Conjunct] = {}
    for index, constraint in enumerate(declared.constraints):
        used = constraint.expression.names - variable
        done: set[tuple[tuple[type, Value], ...]] = set()
        for number, mapping in enumerate(declared.names):
            constants = {name: single[name] if name in single else mapping[name] for name in used}
            signature = tuple((type(value), value) for value in constants.values())
            if signature in done:
                continue
            done.add(signature)
            for part in conjuncts(substitute(constraint.expression.tree, constants)):
                if part.op == "const" and part.value:
                    continue
                if part not in atoms:
                    atoms[part] = Conjunct(part, flattened(part, largest), index, number)
    return tuple(atoms.values())


def build(
    declared: Declared,
    atoms: Sequence[Conjunct],
    *,
    failing: ExpressionNode | None = None,
    max_edges: int | None = None,
) -> Diagram:
    """The diagram of all configurations for which `atoms` hold (and `failing` has no value, when given).

    Combinations for which an atom has no value are left out, and the atom is listed in the diagram's `failing`.

    Raises:
        TooManyStates: `max_edges` or another limit would be passed.
    """
    if any(not atom.tree.names for atom in atoms):
        return Diagram((), 0, _suspects(declared, atoms))
    allowed, unary_failing = _filter_values(declared, atoms)
    if any(indices.size == 0 for indices in allowed):
        return Diagram((), 0, _suspects(declared, atoms))
    index_of = declared.index_of
    wide = [atom for atom in atoms if len(atom.tree.names) > 1]
    domains = []
    narrowed: set[str] = set()
    for parameter, column, indices in zip(declared.parameters, declared.columns, allowed, strict=True):
        if indices.size < len(parameter.values):
            assert isinstance(column.values, np.ndarray)
            column = Column(column.values[indices])  # noqa: PLW2901
            narrowed.add(parameter.name)
        domains.append(Domain(parameter.name, column))
    # A value dropped here may be one for which an atom declared earlier has no value.
    hidden = _suspects(declared, [atom for atom in wide if atom.tree.names & narrowed]) if narrowed else ()
    scopes = [frozenset(index_of[name] for name in atom.tree.names) for atom in wide]
    counts = [int(indices.size) for indices in allowed]
    failing_scope = frozenset(index_of[name] for name in failing.names) if failing else frozenset()
    order = order_parameters(counts, [*scopes, failing_scope] if failing_scope else scopes)
    place = {parameter: position for position, parameter in enumerate(order)}
    components: list[tuple[tuple[int, ...], Component]] = []
    for scope, members in _grouped(scopes, counts):
        ordered = tuple(sorted(scope, key=place.__getitem__))
        goal = Goal(tuple(wide[member].tree for member in members))
        components.append((ordered, Component(goal, [domains[index] for index in ordered])))
    if failing is not None and failing_scope:  # without names it has no value anywhere
        ordered = tuple(sorted(failing_scope, key=place.__getitem__))
        goal = Goal((failing,), is_failing=True)
        components.append((ordered, Component(goal, [domains[index] for index in ordered])))
    diagram = build_diagram(domains, allowed, components, order, max_edges=max_edges)
    return Diagram(diagram.layers, diagram.count, unary_failing + hidden + diagram.failing)


def too_large(declared: Declared, atoms: Sequence[Conjunct], error: TooManyStates) -> SpecError:
    """The error for a space that cannot be known exactly within the limits, naming what joins too many values."""
    trees = {tree for goal in error.goals for tree in goal.atoms}
    guilty = sorted({atom.constraint for atom in atoms if atom.tree in trees or atom.original in trees})
    used = frozenset().union(*(tree.names for tree in trees))
    joined = [parameter for parameter in declared.parameters if parameter.name in used]
    if not guilty:
        count = sum(len(parameter.values) for parameter in declared.parameters)
        return SpecError(f"the parameters have {count:,} values in all: too many", hint="give them fewer values")
    names = [repr(declared.constraints[index].name) for index in guilty]
    count = math.prod(len(parameter.values) for parameter in joined)
    verb = "joins" if len(names) == 1 else "join"
    return SpecError(
        f"constraint{'' if len(names) == 1 else 's'} {_and(names)} {verb} {_and([each.name for each in joined])}: "
        f"{count:,} combinations: too large to know exactly",
        hint="give these parameters fewer values (a step in `range`, or `powers_of_two`), or split the constraint into "
        "conditions that join fewer of them",
        location=next((declared.constraints[index].expression.location for index in guilty), None),
    )


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _suspects(declared: Declared, atoms: Sequence[Conjunct]) -> tuple[Goal, ...]:
    """Atoms that might have no value for some configuration."""
    domains = [Domain(p.name, column) for p, column in zip(declared.parameters, declared.columns, strict=True)]
    return tuple(Goal((atom.tree,)) for atom in atoms if may_fail(atom.tree, domains))


def _filter_values(declared: Declared, atoms: Sequence[Conjunct]) -> tuple[list[Array], tuple[Goal, ...]]:
    """For each parameter the indices of the values that atoms over it alone allow, and the atoms without a value."""
    masks: list[Array | None] = [None] * len(declared.parameters)
    failing: list[Goal] = []
    index_of = declared.index_of
    for atom in atoms:
        if len(atom.tree.names) != 1:
            continue
        (name,) = atom.tree.names
        index = index_of[name]
        mask = masks[index]
        result = truths(evaluate_column(lowered(atom.tree), {name: declared.columns[index]}))
        holds = np.broadcast_to(np.asarray(result.values, np.bool_), len(declared.parameters[index].values))
        if result.bad is not False:
            bad = np.asarray(result.bad)
            if np.any(bad if mask is None else bad & mask):
                failing.append(Goal((atom.tree,)))
            holds = holds & ~bad
        masks[index] = holds if mask is None else mask & holds
    allowed = [
        np.arange(len(parameter.values)) if mask is None else np.flatnonzero(mask)
        for parameter, mask in zip(declared.parameters, masks, strict=True)
    ]
    return allowed, tuple(failing)


def _grouped(scopes: Sequence[frozenset[int]], counts: Sequence[int]) -> list[tuple[frozenset[int], list[int]]]:
    """Atoms that are cheap to decide together, as one component.

    Those of equal scope, and those whose joint truth table stays small. Joint components are smaller than their
    product, and see conflicts between their atoms early.
    """
    by_scope: dict[frozenset[int], list[int]] = {}
    for member, scope in enumerate(scopes):
        by_scope.setdefault(scope, []).append(member)

    def cells(scope: frozenset[int]) -> int:
        return math.prod([counts[index] for index in scope])

    groups = sorted(by_scope.items(), key=lambda item: (cells(item[0]), sorted(item[0])))
    done: list[tuple[frozenset[int], list[int]]] = []
    while groups:
        scope, members = groups.pop(0)
        best: tuple[int, int] | None = None
        for position, (other, _) in enumerate(groups):
            if scope & other:
                union = cells(scope | other)
                if union <= max(TABLE_CELLS, cells(other)) and (best is None or union < best[0]):
                    best = (union, position)
        if best is None:
            done.append((scope, sorted(members)))
        else:
            other, their_members = groups[best[1]]
            groups[best[1]] = (scope | other, members + their_members)
    return done


def check_failures(declared: Declared, atoms: Sequence[Conjunct], diagram: Diagram) -> None:
    """Refuse constraints without a value on a configuration that everything declared before them allows.

    Raises:
        SpecError: as evaluating the constraint on such a configuration raises.
    """
    suspects = {atom for goal in diagram.failing for atom in goal.atoms}
    if not suspects:
        return
    for position, atom in enumerate(atoms):
        if atom.tree not in suspects:
            continue
        found = build(declared, atoms[:position], failing=atom.original)
        if found.count:
            row = found.rows_at(np.zeros(1, np.int64))[0]
            raise_failure(declared, atom, config_of(declared, row))


def raise_failure(declared: Declared, atom: Conjunct, config: Config) -> None:
    """Evaluate the atom's constraint on a configuration for which it has no value, and say which constraint it is."""
    constraint = declared.constraints[atom.constraint]
    try:
        constraint.expression.evaluate({**declared.names[atom.mapping], **config})
    except SpecError as error:
        hint = error.hint or "guard it, as in `VEC != 0 and d % VEC == 0`, or leave the value out"
        message = f"constraint {constraint.name!r}: {error.message}"
        raise SpecError(message, hint=hint, location=error.location) from None


def config_of(declared: Declared, row: Array) -> Config:
    """The config of one row of value indices."""
    return Config({p.name: p.values[index] for p, index in zip(declared.parameters, row.tolist(), strict=True)})
