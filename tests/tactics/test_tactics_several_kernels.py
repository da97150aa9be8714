"""Templates of several kernels: each is rewritten by itself, and what the rewrites bring along goes together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cuda_host import HostRunner, is_possible
from opencl_runs import Runner
from tactic_runs import CPU, EXAMPLES, GPU, argument, assert_same, example

from kernelwright.problem.model import Problem, ReferenceSpec, SourceSpec, Workload
from kernelwright.tactics.base import Rewrite, Subject
from kernelwright.tactics.registry import tactic
from kernelwright.template.header import Header, launch_step

SIZES = [{"n": 1003}, {"n": 3}]


def _small_cuda_reduction() -> Subject:
    """The CUDA example with 4 blocks of 64 threads: the host runs every thread as one of its own."""
    source = (EXAMPLES / "cuda/reduction/baseline.cu").read_text()
    for number, small in (("1024", "4"), ("256", "64"), ("128", "32")):
        source = source.replace(number, small)
    file = Path("kernel.cu")
    problem = Problem(
        "test", file, SourceSpec(file, "cuda", ()), None, ReferenceSpec(file, "f"),
        (argument("x", "in float32 n"), argument("total", "out float32 1"), argument("sums", "scratch float32 4"),
         argument("n", "int32 =n")),
        tuple(Workload(str(index), dict(each)) for index, each in enumerate(SIZES)), {},
    )  # fmt: skip
    steps = (
        launch_step("sum_blocks", ("4",), ("64",), None, ("x", "sums", "n")),
        launch_step("sum_partials", ("1",), ("64",), None, ("sums", "total")),
    )
    return Subject.make(problem, source, Header(steps=steps), GPU, entry="sum_blocks", language="cuda")


def _both(subject: Subject, first: str, second: str, other: str) -> Rewrite:
    """The kernel of a subject rewritten by `first`, then the kernel `other` by `second`."""
    made = []
    for name, entry in ((first, subject.entry), (second, other)):
        chosen = tactic(name)
        assert chosen is not None
        rewrite = chosen.apply(replace(subject, entry=entry, history=()))
        assert isinstance(rewrite, Rewrite), rewrite.reason
        made.append(rewrite)
        subject = subject.rewritten(rewrite)
    return made[-1]


@pytest.mark.skipif(not is_possible(), reason="needs g++")
@pytest.mark.parametrize("names", [("block-joins", "block-joins")])
def test_both_kernels_of_a_cuda_reduction_are_rewritten(names: tuple[str, str]) -> None:
    subject = _small_cuda_reduction()
    rewrite = _both(subject, *names, "sum_partials")
    assert rewrite.source.count("struct kw_packed;") == 1
    assert rewrite.source.count("struct kw_packed_2;") == 1
    assert assert_same(HostRunner(), subject, rewrite, SIZES, count=2, rtol=1e-5) == 4


@pytest.mark.thorough
@pytest.mark.opencl
def test_both_kernels_of_an_opencl_reduction_are_rewritten(runner: Runner) -> None:
    subject = example("reduction", CPU)
    rewrite = _both(subject, "block-items", "vector-loops", "sum_sums")
    assert assert_same(runner, subject, rewrite, [{"n": 100_003}, {"n": 1}], count=6, rtol=1e-5) >= 8
