"""Chains of time steps: kernels with as many launches as there are steps, from one array to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tactic_runs import CPU, subject_of

from kernelwright.source.language import Language
from kernelwright.tactics.base import DeviceFacts, Subject

ARRAYS = ("x", "y", "even", "odd")
SIZES = ({"h": 41, "w": 147}, {"h": 23, "w": 1}, {"h": 1, "w": 90})
LINES = ({"n": 1234}, {"n": 1}, {"n": 6})


@dataclass(frozen=True)
class Steps:
    """A kernel `f` with parameters `x` and `y` that is launched `count` times, and why it does not fit."""

    name: str
    source: str
    reason: str = ""
    count: int = 4
    dtype: str = "float32"
    language: Language = "opencl"
    is_line: bool = False
    is_turned: bool = False
    """Whether columns are along the launch's second axis."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Further arguments of the kernel, behind its sizes."""
    shape: str = ""
    sizes: Sequence[Mapping[str, int]] = ()

    @property
    def workloads(self) -> Sequence[Mapping[str, int]]:
        """Sizes to run it with."""
        return self.sizes or (LINES if self.is_line else SIZES)


def arguments_of(case: Steps) -> dict[str, str]:
    """What the problem declares."""
    shape = case.shape or ("n" if case.is_line else "h,w")
    roles = dict(zip(ARRAYS, ("in", "out", "scratch", "scratch"), strict=True))
    sizes = ("n",) if case.is_line else ("h", "w")
    return {
        **{name: f"{role} {case.dtype} {shape}" for name, role in roles.items()},
        **{name: f"int32 ={name}" for name in sizes}, **case.more,
    }  # fmt: skip


def buffers_of(count: int) -> list[str]:
    """What a chain goes through."""
    return ["x", *("odd" if number % 2 == 0 else "even" for number in range(count - 1)), "y"]


def steps_subject(case: Steps, device: DeviceFacts = CPU) -> Subject:
    """The subject with its chain of launches."""
    declared = arguments_of(case)
    if case.is_line:
        grid, block = ["ceil_div(n, 32)"], ["32"]
    else:
        grid, block = ["ceil_div(w, 8)", "ceil_div(h, 4)"], ["8", "4"]
    if case.is_turned:
        grid, block = grid[::-1], block[::-1]
    subject = subject_of(case.source, declared, grid, block, case.workloads, language=case.language, device=device)
    rest = tuple(name for name in declared if name not in ARRAYS)
    through = buffers_of(case.count)
    one = subject.header.steps[0]
    steps = tuple(replace(one, arguments=(through[number], through[number + 1], *rest)) for number in range(case.count))
    return replace(subject, header=replace(subject.header, steps=steps))
