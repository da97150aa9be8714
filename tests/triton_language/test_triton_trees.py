"""Trees that join several values a thread, and threads that do several places: what is not followed is refused."""

from __future__ import annotations

import pytest
from test_triton_rows import text_of, written
from triton_plain_kernels import PLAIN

from kernelwright.errors import UsageError


@pytest.mark.parametrize("name", ["argmax_pairs", "deviation_welford", "log_sum_exp_pairs"])
def test_a_tree_of_several_values_is_one_reduction(tmp_path, name):
    text = text_of(written(tmp_path, name))
    assert text.count("tl.reduce((") == 1
    assert text.count(f"{name}_joined") == 2


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("argmax_pairs", " || (sv[o] == sv[t] && si[o] < si[t])", ""),  # of equal values, whichever comes first
        ("argmax_pairs", "si[o] < si[t]", "o < si[t]"),  # the thread's place decides
        ("argmax_pairs", "sv[t] = sv[o];", "sv[o] = sv[t];"),
        ("argmax_pairs", "t + s;", "t + s + 1;"),
        ("argmax_pairs", "y[blockIdx.x] = si[0]", "y[blockIdx.x] = si[1]"),
        ("argmax_pairs", "blockDim.x / 2; s > 0", "blockDim.x / 4; s > 0"),  # half of the threads is left out
        ("argmax_pairs", "blockDim.x / 2; s > 0", "blockDim.x / 2; s > 1"),
        ("argmax_pairs", "si[t] = at;\n    __syncthreads();", "si[t] = at;"),
        ("argmax_pairs", "si[t] = at;", "si[0] = at;"),
        ("deviation_welford", "d * count[t + s] / all", "d / 2"),  # a mean of means
        ("log_sum_exp_pairs", "sd[t] * exp(own - higher)", "sd[t]"),
    ],
)
def test_a_tree_that_heeds_the_order_or_leaves_threads_out_is_refused(tmp_path, name, old, new):
    source = PLAIN[name].source
    assert source.count(old) == 1
    with pytest.raises(UsageError, match="does not become Triton"):
        written(tmp_path, name, source=source.replace(old, new))


@pytest.mark.parametrize("name", ["transpose_32x8", "blend_32x8"])
def test_rows_of_a_thread_are_threads_of_their_own(tmp_path, name):
    text = text_of(written(tmp_path, name))
    assert "for " not in text
    assert text.count("tl.store(") == 1


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("blend_32x8", "y0 + k * blockDim.y;", "y0 + k * 4;"),  # threads do the same rows
        ("blend_32x8", "* 0.25f", "* k"),
        ("blend_32x8", "* 0.25f", "* (y & 1)"),
        ("blend_32x8", "y < h) c", "y < h && a[x] > k) c"),
        ("blend_32x8", "k = 0;", "k = 1;"),
        ("blend_32x8", "    #pragma", "    if (y0 >= h) return;\n    #pragma"),  # all rows of a thread
        ("blend_32x8", "* 0.25f", "* a[y0]"),  # of a thread's first row
        ("transpose_32x8", "    __syncthreads();\n", ""),
    ],
)
def test_rows_of_a_thread_that_are_not_apart_or_told_apart_stay(tmp_path, name, old, new):
    source = PLAIN[name].source
    assert source.count(old) == 1
    with pytest.raises(UsageError, match="does not become Triton"):
        written(tmp_path, name, source=source.replace(old, new))
