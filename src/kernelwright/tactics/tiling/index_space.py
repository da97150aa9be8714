"""Finding a kernel's index space: that its threads do not meet, which axes it walks, how it takes them apart."""

from __future__ import annotations

from dataclasses import replace

from kernelwright.analysis.polynomial import ZERO, Polynomial, named
from kernelwright.problem.source_scan import used_words
from kernelwright.source import nodes
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.dialect import AXES, dialect
from kernelwright.tactics.common.editing import refuse_opaque
from kernelwright.tactics.common.iteration_domain import deep_names, has_own
from kernelwright.tactics.common.launches import Extent, extents, only_shape, steps_of
from kernelwright.tactics.common.launches import number as plain_number
from kernelwright.tactics.common.thread_index_words import KINDS_OF_PLACE, is_word, place_words, plain_word
from kernelwright.tactics.tiling.frame import Frame


def frame_of(subject: Subject) -> Frame:
    """The index space of a kernel whose threads do not meet.

    Raises:
        Unfit: they may, or how it uses the thread's place is not followed.
    """
    _refuse_meetings(subject)
    own = subject.analysis.function.place.span.text(subject.source)
    if any(word.startswith("kw_") for word in used_words(own, subject.language)):
        raise Unfit("it was already rewritten for other threads")
    found = dict(zip(AXES, extents(only_shape(subject)), strict=True))
    for each in subject.helpers:
        if place_words(each.body):
            raise Unfit(f"{each.name} asks for the thread's place itself")
    used = place_words(subject.analysis.function.body)
    axes = tuple(axis for axis in AXES if any(each == axis for _, each in used))
    for axis in AXES:
        if axis not in axes and plain_number(found[axis].total) != 1 and plain_number(found[axis].grid) != 1:
            raise Unfit(f"its threads along {axis} all do the same")
    asked = [word for word, _ in used if KINDS_OF_PLACE[plain_word(word)] == "groups"]
    if asked or any(loop.sweep != "sequential" for loop in subject.analysis.facts.loops):
        raise Unfit("its threads walk the data in steps of the launch")
    blocks = {
        axis: _block_text(subject, found[axis]) for axis in axes if not _is_one_number(subject, axis, found[axis])
    }
    frame = Frame(subject, dialect(subject.language), axes, found, blocks, {})
    return replace(frame, splits={axis: parts for axis in axes if (parts := _parts(subject, axis, found[axis]))})


def _refuse_meetings(subject: Subject) -> None:
    refuse_opaque(subject)
    facts = subject.analysis.facts
    if facts.barriers or facts.exchanges or any(array.space == "shared" for array in facts.arrays.values()):
        raise Unfit("its threads work together")
    if any(access.is_atomic for access in facts.accesses):
        raise Unfit("it changes memory atomically")
    if any(access.kind == "unknown" for access in facts.accesses):
        raise Unfit("an array is given to something that is not followed")
    written = {access.array for access in facts.accesses if access.kind != "read" and access.space == "global"}
    read = {
        access.array for access in facts.accesses if access.kind == "read" and access.space in ("global", "constant")
    }
    for array in sorted(written & read):
        elements = {access.element for access in facts.accesses if access.array == array}
        if (len(elements) != 1 or None in elements) and not has_own(subject, array):
            raise Unfit(f"{array} is read and written: a thread may read what another one stores")
    names = [parameter.name for parameter in facts.parameters]
    for step in steps_of(subject):
        passed = [each for name, each in zip(names, step.arguments or (), strict=False) if name in facts.arrays]
        if len(set(passed)) != len(passed):
            raise Unfit("a launch passes one array twice")


def _block_text(subject: Subject, covered: Extent) -> str:
    value = plain_number(covered.block)
    if value is not None:
        return str(value)
    if subject.header.parameter(covered.block) is not None:
        return covered.block
    raise Unfit("it uses its place in the block, and the size of a block is not known")


def _is_one_number(subject: Subject, axis: str, covered: Extent) -> bool:
    """Whether a kernel knows only the thread's place among all threads along an axis, not in its block."""
    if plain_number(covered.block) == 1:
        return True
    lone = {f"thread.{axis}", f"block.{axis}", f"block_size.{axis}", "thread.linear", "warp.lane"}
    indices = subject.analysis.facts.thread_indices
    spans = [each.span for each in indices if not lone & deep_names(subject, each.value)]
    for node in nodes.walk(subject.analysis.function.body):
        if not isinstance(node, nodes.Member | nodes.Name | nodes.Call):
            continue
        own = [word for word, each in place_words(node) if each == axis] if is_word(node) else []
        raw = [word for word in own if KINDS_OF_PLACE[plain_word(word)] != "global"]
        if raw and not any(span.contains(node.place.span) for span in spans):
            return False
    return True


def _parts(subject: Subject, axis: str, covered: Extent) -> tuple[tuple[str, Polynomial], ...]:
    """How a kernel takes an axis apart by `/` and `%`; empty where it does not.

    Raises:
        Unfit: in a way that is not one chain of divisions.
    """
    atoms = subject.analysis.facts.atoms
    whole, parts = f"global.{axis}", []
    if plain_number(covered.block) == 1 and not any(
        whole in each.names for atom in atoms.values() for each in atom.parts
    ):
        whole = f"block.{axis}"
    touched = {name for touch in subject.indices.touches.values() for name in touch.form.terms}
    divided = [name for name in touched if atoms[name].kind in ("quotient", "remainder")
               and whole in deep_names(subject, named(name))]  # fmt: skip
    if not divided:
        return ()
    for _ in range(4):
        same = [atom for atom in atoms.values() if atom.kind in ("quotient", "remainder")
                and atom.parts[0] == named(whole)]  # fmt: skip
        quotient = next((atom for atom in same if atom.kind == "quotient"), None)
        remainder = next((atom for atom in same if atom.kind == "remainder"), None)
        if quotient is None or remainder is None:
            break
        if len({atom.parts[1] for atom in same}) != 1:
            raise Unfit("it takes an index apart in a way that is not followed")
        parts.append((remainder.name, remainder.parts[1]))
        whole = quotient.name
    parts.append((whole, ZERO))
    if set(divided) - {name for name, _ in parts} or len(parts) < 2:
        raise Unfit("it takes an index apart in a way that is not followed")
    return tuple(parts)
