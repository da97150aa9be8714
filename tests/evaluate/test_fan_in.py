"""How long the sums are that a result is made of, found by asking the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.errors import ReferenceFailed
from kernelwright.evaluate.judge.fan_in import fan_in, summed_extent
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument, Problem, ReferenceSpec, SourceSpec, Workload
from tiers import examples

Array = np.ndarray[Any, Any]
SIZES = {"m": 12, "k": 40, "n": 9, "d": 20}


def argument(name: str, role: Any, *shape: str, dtype: str = "float32") -> Argument:
    return Argument(name, role, dtype, tuple(Expression.parse(extent) for extent in shape))


def lengths(
    arguments: tuple[Argument, ...], reference: Callable[..., Any], *, seed: int = 0, **data: Array
) -> dict[str, int]:
    problem = Problem(
        name="p", file=Path("problem.toml"), kernel=SourceSpec(Path("k.cl"), "opencl", ()), baseline=None,
        reference=ReferenceSpec(Path("reference.py"), "f"), arguments=arguments,
        workloads=(Workload("w", SIZES),), tolerances={},
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    inputs = {}
    for each in problem.inputs:
        shape = tuple(int(extent.evaluate(SIZES)) for extent in each.shape)
        drawn = rng.standard_normal(shape) if each.dtype == "float32" else rng.integers(0, 10, shape)
        inputs[each.name] = data.get(each.name, drawn.astype(each.dtype))

    def call(values: dict[str, Array]) -> dict[str, Array]:
        widened = {name: each.astype(np.float64) if each.dtype.kind == "f" else each for name, each in values.items()}
        result = reference(**widened)
        return result if isinstance(result, dict) else {problem.outputs[0].name: np.asarray(result)}

    return fan_in(problem, problem.workloads[0], inputs, call(inputs), call, rng=rng)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class Case:
    name: str
    arguments: tuple[Argument, ...]
    reference: Callable[..., Any]
    length: int


X, OUT = argument("x", "input", "m", "k"), argument("out", "output", "m", "k")
CASES = (
    Case("elementwise", (X, OUT), lambda x: np.exp(x) + x, 1),
    Case("in place", (argument("x", "inout", "m", "k"),), lambda x: 3 * x, 1),
    Case("broadcast", (X, argument("b", "input", "k"), OUT), lambda x, b: x + b, 1),
    Case("transpose", (X, argument("out", "output", "k", "m")), lambda x: x.T, 1),
    Case(
        "gated halves",
        (argument("x", "input", "m", "2 * d"), argument("out", "output", "m", "d")),
        lambda x: x[:, :20] / (1 + np.exp(-x[:, :20])) * x[:, 20:],
        2,
    ),
    Case("softmax", (X, OUT), softmax, 40),
    Case("prefix sum", (argument("x", "input", "k"), argument("out", "output", "k")), lambda x: x.cumsum(), 40),
    Case("total", (X, argument("out", "output", "1")), lambda x: x.sum()[None], 480),
    Case("row sums", (X, argument("out", "output", "m")), lambda x: x.sum(axis=1), 40),
    Case(
        "matmul",
        (X, argument("b", "input", "k", "n"), argument("out", "output", "m", "n")),
        lambda x, b: x @ b,
        40,
    ),
    Case(
        "integer matmul with a float scale",
        (
            argument("x", "input", "m", "k", dtype="int8"),
            argument("b", "input", "k", "n", dtype="int8"),
            argument("s", "input", "n"),
            argument("out", "output", "m", "n"),
        ),
        lambda x, b, s: (x.astype(np.int64) @ b.astype(np.int64)) * s,
        40,
    ),
    Case("stencil", (X, OUT), lambda x: x + sum(np.roll(x, s, a) for s in (1, -1) for a in (0, 1)), 5),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_length_is_what_one_element_is_made_of(case: Case) -> None:
    (length,) = set(lengths(case.arguments, case.reference).values())
    assert length == case.length


def test_every_output_has_its_own_length() -> None:
    arguments = (X, OUT, argument("mean", "output", "m"))
    assert lengths(arguments, lambda x: {"out": 2 * x, "mean": x.mean(axis=1)}) == {"out": 1, "mean": 40}


def test_what_nothing_reacts_to_counts_by_its_shape() -> None:
    """All closed gates: the sum is there all the same."""
    arguments = (X, argument("out", "output", "m"))
    closed = -np.ones((12, 40), np.float32) - np.arange(480, dtype=np.float32).reshape(12, 40)
    assert lengths(arguments, lambda x: np.maximum(x, 0).sum(axis=1), x=closed) == {"out": 40}


@pytest.mark.parametrize(
    ("reference", "length", "calls"),
    [
        (lambda x, s: (x * s).sum()[None], 480, 1),  # the first change reaches everything there is
        (lambda x, s: (x * s)[0, :1], 480, 1),
        (lambda x, s: (x * s).reshape(-1)[-1:], 480, 2),  # both changes reach nothing
    ],
)
def test_what_cannot_change_a_length_is_not_asked(reference: Callable[..., Any], length: int, calls: int) -> None:
    """A scale of one element is never the longest sum."""
    asked = []

    def counted(x: Array, s: Array) -> Array:
        asked.append(1)
        return np.asarray(reference(x, s))

    arguments = (argument("s", "input", "1"), X, argument("out", "output", "1"))
    assert lengths(arguments, counted) == {"out": length}
    assert len(asked) == 1 + calls


def test_a_gather_sums_nothing() -> None:
    """An index reaches one row of the result; 40 rows of a table become 12."""
    table, at = argument("table", "input", "k", "d"), argument("at", "input", "m", dtype="int32")
    found = lengths(
        (table, at, argument("out", "output", "m", "d")),
        lambda table, at: table[at],
        at=np.arange(12, dtype=np.int32),
    )
    assert found == {"out": 4}


def test_a_reference_that_fails_on_changed_data_is_no_error() -> None:
    calls = []

    def fragile(x: Array) -> Array:
        calls.append(1)
        if len(calls) > 1:
            raise ReferenceFailed("only once")
        return np.asarray(x.sum(axis=1))

    assert lengths((X, argument("out", "output", "m")), fragile) == {"out": 40}


def test_constant_inputs_are_changed_too_and_integers_keep_their_values() -> None:
    seen: list[set[int]] = []

    def reference(x: Array, at: Array) -> Array:
        seen.append(set(np.unique(at).tolist()))
        return np.asarray(x.sum(axis=1) + at)

    arguments = (X, argument("at", "input", "m", dtype="int32"), argument("out", "output", "m"))
    found = lengths(arguments, reference, x=np.zeros((12, 40), np.float32), at=np.repeat([3, 7], 6).astype(np.int32))
    assert found == {"out": 40}
    assert all(values <= {3, 7} for values in seen)


@pytest.mark.parametrize(
    ("source", "output", "length"),
    [
        (("m", "2 * d"), ("m", "d"), 1),
        (("m", "k"), ("m", "n"), 40),
        (("k", "m"), ("m",), 40),
        (("m", "64"), ("m", "64"), 1),
        (("m", "64"), ("m",), 64),
        (("m", "64", "64"), ("m", "64"), 64),
        (("m * k",), ("m",), 480),
        (("m", "k"), ("k * m",), 1),
        (("m", "k"), ("1",), 480),
    ],
)
def test_shapes_tell_the_extents_that_are_summed_over(
    source: tuple[str, ...], output: tuple[str, ...], length: int
) -> None:
    found = summed_extent(argument("x", "input", *source), argument("y", "output", *output), Workload("w", SIZES))
    assert found == length


@given(width=st.integers(1, 9), seed=st.integers(0, 50))
@examples(60)
def test_windows_of_every_width_are_found(width: int, seed: int) -> None:
    def reference(x: Array) -> Array:
        return np.asarray(sum(np.roll(x, shift, axis=1) for shift in range(width)))

    assert lengths((X, OUT), reference, seed=seed) == {"out": width}
