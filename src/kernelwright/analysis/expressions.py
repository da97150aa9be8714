"""The values of expressions, and the accesses, reductions and conversions that happen on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kernelwright.analysis.assignments import Assignments
from kernelwright.analysis.calls import Calls
from kernelwright.analysis.facts import NO_SOURCES, CastFact
from kernelwright.analysis.polynomial import ONE, ZERO, Polynomial, number
from kernelwright.analysis.state import Integer, State, both, opposite
from kernelwright.analysis.values import Pointer, Truth, Value
from kernelwright.analysis.wraparound import INT, Integers, common, promoted
from kernelwright.source import nodes
from kernelwright.source.preprocess import Place

_INDICES = {"threadIdx": "thread", "blockIdx": "block", "blockDim": "block_size", "gridDim": "grid_size"}
_COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!="))
_LANES = {"x": 0, "y": 1, "z": 2, "w": 3, "s0": 0, "s1": 1, "s2": 2, "s3": 3}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}

InlineCall = Callable[[nodes.Call], "Value | None"]


class Expressions:
    """Evaluates the expressions of one kernel in its state."""

    def __init__(self, state: State, inline: InlineCall) -> None:
        self.state = state
        self.inline = inline
        """Follows a call of a function of the file; None when it is not one."""
        self._wanted: dict[int, Value | None] = {}
        self.integers = Integers(state)
        self.calls = Calls(state, self)
        self.assignments = Assignments(state, self, self.calls)
        self._ways: Mapping[type, Callable[..., Value]] = {
            nodes.Name: self.named,
            nodes.Literal: self._literal,
            nodes.Unary: self._unary,
            nodes.Binary: self._binary,
            nodes.Assign: self.assignments.assign,
            nodes.Update: self.assignments.update,
            nodes.Conditional: self._conditional,
            nodes.Call: self.calls.value,
            nodes.MethodCall: self.calls.method,
            nodes.Element: self._read,
            nodes.Member: self._member,
            nodes.Cast: self._cast,
            nodes.SizeOf: self._size_of,
            nodes.Items: self._items,
            nodes.OpaqueExpression: self._opaque,
        }

    def value(self, node: nodes.Expression) -> Value:
        """What an expression is worth; something unknown where that is not followed."""
        with self.state.nested(node.place) as is_possible:
            if not is_possible:
                return self.unknown()
            value = self._ways[type(node)](node)
            if id(node) in self._wanted:
                self._wanted[id(node)] = value
            return value

    def parts(self, whole: nodes.Expression, wanted: tuple[nodes.Expression, ...]) -> list[Value]:
        """Evaluate an expression, for what happens on the way; gives the values of some of its parts."""
        saved, self._wanted = self._wanted, dict.fromkeys(id(part) for part in wanted)
        self.value(whole)
        found, self._wanted = self._wanted, saved
        return [value if (value := found[id(part)]) is not None else self.unknown() for part in wanted]

    def integer(self, node: nodes.Expression) -> Polynomial:
        """The value of an index, a size, a step."""
        return self.state.atoms.integer(self.value(node))

    def unknown(self, *values: Value, is_float: bool = False) -> Polynomial:
        """A value that is not followed, made of others."""
        sources = NO_SOURCES
        for value in values:
            sources |= self.state.atoms.sources(value)
        return self.state.atoms.fresh("float" if is_float else "unknown", sources)

    def _literal(self, node: nodes.Literal) -> Value:
        if node.text in ("NULL", "nullptr"):
            return ZERO
        return number(node.value) if node.value is not None else self.unknown(is_float=True)

    def _size_of(self, node: nodes.SizeOf) -> Value:
        size = self.state.element_bytes(node.c_type)
        return self.state.atoms.size(f"sizeof({node.c_type})") if size is None else number(size)

    def _items(self, node: nodes.Items) -> Value:
        return self.unknown(*[self.value(item) for item in node.items], is_float=True)

    def _opaque(self, node: nodes.OpaqueExpression) -> Value:
        self.state.not_understood(node.place, node.reason, node.names)
        return self.unknown(is_float=True)

    # Names and operators

    def named(self, node: nodes.Name) -> Value:
        """The value of a variable, a constant of the file, or a size that comes from outside."""
        known = self.state.variables.get(node.name, self.state.constants.get(node.name))
        return known if known is not None else self.state.atoms.size(node.name)

    def _unary(self, node: nodes.Unary) -> Value:
        if node.operator == "&":
            return self._address(node.operand)
        if node.operator == "*":
            return self._read(node)
        value = self.value(node.operand)
        if node.operator == "!":
            return opposite(self.truth_of(value, self.integers.of(node.operand)))
        if isinstance(value, Polynomial) and not self.state.atoms.is_float(value):
            if node.operator == "-":
                return -value
            if node.operator == "+":
                return value
        return self.unknown(value, is_float=self.state.atoms.is_float(value))

    def _address(self, operand: nodes.Expression) -> Value:
        pointer = self.pointer_to(operand)
        if pointer is not None:
            return pointer
        value = self.value(operand)
        return value if isinstance(value, Pointer) else self.unknown(value)

    def _binary(self, node: nodes.Binary) -> Value:
        if node.operator == ",":
            self.value(node.left)
            return self.value(node.right)
        if node.operator in ("&&", "||"):
            return self._logical(node)
        left, right = self.value(node.left), self.value(node.right)
        kinds = self.integers.of(node.left), self.integers.of(node.right)
        kind = common(*kinds)
        if node.operator in ("<<", ">>"):
            kind = promoted(kinds[0])
        else:
            left, right = self._in_type(left, kinds[0], kind), self._in_type(right, kinds[1], kind)
        if node.operator in _COMPARISONS:
            return self._comparison(node.operator, left, right, kind)
        if isinstance(left, Truth) and isinstance(right, Truth) and node.operator in ("&", "|"):
            return self._joined(node.operator, left, right)
        if isinstance(left, Pointer) or isinstance(right, Pointer):
            return self.pointer_arithmetic(node.operator, left, right)
        return self.combined(node.operator, left, right, kind)

    def _in_type(self, value: Value, kind: Integer | None, to: Integer | None) -> Value:
        return self.integers.converted(value, kind, to)

    def combined(self, operator: str, left: Value, right: Value, kind: Integer | None = INT) -> Value:
        """`left operator right` for numbers, calculated in a type."""
        if operator in ("/", "%", ">>"):  # what has wrapped around is divided as the number that it is then
            left, right = self.integers.followed(left, kind), self.integers.followed(right, kind)
        atoms = self.state.atoms
        if atoms.is_float(left) or atoms.is_float(right):
            if operator != "*":
                return self.unknown(left, right, is_float=True)
            sources = atoms.sources(left) | atoms.sources(right)
            return atoms.fresh("float", sources, factors=atoms.factors(left) + atoms.factors(right))
        first, second = atoms.integer(left), atoms.integer(right)
        result = self._integers(operator, first, second)
        if result is None or not result.is_small:
            return self.unknown(first, second)
        return atoms.canonical(self.integers.near_zero(result, kind))

    def _integers(self, operator: str, left: Polynomial, right: Polynomial) -> Polynomial | None:
        atoms, amount = self.state.atoms, right.constant
        match operator:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/" if right.constant != 0:
                return atoms.divided(left, right)
            case "%" if right.constant != 0:
                return atoms.remainder(left, right)
            case "<<" if amount is not None and 0 <= amount < 63:
                return left * number(1 << amount)
            case ">>" if amount is not None and 0 <= amount < 63:
                return atoms.divided(left, number(1 << amount))
            case "&" if amount is not None and amount > 0 and amount & (amount + 1) == 0:
                return atoms.remainder(left, number(amount + 1))
            case "&" if (size := right + ONE).single_name is not None and atoms.is_uniform(size):
                return atoms.remainder(left, size)  # `i & (N - 1)`: N is a power of two, or the source is wrong
        if atoms.is_uniform(left) and atoms.is_uniform(right):
            return atoms.uniform(f"({left} {operator} {right})")
        return None

    def pointer_arithmetic(self, operator: str, left: Value, right: Value) -> Value:
        """`pointer + steps` in its spellings."""
        if operator in ("+", "-"):
            if isinstance(left, Pointer) and not isinstance(right, Pointer):
                steps = self.state.atoms.integer(right)
                return self.moved(left, -steps if operator == "-" else steps)
            if isinstance(right, Pointer) and not isinstance(left, Pointer) and operator == "+":
                return self.moved(right, self.state.atoms.integer(left))
        return self.unknown(left, right)

    def moved(self, pointer: Pointer, steps: Polynomial) -> Pointer:
        """`pointer + steps`."""
        if pointer.unit is None:
            return self._moved_by_bytes(pointer, steps)
        size = pointer.unit
        for extent in pointer.extents:
            if extent is None:
                return replace(pointer, unit=None)
            size = size * extent
        return replace(pointer, offset=self.state.atoms.canonical(pointer.offset + size * steps))

    def _moved_by_bytes(self, pointer: Pointer, steps: Polynomial) -> Pointer:
        """`pointer + steps`, where a step is no whole element."""
        if pointer.step_bytes is None:
            return replace(pointer, offset=self.unknown(pointer, steps))
        return replace(pointer, rest=self.state.atoms.canonical(pointer.rest + number(pointer.step_bytes) * steps))

    # Conditions

    def _comparison(self, operator: str, left: Value, right: Value, kind: Integer | None) -> Truth:
        atoms = self.state.atoms
        sources = atoms.sources(left) | atoms.sources(right)
        is_integer = all(isinstance(value, Polynomial) and not atoms.is_float(value) for value in (left, right))
        if not is_integer:
            return Truth((), (), says_all_of_yes=False, says_all_of_no=False, sources=sources)
        first, second = atoms.integer(left), atoms.integer(right)
        if atoms.is_uniform(first) and not atoms.is_uniform(second):
            first, second, operator = second, first, _FLIPPED[operator]
        return self.integers.comparison(operator, first, second, kind)

    def _logical(self, node: nodes.Binary) -> Truth:
        left = self.truth(node.left)
        holds = node.operator == "&&"
        text = self.state.text(node.left.place)
        with self.state.guarded(left, text, node.left.place, node.right.place.span, kind="expression", holds=holds):
            right = self.truth(node.right)
        return self._joined(node.operator, left, right)

    def _joined(self, operator: str, left: Truth, right: Truth) -> Truth:
        if operator.startswith("&"):
            return both(left, right)
        return opposite(both(opposite(left), opposite(right)))

    def truth(self, node: nodes.Expression) -> Truth:
        """What an expression says as a condition."""
        return self.truth_of(self.value(node), self.integers.of(node))

    def truth_of(self, value: Value, kind: Integer | None) -> Truth:
        """What a value of a type says as a condition."""
        if isinstance(value, Truth):
            return value
        if isinstance(value, Polynomial) and not self.state.atoms.is_float(value):
            return self._comparison("!=", value, ZERO, kind)
        sources = self.state.atoms.sources(value)
        return Truth((), (), says_all_of_yes=False, says_all_of_no=False, sources=sources)

    def _conditional(self, node: nodes.Conditional) -> Value:
        state = self.state
        truth = self.truth(node.condition)
        text = self.state.text(node.condition.place)
        place = node.condition.place
        with state.guarded(truth, text, place, node.yes.place.span, kind="expression"):
            yes = self.value(node.yes)
        with state.guarded(truth, text, place, node.no.place.span, kind="expression", holds=False):
            no = self.value(node.no)
        kinds = self.integers.of(node.yes), self.integers.of(node.no)
        kind = common(*kinds)
        yes, no = self._in_type(yes, kinds[0], kind), self._in_type(no, kinds[1], kind)
        is_integer = all(isinstance(each, Polynomial) and not state.atoms.is_float(each) for each in (yes, no))
        if is_integer and not truth.sources.accesses:
            values = (state.atoms.integer(yes), state.atoms.integer(no))
            return state.atoms.select(self._choice(truth, values), values)
        merged = state.atoms.merged((yes, no))
        if merged in (yes, no) or not truth.sources.accesses:
            return merged
        return self.unknown(merged, truth, is_float=state.atoms.is_float(merged))

    def _choice(self, truth: Truth, values: tuple[Polynomial, Polynomial]) -> str:
        """A name that two choices share only when they are the same."""
        if not truth.says_all_of_yes:
            return self.state.atoms.unique("select~1")
        return f"({' && '.join(map(str, truth.yes))} ? {values[0]} : {values[1]})"

    # Memory

    def pointer_to(self, node: nodes.Expression) -> Pointer | None:
        """Where an element lies, without touching it; None for what lies in no array."""
        found = self._place(node)
        return None if found is None else found[0]

    def _place(self, node: nodes.Expression) -> tuple[Pointer, bool] | None:
        """Where something lies, and whether it is an array itself: a row of an array of arrays."""
        match node:
            case nodes.Element(base=base, index=index):
                pointer, steps = self.value(base), self.integer(index)
                return self._element(pointer, steps) if isinstance(pointer, Pointer) else None
            case nodes.Unary(operator="*", operand=operand):
                pointer = self.value(operand)
                return self._element(pointer, ZERO) if isinstance(pointer, Pointer) else None
            case nodes.Member(base=base, is_arrow=False):
                return self._place(base)
            case nodes.Member(base=base):
                pointer = self.value(base)
                return (pointer, False) if isinstance(pointer, Pointer) else None
            case nodes.Name(name=name):
                known = self.state.variables.get(name)
                is_array = isinstance(known, Pointer) and self.state.is_array_variable(name)
                return (known, True) if isinstance(known, Pointer) and is_array else None
            case nodes.Cast(operands=(operand,)):
                return self._place(operand)
        return None

    def _element(self, pointer: Pointer, index: Polynomial) -> tuple[Pointer, bool]:
        moved = self.moved(pointer, index)
        if pointer.extents:
            return replace(moved, extents=pointer.extents[1:]), True
        return moved, False

    def _read(self, node: nodes.Expression) -> Value:
        found = self._place(node)
        if found is None:
            base = node.base if isinstance(node, nodes.Element) else node
            self.state.not_understood(node.place, "a load through something that is not followed")
            value = self.state.variables.get(nodes.root_name(base) or "")
            return self.unknown(*([value] if value is not None else []), is_float=True)
        pointer, is_array = found
        return pointer if is_array else self.load(pointer, node.place)

    def load(self, pointer: Pointer, place: Place, *, width: Polynomial | None = None) -> Value:
        """Read what a pointer points to."""
        access = self.state.access(pointer, "read", place, width=width)
        sources = self.state.sources_of_read(access)
        array = self.state.arrays.get(pointer.array)
        is_float = array is None or array.is_float or pointer.is_vector or array.width > 1
        return self.state.atoms.fresh("float" if is_float else "data", sources, factors=(sources,))

    def store(self, target: nodes.Expression, value: Value, place: Place, kind: Integer | None = None) -> None:
        """`target = value`, for a value of a type that is known already."""
        if isinstance(target, nodes.Name):
            self.set_variable(target.name, value, kind)
            return
        pointer = self.pointer_to(target)
        if pointer is not None:
            self.state.access(pointer, "write", place, sources=self.state.atoms.sources(value))
            return
        root = nodes.variable_of(target)
        if root is None:
            self.state.not_understood(place, "a store through something that is not followed")
            return
        before = self.state.variables.get(root, value)
        self.state.variables[root] = self.unknown(before, value, is_float=not isinstance(before, Pointer))

    def set_variable(self, name: str, value: Value, kind: Integer | None = None) -> None:
        """A variable gets a value of a type, as what it is declared."""
        c_type = self.state.declared_types.get(name, "auto")
        value = self.integers.converted(value, kind, self.integers.named(c_type))
        before = self.state.variables.get(name)
        if isinstance(before, Pointer):
            value = self.pointing_to(value, before.c_type)
        self.state.variables[name] = self.converted(value, c_type)

    def pointing_to(self, value: Value, c_type: str) -> Value:
        """A `void *` as a pointer of another type that it is stored in; any other value as it is."""
        is_bare = isinstance(value, Pointer) and value.c_type == "void"
        c_type = self.state.resolved_type(c_type)
        return self._recast(value, c_type) if is_bare and c_type not in ("", "auto") else value  # type: ignore[arg-type]

    def converted(self, value: Value, c_type: str) -> Value:
        """A value as a variable of a type holds it."""
        atoms = self.state.atoms
        if isinstance(value, Pointer | tuple):
            return value
        if self.state.is_float_type(c_type):
            if atoms.is_float(value):
                return value
            return atoms.fresh("float", atoms.sources(value), factors=atoms.factors(value))
        if isinstance(value, Truth):
            return value
        if atoms.is_float(value) and self.state.resolved_type(c_type) not in ("auto", ""):
            return atoms.fresh("data" if atoms.sources(value).accesses else "unknown", atoms.sources(value))
        return value

    def _member(self, node: nodes.Member) -> Value:
        state = self.state
        if isinstance(node.base, nodes.Name) and node.base.name in _INDICES and node.base.name not in state.variables:
            level = _INDICES[node.base.name]
            name = f"{level}.{node.name}"
            return state.atoms.size(name) if level.endswith("size") else state.atoms.thread(name)
        if node.is_arrow or self._is_in_memory(node.base):
            pointer = self.pointer_to(node)
            if pointer is not None:
                return self.load(pointer, node.place)
        value = self.value(node.base)
        if isinstance(value, tuple) and node.name in _LANES and _LANES[node.name] < len(value):
            return value[_LANES[node.name]]
        if isinstance(value, Polynomial) and value.single_name and state.atoms.is_uniform(value):
            return state.atoms.size(f"{value.single_name}.{node.name}")
        return self.unknown(value, is_float=True)

    def _is_in_memory(self, node: nodes.Expression) -> bool:
        return isinstance(node, nodes.Element) or (isinstance(node, nodes.Unary) and node.operator == "*")

    # Conversions

    def _cast(self, node: nodes.Cast) -> Value:
        state = self.state
        c_type = state.resolved_type(node.c_type)
        state.casts.append(CastFact(node.c_type, node.is_pointer, node.is_reinterpreting, node.place.span))
        values = [self.value(operand) for operand in node.operands]
        if len(values) == 1 and isinstance(values[0], Pointer) and node.is_pointer:
            return self._recast(values[0], c_type)
        width = state.width(c_type)
        if width > 1 and not state.is_float_type(c_type) and len(values) == width:
            return tuple(state.atoms.integer(value) for value in values)
        if len(values) == 1 and width == 1:
            if node.is_pointer:
                return values[0]
            kind, to = self.integers.of(node.operands[0]), self.integers.named(c_type)
            return self.converted(self.integers.converted(values[0], kind, to), c_type)
        return self.unknown(*values, is_float=True)

    def _recast(self, pointer: Pointer, c_type: str) -> Pointer:
        """A pointer to another type, still counted in elements of the array."""
        array = self.state.arrays.get(pointer.array)
        if array is None or c_type == "void":
            return replace(pointer, c_type=c_type)
        size, element = self.state.element_bytes(c_type), array.element_bytes
        is_own = c_type == self.state.resolved_type(array.c_type)
        unit = ONE if is_own else number(size // element) if size and element and size % element == 0 else None
        is_vector = not is_own and self.state.width(c_type) > array.width
        cast = replace(
            pointer,
            unit=unit,
            extents=(),
            is_vector=is_vector,
            c_type=c_type,
            step_bytes=size if unit is None else None,
        )
        return cast if unit is None else self._in_elements(cast, element)

    def _in_elements(self, pointer: Pointer, element: int | None) -> Pointer:
        """A pointer to whole elements, without bytes beyond: what it points to has their alignment, or is no place."""
        whole = None if element is None else self.state.atoms.shared_out(pointer.rest, element)
        if not pointer.rest.terms:
            return pointer
        offset = self.unknown(pointer) if whole is None else self.state.atoms.canonical(pointer.offset + whole)
        return replace(pointer, offset=offset, rest=ZERO)
