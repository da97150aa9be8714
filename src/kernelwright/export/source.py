"""The winning source as a file of its own: the chosen values as macros on top, unless they are given from outside."""

from __future__ import annotations

import re

from kernelwright.errors import UserError
from kernelwright.export.pairing import guard
from kernelwright.export.subject import ExportedRun, one_line
from kernelwright.results.configured_source import configured_source, recorded_names
from kernelwright.template.header import parse_header
from kernelwright.template.model import Candidate, Template


def source_text(run: ExportedRun) -> str:
    """The source that won, which compiles with no macro from outside, and with the options of the exported header.

    Each value may come from outside instead: so the header's options select any of its configs in this one file.

    The template's own header stays as a plain comment, for its constraints and reasons, without the marks that make it
    a header: the file has no parameters any more, and a tuner would find its macros overridden by the ones on top.

    Raises:
        UserError: nothing won, or the language has no macros.
    """
    config, template = run.config, run.template
    refuse_triton(template)
    source = configured_source(Candidate(template, config), recorded_names(run.view.started, run.problem))
    values = ", ".join(f"{macro.name} = {macro.text}" for macro in source.macros) or "no parameters"
    launches = [
        f"{step.entry}: grid ({', '.join(e.text for e in step.grid)}) blocks of "
        f"({', '.join(e.text for e in step.block)}) threads"
        for step in template.steps
    ]
    comment = [
        f"{run.problem.name}, tuned by Kernelwright {run.view.started.version}",
        "",
        f"Configuration: {values}",
        f"Device:        {run.device_name}",
        f"Measured:      {run.claim}",
        f"Workloads:     {', '.join(workload.name for workload in run.problem.workloads)}",
        *(f"Launch:        {launch}" for launch in launches),
        f"Run:           {run.view.started.run_id}, started {run.view.started.created}",
        f"Made from:     {template.file.name}, whose parameters are fixed here",
    ]
    head = "".join(f"// {one_line(line)}".rstrip() + "\n" for line in comment)
    prefix, sizes = f"kernelwright_{run.identifier}_define_", set(run.problem.size_names)
    function_of = {name: f"{prefix}{name}" for name, value in template.defines.items() if value.names & sizes}
    pairing = guard(template, [macro.name for macro in source.macros], function_of=function_of)
    defaults = "".join(f"{line}\n" for macro in source.macros for line in macro.default)
    return f"{head}\n{pairing}{defaults}\n{_without_marks(source.body, run)}"


def refuse_triton(template: Template) -> None:
    """Refuse what only a language with macros can be written as.

    Raises:
        UserError: it is a Triton kernel.
    """
    if template.language == "triton":
        raise UserError(
            f"{template.file.name!r} is a Triton kernel: its values are arguments of the launch, not macros",
            hint="export json and pass its `config` to the launch",
        )


def _without_marks(body: str, run: ExportedRun) -> str:
    header = parse_header(body, run.template.file, entry=run.template.steps[0].entry)
    if header.location is None:
        return body
    lines = body.split("\n")
    first, last = header.location.line - 1, header.last_line - 1
    lines[first] = re.sub(r"/// *kernelwright", "The template's parameters, fixed above:", lines[first], count=1)
    before, mark, after = lines[last].rpartition("///")
    lines[last] = f"{before}(end){after}" if mark else lines[last]
    return "\n".join(lines)
