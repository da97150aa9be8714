"""C statements and expressions of one thread as Triton's for a tile of threads, with the mask of each.

A tile has a few axes: places along x and y, or rows and a block's threads, and elements of a loop. Each value is a
block with all axes, of extent 1 along those that it does not depend on, so that blocks meet by broadcasting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kernelwright.problem.dtypes import dtype_of_c_type
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import atomic_operation, barrier_scope, is_cached_load
from kernelwright.source.language import Language
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.loop_reductions import Operation
from kernelwright.tactics.common.thread_queries import query_text
from kernelwright.tactics.triton.functions import called
from kernelwright.tactics.triton.layout import Layout, Mask, Part, Variable
from kernelwright.tactics.triton.values import (
    NOWHERE,
    TritonValue,
    alike,
    bare,
    c_dtype,
    cast,
    converted,
    is_float,
    known_number,
    literal_value,
    names_in_triton,
    terms,
)

_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_ATOMICS = {"add": "tl.atomic_add", "max": "tl.atomic_max", "min": "tl.atomic_min"}
_JOINS: Mapping[Operation, str] = {"sum": "tl.sum", "max": "tl.max", "greater": "tl.max", "min": "tl.min",
                                   "less": "tl.min"}  # fmt: skip


WriteLoop: TypeAlias = "Callable[[Writer, nodes.Loop, Mask], None]"
WriteCall: TypeAlias = "Callable[[Writer, nodes.Call, Mask], None]"


def body_text(
    subject: Subject,
    layout: Layout,
    joins: Mapping[Span, Operation],
    write_loop: WriteLoop,
    calls: Mapping[str, WriteCall],
) -> tuple[tuple[str, ...], dict[str, str], Writer]:
    """The lines of a kernel's body, and its parameters' names.

    Args:
        subject: whose kernel is written.
        layout: what a program does.
        joins: by the place of a call, what it joins the values of a block's threads by.
        write_loop: writes a loop.
        calls: by function, what writes a call that is a statement.

    Raises:
        Unfit: something in it has no words in Triton.
    """
    axes: dict[object, frozenset[int]] = {}
    while True:
        writer = Writer(subject, layout, joins, axes, write_loop, calls)
        before = dict(axes)
        writer.body()
        if axes == before:
            return tuple(writer.lines), writer.parameters, writer


@dataclass(slots=True)
class Writer:
    """Writes one kernel's body; refuses, as `Unfit`, what it has no words for."""

    subject: Subject
    layout: Layout
    joins: Mapping[Span, Operation]
    axes: dict[object, frozenset[int]]
    """By variable, along which it may differ; grows from one writing to the next."""
    write_loop: WriteLoop
    calls: Mapping[str, WriteCall] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)
    scopes: list[dict[str, Variable]] = field(default_factory=list)
    depth: int = 0
    tiled: int = 0
    """How many loops in tiles are around."""
    bounds: list[str] = field(default_factory=list)
    """Sizes, as expressions of the problem, that a tile must have where rows are taken whole."""
    has_grid_loop: bool = False
    dots: int = 0
    """Products of matrices that were written."""
    taken: set[str] = field(default_factory=set)
    made: int = 0
    _indent: int = 0

    @property
    def language(self) -> Language:
        """The source's."""
        return self.subject.language

    # Statements

    def body(self) -> None:
        """All of a kernel."""
        function = self.subject.analysis.function
        names = names_in_triton(each.name for each in function.parameters)
        self.taken |= set(names.values())
        self.parameters = names
        scope: dict[str, Variable] = {}
        for each in function.parameters:
            dtype = dtype_of_c_type(each.c_type, self.language)
            if dtype is None or each.is_reference:
                raise Unfit(f"the type of {each.name} has no name in Triton")
            scope[each.name] = Variable(each.name, names[each.name], dtype.name, is_pointer=each.is_pointer)
        self.scopes.append(scope)
        mask: Mask = ()
        for text, axes in self.layout.masks:
            mask = (*mask, Part(text, axes, is_met=True))
        self.block(function.body.statements, mask)

    def block(self, statements: tuple[nodes.Statement, ...], mask: Mask) -> None:
        """Statements with a scope."""
        self.scopes.append({})
        for index, each in enumerate(statements):
            is_last = index == len(statements) - 1 and len(self.scopes) == 2
            if isinstance(each, nodes.Return) and each.value is None and is_last:
                break
            left = self._early_exit(each, mask) if len(self.scopes) == 2 else None
            if left is not None:
                mask = left
                continue
            with self.told(each):
                self.statement(each, mask)
        self.scopes.pop()

    def told(self, node: nodes.Node) -> _Told:
        """A context in which a refusal gets the line that it is about."""
        return _Told(node, self.subject.source)

    def _early_exit(self, statement: nodes.Statement, mask: Mask) -> Mask | None:
        """The mask of what follows `if (...) return;`; None: it is none."""
        if not isinstance(statement, nodes.If) or statement.no is not None:
            return None
        inside = statement.yes.statements if isinstance(statement.yes, nodes.Block) else (statement.yes,)
        if len(inside) != 1 or not isinstance(inside[0], nodes.Return) or inside[0].value is not None:
            return None
        with self.told(statement):
            return self.under(statement.condition, mask, is_not=True)

    def statement(self, statement: nodes.Statement, mask: Mask) -> None:
        """One statement."""
        match statement:
            case nodes.Block(statements=inside):
                self.block(inside, mask)
            case nodes.Declaration(declarators=declarators):
                for each in declarators:
                    self._declare(each, mask)
            case nodes.Evaluate(expression=nodes.Assign() as assigned):
                self._assign(assigned.target, assigned.operator, assigned.value, mask)
            case nodes.Evaluate(expression=nodes.Update(operand=operand, operator=operator) as update):
                one = nodes.Literal(update.place, "1", 1)
                self._assign(operand, f"{operator[0]}=", one, mask)
            case nodes.Evaluate(expression=nodes.Call() as call):
                self._effect(call, mask)
            case nodes.If(condition=condition, yes=yes, no=no):
                self._if(condition, yes, no, mask)
            case nodes.Loop():
                self.write_loop(self, statement, mask)
            case nodes.Return():
                raise Unfit("it returns from inside a branch that does more, or from a loop")
            case nodes.Jump(word=word):
                raise Unfit(f"a loop with {word} has no words in Triton")
            case _:
                raise Unfit(f"a statement has no words in Triton ({type(statement).__name__.lower()})")

    def _if(self, condition: nodes.Expression, yes: nodes.Statement, no: nodes.Statement | None, mask: Mask) -> None:
        if no is None:
            self.block((yes,), self.under(condition, mask))
            return
        asked = self.bound(self._condition(condition, mask))  # once: a branch may store what it reads
        self.block((yes,), (*mask, Part(asked.text, asked.axes)))
        other = self.bound(replace(asked, text=f"{asked.text} == 0"))
        self.block((no,), (*mask, Part(other.text, other.axes)))

    def under(self, condition: nodes.Expression, mask: Mask, *, is_not: bool = False) -> Mask:
        """A mask with the conditions of `a && b`, or of what is left by `if (a || b) return;`."""
        for each in terms(condition, "||" if is_not else "&&"):
            asked = self._opposite(each) if is_not else each
            made = self._condition(asked, mask)
            if is_not and asked is each:
                made = replace(made, text=f"({made.text} == 0)")
            named = self.bound(made)
            mask = (*mask, Part(named.text, named.axes, self._is_met(asked)))
        return mask

    def _opposite(self, node: nodes.Expression) -> nodes.Expression:
        if isinstance(node, nodes.Binary) and node.operator in _OPPOSITE and not self._is_fractional(node):
            return replace(node, operator=_OPPOSITE[node.operator])
        return node

    def _is_fractional(self, node: nodes.Binary) -> bool:
        before = len(self.lines)
        value = self.place_or_value(node.left, ()), self.place_or_value(node.right, ())
        del self.lines[before:]
        return any(is_float(each.dtype) for each in value)

    def _is_met(self, node: nodes.Expression) -> bool:
        """Whether each program has a place that meets a condition: its own bound, or that it is the first lane."""
        if self._is_first_lane(node):
            return True
        if not isinstance(node, nodes.Binary) or node.operator not in ("<", ">"):
            return False
        left, right = (node.left, node.right) if node.operator == "<" else (node.right, node.left)
        if not isinstance(bare(right), nodes.Name):
            return False
        before = len(self.lines)
        place = self.place_or_value(left, ()).place
        del self.lines[before:]
        total = self.layout.totals.get(place)
        scalar = self.subject.scalar(bare(right).name)  # type: ignore[union-attr]
        return total is not None and scalar is not None and scalar.text == total

    def _is_first_lane(self, node: nodes.Expression) -> bool:
        match node:
            case nodes.Binary(operator="==", left=left, right=nodes.Literal(value=0)):
                return self._is_lane(left)
            case nodes.Binary(operator="==", left=nodes.Literal(value=0), right=right):
                return self._is_lane(right)
            case nodes.Binary(operator="<", left=left, right=nodes.Literal(value=1)):
                return self._is_lane(left)
            case nodes.Unary(operator="!", operand=operand):
                return self._is_lane(operand)
        return False

    def _is_lane(self, node: nodes.Expression) -> bool:
        inner = bare(node)
        if isinstance(inner, nodes.Name):
            found = self.find(inner.name)
            return found is not None and found.place == "lane"
        return self.layout.place(query_text(inner)) == "lane"

    # Effects

    def _effect(self, call: nodes.Call, mask: Mask) -> None:
        if barrier_scope(call.function) is not None:
            self.barrier()
            return
        if call.function in self.calls:
            self.calls[call.function](self, call, mask)
            return
        atomic = atomic_operation(call.function)
        if atomic in _ATOMICS and len(call.arguments) == 2:
            self._atomic(_ATOMICS[atomic], call, mask)
            return
        if call.place.span in self.joins:
            raise Unfit(f"{call.function} stores what it joins")
        raise Unfit(f"the function {call.function} has no words in Triton")

    def _atomic(self, word: str, call: nodes.Call, mask: Mask) -> None:
        dtype, place = self._pointer(call.arguments[0], mask)
        value = self.place_or_value(call.arguments[1], mask)
        own = self.layout.thread_axes
        masked = frozenset().union(*(each.axes for each in mask if self._is_lane_part(each)))
        if self.layout.lane_axis is not None and self.layout.lane_axis not in place.axes | value.axes:
            own = own - {self.layout.lane_axis} if masked else own
        is_own = self.layout.lane_axis in place.axes | value.axes and not self.tiled
        if self.layout.is_free and (is_own or (own - place.axes - value.axes and not masked)):
            raise Unfit("each thread of a block changes the same element")
        self._store_text(word, place, converted(value, dtype), value.axes | own, mask)

    def barrier(self) -> None:
        """Threads of a program meet, where one may load later what another has stored."""
        facts = self.subject.analysis.facts
        written = {each.array for each in facts.accesses if each.kind != "read" and each.space == "global"}
        if any(each.array in written and each.kind != "write" for each in facts.accesses):
            self.add("tl.debug_barrier()")

    def _declare(self, declarator: nodes.Declarator, mask: Mask) -> None:
        name, key = declarator.name, declarator.place.span.start
        if declarator.is_shared:
            raise Unfit(f"its threads share {name} in a way that is no sum, product, max or min of a block")
        if declarator.extents or declarator.is_reference or isinstance(declarator.initial, nodes.Items):
            raise Unfit(f"the variable {name} is no number")
        if declarator.is_pointer:
            if declarator.initial is None:
                raise Unfit(f"the pointer {name} is set later")
            dtype, place = self._pointer(declarator.initial, mask)
            text = self.fresh(name)
            self.axes[key] = self.axes.get(key, NOWHERE) | place.axes
            self.add(f"{text} = {self.spread(place, self.axes[key])}")
            self.scopes[-1][name] = Variable(key, text, dtype, mask, self.depth, is_pointer=True)
            return
        made = None if declarator.initial is None else self.place_or_value(declarator.initial, mask)
        is_auto = made is not None and declarator.c_type.removeprefix("const ") == "auto"
        dtype = made.dtype if made is not None and is_auto else c_dtype(declarator.c_type, self.language)
        self._set(name, key, made or TritonValue("0", dtype, is_literal=True), dtype, mask)

    def _set(self, name: str, key: object, made: TritonValue, dtype: str, mask: Mask) -> None:
        """A variable, or a new one in its place, with the value that it starts with."""
        own = self.axes[key] = self.axes.get(key, NOWHERE) | made.axes
        text = self.fresh(name)
        is_zero = made.is_literal and made.text in ("0", "0.0")
        whole = TritonValue(self.typed(made, dtype), dtype, made.axes)  # an argument that is 1 is a constant
        self.add(f"{text} = {self.spread(whole, own)}")
        self.scopes[-1][name] = Variable(key, text, dtype, mask, self.depth, place=made.place, starts_at_zero=is_zero)

    def _assign(self, target: nodes.Expression, operator: str, value: nodes.Expression, mask: Mask) -> None:
        if operator != "=":
            value = nodes.Binary(target.place, operator.removesuffix("="), target, value)
        made = self.used(self.place_or_value(value, mask))
        match target:
            case nodes.Name(name=name) if (found := self.find(name)) is not None:
                self.change(name, found, made, mask)
            case nodes.Element() | nodes.Unary(operator="*"):
                self._store(target, made, mask)
            case _:
                raise Unfit("it stores to what is neither a variable nor an element")

    def change(self, name: str, found: Variable, made: TritonValue, mask: Mask) -> None:
        """Give a variable another value, under a mask."""
        if found.is_pointer:
            raise Unfit(f"the pointer {name} moves along")
        if isinstance(found.key, str):
            raise Unfit(f"the argument {name} is changed")
        scope = next(each for each in reversed(self.scopes) if name in each)
        if found.mask == mask and found.depth == self.depth:
            key = (found.key, "next") if not isinstance(found.key, tuple) else (*found.key, "next")
            own = self.axes[key] = self.axes.get(key, NOWHERE) | made.axes
            text = self.fresh(name)
            self.add(f"{text} = {self.spread(TritonValue(self.typed(made, found.dtype), found.dtype, made.axes), own)}")
            scope[name] = replace(found, key=key, text=text, place=made.place, starts_at_zero=False)
            return
        parts = mask[len(found.mask) :] if mask[: len(found.mask)] == found.mask else mask
        asked = self._joined(parts)
        own = self.axes[found.key] = self.axes.get(found.key, NOWHERE) | made.axes | asked.axes
        text = self.typed(made, found.dtype)
        if asked.text:
            text = f"tl.where({asked.text}, {text}, {found.text})"
        self.add(f"{found.text} = {self.spread(TritonValue(text, found.dtype, made.axes | asked.axes), own)}")
        if not self.tiled:
            scope[name] = replace(found, starts_at_zero=False)

    def typed(self, value: TritonValue, dtype: str) -> str:
        """A value in a type, which numbers that Python would give another one get too."""
        return converted(value, dtype) if value.axes else cast(value.text, dtype)

    def _store(self, target: nodes.Expression, made: TritonValue, mask: Mask) -> None:
        dtype, place = self._address(target, mask)
        if not mask:
            raise Unfit("memory is stored to without a bound")
        if self.layout.is_free and self.has_grid_loop:
            raise Unfit("a part of a sum over the grid is stored")
        lane = self.layout.lane_axis
        if lane is not None and self.layout.is_free and lane in made.axes | place.axes and not self.tiled:
            raise Unfit("a thread stores what is its own")
        self._store_text("tl.store", place, converted(made, dtype), made.axes, mask)
        span = target.place.span
        array = nodes.root_name(target)
        later = [each for each in self.subject.analysis.facts.accesses
                 if each.array == array and each.kind != "write" and each.span.start > span.end]  # fmt: skip
        if later or self.depth > self.tiled:
            facts = self.subject.analysis.facts.accesses
            if any(each.array == array and each.kind != "write" for each in facts):
                self.add("tl.debug_barrier()")

    def _store_text(self, word: str, place: TritonValue, text: str, more: frozenset[int], mask: Mask) -> None:
        axes = place.axes | more
        asked = self.mask_for(mask, axes)
        axes |= asked.axes
        ending = f", mask={asked.text}" if asked.text else ""
        whole = self.spread(replace(place, dtype="pointer"), axes)
        self.add(f"{word}({whole}, {text}{ending})")

    # Masks

    def _is_lane_part(self, part: Part) -> bool:
        return self.layout.lane_axis is not None and part.axes == {self.layout.lane_axis} and part.is_met

    def _joined(self, parts: Mask) -> TritonValue:
        axes = frozenset().union(*(each.axes for each in parts))
        if not axes:
            parts = tuple(replace(each, text=self._as_block(each.text)) for each in parts)
        text = " & ".join(each.text for each in parts)
        return TritonValue(f"({text})" if len(parts) > 1 else text, "bool", axes)

    def _as_block(self, text: str) -> str:
        """A number's condition as a block of one element, which joins with any."""
        return f"((tl.zeros({self.layout.shape(NOWHERE)}, tl.int32) + tl.cast({text}, tl.int32)) != 0)"

    def mask_for(self, mask: Mask, axes: frozenset[int]) -> TritonValue:
        """The mask of an access that differs along some axes: elsewhere it is made where any element asks for it."""
        parts: list[Part] = []
        for each in mask:
            lacking = each.axes - axes
            if not lacking:
                parts.append(each)
            elif not each.is_met:
                text = f"{each.text}.to(tl.int32)"
                for axis in sorted(lacking):
                    text = f"tl.max({text}, axis={axis}, keep_dims=True)"
                parts.append(Part(f"({text} > 0)", each.axes - lacking))
        return self._joined(tuple(parts))

    def bound(self, value: TritonValue) -> TritonValue:
        """A name for what is computed now."""
        self.made += 1
        name = f"{'mask' if value.dtype == 'bool' else 'tile'}{self.made}"
        self.add(f"{name} = {value.text}")
        return replace(value, text=name)

    # Expressions

    def value(self, node: nodes.Expression, mask: Mask) -> TritonValue:
        """An expression that is used for more than the thread's place."""
        return self.used(self.place_or_value(node, mask))

    def used(self, value: TritonValue) -> TritonValue:
        """A value, where how many threads a block has does not matter for it.

        Raises:
            Unfit: it does.
        """
        if self.layout.is_free and value.place in ("lane", "size", "grid", "rowsize", "all", "stride"):
            raise Unfit("what a thread does depends on its number in the block")
        return value

    def place_or_value(self, node: nodes.Expression, mask: Mask) -> TritonValue:
        """An expression, which may be the thread's place alone."""
        found = self.layout.value_of(node)
        if found is not None:
            return found
        match node:
            case nodes.Literal():
                return literal_value(node)
            case nodes.Name(name=name):
                return self.named(name)
            case nodes.Element() | nodes.Unary(operator="*"):
                return self._load(*self._address(node, mask), mask)
            case nodes.Unary(operator=operator, operand=operand):
                return self._unary(operator, operand, mask)
            case nodes.Binary(operator=operator, left=left, right=right):
                return self._binary(operator, left, right, mask)
            case nodes.Conditional(condition=condition, yes=yes, no=no):
                return self._conditional(condition, yes, no, mask)
            case nodes.Cast(c_type=c_type, is_pointer=False, operands=(operand,), is_reinterpreting=False):
                inner = self.place_or_value(operand, mask)
                dtype = c_dtype(c_type, self.language)
                return replace(inner, text=converted(inner, dtype), dtype=dtype, is_literal=False) if not (
                    inner.is_literal
                ) else replace(inner, text=cast(inner.text, dtype), dtype=dtype, is_literal=False)  # fmt: skip
            case nodes.Call(template_arguments=()) if node.place.span in self.joins:
                return self._join(node, mask)
            case nodes.Call(function=name, arguments=(place,)) if is_cached_load(name):
                return self._load(*self._pointer(place, mask), mask)
            case nodes.Call(function=name, arguments=arguments, template_arguments=()):
                return called(name, [self.value(each, mask) for each in arguments])
        raise Unfit(f"an expression has no words in Triton ({type(node).__name__.lower()})")

    def named(self, name: str) -> TritonValue:
        """What a name in C stands for."""
        found = self.find(name)
        if found is not None and not found.is_pointer:
            axes = NOWHERE if isinstance(found.key, str) else self.axes.get(found.key, NOWHERE)
            return TritonValue(found.text, found.dtype, axes, place=found.place)
        number = known_number(name)
        if found is None and number is not None:
            return number
        tree = self.subject.analysis.tree
        macros = [each.value for each in tree.expanded.macros.values() if each.name == name and each.is_parameter]
        if found is None and macros and macros[0] is not None:
            return TritonValue(str(macros[0]), "int32", is_literal=True, place=self.layout.place_of_number(macros[0]))
        constant = next((each.value for each in tree.constants if each.name == name), None)
        if found is None and constant is not None:
            return self.place_or_value(constant, ())
        raise Unfit(f"the name {name} has no words in Triton")

    def _unary(self, operator: str, operand: nodes.Expression, mask: Mask) -> TritonValue:
        if operator == "!":
            asked = self._condition(operand, mask)
            return TritonValue(f"({asked.text} == 0)", "bool", asked.axes)
        inner = self.value(operand, mask)
        if operator == "+":
            return inner
        if operator not in ("-", "~") or (operator == "~" and is_float(inner.dtype)):
            raise Unfit(f"the operator {operator} has no words in Triton")
        return replace(inner, text=f"({operator}{inner.text})", place="")

    def _conditional(
        self, condition: nodes.Expression, yes: nodes.Expression, no: nodes.Expression, mask: Mask
    ) -> TritonValue:
        asked = self.bound(self._condition(condition, mask))
        one = self.used(self.place_or_value(yes, self._loading(yes, asked, mask)))
        opposite = replace(asked, text=f"({asked.text} == 0)")
        other = self.used(self.place_or_value(no, self._loading(no, opposite, mask)))
        dtype, first, second = alike(one, other)
        if one.is_literal and other.is_literal:
            first = cast(first, dtype)
        text = f"tl.where({asked.text}, {first}, {second})"
        return TritonValue(text, dtype, asked.axes | one.axes | other.axes)

    def _loading(self, node: nodes.Expression, condition: TritonValue, mask: Mask) -> Mask:
        """The mask for what is only computed under a condition; the same where nothing is loaded there."""
        if not any(isinstance(each, nodes.Element | nodes.Unary) for each in nodes.walk(node)):
            return mask
        return (*mask, Part(condition.text, condition.axes))

    def _binary(self, operator: str, left: nodes.Expression, right: nodes.Expression, mask: Mask) -> TritonValue:
        if operator in ("&&", "||"):
            return self._both(operator, left, right, mask)
        node = nodes.Binary(left.place, operator, left, right)
        if self._is_first_lane(node):
            return TritonValue(f"({self.layout.lane_text} == 0)", "bool", frozenset((self.layout.lane_axis or 0,)))
        one, other = self.place_or_value(left, mask), self.place_or_value(right, mask)
        place = self.layout.joined_place(operator, one, other)
        if not place:
            one, other = self.used(one), self.used(other)
        dtype, first, second = alike(one, other)
        axes = one.axes | other.axes
        if operator in _COMPARISONS:
            return TritonValue(f"({first} {operator} {second})", "bool", axes)
        if operator not in ("+", "-", "*", "/") and (
            is_float(dtype) or operator not in ("%", "<<", ">>", "&", "|", "^")
        ):
            raise Unfit(f"the operator {operator} has no words in Triton for {dtype}")
        is_literal = one.is_literal and other.is_literal
        if is_literal and operator in ("/", "%") and not is_float(dtype):  # Python rounds down, C to zero
            is_literal, first = False, cast(first, dtype)
        word = "//" if operator == "/" and not is_float(dtype) else operator
        return TritonValue(f"({first} {word} {second})", dtype, axes, is_literal, place)

    def _both(self, operator: str, left: nodes.Expression, right: nodes.Expression, mask: Mask) -> TritonValue:
        first = self.bound(self._condition(left, mask))
        decided = first if operator == "&&" else replace(first, text=f"({first.text} == 0)")
        second = self._condition(right, self._loading(right, decided, mask))
        word = "&" if operator == "&&" else "|"
        return TritonValue(f"({first.text} {word} {second.text})", "bool", first.axes | second.axes)

    def _condition(self, node: nodes.Expression, mask: Mask) -> TritonValue:
        value = self.value(node, mask)
        lane = self.layout.lane_axis
        if self.layout.is_free and not self.tiled and lane in value.axes and not self._is_first_lane(node):
            raise Unfit("what a thread does depends on what is its own")
        text = value.text if value.dtype == "bool" and not value.is_literal else f"({value.text} != 0)"
        return replace(value, text=text if value.axes else self._as_block(text), dtype="bool", is_literal=False)

    # Joins

    def _join(self, call: nodes.Call, mask: Mask) -> TritonValue:
        """What all threads of a block make of their values."""
        operation = self.joins[call.place.span]
        given = [each for each in call.arguments if not isinstance(each, nodes.Literal)]
        given = [each for each in given if not (isinstance(each, nodes.Name) and self.is_shared(each.name))]
        lane = self.layout.lane_axis
        if len(given) != 1 or lane is None:
            raise Unfit(f"what {call.function} joins is not known")
        if self.layout.is_free and operation in ("sum", "product") and not self._is_own_sum(given[0]):
            raise Unfit("a thread with nothing to do has a share in a sum")
        made = self.value(given[0], mask)
        whole = replace(made, text=self.spread(made, made.axes | {lane}), axes=made.axes | {lane})
        return self.reduced(whole, operation, lane)

    def is_shared(self, name: str) -> bool:
        """Whether a name is an array that the threads of a block share."""
        array = self.subject.analysis.facts.arrays.get(name)
        return array is not None and array.space == "shared"

    def _is_own_sum(self, node: nodes.Expression) -> bool:
        for each in terms(bare(node), "*"):
            found = self.find(each.name) if isinstance(each, nodes.Name) else None
            if found is not None and found.starts_at_zero:
                return True
        return False

    def reduced(self, value: TritonValue, operation: Operation, axis: int) -> TritonValue:
        """A block joined along an axis."""
        if operation == "product":
            text = f"tl.reduce({value.text}, {axis}, multiplied, keep_dims=True)"
        else:
            text = f"{_JOINS[operation]}({value.text}, axis={axis}, keep_dims=True)"
        return TritonValue(cast(text, value.dtype), value.dtype, value.axes - {axis})

    # Memory

    def _address(self, node: nodes.Expression, mask: Mask) -> tuple[str, TritonValue]:
        """What stands in an element, and where it is."""
        match node:
            case nodes.Element(base=base, index=index):
                dtype, start = self._pointer(base, mask)
                return dtype, self._moved(start, index, mask)
            case nodes.Unary(operator="*", operand=operand):
                return self._pointer(operand, mask)
        raise Unfit("it stores to what is neither a variable nor an element")

    def _moved(self, start: TritonValue, index: nodes.Expression, mask: Mask) -> TritonValue:
        by = self.value(index, mask)
        if is_float(by.dtype):
            raise Unfit("an index is no integer")
        return TritonValue(f"{start.text} + {by.text}", "pointer", start.axes | by.axes)

    def _pointer(self, node: nodes.Expression, mask: Mask) -> tuple[str, TritonValue]:
        match node:
            case nodes.Name(name=name) if (found := self.find(name)) is not None and found.is_pointer:
                axes = NOWHERE if isinstance(found.key, str) else self.axes.get(found.key, NOWHERE)
                return found.dtype, TritonValue(found.text, "pointer", axes)
            case nodes.Binary(operator="+", left=left, right=right):
                dtype, start = self._pointer(left, mask)
                return dtype, self._moved(start, right, mask)
            case nodes.Unary(operator="&", operand=operand):
                return self._address(operand, mask)
            case nodes.Name(name=name) if self.is_shared(name) or self.find(name) is None:
                raise Unfit(f"its threads share {name} in a way that is no sum, product, max or min of a block")
        raise Unfit("a pointer is made in a way that has no words in Triton")

    def _load(self, dtype: str, place: TritonValue, mask: Mask) -> TritonValue:
        asked = self.mask_for(mask, place.axes)
        if not place.axes and asked.text:  # one number under a condition of one
            place = replace(place, text=f"{place.text} + tl.zeros({self.layout.shape(NOWHERE)}, tl.int32)")
        ending = f", mask={asked.text}, other=0" if asked.text else ""
        return TritonValue(f"tl.load({place.text}{ending})", dtype, place.axes)

    # Text

    def add(self, line: str) -> None:
        """One more line."""
        self.lines.append("    " * self._indent + line)

    def indented(self, by: int) -> None:
        """Lines that follow stand further in."""
        self._indent += by

    def spread(self, value: TritonValue, axes: frozenset[int]) -> str:
        """A value as a block that has some extent along all of these axes."""
        if axes <= value.axes:
            return value.text
        whole = self.layout.shape(axes | value.axes)
        if value.dtype == "pointer":
            return f"{value.text} + tl.zeros({whole}, tl.int32)"
        text = value.text if value.axes else cast(value.text, value.dtype)
        return f"tl.broadcast_to({text}, {whole})"

    def fresh(self, name: str) -> str:
        """A name in Triton that nothing has yet."""
        plain = names_in_triton((name,))[name]
        made, count = plain, 1
        while made in self.taken:
            count += 1
            made = f"{plain}_v{count}"
        self.taken.add(made)
        return made

    def find(self, name: str) -> Variable | None:
        """What a name stands for here."""
        return next((each[name] for each in reversed(self.scopes) if name in each), None)


@dataclass(slots=True)
class _Told:
    node: nodes.Node
    source: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Unfit) and not error.reason.startswith("line "):
            raise Unfit(f"line {self.node.place.span.line(self.source)}: {error.reason}") from error
