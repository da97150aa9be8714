"""Tokens, macros, conditions and trees: places stay true, and no text makes anything fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_kernels import CASES

from kernelwright.analysis.analysis import analyse, analyse_function
from kernelwright.analysis.patterns.pattern import recognise
from kernelwright.source import nodes
from kernelwright.source.if_conditions import condition_value
from kernelwright.source.language import Language
from kernelwright.source.lexer import integer_value, tokens_of
from kernelwright.source.lowering_expressions import unmistakable
from kernelwright.source.preprocess import preprocess
from kernelwright.source.syntax import parse
from tiers import examples

EXAMPLES = Path(__file__).parents[2] / "src/kernelwright/examples"
LANGUAGES: tuple[Language, ...] = ("cuda", "hip", "opencl")
SOURCES = [case.source for case in CASES] + [path.read_text() for path in EXAMPLES.glob("**/*.c[lu]")]
PIECES = (*"{}()[];,#\"'\\<>*&%/?:=+-.\n", "##", "/*", "*/", "//", "\n#define X X X\n", "\n#define F(a) a F(a)\n",
          "\n#if 1\n", "\n#endif\n", "\n#else\n", "\n#if X(\n", "<<<", "::", "for (", "if (", "else", "return", "while",
          "do {", "goto a;", "break;", "switch (n) {", "template <", "__local ", "__shared__ ", "__attribute__((",
          "\0", "é", "😀", "1e999", "0x", "asm(", "[=]{", "X", "F(", "&&", "a ? b", "float4", "(float4)(", "\\\n",
          "\r\n", "__global__ void g(float *x) {", "int i = ", "x[i] += ", "threadIdx.x")  # fmt: skip


def analyse_all(source: str, language: Language) -> None:
    """Everything, for each kernel; facts must lie inside the source."""
    size = len(source.encode("utf-8", "surrogatepass"))
    tree = parse(source, language)
    for function in tree.kernels:
        analysis = analyse_function(tree, function, language)
        recognise(analysis)
        for fact in (*analysis.facts.accesses, *analysis.facts.loops, *analysis.facts.opaque):
            assert fact.span.end <= size


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A source with something cut out, put in, doubled, or taken from another."""
    source = draw(st.sampled_from(SOURCES))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(source)))
        end = min(len(source), start + draw(st.integers(0, 60)))
        change = draw(st.integers(0, 4))
        if change == 0:
            source = source[:start] + source[end:]
        elif change < 3:
            source = source[:start] + draw(st.sampled_from(PIECES)) + source[start:]
        elif change == 3:
            source = source[:end] + source[start:end] * draw(st.integers(1, 3)) + source[end:]
        else:
            other = draw(st.sampled_from(SOURCES))
            cut = draw(st.integers(0, len(other)))
            source = source[:start] + other[cut : cut + 80] + source[end:]
    return source


@examples(200)
@given(mutated(), st.sampled_from(LANGUAGES))
def test_no_broken_source_makes_the_analysis_fail(source: str, language: Language) -> None:
    analyse_all(source, language)


@examples(100)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join), st.sampled_from(LANGUAGES))
def test_no_heap_of_tokens_makes_the_analysis_fail(source: str, language: Language) -> None:
    analyse_all(source, language)


def _kernel(body: str, before: str = "") -> str:
    return before + "__global__ void k(float *x, int n) { int i = threadIdx.x; " + body + " }"


MONSTERS = {
    "parentheses": _kernel("x[i] = " + "(" * 3000 + "1" + ")" * 3000 + ";"),
    "sum": _kernel("x[i] = " + "+".join(["x[i]"] * 3000) + ";"),
    "signs": _kernel("x[i] = " + "-" * 3000 + "1;"),
    "braces": _kernel("{" * 2000 + "}" * 2000),
    "ifs": _kernel("if (i) " * 1000 + "x[i] = 1;"),
    "loops": _kernel("for (int j = 0; j < n; j++)" * 200 + "x[j] = i;"),
    "divisions": _kernel("int a = i;" + "a = (a + 3) / 7 + a % 5;" * 60 + "x[a] = 1;"),
    "products": _kernel("int a = i + n;" + "a = a * a + n * i;" * 30 + "x[a] = 1;"),
    "macro bomb": _kernel("A0;", "".join(f"#define A{i} A{i + 1} A{i + 1}\n" for i in range(40)) + "#define A40 x\n"),
    "argument bomb": _kernel(
        "x[i] = A0(i);", "".join(f"#define A{i}(x) A{i + 1}(x + x)\n" for i in range(40)) + "#define A40(x) x\n"
    ),
    "call bomb": _kernel(
        "x[i] = f0(n);",
        "".join(f"__device__ int f{i}(int n) {{ return f{i + 1}(n) + f{i + 1}(n); }}\n" for i in range(30))
        + "__device__ int f30(int n) { return n; }\n",
    ),
    "recursion": _kernel("x[i] = f(n);", "__device__ int f(int n) { return n < 2 ? 1 : f(n - 1) + f(n - 2); }\n"),
    "condition": "#if " + "(" * 3000 + "1\n" + _kernel("x[i] = 1;"),
    "quotes": _kernel("'" * 3000),
    "comments": "/*" * 3000 + _kernel("x[i] = 1;"),
    "nothing": "",
}


@pytest.mark.parametrize("name", MONSTERS)
def test_monsters_are_survived(name: str) -> None:
    analyse_all(MONSTERS[name], "cuda")


@pytest.mark.parametrize(
    "name", ["parentheses", "sum", "braces", "ifs", "loops", "macro bomb", "call bomb", "recursion"]
)
def test_what_is_too_much_is_said_to_be_opaque(name: str) -> None:
    analysis = analyse(MONSTERS[name], "cuda")
    assert analysis.facts.opaque
    assert recognise(analysis).kind == "generic"


# Tokens


@given(st.text(alphabet="ab1.\"'/*\\\n #x(){}<>=+-&|é", max_size=60))
def test_tokens_lie_side_by_side_and_cover_the_text(text: str) -> None:
    data = text.encode().decode("latin-1")
    end = 0
    for token in tokens_of(data):
        assert token.span.start == end
        end = token.span.end
        assert token.is_blank or data[token.span.start : end] == token.text
    assert end == len(data)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("010", 8), ("0x1Fu", 31), ("1'000", 1000), ("7ull", 7), ("1.0", None), ("1e3", None), ("0b101", 5),
     ("08", None), ("x", None), ("1f", None)],
)  # fmt: skip
def test_integer_literals_have_their_value(text: str, value: int | None) -> None:
    assert integer_value(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1 + 2 * 3 == 7", 1), ("(1 || 0) && !0", 1), ("-7 / 2", -3), ("-7 % 2", -1), ("1 ? 2 : 3", 2), ("unknown", 0),
     ("1 << 4 >= 16", 1), ("2 > 1 > 1", 0), ("1 +", None), ("(1", None), ("1 / 0", None), ("", None), ("1 2", None)],
)  # fmt: skip
def test_conditions_are_those_of_the_preprocessor(text: str, value: int | None) -> None:
    assert condition_value(list(tokens_of(text))) == value


# Macros


def expand(source: str) -> list[str]:
    """The tokens that are left."""
    return [token.text for token in tokens_of(preprocess(source, "cuda").text) if not token.is_blank]


@pytest.mark.parametrize(
    ("source", "expanded"),
    [
        ("#define A 1\nA B", "1 B"),
        ("#define A B\n#define B A\nA", "A"),
        ("#define F(x, y) ((x) + y)\nF(1, (2, 3))", "( ( 1 ) + (2, 3) )"),
        ("#define F(x) x\nF", "F"),
        ("#define F(x) x\nF (\n 1 \n)", "1"),
        ("#define F(x)x\nF(F(2))", "2"),
        ("#define CAT(a, b) a##b\nCAT(x, 1)", "x1"),
        ("#define S(x) #x\nS(a + 1)", '"a + 1"'),
        ("#define V(...) f(__VA_ARGS__)\nV(1, 2)", "f ( 1, 2 )"),
        ("#define A 1 // one\nA", "1"),
        ("#define A 1\\\n + 2\nA", "1 + 2"),
        ("#define A 1\n#undef A\nA", "A"),
        ("#ifdef A\n1\n#else\n2\n#endif", "2"),
        ("#define A 0\n#if A\n1\n#elif A == 0\n2\n#else\n3\n#endif", "2"),
        ("#if 0\n#if 1\n1\n#endif\n#else\n2\n#endif", "2"),
        ("#ifndef N\n#define N 4\n#endif\nint a[N];\n#if N == 4\nyes\n#endif", "int a[N]; yes"),
        ("#ifndef T\n#define T float\n#endif\nT x;", "float x;"),
        (
            "#ifndef N\n#define N 4\n#endif\n#define CAT_(a, b) a##b\n#define CAT(a, b) CAT_(a, b)\nCAT(float, N)",
            "float4",
        ),
        ("#define A 1\r\nA\r\n", "1"),
        ("\"A\" /* A */ 'A'", "\"A\" 'A'"),
        ("#define A(x) x\nA(1", "A(1"),
    ],
)
def test_macros_expand_as_in_c(source: str, expanded: str) -> None:
    assert expand(source) == [token.text for token in tokens_of(expanded) if not token.is_blank]


def test_words_of_opencl_become_those_of_cuda_or_marks() -> None:
    expanded = preprocess("__kernel void f(__global float *restrict a) { __local int s[4]; }", "opencl")
    assert " ".join(expanded.text.split()) == "__global__ void f( float * a) { __shared__ int s[4]; }"
    assert [mark.text for mark in expanded.marks] == ["__kernel", "__global", "restrict", "__local"]


def test_a_condition_on_what_is_not_in_the_file_is_unclear() -> None:
    for condition in ("#ifdef __FAST__", "#if FAST", "#if __CUDA_ARCH__ >= 800"):
        (unclear,) = preprocess(f"{condition}\nint x;\n#endif\n", "cuda").unclear
        assert unclear.span.start == 0
    asks = "#ifdef FAST\nint x;\n#endif\n"
    assert not preprocess(asks, "cuda").unclear
    assert preprocess(f"#include <options.h>\n{asks}", "cuda").unclear
    assert not preprocess("#define FAST 0\n#if FAST\nint x;\n#endif", "cuda").unclear
    assert not preprocess("#ifndef FAST\n#define FAST 0\n#endif", "cuda").unclear


def test_what_only_another_compiler_defines_is_not_defined() -> None:
    text = "#ifdef USE_ROCM\nint hip;\n#else\nint cuda;\n#endif\n"
    assert not preprocess(text, "cuda").unclear
    assert "int cuda" in preprocess(text, "cuda").text
    assert preprocess(text, "hip").unclear
    assert "int hip" in preprocess(text, "cuda", defines={"USE_ROCM": "1"}).text


@pytest.mark.parametrize(
    ("index", "plain"),
    [
        ("(i) + n * m", "i + n * m"),
        ("((i) + n * ((j) + m * (i)))", "i + n * (j + m * i)"),
        ("AT(i, j)", "i + n * j"),
        ("(i) - n * j", "i - n * j"),
        ("m * (i) - n * j", "m * i - n * j"),
        ("same((i) + n * j)", "i + n * j"),
        ("(whole) + n * j", "n * j"),
        ("sizeof(i) + n * j", "n * j + sizeof(i)"),
    ],
)
def test_a_variable_in_parentheses_before_a_sign_is_no_type(index: str, plain: str) -> None:
    source = """typedef int whole;
#define AT(x, y) ((x) + n * (y))
__device__ int same(int v) { return v; }
__global__ void k(float *x, int n, int m) { int i = threadIdx.x, j = threadIdx.y; x[AT_THE_INDEX] = 1; }
"""
    elements = []
    for text in (index, plain):
        written = source.replace("AT_THE_INDEX", text)
        (access,) = analyse(written, "cuda", entry="k").facts.accesses
        assert access.span.text(written) == f"x[{text}] = 1"
        elements.append(access.element)
    assert elements[0] is not None
    assert "unknown" not in str(elements[0])
    assert elements[0] == elements[1]


def test_the_first_of_several_types_in_a_definition_is_no_variable() -> None:
    source = "typedef float real, *to_real; void f(float *y, float n) { y[0] = (real) + n; }"
    assert unmistakable(source) == source
    variable = source.replace("typedef float real, *to_real;", "float real = 1;")
    assert "(1111) + n" in unmistakable(variable)


def test_places_are_exact_unless_a_macro_gives_only_a_part() -> None:
    source = "#define N 16\n#define AT(i) x[(i) + N]\n__global__ void k(float *x, int n) { AT(n) = 1; x[N] = 2; }"
    first, second = analyse(source, "cuda").facts.accesses
    assert first.span.text(source) == "AT(n) = 1"
    assert second.span.text(source) == "x[N] = 2"
    (statement, _) = parse(source, "cuda").kernels[0].body.statements
    assert isinstance(statement, nodes.Evaluate)
    assert isinstance(statement.expression, nodes.Assign)
    target = statement.expression.target
    assert isinstance(target, nodes.Element)
    assert target.place.is_exact
    assert target.place.span.text(source) == "AT(n)"
    assert not target.index.place.is_exact


def test_bytes_not_characters_are_counted() -> None:
    source = "// é✓😀\n__kernel void f(__global int *a) { a[3] = /* ü */ 1; }"
    (access,) = analyse(source, "opencl").facts.accesses
    assert access.span.text(source) == "a[3] = /* ü */ 1"


# Trees


def test_what_cannot_be_parsed_is_opaque_and_its_neighbours_are_not() -> None:
    source = "__global__ void f(float *a) { a[0] = 1; if (x) { y = ; } a[1] = 2; }"
    analysis = analyse(source, "cuda")
    assert [str(access.element) for access in analysis.facts.accesses if access.kind == "write"] == ["0", "1"]
    assert analysis.facts.opaque


def test_kernels_are_found_however_they_are_declared() -> None:
    source = """
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(64) name
namespace a { template <typename T, int N> static __global__ void first(const T *__restrict__ x) {} }
KERNEL(second)(float *x, int n) {}
__global__ void declared_only(float *x);
extern "C" { __global__ void third(float x[], const int &n) {} }
template <> __global__ void first<float, 3>(const float *x) {}
"""
    kernels = parse(source, "cuda").kernels
    assert [kernel.name for kernel in kernels] == ["first", "second", "third", "first"]
    first, second, third, _ = kernels
    assert [(each.name, each.is_type) for each in first.template_parameters] == [("T", True), ("N", False)]
    (x,) = first.parameters
    assert (x.name, x.c_type, x.is_pointer, x.is_const, x.is_restrict, x.space) == (
        "x",
        "T",
        True,
        True,
        True,
        "global",
    )
    assert [mark.text for mark in second.attributes] == ["__launch_bounds__(64)"]
    assert [(each.is_pointer, each.is_reference) for each in third.parameters] == [(True, False), (False, True)]


def test_address_spaces_of_opencl_parameters_are_kept() -> None:
    source = "__kernel void f(__global int *a, __local float *b, __constant int *c, const __global int *d, int e) {}"
    (kernel,) = parse(source, "opencl").kernels
    assert [each.space for each in kernel.parameters] == ["global", "shared", "constant", "global", "private"]


def test_triton_sources_are_left_alone() -> None:
    assert parse("def f(): pass", "triton").functions == ()
