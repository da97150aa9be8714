"""Functions of C in Triton."""

from __future__ import annotations

import re

from kernelwright.tactics.base import Unfit
from kernelwright.tactics.triton.values import NOWHERE, TritonValue, alike, cast, converted

_BY_FLOAT = {
    "exp": "tl.exp", "exp2": "tl.exp2", "log": "tl.log", "log2": "tl.log2", "sqrt": "tl.sqrt", "rsqrt": "tl.rsqrt",
    "sin": "tl.sin", "cos": "tl.cos", "erf": "tl.erf", "floor": "tl.floor", "ceil": "tl.ceil", "fabs": "tl.abs",
    **{name: f"libdevice.{name}" for name in (
        "tanh", "pow", "log1p", "expm1", "rint", "nearbyint", "round", "trunc", "cbrt", "log10", "exp10", "erfc", "tan",
        "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan2", "fmod", "copysign",
    )},
}  # fmt: skip
"""Functions of float32 and float64, without the spelling for a type."""
_TAKES_TWO = frozenset(("pow", "atan2", "fmod", "copysign"))
_OF_TWO = {"max": "tl.maximum", "fmax": "tl.maximum", "min": "tl.minimum", "fmin": "tl.minimum"}
_TO_INTEGER = re.compile(r"__(?:float|double)2int_(?P<mode>r[nzud])")
_ROUNDINGS = {"rn": "rint", "rz": "trunc", "rd": "floor", "ru": "ceil"}
_CONVERSIONS = {
    "__half2float": "float32", "__float2half": "float16", "__float2half_rn": "float16", "__bfloat162float": "float32",
    "__float2bfloat16": "bfloat16", "__float2bfloat16_rn": "bfloat16",
}  # fmt: skip


def called(name: str, given: list[TritonValue]) -> TritonValue:
    """A function on values.

    Raises:
        Unfit: it has no words in Triton.
    """
    if name in _CONVERSIONS and len(given) == 1:
        dtype = _CONVERSIONS[name]
        text = cast(given[0].text, dtype) if given[0].is_literal else converted(given[0], dtype)
        return TritonValue(text, dtype, given[0].axes)
    if (rounded := _TO_INTEGER.fullmatch(name)) is not None and len(given) == 1:
        made = called(_ROUNDINGS[rounded["mode"]], given)
        return TritonValue(cast(made.text, "int32"), "int32", made.axes)
    plain = name.removeprefix("std::").removeprefix("native_").removeprefix("half_")
    plain = plain.removeprefix("__") if plain.endswith("f") else plain
    known = (*_BY_FLOAT, *_OF_TWO, "fma", "abs")
    axes = NOWHERE.union(*(each.axes for each in given))
    plain = next((each for each in (plain, plain.removesuffix("f")) if each in known), "")
    if plain in _OF_TWO and len(given) == 2:
        dtype, one, other = alike(*given)
        return TritonValue(f"{_OF_TWO[plain]}({one}, {other})", dtype, axes)
    if plain == "fma" and len(given) == 3:
        dtype, one, other = alike(given[0], given[1])
        dtype, product, last = alike(TritonValue(f"({one} * {other})", dtype), given[2])
        return TritonValue(f"({product} + {last})", dtype, axes)
    if plain == "abs" and len(given) == 1:
        return TritonValue(f"tl.abs({given[0].text})", given[0].dtype, axes)
    if plain not in _BY_FLOAT or len(given) != (2 if plain in _TAKES_TWO else 1):
        raise Unfit(f"the function {name} has no words in Triton")
    dtype = "float64" if any(each.dtype == "float64" and not each.is_literal for each in given) else "float32"
    texts = [cast(each.text, dtype) if each.is_literal else converted(each, dtype) for each in given]
    return TritonValue(f"{_BY_FLOAT[plain]}({', '.join(texts)})", dtype, axes)
