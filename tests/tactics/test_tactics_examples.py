"""Every tactic on every baseline of the examples: what comes out is a template that loads with its problem."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tactic_runs import CPU, EXAMPLES, GPU, example

from kernelwright.tactics.base import Family, Rewrite, Subject, Tactic
from kernelwright.tactics.registry import TACTICS, by_family, tactic
from kernelwright.template.load import load_template

NAMES = sorted(str(path.parent.relative_to(EXAMPLES)) for path in EXAMPLES.glob("**/problem.toml"))
IMPROVED: dict[str, tuple[str, ...]] = {
    "matmul": ("vector-map", "coarsen"),
    "reduction": ("block-items",),
    "silu_and_mul": ("vector-map", "coarsen", "fast-functions"),
    "softmax": ("rows", "reciprocal", "fast-functions"),
    "stencil": ("vector-map", "coarsen"),
    "transpose": ("coarsen",),
    "cuda/fused_add_rmsnorm": ("block-joins",),
    "cuda/matmul": ("vector-map",),
    "cuda/merge_attn_states": ("vector-map",),
    "cuda/per_token_group_quant_fp8": ("restrict",),
    "cuda/reduction": ("block-joins",),
    "cuda/rmsnorm": ("block-joins",),
    "cuda/silu_and_mul": ("vector-map",),
    "cuda/softmax": ("block-joins", "fast-functions"),
    "cuda/stencil": ("vector-map",),
    "cuda/transpose": ("coarsen",),
}
"""By example, tactics that must fit its baseline."""


def _subject(name: str) -> Subject:
    return example(name, GPU if name.startswith("cuda/") else CPU)


def load_rewritten(subject: Subject, rewrite: Rewrite, folder: Path) -> None:
    """Load what a rewrite gives as the problem's template."""
    suffix = ".cl" if subject.language == "opencl" else ".cu"
    file = folder / f"rewritten{suffix}"
    file.write_text(rewrite.file_text)
    problem = subject.problem
    load_template(replace(problem, kernel=replace(problem.kernel, file=file, steps=(), entry=None)))


@pytest.mark.few(200)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("each", TACTICS, ids=lambda each: each.name)
def test_what_a_tactic_makes_of_a_baseline_loads(name: str, each: Tactic, tmp_path: Path) -> None:
    subject = _subject(name)
    result = each.apply(subject)
    assert each.name not in IMPROVED[name] or isinstance(result, Rewrite), result.reason
    if not isinstance(result, Rewrite):
        assert result.reason
        return
    assert result.effect.factor >= 1.0
    assert result.explanation.endswith(".")
    assert all(span.end <= len(subject.source.encode()) for span in result.anchors)
    load_rewritten(subject, result, tmp_path)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", NAMES)
def test_chains_of_tactics_load(name: str, tmp_path: Path) -> None:
    """Small changes, the first arrangement of threads that fits, then what the compiler is told."""
    subject, applied = _subject(name), []
    arranging: tuple[Family, ...] = ("contraction", "transpose", "stencil", "row", "reduction", "map")
    groups = (("arithmetic",), ("memory",), arranging, ("launch",), ("options",))
    start = subject
    for group in groups:
        for each in TACTICS:
            result = each.apply(subject) if each.family in group else None
            if isinstance(result, Rewrite):
                applied.append(each.name)
                subject = subject.rewritten(result)
                load_rewritten(start, result, tmp_path)
    assert len(applied) >= 2


def test_every_example_is_listed() -> None:
    assert set(NAMES) == set(IMPROVED)


def test_tactics_have_names_of_their_own() -> None:
    names = [each.name for each in TACTICS]
    assert len(set(names)) == len(names)
    assert all(each.summary.endswith(".") for each in TACTICS)
    assert all(tactic(name) is not None for name in names)
    assert {each.name for each in by_family("row")} >= {"rows", "block-joins", "vector-loops"}
    assert tactic("no-such") is None
