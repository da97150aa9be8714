"""Predictions follow from bytes, waits and the device's rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tactic_runs import GPU, example

from kernelwright.tactics.base import DeviceFacts, Rewrite
from kernelwright.tactics.common.traffic_model import LAUNCH_S, MOST, array_bytes, effect, launch_s, map_bytes
from kernelwright.tactics.rows.groups import GROUP_LANES
from kernelwright.tactics.rows.registers import ROW_REGISTERS
from kernelwright.tactics.vectors.map import VECTOR_MAP

H100 = replace(GPU, copy_bytes_per_s=2.94e12, multiprocessors=132)
SILU = {"tokens": 128, "d": 11008}


def test_a_launch_takes_at_least_its_own_time_then_what_bounds_it() -> None:
    assert launch_s(H100, 0, 32, 32, 0.0) == LAUNCH_S
    assert launch_s(H100, 2.94e9, 1e6, 256, 0.0) == pytest.approx(LAUNCH_S + 1e-3)
    one_wave, two = (launch_s(H100, 0, count, 1024, 1e-6) for count in (264 * 1024, 265 * 1024))
    assert two - one_wave == pytest.approx(1e-6)


def test_unknown_devices_have_times_too() -> None:
    assert launch_s(DeviceFacts("gpu"), 1e9, 1e6, 256, 1e-6) > LAUNCH_S


def test_a_map_moves_what_it_touches_and_no_more_than_there_is() -> None:
    subject = example("cuda/silu_and_mul", H100)
    elements = 128 * 11008
    assert map_bytes(subject, elements, SILU) == 6 * elements
    assert array_bytes(subject, "x", SILU) == 4 * elements
    stencil = example("cuda/stencil", H100)
    sizes = stencil.sizes()[0]
    once = sum(array_bytes(stencil, name, sizes) or 0 for name in stencil.analysis.facts.arrays)
    assert map_bytes(stencil, 10**9, sizes) == once


def test_factors_are_means_over_workloads_within_bounds() -> None:
    slow, slower, fast = (launch_s(H100, 0, 32, 32, waits_s) for waits_s in (8e-6, 1.0, 0.0))
    assert effect([(slow, fast)], "It", otherwise=1.0).factor == pytest.approx(9.0)
    assert effect([(slow, fast), (fast, fast)], "It", otherwise=1.0).factor == pytest.approx(3.0)
    assert effect([(slower, fast)], "It", otherwise=1.0).factor == MOST
    assert effect([], "It", otherwise=1.7).factor == 1.7


@pytest.mark.parametrize(("name", "tactic", "measured"), [
    ("rmsnorm", ROW_REGISTERS, 4.48), ("softmax", ROW_REGISTERS, 2.02), ("fused_add_rmsnorm", ROW_REGISTERS, 5.55),
    ("per_token_group_quant_fp8", GROUP_LANES, 2.90), ("merge_attn_states", GROUP_LANES, 1.89),
    ("silu_and_mul", VECTOR_MAP, 1.64),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_predictions_are_near_what_was_measured(name: str, tactic: object, measured: float) -> None:
    """On an H100, from the plain kernel to its final form."""
    result = tactic.apply(example(f"cuda/{name}", H100))  # type: ignore[attr-defined]
    assert isinstance(result, Rewrite), result.reason
    assert measured / 1.7 < result.effect.factor < measured * 1.7
