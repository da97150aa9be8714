"""Input data: what the problem declares, and hostile versions that expose kernels which are right by luck.

Every value is drawn from a generator that is seeded by the run's secret, the dataset, the argument and the
sizes, so two processes make the same bytes and no kernel can know them in advance.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kernelwright.errors import SpecError
from kernelwright.evaluate.data.array_threads import ALONE, DRAWN_TOGETHER, Crew
from kernelwright.evaluate.data.layout import shape_of
from kernelwright.identity import content_id
from kernelwright.problem.dtypes import DTYPES, Dtype, integer_range, largest_finite, may_become
from kernelwright.problem.model import Argument, Distribution, Problem, Workload

Variant = Literal[
    "declared",
    "small",
    "large",
    "negative",
    "constant",
    "sparse",
    "mixed",
    "ramp",
    "numbers",
    "scales",
    "special",
    "extreme",
]

HOSTILE_VARIANTS: tuple[Variant, ...] = (
    "mixed", "large", "sparse", "negative", "constant", "small", "ramp", "numbers", "scales", "special",
    "extreme",
)  # fmt: skip
"""Best first: what the quick selection takes when it may take only one.

`mixed` scales each row differently (0.001 to 30), so one launch sees tiny, usual and overflowing rows;
`large` is times 30 (a softmax without its maximum overflows); `sparse` has isolated spikes in zeros (dropped
terms show); `negative`, `constant` rows (variance by cancellation) and `small` (times 0.01: absolute slack
shows) each catch a known shortcut. `ramp` is for ranges, in which all values may be nearly alike: there a part of the
terms of a sum stands for all of them, unless any regular part has a mean of its own. `numbers` has those that the
original's text and by-value arguments name, and their neighbours, where drawing would miss them: both sides of
branches occur. `scales` has values of all magnitudes, where the original names numbers that drawing misses: its
branches may lie elsewhere, by arithmetic (`x * x > 1e9`). `special` and `extreme` are for
arguments that ask for them.
"""

SPECIAL_VARIANTS: tuple[Variant, ...] = ("special", "extreme")
"""Where results may be NaN or infinite, and are compared by class. Two, so that a baseline that overflows on the
largest numbers does not cost the check of NaN."""

SPECIAL_ROW_SHARE = 0.25
"""Rows that get one special value each: most stay free, so that a sum that hands NaN on is not all there is."""

DECLARED_SEEDS_THOROUGH = 3
"""Timed launches rotate over these, so that none sees the data of the one before."""

LARGEST_NUMBER = 2.0**20
"""Larger ones of a text start a minimum or generate numbers; sums of them would overflow. A guess."""
LEAST_SCALE = 1e-6
"""The smallest magnitude of `scales`. A guess."""
SCALES = 256
"""Values of random magnitude in a dataset."""
USUAL_NUMBERS = (1e-3, 3.0)
"""Magnitudes on both sides of which a normal distribution draws anyway."""
NEIGHBOUR = 2.0**-6
"""Relative distance of the neighbours of a number that is no integer: two steps of the narrowest float that counts."""
WIDEST_FULL_RANGE = 1000
"""An integer's range up to this is drawn nearly whole."""

SMALL_FACTOR = 0.01
LARGE_FACTOR = 30.0
SPIKE_FACTOR = 10.0
SPIKE_SHARE = 0.02
PART = 1 << 16
"""Elements that stay in a cache while several steps change them."""
RAMP_BITS = 12
"""Bits of an element's place in one table."""
MIXED_EXPONENTS = (-3.0, 1.5)
"""Powers of ten that rows are scaled by."""

_DEFAULT_INTEGERS = (-100, 100)
"""Range of integers that a problem says nothing of; cut to the dtype."""

Array = npt.NDArray[Any]
_Floats = npt.NDArray[np.floating[Any]]
_Bounds = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Dataset:
    """One way to fill all inputs of a workload."""

    name: str
    """For messages, e.g. `declared-0` or `sparse`."""
    seed: int
    """Derived from the run's secret."""
    variant: Variant
    is_infinite: bool = False
    """Whether results may be NaN or infinite although inputs are not: an output says so."""

    @property
    def is_hostile(self) -> bool:
        """True when it is not drawn as the problem declares."""
        return self.variant != "declared"

    @property
    def is_special(self) -> bool:
        """True when results may be NaN or infinite."""
        return self.is_infinite or self.variant in SPECIAL_VARIANTS


def datasets_for(problem: Problem, *, seed: int, is_thorough: bool) -> tuple[Dataset, ...]:
    """The datasets to check on, declared ones first; the quick ones are among the thorough ones.

    Quick: one declared and one hostile dataset, and the special ones that arguments ask for. Thorough: several
    declared seeds and every hostile variant that changes at least one input (constants and files are never changed,
    integers only where they ask for special values).
    """
    is_infinite = any(argument.special for argument in problem.outputs)
    if not any(_is_random(argument) for argument in problem.inputs):
        return (_dataset("declared-0", seed, "declared", is_infinite=is_infinite),)
    hostile = [
        _dataset(variant, seed, variant, is_infinite=is_infinite)
        for variant in HOSTILE_VARIANTS
        if any(is_affected(problem, argument, variant) for argument in problem.inputs)
    ]
    declared_count = 1
    if is_thorough:
        declared_count = DECLARED_SEEDS_THOROUGH
    elif not hostile:
        declared_count = 2
    declared = [
        _dataset(f"declared-{index}", seed, "declared", is_infinite=is_infinite) for index in range(declared_count)
    ]
    if not is_thorough:
        special = [each for each in hostile if each.variant in SPECIAL_VARIANTS]
        hostile = [*[each for each in hostile if each not in special][:1], *special]
    return (*declared, *hostile)


def _dataset(name: str, seed: int, variant: Variant, *, is_infinite: bool) -> Dataset:
    return Dataset(name, int(content_id("dataset", seed, name), 16), variant, is_infinite)


def is_affected(problem: Problem, argument: Argument, variant: Variant) -> bool:
    """Whether `variant` fills `argument` otherwise than declared."""
    if variant == "numbers":
        return _is_random(argument) and bool(_neighbours(problem, argument).size)
    if variant == "scales":
        if not _is_random(argument) or DTYPES[argument.dtype].kind == "bool":
            return False
        low, high = _magnitudes(argument)
        least = low if DTYPES[argument.dtype].kind == "float" else max(low, WIDEST_FULL_RANGE)
        return least < high and any(not _is_usual(each) for each in problem.numbers if each)
    if variant in SPECIAL_VARIANTS:
        return argument.special and (variant == "extreme" or DTYPES[argument.dtype].kind == "float")
    if variant == "declared" or DTYPES[argument.dtype].kind != "float":
        return False
    bounds = float_bounds(argument.distribution)
    match argument.distribution.kind:
        case "normal":
            return variant != "ramp"
        case "uniform":
            assert bounds is not None
            low, high = bounds
            return low < high and (variant != "negative" or low < 0 < high)
    return False


def make_inputs(problem: Problem, workload: Workload, dataset: Dataset, *, crew: Crew = ALONE) -> dict[str, Array]:
    """Every input and in-out argument on `workload`, C-contiguous, in its storage dtype.

    The same in every process. Values of ranged arguments stay in their range, also after rounding to the
    storage dtype; no value is made infinite by that rounding.

    Raises:
        SpecError: a data file is missing, or has another shape or values that its dtype cannot hold.
    """
    return {argument.name: _make_input(problem, argument, workload, dataset, crew) for argument in problem.inputs}


def _make_input(problem: Problem, argument: Argument, workload: Workload, dataset: Dataset, crew: Crew) -> Array:
    shape = shape_of(argument, workload)
    dtype = DTYPES[argument.dtype]
    if argument.distribution.kind == "file":
        return _from_file(argument, dtype, shape)
    key = content_id(dataset.seed, dataset.variant, argument.name, dict(workload.sizes), shape)
    rng = np.random.Generator(np.random.PCG64(int(key, 16)))
    is_special = dataset.is_special and is_affected(problem, argument, dataset.variant)
    if is_affected(problem, argument, "numbers") and dataset.variant == "numbers":
        drawn = _drawn(rng, argument.distribution, dtype, shape, crew)
        return _sprinkle(rng, drawn, _neighbours(problem, argument))
    if dataset.variant == "scales" and is_affected(problem, argument, "scales"):
        return _sprinkle(rng, _drawn(rng, argument.distribution, dtype, shape, crew), _of_all_scales(rng, argument))
    if dtype.kind != "float":
        drawn = _draw_integers(rng, argument.distribution, dtype, shape)
        return _sprinkle(rng, drawn, _integer_extremes(argument.distribution, dtype)) if is_special else drawn
    values = _draw_floats(rng, argument.distribution, dtype, shape, crew)
    bounds = float_bounds(argument.distribution)
    if is_special:
        return _sprinkle(rng, _store(values, dtype, bounds, crew), _special_values(dtype, dataset.variant))
    if is_affected(problem, argument, dataset.variant) and values.size:
        values = _HOSTILE[dataset.variant](rng, values, bounds, crew)
    return _store(values, dtype, bounds, crew)


def _drawn(
    rng: np.random.Generator, distribution: Distribution, dtype: Dtype, shape: tuple[int, ...], crew: Crew
) -> Array:
    """As declared, in the storage dtype."""
    if dtype.kind != "float":
        return _draw_integers(rng, distribution, dtype, shape)
    return _store(_draw_floats(rng, distribution, dtype, shape, crew), dtype, float_bounds(distribution), crew)


def _neighbours(problem: Problem, argument: Argument) -> Array:
    """The problem's numbers, their negatives and what lies beside each, in the dtype: as far as drawing misses them.

    Only what the argument may hold: in its declared range, and far from overflow.
    """
    dtype, distribution = DTYPES[argument.dtype], argument.distribution
    if dtype.kind == "bool":
        return np.empty(0, dtype.numpy_dtype)
    is_whole = dtype.kind != "float" or distribution.kind == "integers"
    named = {*problem.numbers, *_by_value(problem, is_whole=is_whole)}
    values = {0.0 + sign * number for number in named for sign in (1, -1)}
    if not is_whole:
        bounds = float_bounds(distribution)
        low, high = bounds or (-math.inf, math.inf)
        most = min(LARGEST_NUMBER, largest_finite(dtype) / 64)
        unreached = {each for each in values if each and not _is_usual(each)}
        beside = {each * factor for each in unreached for factor in (1 - NEIGHBOUR, 1.0, 1 + NEIGHBOUR)}
        kept = np.array(sorted(each for each in beside if low <= each <= high and abs(each) <= most), np.float64)
        return _store(kept, dtype, bounds, ALONE)
    is_declared = distribution.low is not None or distribution.high is not None or dtype.kind == "float"
    drawn_low, drawn_high = float_bounds(distribution) or _DEFAULT_INTEGERS
    low, high = (drawn_low, drawn_high) if is_declared else integer_range(dtype)
    most = math.inf if is_declared else LARGEST_NUMBER
    beside = {each + step for each in values if each.is_integer() for step in (-1.0, 0.0, 1.0)}
    if drawn_high - drawn_low <= WIDEST_FULL_RANGE:
        beside = {each for each in beside if not drawn_low <= each <= drawn_high}
    if dtype.kind != "float":
        least, greatest = integer_range(dtype)
        low, high = max(low, least), min(high, greatest)
    kept = np.array(sorted(each for each in beside if low <= each <= high and abs(each) <= most), np.float64)
    return kept.astype(dtype.numpy_dtype)


def _is_usual(number: float) -> bool:
    return USUAL_NUMBERS[0] < abs(number) < USUAL_NUMBERS[1]


def _magnitudes(argument: Argument) -> tuple[float, float]:
    """The least and the greatest magnitude that the argument may hold, far from overflow; none where least is greatest.

    Of integers without a declared range nothing is known beyond those that are drawn: they may be indices.
    """
    dtype = DTYPES[argument.dtype]
    is_whole = dtype.kind != "float" or argument.distribution.kind == "integers"
    low, high = float_bounds(argument.distribution) or (_DEFAULT_INTEGERS if is_whole else (-math.inf, math.inf))
    most = largest_finite(dtype) / 64 if dtype.kind == "float" else float(integer_range(dtype)[1])
    return max(1.0 if is_whole else LEAST_SCALE, low, -high), min(LARGEST_NUMBER, most, max(-low, high))


def _of_all_scales(rng: np.random.Generator, argument: Argument) -> Array:
    """Values of random magnitude, in the dtype, of either sign where the argument may have it."""
    dtype, distribution = DTYPES[argument.dtype], argument.distribution
    low, high = _magnitudes(argument)
    values = np.exp(rng.uniform(math.log(low), math.log(high), SCALES)) * rng.choice((-1.0, 1.0), SCALES)
    bounds = float_bounds(distribution)
    if dtype.kind == "float":
        return _store(np.round(values) if distribution.kind == "integers" else values, dtype, bounds, ALONE)
    whole: Array = np.clip(np.round(values), *integer_bounds(distribution, dtype)).astype(dtype.numpy_dtype)
    return whole


def _by_value(problem: Problem, *, is_whole: bool) -> Iterator[float]:
    """What the original's by-value arguments of a kind are on the workloads, as far as sizes tell."""
    for argument in problem.arguments:
        if argument.value is None or (DTYPES[argument.dtype].kind != "float") != is_whole:
            continue
        for workload in problem.workloads:
            with contextlib.suppress(SpecError, ArithmeticError, ValueError):  # parameters decide it
                yield float(argument.value.evaluate(dict(workload.sizes)))


# Drawing ------------------------------------------------------------------------------------------


def _is_random(argument: Argument) -> bool:
    return argument.distribution.kind not in ("constant", "file")


def float_bounds(distribution: Distribution) -> _Bounds:
    """The declared inclusive range, with the missing end at 0 or 1; None for a distribution that has none."""
    match distribution.kind:
        case "uniform":
            default = (0.0, 1.0)
        case "integers":
            default = (float(_DEFAULT_INTEGERS[0]), float(_DEFAULT_INTEGERS[1]))
        case _:
            return None
    low, high = distribution.low, distribution.high
    if low is None and high is None:
        return default
    if low is None:
        assert high is not None
        return min(default[0], high), high
    return low, max(default[1], low) if high is None else high


def integer_bounds(distribution: Distribution, dtype: Dtype) -> tuple[int, int]:
    """The least and greatest number that is drawn for an argument that holds no floats, both inclusive."""
    least, greatest = integer_range(dtype)
    low, high = float_bounds(distribution) or _DEFAULT_INTEGERS
    low, high = max(int(np.ceil(low)), least), min(int(np.floor(high)), greatest)
    return low, max(low, high)


def _draw_integers(rng: np.random.Generator, distribution: Distribution, dtype: Dtype, shape: tuple[int, ...]) -> Array:
    if distribution.kind == "constant":
        return np.full(shape, round(_constant_of(distribution)), dtype.numpy_dtype)
    low, high = integer_bounds(distribution, dtype)
    drawn = rng.integers(low, high, shape, endpoint=True, dtype=_draw_dtype(dtype))
    if distribution.low is not None and drawn.size > 1 and low < high:
        # A person wrote the ends down, so they must work; drawing alone would rarely hit those of a wide range.
        drawn.reshape(-1)[rng.choice(drawn.size, 2, replace=False)] = low, high
    return np.ascontiguousarray(drawn.astype(dtype.numpy_dtype, copy=False)).reshape(shape)


def _draw_dtype(dtype: Dtype) -> np.dtype[Any]:
    return np.dtype(np.uint8) if dtype.kind == "bool" else dtype.numpy_dtype


def _draw_floats(
    rng: np.random.Generator, distribution: Distribution, dtype: Dtype, shape: tuple[int, ...], crew: Crew
) -> _Floats:
    """Declared values before storage rounding; single precision suffices for every narrower type."""
    working: Any = np.float64 if dtype.name == "float64" else np.float32
    bounds = float_bounds(distribution)
    values: _Floats
    match distribution.kind:
        case "constant":
            return np.full(shape, _constant_of(distribution), working)
        case "integers":
            assert bounds is not None
            drawn = rng.integers(int(np.ceil(bounds[0])), int(np.floor(bounds[1])), shape, endpoint=True)
            return np.asarray(drawn, working)
        case "uniform":
            assert bounds is not None
            values = np.empty(shape, working)
            crew.fill(values, rng, lambda own, part: own.random(dtype=working, out=part))
            values *= bounds[1] - bounds[0]
            values += bounds[0]
        case _:
            values = np.empty(shape, working)
            crew.fill(values, rng, lambda own, part: own.standard_normal(dtype=working, out=part))
            if distribution.high is not None:
                values *= distribution.high
    return values


def _constant_of(distribution: Distribution) -> float:
    given = distribution.low if distribution.low is not None else distribution.high
    return 1.0 if given is None else given


# Hostile versions ---------------------------------------------------------------------------------


def _small(_rng: np.random.Generator, values: _Floats, bounds: _Bounds, crew: Crew) -> _Floats:
    return _toward_rest(values, bounds, SMALL_FACTOR, crew)


def _large(_rng: np.random.Generator, values: _Floats, bounds: _Bounds, crew: Crew) -> _Floats:
    if bounds is None:
        return _scaled(values, LARGE_FACTOR, crew)
    low, high = bounds
    is_upper = values > (low + high) / 2
    return np.where(is_upper, high - SMALL_FACTOR * (high - values), low + SMALL_FACTOR * (values - low))


def _negative(_rng: np.random.Generator, values: _Floats, bounds: _Bounds, _crew: Crew) -> _Floats:
    if bounds is None:
        return np.copysign(values, -1.0, out=values)
    low, high = bounds
    return low + (values - low) * (-low / (high - low))


def _constant(_rng: np.random.Generator, values: _Floats, _bounds: _Bounds, _crew: Crew) -> _Floats:
    """Every row one value."""
    return values if values.ndim == 0 else np.broadcast_to(values[..., :1], values.shape)


def _sparse(rng: np.random.Generator, values: _Floats, bounds: _Bounds, crew: Crew) -> _Floats:
    """Zeros (or the allowed value nearest to it) with at least one spike."""
    noise = np.empty(values.shape, np.float32)
    crew.fill(noise, rng, lambda own, part: own.random(dtype=np.float32, out=part))
    is_spike = np.asarray(noise < SPIKE_SHARE)
    is_spike.reshape(-1)[rng.integers(values.size)] = True
    spikes = _scaled(values, SPIKE_FACTOR, crew) if bounds is None else _large(rng, values, bounds, crew)
    np.copyto(spikes, spikes.dtype.type(_rest(bounds)), where=~is_spike)
    return spikes


def _mixed(rng: np.random.Generator, values: _Floats, bounds: _Bounds, crew: Crew) -> _Floats:
    """Each row (each element of a vector) at its own magnitude."""
    low, high = MIXED_EXPONENTS if bounds is None else (MIXED_EXPONENTS[0], 0.0)
    shape = values.shape if values.ndim < 2 else (*values.shape[:-1], 1)
    factor = np.asarray(10.0 ** rng.uniform(low, high, shape), values.dtype)
    return _toward_rest(values, bounds, factor, crew)


def _ramp(rng: np.random.Generator, values: _Floats, bounds: _Bounds, _crew: Crew) -> _Floats:
    """The range from end to end, by the bits of each element's place, each bit with a random weight."""
    assert bounds is not None, "of ranges alone"
    weights = rng.uniform(0.5, 1.0, max(1, (values.size - 1).bit_length()))
    weights /= weights.sum()
    low, high = (_by_bits(part) for part in (weights[:RAMP_BITS], weights[RAMP_BITS:]))
    share = (high[: -(-values.size // low.size), np.newaxis] + low).reshape(-1)[: values.size].reshape(values.shape)
    return np.asarray(bounds[0] + (bounds[1] - bounds[0]) * share, values.dtype)


def _by_bits(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """By number, the sum of the weights of its bits."""
    sums = np.zeros(1)
    for weight in weights:
        sums = np.concatenate((sums, sums + weight))
    return sums


def _rest(bounds: _Bounds) -> float:
    """The allowed value that is nearest to zero."""
    return 0.0 if bounds is None else min(max(0.0, bounds[0]), bounds[1])


def _scaled(values: _Floats, factor: float | _Floats, crew: Crew) -> _Floats:
    """`values` times one factor, or one for each row, in place."""
    rows = values.reshape(-1, values.shape[-1]) if np.ndim(factor) > 1 else values.reshape(-1, 1)
    factors = np.broadcast_to(np.asarray(factor, values.dtype).reshape(-1, 1), (rows.shape[0], 1))

    def work(span: tuple[int, int]) -> None:
        rows[slice(*span)] *= factors[slice(*span)]

    crew.each(work, crew.spans(rows.shape[0], least=max(1, DRAWN_TOGETHER // rows.shape[1])))
    return values


def _toward_rest(values: _Floats, bounds: _Bounds, factor: float | _Floats, crew: Crew) -> _Floats:
    rest = values.dtype.type(_rest(bounds))
    if not rest:
        return _scaled(values, factor, crew)
    scaled: _Floats = rest + (values - rest) * np.asarray(factor, values.dtype)
    return scaled


# Special values -----------------------------------------------------------------------------------


def _special_values(dtype: Dtype, variant: Variant) -> Array:
    """NaN, infinities, zeros and subnormals; or the largest numbers and the smallest normal ones."""
    info = ml_dtypes.finfo(dtype.numpy_dtype)
    tiny, normal, largest = float(info.smallest_subnormal), float(info.smallest_normal), largest_finite(dtype)
    if variant == "extreme":
        return np.array([largest, normal, -largest, -normal], dtype.numpy_dtype)
    subnormal = (normal - tiny, -tiny) if tiny < normal else ()
    values = np.array([np.nan, np.inf, -0.0, tiny, -np.inf, *subnormal], np.float64).astype(dtype.numpy_dtype)
    return values if _has_infinity(dtype) else values[[0, 2, 3, *range(5, values.size)]]


def _has_infinity(dtype: Dtype) -> bool:
    return bool(np.isinf(np.array(np.inf, dtype.numpy_dtype).astype(np.float64)))


def _integer_extremes(distribution: Distribution, dtype: Dtype) -> Array:
    """The ends of the declared range, or of the dtype."""
    low, high = integer_range(dtype)
    if distribution.low is not None and distribution.high is not None:
        low, high = max(int(np.ceil(distribution.low)), low), min(int(np.floor(distribution.high)), high)
    near_zero = [value for value in (0, -1, 1) if low <= value <= high]
    return np.array([low, high, *near_zero], dtype.numpy_dtype)


def _sprinkle(rng: np.random.Generator, values: Array, special: Array) -> Array:
    """`values` with each of `special` at least once where there is room, one in each of a share of the rows."""
    if not values.size or not special.size:
        return values
    result = values.copy()
    width = result.shape[-1] if result.ndim > 1 else 1
    row_count = result.size // width
    rows = rng.permutation(row_count)[: max(1, round(SPECIAL_ROW_SHARE * row_count))]
    place = np.arange(max(rows.size, min(special.size, rows.size * width)))
    columns = (rng.integers(width, size=rows.size)[place % rows.size] + place // rows.size) % width
    result.reshape(-1)[rows[place % rows.size] * width + columns] = special[place % special.size]
    return result


_HOSTILE = MappingProxyType(
    {
        "small": _small,
        "large": _large,
        "negative": _negative,
        "constant": _constant,
        "sparse": _sparse,
        "mixed": _mixed,
        "ramp": _ramp,
    }
)
assert {*_HOSTILE, *SPECIAL_VARIANTS, "declared", "numbers", "scales"} == set(get_args(Variant))


# Storage ------------------------------------------------------------------------------------------


def _store(values: _Floats, dtype: Dtype, bounds: _Bounds, crew: Crew) -> Array:
    """Round to the storage dtype, in place where it is the same; what that pushed out of the range comes back in."""
    is_own = values.dtype == dtype.numpy_dtype and values.flags.writeable and values.flags.c_contiguous
    stored: Array = values if is_own else np.empty(values.shape, dtype.numpy_dtype)
    flat, into = values.reshape(-1), stored.reshape(-1)

    def work(span: tuple[int, int]) -> None:
        _store_part(flat[slice(*span)], into[slice(*span)], dtype, bounds)

    crew.each(work, crew.spans(flat.size, least=DRAWN_TOGETHER))
    return stored


def _store_part(values: _Floats, stored: Array, dtype: Dtype, bounds: _Bounds) -> None:
    limit = largest_finite(dtype)
    low, high = (-limit, limit) if bounds is None else (max(bounds[0], -limit), min(bounds[1], limit))
    for start in range(0, values.size, PART):
        part = slice(start, start + PART)
        stored[part] = np.clip(values[part], values.dtype.type(low), values.dtype.type(high))
    if bounds is None:
        return
    for bound, inward in ((low, 1.0), (high, -1.0)):
        edge = np.asarray(bound, dtype.numpy_dtype)
        is_outside = (float(edge) - bound) * inward < 0
        if is_outside:
            inside = np.nextafter(edge, np.asarray(inward * limit, dtype.numpy_dtype))
            stored[stored == edge] = inside if low <= float(inside) <= high else edge


def _from_file(argument: Argument, dtype: Dtype, shape: tuple[int, ...]) -> Array:
    file = argument.distribution.file
    assert file is not None, "load checks that a file distribution names one"
    try:
        values = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"cannot read the data of {argument.name!r} from {str(file)!r}: {error}",
            hint="write it with numpy.save",
            location=argument.location,
        ) from error
    if values.dtype.kind == "V" and may_become(values.dtype, dtype):
        values = values.view(dtype.numpy_dtype)  # numpy.save keeps no name for bfloat16 and fp8
    if values.shape != shape:
        raise SpecError(
            f"{str(file)!r} has shape {values.shape}, but {argument.name!r} needs {shape}",
            location=argument.location,
        )
    if values.dtype == dtype.numpy_dtype:
        return np.ascontiguousarray(values).reshape(shape)
    return _convert(values, argument, dtype)


def _convert(values: Array, argument: Argument, dtype: Dtype) -> Array:
    """Another dtype in the file: integers must survive unchanged; floats are rounded, but stay finite and not zero.

    The reference is given the rounded values too, so rounding is no source of differences.
    """
    if not may_become(values.dtype, dtype):
        raise SpecError(
            f"{str(argument.distribution.file)!r} holds {values.dtype}, which is no {argument.dtype}",
            hint=f"save the array as {argument.dtype}",
            location=argument.location,
        )
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        stored = values.astype(dtype.numpy_dtype)
    if values.dtype.kind == "f" and dtype.kind == "float":
        wide, given = stored.astype(np.float64), values.astype(np.float64)
        is_kept = (np.isfinite(wide) | ~np.isfinite(given)) & ((wide != 0) | (given == 0))
    else:
        is_kept = _is_exact(stored, values)
    if not np.all(is_kept):
        worst = values[~is_kept].reshape(-1)[0]
        raise SpecError(
            f"{str(argument.distribution.file)!r} holds {worst}, which {argument.dtype} cannot hold",
            hint=f"save the array as {argument.dtype}, or declare the argument as {values.dtype}",
            location=argument.location,
        )
    return np.ascontiguousarray(stored).reshape(values.shape)


def _is_exact(stored: Array, values: Array) -> Array:
    """Where `stored` has the value of `values` unchanged; at least one of them holds integers."""
    whole, other = (values, stored) if stored.dtype.kind not in "biu" else (stored, values)
    if other.dtype.kind in "biu":
        return np.asarray((stored.astype(values.dtype) == values) & ((stored < 0) == (values < 0)))
    # A float beyond an integer's range becomes any integer: 2.0**63 may become 2**63 - 1, and look equal again.
    wide = other.astype(np.float64)
    bits = np.iinfo(whole.dtype) if whole.dtype.kind in "iu" else None
    low, high = (float(bits.min), float(bits.max // 2 + 1) * 2) if bits is not None else (0.0, 2.0)
    is_inside = (wide >= low) & (wide < high)
    back = np.where(is_inside, wide, 0.0).astype(whole.dtype)
    return np.asarray(is_inside & (back == whole) & (back.astype(np.float64) == wide))
