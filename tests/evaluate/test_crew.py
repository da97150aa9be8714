"""Work shared between threads gives what one thread gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.evaluate.data.array_threads import Crew
from kernelwright.evaluate.data.layout import BufferLayout, guarded_image
from kernelwright.evaluate.data.tolerance import Allowance, compare
from kernelwright.evaluate.judge.judgement import LaunchFolder

CREWS = [Crew(count) for count in (1, 2, 5)]


@given(
    total=st.integers(0, 10_000),
    least=st.integers(0, 500),
    step=st.sampled_from([1, 8, 64]),
    crew=st.sampled_from(CREWS),
)
def test_spans_cover_everything_once_at_multiples_of_the_step(total, least, step, crew):
    spans = crew.spans(total, least=least, step=step)
    assert [index for low, high in spans for index in range(low, high)] == list(range(total))
    assert len(spans) <= crew.threads
    assert all(low % step == 0 for low, _ in spans)


@given(items=st.lists(st.integers()), least=st.integers(0, 10), crew=st.sampled_from(CREWS))
def test_shares_hold_every_item_once(items, least, crew):
    assert [each for share in crew.shares(items, least=least) for each in share] == items


def test_error_of_a_thread_comes_through():
    with pytest.raises(ZeroDivisionError):
        CREWS[1].each(lambda number: 1 // number, [1, 2, 0, 3])


@pytest.mark.parametrize("wrong", [None, 0, 123_456, 299_999])
@pytest.mark.parametrize("is_by_row", [False, True])
def test_comparison_by_many_is_the_comparison_by_one(wrong, is_by_row):
    expected = np.random.default_rng(0).standard_normal((300, 1000))
    got = expected.astype(np.float32)
    if wrong is not None:
        got.reshape(-1)[wrong] += 1 if wrong else np.inf
    allowance = Allowance(1e-6, np.full((300, 1), 1e-6) if is_by_row else 1e-6, "declared", "")
    found = [compare(got, expected, allowance, crew=crew) for crew in CREWS]
    assert found[0] == found[1] == found[2]
    assert found[0].is_within == (wrong is None)


def test_memory_that_is_used_again_holds_the_new_launch(tmp_path):
    memory = {}
    for size, byte in ((20 << 20, 1), (9 << 20, 2), (20 << 20, 3)):
        layout = BufferLayout("y", "output", "uint8", (size,), size)
        (tmp_path / "y.bin").write_bytes(guarded_image(np.full(size, byte, np.uint8)).tobytes())
        data = LaunchFolder(tmp_path, [layout], crew=CREWS[2], memory=memory).read(layout)
        assert data.shape == (size,)
        assert (data == byte).all()
    assert len(memory) == 1
