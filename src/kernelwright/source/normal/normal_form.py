"""A kernel's text in the one style that tactics read, whatever style it was written in.

```
text = normal_form(source, "cuda", "rotary")       # the same source where nothing had to change
```
Macros stand for what they are, methods and functions with pointers for their bodies, objects for their fields;
functions in which threads meet are no templates. What cannot be said plainly stays as it is, and analysis tells where.
Lines keep their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from kernelwright.source.edits import Edit, EditConflict, apply
from kernelwright.source.language import Language
from kernelwright.source.normal.branches import decide_branches, replace_references, resolve_aliases, separate_arrays
from kernelwright.source.normal.broadcasts import share_early
from kernelwright.source.normal.cub import reduce_plainly
from kernelwright.source.normal.draft import KernelText
from kernelwright.source.normal.first_thread import gather_shared, share_sums, store_behind, store_by_first
from kernelwright.source.normal.inlining import inline_calls
from kernelwright.source.normal.instances import instantiate
from kernelwright.source.normal.macros import asking_for_block_sizes, drop_conditionals, expand_macros
from kernelwright.source.normal.objects import copy_fields, point_to_numbers, split_objects
from kernelwright.source.normal.slices import part_arrays, part_joins
from kernelwright.source.normal.values import name_results
from kernelwright.source.normal.walks import declare_in_loops, head_loops
from kernelwright.source.syntax import read

MAX_STEPS = 150
"""Changes of one kernel; the longest production kernels that were seen need some 40."""
MAX_BYTES = 200_000
MAX_EXPANSION = 4
"""Macros may make a text so many times as long, and by 20,000 characters more; one that explodes stays as it is."""


_STEPS: tuple[Callable[[KernelText], list[Edit]], ...] = (
    drop_conditionals, expand_macros, reduce_plainly, resolve_aliases,
    instantiate, inline_calls, decide_branches, replace_references, point_to_numbers, copy_fields,
    split_objects, gather_shared, share_sums, store_by_first, store_behind, share_early, head_loops, declare_in_loops,
    part_arrays, part_joins, name_results, separate_arrays,
)  # fmt: skip


def normal_form(
    source: str,
    language: Language,
    entry: str,
    defines: Mapping[str, str] | None = None,
    block: Sequence[int | None] = (),
) -> str:
    """The source with one kernel in plain style; never raises for a text.

    Args:
        source: the text of a CUDA, HIP or OpenCL C file.
        language: its dialect; Triton sources come back as they are.
        entry: the kernel's name.
        defines: macros from outside, by name, as with `-D`.
        block: threads of a block along x, y and z, where every launch of the kernel has these.
    """
    if language == "triton":
        return source
    original, given = source, tuple((defines or {}).items())
    for _ in range(MAX_STEPS):
        if len(source) > MAX_BYTES:
            return original
        changed = _stepped(source, language, entry, given, tuple(block), MAX_EXPANSION * len(original) + 20_000)
        if changed is None:
            return original
        if changed == source:
            break
        source = changed
    return source


@lru_cache(maxsize=128)
def _stepped(
    source: str,
    language: Language,
    entry: str,
    defines: tuple[tuple[str, str], ...],
    block: tuple[int | None, ...],
    longest: int,
) -> str | None:
    """The source after one step, the same where none is left; None where it is too long with its macros expanded."""
    tree = read(source, language, defines, (entry,))
    if len(tree.expanded.text) > longest:
        return None
    kernel = next((each for each in tree.kernels if each.name == entry), None)
    if kernel is None or kernel.template_parameters:
        return source
    try:
        return apply(source, _first_edits(KernelText(source, language, tree, kernel), block))
    except EditConflict:
        return source


def _first_edits(draft: KernelText, block: tuple[int | None, ...]) -> list[Edit]:
    for step in (*_STEPS, asking_for_block_sizes(block)):
        edits = step(draft)
        if edits:
            return edits
    return []
