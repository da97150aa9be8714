"""Random kernels, rewritten by random chains of tactics, compute what they computed before."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from opencl_runs import Runner
from random_opencl import program
from tactic_runs import CPU, GPU, assert_same, subject_of

from kernelwright.tactics.base import Rewrite
from kernelwright.tactics.registry import TACTICS
from tiers import TIMES

BATCH = 5


@pytest.mark.few(2)
@pytest.mark.opencl
@pytest.mark.parametrize("batch", range(20 * TIMES))
def test_random_kernels_stay_what_they_are(batch: int, runner: Runner) -> None:
    applied: Counter[str] = Counter()
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        applied.update(check(seed, runner))
    assert sum(applied.values()) >= BATCH  # a test that rewrites nothing proves nothing
    assert len(applied) >= 3  # which ones depends on the order in which the registry lists them


def check(seed: int, runner: Runner) -> list[str]:
    """Rewrite the program of a seed by some tactics in random order, and compare; which were applied."""
    made = program(seed)
    device = GPU if seed // 5 % 4 == 3 else CPU  # what tactics are told; all run on the CPU device
    subject = subject_of(made.source, made.arguments, made.grid, made.block, made.sizes, device=device)
    random = np.random.default_rng(seed)
    current, last, applied = subject, None, []
    for index in random.permutation(len(TACTICS))[: int(random.integers(len(TACTICS) // 2, len(TACTICS) + 1))]:
        result = TACTICS[index].apply(current)
        if isinstance(result, Rewrite):
            applied.append(result.tactic)
            current, last = current.rewritten(result), result
    if last is not None:
        chain = replace(last, explanation=f"seed {seed}: {' > '.join(applied)}")
        assert_same(runner, subject, chain, made.sizes[seed % 2 :][:1], count=min(TIMES, 2), rtol=2e-4, seed=seed)
    return applied
