"""A map in C as one in Triton: each program does a block of the threads' places."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kernelwright.problem.dtypes import dtype_of_c_type
from kernelwright.source import nodes
from kernelwright.space.parameter import Parameter
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.iteration_domain import is_guarded, places_of, require_independent
from kernelwright.tactics.common.launches import extents, is_number, only_shape
from kernelwright.tactics.launch.plain_launch import plain_subject
from kernelwright.tactics.triton.text import PLACES, block_text, name_in_triton
from kernelwright.template.header import Header, launch_step

_BLOCKS = (128, 256, 512, 1024, 2048, 4096)
_WARPS = (1, 2, 4, 8)


def map_in_triton(subject: Subject) -> tuple[str, Header]:
    """The kernel's text in Triton, and a header with its parameters and its launch.

    The kernel is taken as it is, in normal form, or with a thread for each step of its loop over the grid.

    Args:
        subject: a kernel in CUDA or OpenCL with one launch, whose threads do not meet.

    Raises:
        Unfit: it is no such kernel, a place beyond its end may be touched, or something in it has no words in Triton.
    """
    try:
        return _as_it_is(subject)
    except Unfit as first:
        for other in _forms(subject):
            with contextlib.suppress(Unfit):
                return _as_it_is(other)
        raise first from None


def _forms(subject: Subject) -> Iterator[Subject]:
    for each in filter(None, (subject, subject.normal)):
        if each is not subject:
            yield each
        with contextlib.suppress(Unfit):
            yield plain_subject(each)


def _as_it_is(subject: Subject) -> tuple[str, Header]:
    require_independent(subject)
    places = places_of(subject)
    if any(each.loop is not None or not each.atom.startswith("global.") for each in places.axes):
        raise Unfit("a thread walks several places, or asks for its place in its block")
    if len(subject.header.steps) != 1:
        raise Unfit("its problem has several launches")
    covered = dict(zip(PLACES, extents(only_shape(subject)), strict=True))
    along = {each.atom.removeprefix("global."): each for each in places.axes}
    if any(
        axis not in along and not (is_number(each.grid, 1) and is_number(each.block, 1))
        for axis, each in covered.items()
    ):
        raise Unfit("several threads do the same")
    if not is_guarded(subject, along["x"]):
        raise Unfit("nothing keeps threads behind the end from touching memory")
    function = subject.analysis.function
    if function.template_parameters or subject.analysis.facts.helpers:
        raise Unfit("it is a template, or calls functions of its file")
    is_wide = _has_wide_places(function, subject)
    single = frozenset(axis for axis, each in covered.items() if is_number(each.block, 1))
    lines, uses_libdevice = block_text(function, subject.language, is_wide=is_wide, single=single)
    parameters = (
        Parameter("BLOCK", _BLOCKS, 256, "places of a program"),
        Parameter("num_warps", _WARPS, 4),
    )
    last = max(along, default="x")
    others = tuple(along[axis].total if axis in along else "1" for axis in PLACES if "x" < axis <= last)
    step = launch_step(function.name, (f"ceil_div({along['x'].total}, BLOCK)", *others), ())
    text = _source(function, [*_places(last, is_wide=is_wide), *lines], uses_libdevice=uses_libdevice)
    return text, Header(parameters=parameters, defines={}, steps=(step,), mark="#")


def _has_wide_places(function: nodes.Function, subject: Subject) -> bool:
    """Whether the thread's number is kept in 64 bits somewhere."""
    declared = [each for each in nodes.walk(function.body) if isinstance(each, nodes.Declarator)]
    place = {each.name for each in subject.analysis.facts.thread_indices}
    kinds = [dtype_of_c_type(each.c_type, subject.language) for each in declared if each.name in place]
    return any(each is not None and each.item_bytes == 8 for each in kinds)


def _places(last: str, *, is_wide: bool) -> Iterator[str]:
    """Lines that name a program's places, up to the last axis."""
    for index, (axis, name) in enumerate(PLACES.items()):
        number = f"tl.program_id({index})" + (".to(tl.int64)" if is_wide else "")
        if axis <= last:
            yield f"{name} = {number}" + (" * BLOCK + tl.arange(0, BLOCK)" if axis == "x" else "")


def _source(function: nodes.Function, body: list[str], *, uses_libdevice: bool) -> str:
    names = [name_in_triton(each.name) for each in function.parameters]
    lines = [
        "import triton",
        "import triton.language as tl",
        *(["from triton.language.extra import libdevice"] if uses_libdevice else []),
        "",
        "",
        "@triton.jit",
        f"def {function.name}({', '.join(names)}, BLOCK: tl.constexpr):",
        *(f"    {line}" for line in body),
        "",
    ]
    return "\n".join(lines)
