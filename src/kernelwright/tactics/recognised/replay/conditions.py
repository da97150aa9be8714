"""Conditions on what memory holds: a replay notes which answers they have had."""

from __future__ import annotations

from kernelwright.source import nodes


def names_of_memory(body: nodes.Block) -> tuple[frozenset[str], frozenset[str]]:
    """Shared arrays, and names of what was loaded from other arrays where it was declared."""
    blocks = (each for each in nodes.walk(body) if isinstance(each, nodes.Declaration))
    declared = [each for one in blocks for each in one.declarators]
    shared = frozenset(each.name for each in declared if each.is_shared)
    loaded = (each.name for each in declared if each.initial and loads(each.initial, shared, frozenset()))
    return shared, frozenset(loaded)


def loads(node: nodes.Expression, shared: frozenset[str], loaded: frozenset[str]) -> bool:
    """Whether it has an element of an array that is not shared, or a name of what was loaded."""
    return any(
        (isinstance(each, nodes.Element) and not (isinstance(each.base, nodes.Name) and each.base.name in shared))
        or (isinstance(each, nodes.Name) and each.name in loaded)
        for each in nodes.walk(node)
    )
