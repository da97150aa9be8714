"""C expressions and statements of one thread as Triton's for a block of threads, with the mask of each.

What is known of a value is its type, a name of `problem.dtypes`. A literal has none of its own: Triton gives it that of
what it meets, so a literal double does not widen a product of floats, as it would in C.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field, replace

from kernelwright.problem.dtypes import DTYPES, dtype_of_c_type
from kernelwright.source import nodes
from kernelwright.source.language import Language
from kernelwright.tactics.base import Unfit
from kernelwright.tactics.common.thread_queries import query_text

_BY_FLOAT = {
    "exp": "tl.exp", "exp2": "tl.exp2", "log": "tl.log", "log2": "tl.log2", "sqrt": "tl.sqrt", "rsqrt": "tl.rsqrt",
    "sin": "tl.sin", "cos": "tl.cos", "erf": "tl.erf", "floor": "tl.floor", "ceil": "tl.ceil", "fabs": "tl.abs",
    "tanh": "libdevice.tanh", "pow": "libdevice.pow", "log1p": "libdevice.log1p", "expm1": "libdevice.expm1",
}  # fmt: skip
"""Functions of float32 and float64, without the spelling for a type."""
_OF_TWO = {"max": "tl.maximum", "fmax": "tl.maximum", "min": "tl.minimum", "fmin": "tl.minimum"}
_CONVERSIONS = {
    "__half2float": "float32", "__float2half": "float16", "__float2half_rn": "float16", "__bfloat162float": "float32",
    "__float2bfloat16": "bfloat16",
}  # fmt: skip
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
PLACES = {"x": "at", "y": "at_y", "z": "at_z"}
"""By axis what a program's places are called: a block of them along x, one along the others."""
_INT_BYTES = 4
"""Of the least type that C computes in."""
_BOUND = re.compile(r"(mask|test)\d+")
_OWN = ("tl", "triton", "libdevice", "BLOCK", *PLACES.values())
_TRITON_TYPES = {"bool": "int1", "float8_e4m3fn": "", "float8_e5m2": ""}


@dataclass(frozen=True, slots=True)
class _Value:
    """An expression in Triton."""

    text: str
    dtype: str
    is_literal: bool = False
    is_same: bool = False
    """Whether all threads have one value, which is no block then."""


def block_text(
    function: nodes.Function, language: Language, *, is_wide: bool, single: frozenset[str]
) -> tuple[tuple[str, ...], bool]:
    """The lines of a kernel's body, with `PLACES` for the threads' numbers; and whether they need Triton's `libdevice`.

    Args:
        function: the kernel, of which a program does what a block of threads does.
        language: its own.
        is_wide: whether the threads' numbers have 64 bits.
        single: axes along which a block has one thread, so that its number is the thread's.

    Raises:
        Unfit: something in it has no words in Triton.
    """
    writer = _BlockText(language, {}, {}, is_wide=is_wide, single=single)
    for each in function.parameters:
        dtype = dtype_of_c_type(each.c_type, language)
        if dtype is None or each.is_reference:
            raise Unfit(f"the type of {each.name} has no name in Triton")
        (writer.pointers if each.is_pointer else writer.values)[each.name] = dtype.name
    writer.body(function.body)
    return tuple(writer.lines), writer.uses_libdevice


@dataclass(slots=True)
class _BlockText:
    """Writes one kernel's body; refuses, as `Unfit`, what it has no words for."""

    language: Language
    pointers: dict[str, str]
    """By pointer parameter what it points to."""
    values: dict[str, str]
    """By parameter or variable its type."""
    lines: list[str] = field(default_factory=list)
    uses_libdevice: bool = False
    is_wide: bool = False
    """Whether places are 64 bits wide, as the source has them."""
    single: frozenset[str] = frozenset()
    """Axes along which a block has one thread."""
    _masks: int = 0
    _declared_under: dict[str, str] = field(default_factory=dict)
    _same: set[str] = field(default_factory=set)
    """Names of values that all threads have in common."""

    # Statements

    def body(self, block: nodes.Block) -> None:
        """All of a kernel."""
        self._same |= self.values.keys()
        self._statements(block.statements, "")

    def _statements(self, statements: tuple[nodes.Statement, ...], mask: str) -> None:
        for index, each in enumerate(statements):
            if isinstance(each, nodes.Return) and each.value is None and index == len(statements) - 1 and not mask:
                return
            left = self._early_exit(each, mask)
            if left is not None:
                mask = left
                continue
            self._statement(each, mask)

    def _early_exit(self, statement: nodes.Statement, mask: str) -> str | None:
        """The mask of what follows `if (...) return;`; None: it is none."""
        if not isinstance(statement, nodes.If) or statement.no is not None:
            return None
        inside = statement.yes.statements if isinstance(statement.yes, nodes.Block) else (statement.yes,)
        if len(inside) != 1 or not isinstance(inside[0], nodes.Return) or inside[0].value is not None:
            return None
        return self._mask(f"({self._condition(statement.condition, mask)}) == 0", mask)

    def _statement(self, statement: nodes.Statement, mask: str) -> None:
        match statement:
            case nodes.Block(statements=inside):
                if any(isinstance(each, nodes.Return) for each in nodes.walk(statement)):
                    raise Unfit("it returns from inside a block")
                self._statements(inside, mask)
            case nodes.Declaration(declarators=declarators):
                for each in declarators:
                    self._declare(each, mask)
            case nodes.Evaluate(expression=nodes.Assign() as assigned):
                self._assign(assigned, mask)
            case nodes.If(condition=condition, yes=yes, no=no):
                asked = self._bound(self._condition(condition, mask))  # once: a branch may store what it reads
                self._statement_under(yes, self._mask(asked, mask))
                if no is not None:
                    self._statement_under(no, self._mask(f"{asked} == 0", mask))
            case _:
                raise Unfit(f"a statement has no words in Triton ({type(statement).__name__.lower()})")

    def _statement_under(self, statement: nodes.Statement, mask: str) -> None:
        if any(isinstance(each, nodes.Return | nodes.Jump) for each in nodes.walk(statement)):
            raise Unfit("it returns from inside a branch that does more")
        self._statement(statement, mask)

    def _bound(self, text: str) -> str:
        """A name for what is computed now."""
        self._masks += 1
        self.lines.append(f"test{self._masks} = {text}")
        return f"test{self._masks}"

    def _mask(self, condition: str, mask: str) -> str:
        self._masks += 1
        name = f"mask{self._masks}"
        self.lines.append(f"{name} = {f'{mask} & ({condition})' if mask else condition}")
        return name

    def _declare(self, declarator: nodes.Declarator, mask: str) -> None:
        name = declarator.name
        if declarator.is_pointer or declarator.is_reference or declarator.extents or declarator.is_shared:
            raise Unfit(f"the variable {name} is no number")
        if name in self.values or name in self.pointers:
            raise Unfit(f"the name {name} has two meanings")
        made = None if declarator.initial is None else self._value(declarator.initial, mask)
        is_auto = made is not None and declarator.c_type.removeprefix("const ") == "auto"
        dtype = made.dtype if made is not None and is_auto else self._dtype(declarator.c_type)
        if made is None:
            text = f"tl.zeros((BLOCK,), dtype=tl.{_triton(dtype)})"
        else:
            text = _cast(made.text, dtype) if made.is_literal else _converted(made, dtype)
            self._same |= {name} if made.is_same else set()
        self.lines.append(f"{name_in_triton(name)} = {text}")
        self.values[name] = dtype
        self._declared_under[name] = mask

    def _assign(self, assigned: nodes.Assign, mask: str) -> None:
        value = assigned.value
        if assigned.operator != "=":
            value = nodes.Binary(assigned.place, assigned.operator.removesuffix("="), assigned.target, value)
        made = self._value(value, mask)
        match assigned.target:
            case nodes.Name(name=name) if name in self._declared_under:
                text = _converted(made, self.values[name])
                is_all, own = self._declared_under[name] == mask, name_in_triton(name)
                self._same -= set() if is_all and made.is_same else {name}
                self.lines.append(f"{own} = {text if is_all else f'tl.where({mask}, {text}, {own})'}")
            case nodes.Element(base=nodes.Name(name=name), index=index) if name in self.pointers:
                if not mask:
                    raise Unfit(f"{name} is stored without a bound")
                text = _converted(made, self.pointers[name])
                self.lines.append(f"tl.store({self._place(name, index, mask)}, {text}, mask={mask})")
            case _:
                raise Unfit("it stores to what is neither a variable nor an element")

    # Expressions

    def _value(self, node: nodes.Expression, mask: str) -> _Value:
        place = self._place_of(node)
        if place:
            return _Value(place, "int64" if self.is_wide else "int32", is_same=place != "at")
        match node:
            case nodes.Literal():
                return _literal(node)
            case nodes.Name(name=name) if name in self.values:
                return _Value(name_in_triton(name), self.values[name], is_same=name in self._same)
            case nodes.Element(base=nodes.Name(name=name), index=index) if name in self.pointers:
                masked = f", mask={mask}" if mask else ""
                return _Value(f"tl.load({self._place(name, index, mask)}{masked})", self.pointers[name])
            case nodes.Unary(operator="+", operand=operand):
                return self._value(operand, mask)
            case nodes.Unary(operator="-", operand=operand):
                inner = self._value(operand, mask)
                return replace(inner, text=f"(-{inner.text})")
            case nodes.Unary(operator="!", operand=operand):
                return _Value(f"(({self._condition(operand, mask)}) == 0)", "bool")
            case nodes.Binary(operator=operator, left=left, right=right):
                return self._binary(operator, left, right, mask)
            case nodes.Conditional(condition=condition, yes=yes, no=no):
                known = self._value(condition, mask)
                asked = self._bound(_asked(known))
                one = self._value(yes, self._under(yes, asked, mask))
                other = self._value(no, self._under(no, f"{asked} == 0", mask))
                dtype, first, second = _alike(one, other)
                is_same = known.is_same and not _is_computed(known) and _is_one(one) and _is_one(other)
                return _Value(f"tl.where({asked}, {first}, {second})", dtype, is_same=is_same)
            case nodes.Cast(c_type=c_type, is_pointer=False, operands=(operand,), is_reinterpreting=False):
                dtype = self._dtype(c_type)
                inner = self._value(operand, mask)
                return replace(inner, text=_converted(inner, dtype), dtype=dtype)
            case nodes.Call(function=name, arguments=arguments, template_arguments=()):
                return self._call(name, [self._value(each, mask) for each in arguments])
        raise Unfit(f"an expression has no words in Triton ({type(node).__name__.lower()})")

    def _binary(self, operator: str, left: nodes.Expression, right: nodes.Expression, mask: str) -> _Value:
        if operator in ("&&", "||"):
            word = "&" if operator == "&&" else "|"
            first = self._bound(self._condition(left, mask))
            decided = first if operator == "&&" else f"{first} == 0"
            second = self._condition(right, self._under(right, decided, mask))
            return _Value(f"({first} {word} ({second}))", "bool")
        one, other = self._value(left, mask), self._value(right, mask)
        is_same = _is_one(one) and _is_one(other)
        dtype, first, second = _alike(one, other)
        if operator in _COMPARISONS:
            return _Value(f"({first} {operator} {second})", "bool", is_same=is_same)
        is_float = _is_float(dtype)
        if operator not in ("+", "-", "*", "/") and (is_float or operator not in ("%", "<<", ">>", "&", "|", "^")):
            raise Unfit(f"the operator {operator} has no words in Triton for {dtype}")
        is_literal = one.is_literal and other.is_literal
        if is_literal and operator in ("/", "%") and not is_float:  # Python rounds down, C to zero
            is_literal, is_same, first = False, True, _cast(first, dtype)
        word = "//" if operator == "/" and not is_float else operator
        return _Value(f"({first} {word} {second})", dtype, is_literal, is_same)

    def _under(self, node: nodes.Expression, condition: str, mask: str) -> str:
        """The mask for what is only computed under a condition; the same where nothing is loaded there."""
        is_loading = any(isinstance(each, nodes.Element) for each in nodes.walk(node))
        return self._mask(condition, mask) if is_loading else mask

    def _call(self, name: str, given: list[_Value]) -> _Value:
        if name in _CONVERSIONS and len(given) == 1:
            return replace(given[0], text=_converted(given[0], _CONVERSIONS[name]), dtype=_CONVERSIONS[name])
        plain = name.removeprefix("std::").removeprefix("native_").removeprefix("half_")
        plain = plain.removeprefix("__") if plain.endswith("f") else plain
        known, is_same = (*_BY_FLOAT, *_OF_TWO, "fma"), all(map(_is_one, given))
        plain = next((each for each in (plain, plain.removesuffix("f")) if each in known), "")
        if plain in _OF_TWO and len(given) == 2:
            dtype, one, other = _alike(*given)
            return _Value(f"{_OF_TWO[plain]}({one}, {other})", dtype, is_same=is_same)
        if plain == "fma" and len(given) == 3:
            dtype, one, other = _alike(given[0], given[1])
            dtype, product, last = _alike(_Value(f"({one} * {other})", dtype), given[2])
            return _Value(f"({product} + {last})", dtype, is_same=is_same)
        if plain not in _BY_FLOAT or len(given) != (2 if plain == "pow" else 1):
            raise Unfit(f"the function {name} has no words in Triton")
        dtype = "float64" if any(each.dtype == "float64" and not each.is_literal for each in given) else "float32"
        self.uses_libdevice |= _BY_FLOAT[plain].startswith("libdevice")
        texts = [_cast(each.text, dtype) if each.is_literal else _converted(each, dtype) for each in given]
        return _Value(f"{_BY_FLOAT[plain]}({', '.join(texts)})", dtype, is_same=is_same)

    def _condition(self, node: nodes.Expression, mask: str) -> str:
        return _asked(self._value(node, mask))

    def _place(self, name: str, index: nodes.Expression, mask: str) -> str:
        """An element's address for each thread, also where all have the same."""
        value = self._value(index, mask)
        if _is_float(value.dtype):
            raise Unfit(f"an index of {name} is no integer")
        same = " + at * 0" if _is_one(value) else ""
        return f"{name_in_triton(name)} + {value.text}{same}"

    # Names and types

    def _place_of(self, node: nodes.Expression) -> str:
        """The name of the thread's number along an axis of the whole launch; empty for anything else."""
        terms = _terms(node, "+")
        texts = sorted(
            "*".join(sorted(query_text(_bare(factor)) for factor in _terms(_bare(term), "*"))) for term in terms
        )
        for index, (axis, name) in enumerate(PLACES.items()):
            blocks = (f"blockIdx.{axis}", f"get_group_id({index})")
            whole = (
                [f"get_global_id({index})"],
                [f"blockDim.{axis}*blockIdx.{axis}", f"threadIdx.{axis}"],
                [f"get_group_id({index})*get_local_size({index})", f"get_local_id({index})"],
            )
            if texts in whole or (axis in self.single and texts[0] in blocks and len(texts) == 1):
                return name
        return ""

    def _dtype(self, c_type: str) -> str:
        found = dtype_of_c_type(c_type, self.language)
        if found is None or not _triton(found.name):
            raise Unfit(f"the type {c_type} has no name in Triton")
        return found.name


def _asked(value: _Value) -> str:
    """Whether a value is not 0."""
    if _is_computed(value):  # a number, which Triton's interpreter joins with no mask
        return f"((at * 0 + {value.text}) != 0)"
    return value.text if value.dtype == "bool" else f"({value.text} != 0)"


def _is_one(value: _Value) -> bool:
    """Whether it is one number, not one for each thread."""
    return value.is_same or value.is_literal


def _is_computed(value: _Value) -> bool:
    """Whether it is one number that a function of Triton gives."""
    return _is_one(value) and "tl." in value.text


def _alike(one: _Value, other: _Value) -> tuple[str, str, str]:
    """Both in the type that C computes them in."""
    if one.is_literal != other.is_literal:
        own, literal = (other, one) if one.is_literal else (one, other)
        if _is_float(own.dtype) or (not _is_float(literal.dtype) and DTYPES[own.dtype].item_bytes >= _INT_BYTES):
            return own.dtype, one.text, other.text
    dtype = max(one.dtype, other.dtype, key=_rank)
    dtype = "int32" if DTYPES[dtype].item_bytes < _INT_BYTES and not _is_float(dtype) else dtype
    return dtype, _converted(one, dtype), _converted(other, dtype)


def _converted(value: _Value, dtype: str) -> str:
    if value.dtype == dtype or (value.is_literal and (_is_float(dtype) or not _is_float(value.dtype))):
        return value.text
    return _cast(value.text, dtype)


def _cast(text: str, dtype: str) -> str:
    """Of a number too, which an argument that is 1 is for Triton."""
    return f"tl.cast({text}, tl.{_triton(dtype)})"


def _terms(node: nodes.Expression, operator: str) -> list[nodes.Expression]:
    if isinstance(node, nodes.Binary) and node.operator == operator:
        return [*_terms(node.left, operator), *_terms(node.right, operator)]
    return [node]


def _bare(node: nodes.Expression) -> nodes.Expression:
    """Without conversions of integers."""
    while isinstance(node, nodes.Cast) and len(node.operands) == 1 and not node.is_pointer:
        node = node.operands[0]
    return node


def _literal(node: nodes.Literal) -> _Value:
    if node.value is not None and node.text not in ("true", "false"):
        return _Value(str(node.value), "int32" if -(2**31) <= node.value < 2**31 else "int64", is_literal=True)
    if node.text in ("true", "false"):
        return _Value(node.text.title(), "bool", is_literal=True)
    text = node.text.rstrip("fFlL")
    try:
        return _Value(repr(float(text)), "float32" if text != node.text else "float64", is_literal=True)
    except ValueError:
        raise Unfit(f"the literal {node.text} has no words in Triton") from None


def _rank(dtype: str) -> tuple[bool, int, bool]:
    """C's usual conversions: floats before integers, then the wider, then the unsigned; at least `int`."""
    known = DTYPES[dtype]
    return known.kind == "float", known.item_bytes, known.kind == "uint"


def _is_float(dtype: str) -> bool:
    return DTYPES[dtype].kind == "float"


def name_in_triton(name: str) -> str:
    """A name that means nothing else in Python or in what is written here."""
    is_taken = keyword.iskeyword(name) or name in _OWN or _BOUND.fullmatch(name)
    return f"{name}_" if is_taken else name


def _triton(dtype: str) -> str:
    return _TRITON_TYPES.get(dtype, dtype)
