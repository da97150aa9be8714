"""Threads of a block that walk vectors of neighbours as threads that walk the neighbours, so that tactics see rows.

`for (i = threadIdx.x; i < n / 4; ...) { float4 v = x[i]; s += v.x * v.x + v.y * v.y + ...; }` says of a block what
`for (i = threadIdx.x; i < n / 4 * 4; ...) { float v = x[i]; s += v * v; }` says, where each component is treated alike
and what a thread sums up is only joined: which thread takes which element does not matter then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from kernelwright.analysis.facts import LoopFact
from kernelwright.source import nodes
from kernelwright.source.builtin_functions import (
    atomic_operation,
    barrier_scope,
    is_cached_load,
    is_exchange,
    math_function,
)
from kernelwright.source.edits import Edit, apply
from kernelwright.source.loop_headers import read_header
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.launches import number, only_shape
from kernelwright.tactics.launch.block_shape import refuse_own_values
from kernelwright.tactics.tiling.frame import edited

_VECTORS: Mapping[str, tuple[str, int]] = {
    "float2": ("float", 2), "float4": ("float", 4), "half2": ("half", 2), "__half2": ("__half", 2),
    "__nv_bfloat162": ("__nv_bfloat16", 2),
}  # fmt: skip
"""By type: the type of its components, and how many."""
_OF_ONE = {
    "__half22float2": "__half2float", "__float22half2_rn": "__float2half", "__bfloat1622float2": "__bfloat162float",
    "__float22bfloat162_rn": "__float2bfloat16",
}  # fmt: skip
"""Functions of vectors: what each does with one component."""
_OF_PARTS = {
    "make_float2": "", "make_float4": "", "__floats2half2_rn": "__float2half", "__floats2bfloat162_rn":
    "__float2bfloat16", "make_half2": "", "__halves2half2": "",
}  # fmt: skip
"""Functions that make a vector of its components."""
_FIELDS = "xyzw"


def single_elements(subject: Subject) -> Subject:
    """The kernel without vectors.

    Raises:
        Unfit: it has none, or does with one component what it does with no other.
    """
    function, source = subject.analysis.function, subject.source
    if subject.language == "opencl":
        raise Unfit("vectors of OpenCL stay")
    pointers = {each.name: each.c_type for each in function.parameters if each.is_pointer and each.c_type in _VECTORS}
    scalars = {each.name: each.c_type for each in function.parameters if each.is_pointer and each.name not in pointers}
    scalars |= {each.name: each.c_type for each in nodes.walk(function.body)
                if isinstance(each, nodes.Declarator) and each.is_pointer and each.c_type not in _VECTORS}  # fmt: skip
    edits = [_retyped(source, each.place.span, each.c_type) for each in function.parameters if each.name in pointers]
    loops: list[int] = []
    own = _OwnValues({each.name: each for each in subject.analysis.tree.functions})
    for index, statement in enumerate(function.body.statements):
        made = _declared_pointers(source, statement, pointers, scalars)
        if made is None and _mentions(statement, pointers):
            made = _flat_loop(subject, statement, pointers, own)
            loops.append(index)
        edits += made or []
        own.pass_by(statement)
    if not loops:
        raise Unfit("it walks no vectors")
    flat = replace(subject, source=apply(source, edits))
    if flat.analysis.facts.opaque:
        raise Unfit("not all of the kernel is understood")
    refuse_own_values(flat)
    _refuse_own_elements(flat, loops, own)
    return flat


def _refuse_own_elements(flat: Subject, loops: Sequence[int], own: _OwnValues) -> None:
    """What walked vectors store or read, other statements must not touch before the threads have waited.

    A thread has other elements than it had, but only in these loops.

    Raises:
        Unfit: one does.
    """
    statements = flat.analysis.function.body.statements
    touched: dict[str, set[tuple[int, bool]]] = {}
    for access in flat.analysis.facts.accesses:
        for index, each in enumerate(statements):
            if each.place.span.contains(access.span):
                touched.setdefault(access.array, set()).add((index, access.kind == "read"))
    waits = [index for index, each in enumerate(statements) if any(
        isinstance(call, nodes.Call) and own.meets(call.function) for call in nodes.walk(each))]  # fmt: skip
    for array, places in touched.items():
        for (one, reads), (other, other_reads) in product(places, places):
            is_apart = any(min(one, other) < each < max(one, other) for each in waits)
            if one in loops and other not in loops and reads != other_reads and not is_apart:
                raise Unfit(f"a thread may find its own elements of {array}")


def _mentions(node: nodes.Node, names: Mapping[str, str]) -> bool:
    return any(isinstance(each, nodes.Name) and each.name in names for each in nodes.walk(node)) or any(
        isinstance(each, nodes.Declarator) and each.c_type in _VECTORS for each in nodes.walk(node)
    )


def _retyped(source: str, span: Span, c_type: str) -> Edit:
    """A declaration with the type of a component."""
    text = span.text(source)
    if len(re.findall(rf"\b{c_type}\b", text)) != 1:
        raise Unfit("a type is said several times")
    return Edit(span, re.sub(rf"\b{c_type}\b", _VECTORS[c_type][0], text))


def _exact(node: nodes.Node) -> Span:
    if not node.place.is_exact:
        raise Unfit("a macro makes a part of what would change")
    return node.place.span


def _declared_pointers(
    source: str, node: nodes.Statement, pointers: dict[str, str], scalars: Mapping[str, str]
) -> list[Edit] | None:
    """`const float4* row = x + r * n;` in components; None for another statement."""
    if not isinstance(node, nodes.Declaration) or len(node.declarators) != 1:
        return None
    own = node.declarators[0]
    if not own.is_pointer or own.c_type not in _VECTORS:
        return None
    width = _VECTORS[own.c_type][1]
    initial = own.initial
    is_moved = isinstance(initial, nodes.Binary) and initial.operator == "+"
    base, moved = (initial.left, initial.right) if is_moved and isinstance(initial, nodes.Binary) else (initial, None)
    match base:
        case nodes.Name(name=name) if pointers.get(name) == own.c_type:
            value = name
        case nodes.Cast(is_pointer=True, c_type=c_type, operands=(inner,)) if c_type == own.c_type:
            is_plain = not any(isinstance(each, nodes.Cast) and each.is_pointer for each in nodes.walk(inner))
            root = scalars.get(nodes.root_name(inner) or "")
            if root != _VECTORS[c_type][0] or not is_plain or _mentions(inner, pointers):
                raise Unfit("a pointer to vectors is made of one to something else")
            value = f"({_exact(inner).text(source)})"
        case _:
            raise Unfit("a pointer to vectors is made in another way")
    if moved is not None:
        if _mentions(moved, pointers):
            raise Unfit("a pointer is moved by another one")
        value += f" + ({_exact(moved).text(source)}) * {width}"
    pointers[own.name] = own.c_type
    assert initial is not None
    head = Span(_exact(node).start, _exact(initial).start)
    return [_retyped(source, head, own.c_type), Edit(_exact(initial), value)]


def _flat_loop(subject: Subject, node: nodes.Statement, pointers: Mapping[str, str], own: _OwnValues) -> list[Edit]:
    """A loop over vectors as one over elements."""
    fact = next((each for each in subject.analysis.facts.loops if each.span == node.place.span), None)
    if not isinstance(node, nodes.Loop) or node.word != "for" or fact is None or fact.start is None:
        raise Unfit("vectors are used outside of loops")
    if str(fact.start) != "thread.x" or not isinstance(node.body, nodes.Block) or not _is_of_block(subject, fact):
        raise Unfit("vectors are walked in another way than by the threads of a block")
    header, condition = read_header(node), node.condition
    if header is None or header.is_in_body or not isinstance(condition, nodes.Binary) or condition.operator != "<":
        raise Unfit("a loop over vectors counts in another way")
    used = {pointers[each.name] for each in nodes.walk(node.body) if isinstance(each, nodes.Name)
            and each.name in pointers}  # fmt: skip
    widths = {_VECTORS[each][1] for each in used}
    if len(widths) != 1 or _mentions(condition.right, pointers) or not isinstance(condition.left, nodes.Name):
        raise Unfit("a loop walks vectors of several widths")
    (width,) = widths
    names: list[str] = []
    carried = nodes.assigned_names(node.body) - nodes.declared_names(node.body)
    used = {each.name for each in nodes.walk(node.body) if isinstance(each, nodes.Name)}
    if met := sorted((used & own.names) - carried - nodes.declared_names(node)):
        raise Unfit(f"a value is made of {met[0]}, which is another one in each thread")
    texts = [
        _Component(subject.source, pointers, header.variable, lane, width, names, own, carried).body(node.body)
        for lane in range(width)
    ]
    if len(set(texts)) != 1:
        raise Unfit("the components of a vector are not treated alike")
    bound = _exact(condition.right)
    lines = "\n" * node.body.place.span.text(subject.source).count("\n")
    return [Edit(bound, f"({bound.text(subject.source)}) * {width}"), Edit(_exact(node.body), texts[0] + lines)]


def _is_of_block(subject: Subject, fact: LoopFact) -> bool:
    """Whether each step of a loop is of all threads of a block, which has one axis."""
    block = [number(extent) for extent in only_shape(subject).block]
    if fact.step is None or fact.step.kind != "add" or any(extent != 1 for extent in block[1:]):
        return False
    amount = fact.step.amount
    return str(amount) == "block_size.x" or (amount.constant is not None and amount.constant == block[0])


@dataclass
class _Component:
    """What a loop's body does with one component; one use."""

    source: str
    pointers: Mapping[str, str]
    index: str
    lane: int
    width: int
    names: list[str]
    """What the scalars of the first component are called: those of the others get the same names."""
    own: _OwnValues
    """What threads have of their own where the loop begins."""
    carried: Collection[str]
    """What steps leave for others: it may be joined, and nothing else."""
    vectors: dict[str, str] = field(default_factory=dict)
    """Local vectors by name, with their types."""
    lanes: dict[str, int] = field(default_factory=dict)
    """Scalars that are made of one component, by name."""
    inside: set[str] = field(default_factory=set)
    """Scalars that the body declares."""
    words: dict[str, str] = field(default_factory=dict)
    """What the scalars of this component are called."""

    def body(self, block: nodes.Block) -> str:
        """The body's text."""
        return "{ " + " ".join(filter(None, map(self._statement, block.statements))) + " }"

    def _statement(self, node: nodes.Statement) -> str:
        match node:
            case nodes.Declaration(declarators=declarators):
                return " ".join(filter(None, map(self._declared, declarators)))
            case nodes.Evaluate(expression=nodes.Assign() as assign):
                return self._assigned(assign)
        raise Unfit("a loop over vectors does more than compute")

    def _declared(self, node: nodes.Declarator) -> str:
        if node.is_pointer or node.is_reference or node.extents or node.is_shared or node.name in self.inside:
            raise Unfit("a loop over vectors declares what is not followed")
        self.inside.add(node.name)
        if node.c_type in _VECTORS:
            if _VECTORS[node.c_type][1] != self.width:
                raise Unfit("a loop walks vectors of several widths")
            self.vectors[node.name] = node.c_type
            value = "" if node.initial is None else f" = {self._vector(node.initial)}"
            return f"{_VECTORS[node.c_type][0]} {node.name}{value};"
        if node.initial is None:
            raise Unfit("a scalar without a value")
        lanes = self._lanes_of(node.initial)
        if len(lanes) > 1:
            raise Unfit("a scalar is made of several components")
        if lanes:
            self.lanes[node.name] = lane = lanes.pop()
            if lane != self.lane:
                return ""
            if self.lane == 0:
                self.names.append(node.name)
            if len(self.words) >= len(self.names):
                raise Unfit("the components of a vector are not treated alike")
            self.words[node.name] = self.names[len(self.words)]
        return f"{node.c_type} {self.words.get(node.name, node.name)} = {self._scalar(node.initial)};"

    def _assigned(self, node: nodes.Assign) -> str:
        match node.target:
            case nodes.Member(base=nodes.Name(name=name), name=part) if name in self.vectors:
                return f"{name} {node.operator} {self._scalar(node.value)};" if self._is_own(part) else ""
            case nodes.Element(base=nodes.Name(name=name), index=nodes.Name(name=index)) if name in self.pointers:
                if index != self.index or node.operator != "=":
                    raise Unfit("a vector is stored elsewhere")
                return f"{name}[{index}] = {self._vector(node.value)};"
            case nodes.Element(base=nodes.Name(name=name), index=index):
                lane = self._lane_of_index(index)
                if lane is None or self._lanes_of(node.value) - {lane} or node.operator != "=":
                    raise Unfit("what is stored is of several components")
                return f"{name}[{self.index}] = {self._scalar(node.value)};" if lane == self.lane else ""
            case nodes.Name(name=name) if name not in self.inside:
                return f"{name} {node.operator} {self._joined(node, name)};"
        raise Unfit("a loop over vectors changes something else")

    def _is_own(self, part: str) -> bool:
        if part not in _FIELDS[: self.width]:
            raise Unfit("a component that is not followed")
        return _FIELDS.index(part) == self.lane

    def _joined(self, node: nodes.Assign, name: str) -> str:
        """What one component adds to a sum, or a largest value."""
        if node.operator == "+=":
            return self._only(_leaves(node.value, "+"), "+")
        known = _extreme(node.value)
        if node.operator != "=" or not known:
            raise Unfit("a loop over vectors changes something else")
        leaves = _leaves(node.value, known)
        own = [each for each in leaves if isinstance(each, nodes.Name) and each.name == name]
        others = [each for each in leaves if each not in own]
        if len(own) != 1 or not isinstance(node.value, nodes.Call):
            raise Unfit("a loop over vectors changes something else")
        return f"{node.value.function}({name}, {self._only(others, known)})"

    def _only(self, leaves: Sequence[nodes.Expression], operation: str) -> str:
        lanes = [self._lanes_of(each) for each in leaves]
        if any(len(each) != 1 for each in lanes):
            raise Unfit(f"what is joined by {operation} is of several components")
        own = [each for each, lane in zip(leaves, lanes, strict=True) if lane == {self.lane}]
        if len(own) != 1 or len(leaves) % self.width:
            raise Unfit("the components of a vector are not treated alike")
        return self._scalar(own[0])

    def _vector(self, node: nodes.Expression) -> str:
        """One component of a value that is a vector."""
        match node:
            case nodes.Name(name=name) if name in self.vectors:
                return name
            case nodes.Element(base=nodes.Name(name=name), index=nodes.Name(name=index)) if name in self.pointers:
                if index == self.index:
                    return f"{name}[{index}]"
            case nodes.Call(function=name, arguments=(inner,)) if name in _OF_ONE:
                return f"{_OF_ONE[name]}({self._vector(inner)})"
            case nodes.Call(function=name, arguments=parts) if name in _OF_PARTS and len(parts) == self.width:
                if any(self._lanes_of(each) - {lane} for lane, each in enumerate(parts)):
                    raise Unfit("the components of a vector are not treated alike")
                return f"{_OF_PARTS[name]}({self._scalar(parts[self.lane])})"
            case nodes.Call(function=name, arguments=(inner,)) if is_cached_load(name):
                match inner:
                    case nodes.Unary(operator="&", operand=nodes.Element() as element):
                        return f"{name}(&{self._vector(element)})"
                    case nodes.Binary(operator="+", left=nodes.Name(name=base), right=nodes.Name(name=index)):
                        if base in self.pointers and index == self.index:
                            return f"{name}(&{base}[{index}])"
        raise Unfit("a vector is made in a way that is not followed")

    def _scalar(self, node: nodes.Expression) -> str:
        return edited(self.source, _exact(node), list(self._edits(node)))

    def _edits(self, node: nodes.Node) -> Iterator[Edit]:
        match node:
            case nodes.Member(base=nodes.Name(name=name), name=part) if name in self.vectors:
                if not self._is_own(part):
                    raise Unfit("a value is made of several components")
                yield Edit(_exact(node), name)
            case nodes.Name(name=name) if name in self.words:
                yield Edit(_exact(node), self.words[name])
            case nodes.Name(name=name) if name in self.vectors or name in self.pointers or name == self.index:
                raise Unfit("a vector or its place is used as a whole")
            case nodes.Name(name=name) if name in self.lanes:
                raise Unfit("a value is made of several components")
            case nodes.Name(name=name) if name in self.carried or name == "threadIdx":
                raise Unfit(f"a value is made of {name}, which is another one in each thread")
            case nodes.Call(function=name) if self.own.meets(name) or self.own.acts(name):
                raise Unfit(f"a value is made by {name}, which may give each thread another one")
            case nodes.Assign() | nodes.Update() | nodes.OpaqueExpression() | nodes.MethodCall():
                raise Unfit("a value does more than compute")
            case _:
                for each in nodes.children(node):
                    yield from self._edits(each)

    def _lanes_of(self, node: nodes.Node) -> set[int]:
        """Of which components a scalar value is made."""
        found = set()
        for each in nodes.walk(node):
            match each:
                case nodes.Member(base=nodes.Name(name=name), name=part) if name in self.vectors:
                    self._is_own(part)
                    found.add(_FIELDS.index(part))
                case nodes.Name(name=name) if name in self.lanes:
                    found.add(self.lanes[name])
        return found

    def _lane_of_index(self, node: nodes.Expression) -> int | None:
        """Which component `4 * i + 2` is the place of; None for another index."""
        match node:
            case nodes.Binary(operator="+", left=left, right=nodes.Literal(value=lane)) if lane in range(1, self.width):
                return lane if self._lane_of_index(left) == 0 else None
            case nodes.Binary(operator="*", left=nodes.Literal(value=width), right=nodes.Name(name=name)):
                return 0 if width == self.width and name == self.index else None
            case nodes.Binary(operator="*", left=nodes.Name(name=name), right=nodes.Literal(value=width)):
                return 0 if width == self.width and name == self.index else None
        return None


@dataclass
class _OwnValues:
    """Variables that may differ between threads, until these join or share them; statements are passed in order."""

    functions: Mapping[str, nodes.Function]
    names: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)

    def differs(self, node: nodes.Node | None) -> bool:
        """Whether a value is made of what a thread has; what threads join is taken to be the same for all."""
        match node:
            case None:
                return False
            case nodes.Name(name=name):
                return name == "threadIdx" or name in self.names
            case nodes.Call(function=name) if self.meets(name):
                return False
            case nodes.Call(function=name) if self.acts(name):
                return True
        return any(self.differs(each) for each in nodes.children(node))

    def meets(self, function: str) -> bool:
        """Whether threads exchange values in a function, or wait for each other."""
        return any(is_exchange(each) or barrier_scope(each) == "block" for each in self._reached(function))

    def acts(self, function: str) -> bool:
        """Whether a function asks for the thread's place or may change what others see."""
        reached = self._reached(function)
        known = [self.functions[each] for each in reached if each in self.functions]
        names = {each.name for one in known for each in nodes.walk(one.body) if isinstance(each, nodes.Name)}
        may_store = any(each.is_pointer or each.is_reference for one in known for each in one.parameters)
        return may_store or "threadIdx" in names or any(atomic_operation(each) for each in reached)

    def _reached(self, function: str) -> set[str]:
        found, waiting = {function}, [function]
        while waiting:
            known = self.functions.get(waiting.pop())
            calls = () if known is None else nodes.walk(known.body)
            new = {each.function for each in calls if isinstance(each, nodes.Call)} - found
            found |= new
            waiting += new
        return found

    def pass_by(self, node: nodes.Statement) -> None:
        """Learn from the next statement of the kernel."""
        match node:
            case nodes.Block(statements=statements):
                for each in statements:
                    self.pass_by(each)
            case nodes.Evaluate(expression=nodes.Assign(operator="=", target=nodes.Name(name=name), value=value)) if (
                not self.differs(value)
            ):
                self.names.discard(name)
            case _:
                self._pass(node, is_own=False)

    def _pass(self, node: nodes.Statement, *, is_own: bool) -> None:
        """Learn from a statement; `is_own`: whether not all threads do it, or not as often."""
        match node:
            case nodes.Block(statements=statements):
                for each in statements:
                    self._pass(each, is_own=is_own)
            case nodes.If(condition=condition, yes=yes, no=no):
                for branch in (yes,) if no is None else (yes, no):
                    self._pass(branch, is_own=is_own or self.differs(condition))
            case nodes.Loop(initial=initial, condition=condition, body=body):
                if initial is not None:
                    self._learn(initial, is_own=is_own)
                for _ in range(2):  # what a step leaves the next one finds
                    self._pass(body, is_own=is_own or self.differs(condition))
            case _:
                self._learn(node, is_own=is_own)

    def _learn(self, node: nodes.Node, *, is_own: bool) -> None:
        for each in nodes.walk(node):
            match each:
                case nodes.Declarator(name=name, initial=value):
                    self.shared |= {name} if each.is_shared else set()
                    self._set(name, value, is_own=is_own and value is not None)
                case nodes.Assign(target=nodes.Name(name=name), value=value, operator=operator):
                    is_kept = operator != "=" and name in self.names
                    self._set(name, value, is_own=is_own or is_kept)
                case nodes.Assign(target=target) if (root := nodes.variable_of(target)) is not None:
                    self.names |= {root} - self.shared if is_own or self.differs(each.value) else set()
                case nodes.Update(operand=nodes.Name(name=name)) if is_own:
                    self.names |= {name} - self.shared

    def _set(self, name: str, value: nodes.Expression | None, *, is_own: bool) -> None:
        joins = value is not None and any(
            isinstance(each, nodes.Call) and self.meets(each.function) for each in nodes.walk(value)
        )
        if joins:
            self.names.discard(name)
        elif (is_own or self.differs(value)) and name not in self.shared:
            self.names.add(name)


def _extreme(node: nodes.Expression) -> str:
    known = math_function(node.function) if isinstance(node, nodes.Call) else None
    return known[0].removeprefix("f") if known is not None and known[0] in ("max", "fmax", "min", "fmin") else ""


def _leaves(node: nodes.Expression, operation: str) -> list[nodes.Expression]:
    """What an operation joins, however it is nested."""
    match node:
        case nodes.Binary(operator="+", left=left, right=right) if operation == "+":
            return _leaves(left, operation) + _leaves(right, operation)
        case nodes.Call(arguments=(left, right)) if _extreme(node) == operation:
            return _leaves(left, operation) + _leaves(right, operation)
    return [node]
