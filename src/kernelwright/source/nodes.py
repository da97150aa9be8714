"""What a kernel source says, as typed nodes: expressions, statements, functions. Made by `source.syntax`.

Every node has its place in the source. What is not understood is an `OpaqueExpression` or `OpaqueStatement` with the
reason and the names that stand in it; whoever reads the tree must assume that it may do anything with those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias

from kernelwright.source.preprocess import Expanded, Mark, Place


@dataclass(frozen=True, slots=True)
class Name:
    """A variable, macro or enumerator; qualified names keep their last part."""

    place: Place
    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, character, string, `true`, `false` or `nullptr`."""

    place: Place
    text: str
    value: int | None
    """None for what is no integer."""


@dataclass(frozen=True, slots=True)
class Unary:
    """`-x`, `!x`, `~x`, `+x`, `*p`, `&x`."""

    place: Place
    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """Two operands; a comma too."""

    place: Place
    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Assign:
    """`=` and the compound assignments."""

    place: Place
    operator: str
    target: Expression
    value: Expression


@dataclass(frozen=True, slots=True)
class Update:
    """`++` and `--`."""

    place: Place
    operator: str
    operand: Expression
    is_prefix: bool


@dataclass(frozen=True, slots=True)
class Conditional:
    """`a ? b : c`."""

    place: Place
    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True, slots=True)
class Call:
    """A call of something with a name: `f(x)`, `f<4>(x)`, `std::max(a, b)`."""

    place: Place
    function: str
    arguments: tuple[Expression, ...]
    template_arguments: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class MethodCall:
    """`object.method(x)`."""

    place: Place
    receiver: Expression
    method: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Element:
    """`base[index]`."""

    place: Place
    base: Expression
    index: Expression


@dataclass(frozen=True, slots=True)
class Member:
    """`base.name`, `base->name`."""

    place: Place
    base: Expression
    name: str
    is_arrow: bool


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion, in whatever spelling; `operands` are several for `(float4)(a, b, c, d)` and `T{a, b}`."""

    place: Place
    c_type: str
    is_pointer: bool
    operands: tuple[Expression, ...]
    is_reinterpreting: bool = False


@dataclass(frozen=True, slots=True)
class SizeOf:
    """`sizeof(type)`; of an expression, the expression's text."""

    place: Place
    c_type: str


@dataclass(frozen=True, slots=True)
class Items:
    """`{a, b}` as an initialiser."""

    place: Place
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class OpaqueExpression:
    """An expression that is not understood."""

    place: Place
    reason: str
    names: frozenset[str]


Expression: TypeAlias = (
    Name | Literal | Unary | Binary | Assign | Update | Conditional | Call | MethodCall | Element | Member | Cast
    | SizeOf | Items | OpaqueExpression
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Declarator:
    """One variable of a declaration."""

    place: Place
    name: str
    c_type: str
    is_pointer: bool
    is_reference: bool
    extents: tuple[Expression | None, ...]
    """The extents of an array, outermost first; None for `[]`."""
    initial: Expression | None
    is_shared: bool
    is_const: bool


@dataclass(frozen=True, slots=True)
class Declaration:
    """`int i = 0, j;`."""

    place: Place
    declarators: tuple[Declarator, ...]


@dataclass(frozen=True, slots=True)
class Evaluate:
    """An expression as a statement."""

    place: Place
    expression: Expression


@dataclass(frozen=True, slots=True)
class Block:
    """Statements with a scope."""

    place: Place
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class If:
    """`if`; also `if constexpr`."""

    place: Place
    condition: Expression
    yes: Statement
    no: Statement | None


@dataclass(frozen=True, slots=True)
class Loop:
    """`for`, `while` or `do`."""

    place: Place
    word: str
    initial: Statement | None
    condition: Expression | None
    update: Expression | None
    body: Statement
    pragmas: tuple[Mark, ...] = ()
    """`#pragma`s and attributes right before it."""


@dataclass(frozen=True, slots=True)
class Return:
    """`return x;`."""

    place: Place
    value: Expression | None


@dataclass(frozen=True, slots=True)
class Jump:
    """`break` or `continue`."""

    place: Place
    word: str


@dataclass(frozen=True, slots=True)
class OpaqueStatement:
    """A statement that is not understood."""

    place: Place
    reason: str
    names: frozenset[str]


Statement: TypeAlias = Declaration | Evaluate | Block | If | Loop | Return | Jump | OpaqueStatement
Node: TypeAlias = Expression | Statement | Declarator


@dataclass(frozen=True, slots=True)
class FunctionParameter:
    """One parameter of a function."""

    place: Place
    name: str
    c_type: str
    is_pointer: bool
    is_reference: bool
    is_const: bool
    """Whether what it points or refers to is const."""
    is_restrict: bool
    space: str
    """`global`, `shared`, `constant` for pointers, else `private`."""


@dataclass(frozen=True, slots=True)
class TemplateParameter:
    """One parameter of a template."""

    name: str
    is_type: bool
    default: str = ""
    """What it is where nothing says another; empty: something has to."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function with a body."""

    place: Place
    name: str
    name_place: Place
    c_type: str
    is_kernel: bool
    parameters: tuple[FunctionParameter, ...]
    template_parameters: tuple[TemplateParameter, ...]
    body: Block
    attributes: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Struct:
    """A `struct` or `class` with a body."""

    place: Place
    name: str
    template_parameters: tuple[TemplateParameter, ...]
    fields: tuple[Declarator, ...]
    """What each object has, in order."""
    constants: Mapping[str, str]
    """The texts of its `static constexpr` members, by name."""
    methods: tuple[Function, ...]
    is_plain: bool
    """Whether this is all that it has: no bases, constructors, nested types or members that are not understood."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A named integer of the file: `constexpr int W = 32;`, an enumerator."""

    place: Place
    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class FileArray:
    """An array at file scope: `__constant__ float w[9];`."""

    declarator: Declarator
    space: str


@dataclass(frozen=True, slots=True)
class SyntaxTree:
    """One source file."""

    source: str
    expanded: Expanded
    functions: tuple[Function, ...]
    constants: tuple[Constant, ...]
    arrays: tuple[FileArray, ...]
    types: Mapping[str, str]
    """What `typedef` and `using` name, by the new name."""
    structs: tuple[Struct, ...]
    opaque: tuple[OpaqueStatement, ...]
    """What stands outside functions and is not understood."""
    variables: tuple[tuple[Place, frozenset[str]], ...] = ()
    """Declarations at file scope of what belongs to the host, with their names."""

    @property
    def kernels(self) -> tuple[Function, ...]:
        """The kernels that the file defines, in order."""
        return tuple(function for function in self.functions if function.is_kernel)


_PLAIN = frozenset(("Place", "str", "bool", "int", "int | None"))
"""Types of fields, as they are written above, that hold no nodes."""


@cache
def _parts(kind: Any) -> tuple[str, ...]:
    """The fields of a kind of node that may hold nodes."""
    return tuple(each.name for each in fields(kind) if each.type not in _PLAIN)


def children(node: Node) -> Iterator[Node]:
    """The nodes right below one, in the order of the source."""
    kind: Any = type(node)
    for name in _parts(kind):
        value = getattr(node, name)
        for item in value if isinstance(value, tuple) else (value,):
            if hasattr(item, "place"):
                yield item


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it, in the order of the source."""
    waiting: list[Node] = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(list(children(current))))


def same(left: Node, right: Node) -> bool:
    """Whether two nodes say the same, wherever they stand."""
    if type(left) is not type(right):
        return False
    for each in fields(left):
        if each.name == "place":
            continue
        one, other = getattr(left, each.name), getattr(right, each.name)
        ones, others = (one, other) if isinstance(one, tuple) and isinstance(other, tuple) else ((one,), (other,))
        if len(ones) != len(others):
            return False
        for a, b in zip(ones, others, strict=True):
            if hasattr(a, "place") and hasattr(b, "place") and not isinstance(a, Mark):
                if not same(a, b):
                    return False
            elif a != b:
                return False
    return True


def shape(value: object) -> object:
    """What a node says, wherever it stands: equal for nodes that are the `same`, and hashable."""
    if isinstance(value, tuple):
        return tuple(map(shape, value))
    if isinstance(value, Mark):
        return value.text
    if isinstance(value, Place):
        return None
    if not is_dataclass(value):
        return value
    return (type(value).__name__, *(shape(getattr(value, each.name)) for each in fields(value)))


def assigned_names(node: Node) -> frozenset[str]:
    """Variables that may change below a node: assigned, counted, their address taken, or in something opaque.

    Elements of an array or behind a pointer are memory, not variables; calls are not looked into.
    """
    found: set[str | None] = set()
    for each in walk(node):
        match each:
            case Assign(target=target) | Update(operand=target) | Unary(operator="&", operand=target):
                found.add(variable_of(target))
            case Declarator(is_reference=True, is_const=False, initial=initial) if initial is not None:
                found.add(variable_of(initial))
            case OpaqueExpression(names=names) | OpaqueStatement(names=names):
                found |= names
    return frozenset(name for name in found if name is not None)


def variable_of(node: Expression) -> str | None:
    """The variable that an assignment to this expression changes itself: `v` of `v.x`; None for memory."""
    while True:
        match node:
            case Name(name=name):
                return name
            case Member(base=inner, is_arrow=False) | Update(operand=inner) | Cast(operands=(inner,)):
                node = inner
            case _:
                return None


def root_name(node: Expression) -> str | None:
    """The variable that an expression is about: `v` of `v.x`, `a` of `a[i]`, `p` of `*p` and `&p[1]`."""
    while True:
        match node:
            case Name(name=name):
                return name
            case Element(base=inner) | Member(base=inner) | Unary(operand=inner) | Update(operand=inner):
                node = inner
            case Cast(operands=(inner,)):
                node = inner
            case Binary(left=inner):
                node = inner
            case _:
                return None


def declared_names(node: Node) -> frozenset[str]:
    """Variables that are declared below a node."""
    return frozenset(each.name for each in walk(node) if isinstance(each, Declarator))
