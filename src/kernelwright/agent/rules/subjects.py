"""From a node's text to a tactic's subject, and from a rewrite back to text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from kernelwright.agent.base import Task, Written
from kernelwright.backend.base import DeviceInfo
from kernelwright.problem.model import Argument, Language
from kernelwright.refactor.tactics.base import DeviceFacts, Rewrite, Subject
from kernelwright.refactor.tactics.draft import HeaderDraft, ScratchDraft, StepDraft, strip_header
from kernelwright.template.header import Header, parse_header

_CPU_VECTOR_BYTES = 32
"""Of AVX2, which is what x86 machines have had for ten years; wider only splits loads. A guess elsewhere."""


def subject_of(task: Task, written: Written) -> Subject:
    """What tactics work on.

    Raises:
        SpecError: the text's header is wrong, or declares no launch of the entry.
    """
    header = parse_header(written.text, Path("node"), entry=written.entry)
    subject = Subject.make(
        task.problem,
        strip_header(written.text),
        header_draft(header),
        device_facts(task.device, task.copy_bytes_per_s),
        entry=written.entry,
        language=cast("Language", written.language),
    )
    return replace(subject, history=written.tactics, properties=frozenset(written.properties))


def written_of(subject: Subject, rewrite: Rewrite) -> Written:
    """A rewrite as a node's text."""
    return Written(
        rewrite.file_text,
        subject.language,
        subject.entry,
        (*subject.history, rewrite.tactic),
        tuple(sorted(rewrite.properties)),
    )


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


def device_facts(device: DeviceInfo, copy_bytes_per_s: float | None) -> DeviceFacts:
    """What tactics may know of a device; a simulated one counts as a GPU."""
    limits: Mapping[str, int] = device.limits
    is_cpu = device.kind == "cpu"
    return DeviceFacts(
        kind="cpu" if is_cpu else "gpu",
        warp_size=limits.get("warp_size"),
        vector_bytes=_CPU_VECTOR_BYTES if is_cpu else 16,
        max_threads_per_block=limits.get("max_threads_per_block", 256),
        shared_bytes_per_block=limits.get("shared_memory_per_block"),
        multiprocessors=limits.get("multiprocessors"),
        copy_bytes_per_s=copy_bytes_per_s,
        has_half_arithmetic=device.facts.get("half_arithmetic") == "yes",
        has_subgroup_shuffles=device.facts.get("subgroup_shuffles") == "yes",
    )
