"""What happens between launches outside the kernels: an input is made of outputs, as a library's call does it."""

from __future__ import annotations

from collections.abc import Collection

from kernelwright.errors import SpecError
from kernelwright.problem.model import LaunchStep, Problem
from kernelwright.problem.source_scan import KernelSignature, scan_kernels
from kernelwright.template.model import Template


def launches_before(template: Template, outputs: Collection[str]) -> int:
    """After how many launches all outputs have been written: what a kernel takes without `const`, it may write."""
    kernels = {each.name: each for each in scan_kernels(template.source, template.language)}
    writers = [
        place
        for place, step in enumerate(template.steps, 1)
        if not set(outputs).isdisjoint(_written(step, kernels.get(step.entry.partition("<")[0].strip())))
    ]
    return max(writers, default=0)


def _written(step: LaunchStep, kernel: KernelSignature | None) -> set[str]:
    names = step.arguments or ()
    if kernel is None or kernel.parameters is None or len(kernel.parameters) != len(names):
        return set(names)
    return {name for name, each in zip(names, kernel.parameters, strict=True) if not each.is_const}


def check_outside(problem: Problem, template: Template) -> None:
    """Refuse launches that need an input before the outputs are written that it is made of.

    Raises:
        SpecError: there is one.
    """
    for argument in problem.arguments:
        first = launches_before(template, argument.after) if argument.after else 0
        for step in template.steps[:first]:
            if argument.name in (step.arguments or ()):
                raise SpecError(
                    f"the launch of {step.entry!r} reads {argument.name!r}, which is made of "
                    f"{', '.join(argument.after)}, and a launch writes these there or later",
                    hint="launch what writes them first, in a kernel of its own; what a kernel only reads is const",
                    location=step.location,
                )
