"""Guards, poison and files: what the device worker writes and the referee reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.errors import SpecError
from kernelwright.evaluate.data.layout import (
    GUARD_BYTES,
    GUARD_PATTERN,
    POISON,
    SCRATCH_POISON,
    find_guard_damage,
    guard_bytes,
    guarded_image,
    layouts_for,
)
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument, Problem, ReferenceSpec, Role, SourceSpec, Workload


def argument(name: str, role: Role, *extents: str) -> Argument:
    return Argument(name, role, "float32", tuple(Expression.parse(text) for text in extents))


def problem_of(*arguments: Argument, sizes: dict[str, int]) -> Problem:
    return Problem(
        name="p",
        file=Path("problem.toml"),
        kernel=SourceSpec(Path("k.cl"), "opencl", ()),
        baseline=None,
        reference=ReferenceSpec(Path("reference.py"), "f"),
        arguments=arguments,
        workloads=(Workload("w", sizes),),
        tolerances={},
    )


def split(image: np.ndarray, byte_count: int) -> tuple[np.ndarray, np.ndarray]:
    return image[:GUARD_BYTES], image[GUARD_BYTES + byte_count :]


@pytest.mark.parametrize("extent", ["n - 5", "n / 2"])
def test_an_extent_that_is_no_count_is_refused(extent: str) -> None:
    problem = problem_of(argument("x", "input", extent), sizes={"n": 3})
    with pytest.raises(SpecError, match="x"):
        layouts_for(problem, problem.workloads[0])


def test_layouts_cover_global_buffers_in_order_and_leave_scratch_to_the_candidate() -> None:
    problem = problem_of(
        argument("out", "output", "n", "m + 1"),
        Argument("n", "scalar", "int32", value=Expression.parse("n")),
        argument("tmp", "scratch", "n * BLOCK"),
        argument("x", "input", "n"),
        argument("y", "inout"),
        sizes={"n": 3, "m": 4},
    )
    layouts = layouts_for(problem, problem.workloads[0])
    assert [(each.argument, each.shape, each.byte_count) for each in layouts] == [
        ("out", (3, 5), 60),
        ("x", (3,), 12),
        ("y", (), 4),
    ]
    assert layouts[0].file_bytes == 2 * GUARD_BYTES + 60


def test_poison_fills_whole_elements_and_no_float_poison_is_a_number() -> None:
    for name, dtype in DTYPES.items():
        poison = POISON[name]
        assert len(poison) == dtype.item_bytes
        if dtype.kind == "float":
            assert np.isnan(np.frombuffer(poison, dtype.numpy_dtype).astype(np.float64)).all()
            filled = np.frombuffer(SCRATCH_POISON * dtype.item_bytes, dtype.numpy_dtype)
            assert np.isnan(filled.astype(np.float64)).all()
    assert POISON["bool"] not in (b"\x00", b"\x01")


def test_guard_pattern_holds_numbers_too_so_that_reads_outside_are_not_always_nan() -> None:
    words = np.frombuffer(GUARD_PATTERN, np.float32)
    assert np.isnan(words).any()
    assert (np.abs(words[np.isfinite(words)]) > 1e20).sum() == 3
    assert len(set(words.view(np.uint32).tolist())) == 4


@given(byte_count=st.integers(0, 100), offset=st.integers(0, 200))
def test_one_fill_of_the_whole_buffer_lays_both_guards(byte_count: int, offset: int) -> None:
    total = 2 * GUARD_BYTES + byte_count
    whole = np.tile(np.frombuffer(GUARD_PATTERN, np.uint8), total // 16 + 1)[:total]
    assert np.array_equal(guard_bytes(offset, 50), whole[offset : offset + 50])
    image = guarded_image(np.zeros(byte_count, np.uint8))
    assert np.array_equal(image[:GUARD_BYTES], whole[:GUARD_BYTES])
    assert np.array_equal(image[GUARD_BYTES + byte_count :], whole[GUARD_BYTES + byte_count :])
    assert find_guard_damage(*split(image, byte_count), byte_count=byte_count) is None


@given(byte_count=st.integers(0, 64), distance=st.integers(0, GUARD_BYTES - 1), is_after=st.booleans())
def test_every_single_guard_byte_is_watched(byte_count: int, distance: int, is_after: bool) -> None:
    image = guarded_image(np.zeros(byte_count, np.uint8))
    place = GUARD_BYTES + byte_count + distance if is_after else GUARD_BYTES - 1 - distance
    image[place] ^= 1
    damage = find_guard_damage(*split(image, byte_count), byte_count=byte_count)
    assert damage == ("after" if is_after else "before", distance, 1)


def test_the_damage_nearest_to_the_data_is_reported() -> None:
    image = guarded_image(np.zeros(8, np.uint8))
    image[GUARD_BYTES - 100 : GUARD_BYTES - 40] = 0
    assert find_guard_damage(*split(image, 8), byte_count=8) == ("before", 40, 60)
