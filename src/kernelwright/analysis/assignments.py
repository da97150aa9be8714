"""What assignments do: to variables, to elements of arrays, and to values that loops join."""

from __future__ import annotations

from kernelwright.analysis.calls import Calls
from kernelwright.analysis.evaluator import Evaluator
from kernelwright.analysis.facts import Sources
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial
from kernelwright.analysis.state import Integer, State
from kernelwright.analysis.values import Pointer, Value
from kernelwright.analysis.wraparound import INT, common
from kernelwright.source import nodes
from kernelwright.source.preprocess import Place
from kernelwright.source.reduction_statements import Join, join_of


class Assignments:
    """Follows the assignments of one kernel."""

    def __init__(self, state: State, expressions: Evaluator, calls: Calls) -> None:
        self.state = state
        self.expressions = expressions
        self.calls = calls

    def assign(self, node: nodes.Assign) -> Value:
        """`=` and the compound assignments."""
        join = join_of(node)
        if join is not None and join.operation == "recurrence":
            return self._recurrence(node)
        if join is not None:
            values = self.expressions.parts(node.value, join.operands)
            values = [self._adjusted(node.target, *each) for each in zip(join.operands, values, strict=True)]
            return self.join(node.target, join, values, node.place)
        if node.operator == "=":
            value = self.expressions.value(node.value)
            self.expressions.store(node.target, value, node.place, self.expressions.integers.of(node.value))
            return value
        right = self._adjusted(node.target, node.value, self.expressions.value(node.value))
        if isinstance(node.target, nodes.Name):
            left = self.expressions.named(node.target)
            kind = self._common(node.target, node.value)
            value = self._moved_or_combined(node.operator[:-1], left, right, kind)
            self.expressions.set_variable(node.target.name, value, kind)
            return value
        return self._accumulate(node.target, right, node.place)

    def _common(self, *operands: nodes.Expression) -> Integer | None:
        return common(*map(self.expressions.integers.of, operands))

    def _adjusted(self, target: nodes.Expression, operand: nodes.Expression, value: Value) -> Value:
        """A value as it is calculated with a target's."""
        kind = self.expressions.integers.of(operand)
        return self.expressions.integers.converted(value, kind, self._common(target, operand))

    def _moved_or_combined(self, operator: str, left: Value, right: Value, kind: Integer | None = INT) -> Value:
        if isinstance(left, Pointer):
            return self.expressions.pointer_arithmetic(operator, left, right)
        return self.expressions.combined(operator, left, right, kind)

    def update(self, node: nodes.Update) -> Value:
        """`++` and `--`."""
        operator = node.operator[0]
        if isinstance(node.operand, nodes.Name):
            before = self.expressions.named(node.operand)
            after = self._moved_or_combined(operator, before, ONE)
            self.expressions.set_variable(node.operand.name, after, self._common(node.operand))
            return after if node.is_prefix else before
        return self._accumulate(node.operand, ONE, node.place)

    def _accumulate(self, target: nodes.Expression, value: Value, place: Place) -> Value:
        """`target op= value` for an element of an array."""
        pointer = self.expressions.pointer_to(target)
        if pointer is None:
            self.expressions.store(target, value, place)
            return self.expressions.unknown(value, is_float=True)
        access = self.state.access(pointer, "accumulate", place, sources=self.state.atoms.sources(value))
        return self._after_adding(access.index, value)

    def _after_adding(self, access: int, value: Value) -> Polynomial:
        """What an element holds after something was added to it."""
        sources = Sources(frozenset((access,))) | self.state.atoms.sources(value)
        return self.state.atoms.fresh("float", sources)

    def join(self, target: nodes.Expression, join: Join, values: list[Value], place: Place) -> Value:
        """`target = target op operand` with the operands' values: perhaps a reduction."""
        atoms = self.state.atoms
        factors: tuple[Sources, ...] = ()
        for value in values if join.is_product else values[:1] if len(values) == 1 else ():
            factors += atoms.factors(value)
        joined = values[0]
        for value in values[1:]:
            joined = self.expressions.combined("*" if join.is_product else "+", joined, value)
        if isinstance(target, nodes.Name):
            return self._join_variable(target.name, join, joined, factors, place)
        pointer = self.expressions.pointer_to(target)
        if pointer is None:
            self.expressions.store(target, joined, place)
            return joined
        access = self.state.access(pointer, "accumulate", place, sources=atoms.sources(joined))
        self.calls.reduction_into(access, join.operation, factors if len(factors) > 1 else (), place)
        return self._after_adding(access.index, joined)

    def _join_variable(
        self, name: str, join: Join, joined: Value, factors: tuple[Sources, ...], place: Place
    ) -> Value:  # fmt: skip
        state = self.state
        before = state.variables.get(name, ZERO)
        if not isinstance(before, Pointer):
            loops = state.loops_around(name)
            sources = state.atoms.sources(joined)
            is_followed = bool(join.operator) and not state.atoms.is_float(before) and not sources.accesses
            if not is_followed:
                reduction = self.calls.reduction_of(
                    name,
                    join.operation,
                    loops,
                    sources,
                    factors,
                    place,
                    is_exchange=join.is_exchange or state.is_exchanged(joined),
                )
                merged = state.atoms.sources(before) | sources | reduction
                value = state.atoms.fresh("float" if self._holds_floats(name, before) else "unknown", merged)
                state.variables[name] = value
                return value
        value_ = (
            self._moved_or_combined(join.operator, before, joined)
            if join.operator
            else self.expressions.unknown(joined)
        )
        self.expressions.set_variable(name, value_, self._common(nodes.Name(place, name)))
        return value_

    def _recurrence(self, node: nodes.Assign) -> Value:
        """`s = s * scale + e`: joined over loops, but not by one operation."""
        value, target = self.expressions.value(node.value), node.target
        if not isinstance(target, nodes.Name):
            if node.operator != "=":
                return self._accumulate(target, value, node.place)
            self.expressions.store(target, value, node.place)
            return value
        if node.operator != "=":
            value = self._adjusted(target, node.value, value)
            kind = self._common(target, node.value)
            value = self._moved_or_combined(node.operator[:-1], self.expressions.named(target), value, kind)
        loops, sources = self.state.loops_around(target.name), self.state.atoms.sources(value)
        if self.state.is_float_type(self.state.declared_types.get(target.name, "auto")):
            reduced = self.calls.reduction_of(target.name, "recurrence", loops, sources, (), node.place)
            value = self.state.atoms.fresh("float", sources | reduced)
        self.expressions.set_variable(target.name, value, self._common(target, node.value))
        return value

    def _holds_floats(self, name: str, before: Value) -> bool:
        c_type = self.state.declared_types.get(name)
        return self.state.atoms.is_float(before) if c_type in (None, "auto") else self.state.is_float_type(c_type or "")
