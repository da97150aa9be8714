"""Near-duplicates are seen; what could differ is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.tree.twins import likeness

HEADER = (
    "// /// kernelwright\n"
    "// [parameters]\n"
    "// GROUP = { values = [64, 128], default = 64 }\n"
    "// VEC = { values = [1, 2], default = 1 }\n"
    "// ///\n"
)
BODY = """\
__kernel void saxpy(const int n, const float a, __global const float *x, __global float *y) {
    const int i = get_global_id(0) * VEC;
    float sum = 0.0f;
    for (int k = 0; k < VEC; ++k)
        sum += fmin(a * x[i + k], 4.0f);
    if (i < n) y[i] = sum;
}
"""
PLAIN = HEADER + BODY


def same(one: str, other: str, language: str = "opencl") -> bool:
    return likeness(language, one) == likeness(language, other)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("float sum = 0.0f;", "float sum = 0.0f; // the sum"),
        ("    float sum", "\n\n  /* here */ float   sum"),
        ("sum", "total"),
        ("int k = 0; k < VEC; ++k", "int j = 0; j < VEC; ++j"),
        ("x[i + k]", "x[ i+k ]"),
    ],
)
def test_words_make_no_difference(before: str, after: str) -> None:
    changed = PLAIN.replace(before, after)
    if before.startswith("int k"):
        changed = changed.replace("i + k", "i + j")
    assert changed != PLAIN
    assert same(PLAIN, changed)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("fmin", "fmax"),
        ("a * x", "x[0] * a"),
        ("4.0f", "4.5f"),
        ("i + k", "i - k"),
        ("* VEC;", "* 2;"),
        ("default = 64", "default = 128"),
        ("[64, 128]", "[64, 256]"),
        ("get_global_id(0)", "get_global_id(1)"),
        ("const float a, __global const float *x", "__global const float *x, const float a"),
    ],
)
def test_what_could_differ_does(before: str, after: str) -> None:
    changed = PLAIN.replace(before, after, 1)
    assert changed != PLAIN
    assert not same(PLAIN, changed)


def test_the_order_of_parameters_and_their_reasons_make_none() -> None:
    lines = HEADER.splitlines(keepends=True)
    turned = "".join([*lines[:2], lines[3], lines[2].replace("default = 64", 'default = 64, why = "a warp"'), lines[4]])
    assert same(PLAIN, turned + BODY)


def test_names_that_macros_use_and_members_stay() -> None:
    macro = "#define USE sum\n" + BODY
    assert not same(macro, macro.replace("float sum", "float total"))
    member = BODY.replace("y[i] = sum", "y[i] = v.sum")
    assert not same(member, member.replace("v.sum", "v.total"))


def test_two_names_do_not_become_one() -> None:
    text = "void f() { float a = 1; float b = 2; g(a, b); }"
    assert same(text, text.replace("float a", "float c").replace("g(a", "g(c"))
    assert not same(text, text.replace("g(a, b)", "g(b, a)"))
    assert not same(text, text.replace("g(a, b)", "g(a, a)"))


def test_directives_end_with_their_line() -> None:
    assert not same("#define A 1\n+ 2", "#define A 1 + 2\n")


def test_layout_counts_in_python() -> None:
    text = "def f(x):\n    if x:\n        y = 1\n    return y\n"
    assert same(text, text.replace("return", "# a comment\n    return").replace("# a comment", "# b"), "triton")
    assert not same(text, text.replace("    return", "        return"), "triton")


def test_a_broken_header_is_its_own_text() -> None:
    broken = PLAIN.replace("default = 64", "default = ")
    assert same(broken, broken)
    assert not same(broken, broken + " ")


@given(st.text(max_size=200), st.sampled_from(["opencl", "cuda", "triton"]))
def test_any_text_has_one(text: str, language: str) -> None:
    assert likeness(language, text) == likeness(language, text)
