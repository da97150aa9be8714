"""From a reply to a node's text: the region and the header replaced, everything refused that does not load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from kernelwright.agent.base import Task, Written
from kernelwright.agent.model.anchors import Malformed, Region, carried_out
from kernelwright.agent.model.edits import edited
from kernelwright.agent.model.fences.triton_text import check_triton_source
from kernelwright.agent.model.hostile import check_header, check_source
from kernelwright.agent.model.replies import code_of, edits_of, header_of
from kernelwright.errors import SpecError
from kernelwright.llm.base import Reply
from kernelwright.problem.config import Value
from kernelwright.template.header import header_toml, parse_header, strip_header
from kernelwright.template.load import template_of_text


def body_of(written: Written) -> str:
    """The source without its header."""
    return strip_header(written.text)


def with_defaults(written: Written, values: Mapping[str, Value]) -> Written:
    """The template with other defaults, where a parameter of that name can have the value; else as it is."""
    if not values:
        return written
    header = parse_header(written.text, Path("header"), entry=written.entry)
    changed = [
        replace(each, default=values[each.name])
        for each in header.parameters
        if values.get(each.name, each.default) != each.default and values[each.name] in each.values
    ]
    if not changed:
        return written
    return replace(written, text=header.with_parameters(*changed).render() + body_of(written))


def without_parameters(text: str, entry: str, config: Mapping[str, Value] = MappingProxyType({})) -> str:
    """A template as a kernel with one choice of numbers as macros, its launch as a comment.

    Args:
        text: of the template.
        entry: the kernel's name, where the header has none.
        config: the numbers; the default of a parameter that is not in it.
    """
    header = parse_header(text, Path("template"), entry=entry)
    lines = [f"#define {each.name} {_literal(config.get(each.name, each.default))}" for each in header.parameters]
    for step in header.steps:
        grid, block = (", ".join(extent.text for extent in extents) for extents in (step.grid, step.block))
        lines.append(f"// launched with grid = [{grid}], block = [{block}]")
    return "\n".join([*lines, "", strip_header(text).lstrip("\n")])


def _literal(value: Value) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def drafted(reply: Reply, *, task: Task, written: Written, region: Region, tactic: str, original: str) -> Written:
    """The template in a reply.

    Args:
        reply: with a code block (the source, or edits of it), and a toml block where the header changes, which may
            stand in the source as well.
        task: whose problem it must load with.
        written: what it was made from.
        region: where its body may change.
        tactic: what to note as applied; empty: nothing.
        original: the text whose includes and assembly are allowed.

    Raises:
        Malformed: it changes what is outside of the region.
        Malformed: anything else that is wrong with it, as a complaint.
    """
    body, edits = body_of(written), edits_of(reply)
    code = edited(body, edits, region) if edits else code_of(reply, written.entry)
    body = carried_out(body, region, strip_header(code))
    toml = header_of(reply) or header_toml(code) or None
    head = written.text.removesuffix(body_of(written)) if toml is None else _header_text(toml, written)
    text = head + body
    check_text(text, original, written.language)
    if text == written.text:
        raise Malformed("the answer changes nothing")
    _refuse_what_does_not_load(task, text)
    tactics = (*written.tactics, tactic) if tactic else written.tactics
    return replace(written, text=text, tactics=tactics, properties=())


def check_text(text: str, original: str, language: str) -> None:
    """Refuse a source from a model that could do more than compute; of the original, includes and assembly are allowed.

    Raises:
        Malformed: with a complaint.
    """
    if language == "triton":
        check_triton_source(text)  # it is Python, which is run to be compiled
    else:
        check_source(text, original)


def _header_text(toml: str, written: Written) -> str:
    check_header(toml, written.text)
    if not all(line.isprintable() for line in toml.replace("\t", " ").split("\n")):
        raise Malformed("the toml block holds characters that cannot be printed")
    mark = "#" if written.language == "triton" else "//"
    lines = ("/// kernelwright", *toml.strip("\n").split("\n"), "///")
    text = "".join(f"{mark} {line}\n" for line in lines) + "\n"
    try:
        header = parse_header(text, Path("header"), entry=written.entry)
    except SpecError as error:
        raise Malformed(f"the toml block is no template header: {_complaint(error, text)}") from None
    if not header.steps:  # nothing is said of the launch: it stays
        header = replace(header, steps=parse_header(written.text, Path("header"), entry=written.entry).steps)
    return header.render()


def _refuse_what_does_not_load(task: Task, text: str) -> None:
    try:
        template_of_text(task.problem, text, spec=task.problem.kernel)
    except SpecError as error:
        raise Malformed(f"the template does not fit the problem: {_complaint(error, text)}") from None


def _complaint(error: SpecError, text: str) -> str:
    """The message with the line that it is about, and no path of this machine."""
    parts = [error.message]
    line = error.location.line if error.location is not None else 0
    lines = text.split("\n")
    if 0 < line <= len(lines):
        parts.append(f"the line is: {lines[line - 1].strip()[:160]!r}")
    if error.hint:
        parts.append(f"hint: {error.hint}")
    return "; ".join(parts)
