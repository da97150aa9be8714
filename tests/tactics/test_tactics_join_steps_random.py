"""Random chains of time steps: joined, they give the bits that one launch a step gives."""

from __future__ import annotations

import random

import pytest
from opencl_runs import Runner
from step_cases import Steps, steps_subject
from tactic_runs import CPU, GPU, assert_same

from kernelwright.tactics.base import Rewrite
from kernelwright.tactics.stencil.time_steps import JOIN_STEPS
from tiers import TIMES

TYPES = {"float": "float32", "int": "int32", "double": "float64"}


def _extent(maker: random.Random, most: int) -> int:
    return maker.choice((1, 2, 3, maker.randint(1, 9), maker.randint(10, most)))


def random_steps(maker: random.Random) -> Steps:
    """Cells of random neighbours, with borders in one of several styles; a chain of random length."""
    reach = maker.choice((1, 1, 2, 3))
    is_line = maker.random() < 0.2
    c_type = maker.choice(tuple(TYPES))
    sides = [(maker.randint(-reach, reach), 0 if is_line else maker.randint(-reach, reach)) for _ in range(6)]
    places = sorted(set(sides[: maker.randint(1, 6)]) | {(maker.choice((-1, 1)), 0)})
    style = maker.choice(("else", "return", "ternary", "first", "variable", "clamped"))
    lines = []
    for number, (dx, dy) in enumerate(places):
        read = f"x[(j + {dy}) * w + i + {dx}]"
        if style == "ternary":
            read = f"i + {dx} >= 0 && i + {dx} < w && j + {dy} >= 0 && j + {dy} < h ? {read} : ({c_type}){number}"
        if style == "clamped":
            row = "" if is_line else f"clamp(j + {dy}, 0, h - 1) * w + "
            read = f"x[{row}{f'min(max(i + {dx}, 0), w - 1)' if number % 2 else f'clamp(i + {dx}, 0, w - 1)'}]"
        lines.append(f"{c_type} v{number} = {read};")
    total = " + ".join(f"v{number} * ({c_type}){maker.randint(1, 3)}" for number in range(len(places)))
    made = " ".join([*lines, f"y[at] = ({total} + x[at]) / {maker.randint(2, 9)} + i;"])
    outer = f"i < {reach} || i >= w - {reach} || j < {reach} || j >= h - {reach}"
    inner = f"i >= {reach} && i < w - {reach} && j >= {reach} && j < h - {reach}"
    if is_line:
        outer, inner = (each.partition(f" {word} j")[0] for each, word in ((outer, "||"), (inner, "&&")))
    body = {
        "else": f"if ({outer}) y[at] = x[at]; else {{ {made} }}",
        "return": f"if ({outer}) {{ y[at] = x[at] + j; return; }} {made}",
        "ternary": made,
        "clamped": made,
        "first": f"if ({inner}) {{ {made} }} else {{ y[at] = 3; }}",
        "variable": f"y[at] = x[at]; if ({inner}) {{ {made} }}",
    }[style]
    is_turned = not is_line and maker.random() < 0.3
    i, j = (1, 0) if is_turned else (0, 1)
    rows = "" if is_line else "const int h, "
    source = f"""__kernel void f(__global const {c_type} *x, __global {c_type} *y, {rows}const int w) {{
  const int i = get_global_id({i}), j = {0 if is_line else f"get_global_id({j})"};
  if (i >= w || j >= h) return;
  const int at = j * w + i;
  {body}
}}
"""
    if is_line:
        source = (
            source.replace("j >= 0 && j < h && ", "").replace(" || j >= h", "").replace("const int w)", "const int n)")
        )
        source = source.replace("const int i", "const int w = n, i")
        for dy in range(-reach, reach + 1):
            source = source.replace(f" && j + {dy} >= 0 && j + {dy} < h", "")
    wide = maker.choice((40, 150, 600))
    sizes = tuple({"n": _extent(maker, 3000)} if is_line else {"h": _extent(maker, 60), "w": _extent(maker, wide)}
                  for _ in range(2))  # fmt: skip
    return Steps(f"{style} {places}", source, count=maker.choice((2, 3, 4, 5, 6, 8, 10, 12)), dtype=TYPES[c_type],
                 is_line=is_line, is_turned=is_turned, sizes=sizes)  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(8 * TIMES))
def test_random_steps_stay_what_they_are(seed: int, runner: Runner) -> None:
    case = random_steps(random.Random(seed))
    subject = steps_subject(case, GPU if seed % 4 == 3 else CPU)
    result = JOIN_STEPS.apply(subject)
    assert isinstance(result, Rewrite), f"{result.reason}\n{case.source}"
    assert assert_same(runner, subject, result, case.workloads, count=2, rtol=0.0, seed=seed) >= 1
