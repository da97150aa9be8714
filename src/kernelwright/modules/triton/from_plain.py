"""The problem of a plain kernel in C as one whose template is in Triton, with the plain kernel as its baseline."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kernelwright.errors import UsageError
from kernelwright.infer.problem_files import write_files
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.toml.writing import inline_toml
from kernelwright.tactics.base import DeviceFacts, Subject, Unfit
from kernelwright.tactics.triton.kernels import kernels_in_triton
from kernelwright.template.header import Header, strip_header
from kernelwright.template.load import load_template

_KERNEL = re.compile(r"^kernel = .*$", re.MULTILINE)
_LAUNCHES = re.compile(r"(?:^\[?\[launch\]\]?\n(?:\w+ = .*\n)*)+", re.MULTILINE)


def in_triton(files: Mapping[str, bytes], source: Path) -> dict[str, bytes]:
    """The files of a problem, with a Triton template more.

    Args:
        files: by name, as `infer.problem_files.files_of` gives them.
        source: the kernel's file, for messages.

    Raises:
        UsageError: the kernel has no words in Triton; the message says what of it.
        SpecError: the problem does not load.
    """
    with tempfile.TemporaryDirectory(prefix="kernelwright-init-") as staged:
        write_files(Path(staged), files)
        problem = load_problem(Path(staged))
        template = load_template(problem)
    header = Header(parameters=(), defines={}, steps=template.steps)
    subject = Subject.make(problem, strip_header(template.source), header, DeviceFacts("gpu"))
    try:
        if problem.kernel.options:
            raise Unfit("its compile options mean nothing to Triton")
        text, made = kernels_in_triton(subject)
    except Unfit as unfit:
        raise UsageError(
            f"{subject.entry!r} of {source.name} does not become Triton: {unfit.reason}",
            hint="leave out --triton, which writes maps, rows, reductions and products",
        ) from None
    plain, name = source.name, f"{source.stem}_triton.py"
    toml = files["problem.toml"].decode()
    toml = _KERNEL.sub(lambda _: f"kernel = {inline_toml(name)}", toml, count=1)
    toml = _LAUNCHES.sub(lambda _: f"[baseline]\nkernel = {inline_toml(plain)}\n", toml, count=1)
    launches = Header(steps=template.steps).render().encode()  # which those of a template in Triton are not for
    launched = {each: launches + files[each] for each in {plain, problem.reference.file.name}}
    return {**files, **launched, "problem.toml": toml.encode(), name: (made.render() + text).encode()}
