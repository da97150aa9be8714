"""The text that agents work on, from a template as it was loaded."""

from __future__ import annotations

from dataclasses import replace

from kernelwright.agent.base import Written
from kernelwright.template.header import parse_header, strip_header
from kernelwright.template.model import Template


def written_template(template: Template) -> Written:
    """A loaded template, or plain kernel, with a header that says how it is launched."""
    entry = template.steps[0].entry
    header = parse_header(template.source, template.file, entry=entry)
    if not header.steps:
        header = replace(header, steps=template.steps)
    base_entry = entry.partition("<")[0].strip()
    return Written(header.render() + strip_header(template.source), template.language, base_entry)
