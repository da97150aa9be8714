"""Calls: index functions, loads and stores, barriers, exchanges, atomics, mathematics, and what the file defines."""

from __future__ import annotations

from collections.abc import Callable

from kernelwright.analysis.evaluator import Evaluator
from kernelwright.analysis.facts import NO_SOURCES, Access, Barrier, MathCall, Reduction, Sources, ThreadExchange
from kernelwright.analysis.polynomial import Polynomial, number
from kernelwright.analysis.state import Integer, State
from kernelwright.analysis.values import Pointer, Value
from kernelwright.analysis.wraparound import common
from kernelwright.source import builtin_functions, nodes
from kernelwright.source.preprocess import Place
from kernelwright.source.reduction_statements import Operation

_AXES = "xyz"
_OPENCL_INDICES = {
    "get_global_id": "global", "get_local_id": "thread", "get_group_id": "block", "get_local_size": "block_size",
    "get_num_groups": "grid_size",
}  # fmt: skip
_JOINING: dict[str, Operation] = {
    "add": "sum", "sub": "sum", "inc": "sum", "dec": "sum", "max": "max", "min": "min", "and": "and", "or": "or",
    "xor": "xor",
}  # fmt: skip


class Calls:
    """Evaluates calls for the expressions that they stand in."""

    def __init__(self, state: State, expressions: Evaluator) -> None:
        self.state = state
        self.expressions = expressions
        self._ways: tuple[Callable[[nodes.Call], Value | None], ...] = (
            self._index, self._memory, self._barrier, self._exchange, self._atomic, self._math, self._pure,
        )  # fmt: skip

    def value(self, node: nodes.Call) -> Value:
        """What a call gives, with what it does noted."""
        inlined = self.expressions.inline(node)
        if inlined is not None:
            return inlined
        for way in self._ways:
            found = way(node)
            if found is not None:
                return found
        return self._unknown_call(node, node.function, node.arguments)

    def method(self, node: nodes.MethodCall) -> Value:
        """What a call of a method gives: a barrier for `group.sync()`, else unknown."""
        if node.method == "sync" and not node.arguments:
            self._add_barrier("block", node.place)
            return self.expressions.unknown()
        receiver = self.expressions.value(node.receiver)
        value = self._unknown_call(node, node.method, node.arguments)
        return self.expressions.unknown(receiver, value, is_float=True)

    def _unknown_call(
        self, node: nodes.Call | nodes.MethodCall, function: str, arguments: tuple[nodes.Expression, ...]
    ) -> Value:
        """A call of something that is not in this file."""
        values = [self.expressions.value(argument) for argument in arguments]
        self.state.not_understood(node.place, f"calls {function!r}, which is not in this file and not known")
        for argument, value in zip(arguments, values, strict=True):
            if isinstance(value, Pointer):
                self.state.access(value, "unknown", node.place, reason=f"passed to {function!r}")
            elif (root := nodes.root_name(argument)) is not None:
                self.state.spoil(root, node.place)
        return self.expressions.unknown(*values, is_float=True)

    # Thread indices

    def _index(self, node: nodes.Call) -> Value | None:
        atoms, function = self.state.atoms, node.function
        plain = {"get_local_linear_id": "thread.linear", "get_global_linear_id": "global.linear"}.get(function)
        if plain is not None:
            return atoms.thread(plain)
        if function in ("get_sub_group_local_id", "get_sub_group_id"):
            return atoms.thread("warp.lane" if function.endswith("local_id") else "warp.index")
        if function in ("get_sub_group_size", "get_max_sub_group_size"):
            return atoms.size("warp_size")
        if function == "get_global_offset":
            return number(0)  # launches have none
        if function not in _OPENCL_INDICES and function != "get_global_size":
            return None
        axis = self.expressions.integer(node.arguments[0]).constant if len(node.arguments) == 1 else None
        if axis is None or not 0 <= axis < 3:
            return atoms.fresh("unknown")
        letter = _AXES[axis]
        if function == "get_global_size":
            return atoms.size(f"block_size.{letter}") * atoms.size(f"grid_size.{letter}")
        level = _OPENCL_INDICES[function]
        return atoms.size(f"{level}.{letter}") if level.endswith("size") else atoms.thread(f"{level}.{letter}")

    # Memory

    def _memory(self, node: nodes.Call) -> Value | None:
        function, arguments = node.function, node.arguments
        load, store = builtin_functions.vector_load(function), builtin_functions.vector_store(function)
        if load is not None and len(arguments) == 2:
            pointer = self._vector_place(arguments[0], arguments[1], load[1])
            return None if pointer is None else self._loaded(pointer, node.place, load[0])
        if store is not None and len(arguments) == 3:
            value = self.expressions.value(arguments[0])
            pointer = self._vector_place(arguments[1], arguments[2], store[1])
            return None if pointer is None else self._stored(pointer, value, node.place, number(store[0]))
        if builtin_functions.is_cached_load(function) and len(arguments) == 1:
            pointer_value = self.expressions.value(arguments[0])
            return self.expressions.load(pointer_value, node.place) if isinstance(pointer_value, Pointer) else None
        if builtin_functions.is_cached_store(function) and len(arguments) == 2:
            pointer_value = self.expressions.value(arguments[0])
            value = self.expressions.value(arguments[1])
            if isinstance(pointer_value, Pointer):
                return self._stored(pointer_value, value, node.place, None)
        return None

    def _vector_place(self, index: nodes.Expression, base: nodes.Expression, step: int) -> Pointer | None:
        pointer, steps = self.expressions.value(base), self.expressions.integer(index)
        return self.expressions.moved(pointer, steps * number(step)) if isinstance(pointer, Pointer) else None

    def _loaded(self, pointer: Pointer, place: Place, width: int) -> Value:
        return self.expressions.load(pointer, place, width=number(width))

    def _stored(self, pointer: Pointer, value: Value, place: Place, width: Polynomial | None) -> Value:
        self.state.access(pointer, "write", place, width=width, sources=self.state.atoms.sources(value))
        return value

    # Threads together

    def _barrier(self, node: nodes.Call) -> Value | None:
        scope = builtin_functions.barrier_scope(node.function)
        if scope is None:
            return None
        values = [self.expressions.value(argument) for argument in node.arguments]
        self._add_barrier(scope, node.place)
        return self.expressions.unknown(*values)

    def _add_barrier(self, scope: str, place: Place) -> None:
        state = self.state
        guards, loops = tuple(state.active_guards), state.loop_indices
        state.barriers.append(Barrier(scope, guards, loops, place.span, state.inlined_in))  # type: ignore[arg-type]

    def _exchange(self, node: nodes.Call) -> Value | None:
        if not builtin_functions.is_exchange(node.function):
            return None
        values = [self.expressions.value(argument) for argument in node.arguments]
        scope = "block" if node.function.startswith("work_group") else "warp"
        self.state.exchanges.append(
            ThreadExchange(node.function, scope, node.place.span, self.state.inlined_in)  # type: ignore[arg-type]
        )
        result = self.expressions.unknown(*values, is_float=True)
        self.state.exchanged |= result.names
        operation = _JOINING.get(builtin_functions.joined_by_exchange(node.function) or "")
        if operation is None:
            return result
        reduced = self.add_reduction(
            "", operation, scope, (), self.state.atoms.sources(result), (), node.place
        )  # fmt: skip
        return self.state.atoms.fresh("float", reduced | self.state.atoms.sources(result))

    def _atomic(self, node: nodes.Call) -> Value | None:
        operation = builtin_functions.atomic_operation(node.function)
        if operation is None or not node.arguments:
            return None
        pointer = self.expressions.value(node.arguments[0])
        values = [self.expressions.value(argument) for argument in node.arguments[1:]]
        if not isinstance(pointer, Pointer):
            self.state.not_understood(node.place, "an atomic operation on something that is not followed")
            return self.expressions.unknown(*values, is_float=True)
        if operation == "load":
            return self.expressions.load(pointer, node.place)
        sources = NO_SOURCES
        for value in values:
            sources |= self.state.atoms.sources(value)
        kind = "write" if operation in ("store", "init") else "accumulate"
        access = self.state.access(pointer, kind, node.place, is_atomic=True, sources=sources)  # type: ignore[arg-type]
        if operation in _JOINING:
            self.reduction_into(access, _JOINING[operation], (), node.place)
        array = self.state.arrays.get(pointer.array)
        is_float = array is None or array.is_float
        return self.state.atoms.fresh("float" if is_float else "data", Sources(frozenset((access.index,))) | sources)

    # Values

    def _math(self, node: nodes.Call) -> Value | None:
        found = builtin_functions.math_function(node.function)
        if found is None:
            return None
        name, flavour = found
        values = [self.expressions.value(argument) for argument in node.arguments]
        for argument, value in zip(node.arguments, values, strict=True):
            if isinstance(value, Pointer) and name in ("sincos", "sincospi"):
                self.state.spoil(nodes.root_name(argument) or "", node.place)
        if builtin_functions.is_worth_counting(name):
            self.state.math.append(MathCall(
                node.function, name, flavour, self.state.loop_indices, node.place.span, node.place.is_exact,
                self.state.inlined_in,
            ))  # fmt: skip
        integers = self.expressions.integers
        kinds = [integers.of(argument) for argument in node.arguments]
        kind = common(*kinds)
        values = [integers.converted(value, own, kind) for value, own in zip(values, kinds, strict=True)]
        return self._math_value(name, values, kind)

    def _math_value(self, name: str, values: list[Value], kind: Integer | None) -> Value:
        atoms, integers = self.state.atoms, self.expressions.integers
        if name in ("min", "max", "clamp", "abs", "mul"):
            values = [integers.followed(value, kind) for value in values]
        if name == "abs" and isinstance(values[0], Polynomial) and integers.may_be_negative(values[0]):
            return self.expressions.unknown(*values, is_float=atoms.is_float(values[0]))
        is_integer = all(isinstance(value, Polynomial) and not atoms.is_float(value) for value in values)
        if is_integer and name in ("min", "max", "abs", "clamp") and values:
            choices = tuple(atoms.integer(value) for value in values)
            return atoms.select(f"{name}({', '.join(map(str, choices))})", choices)
        if is_integer and name in ("mul24", "mad24") and len(values) > 1:
            product = atoms.integer(values[0]) * atoms.integer(values[1])
            return product + atoms.integer(values[2]) if name == "mad24" and len(values) == 3 else product
        if name == "mul" and len(values) == 2:
            return self.expressions.combined("*", values[0], values[1])
        return self.expressions.unknown(*values, is_float=not is_integer or name not in ("popc", "popcount", "clz"))

    def _pure(self, node: nodes.Call) -> Value | None:
        if builtin_functions.does_nothing(node.function):
            return self.expressions.unknown()
        if not builtin_functions.is_pure(node.function):
            return None
        values = [self.expressions.value(argument) for argument in node.arguments]
        if len(values) == 1 and isinstance(values[0], Polynomial):
            atoms = self.state.atoms
            return atoms.fresh("float", atoms.sources(values[0]), factors=atoms.factors(values[0]))
        return self.expressions.unknown(*values, is_float=True)

    # Reductions

    def reduction_of(
        self, name: str, operation: Operation, loops: tuple[int, ...], sources: Sources,
        factors: tuple[Sources, ...], place: Place, *, is_exchange: bool = False,
    ) -> Sources:  # fmt: skip
        """Note that a variable joins values over loops, or over a warp; gives the reduction as a source."""
        if is_exchange:
            return self.add_reduction(name, operation, "warp", loops, sources, (), place)
        if not loops or not (sources.accesses or sources.reductions):
            return NO_SOURCES
        return self.add_reduction(
            name, operation, "thread", loops, sources, factors if len(factors) > 1 else (), place
        )  # fmt: skip

    def reduction_into(
        self, access: Access, operation: Operation, factors: tuple[Sources, ...], place: Place
    ) -> Sources:
        """Note that an element of an array joins values, over threads or over loops that its index does not name."""
        state = self.state
        names = access.element.names if access.element is not None else frozenset()
        loops = tuple(
            loop.index for loop in state.open_loops if state.loops[loop.index].atom not in names
        )  # fmt: skip
        sources = access.sources | state.array_sources.get(access.array, NO_SOURCES)
        if access.space == "shared":
            scope = "block"
        elif access.is_atomic:
            scope = "device"
        else:
            scope = "thread"
            if not loops:
                return NO_SOURCES
        return self.add_reduction(access.array, operation, scope, loops, sources, factors, place)

    def add_reduction(
        self, target: str, operation: Operation, scope: str, loops: tuple[int, ...], sources: Sources,
        factors: tuple[Sources, ...], place: Place,
    ) -> Sources:  # fmt: skip
        """Note a reduction."""
        state = self.state
        index = len(state.reductions)
        state.reductions.append(Reduction(
            index, operation, target, scope, loops, sources, factors, place.span, state.inlined_in,  # type: ignore[arg-type]
        ))  # fmt: skip
        reduced = Sources(reductions=frozenset((index,)))
        if target in state.arrays:
            state.array_sources[target] = state.array_sources.get(target, NO_SOURCES) | reduced | sources
        return reduced
