"""Functions of `libdevice` on the host: Triton's interpreter has none, and kernels call them as they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

_SAME_NAME = (
    "abs", "floor", "ceil", "trunc", "rint", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "copysign", "hypot",
    "fmod", "fmin", "fmax", "atan2", "ldexp",
)  # fmt: skip
_NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
          "atanh": "arctanh", "atan2": "arctan2"}  # fmt: skip

FLOATS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(np, _NUMPY.get(name, name)) for name in _SAME_NAME},
    "fabs": np.abs,
    "nearbyint": np.rint,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "exp10": lambda x: np.power(10.0, x),
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
    "lgamma": np.vectorize(math.lgamma),
    "fma": lambda x, y, z: x * y + z,
    "div_rn": np.divide,
    "fast_dividef": np.divide,
    "fast_expf": np.exp,
    "fast_exp10f": lambda x: np.power(10.0, x),
    "fast_logf": np.log,
    "fast_log2f": np.log2,
    "fast_log10f": np.log10,
    "fast_powf": np.power,
    "fast_sinf": np.sin,
    "fast_cosf": np.cos,
    "fast_tanf": np.tan,
}
"""What gives a number of the kind that it takes."""
TESTS: Mapping[str, Callable[..., Any]] = {
    "isnan": np.isnan, "isinf": np.isinf, "isfinited": np.isfinite, "finitef": np.isfinite, "signbit": np.signbit,
}  # fmt: skip
"""What gives 0 or 1, as `int32`."""


def give_libdevice(interpreter: Any, modules: list[ModuleType]) -> None:
    """Put host functions in the place of those that `modules` have."""
    for module in modules:
        for names, is_test in ((FLOATS, False), (TESTS, True)):
            for name, function in names.items():
                if hasattr(module, name):
                    setattr(module, name, _on_host(interpreter, function, is_test=is_test))


def _on_host(interpreter: Any, function: Callable[..., Any], *, is_test: bool) -> Callable[..., Any]:
    language = interpreter.tl

    def computed(*values: Any, **_: Any) -> Any:
        """The function of each element; `_` is what Triton's compiler hands on."""
        tensors = [each for each in values if isinstance(each, language.tensor)]
        kind = language.int32 if is_test else tensors[0].dtype
        with np.errstate(all="ignore"):
            found = function(*(each.handle.data if isinstance(each, language.tensor) else each for each in values))
        data = np.asarray(found).astype(np.int32 if is_test else tensors[0].handle.data.dtype)
        shape = max((list(each.shape) for each in tensors), key=math.prod)
        return language.tensor(
            interpreter.TensorHandle(data, kind), language.block_type(kind, shape) if shape else kind
        )

    return computed
