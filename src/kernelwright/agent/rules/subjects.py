"""From a node's text to a tactic's subject, and from a rewrite back to text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from kernelwright.agent.base import Task, Written
from kernelwright.backend.base import DeviceInfo
from kernelwright.problem.source_scan import used_words
from kernelwright.source.language import Language
from kernelwright.source.lexer import words_of
from kernelwright.tactics.base import WRITTEN, DeviceFacts, Rewrite, Subject
from kernelwright.template.header import Header, parse_header, strip_header

_WORD = re.compile(r"[A-Za-z_]\w*")

_CPU_VECTOR_BYTES = 32
"""The width of AVX2, which x86 machines have had for ten years; wider only splits loads. A guess elsewhere."""


COPIED_SHARE = 0.85
"""What a copy reaches of what a memory's width and clock say; 0.87 was measured on an H200 (4.92 TB/s told)."""


def entries_of(written: Written) -> tuple[str, ...]:
    """The kernels that a template launches, the one that is worked on first.

    Raises:
        SpecError: the text's header is wrong.
    """
    header = parse_header(written.text, Path("node"), entry=written.entry)
    return tuple(dict.fromkeys((written.entry, *header.entries)))


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
        header,
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
    header = without_unused(rewrite.header, rewrite.source, subject.language)
    replaced = {key_of(each, subject.entry, before.entry) for each in subject.properties - {WRITTEN}}
    new = {key_of(each, subject.entry, before.entry) for each in rewrite.properties}
    new |= {key_of(WRITTEN, each, before.entry) for each in rewrite.header.entries if each not in subject.launched}
    return replace(
        before,
        text=header.render() + rewrite.source,
        tactics=(*before.tactics, key_of(rewrite.tactic, subject.entry, before.entry)),
        properties=tuple(sorted((set(before.properties) - replaced) | new)),
    )


def without_unused(header: Header, source: str, language: Language) -> Header:
    """The header without parameters that neither the source nor anything else in it uses, and their constraints."""
    used = {*used_words(source, language), *(word for text in _texts(header) for word in words_of(text))}
    gone = {each.name for each in header.parameters} - used
    if not gone:
        return header
    return replace(
        header,
        parameters=tuple(each for each in header.parameters if each.name not in gone),
        constraints=tuple(each for each in header.constraints if not gone & each.expression.names),
    )


def _texts(header: Header) -> Iterator[str]:
    """Everything in a header that may use a parameter, constraints left out."""
    for step in header.steps:
        yield step.entry
        extents = (*step.grid, *step.block, *step.cluster, *filter(None, (step.shared_bytes,)))
        yield from (each.text for each in extents)
    yield from (each.text for each in header.defines.values())
    yield from (each.text for scratch in header.scratch for each in scratch.shape)
    yield from header.options


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
        copy_bytes_per_s=task.copy_bytes_per_s or _told_copy_rate(device),
        operations_per_s=task.operations_per_s,
        compiler_macros=tuple(_compiler_macros(device).items()),
    )


def _told_copy_rate(device: DeviceInfo) -> float | None:
    """Bytes a second by the memory's width and clock, before anything was measured; None: the driver tells none."""
    told = (device.facts.get("memory_clock_khz", ""), device.facts.get("memory_bus_bits", ""))
    if not all(each.isdecimal() and int(each) > 0 for each in told):
        return None
    clock_khz, bus_bits = map(int, told)
    return COPIED_SHARE * 2 * 1e3 * clock_khz * bus_bits / 8  # two transfers a cycle


def _compiler_macros(device: DeviceInfo) -> dict[str, str]:
    """What CUDA's compilers define by their version, where those that are here agree, and by the device."""
    versions = {device.facts[name] for name in ("nvrtc", "nvcc") if device.facts.get(name)}
    found = {}
    if len(versions) == 1 and (parts := re.fullmatch(r"(\d+)\.(\d+).*", versions.pop())):
        found = {"__CUDACC_VER_MAJOR__": parts[1], "__CUDACC_VER_MINOR__": parts[2]}
    capability = device.limits.get("compute_capability")
    return found if capability is None else {**found, "__CUDA_ARCH__": str(10 * capability)}
