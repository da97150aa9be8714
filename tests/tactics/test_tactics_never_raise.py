"""Tactics answer for any source that has a kernel: with a rewrite that can be read again, or with a reason."""

from __future__ import annotations

import numpy as np
import pytest
from plain_kernels import CASES, Case
from random_opencl import program
from tactic_runs import CPU, GPU, subject_of

from kernelwright.errors import SpecError
from kernelwright.source.language import Language
from kernelwright.source.syntax import parse
from kernelwright.tactics.base import Rewrite, Subject
from kernelwright.tactics.registry import TACTICS


def _subject(source: str, language: Language, *, block: tuple[str, ...] = ("256",)) -> Subject | None:
    """A subject whose problem is made of the kernel's own parameters; None where there is no kernel."""
    kernels = parse(source, language).kernels
    if not kernels or any(not each.name for each in kernels[0].parameters):
        return None
    arguments = {
        each.name: "inout float32 4096" if each.is_pointer else "int32 =n" for each in kernels[0].parameters
    } or {"x": "inout float32 n"}  # fmt: skip
    names = {name: name if name not in ("n", "x") else f"{name}_" for name in arguments}
    renamed = {names[name]: text for name, text in arguments.items()}
    device = CPU if language == "opencl" else GPU
    try:
        return subject_of(source, renamed, ("ceil_div(n, 256)",), block, [{"n": 1024}], language=language,
                          device=device, entry=kernels[0].name)  # fmt: skip
    except SpecError:
        return None


def _apply_all(subject: Subject) -> int:
    applied = 0
    for each in TACTICS:
        result = each.apply(subject)
        assert result.tactic == each.name
        if isinstance(result, Rewrite):
            applied += 1
            child = subject.rewritten(result)
            assert child.analysis.function.name == subject.entry
            assert len(child.analysis.function.parameters) >= len(subject.analysis.function.parameters)
        else:
            assert result.reason
    return applied


@pytest.mark.few(20)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_plain_kernels_get_an_answer(case: Case) -> None:
    subject = _subject(case.source, case.language)
    assert subject is not None
    _apply_all(subject)
    other = _subject(case.source, case.language, block=("16", "16"))
    assert other is not None
    _apply_all(other)


@pytest.mark.few(12)
@pytest.mark.parametrize("seed", range(40))
def test_broken_sources_get_an_answer(seed: int) -> None:
    """A kernel with some of its characters lost or doubled."""
    random = np.random.default_rng(seed)
    case = CASES[seed % len(CASES)]
    source, language = (case.source, case.language) if seed % 2 else (program(seed).source, "opencl")
    for _ in range(int(random.integers(1, 4))):
        at, length = int(random.integers(len(source))), int(random.integers(1, 6))
        source = source[:at] + (source[at : at + length] * 2 if random.random() < 0.3 else "") + source[at + length :]
    subject = _subject(source, language)
    if subject is not None:
        _apply_all(subject)


@pytest.mark.thorough
def test_most_plain_kernels_are_improved() -> None:
    subjects = [_subject(case.source, case.language) for case in CASES]
    improved = sum(each is not None and _apply_all(each) > 1 for each in subjects)
    assert improved > len(CASES) // 2
