"""What is known of a baseline from its text, and what is said where its launch is wrong."""

from __future__ import annotations

from kernelwright.errors import BaselineFailed
from kernelwright.evaluate.judge.jobs import CalibrateJob
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Failed
from kernelwright.source.triton.precision import multiplies_in_tf32, parameter_dtypes
from kernelwright.template.check import arguments_of
from kernelwright.template.load import load_baseline, load_template

_HINTS = {
    "out-of-bounds": "guard the baseline's stores at the edges, or correct the shapes in the problem",
    "input-changed": "declare the argument's role as 'inout', or fix the baseline",
    "unwritten": "check the baseline's launch (grid and block) and the output's shape",
    "not-finite": "check the baseline's launch and the declared ranges of the inputs",
    "mismatch": "check that the reference computes what the kernel does, with arguments in the kernel's "
    "order; when both are right, declare a tolerance with its reason",
}
"""What to do about a wrong baseline, by the reason of its failure."""


def baseline_multiplies_in_tf32(problem: Problem) -> bool:
    """Whether a kernel that the baseline launches does; its parameters stand for a launch's arguments by place."""
    source = problem.baseline or problem.kernel
    if source.language != "triton":
        return False
    template = load_baseline(problem, load_template(problem)).template
    arguments = arguments_of(problem, template)
    own = {*template.default, *template.defines}
    for step in template.steps:
        names = step.arguments if step.arguments is not None else tuple(arguments)
        given = ["" if arguments[name].role == "scalar" else arguments[name].dtype for name in names]
        dtypes = parameter_dtypes(template.source, source.file, step.entry, given, own)
        arrays = {name: dtype for name, dtype in dtypes.items() if dtype}
        if multiplies_in_tf32(template.source, source.file, step.entry, arrays):
            return True
    return False


def baseline_failed(problem: Problem, job: CalibrateJob, found: Failed, hint: str | None = None) -> BaselineFailed:
    """The error of a baseline whose launch was found wrong, and what to do about it."""
    source = problem.baseline or problem.kernel
    return BaselineFailed(
        f"the baseline is wrong on workload {job.workload!r} ({job.dataset.name} inputs): {found.message}"
        + (f"\n{found.log}" if found.log else ""),
        hint=hint or _HINTS[found.reason],
        location=source.location,
    )
