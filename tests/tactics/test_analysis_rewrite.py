"""Edits of a source: what no edit names survives byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.analysis.analysis import analyse
from kernelwright.source.edits import Edit, EditConflict, apply, conflicts, insertion, moved
from kernelwright.source.span import Span

TEXTS = st.text(alphabet="ab{};\n\t é✓😀", max_size=40)


@st.composite
def edited(draw: st.DrawFn) -> tuple[str, list[Edit]]:
    """A text with edits that do not touch each other."""
    text = draw(TEXTS)
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=10)))
    offsets = [len(text[:place].encode()) for place in places]
    pairs = zip(offsets[::2], offsets[1::2], strict=False)
    return text, [Edit(Span(start, end), draw(TEXTS)) for start, end in pairs]


@given(TEXTS)
def test_no_edit_changes_nothing(text: str) -> None:
    assert apply(text, []) == text


@given(edited(), st.randoms(use_true_random=False))
def test_the_order_of_edits_does_not_matter(case: tuple[str, list[Edit]], random: object) -> None:
    text, edits = case
    shuffled = list(edits)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert apply(text, shuffled) == apply(text, edits)


@given(edited())
def test_edits_made_one_by_one_from_the_back_give_the_same(case: tuple[str, list[Edit]]) -> None:
    text, edits = case
    one_by_one = text
    for edit in sorted(edits, key=lambda each: each.span, reverse=True):
        one_by_one = apply(one_by_one, [edit])
    assert one_by_one == apply(text, edits)


@given(edited())
def test_untouched_bytes_are_identical_and_in_order(case: tuple[str, list[Edit]]) -> None:
    text, edits = case
    data, result = text.encode(), apply(text, edits).encode()
    at_source = at_result = 0
    for edit in edits:
        kept = data[at_source : edit.span.start]
        assert result[at_result : at_result + len(kept)] == kept
        at_result += len(kept)
        replacement = edit.replacement.encode()
        assert result[at_result : at_result + len(replacement)] == replacement
        at_result += len(replacement)
        at_source = edit.span.end
    assert result[at_result:] == data[at_source:]


@given(edited(), st.integers(0, 40), st.integers(0, 10))
def test_a_span_between_edits_moves_with_its_text(case: tuple[str, list[Edit]], start: int, length: int) -> None:
    text, edits = case
    data = text.encode()
    span = Span(min(start, len(data)), min(start + length, len(data)))
    after = moved(span, edits)
    is_free = not any(edit.span.overlaps(span) for edit in edits)
    assert (after is not None) >= (is_free and span.start < span.end)
    if after is not None and is_free:
        assert apply(text, edits).encode()[after.start : after.end] == data[span.start : span.end]


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ([Edit(Span(0, 3), "x"), Edit(Span(2, 4), "y")], "two edits claim"),
        ([Edit(Span(0, 4), "x"), Edit(Span(1, 2), "y")], "two edits claim"),
        ([insertion(2, "x"), insertion(2, "y")], "two edits claim"),
        ([insertion(2, "x"), Edit(Span(1, 3), "y")], "two edits claim"),
        ([Edit(Span(3, 9), "")], "beyond"),
        ([insertion(5, "x")], "inside a character"),
        ([Edit(Span(0, 5), "x")], "inside a character"),
    ],
)
def test_edits_that_cannot_be_made_are_refused(edits: list[Edit], why: str) -> None:
    with pytest.raises(EditConflict, match=why):
        apply("abcdé", edits)


def test_neighbours_and_repeated_edits_are_no_conflict() -> None:
    edits = [Edit(Span(0, 2), "x"), Edit(Span(2, 4), "y"), insertion(0, "<"), insertion(4, ">"), Edit(Span(0, 2), "x")]
    assert not conflicts(edits)
    assert apply("abcd!", edits) == "<xy>!"


def test_a_span_cannot_run_backwards() -> None:
    with pytest.raises(ValueError, match="a span from 3 to 2"):
        Span(3, 2)


SOURCE = """// kept  as it is
#define  N  64 /* é */
__kernel void f(__global float*a){\r
\tint i=get_global_id( 0 )  ; // ✓
  __local float s[N];
  a[ i ]=s[ i%N ];}
"""


def test_facts_can_be_edited_and_the_rest_stays() -> None:
    facts = analyse(SOURCE, "opencl").facts
    write = next(access for access in facts.accesses if access.array == "a")
    literal = next(each for each in facts.literals if each.role == "macro")
    result = apply(SOURCE, [Edit(literal.span, "128"), Edit(facts.thread_indices[0].span, "i = 7")])
    assert result == SOURCE.replace("64", "128").replace("i=get_global_id( 0 )", "i = 7")
    assert write.span.text(SOURCE) == "a[ i ]=s[ i%N ]"
