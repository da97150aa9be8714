"""One lane's code as code for a vector of lanes.

Neighbouring values of one index (a thread's or a loop's) are the lanes. Integers that only place things are kept for
lane 0: they must move by a known step from lane to lane. What is loaded with step 1 is a vector, and so is what is
made of it.
Where lanes would go different ways the vector code gives up, and its caller goes lane by lane.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelwright.refactor import nodes
from kernelwright.refactor.functions import (
    atomic_operation,
    barrier_scope,
    is_cached_load,
    is_cached_store,
    is_exchange,
    is_pure,
    math_function,
    vector_load,
    vector_store,
)
from kernelwright.refactor.span import Span
from kernelwright.refactor.tactics.base import Unfit
from kernelwright.refactor.tactics.dialect import Dialect

COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!="))
_SCALAR_ONLY = frozenset(("select", "bitselect", "any", "all", "isequal", "signbit", "frexp", "modf", "sincos", "fract",
                          "remquo", "lgamma_r"))  # fmt: skip
_OPENCL_TYPES = {"float": "float", "double": "double", "int": "int", "uint": "uint", "unsigned": "uint",
                 "unsigned int": "uint", "half": "half"}  # fmt: skip
_TESTS = frozenset(("isnan", "isinf", "isfinite", "isnormal", "isless", "isgreater"))


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value is across the lanes."""

    step: int = 0
    """From one lane to the next, for an integer or pointer that is the same code for all; 0 is uniform."""
    is_varying: bool = False
    """Whether it is data that each lane has its own of."""
    c_type: str = ""
    """Of data: the scalar type where the dialect needs it (OpenCL); `bool` for comparisons."""


UNIFORM = Kind()


@dataclass
class Lanes:
    """Turns statements of one function into code for `VEC` lanes; one use."""

    source: str
    dialect: Dialect
    tree: nodes.SyntaxTree
    queries: Mapping[str, int]
    """By thread query (`blockIdx.x`, `get_global_id(0)`): its step; what is not here is refused."""
    ones: frozenset[str] = frozenset()
    """Queries whose value is 1."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Declared types of parameters, by name: the element's for pointers."""
    give_up: str = ""
    """A statement that leaves the vector code before anything was stored; empty where that is not possible."""
    leave: str = ""
    """What `return;` becomes; empty: it stays."""
    vec: str = "VEC"
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Accumulators, with their vector names."""
    start: Mapping[str, Kind] = field(default_factory=dict)
    """Kinds of variables from outside."""
    kinds: dict[str, Kind] = field(default_factory=dict)
    pointers: set[str] = field(default_factory=set)
    arrays: dict[str, str] = field(default_factory=dict)
    """Local arrays with their element types."""
    mapped: dict[tuple[str, int], None] = field(default_factory=dict)
    """CUDA: functions that are called lane by lane, with their argument counts."""
    clones: dict[str, str] = field(default_factory=dict)
    """OpenCL: vector forms of the file's own functions, by name."""
    early: dict[str, None] = field(default_factory=dict)
    """Checks that belong to the start of the vector code."""
    declared: set[str] = field(default_factory=set)
    """Variables of the code itself."""
    loaded: dict[str, tuple[str, Span]] = field(default_factory=dict)
    """By the text of a load: its element type and where it stands."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Loads that a register array keeps, by their text."""
    fills: frozenset[str] = frozenset()
    """Those that fill it."""
    vector_loads: int = 0
    vector_stores: int = 0
    has_stored: bool = False

    def __post_init__(self) -> None:
        self.data = self.source.encode("utf-8", "surrogatepass")
        self.functions = {each.name: each for each in self.tree.functions}

    # Kinds

    def settle(self, body: Sequence[nodes.Statement]) -> None:
        """Find out what every variable is; the code may use a variable in one way only.

        Raises:
            Unfit: one changes its way, or something is not followed.
        """
        self._refuse_hidden(body)
        for name in self.types:
            self.kinds.setdefault(name, UNIFORM)
        self.kinds.update(self.start)
        for _ in range(12):
            before = dict(self.kinds)
            for statement in body:
                for node in nodes.walk(statement):
                    self._note(node)
            if self.kinds == before:
                return
        raise Unfit("how its variables depend on each other could not be followed")

    def _refuse_hidden(self, body: Sequence[nodes.Statement]) -> None:
        """One name must mean one thing: kinds are kept by name."""
        seen: dict[str, tuple[str, bool]] = {}
        for statement in body:
            for node in nodes.walk(statement):
                if isinstance(node, nodes.Declarator):
                    what: tuple[str, bool] = (node.c_type, node.is_pointer)
                    if node.name in self.types or seen.setdefault(node.name, what) != what:
                        raise Unfit(f"{node.name} names several things")

    def _note(self, node: nodes.Node) -> None:
        match node:
            case nodes.If(condition=condition) if self.kind(condition).is_varying:
                for name in sorted(nodes.assigned_names(node)):
                    declared = self.types.get(name, "")
                    c_type = self._opencl_type(declared) if self.dialect.is_opencl else declared
                    self._join(name, Kind(is_varying=True, c_type=c_type))
            case nodes.Declarator():
                self._declare(node)
            case nodes.Assign(target=target, operator=operator, value=value):
                root = nodes.root_name(target) if isinstance(target, nodes.Name | nodes.Element) else None
                if root is not None and (isinstance(target, nodes.Name) or root in self.arrays):
                    kind = self.kind(value)
                    if operator != "=" and isinstance(target, nodes.Name):
                        kind = self._moved(root, operator, kind)
                    self._join(root, kind)
            case nodes.OpaqueExpression(reason=reason) | nodes.OpaqueStatement(reason=reason):
                raise Unfit(f"something is not understood: {reason}")

    def _moved(self, name: str, operator: str, kind: Kind) -> Kind:
        before = self.kinds.get(name, UNIFORM)
        if kind.is_varying or before.is_varying:
            return kind if kind.is_varying else before
        if operator in ("+=", "-="):
            if kind.step:
                raise Unfit(f"{name} moves by another amount in every lane")
            return before
        if before.step or kind.step:
            raise Unfit(f"{name} changes in a way that is not followed")
        return UNIFORM

    def _declare(self, node: nodes.Declarator) -> None:
        if node.is_shared:
            raise Unfit("it uses shared memory")
        if node.is_reference:
            raise Unfit("it uses references")
        if node.extents:
            self.arrays[node.name] = node.c_type
            self.kinds.setdefault(node.name, UNIFORM)
            if node.initial is not None:
                raise Unfit("it initialises a local array")
            return
        if node.is_pointer:
            self.pointers.add(node.name)
        self.types = {**self.types, node.name: node.c_type}
        self.declared.add(node.name)
        self._join(node.name, UNIFORM if node.initial is None else self.kind(node.initial))

    def _join(self, name: str, kind: Kind) -> None:
        before = self.kinds.get(name)
        if before is None or before == UNIFORM:
            self.kinds[name] = self._typed(name, kind)
        elif (kind not in (before, UNIFORM) and not (kind.is_varying and before.is_varying)) or (
            before.step and kind == UNIFORM
        ):
            raise Unfit(f"{name} is used in different ways")

    def _typed(self, name: str, kind: Kind) -> Kind:
        if not kind.is_varying:
            return kind
        if name in self.pointers:
            raise Unfit("a pointer comes from memory")
        declared = self.types.get(name, self.arrays.get(name, ""))
        if not self.dialect.is_opencl:
            return Kind(is_varying=True, c_type=declared)
        if declared not in _OPENCL_TYPES or declared == "half":
            raise Unfit(f"{name} has type {declared or 'unknown'}, for which there are no vectors here")
        if kind.c_type not in ("", _OPENCL_TYPES[declared]):
            raise Unfit(f"{name} converts from {kind.c_type} to {declared} without a cast")
        return Kind(is_varying=True, c_type=_OPENCL_TYPES[declared])

    def kind(self, node: nodes.Expression) -> Kind:  # noqa: C901
        """What an expression is across lanes.

        Raises:
            Unfit: it is not followed.
        """
        match node:
            case nodes.Name(name=name):
                return self.kinds.get(name, UNIFORM)
            case nodes.Literal() | nodes.SizeOf():
                return UNIFORM
            case nodes.Member():
                return self._query(query_text(node)) if query_text(node) else self._plain(node)
            case nodes.Call():
                return self._call_kind(node)
            case nodes.Element(base=base, index=index):
                return self._element_kind(node, base, index)
            case nodes.Unary(operator="*", operand=operand):
                return self._loaded(self.kind(operand), self._element_type(operand))
            case nodes.Unary(operator="&", operand=nodes.Element(base=base, index=index)):
                return Kind(self.steps(self.kind(base), self.kind(index)))
            case nodes.Unary(operator=operator, operand=operand):
                inner = self.kind(operand)
                if operator == "-" and not inner.is_varying:
                    return Kind(-inner.step)
                return self._placed(inner) if inner.step and operator != "+" else inner
            case nodes.Binary():
                return self._binary_kind(node)
            case nodes.Conditional(condition=condition, yes=yes, no=no):
                return self._choice_kind(self.kind(condition), self.kind(yes), self.kind(no))
            case nodes.Cast():
                return self._cast_kind(node)
            case nodes.Assign(value=value) | nodes.Update(operand=value):
                return self.kind(value)
        return self._plain(node)

    def _plain(self, node: nodes.Expression) -> Kind:
        """Anything else is fine while it is the same in all lanes."""
        if isinstance(node, nodes.OpaqueExpression):
            raise Unfit(f"something is not understood: {node.reason}")
        for child in nodes.children(node):
            if isinstance(child, nodes.Declarator) or self.kind(child) != UNIFORM:  # type: ignore[arg-type]
                raise Unfit("an expression of a form that has no vector")
        return UNIFORM

    def _placed(self, kind: Kind) -> Kind:
        raise Unfit("an index is made in a way that is not linear in the lane")

    def steps(self, *kinds: Kind) -> int:
        """The step of a place that several values make together."""
        if any(kind.is_varying for kind in kinds):
            raise Unfit("an index or a pointer is made of data")
        return sum(kind.step for kind in kinds)

    def _query(self, text: str) -> Kind:
        if text not in self.queries:
            raise Unfit(f"it asks for {text}")
        return Kind(self.queries[text])

    def _call_kind(self, node: nodes.Call) -> Kind:
        if text := query_text(node):
            return self._query(text)
        name = node.function
        if barrier_scope(name) or is_exchange(name) or atomic_operation(name):
            raise Unfit(f"threads meet in {name}")
        if (shape := vector_load(name)) is not None:
            if shape[0] != 1:
                raise Unfit("it already loads vectors")
            step = self.steps(*(self.kind(each) for each in node.arguments))
            return self._loaded(Kind(step), "float")
        if is_cached_load(name):
            return self._loaded(self.kind(node.arguments[0]), self._element_type(node.arguments[0]))
        kinds = [self.kind(each) for each in node.arguments]
        if all(kind == UNIFORM for kind in kinds):
            return UNIFORM
        if any(kind.step for kind in kinds):
            return Kind(self._inlined_step(node, kinds))
        return self._function_kind(node, kinds)

    def _function_kind(self, node: nodes.Call, kinds: list[Kind]) -> Kind:
        name = node.function
        own = self.functions.get(name)
        if own is not None:
            if any(each.is_pointer or each.is_reference for each in own.parameters):
                raise Unfit(f"{name} gets a pointer")
            return Kind(is_varying=True, c_type=self._opencl_type(own.c_type))
        known = math_function(name)
        if known is None and not is_pure(name):
            raise Unfit(f"it is not known what {name} does")
        if not self.dialect.is_opencl:
            return Kind(is_varying=True)
        if known is not None and (known[0] in _SCALAR_ONLY or name in _SCALAR_ONLY):
            raise Unfit(f"{name} means something else for vectors")
        types = {kind.c_type for kind in kinds if kind.is_varying}
        if len(types) != 1:
            raise Unfit(f"{name} gets vectors of different types")
        if name in _TESTS:
            return Kind(is_varying=True, c_type="bool")
        if match := re.fullmatch(r"(?:convert|as)_(\w+?)(?:_rt[ezpn])?", name):
            return Kind(is_varying=True, c_type=self._opencl_type(match[1]))
        return Kind(is_varying=True, c_type=types.pop())

    def _opencl_type(self, c_type: str) -> str:
        if not self.dialect.is_opencl:
            return c_type
        if c_type not in _OPENCL_TYPES or c_type == "half":
            raise Unfit(f"there are no vectors of {c_type} here")
        return _OPENCL_TYPES[c_type]

    def _inlined_step(self, node: nodes.Call, kinds: list[Kind]) -> int:
        """Of an index function that is one expression: `at(row, col, ld)`."""
        function = self.functions.get(node.function)
        body = function.body.statements if function is not None else ()
        if node.function in ("mad24", "mul24") and not any(kind.is_varying for kind in kinds):
            if node.function == "mad24" and not kinds[0].step and not kinds[1].step:
                return kinds[2].step
        elif (
            function is not None and len(body) == 1 and isinstance(body[0], nodes.Return) and body[0].value is not None
        ):
            inner = replace(
                self,
                kinds=dict(zip((p.name for p in function.parameters), kinds, strict=False)),
                types={p.name: p.c_type for p in function.parameters},
                start={},
            )
            return inner.steps(inner.kind(body[0].value))
        raise Unfit(f"an index goes through {node.function}")

    def _element_kind(self, node: nodes.Element, base: nodes.Expression, index: nodes.Expression) -> Kind:
        if isinstance(base, nodes.Name) and base.name in self.arrays:
            if self.kind(index) != UNIFORM:
                raise Unfit(f"{base.name} is indexed by the lane")
            return self.kinds.get(base.name, UNIFORM)
        return self._loaded(Kind(self.steps(self.kind(base), self.kind(index))), self._element_type(node))

    def _loaded(self, place: Kind, c_type: str) -> Kind:
        step = self.steps(place)
        if step == 0:
            return UNIFORM
        if step != 1:
            raise Unfit("neighbouring lanes load from places that do not lie side by side")
        if self.dialect.is_opencl:
            c_type = self._opencl_type(c_type)
        return Kind(is_varying=True, c_type=c_type)

    def _element_type(self, node: nodes.Expression) -> str:
        name = nodes.root_name(node)
        return self.types.get(name or "", "")

    def _binary_kind(self, node: nodes.Binary) -> Kind:
        left, right = self.kind(node.left), self.kind(node.right)
        if left.is_varying or right.is_varying:
            return self._data_kind(node, left, right)
        operator = node.operator
        if left == UNIFORM == right:
            return UNIFORM
        if operator in "+-":
            return Kind(left.step + (right.step if operator == "+" else -right.step))
        if operator == "*":
            for moving, other, factor in ((left, right, node.right), (right, left, node.left)):
                constant = self._constant(factor)
                if other == UNIFORM and constant is not None:
                    return Kind(moving.step * constant)
        if operator in COMPARISONS or operator in ("&&", "||"):
            if not self.give_up:
                raise Unfit("a condition depends on the lane")
            return UNIFORM
        return self._placed(left)

    def _constant(self, node: nodes.Expression) -> int | None:
        match node:
            case nodes.Literal(value=value):
                return value
            case nodes.Cast(operands=(inner,), is_pointer=False):
                return self._constant(inner)
            case nodes.Member() | nodes.Call():
                return 1 if query_text(node) in self.ones else None
        return None

    def _data_kind(self, node: nodes.Binary, left: Kind, right: Kind) -> Kind:
        if left.step or right.step:
            raise Unfit("the lane's index is used as a number")
        types = {kind.c_type for kind in (left, right) if kind.is_varying}
        is_test = node.operator in COMPARISONS or node.operator in ("&&", "||")
        if not self.dialect.is_opencl:
            return Kind(is_varying=True, c_type="bool" if is_test else "")
        if len(types) != 1 or ("bool" in types and node.operator not in ("&&", "||")):
            raise Unfit("it mixes types, which vectors do not")
        if "bool" in types and not (left.is_varying and right.is_varying):
            raise Unfit("it mixes conditions on data with others")
        self._refuse_doubles(node, types)
        return Kind(is_varying=True, c_type="bool" if is_test else types.pop())

    def _refuse_doubles(self, node: nodes.Node, types: set[str]) -> None:
        if "double" in types:
            return
        for child in nodes.children(node):
            if isinstance(child, nodes.Declarator) or self.kind(child).is_varying:  # type: ignore[arg-type]
                continue
            for each in nodes.walk(child):
                match each:
                    case nodes.Literal(value=None, text=text) if re.fullmatch(r"[\d.]+(?:[eE][-+]?\d+)?", text):
                        raise Unfit(f"{text} is a double, so float vectors would compute something else")
                    case nodes.Name(name=name) if self.types.get(name) == "double":
                        raise Unfit(f"{name} is a double")

    def _choice_kind(self, condition: Kind, yes: Kind, no: Kind) -> Kind:
        if condition.step:
            raise Unfit("a condition depends on the lane")
        if condition.is_varying or yes.is_varying or no.is_varying:
            if yes.step or no.step:
                raise Unfit("the lane's index is used as a number")
            types = {kind.c_type for kind in (yes, no) if kind.is_varying and kind.c_type}
            if len(types) > 1 and self.dialect.is_opencl:
                raise Unfit("it mixes types, which vectors do not")
            if condition.is_varying and condition.c_type not in ("bool", "") and self.dialect.is_opencl:
                raise Unfit("a number is used as a condition")
            if not types and self.dialect.is_opencl:
                raise Unfit("a choice between constants")
            return Kind(is_varying=True, c_type=types.pop() if types else "")
        if yes.step != no.step:
            raise Unfit("an index is chosen by a condition")
        return yes

    def _cast_kind(self, node: nodes.Cast) -> Kind:
        kinds = [self.kind(each) for each in node.operands]
        if all(kind == UNIFORM for kind in kinds):
            return UNIFORM
        if len(kinds) != 1 or node.is_pointer or node.is_reinterpreting:
            raise Unfit("it makes vectors or casts pointers itself")
        if kinds[0].is_varying:
            return Kind(is_varying=True, c_type=self._opencl_type(node.c_type))
        if re.search(r"float|double|half|bool|char|short", node.c_type):
            raise Unfit("the lane's index is used as a number")
        return kinds[0]

    # Text

    def block(self, statements: Sequence[nodes.Statement]) -> str:
        """Several statements, with the blanks and comments between them."""
        if not statements:
            return ""
        parts = []
        at = statements[0].place.span.start
        for each in statements:
            parts.append(self._raw(at, each.place.span.start))
            parts.append(self.statement(each))
            at = each.place.span.end
        return "".join(parts)

    def statement(self, node: nodes.Statement) -> str:
        """One statement for all lanes.

        Raises:
            Unfit: it has no such form.
        """
        if not node.place.is_exact:
            raise Unfit("a macro makes whole statements")
        match node:
            case nodes.Declaration():
                return self.checks(node) + self._declaration(node)
            case nodes.Evaluate(expression=expression):
                return self.checks(expression) + self._evaluate(node, expression)
            case nodes.Block(statements=statements):
                return self._around(node, statements)
            case nodes.If():
                return self._if(node)
            case nodes.Loop():
                return self._loop(node)
            case nodes.Return(value=value):
                if value is None:
                    return self.leave or self._text(node)
                return self._around(node, (value,))
            case nodes.Jump():
                return self._text(node)
        raise Unfit("a statement that is not understood")

    def _around(self, node: nodes.Node, inner: Sequence[nodes.Node]) -> str:
        """The text of a node with those below it replaced."""
        parts, at = [], node.place.span.start
        for each in inner:
            if each.place.span.start < at:
                raise Unfit("a macro makes parts of statements")
            parts.append(self._raw(at, each.place.span.start))
            is_statement = isinstance(
                each, nodes.Declaration | nodes.Evaluate | nodes.Block | nodes.If | nodes.Loop | nodes.Return
                | nodes.Jump | nodes.OpaqueStatement
            )  # fmt: skip
            parts.append(self.statement(each) if is_statement else self.expression(each))  # type: ignore[arg-type]
            at = each.place.span.end
        parts.append(self._raw(at, node.place.span.end))
        return "".join(parts)

    def _raw(self, start: int, end: int) -> str:
        return self.data[start:end].decode("utf-8", "surrogatepass")

    def _text(self, node: nodes.Node) -> str:
        if not node.place.is_exact:
            raise Unfit("a macro makes a part of what would change")
        return self._raw(node.place.span.start, node.place.span.end)

    def _declaration(self, node: nodes.Declaration) -> str:
        varying = [each for each in node.declarators if self.kinds.get(each.name, UNIFORM).is_varying]
        if not varying:
            return self._around(node, [each.initial for each in node.declarators if each.initial is not None])
        if any(each.is_pointer for each in node.declarators):
            raise Unfit("a declaration mixes pointers and numbers")
        first = node.declarators[0]
        prefix = self._raw(node.place.span.start, first.place.span.start)
        wide = self.wide_type(first.c_type)
        head, count = re.subn(rf"(?<!\w){re.escape(first.c_type)}(?!\w)", wide, prefix, count=1)
        if not count:
            raise Unfit(f"the type of {first.name} is written in a way that is not understood")
        head = re.sub(r"\b(?:constexpr|static)\s+", "", head)
        body = self._around(node, [each.initial for each in node.declarators if each.initial is not None])
        return head + body[len(prefix) :]

    def wide_type(self, c_type: str) -> str:
        """The vector type of a scalar type."""
        if c_type == "auto":
            return "auto"
        return f"kw_{self._opencl_type(c_type)}" if self.dialect.is_opencl else f"kw_lanes<{c_type}>"

    def _evaluate(self, node: nodes.Evaluate, expression: nodes.Expression) -> str:
        match expression:
            case nodes.Assign(target=nodes.Name()):
                return self._around(node, (expression,))
            case nodes.Assign(target=target, operator=operator, value=value):
                return self._store(node, target, operator, value)
            case nodes.Call(function=name, arguments=arguments) if (shape := vector_store(name)) is not None:
                if shape[0] != 1:
                    raise Unfit("it already stores vectors")
                return self._store_half(name, arguments)
            case nodes.Call(function=name, arguments=(place, value)) if is_cached_store(name):
                if self.kind(place).step != 1:
                    raise Unfit("all lanes store at one place")
                return self._stored(self._text(place), self._wide(value))
            case nodes.Update(operand=nodes.Name()):
                return self._text(node)
            case nodes.Binary(operator=","):
                raise Unfit("a comma joins two effects")
        raise Unfit("a statement whose effect has no vector form")

    def _store(self, node: nodes.Evaluate, target: nodes.Expression, operator: str, value: nodes.Expression) -> str:
        match target:
            case nodes.Element(base=nodes.Name(name=name), index=index) if name in self.arrays:
                if self.kind(index) != UNIFORM:
                    raise Unfit(f"{name} is indexed by the lane")
                return self._around(node, (target, value))
            case nodes.Element(base=base, index=index):
                step = self.steps(self.kind(base), self.kind(index))
            case nodes.Unary(operator="*", operand=operand):
                step = self.steps(self.kind(operand))
            case _:
                raise Unfit("it stores in a way that is not followed")
        if step != 1:
            raise Unfit("neighbouring lanes store at places that do not lie side by side")
        place = f"&({self._text(target)})"
        text = self._wide(value)
        if operator != "=":
            text = f"{self._load(target, place, self._element_type(target))} {operator[:-1]} ({text})"
        return self._stored(place, text, self._element_type(target))

    def _stored(self, place: str, value: str, c_type: str = "") -> str:
        self.has_stored = True
        self.vector_stores += 1
        if self.dialect.is_opencl:
            return f"*(__global kw_any_{self._opencl_type(c_type)} *)({place}) = {value};"
        return f"kw_store({place}, {value});"

    def _store_half(self, name: str, arguments: tuple[nodes.Expression, ...]) -> str:
        value, index, pointer = arguments
        if self.steps(self.kind(index), self.kind(pointer)) != 1:
            raise Unfit("neighbouring lanes store at places that do not lie side by side")
        self.has_stored = True
        self.vector_stores += 1
        rounding = name.removeprefix("vstore_half")
        place = f"({self._text(pointer)}) + ({self._text(index)})"
        stored = f"KW_JOIN(KW_N(vstore_half), {rounding})" if rounding else "KW_N(vstore_half)"
        return f"{stored}({self._wide(value)}, 0, {place});"

    def _load(self, node: nodes.Expression, place: str, c_type: str) -> str:
        self.vector_loads += 1
        if self.dialect.is_opencl:
            c_type = self._opencl_type(c_type)
            text = f"(*(__global const kw_any_{c_type} *)({place}))"
        else:
            text = f"kw_load({place})"
        return self._remembered(node, text, c_type)

    def _remembered(self, node: nodes.Expression, text: str, c_type: str) -> str:
        """A load, or what it was kept in."""
        self.loaded.setdefault(text, (c_type, node.place.span))
        kept = self.kept.get(text)
        if kept is None:
            return text
        return f"({kept} = {text})" if text in self.fills else kept

    def _wide(self, node: nodes.Expression) -> str:
        """An expression as a vector, also where it is the same in all lanes."""
        kind = self.kind(node)
        if kind.step:
            raise Unfit("the lane's index is used as a number")
        text = self.expression(node)
        if kind.is_varying:
            return text
        if not self.dialect.is_opencl:
            return f"kw_wide({text})"
        return text

    def _if(self, node: nodes.If) -> str:
        condition = self.kind(node.condition)
        if condition.is_varying:
            return self._chosen(node)
        checks = self.checks(node.condition)
        if self._is_one_lane(node.condition):  # lanes that agree are none of them the one: vectors have more than one
            return checks + (";" if node.no is None else self._braced(node.no))
        before = self.has_stored
        yes = self._raw(node.place.span.start, node.condition.place.span.start) + self.expression(node.condition)
        yes += self._raw(node.condition.place.span.end, node.yes.place.span.start) + self._braced(node.yes)
        if node.no is None:
            return checks + yes
        after_yes, self.has_stored = self.has_stored, before
        no = self._raw(node.yes.place.span.end, node.no.place.span.start) + self._braced(node.no)
        self.has_stored |= after_yes
        return checks + yes + no

    def _is_one_lane(self, node: nodes.Expression) -> bool:
        """Whether a condition holds for one lane at most: `threadIdx.x == 0`."""
        if not isinstance(node, nodes.Binary) or node.operator != "==":
            return False
        left, right = self.kind(node.left), self.kind(node.right)
        return not left.is_varying and not right.is_varying and abs(left.step - right.step) == 1

    def _braced(self, node: nodes.Statement) -> str:
        """A statement that checks may come before, as one."""
        text = self.statement(node)
        return text if isinstance(node, nodes.Block) else f"{{ {text} }}"

    def _chosen(self, node: nodes.If) -> str:
        """`if (c) v = e;` as a choice."""
        yes = node.yes
        if isinstance(yes, nodes.Block) and len(yes.statements) == 1:
            yes = yes.statements[0]
        if node.no is None and isinstance(yes, nodes.Evaluate) and isinstance(yes.expression, nodes.Assign):
            assign = yes.expression
            if isinstance(assign.target, nodes.Name) and _is_loaded_anyway(assign.value, node.condition):
                name = self.expression(assign.target)
                value = self.expression(assign.value)
                if assign.operator != "=":
                    value = f"{name} {assign.operator[:-1]} ({value})"
                kind = self.kinds.get(assign.target.name, UNIFORM)
                return f"{name} = {self._select(self.expression(node.condition), value, name, kind.c_type)};"
        raise Unfit("lanes may go different ways, by a condition on data")

    def _select(self, condition: str, yes: str, no: str, c_type: str) -> str:
        if self.dialect.is_opencl:
            wide = f"kw_{c_type}"
            return f"(({condition}) ? ({wide})({yes}) : ({wide})({no}))"
        return f"kw_select({condition}, kw_wide({yes}), kw_wide({no}))"

    def _loop(self, node: nodes.Loop) -> str:
        checks = ""
        if isinstance(node.initial, nodes.Declaration):
            checks += self.checks(node.initial)
        inner: list[nodes.Node] = []
        if node.condition is not None:
            if self.kind(node.condition).is_varying:
                raise Unfit("a loop ends by a condition on data")
            checks += self._first_check(node, node.condition)
            inner.append(node.condition)
        if node.initial is not None and self._is_touched(node.initial):
            raise Unfit("a loop's start needs vectors")
        body = (
            self._around(node.body, node.body.statements)
            if isinstance(node.body, nodes.Block)
            else self._braced(node.body)
        )
        head = self._raw(node.place.span.start, node.body.place.span.start)
        tail = self._raw(node.body.place.span.end, node.place.span.end)
        return checks + head + body + tail

    def _is_touched(self, node: nodes.Node) -> bool:
        for each in nodes.walk(node):
            if isinstance(each, nodes.Name) and (
                each.name in self.renamed or self.kinds.get(each.name, UNIFORM).is_varying
            ):
                return True
            if isinstance(each, nodes.Element | nodes.Call) and self.kind(each).is_varying:
                return True
        return False

    # Where lanes could go different ways

    def checks(self, node: nodes.Node) -> str:
        """Leave before a statement whose conditions are not the same in all lanes."""
        found = []
        for each in nodes.walk(node):
            if isinstance(each, nodes.Binary) and each.operator in COMPARISONS:
                left, right = self.kind(each.left), self.kind(each.right)
                if left.is_varying or right.is_varying or (left == UNIFORM == right):
                    continue
                found.append(self._check(each, self._text(each.left), self._text(each.right)))
        return "".join(dict.fromkeys(found))

    def _first_check(self, node: nodes.Loop, condition: nodes.Expression) -> str:
        """A loop whose index moves with the lane runs once, or never: the same for all lanes."""
        if not (isinstance(condition, nodes.Binary) and condition.operator in COMPARISONS):
            if self.kind(condition) != UNIFORM or any(
                isinstance(each, nodes.Name) and self.kinds.get(each.name, UNIFORM).step
                for each in nodes.walk(condition)
            ):
                raise Unfit("a loop's condition depends on the lane")
            return ""
        left, right = self.kind(condition.left), self.kind(condition.right)
        if left == UNIFORM == right:
            return ""
        first = self._text(condition.left)
        if isinstance(node.initial, nodes.Declaration):
            declarators = {each.name: each for each in node.initial.declarators}
            if not isinstance(condition.left, nodes.Name) or condition.left.name not in declarators:
                raise Unfit("a loop's condition depends on the lane")
            initial = declarators[condition.left.name].initial
            if initial is None:
                raise Unfit("a loop's index has no start")
            first = self._text(initial)
        return self._check(condition, first, self._text(condition.right))

    def _check(self, node: nodes.Binary, first: str, second: str) -> str:
        left, right = self.kind(node.left), self.kind(node.right)
        step = left.step - right.step
        if step == 0:
            return ""
        is_early = self.has_stored and self._is_known_at_once(node)
        if not self.give_up or (self.has_stored and not is_early):
            raise Unfit("lanes may go different ways after something was stored")
        integer = self.dialect.signed_64
        apart = f"(({integer})({first}) - ({integer})({second}))"
        reach = f"{step} * ({self.vec} - 1)"
        if node.operator in ("==", "!="):
            if abs(step) != 1:
                raise Unfit("an index is compared in a way that is not followed")
            low, high = (apart, f"{apart} + {reach}") if step > 0 else (f"{apart} + {reach}", apart)
            condition = f"{low} <= 0 && {high} >= 0"
        else:
            condition = f"(({first}) {node.operator} ({second})) != ({apart} + {reach} {node.operator} 0)"
        # Unsigned numbers wrap around; where they might, the distance is as large as their type.
        condition += f" || {apart} > 0x7fffff00 || {apart} < -0x7fffff00"
        text = f"if ({condition}) {{ {self.give_up} }}\n"
        if is_early:
            self.early[text] = None
            return ""
        return text

    def _is_known_at_once(self, node: nodes.Binary) -> bool:
        """Whether a condition is made of the thread's place and parameters alone: it can be asked at the start."""
        own = {each.name for each in nodes.walk(node) if isinstance(each, nodes.Name)} - _QUERY_VARIABLES
        return not any(name in self.declared for name in own)

    # Expressions

    def expression(self, node: nodes.Expression) -> str:  # noqa: C901
        """One expression for all lanes.

        Raises:
            Unfit: it has no such form.
        """
        if not self._is_touched(node):
            return self._text(node)
        kind = self.kind(node)
        match node:
            case nodes.Name(name=name):
                return self.renamed.get(name, name)
            case nodes.Element(base=nodes.Name(name=name)) if name in self.arrays:
                return self._text(node)
            case nodes.Element() if kind.is_varying:
                return self._load(node, f"&({self._text(node)})", self._element_type(node))
            case nodes.Unary(operator="*") if kind.is_varying:
                return self._load(node, f"&({self._text(node)})", self._element_type(node))
            case nodes.Call():
                return self._call(node)
            case nodes.Conditional(condition=condition, yes=yes, no=no):
                return self._conditional(condition, yes, no, kind)
            case nodes.Cast(operands=(inner,)) if self.dialect.is_opencl:
                return f"KW_N(convert_{self._opencl_type(node.c_type)})({self.expression(inner)})"
            case nodes.Cast(operands=(inner,)):
                return f"kw_lanes<{node.c_type}>({self.expression(inner)})"
            case nodes.Binary(operator="&&" | "||") if kind.is_varying and _touches_memory(node.right):
                raise Unfit("whether something is loaded depends on data")
            case nodes.Assign(target=nodes.Name()) | nodes.Binary() | nodes.Unary():
                if not node.place.is_exact:
                    raise Unfit("a macro makes a part of what would change")
                return self._around(node, list(nodes.children(node)))
        raise Unfit("an expression that has no vector form")

    def _conditional(
        self,
        condition: nodes.Expression,
        yes: nodes.Expression,
        no: nodes.Expression,
        kind: Kind,
    ) -> str:
        test, first, second = self.expression(condition), self.expression(yes), self.expression(no)
        if self.kind(condition).is_varying:
            if not _is_loaded_anyway(yes, condition) or not _is_loaded_anyway(no, condition):
                raise Unfit("whether something is loaded depends on data")
            return self._select(test, first, second, kind.c_type)
        if self.dialect.is_opencl:
            wide = f"kw_{kind.c_type}"
            return f"(({test}) ? ({wide})({first}) : ({wide})({second}))"
        return f"(({test}) ? kw_wide({first}) : kw_wide({second}))"

    def _call(self, node: nodes.Call) -> str:
        if not node.place.is_exact or not self._text(node).startswith(node.function):
            raise Unfit(f"{node.function} is called through a macro or a namespace")
        name, arguments = node.function, node.arguments
        if vector_load(name) is not None:
            self.vector_loads += 1
            text = f"KW_N(vload_half)(0, ({self._text(arguments[1])}) + ({self._text(arguments[0])}))"
            return self._remembered(node, text, "float")
        if is_cached_load(name):
            return self._load(node, self._text(arguments[0]), self._element_type(arguments[0]))
        if not self.dialect.is_opencl:
            self.mapped[name, len(arguments)] = None
            return f"kw_{name}({', '.join(self._wide(each) for each in arguments)})"
        if name in self.functions:
            return self._clone_call(node)
        c_types = {kind.c_type for kind in map(self.kind, arguments) if kind.is_varying}
        wide = f"kw_{c_types.pop()}"
        if match := re.fullmatch(r"((?:convert|as)_\w+?)(_rt[ezpn])?", name):
            spelled = f"KW_N({match[1]})" if not match[2] else f"KW_JOIN(KW_N({match[1]}), {match[2]})"
            return f"{spelled}({self.expression(arguments[0])})"
        self._refuse_doubles(node, {wide[3:]})
        texts = [
            self.expression(each) if self.kind(each).is_varying else f"({wide})({self.expression(each)})"
            for each in arguments
        ]
        return f"{name}({', '.join(texts)})"

    def _clone_call(self, node: nodes.Call) -> str:
        """A call of a vector form of one of the file's functions, which is made on the way."""
        function = self.functions[node.function]
        kinds = [self.kind(each) for each in node.arguments]
        name = f"kw_{node.function}" + "".join("v" if kind.is_varying else "u" for kind in kinds)
        if name not in self.clones:
            self.clones[name] = ""
            text = self._clone(name, function, kinds)
            del self.clones[name]  # what it calls itself was made after it, and must stand before it
            self.clones[name] = text
        elif not self.clones[name]:
            raise Unfit(f"{node.function} calls itself")
        return f"{name}({', '.join(self._wide(each) for each in node.arguments)})"

    def _clone(self, name: str, function: nodes.Function, kinds: list[Kind]) -> str:
        types = {p.name: p.c_type for p in function.parameters}
        for parameter, kind in zip(function.parameters, kinds, strict=True):
            if kind.is_varying and self._opencl_type(parameter.c_type) != kind.c_type:
                raise Unfit(f"{function.name} converts its arguments")
        inner = Lanes(
            self.source, self.dialect, self.tree, {}, types=types, clones=self.clones, vec=self.vec,
            start={p.name: kind for p, kind in zip(function.parameters, kinds, strict=True)},
        )  # fmt: skip
        returns = [each for each in nodes.walk(function.body) if isinstance(each, nodes.Return)]
        last = function.body.statements[-1] if function.body.statements else None
        if len(returns) != 1 or returns[0] is not last:
            raise Unfit(f"{function.name} returns from several places")
        inner.settle(function.body.statements)
        body = inner.block(function.body.statements)
        parameters = ", ".join(
            f"{self.wide_type(p.c_type) if kind.is_varying else p.c_type} {p.name}"
            for p, kind in zip(function.parameters, kinds, strict=True)
        )
        return f"static inline {self.wide_type(function.c_type)} {name}({parameters}) {{\n  {body}\n}}\n"


def _is_loaded_anyway(value: nodes.Expression, condition: nodes.Expression) -> bool:
    """Whether everything that a value loads is loaded by the condition too."""
    loaded = [each for each in nodes.walk(condition) if _touches_memory(each)]
    return all(
        any(nodes.same(each, other) for other in loaded)
        for each in nodes.walk(value)
        if isinstance(each, nodes.Element | nodes.Call | nodes.Unary) and _touches_memory(each)
        and not any(_touches_memory(child) for child in nodes.children(each))
    )  # fmt: skip


def _touches_memory(node: nodes.Node) -> bool:
    return any(
        isinstance(each, nodes.Element)
        or (isinstance(each, nodes.Unary) and each.operator == "*")
        or (isinstance(each, nodes.Call) and (vector_load(each.function) is not None or is_cached_load(each.function)))
        for each in nodes.walk(node)
    )


_QUERY_CALLS = frozenset(("get_global_id", "get_local_id", "get_group_id", "get_local_size", "get_num_groups",
                          "get_global_size", "get_global_offset", "get_enqueued_local_size", "get_work_dim",
                          "get_local_linear_id", "get_global_linear_id", "get_sub_group_id",
                          "get_sub_group_local_id", "get_sub_group_size"))  # fmt: skip
_QUERY_VARIABLES = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"))


def query_text(node: nodes.Node) -> str:
    """A thread query in one spelling: `get_global_id(0)`, `threadIdx.x`; empty for anything else."""
    match node:
        case nodes.Call(function=name, arguments=(nodes.Literal(value=value),)) if name in _QUERY_CALLS:
            return f"{name}({value})"
        case nodes.Call(function=name) if name in _QUERY_CALLS:
            return f"{name}(?)"
        case nodes.Member(base=nodes.Name(name=name), name=axis) if name in _QUERY_VARIABLES:
            return f"{name}.{axis}"
        case nodes.Name(name="warpSize"):
            return "warpSize"
    return ""


def thread_queries(node: nodes.Node) -> dict[str, int]:
    """Every thread query below a node, with how often it stands there."""
    found: dict[str, int] = {}
    for each in nodes.walk(node):
        if text := query_text(each):
            found[text] = found.get(text, 0) + 1
    return found
