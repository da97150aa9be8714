"""What rounding alone may do to each element of a result: the reference again, in the arithmetic of a device.

A tolerance by scales (`tolerance`) takes a row for a whole and roundings for independent. Two honest things break that:
one element of a row may be the small difference of large numbers, and adding the same number again and again rounds the
same way each time, so that errors grow as the length of a sum and not as its root. Both show when the reference is
computed as a kernel would: every result of an operation is off by some units in the last place, and sums are made one
term after the other in float32. That costs several calls, so it is asked for only where a result is outside of its
tolerance: `is_rounding` says whether that may be rounding.

References in NumPy are followed operation by operation, through a subclass of its arrays. Those in PyTorch get float32
tensors, so sums are in its order. What neither sees (another library) still gets inputs that are off by some units.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelwright.errors import ReferenceFailed
from kernelwright.evaluate.data.array_threads import ALONE, Crew
from kernelwright.evaluate.data.tolerance import Allowance, compare, wrong_elements
from kernelwright.problem.reference import Reference

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]

UNITS = 2.0
"""Standard deviation of an operation's error, in epsilons of the arithmetic: OpenCL and CUDA allow divisions, roots,
exponentials and logarithms 1 to 4."""
SAMPLES = 4
"""One alone may be off by nothing where another one is off by much."""
FACTOR = 3.0
"""A result may be off by this many times the samples' root mean square, as it may be by the baseline's error
(`tolerance.BASELINE_FACTOR`)."""
HOPELESS = 32.0
"""Where an element is off by this many times what one sample allows, and most that were wrong still are, the result is
wrong: no second sample is made. One element alone may be unlucky."""
NEAR, MORE = 1.5, 4
"""Where nothing is off by more than so many times what the samples allow, they may have been small by luck: so many
times as many are made. Of a million honest elements one was off by 1.003 times what four samples allowed."""
PRODUCTS_MAX = 1 << 24
"""Products of a matrix product that are summed one after the other; larger ones have the tolerance by scales alone."""
CHAIN = 1 << 16
"""Terms that are added one after the other, at most: parts of longer sums are. A float32 total of millions of terms
leaves whole terms out; what such a sum is off by would hide that a kernel adds a sample of them."""
ALIKE_SHARE = 0.75
ALIKE_PLACES = 1 / 64
ALIKE_MOST = 2.0**-7
"""A sum has terms that are rounded alike where more than this part of them differ from their neighbour, if at all, by
less than so many last places of a chain's total, and by less than this part of themselves. Then errors do not cancel
out, but add up. With fewer of them, or more apart, what is rounded off differs from term to term, and a sample of the
terms would pass for all: a `ramp` is a chain of terms that are not a place apart."""
ALIKE_ERROR = 1 / 6
"""What such a sum is off by, in epsilons of itself for each term. The bound is 1/4, since partial sums are half of the
total on average, each rounded by half a unit; a `FACTOR`th of that would do for the sum, but not for its square."""
LOOKED_AT = 256
"""Terms and sums that are looked at for that."""
_NOISES = 65521
"""Random factors that are used again and again: a prime, so that no row gets those of the row before."""


def is_rounding(
    got: Array, expected: FloatArray, allowance: Allowance, output: str, roundings: Roundings, *, crew: Crew = ALONE
) -> Allowance | None:
    """`allowance` with what rounding does to each element, where `got` is within it; else None.

    Args:
        got: in its storage dtype, outside of `allowance`.
        expected: of the same shape.
        allowance: by scales.
        output: the argument's name.
        roundings: of the inputs at hand; samples are added as needed.
        crew: threads that compare.
    """
    is_near = False
    while True:
        deviation = roundings.deviation(output)
        if deviation is not None:
            wide = _with(allowance, deviation, expected)
            found = compare(got, expected, wide, crew=crew)
            if found.is_within:
                return wide
            is_near = found.fraction <= NEAR
            if found.fraction > HOPELESS:
                still, before = (
                    wrong_elements(got, expected, each, limit=0, crew=crew)[0] for each in (wide, allowance)
                )
                if 2 * still > before:
                    return None
        if not roundings.add(is_near=is_near):
            return None


def _with(allowance: Allowance, deviation: FloatArray, expected: FloatArray) -> Allowance:
    because = f"{allowance.because}, or {FACTOR:g} times what rounding does to the reference there"
    atol = np.maximum(allowance.atol, FACTOR * deviation - allowance.rtol * np.abs(expected))
    return dataclasses.replace(allowance, atol=atol, because=because)


class Roundings:
    """How far results are off when the reference is computed in a device's arithmetic, on one set of inputs."""

    def __init__(
        self,
        expected: Mapping[str, Array],
        call: Callable[[Callable[[Reference], Reference], Callable[[Array], Array]], Mapping[str, Array]],
        *,
        epsilon: float,
        seed: int,
        most: int = SAMPLES,
    ) -> None:
        """No sample yet.

        Args:
            expected: results in float64.
            call: calls the reference that its first argument makes of it, on inputs that its second one has changed.
            epsilon: of the arithmetic: float32's or float64's.
            seed: of the errors.
            most: samples, fewer where the reference is slow: then an honest result may look wrong, and no wrong one
                right.
        """
        self._expected = expected
        self._call = call
        self._epsilon = epsilon
        self._seed = seed
        self._most = most
        self._lock = threading.Lock()
        self._squares: dict[str, FloatArray] = {}
        self._count = 0
        self._is_over = False

    @property
    def byte_count(self) -> int:
        """The memory that is kept."""
        return sum(values.nbytes for values in self._squares.values())

    def deviation(self, output: str) -> FloatArray | None:
        """Root mean square of the samples, by element; None before the first one."""
        with self._lock:
            return np.sqrt(self._squares[output] / self._count) if output in self._squares else None

    def add(self, *, is_near: bool = False) -> bool:
        """One more sample; False where there are enough, or the reference cannot be computed so.

        `is_near`: the samples at hand nearly allow a result.
        """
        with self._lock:
            if self._is_over or self._count >= self._most * (MORE if is_near else 1):
                return False
            arithmetic = _Arithmetic(self._epsilon, self._seed, number=self._count)
            try:
                results = self._call(arithmetic.followed, arithmetic.off)
            except ReferenceFailed:  # it needs arrays of NumPy's own, or float64 tensors, or leaves its domain
                self._is_over = True
                return False
            for name, values in results.items():
                with np.errstate(all="ignore"):
                    square = np.square(values - self._expected[name])
                square[~np.isfinite(square)] = 0.0
                self._squares[name] = self._squares.get(name, 0.0) + square
            self._count += 1
            return True


class _Arithmetic:
    """The arithmetic of one sample: operations off by some units, sums in a working type, one term after the other."""

    def __init__(self, epsilon: float, seed: int, *, number: int) -> None:
        self._epsilon = epsilon
        self._rng = np.random.default_rng((seed, number))
        self._noise = 1.0 + UNITS * epsilon * self._rng.standard_normal(_NOISES)
        self._working: type[np.floating[Any]] = np.float32 if epsilon > 1e-12 else np.float64
        self._is_backward = number % 2 == 1
        self._is_first = number == 0

    def followed(self, reference: Reference) -> Reference:
        """`reference`, computed in this arithmetic."""
        function = reference.function

        def call(*arguments: object, **named: object) -> object:
            enter = self._narrow if reference.uses_torch else self.wrap
            return function(*(enter(each) for each in arguments), **{name: enter(v) for name, v in named.items()})

        call.__wrapped__ = function  # type: ignore[attr-defined]  # its parameters are the function's
        return Reference(call, reference.file, reference.uses_torch)

    def off(self, values: Array) -> Array:
        """A copy of an input's values, off by some units."""
        wide = values.astype(np.float64)
        self.disturb(wide)
        return wide

    def _narrow(self, value: Any) -> Any:
        is_wide = hasattr(value, "is_floating_point") and value.is_floating_point()
        return value.float() if is_wide and self._working is np.float32 else value

    def wrap(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        wrapped = value.view(_Followed)
        wrapped.arithmetic = self
        return wrapped

    def disturb(self, values: Any) -> None:
        """Each element by some units, in place."""
        if values.dtype.kind == "O" and values.size and type(values.flat[0]) is float:  # of a function by elements
            wide = values.astype(np.float64)
            self.disturb(wide)
            values[...] = wide
        if values.dtype.kind != "f" or not values.flags.writeable:
            return
        flat = values.reshape(-1, order="A") if values.flags.forc else values.reshape(-1)
        start = int(self._rng.integers(_NOISES))
        noise = np.concatenate((self._noise[start:], self._noise[:start]))
        for place in range(0, flat.size, _NOISES):
            part = flat[place : place + _NOISES]
            part *= noise[: part.size]
        if not np.shares_memory(flat, values):
            values[...] = flat.reshape(values.shape)

    # -- operations ----------------------------------------------------------------------------------------------

    def operate(self, ufunc: np.ufunc, method: str, operands: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The result of a NumPy operation on plain arrays."""
        first = operands[0] if operands else None
        is_float = isinstance(first, np.ndarray) and first.dtype.kind == "f" and first.size > 0
        if is_float and ufunc is np.add and method in ("reduce", "accumulate") and _is_plain_sum(named):
            axis = named.get("axis", operands[1] if len(operands) > 1 else 0)
            if method == "accumulate":
                return self._in_order(first, axis)
            return self._sum(first, axis, keeps=bool(named.get("keepdims", False)))
        if is_float and ufunc is np.matmul and not named and (result := self._product(*operands)) is not None:
            return result
        result = getattr(ufunc, method)(*operands, **named)
        if ufunc.__name__ not in _EXACT:
            for each in result if isinstance(result, tuple) else (result,):
                if isinstance(each, np.ndarray):
                    self.disturb(each)
                elif isinstance(each, np.floating):
                    return np.asarray(each * self._noise[self._rng.integers(_NOISES)])
        return result

    def _in_order(self, values: Any, axis: int, *, is_total: bool = False) -> Any:
        """Partial sums in the working type, or off by what terms that are rounded alike may make of them.

        All samples but the first add in another unit: other last places, other ties. `is_total`: the last ones alone.
        """
        length = values.shape[axis]
        last = (..., -1) if is_total else ...
        closeness = min(ALIKE_PLACES * min(length, CHAIN) * self._epsilon, ALIKE_MOST)
        if _alike_share(values, axis, closeness) > ALIKE_SHARE:
            shape = [1] * values.ndim
            shape[axis] = length
            error = ALIKE_ERROR * self._epsilon * np.minimum(np.arange(length), CHAIN).reshape(shape)
            signs = self._rng.choice((-1.0, 1.0), np.expand_dims(values.take(0, axis), axis).shape)
            sums = np.add.accumulate(values, axis=axis) * (1.0 + signs * error)
            return sums[last]
        unit = 1.0 if self._is_first else float(self._rng.uniform(1.0, 2.0))
        sums = _chained((values * unit).astype(self._working), axis)[last].astype(np.float64)
        sums /= unit
        return sums

    def _sum(self, values: Any, axis: int | tuple[int, ...] | None, *, keeps: bool) -> Any:
        axes = tuple(range(values.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
        axes = tuple(each % values.ndim for each in axes)
        last = np.moveaxis(values, axes, range(values.ndim - len(axes), values.ndim))
        last = last.reshape(*last.shape[: values.ndim - len(axes)], -1)
        result = self._in_order(last[..., ::-1] if self._is_backward else last, -1, is_total=True)
        return np.expand_dims(result, axes) if keeps else np.asarray(result)

    def _product(self, left: Any, right: Any) -> Any:
        """A matrix product, its sums in order; None where that is too much work."""
        if left.ndim == 0 or right.ndim == 0:
            return None
        rows = left[np.newaxis, :] if left.ndim == 1 else left
        columns = right[:, np.newaxis] if right.ndim == 1 else right
        if rows.size * columns.shape[-1] > PRODUCTS_MAX or rows.ndim > 2 or columns.ndim > 2:
            return None
        result = self._sum(rows[:, :, np.newaxis] * columns[np.newaxis], 1, keeps=False)
        return result.reshape((*left.shape[:-1], *right.shape[:-2], *right.shape[1:][-1:]))


def _chained(values: Any, axis: int) -> Any:
    """Partial sums of chains of at most `CHAIN` terms, and of the chains."""
    if values.shape[axis] <= CHAIN:
        return np.add.accumulate(values, axis=axis)
    terms = np.moveaxis(values, axis, -1)
    parts, before = [], np.zeros_like(terms[..., :1])
    for start in range(0, terms.shape[-1], CHAIN):
        parts.append(before + np.add.accumulate(terms[..., start : start + CHAIN], axis=-1))
        before = parts[-1][..., -1:]
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, axis)


def _alike_share(values: Any, axis: int, closeness: float) -> float:
    """The part of the terms that are not zero and, relative to themselves, this close to the one before.

    Of the last `LOOKED_AT` terms of as many sums, spread evenly.
    """
    terms = np.atleast_2d(np.moveaxis(values, axis, -1))
    count = math.prod(terms.shape[:-1])
    rows = np.unravel_index(np.linspace(0, count - 1, min(count, LOOKED_AT)).astype(np.int64), terms.shape[:-1])
    some = terms[..., -LOOKED_AT - 1 :][rows]
    before, after = some[:, :-1], some[:, 1:]
    is_alike = (np.abs(after - before) <= closeness * np.abs(after)) & (after != 0)
    return float(np.mean(is_alike)) if after.size else 0.0


def _is_plain_sum(named: Mapping[str, Any]) -> bool:
    """Whether a sum takes all terms, and begins with nothing."""
    return named.get("where", True) is True and named.get("initial") is None


_EXACT = frozenset({
    "maximum", "minimum", "fmax", "fmin", "absolute", "fabs", "negative", "positive",
    "sign", "floor", "ceil", "trunc", "rint", "copysign", "clip", "modf",
    "ldexp", "isnan", "isinf", "isfinite", "signbit", "conjugate",
})  # fmt: skip
"""Operations without a rounding."""

_SUMMING = frozenset(["einsum", "dot", "inner", "vdot", "tensordot", "convolve"])
"""Functions of NumPy that round and are no ufuncs; their results alone are disturbed."""


class _Followed(np.ndarray):
    """An array whose operations go through an `_Arithmetic`; results are such arrays again."""

    arithmetic: _Arithmetic | None

    def __array_finalize__(self, source: object) -> None:
        self.arithmetic = getattr(source, "arithmetic", None)

    def __array_ufunc__(self, ufunc: np.ufunc, method: Any, *inputs: Any, out: Any = None, **named: Any) -> Any:
        arithmetic = _arithmetic_of((*inputs, *(out or ())))
        if arithmetic is None:
            return getattr(ufunc, method)(*map(_plain, inputs), **named)
        named = {name: _plain(value) for name, value in named.items()}
        if method == "at" or (out is not None and len(out) != 1):
            into = {"out": tuple(map(_plain, out))} if out else {}
            return getattr(ufunc, method)(*map(_plain, inputs), **named, **into)
        result = arithmetic.operate(ufunc, method, [_plain(each) for each in inputs], named)
        if out is not None:
            np.copyto(_plain(out[0]), result, casting="unsafe")
            return out[0]
        if isinstance(result, tuple):
            return tuple(arithmetic.wrap(np.asarray(each)) for each in result)
        return arithmetic.wrap(np.asarray(result))

    def __array_function__(self, function: Any, types: Any, arguments: Any, named: Any) -> Any:
        result = super().__array_function__(function, types, arguments, named)
        if self.arithmetic is None or not isinstance(result, np.ndarray):
            return result
        if function.__name__ in _SUMMING:
            self.arithmetic.disturb(_plain(result))
        return self.arithmetic.wrap(result)


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Followed) else value


def _arithmetic_of(values: Sequence[Any]) -> _Arithmetic | None:
    found = (each.arithmetic for each in values if isinstance(each, _Followed))
    return next((each for each in found if each is not None), None)
