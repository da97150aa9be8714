"""What each value of one lane's code is across the lanes: the same, moving by a known step, or data of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import (
    atomic_operation,
    barrier_scope,
    is_cached_load,
    is_exchange,
    is_pure,
    math_function,
    vector_load,
)
from kernelwright.source.span import Span
from kernelwright.tactics.base import Unfit
from kernelwright.tactics.common.dialect import Dialect
from kernelwright.tactics.common.thread_queries import query_text, thread_queries

COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!="))
_SCALAR_ONLY = frozenset(("select", "bitselect", "any", "all", "isequal", "signbit", "frexp", "modf", "sincos", "fract",
                          "remquo", "lgamma_r", "pown", "rootn", "ldexp", "ilogb", "nan"))  # fmt: skip
_OPENCL_TYPES = {"float": "float", "double": "double", "int": "int", "uint": "uint", "unsigned": "uint",
                 "unsigned int": "uint", "half": "half"}  # fmt: skip
_NARROW = {"char": "char", "signed char": "char", "uchar": "uchar", "unsigned char": "uchar", "short": "short",
           "ushort": "ushort", "unsigned short": "ushort"}  # fmt: skip
"""Integers that C computes with as `int`: OpenCL's vectors become that as soon as they are loaded."""
_OF_BLOCKS = ("get_group_id", "get_num_groups", "blockIdx", "gridDim")
"""Thread queries that all threads of a block answer alike."""
_TESTS = frozenset(("isnan", "isinf", "isfinite", "isnormal", "isless", "isgreater"))


@dataclass(frozen=True, slots=True)
class LaneKind:
    """What a value is across the lanes."""

    step: int = 0
    """From one lane to the next, for an integer or pointer that is the same code for all; 0 is uniform."""
    is_varying: bool = False
    """Whether it is data that each lane has its own of."""
    c_type: str = ""
    """The scalar type of data where the dialect needs it (OpenCL); `bool` for comparisons."""


UNIFORM = LaneKind()


@dataclass
class LaneKinds:
    """The kinds of one function's values, once `settle` has seen its statements; one use."""

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
    start: Mapping[str, LaneKind] = field(default_factory=dict)
    """Kinds of variables from outside."""
    narrows: bool = False
    """Whether numbers that are doubles may become floats where they meet floats: results may have that error."""
    narrowed: set[Span] = field(default_factory=set)
    """Where such numbers stand."""
    may_split: bool = False
    """Whether the lane's index may be divided: whoever allows it looks that `checked` has all of `split` then."""
    split: set[Span] = field(default_factory=set)
    """Quotients and remainders of an index that moves with the lane; known where all lanes have one quotient."""
    kinds: dict[str, LaneKind] = field(default_factory=dict)
    _known: dict[int, tuple[nodes.Expression, LaneKind]] = field(default_factory=dict, repr=False)
    """What expressions are as long as no variable becomes another kind: each asks for those below it several times."""
    pointers: set[str] = field(default_factory=set)
    arrays: dict[str, str] = field(default_factory=dict)
    """Local arrays with their element types."""
    declared: set[str] = field(default_factory=set)
    """Variables of the code itself."""
    blocked: str = ""
    """An index whose first lane stands at a multiple of the lanes; it may be divided by `blocks`."""
    blocks: dict[str, None] = field(default_factory=dict)
    """Numbers of columns, as C text, that the lanes must divide."""

    def __post_init__(self) -> None:
        self.functions = {each.name: each for each in self.tree.functions}

    def resolved(self, c_type: str) -> str:
        """What a type is called without the file's own names for types."""
        for _ in range(10):
            known = self.tree.types.get(c_type)
            if known is None:
                break
            c_type = known
        return c_type

    def settle(self, body: Sequence[nodes.Statement]) -> None:
        """Find out what every variable is; the code may use a variable in one way only.

        Raises:
            Unfit: one changes its way, or something is not followed.
        """
        self._refuse_hidden(body)
        for name in self.types:
            self.kinds.setdefault(name, UNIFORM)
        self.kinds.update(self.start)
        self._known.clear()
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
                    self._join(name, LaneKind(is_varying=True, c_type=c_type))
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

    def _moved(self, name: str, operator: str, kind: LaneKind) -> LaneKind:
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
        self._known.clear()
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
        if node.initial is None:  # nothing yet: its assignments say what it is
            self.kinds.setdefault(node.name, UNIFORM)
        else:
            self._join(node.name, self.kind(node.initial))

    def _join(self, name: str, kind: LaneKind) -> None:
        before = self.kinds.get(name)
        if before is None or before == UNIFORM:
            self.kinds[name] = self._typed(name, kind)
            if self.kinds[name] != before:
                self._known.clear()
        elif (kind not in (before, UNIFORM) and not (kind.is_varying and before.is_varying)) or (
            before.step and kind == UNIFORM
        ):
            raise Unfit(f"{name} is used in different ways")

    def _typed(self, name: str, kind: LaneKind) -> LaneKind:
        if not kind.is_varying:
            return kind
        if name in self.pointers:
            raise Unfit("a pointer comes from memory")
        declared = self.types.get(name, self.arrays.get(name, ""))
        if not self.dialect.is_opencl:
            return LaneKind(is_varying=True, c_type=declared)
        declared = self.resolved(declared)
        if declared not in _OPENCL_TYPES or declared == "half":
            raise Unfit(f"{name} has type {declared or 'unknown'}, for which there are no vectors here")
        if kind.c_type not in ("", _OPENCL_TYPES[declared]):
            raise Unfit(f"{name} converts from {kind.c_type} to {declared} without a cast")
        return LaneKind(is_varying=True, c_type=_OPENCL_TYPES[declared])

    def kind(self, node: nodes.Expression) -> LaneKind:
        """What an expression is across lanes.

        Raises:
            Unfit: it is not followed.
        """
        known = self._known.get(id(node))
        if known is None:  # with the node, so that no other one gets its id
            known = self._known[id(node)] = (node, self._kind(node))
        return known[1]

    def _kind(self, node: nodes.Expression) -> LaneKind:  # noqa: C901
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
                return LaneKind(self.steps(self.kind(base), self.kind(index)))
            case nodes.Unary(operator=operator, operand=operand):
                inner = self.kind(operand)
                if operator == "-" and not inner.is_varying:
                    return LaneKind(-inner.step)
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

    def _plain(self, node: nodes.Expression) -> LaneKind:
        """Anything else is fine while it is the same in all lanes."""
        if isinstance(node, nodes.OpaqueExpression):
            raise Unfit(f"something is not understood: {node.reason}")
        for child in nodes.children(node):
            if isinstance(child, nodes.Declarator) or self.kind(child) != UNIFORM:  # type: ignore[arg-type]
                raise Unfit("an expression of a form that has no vector")
        return UNIFORM

    def _placed(self, kind: LaneKind) -> LaneKind:
        raise Unfit("an index is made in a way that is not linear in the lane")

    def steps(self, *kinds: LaneKind) -> int:
        """The step of a place that several values make together."""
        if any(kind.is_varying for kind in kinds):
            raise Unfit("an index or a pointer is made of data")
        return sum(kind.step for kind in kinds)

    def _query(self, text: str) -> LaneKind:
        if text not in self.queries:
            raise Unfit(f"it asks for {text}")
        return LaneKind(self.queries[text])

    def _call_kind(self, node: nodes.Call) -> LaneKind:
        if text := query_text(node):
            return self._query(text)
        name = node.function
        if barrier_scope(name) or is_exchange(name) or atomic_operation(name):
            raise Unfit(f"threads meet in {name}")
        if (shape := vector_load(name)) is not None:
            if shape[0] != 1:
                raise Unfit("it already loads vectors")
            step = self.steps(*(self.kind(each) for each in node.arguments))
            return self._loaded(LaneKind(step), "float")
        if is_cached_load(name):
            return self._loaded(self.kind(node.arguments[0]), self._element_type(node.arguments[0]))
        kinds = [self.kind(each) for each in node.arguments]
        own = self.functions.get(name)
        if own is not None and any(not each.startswith(_OF_BLOCKS) for each in thread_queries(own.body)):
            raise Unfit(f"{name} asks for the thread's place itself")
        if all(kind == UNIFORM for kind in kinds):
            return UNIFORM
        if any(kind.step for kind in kinds):
            return LaneKind(self._inlined_step(node, kinds))
        return self._function_kind(node, kinds)

    def _function_kind(self, node: nodes.Call, kinds: list[LaneKind]) -> LaneKind:
        name = node.function
        own = self.functions.get(name)
        if own is not None:
            if any(each.is_pointer or (each.is_reference and not each.is_const) for each in own.parameters):
                raise Unfit(f"{name} gets a pointer")
            return LaneKind(is_varying=True, c_type=self._opencl_type(own.c_type))
        known = math_function(name)
        if known is None and not is_pure(name):
            raise Unfit(f"it is not known what {name} does")
        if not self.dialect.is_opencl:
            return LaneKind(is_varying=True)
        if known is not None and (known[0] in _SCALAR_ONLY or name in _SCALAR_ONLY):
            raise Unfit(f"{name} means something else for vectors")
        types = {kind.c_type for kind in kinds if kind.is_varying}
        if len(types) != 1:
            raise Unfit(f"{name} gets vectors of different types")
        if name in _TESTS:
            return LaneKind(is_varying=True, c_type="bool")
        if match := re.fullmatch(r"(?:convert|as)_(\w+?)(?:_rt[ezpn])?", name):
            return LaneKind(is_varying=True, c_type=self._opencl_type(match[1]))
        return LaneKind(is_varying=True, c_type=types.pop())

    def _opencl_type(self, c_type: str) -> str:
        if not self.dialect.is_opencl:
            return c_type
        c_type = self.resolved(c_type)
        if c_type not in _OPENCL_TYPES or c_type == "half":
            raise Unfit(f"there are no vectors of {c_type} here")
        return _OPENCL_TYPES[c_type]

    def _inlined_step(self, node: nodes.Call, kinds: list[LaneKind]) -> int:
        """The step of an index function that is one expression: `at(row, col, ld)`."""
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
                may_split=False,
            )
            return inner.steps(inner.kind(body[0].value))
        raise Unfit(f"an index goes through {node.function}")

    def _element_kind(self, node: nodes.Element, base: nodes.Expression, index: nodes.Expression) -> LaneKind:
        if isinstance(base, nodes.Name) and base.name in self.arrays:
            if self.kind(index) != UNIFORM:
                raise Unfit(f"{base.name} is indexed by the lane")
            return self.kinds.get(base.name, UNIFORM)
        return self._loaded(LaneKind(self.steps(self.kind(base), self.kind(index))), self._element_type(node))

    def _loaded(self, place: LaneKind, c_type: str) -> LaneKind:
        step = self.steps(place)
        if step == 0:
            return UNIFORM
        if step != 1:
            raise Unfit("neighbouring lanes load from places that do not lie side by side")
        if self.dialect.is_opencl:
            c_type = "int" if self.narrow_type(c_type) else self._opencl_type(c_type)
        return LaneKind(is_varying=True, c_type=c_type)

    def narrow_type(self, c_type: str) -> str:
        """OpenCL's word for an integer type below `int`; empty for others."""
        return _NARROW.get(self.resolved(c_type), "") if self.dialect.is_opencl else ""

    def _element_type(self, node: nodes.Expression) -> str:
        name = nodes.root_name(node)
        return self.types.get(name or "", "")

    def _binary_kind(self, node: nodes.Binary) -> LaneKind:
        left, right = self.kind(node.left), self.kind(node.right)
        if left.is_varying or right.is_varying:
            return self._data_kind(node, left, right)
        operator = node.operator
        if left == UNIFORM == right:
            return UNIFORM
        if operator in "+-":
            return LaneKind(left.step + (right.step if operator == "+" else -right.step))
        if operator == "*":
            for moving, other, factor in ((left, right, node.right), (right, left, node.left)):
                constant = self._constant(factor)
                if other == UNIFORM and constant is not None:
                    return LaneKind(moving.step * constant)
        if operator in "/%" and right == UNIFORM and self._is_block(node):
            return UNIFORM if operator == "/" else left
        if self.is_split(node):
            self.split.add(node.place.span)
            return UNIFORM if operator == "/" else left
        if operator in COMPARISONS or operator in ("&&", "||"):
            if not self.give_up:
                raise Unfit("a condition depends on the lane")
            return UNIFORM
        return self._placed(left)

    def is_split(self, node: nodes.Binary) -> bool:
        """Whether an index that moves by one from lane to lane is divided by a number that all lanes share."""
        if not self.may_split or node.operator not in ("/", "%") or not node.place.is_exact:
            return False
        if self.kind(node.left) != LaneKind(1) or self.kind(node.right) != UNIFORM or self._is_block(node):
            return False
        if any(isinstance(each, nodes.Assign | nodes.Update) for each in nodes.walk(node)):
            return False
        names = [each.name for each in nodes.walk(node.left) if isinstance(each, nodes.Name)]
        return not any(re.search(r"char|short", self.resolved(self.types.get(name, ""))) for name in names)

    def _is_block(self, node: nodes.Binary) -> bool:
        """Whether all lanes lie in one block of so many columns: whoever asks for that checks `blocks` first."""
        if not (isinstance(node.left, nodes.Name) and node.left.name == self.blocked and node.right.place.is_exact):
            return False
        plain = all(isinstance(each, nodes.Name | nodes.Literal | nodes.Binary) for each in nodes.walk(node.right))
        names = {each.name for each in nodes.walk(node.right) if isinstance(each, nodes.Name)}
        if not plain or names & self.declared:
            return False
        self.blocks[node.right.place.span.text(self.source)] = None
        return True

    def _constant(self, node: nodes.Expression) -> int | None:
        match node:
            case nodes.Literal(value=value):
                return value
            case nodes.Cast(operands=(inner,), is_pointer=False):
                return self._constant(inner)
            case nodes.Member() | nodes.Call():
                return 1 if query_text(node) in self.ones else None
        return None

    def _data_kind(self, node: nodes.Binary, left: LaneKind, right: LaneKind) -> LaneKind:
        if left.step or right.step:
            raise Unfit("the lane's index is used as a number")
        types = {kind.c_type for kind in (left, right) if kind.is_varying}
        is_test = node.operator in COMPARISONS or node.operator in ("&&", "||")
        if not self.dialect.is_opencl:
            return LaneKind(is_varying=True, c_type="bool" if is_test else "")
        if self.is_mixed(node):
            types = {"float"}
        if len(types) != 1 or ("bool" in types and node.operator not in ("&&", "||")):
            raise Unfit("it mixes types, which vectors do not")
        if "bool" in types and not (left.is_varying and right.is_varying):
            raise Unfit("it mixes conditions on data with others")
        self._refuse_doubles(node, types)
        return LaneKind(is_varying=True, c_type="bool" if is_test else types.pop())

    def is_mixed(self, node: nodes.Binary) -> bool:
        """Whether C makes a `float` of an integer here, which OpenCL's vectors do only where they are told to."""
        if not self.dialect.is_opencl or node.operator not in ("+", "-", "*", "/", *COMPARISONS):
            return False
        sides = [(each, self.kind(each)) for each in (node.left, node.right)]
        types = {kind.c_type if kind.is_varying else self._plain_type(each) for each, kind in sides}
        return "float" in types and bool(types & {"int", "uint"}) and any(k.c_type in ("int", "uint") for _, k in sides)

    def _plain_type(self, node: nodes.Expression) -> str:
        """`float` for what is one by its names or literals; else empty."""
        found = list(nodes.walk(node))
        if any(isinstance(each, nodes.Cast | nodes.Call | nodes.Conditional) for each in found):
            return ""
        names = {self.resolved(self.types.get(each.name, "")) for each in found if isinstance(each, nodes.Name)}
        is_float = any(isinstance(each, nodes.Literal) and each.text[-1:] in "fF" and each.value is None
                       for each in found)  # fmt: skip
        return "float" if is_float or "float" in names else ""

    def _refuse_doubles(self, node: nodes.Node, types: set[str]) -> None:
        if "double" in types:
            return
        for child in nodes.children(node):
            if isinstance(child, nodes.Declarator) or self.kind(child).is_varying:  # type: ignore[arg-type]
                continue
            for each in nodes.walk(child):
                match each:
                    case nodes.Literal(value=None, text=text) if re.fullmatch(r"[\d.]+(?:[eE][-+]?\d+)?", text):
                        is_sum = isinstance(node, nodes.Binary) and node.operator in ("+", "-", "*", "/")
                        if self.narrows and is_sum and each.place.is_exact:
                            self.narrowed.add(each.place.span)
                            continue
                        raise Unfit(f"{text} is a double, so float vectors would compute something else")
                    case nodes.Name(name=name) if self.resolved(self.types.get(name, "")) == "double":
                        raise Unfit(f"{name} is a double")

    def _choice_kind(self, condition: LaneKind, yes: LaneKind, no: LaneKind) -> LaneKind:
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
            return LaneKind(is_varying=True, c_type=types.pop() if types else "")
        if yes.step != no.step:
            raise Unfit("an index is chosen by a condition")
        return yes

    def _cast_kind(self, node: nodes.Cast) -> LaneKind:
        kinds = [self.kind(each) for each in node.operands]
        if all(kind == UNIFORM for kind in kinds):
            return UNIFORM
        if len(kinds) != 1 or node.is_pointer or node.is_reinterpreting:
            raise Unfit("it makes vectors or casts pointers itself")
        if kinds[0].is_varying:
            return LaneKind(is_varying=True, c_type=self._opencl_type(node.c_type))
        if re.search(r"float|double|half|bool|char|short", self.resolved(node.c_type)):
            raise Unfit("the lane's index is used as a number")
        return kinds[0]
