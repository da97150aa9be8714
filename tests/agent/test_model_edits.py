"""Edits: a source changed by the lines that go and the lines that come; torn and ambiguous ones first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.agent.model.anchors import Malformed, Region
from kernelwright.agent.model.edits import MOST_EDITS, edited, edits_of_patch, has_edits, is_patch

SOURCE = "a;\nb;\n  c;\nb;\nd;\n"


def edit(old: str, new: str) -> str:
    return f"<<<<<<< OLD\n{old}\n=======\n{new}\n>>>>>>> NEW\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (edit("x;", "y;"), "edit 1, whose OLD lines begin with 'x;': they are not in the source"),
        (edit("b;", "y;"), "more than once"),
        (edit("\tc;", "y;"), "exactly as they stand"),
        (edit("a;\n b;\nc;", "y;"), "exactly as they stand"),
        (edit("    c;", "y;\n  z;"), "exactly as they stand"),
        (edit("  b;", "  y;"), "more than once"),
        (edit("  a0;", "y;"), "near is 'a;'"),
        (edit("a", "y;"), "not in the source"),
        (edit("", "y;"), "no OLD lines"),
        ("<<<<<<< OLD\na;\n=======\ny;\n", "does not end"),
        ("<<<<<<< OLD\na;\n<<<<<<< OLD\n", "begins before the last one ends"),
        (edit("a;\nb;\n  c;", "y;") + edit("  c;\nb;", "z;"), "two edits change the same line: 'c;'"),
        (edit("a;", "y;") * (MOST_EDITS + 1), "more than 100 edits"),
    ],
)
def test_an_edit_that_does_not_say_where_is_told_why(text: str, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        edited(SOURCE, text)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (edit("c;", "if (i) {\n  x;\n}"), "a;\nb;\n  if (i) {\n    x;\n  }\nb;\nd;\n"),
        (edit("    c;", "    x;\n\n      y;"), "a;\nb;\n  x;\n\n    y;\nb;\nd;\n"),
        (edit("  b;\n    c;", "  b;\n    x;"), "a;\nb;\n  x;\nb;\nd;\n"),
    ],
)
def test_lines_that_are_indented_otherwise_all_alike_are_found_and_replaced_as_they_stand(
    text: str, result: str
) -> None:
    assert edited(SOURCE, text) == result


@pytest.mark.parametrize("head", ["--- a/k.cl\n+++ b/k.cl\n@@ -2,3 +2,3 @@ void k()\n", "@@\n", "@@ the loop\n"])
def test_a_unified_diff_is_read_as_edits(head: str) -> None:
    """Whatever line numbers it says."""
    patch = f"{head} b;\n-  c;\n+  x;\n+  y;\n b;\n\\ No newline at end of file\n"
    assert is_patch(patch)
    assert edited(SOURCE, edits_of_patch(patch)) == "a;\nb;\n  x;\n  y;\nb;\nd;\n"
    assert edited("--i;\n-- j;", edits_of_patch("@@\n --i;\n--- j;\n+x;")) == "--i;\nx;"
    two = patch + "@@ -5 +5 @@\n-d;\n+e;\n"
    assert edited(SOURCE, edits_of_patch(two)) == "a;\nb;\n  x;\n  y;\nb;\ne;\n"


def test_a_source_is_no_unified_diff() -> None:
    assert not is_patch(SOURCE)
    assert not is_patch("-x;\n+y;")
    assert is_patch("-x;\n+y;", "diff")
    assert not is_patch(SOURCE, "diff")
    with pytest.raises(Malformed, match="not in the source"):
        edited(SOURCE, edits_of_patch("@@ -1 +1 @@\n-other;\n+y;"))


def test_edits_are_about_the_source_as_it_was_given() -> None:
    """What one brings is nothing that another one finds."""
    text = edit("  c;  ", "  a;\n  c;") + "between them\n" + edit("a;", "") + edit("b;\nd;", "d;")
    assert edited(SOURCE, text) == "\nb;\n  a;\n  c;\nd;\n"


BEGIN_LINE, ADVICE, END_LINE = "// <<<IMPROVE BEGIN>>>", "// | tile the loop", "// <<<IMPROVE END>>>"


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (edit(f"{BEGIN_LINE}\n{ADVICE}\nb;\n  c;", "x;"), "a;\nx;\nb;\nd;\n"),
        (edit(f"a;\n{BEGIN_LINE}\nb;\n  c;", f"a;\n{BEGIN_LINE}\nx;\n  c;"), "a;\nx;\n  c;\nb;\nd;\n"),
        (edit(BEGIN_LINE, f"{BEGIN_LINE}\nx;"), "a;\nx;\nb;\n  c;\nb;\nd;\n"),
        (edit(ADVICE, "x;"), "a;\nx;\nb;\n  c;\nb;\nd;\n"),
        (edit(END_LINE, f"x;\n{END_LINE}"), "a;\nb;\n  c;\nx;\nb;\nd;\n"),
        (edit("a;\nb;\n  c;", "a;\nx;\n  c;"), "a;\nx;\n  c;\nb;\nd;\n"),
    ],
)
def test_anchors_and_advice_in_an_edit_say_no_more_than_where_it_belongs(text: str, result: str) -> None:
    assert edited(SOURCE, text, Region(2, 3)) == result


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (edit("a;\nb;\n  c;", "x;\nb;\n  c;"), "a;"),
        (edit("  c;\nb;\nd;", "  c;\nb;\nx;"), "d;"),
        (edit(f"{END_LINE}\nb;\nd;", f"{END_LINE}\nd;"), "b;"),
        (edit("d;", "x;"), "d;"),
    ],
)
def test_an_edit_outside_of_the_anchors_is_told_its_line(text: str, line: str) -> None:
    with pytest.raises(Malformed, match=f"edit 1 changes the line '{line}', outside of the anchors"):
        edited(SOURCE, text, Region(2, 3))


def test_a_line_of_the_source_that_looks_like_advice_is_the_sources() -> None:
    assert edited("// | a\nb;\n", edit("// | a", "// | c")) == "// | c\nb;\n"


def test_the_words_that_other_tools_use_are_understood() -> None:
    assert edited("a\n", "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n") == "b\n"
    assert has_edits("x\n  <<<<<<< OLD  \n")
    assert not has_edits("x <<<<<<< OLD\n")


@given(st.lists(st.text("ab ;\n", max_size=6), max_size=8), st.data())
def test_an_edit_changes_its_lines_and_no_other(pieces: list[str], data: st.DataObject) -> None:
    lines = "\n".join(pieces).split("\n")
    first = data.draw(st.integers(0, len(lines) - 1))
    last = data.draw(st.integers(first, len(lines) - 1))
    old, new = lines[first : last + 1], data.draw(st.lists(st.text("xy", max_size=3), min_size=1, max_size=3))
    try:
        result = edited("\n".join(lines), edit("\n".join(old), "\n".join(new)))
    except Malformed:
        return
    assert result.split("\n") == [*lines[:first], *new, *lines[last + 1 :]]


@given(st.text("<>= OLDNEW\nab", max_size=200))
def test_no_text_raises_anything_but_a_complaint(text: str) -> None:
    try:
        edited(SOURCE, text)
    except Malformed:
        return
