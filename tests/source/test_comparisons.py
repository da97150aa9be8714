"""Comparisons that the grammar takes for templates are read as what they are, and templates as templates."""

from __future__ import annotations

import pytest

from kernelwright.source import nodes
from kernelwright.source.language import Language
from kernelwright.source.syntax import parse

HEADS: dict[Language, str] = {"opencl": "__kernel", "cuda": "__global__"}


def _parts(language: Language, expression: str, node: type[nodes.Binary | nodes.Call]) -> list[str]:
    source = f"{HEADS[language]} void f(float *x, int a, int b, int h, int w) {{ x[0] = ({expression}) ? x[a] : 0; }}"
    tree = parse(source, language)
    assert not tree.opaque
    found = [each for each in nodes.walk(tree.functions[0].body) if isinstance(each, node)]
    assert all(each.place.is_exact for each in found)
    return [each.place.span.text(source) for each in found]


@pytest.mark.parametrize("language", HEADS)
def test_a_range_of_two_indices(language: Language) -> None:
    parts = _parts(language, "a >= 0 && a < h && b >= 0 && b < w", nodes.Binary)
    assert {"a >= 0", "a < h", "b >= 0", "b < w"} <= set(parts)


@pytest.mark.parametrize("language", HEADS)
def test_members_and_calls_beside_it(language: Language) -> None:
    assert "get(a) < h" in _parts(language, "get(a) < h && b >= (w)", nodes.Binary)
    assert "x[a] < h" in _parts(language, "x[a] < h || b >= w", nodes.Binary)


def test_a_member_of_the_thread() -> None:
    assert {"threadIdx.x < h", "b >= w"} <= set(_parts("cuda", "threadIdx.x < h && b >= w", nodes.Binary))


def test_c_has_no_templates() -> None:
    assert {"a < h", "b > (w)"} <= set(_parts("opencl", "a < h && b > (w)", nodes.Binary))


def test_arguments_of_templates_may_compare() -> None:
    assert _parts("cuda", "pick<int, (4 >= 3)>(a)", nodes.Call) == ["pick<int, (4 >= 3)>(a)"]
    assert _parts("cuda", "pick<(4 > 3)>(a)", nodes.Call) == ["pick<(4 > 3)>(a)"]
