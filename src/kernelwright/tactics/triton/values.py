"""C values as Triton's: types, literals, names, and along which axes of a tile a value differs.

What is known of a value is its type, a name of `problem.dtypes`. A literal has none of its own: Triton gives it that of
what it meets, so a literal double does not widen a product of floats, as it would in C.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from kernelwright.problem.dtypes import DTYPES, dtype_of_c_type
from kernelwright.source import nodes
from kernelwright.source.language import Language
from kernelwright.tactics.base import Unfit

_INT_BYTES = 4
"""Of the least type that C computes in."""
_MADE = re.compile(r"(mask|tile|start)\d+|\w+_v\d+")
"""Names that are made here."""
_OWN = frozenset((
    "tl", "triton", "libdevice", "BLOCK", "BLOCK_Y", "ROWS", "TILE", "GRID", "WHOLE", "BLOCK_M", "BLOCK_N", "BLOCK_K",
    "GROUP", "num_warps", "num_stages", "num_ctas", "maxnreg", "grid", "warmup", "stream", "at", "at_y", "at_z", "row",
    "lane", "multiplied", "END_X", "END_Y", "in_x", "in_y", "in_grid",
))  # fmt: skip
_TRITON_TYPES = {"bool": "int1", "float8_e4m3fn": "", "float8_e5m2": ""}
NUMBERS = {
    "INFINITY": math.inf, "HUGE_VALF": math.inf, "HUGE_VAL": math.inf, "CUDART_INF_F": math.inf, "NAN": math.nan,
    "FLT_MAX": 3.4028234663852886e38, "FLT_MIN": 1.1754943508222875e-38, "FLT_EPSILON": 1.1920928955078125e-07,
    "DBL_MAX": 1.7976931348623157e308, "M_PI": math.pi, "M_PI_F": math.pi, "M_SQRT1_2": math.sqrt(0.5),
}  # fmt: skip
NOWHERE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TritonValue:
    """An expression in Triton."""

    text: str
    dtype: str
    axes: frozenset[int] = NOWHERE
    """Of the tile, along which it differs; none for a number, which is no block then."""
    is_literal: bool = False
    place: str = ""
    """What it is of the thread's place: see `text.Layout`."""


def alike(one: TritonValue, other: TritonValue) -> tuple[str, str, str]:
    """Both in the type that C computes them in."""
    if one.is_literal != other.is_literal:
        own, literal = (other, one) if one.is_literal else (one, other)
        if is_float(own.dtype) or (not is_float(literal.dtype) and _rank(own.dtype) >= _rank(literal.dtype)):
            return own.dtype, one.text, other.text
    dtype = max(one.dtype, other.dtype, key=_rank)
    dtype = "int32" if DTYPES[dtype].item_bytes < _INT_BYTES and not is_float(dtype) else dtype
    return dtype, converted(one, dtype), converted(other, dtype)


def converted(value: TritonValue, dtype: str) -> str:
    """A value's text in another type."""
    if value.dtype == dtype or (value.is_literal and (is_float(dtype) or not is_float(value.dtype))):
        return value.text
    return cast(value.text, dtype)


def cast(text: str, dtype: str) -> str:
    """Of a number too, which an argument that is 1 is for Triton."""
    return f"tl.cast({text}, tl.{triton_type(dtype)})"


def terms(node: nodes.Expression, operator: str) -> list[nodes.Expression]:
    """What an operator joins, from left to right."""
    if isinstance(node, nodes.Binary) and node.operator == operator:
        return [*terms(node.left, operator), *terms(node.right, operator)]
    return [node]


def bare(node: nodes.Expression) -> nodes.Expression:
    """Without conversions of integers."""
    while isinstance(node, nodes.Cast) and len(node.operands) == 1 and not node.is_pointer:
        node = node.operands[0]
    return node


def literal_value(node: nodes.Literal) -> TritonValue:
    """A literal; `u` and `L` are heeded, and mean nothing in Python."""
    if node.value is not None and node.text not in ("true", "false"):
        return TritonValue(str(node.value), _integer_type(node), is_literal=True)
    if node.text in ("true", "false"):
        return TritonValue(node.text.title(), "bool", is_literal=True)
    is_hex = node.text[:2].lower() == "0x"
    text = node.text.rstrip("fFlL") if not is_hex or "p" in node.text.lower() else node.text
    try:
        number = float.fromhex(text) if is_hex else float(text)
        return TritonValue(repr(number), "float32" if node.text[-1] in "fF" else "float64", is_literal=True)
    except ValueError:
        raise Unfit(f"the literal {node.text} has no words in Triton") from None


def _integer_type(node: nodes.Literal) -> str:
    assert node.value is not None
    letters = node.text.lower()
    is_unsigned = "u" in letters
    is_wide = "l" in letters or not -(2**31) <= node.value < 2 ** (32 if is_unsigned else 31)
    return ("u" if is_unsigned else "") + ("int64" if is_wide else "int32")


def known_number(name: str) -> TritonValue | None:
    """What a name of C's headers stands for, as a literal; None for another name."""
    number = NUMBERS.get(name)
    if number is None:
        return None
    text = repr(number) if math.isfinite(number) else f'float("{number}")'
    is_double = name.startswith(("DBL", "M_")) and not name.endswith("_F")
    return TritonValue(text, "float64" if is_double else "float32", is_literal=True)


def _rank(dtype: str) -> tuple[bool, int, bool]:
    """C's usual conversions: floats before integers, then the wider, then the unsigned; at least `int`."""
    known = DTYPES[dtype]
    return known.kind == "float", known.item_bytes, known.kind == "uint"


def is_float(dtype: str) -> bool:
    """Whether a type has fractions."""
    return DTYPES[dtype].kind == "float"


def names_in_triton(names: Iterable[str]) -> dict[str, str]:
    """Each name in C as one that means nothing else in Python or in what is written here, and stands for nothing else.

    A name that is taken gets underscores.
    """
    given = tuple(dict.fromkeys(names))
    found: dict[str, str] = {}
    for name in given:
        new = name
        while keyword.iskeyword(new) or hasattr(builtins, new) or new in _OWN or _MADE.fullmatch(new) or (
            new != name and (new in given or new in found.values())
        ):  # fmt: skip
            new += "_"
        found[name] = new
    return found


def c_dtype(c_type: str, language: Language) -> str:
    """The name of a type in C that Triton computes in.

    Raises:
        Unfit: it has none.
    """
    found = dtype_of_c_type(c_type, language)
    if found is None or not triton_type(found.name):
        raise Unfit(f"the type {c_type} has no name in Triton")
    return found.name


def triton_type(dtype: str) -> str:
    """What `tl` calls a type; empty for one that it does not compute in."""
    return _TRITON_TYPES.get(dtype, dtype)
