"""How far an output may be from the float64 reference, and whether it is.

A declared tolerance is taken as it is. Integers and booleans must be equal. Everything else is allowed

    allowed = factor * ((STORE_ROUNDINGS * eps_out + k * eps_acc) * |expected|  +  k * eps_acc * scale)
    k       = 8 + 2 * sqrt(L), at most 256
    factor  = max(1, 3 * the baseline's worst error as a fraction of the bracket)

elementwise, where `eps_out` belongs to the output's dtype, `eps_acc` to float32 (or float64) accumulation,
`L` is how many elements of one input an element of the output depends on (see `fan_in`: 1 for an elementwise
map, the columns for a softmax), and `scale` is what the result is made of: the larger of the expected values'
root mean square and the reference's sensitivity to relative changes of its inputs. The sensitivity covers
results by cancellation (a sum that happens to be near zero, a variance of constant rows), which no backward
stable kernel can compute more exactly. Scales are kept by row, so that tiny rows are judged as strictly as large ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kernelwright.evaluate.data.array_threads import ALONE, Crew
from kernelwright.problem.dtypes import DTYPES, Dtype, machine_epsilon
from kernelwright.problem.model import Tolerance

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]

STORE_ROUNDINGS = 2.0
"""Units in the last place of the output: four roundings of half a unit, e.g. exp, add, divide, store. A
guess."""
ACCUMULATION_BASE = 8.0
ACCUMULATION_GROWTH = 2.0
"""A sequential float32 sum of L normal terms is off by up to about 1.8 * sqrt(L) * eps * scale at five
deviations (random walk of roundings over partial sums that grow as sqrt(k)); rounded up. The base is a guess:
a few operations of 2 units each, such as exp and division on a GPU."""
ACCUMULATION_MAX = 256.0
"""3e-5 of the scale in float32: below the 2.4e-4 that cutting values to 10 mantissa bits (TF32, float16)
costs, so a silent downgrade is seen however long the reduction."""
DOWNGRADE_BY_ITEM_BYTES = MappingProxyType({8: 2.0**-25, 4: 2.0**-12})
"""Relative error of one rounding to the next narrower arithmetic, by the bytes of the output."""
Precision = Literal["ieee", "tf32"]
TF32_EPSILON = 2.0**-11
"""Relative error of one factor that is rounded to TF32's 10 bits of mantissa; nothing is rounded in between."""
TF32_ROUNDINGS = 4.0
"""Two factors, cut rather than rounded on some GPUs. The scale holds what random relative changes of inputs do, so a
sum of products with cut factors is off by about so much of it, however long it is."""
TF32_ITEM_BYTES = 4
"""Outputs of more bytes are no products in TF32."""
BASELINE_FACTOR = 3.0
"""A candidate may be this many times less exact than the baseline: another order of summation moves the
largest of many errors by less. A guess."""
CLASS_FACTOR = 16.0
"""Finite elements beside NaN and infinities. A guess: far below any wrong branch, far above any rounding."""
CLASS_RTOL_MAX = 0.5
"""So that the sign counts in 8-bit floats too."""
EDGE = 2.0**-6
"""Around the largest finite value: a rounding of bfloat16 and a few more decide between it and infinity."""
GLOBAL_SHARE = 1e-4
"""Part of the whole output's scale that every row is granted; keeps rows of zeros from asking for exact
zeros."""
PERTURBATION = 1e-7
"""Relative change of the inputs for the sensitivity: far above float64's rounding, small enough to be
linear."""
ROW_LENGTH_MIN = 16
"""Rows shorter than this have no scale of their own."""
ELEMENTWISE_SCALE_MAX = 65536
"""Outputs without rows and up to this size get a scale for each element."""
SMALL_OUTPUT_PERTURBATIONS = 4
"""One random change can cancel by luck; outputs with elementwise scales take the root mean square of this
many."""

SANITY_BOUND_BY_ITEM_BYTES = {8: 1e-6, 4: 1e-3, 2: 5e-2, 1: 0.3}
"""Normwise relative error, by output width, above which a baseline computes something else. Guesses: about a
hundred times the worst that the example kernels show."""
SANITY_BOUND_OF_TF32 = 2e-2
"""The same where a baseline of float32 multiplies in TF32, whose factors have float16's 10 bits. A guess: ten times
what two products behind each other are off by, and below what 16-bit outputs may be."""
SANITY_ELEMENT_FACTOR = 10.0
"""One element may be off by this many times the bound, but never by more than its own scale and value."""

_POOL = 1 << 18
"""Random changes that all elements share: two elements meet the same one so rarely that no sum of them shows it."""
_RUN = 1 << 13
"""Neighbours that get neighbours of the pool."""
_RUNS_TOGETHER = 32
"""Runs that a thread changes by one call, as in `freshness.PIECE`."""
_TINY = 1e-300
"""Makes 0 / 0 be 0 where nothing is allowed and nothing is wrong."""
_CHUNK_OF_CREW = 131072
"""The same for several threads, which else wait for each other at the interpreter's lock."""
_CHUNK = 32768
"""Elements compared at a time: three float64 temporaries stay in the second-level cache."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """`|got - expected| <= rtol * |expected| + atol` for one output on one dataset. Picklable."""

    rtol: float
    atol: float | FloatArray
    """One number, one for each row (last extent 1), or one for each element."""
    origin: Literal["declared", "derived", "exact"]
    because: str
    by_class: bool = False
    """Whether NaN and infinities are right where the expected value, in the storage dtype, is the same."""

    @property
    def is_exact(self) -> bool:
        """True when bytes must be equal."""
        return self.origin == "exact"


@dataclass(frozen=True, slots=True)
class _Deviation:
    """How far an output is from what was expected. Meaningless numbers are avoided: see `is_within`."""

    is_within: bool
    """True when every element is finite and within its allowance."""
    max_abs: float
    """Largest absolute error over the elements that are finite."""
    fraction: float
    """Largest error as a fraction of what is allowed there, over the finite elements. Where nothing is
    allowed it is 0 for no error, and at least 1e8 or, for exact outputs, the error itself."""


@dataclass(frozen=True, slots=True)
class _WrongElement:
    """One element outside its allowance."""

    index: tuple[int, ...]
    expected: float | int
    got: float | int
    allowed: float


def declared_allowance(tolerance: Tolerance) -> Allowance:
    """What the problem says."""
    return Allowance(tolerance.rtol, tolerance.atol, "declared", tolerance.because or "declared by the problem")


EXACT = Allowance(0.0, 0.0, "exact", "integers and booleans must be equal")


# Scales -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """What an output's values are made of, in the output's own units; broadcasts against it."""

    values: FloatArray
    is_by_row: bool


def perturbation_count(shape: Sequence[int]) -> int:
    """How many perturbed references `natural_scale` wants for an output of this shape."""
    return SMALL_OUTPUT_PERTURBATIONS if _has_element_scale(shape) else 1


def perturb(inputs: dict[str, Array], *, rng: np.random.Generator, crew: Crew = ALONE) -> dict[str, Array]:
    """`inputs` in float64, every float changed by a relative normal `PERTURBATION`; integers stay."""
    changed: dict[str, Array] = {}
    for name, values in inputs.items():
        if values.dtype.kind in "biu":
            changed[name] = values
            continue
        pool = 1.0 + PERTURBATION * rng.standard_normal(_POOL)
        found = np.empty(values.shape)
        _scale_by(pool, values.reshape(-1), found.reshape(-1), rng, crew)
        changed[name] = found
    return changed


def _scale_by(pool: FloatArray, values: Array, found: FloatArray, rng: np.random.Generator, crew: Crew) -> None:
    """`values` times factors of the pool, each short run of elements from a random place of it on."""
    starts = range(0, values.size, _RUN)
    places = rng.integers(_POOL - _RUN, size=len(starts), endpoint=True)
    runs = np.lib.stride_tricks.sliding_window_view(pool, _RUN)

    def work(first: int) -> None:
        part = slice(first * _RUN, (first + _RUNS_TOGETHER) * _RUN)
        factors = runs[places[first : first + _RUNS_TOGETHER]].reshape(-1)[: found[part].size]
        np.multiply(values[part], factors, out=found[part])

    crew.each(work, range(0, len(starts), _RUNS_TOGETHER))


def natural_scale(
    expected: FloatArray, perturbed: Sequence[FloatArray], *, of: int | None = None, crew: Crew = ALONE
) -> Scale:
    """The larger of expected magnitude and sensitivity, by row, by element (small outputs) or for the whole.

    `perturbed` holds the reference's results on `perturb`ed inputs; with none, the expected values alone
    decide. Sensitivities of rows are medians, so a reference with jumps (a comparison, a rounding) is not
    taken as unstable. With `of`, `perturbed` holds the first of so many: no element's scale is larger than with all.
    """
    changes: list[FloatArray] = []
    if not _has_rows(expected.shape):
        if not _has_element_scale(expected.shape):  # a median of many is known by a part of them
            expected_part = _part(expected)
            perturbed = [_part(other) for other in perturbed]
        else:
            expected_part = expected
        changes = [np.abs(other - expected_part) / PERTURBATION for other in perturbed]
        changes = [change for change in changes if np.all(np.isfinite(change))]
    if _has_rows(expected.shape):
        own, by_row = _scale_of_rows(expected, perturbed, crew), True
    elif _has_element_scale(expected.shape):
        own = np.abs(expected)
        if changes:
            share = 1.0 if of is None else len(changes) / of
            own = np.maximum(own, np.sqrt(share * np.mean(np.square(changes), axis=0)))
        by_row = False
    else:
        flat = expected.reshape(-1)
        scale = math.sqrt(float(np.einsum("i,i->", flat, flat)) / expected.size) if expected.size else 0.0
        scale = max([scale, *(_TO_DEVIATION * float(np.median(change)) for change in changes if change.size)])
        own = np.full((1,) * expected.ndim, scale)
        by_row = False
    if own.size:
        own = np.maximum(own, GLOBAL_SHARE * math.sqrt(float(np.mean(np.square(own)))))
    return Scale(np.asarray(own, np.float64), by_row)


def _scale_of_rows(expected: FloatArray, perturbed: Sequence[FloatArray], crew: Crew) -> FloatArray:
    """Root mean square of each row, or its median sensitivity where that is more; rows side by side."""
    columns = expected.shape[-1]
    rows, others = expected.reshape(-1, columns), [other.reshape(-1, columns) for other in perturbed]
    spans = crew.spans(rows.shape[0], least=max(1, _CHUNK // columns))
    own = np.empty((rows.shape[0], 1))
    step = max(1, (columns // _SAMPLED_COLUMNS - 1) | 1)  # odd, so that it meets pairs and vectors at every place

    def measure(span: tuple[int, int]) -> list[FloatArray | None]:
        part = rows[slice(*span)]
        own[slice(*span), 0] = np.sqrt(np.einsum("ij,ij->i", part, part) / columns)
        return [_median_change(part, other[slice(*span)], step) for other in others]

    found = crew.each(measure, spans)
    for medians in zip(*found, strict=True):
        if all(each is not None for each in medians):  # else the reference left its domain somewhere
            np.maximum(own, _TO_DEVIATION * np.concatenate(medians), out=own)
    return own.reshape(*expected.shape[:-1], 1)


def _median_change(rows: FloatArray, others: FloatArray, step: int) -> FloatArray | None:
    """Each row's median change, from every `step`-th column; None where a change is not finite."""
    changes = np.abs(others[:, ::step] - rows[:, ::step]) / PERTURBATION
    return np.median(changes, axis=-1, keepdims=True) if np.all(np.isfinite(changes)) else None


_SAMPLED_COLUMNS = 512
"""At least so many of a row give its median, which is then off by less than 8 % in nineteen cases of twenty."""
_TO_DEVIATION = 1.4826
"""Median of |x| to standard deviation, for normal x."""


def _part(values: FloatArray) -> FloatArray:
    """Elements from all over a large array."""
    return values.reshape(-1)[:: max(1, values.size // _SAMPLED) | 1]


_SAMPLED = 1 << 18
"""At least half as many elements give the median of an array without rows, which is then off by less than 1 %."""


def _has_rows(shape: Sequence[int]) -> bool:
    return len(shape) >= 2 and shape[-1] >= ROW_LENGTH_MIN


def _has_element_scale(shape: Sequence[int]) -> bool:
    return not _has_rows(shape) and math.prod(shape) <= ELEMENTWISE_SCALE_MAX


# Derivation ---------------------------------------------------------------------------------------


def base_allowance(dtype: Dtype, scale: Scale, *, sum_length: int, products: Precision = "ieee") -> Allowance:
    """What any careful kernel of this output dtype keeps to, before the baseline's own error is known.

    Args:
        dtype: of the output.
        scale: what it is made of.
        sum_length: elements of one input that an element of the output depends on.
        products: what the baseline asks for where it multiplies matrices of float32.
    """
    eps_out = machine_epsilon(dtype)
    eps_acc = min(eps_out, machine_epsilon("float32"))
    growth = ACCUMULATION_BASE + ACCUMULATION_GROWTH * math.sqrt(max(sum_length, 1))
    k = min(growth, ACCUMULATION_MAX)
    atol = k * eps_acc * scale.values + _least_step(dtype)
    because = (
        f"{STORE_ROUNDINGS:g} units of {dtype.name} + {k:.0f} roundings of {eps_acc:.2g} of itself and of its scale, "
        f"for sums of {sum_length}"
    )
    # Of itself, too: the total that a softmax divides by is as inexact for the one large element of a row.
    base = Allowance(STORE_ROUNDINGS * eps_out + k * eps_acc, atol, "derived", because)
    if products == "ieee" or dtype.item_bytes > TF32_ITEM_BYTES:
        return base
    cut = TF32_ROUNDINGS * TF32_EPSILON
    because += f", and {TF32_ROUNDINGS:g} roundings of {TF32_EPSILON:.2g}, since the baseline multiplies in TF32"
    return Allowance(base.rtol + cut, base.atol + cut * scale.values, "derived", because)


def class_allowance(dtype: Dtype, expected: FloatArray, *, sum_length: int, products: Precision = "ieee") -> Allowance:
    """For data with NaN, infinities or the largest numbers in it: right is what is of the right class.

    Finite elements are held to a bound that is `CLASS_FACTOR` times wider than usual, around values whose magnitude
    is a median, since a sum or mean square would be that of the largest number: how exact a kernel is shows elsewhere.
    """
    size = np.where(np.isfinite(expected), np.abs(expected), np.nan)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a row that is all NaN
        is_by_row = _has_rows(expected.shape)
        typical = np.nanmedian(size, axis=-1, keepdims=True) if is_by_row else np.nanmedian(size, keepdims=True)
    base = base_allowance(
        dtype,
        Scale(_TO_DEVIATION * np.nan_to_num(typical, nan=0.0), is_by_row),
        sum_length=sum_length,
        products=products,
    )
    rtol = min(CLASS_RTOL_MAX, CLASS_FACTOR * base.rtol)
    because = f"NaN and infinities as the reference has them; else {CLASS_FACTOR:g} times {base.because}"
    return Allowance(rtol, CLASS_FACTOR * base.atol, "derived", because, by_class=True)


def by_class(allowance: Allowance) -> Allowance:
    """`allowance`, with NaN and infinities right where they are expected."""
    return dataclasses.replace(allowance, by_class=not allowance.is_exact)


def baseline_factor_of(fraction: float) -> float:
    """What an allowance is widened by because the baseline's error is this fraction of it; at least 1."""
    return max(1.0, BASELINE_FACTOR * fraction)


def widened(base: Allowance, factor: float) -> Allowance:
    """`base` times `factor`."""
    if factor == 1.0:
        return base
    because = f"{base.because}, times {factor:.3g} ({BASELINE_FACTOR:g} times the baseline's own error)"
    return Allowance(base.rtol * factor, base.atol * factor, base.origin, because)


def hides_downgrade(allowance: Allowance, dtype: Dtype) -> bool:
    """Whether computing in the next narrower arithmetic could pass: float32 for float64, TF32 or float16 for float32.

    Narrower outputs are rounded that much anyway.
    """
    return allowance.rtol > DOWNGRADE_BY_ITEM_BYTES.get(dtype.item_bytes, 0.0)


def _least_step(dtype: Dtype) -> float:
    """What underflow may cost: many devices flush subnormals of float32 and wider, none those of narrower."""
    info = ml_dtypes.finfo(dtype.numpy_dtype)
    keeps_subnormals = dtype.item_bytes == 1 or dtype.name == "float16"
    return float(info.smallest_subnormal if keeps_subnormals else info.smallest_normal)


def sanity_bound(dtype: Dtype, products: Precision = "ieee") -> float:
    """The normwise relative error above which a baseline computes something else."""
    own = SANITY_BOUND_BY_ITEM_BYTES[dtype.item_bytes]
    return max(own, SANITY_BOUND_OF_TF32) if products == "tf32" and dtype.item_bytes <= TF32_ITEM_BYTES else own


def sanity_allowance(dtype: Dtype, scale: Scale, products: Precision = "ieee") -> Allowance:
    """Outside of this, an element of the baseline is not what the reference computes."""
    bound = min(SANITY_ELEMENT_FACTOR * sanity_bound(dtype, products), 1.0)
    return Allowance(bound, bound * scale.values + _least_step(dtype), "derived", "sanity of the baseline")


def normwise_error(got: Array, expected: FloatArray, scale: Scale, *, crew: Crew = ALONE) -> float:
    """`||got - expected|| / ||scale||`: 1 or so for unrelated data. 0 for an empty output."""
    if not expected.size:
        return 0.0

    def squares(piece: tuple[Array, Array, Any]) -> tuple[float, float]:
        values = _to_float64(piece[0])
        values -= piece[1]
        error = float(np.sum(np.square(values, out=values)))
        return error, float(np.sum(np.square(piece[1], out=values)))

    with np.errstate(all="ignore"):
        found = crew.each(squares, matching_pieces(got, expected, 0.0))
        error, own = (math.sqrt(sum(each)) for each in zip(*found, strict=True))
    norm = max(math.sqrt(float(np.mean(np.square(scale.values))) * expected.size), own)
    if norm == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return error / norm


# Comparison ---------------------------------------------------------------------------------------


def compare(got: Array, expected: Array, allowance: Allowance, *, crew: Crew = ALONE) -> _Deviation:
    """How far `got` (storage dtype) is from `expected` (float64, or the storage dtype when exact).

    Cost: one pass in cache-sized pieces, shared between the crew's threads; no temporary of the output's size.
    """
    if allowance.is_exact:
        return _compare_exact(got, expected)
    if allowance.by_class:
        got, expected = _without_right_classes(got, expected)
    chunk = _CHUNK if crew.threads == 1 else _CHUNK_OF_CREW
    shares = crew.shares(matching_pieces(got, expected, allowance.atol, chunk), least=4)
    found = crew.each(lambda share: _compare_pieces(share, allowance.rtol), shares)
    return _Deviation(
        all(each.is_within for each in found),
        max((each.max_abs for each in found), default=0.0),
        max((each.fraction for each in found), default=0.0),
    )


def _compare_pieces(pieces: Sequence[tuple[Array, Array, Any]], rtol: float) -> _Deviation:
    max_abs, fraction, is_within = 0.0, 0.0, True
    for got_part, expected_part, atol_part in pieces:
        values = _to_float64(got_part)
        error = np.subtract(values, expected_part, out=values)
        np.abs(error, out=error)
        allowed = np.abs(expected_part)
        allowed *= rtol
        allowed += atol_part
        worst = float(error.max())
        if not math.isfinite(worst):
            is_within = False
            kept = np.isfinite(error)
            error, allowed = error[kept], allowed[kept]
            if not error.size:
                continue
            worst = float(error.max())
        max_abs = max(max_abs, worst)
        allowed += _TINY
        error /= allowed
        fraction = max(fraction, float(error.max()))
    return _Deviation(is_within and fraction <= 1.0, max_abs, fraction)


def _without_right_classes(got: Array, expected: Array) -> tuple[FloatArray, FloatArray]:
    """Both in float64, with zeros where `got` is NaN or infinite as it should be.

    What should be is the expected value in the storage dtype. Within `EDGE` of the largest finite value the last
    rounding decides, so both are right; a dtype without infinities may saturate.
    """
    values, target = _to_float64(got), np.array(expected, np.float64)
    limit = float(ml_dtypes.finfo(got.dtype).max)
    with np.errstate(all="ignore"):
        stored = _to_float64(target.astype(got.dtype))
        has_infinity = np.isinf(_to_float64(np.full(1, np.inf).astype(got.dtype)))[0]
        is_over, is_inside = np.abs(target) > limit * (1 - EDGE), np.abs(target) <= limit * (1 + EDGE)
        has_sign = np.signbit(values) == np.signbit(target)
        is_right = np.isnan(values) & np.isnan(stored)
        is_right |= np.isinf(values) & is_over & has_sign
        is_right |= (
            np.isfinite(values)
            & is_over
            & has_sign
            & (np.abs(values) >= limit * (1 - EDGE))
            & (is_inside | (not has_infinity))
        )
    values[is_right], target[is_right] = 0.0, 0.0
    return values, target


def _compare_exact(got: Array, expected: Array) -> _Deviation:
    if np.array_equal(got, expected):
        return _Deviation(is_within=True, max_abs=0.0, fraction=0.0)
    wrong = got != expected
    distance = np.abs(got[wrong].astype(np.float64) - expected[wrong].astype(np.float64))
    return _Deviation(is_within=False, max_abs=float(distance.max()), fraction=float(distance.max()))


def wrong_elements(
    got: Array, expected: Array, allowance: Allowance, *, limit: int, crew: Crew = ALONE
) -> tuple[int, list[_WrongElement]]:
    """How many elements are outside their allowance (or not finite), and the `limit` worst, worst first.

    In pieces, as `compare`.
    """
    values, target = got, np.asarray(expected)
    if allowance.by_class:
        values, target = _without_right_classes(got, target)
    pieces = matching_pieces(values, target, allowance.atol)
    starts = itertools.accumulate((part.size for part, _, _ in pieces), initial=0)
    shares = crew.shares(list(zip(starts, pieces, strict=False)), least=4)
    found = crew.each(lambda share: _wrong_of_share(share, allowance, limit), shares)
    order = sorted((row for _, rows in found for row in rows), key=lambda row: (-row[0], row[1]))
    worst = []
    for _, position, allowed in order[:limit]:
        index = tuple(int(i) for i in np.unravel_index(position, target.shape))
        worst.append(_WrongElement(index, _number(expected[index]), _number(got[index]), allowed))
    return sum(count for count, _ in found), worst


def _wrong_of_share(
    share: Sequence[tuple[int, tuple[Array, Array, Any]]], allowance: Allowance, limit: int
) -> tuple[int, list[tuple[float, int, float]]]:
    """How many elements of pieces are wrong, and score, flat position and allowed error of the worst."""
    count = 0
    worst: list[tuple[float, int, float]] = []
    for start, (got_part, expected_part, atol_part) in share:
        error = _to_float64(got_part)
        error -= expected_part
        np.abs(error, out=error)
        allowed = np.abs(expected_part, dtype=np.float64)
        allowed *= allowance.rtol
        allowed += atol_part
        is_right = got_part == expected_part if allowance.is_exact else (error <= allowed) & np.isfinite(error)
        wrong_count = is_right.size - int(np.count_nonzero(is_right))
        count += wrong_count
        if limit and wrong_count:
            with np.errstate(divide="ignore", invalid="ignore"):
                score = error if allowance.is_exact else np.divide(error, allowed, out=error)
            score[~np.isfinite(score)] = np.inf
            score[is_right] = -1.0
            least = worst[-1][0] if len(worst) == limit else -0.5
            found = [
                (value, start + place, float(allowed.flat[place])) for value, place in _highest(score, least, limit)
            ]
            worst = sorted((*worst, *found), key=lambda row: (-row[0], row[1]))[:limit]
    return count, worst


def _highest(score: FloatArray, least: float, limit: int) -> list[tuple[float, int]]:
    """Up to `limit` of the highest above `least`, with their flat positions; the first ones of equal scores."""
    flat = score.reshape(-1)
    above = np.flatnonzero(flat > least)
    if above.size > limit:
        above = above[flat[above] >= np.partition(flat[above], -limit)[-limit]]
    order = above[np.argsort(-flat[above], kind="stable")[:limit]]
    return [(float(flat[place]), place) for place in order.tolist()]


def _number(value: Any) -> float | int:
    kind = np.asarray(value).dtype.kind
    return int(value) if kind in "biu" else float(value)


def matching_pieces(
    got: Array, expected: Array, atol: float | FloatArray, chunk: int = _CHUNK_OF_CREW
) -> list[tuple[Array, Array, Any]]:
    """Matching flat pieces of about `chunk` elements; whole rows where `atol` is one number a row."""
    if not expected.size:
        return []
    allowed = np.asarray(atol, np.float64)
    is_by_row = allowed.ndim > 0 and allowed.size > 1 and allowed.size != expected.size
    columns = expected.shape[-1] if is_by_row else expected.size
    got, expected = got.reshape(-1, columns), expected.reshape(-1, columns)
    allowed = allowed.reshape(-1, 1 if is_by_row or allowed.size == 1 else columns)
    row_step = max(1, chunk // columns)
    pieces: list[tuple[Array, Array, Any]] = []
    for row in range(0, expected.shape[0], row_step):
        rows = slice(row, row + row_step)
        own = allowed[rows] if allowed.shape[0] > 1 else allowed
        for column in range(0, columns, chunk):
            part = slice(column, column + chunk)
            pieces.append((got[rows, part], expected[rows, part], own[:, part] if own.shape[1] > 1 else own))
    return pieces


def _to_float64(values: Array) -> FloatArray:
    """A new float64 array; 8-bit floats by table, which is twice as fast as their own conversion."""
    table = _TABLES.get(values.dtype.name)
    if table is None:
        return values.astype(np.float64)
    return table[values.view(np.uint8)]


def _table_of(dtype: Dtype) -> FloatArray:
    return np.arange(256, dtype=np.uint8).view(dtype.numpy_dtype).astype(np.float64)


_TABLES = {dtype.name: _table_of(dtype) for dtype in DTYPES.values() if dtype.item_bytes == 1 and dtype.kind == "float"}
