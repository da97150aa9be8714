"""Loops: what counts, what changes from one iteration to the next, and what is left when they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernelwright.analysis.expressions import Expressions
from kernelwright.analysis.facts import Atom, IndexStep, LoopFact, LoopSweep, Relation, Sources
from kernelwright.analysis.polynomial import ONE, Polynomial, named
from kernelwright.analysis.state import State
from kernelwright.analysis.values import Pointer, Truth, Value
from kernelwright.analysis.wraparound import common
from kernelwright.source import nodes
from kernelwright.source.loop_headers import LoopHeader, read_header

_SIDES = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", "!=": "!="}


class Loops:
    """Follows the loops of one kernel."""

    def __init__(self, state: State, expressions: Expressions, follow: Callable[[nodes.Statement], bool]) -> None:
        self.state = state
        self.expressions = expressions
        self.follow_statement = follow

    def follow(self, node: nodes.Loop) -> None:
        """One loop with its body."""
        state = self.state
        own = nodes.declared_names(node.initial) if node.initial is not None else frozenset[str]()
        hidden = {name: (state.variables.get(name), state.declared_types.get(name)) for name in own}
        if node.initial is not None:
            self.follow_statement(node.initial)
        header = read_header(node)
        before = dict(state.variables)
        index = self._open(node, header)
        changed = (nodes.assigned_names(node) | self._given_away(node)) & before.keys()
        self._forget(changed - ({header.variable} if header else set()), before, index)
        if header is not None:
            self._count(node, header, index, before)
        self._follow_secondary(node, header, index, before)
        self._body(node, header, index)
        state.open_loops.pop()
        self._leave(changed - own, before, index)
        for name, (value, c_type) in hidden.items():
            if value is None:
                state.variables.pop(name, None)
            else:
                state.variables[name] = value
            if c_type is None:
                state.declared_types.pop(name, None)
            else:
                state.declared_types[name] = c_type

    def _given_away(self, node: nodes.Loop) -> frozenset[str]:
        """Variables that helpers get by reference in a loop."""
        functions = {function.name: function for function in self.state.tree.functions}
        found: set[str] = set()
        for each in nodes.walk(node):
            function = functions.get(each.function) if isinstance(each, nodes.Call) else None
            if function is None or not isinstance(each, nodes.Call):
                continue
            for parameter, argument in zip(function.parameters, each.arguments, strict=False):
                name = nodes.variable_of(argument)
                if parameter.is_reference and not parameter.is_const and name is not None:
                    found.add(name)
        return frozenset(found)

    def _open(self, node: nodes.Loop, header: LoopHeader | None) -> int:
        state = self.state
        index = len(state.loops)
        parent = state.open_loops[-1].index if state.open_loops else None
        atom = state.atoms.unique(header.variable) if header is not None else ""
        if atom:
            state.atoms.add(Atom(atom, "loop"))
        state.loops.append(LoopFact(
            index, atom, header.variable if header else "", None, header.operator if header else "", None, None, parent,
            "sequential" if header else "other", node.pragmas, node.place.span, node.place.is_exact,
            node.body.place.span, state.inlined_in, "certain" if header else "guess",
        ))  # fmt: skip
        known = frozenset(state.variables) - ({header.variable} if header else set())
        state.open_loop(index, known)
        return index

    def _forget(self, names: frozenset[str], before: dict[str, Value], index: int) -> None:
        """What a loop changes is not known when an iteration starts."""
        atoms, carried = self.state.atoms, Sources(carried=frozenset((index,)))
        for name in sorted(names):
            value = before[name]
            if isinstance(value, Pointer):
                if not self.state.is_array_variable(name):
                    self.state.variables[name] = replace(value, offset=value.offset + atoms.fresh("carried", carried))
            else:
                is_float = self._is_float(name, value)
                self.state.variables[name] = atoms.fresh(
                    "float" if is_float else "carried", atoms.sources(value) | carried
                )

    def _is_float(self, name: str, value: Value) -> bool:
        c_type = self.state.declared_types.get(name, "auto")
        return self.state.atoms.is_float(value) or self.state.is_float_type(c_type)

    def _count(self, node: nodes.Loop, header: LoopHeader, index: int, before: dict[str, Value]) -> None:
        """The index of a loop that counts: an atom with a start, a bound and a step."""
        state, atoms = self.state, self.state.atoms
        integers = self.expressions.integers
        own = integers.of(nodes.Name(node.place, header.variable))
        start = atoms.integer(integers.followed(before.get(header.variable, atoms.fresh("unknown")), own))
        atom = state.loops[index].atom
        state.variables[header.variable] = named(atom)
        of_bound = integers.of(header.bound)
        both = common(own, of_bound)
        bound = atoms.integer(integers.converted(self.expressions.integer(header.bound), of_bound, both))
        if not atoms.is_uniform(bound):
            bound = atoms.integer(integers.followed(bound, both))
        amount = ONE if header.step is None else self.expressions.integer(header.step)
        kind = header.step_kind
        step = IndexStep("add", -amount) if kind == "subtract" else IndexStep(kind, amount)
        if kind == "add" and amount.is_small and not self._is_steady(amount):
            step = IndexStep("add", atoms.fresh("unknown"))
        sweep = self._sweep(start, step)
        has_more = isinstance(node.condition, nodes.Binary) and node.condition.operator == "&&"
        state.loops[index] = replace(
            state.loops[index], start=start, operator=header.operator, bound=bound, step=step, sweep=sweep,
            ends_early=has_more or state.loops[index].ends_early,
        )  # fmt: skip

    def _is_steady(self, amount: Polynomial) -> bool:
        return all(self.state.atoms.by_name[name].kind not in ("carried", "data") for name in amount.names)

    def _sweep(self, start: Polynomial, step: IndexStep) -> LoopSweep:
        """Who walks a loop together, from how far apart its threads start and how far they step."""
        names = {name for name in start.names if self.state.atoms.by_name[name].kind != "size"}
        if step.kind != "add":
            return "sequential" if not names else "other"
        for axis in "xyz":
            size, grid = named(f"block_size.{axis}"), named(f"grid_size.{axis}")
            if f"global.{axis}" in names:
                unit = start.coefficient(f"global.{axis}")
                if unit and step.amount == unit * size * grid:
                    return "grid-stride"
            if f"thread.{axis}" in names:
                unit = start.coefficient(f"thread.{axis}")
                if unit and step.amount == unit * size:
                    return "block-stride"
                if unit and self._is_constant_multiple(step.amount, unit):
                    return "block-stride"
        if not names or not any(self._moves_with_thread(name) for name in names):
            return "sequential"
        return "warp-stride" if self._is_warp_stride(start, step.amount) else "other"

    def _is_constant_multiple(self, amount: Polynomial, unit: Polynomial) -> bool:
        """Whether a step is a fixed number of threads (a block size as a number or a macro)."""
        ratio = amount.divided(unit)
        return ratio is not None and self.state.atoms.is_uniform(ratio) and ratio.constant not in (0, 1, -1)

    def _moves_with_thread(self, name: str) -> bool:
        atom = self.state.atoms.by_name[name]
        if atom.kind == "thread":
            return not name.startswith("block.")
        return atom.kind in ("quotient", "remainder", "select") and any(
            self._moves_with_thread(each) for part in atom.parts for each in part.names
        )

    def _is_warp_stride(self, start: Polynomial, amount: Polynomial) -> bool:
        for name in start.names:
            atom = self.state.atoms.by_name[name]
            width = atom.parts[1] if atom.kind == "remainder" else named("warp_size") if name == "warp.lane" else None
            unit = start.coefficient(name)
            if width is not None and unit and amount == unit * width:
                return True
        return False

    # What else counts

    def _follow_secondary(
        self, node: nodes.Loop, header: LoopHeader | None, index: int, before: dict[str, Value]
    ) -> None:  # fmt: skip
        """Variables that move by the same amount in every iteration, until the statement that moves them."""
        state = self.state
        loop = state.loops[index]
        if header is None or loop.start is None or loop.step is None or loop.step.kind != "add":
            return
        for name, amount in self._steady_moves(node, header).items():
            moved = self._moved_in_step(before.get(name), amount, loop)
            if moved is not None:
                state.variables[name] = moved

    def _steady_moves(self, node: nodes.Loop, header: LoopHeader) -> dict[str, nodes.Expression | None]:
        """By variable, what is added to it once in every iteration."""
        places: list[nodes.Expression] = list(header.rest)
        body = node.body.statements if isinstance(node.body, nodes.Block) else (node.body,)
        places += [each.expression for each in body if isinstance(each, nodes.Evaluate)]
        found: dict[str, nodes.Expression | None] = {}
        hidden = nodes.declared_names(node.body) | {header.variable}
        for expression in places:
            name, amount = _move(expression)
            if name and name not in hidden and _changes(node, name) == 1:
                found[name] = amount
        if any(isinstance(each, nodes.Jump) and each.word == "continue" for each in nodes.walk(node.body)):
            return {
                name: amount for name, amount in found.items() if any(_move(each)[0] == name for each in header.rest)
            }
        return found

    def _moved_in_step(self, value: Value | None, amount: nodes.Expression | None, loop: LoopFact) -> Value | None:
        """`value + amount * iterations`; None where that is not a polynomial."""
        if value is None or (isinstance(value, Polynomial) and self.state.atoms.is_float(value)):
            return None
        assert loop.start is not None
        assert loop.step is not None
        accesses = len(self.state.accesses)
        step = ONE if amount is None else self.expressions.integer(amount)
        if len(self.state.accesses) != accesses:
            del self.state.accesses[accesses:]
            return None
        names = step.names
        if any(
            self.state.atoms.by_name[name].kind not in ("size", "thread", "quotient", "remainder") for name in names
        ):
            return None
        ratio = step.divided(loop.step.amount)
        if ratio is None:
            return None
        moved = ratio * (named(loop.atom) - loop.start)
        if isinstance(value, Pointer):
            return self.expressions.moved(value, moved)
        return self.state.atoms.integer(value) + moved if isinstance(value, Polynomial) else None

    # The body, and after

    def _body(self, node: nodes.Loop, header: LoopHeader | None, index: int) -> None:
        state = self.state
        truth = self._condition(node, header, index)
        guards = len(state.active_guards)
        if node.condition is not None and node.word != "do" and header is None:
            text = self.state.text(node.condition.place)
            state.push_guard(truth, text, node.condition.place, node.body.place.span, kind="branch", holds=True)
        body = node.body
        if header is not None and header.is_in_body and isinstance(body, nodes.Block):
            body = nodes.Block(body.place, body.statements[:-1])
        self.follow_statement(body)
        for update in header.rest if header is not None else (() if node.update is None else (node.update,)):
            self.expressions.value(update)
        del state.active_guards[guards:]

    def _condition(self, node: nodes.Loop, header: LoopHeader | None, index: int) -> Truth:
        if header is None and node.condition is not None:
            return self.expressions.truth(node.condition)
        loop = self.state.loops[index]
        if header is None or loop.bound is None or header.operator not in _SIDES:
            return Truth((), (), says_all_of_yes=False, says_all_of_no=False, sources=self.state.atoms.sources(ONE))
        holds = Relation(named(loop.atom), header.operator, loop.bound)  # type: ignore[arg-type]
        return Truth((holds,), (), says_all_of_yes=True, says_all_of_no=False, sources=self.state.atoms.sources(ONE))

    def _leave(self, changed: frozenset[str], before: dict[str, Value], index: int) -> None:
        """After a loop its variables hold what they held before, or what an iteration left."""
        atoms = self.state.atoms
        for name in sorted(changed):
            first, last = before[name], self.state.variables.get(name, before[name])
            if self.state.is_array_variable(name):
                continue
            if isinstance(first, Pointer) and isinstance(last, Pointer) and first.array == last.array:
                self.state.variables[name] = replace(first, offset=atoms.fresh("unknown"))
                continue
            sources = (atoms.sources(first) | atoms.sources(last)).after(index)
            is_float = self._is_float(name, first) or atoms.is_float(last)
            self.state.variables[name] = atoms.fresh("float" if is_float else "unknown", sources)


def _move(expression: nodes.Expression) -> tuple[str, nodes.Expression | None]:
    """The variable that an expression adds to, and what; an empty name for anything else."""
    match expression:
        case nodes.Update(operator="++", operand=nodes.Name(name=name)):
            return name, None
        case nodes.Assign(operator="+=", target=nodes.Name(name=name), value=value):
            return name, value
        case nodes.Assign(
            operator="=", target=nodes.Name(name=name), value=nodes.Binary(operator="+", left=nodes.Name(name=left))
        ) if name == left:
            assert isinstance(expression.value, nodes.Binary)
            return name, expression.value.right
    return "", None


def _changes(node: nodes.Loop, name: str) -> int:
    """How often a variable is changed in a loop, as far as the text goes."""
    count = 0
    for each in nodes.walk(node):
        match each:
            case nodes.Assign(target=target) | nodes.Update(operand=target) | nodes.Unary(operator="&", operand=target):
                count += nodes.root_name(target) == name and isinstance(target, nodes.Name)
            case nodes.OpaqueExpression(names=names) | nodes.OpaqueStatement(names=names):
                count += name in names
    return count
