"""From a node's text to a tactic's subject, and from a rewrite back to text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import cast

from kernelwright.agent.base import Task, Written
from kernelwright.problem.model import Argument
from kernelwright.problem.source_scan import used_words
from kernelwright.source.language import Language
from kernelwright.tactics.base import DeviceFacts, Rewrite, Subject
from kernelwright.template.draft import HeaderDraft, ScratchDraft, StepDraft, strip_header
from kernelwright.template.header import Header, parse_header

_WORD = re.compile(r"[A-Za-z_]\w*")

_CPU_VECTOR_BYTES = 32
"""The width of AVX2, which x86 machines have had for ten years; wider only splits loads. A guess elsewhere."""


def entries_of(written: Written) -> tuple[str, ...]:
    """The kernels that a template launches, the one that is worked on first.

    Raises:
        SpecError: the text's header is wrong.
    """
    header = parse_header(written.text, Path("node"), entry=written.entry)
    launched = (step.entry.partition("<")[0].strip() for step in header.steps)
    return tuple(dict.fromkeys((written.entry, *launched)))


def key_of(name: str, entry: str, main: str) -> str:
    """What is said of a kernel: of the first one as it is, of others with the kernel's name."""
    return name if entry == main else f"{name}@{entry}"


def subject_of(task: Task, written: Written, entry: str | None = None) -> Subject:
    """What tactics work on: one kernel of the template, the first one by default.

    Raises:
        SpecError: the text's header is wrong, or declares no launch of the entry.
    """
    entry = entry or written.entry
    header = parse_header(written.text, Path("node"), entry=written.entry)
    subject = Subject.make(
        task.problem,
        strip_header(written.text),
        header_draft(header),
        device_facts(task),
        entry=entry,
        language=cast("Language", written.language),
    )
    history, properties = (_own(each, entry, written.entry) for each in (written.tactics, written.properties))
    return replace(subject, history=history, properties=frozenset(properties))


def _own(names: Sequence[str], entry: str, main: str) -> tuple[str, ...]:
    """What is said of this kernel."""
    ending = "" if entry == main else f"@{entry}"
    return tuple(each.removesuffix(ending) for each in names if each.partition("@")[1:] == ending.partition("@")[1:])


def written_of(before: Written, subject: Subject, rewrite: Rewrite) -> Written:
    """A rewrite of one kernel of `before` as a node's text.

    Parameters that nothing uses any more go: a tactic that replaces a launch leaves those of the old one behind.
    """
    draft = without_unused(rewrite.draft, rewrite.source, subject.language)
    replaced = {key_of(each, subject.entry, before.entry) for each in subject.properties}
    new = {key_of(each, subject.entry, before.entry) for each in rewrite.properties}
    return replace(
        before,
        text=draft.render() + rewrite.source,
        tactics=(*before.tactics, key_of(rewrite.tactic, subject.entry, before.entry)),
        properties=tuple(sorted((set(before.properties) - replaced) | new)),
    )


def without_unused(draft: HeaderDraft, source: str, language: Language) -> HeaderDraft:
    """The draft without parameters that neither the source nor anything else in it uses, and their constraints."""
    used = set(used_words(source, language))
    for text in _expressions(draft):
        used.update(_WORD.findall(text))
    gone = {each.name for each in draft.parameters} - used
    if not gone:
        return draft
    return replace(
        draft,
        parameters=tuple(each for each in draft.parameters if each.name not in gone),
        constraints=tuple((name, text) for name, text in draft.constraints if not gone & set(_WORD.findall(text))),
    )


def _expressions(draft: HeaderDraft) -> Iterator[str]:
    """Everything in a header that may use a parameter, constraints left out."""
    for step in draft.steps:
        yield from (value for value in _texts_in(step))
    yield from (text for _, text in draft.defines)
    for scratch in draft.scratch:
        yield from scratch.shape
    yield from draft.options


def _texts_in(value: object) -> Iterator[str]:
    """All texts in a dataclass of texts, however nested: launches gain fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _texts_in(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _texts_in(getattr(value, each.name))


def header_draft(header: Header) -> HeaderDraft:
    """A parsed header as data that tactics edit."""
    return HeaderDraft(
        parameters=header.parameters,
        constraints=tuple((each.name, each.expression.text) for each in header.constraints),
        steps=tuple(StepDraft.of(step) for step in header.steps),
        defines=tuple((name, expression.text) for name, expression in header.defines.items()),
        scratch=tuple(_scratch(argument) for argument in header.scratch),
        options=header.options,
    )


def _scratch(argument: Argument) -> ScratchDraft:
    shape = tuple(extent.text for extent in argument.shape)
    return ScratchDraft(argument.name, argument.dtype, shape, argument.role)


def device_facts(task: Task) -> DeviceFacts:
    """What tactics may know of a run's device; a simulated one counts as a GPU."""
    device = task.device
    limits: Mapping[str, int] = device.limits
    is_cpu = device.kind == "cpu"
    return DeviceFacts(
        kind="cpu" if is_cpu else "gpu",
        warp_size=limits.get("warp_size"),
        vector_bytes=_CPU_VECTOR_BYTES if is_cpu else 16,
        max_threads_per_block=limits.get("max_threads_per_block", 256),
        shared_bytes_per_block=limits.get("shared_memory_per_block"),
        multiprocessors=limits.get("multiprocessors"),
        copy_bytes_per_s=task.copy_bytes_per_s,
        operations_per_s=task.operations_per_s,
        has_half_arithmetic=device.facts.get("half_arithmetic") == "yes",
        has_subgroup_shuffles=device.facts.get("subgroup_shuffles") == "yes",
    )
