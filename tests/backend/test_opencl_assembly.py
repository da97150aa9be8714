"""Where no bitcode can be read, a word for assembly in the text counts, whatever hides it; honest kernels do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.backend.base import BuildUnit
from kernelwright.backend.opencl.assembly import assembly_in

KERNEL = "%s\n__kernel void f(__global float *y, int n) {\n  int i = get_global_id(0);\n  %s\n  y[i] = n;\n}\n"

HOLDS = {
    "plainly": ("", '__asm__ volatile("nop");'),
    "without underscores": ("", 'asm("nop");'),
    "at the top": ('__asm(".byte 1");', ""),
    "behind a macro": ("#define WORD __asm__", 'WORD("nop");'),
    "where a condition leaves it out": ('#if 0\n__asm__("nop");\n#endif', ""),
    "over two lines": ("", '__as\\\nm__("nop");'),
    "over two lines with a blank": ("", '__as\\ \nm__("nop");'),
    "over two lines by a trigraph": ("", '__as??/\nm__("nop");'),
    "behind a comment that goes on in one reading only": ("", '// ??/\n__asm__("nop");'),
    "behind a comment that goes on with a blank in one reading only": ("", '// \\ \n__asm__("nop");'),
    "behind what would be a raw string elsewhere": ("#define R", 'R"("; __asm__("nop"); ")";'),
    "behind a wide quote": ("", "int a = L'\"'; __asm__(\"nop\"); int b = L'\"';"),
    "behind a raw string of C++ for OpenCL": ("", 'char *s = R"(" )"; __asm__("nop"); s = R"(")";'),
    "behind a comment that ends with an empty line": ("", '// \\\\\n\n__asm__("nop");'),
    "between comments": ("", '/* " */ __asm__("nop"); /* " */'),
    "behind an apostrophe in a text": ("", 'printf("\'"); __asm__("nop"); printf("\'");'),
    "pasted of two": ("#define J(a, b) a##b", 'J(__as, m__)("nop");'),
    "pasted of two by other macros": ("#define J_(a, b) a##b\n#define J(a, b) J_(a, b)", 'J(as, m)("nop");'),
    "pasted of three": ("#define J(a, b, c) a##b##c", 'J(__, as, m__)("nop");'),
    "pasted by digraphs": ("%:define J(a, b) a%:%:b", 'J(as, m)("nop");'),
    "pasted with a part in a definition": (
        "#define TAIL m\n#define J_(a, b) a##b\n#define J(a, b) J_(a, b)", 'J(as, TAIL)("nop");',
    ),
    "in a header that a macro names": ('#define H "h.h"\n#include H', ""),
    "by the number of a letter": ("", '\\u0061sm("nop");'),
}  # fmt: skip

HOLDS_NONE = {
    "nothing": ("", ""),
    "comments that tell of it": ("// no asm here\n/* nor __asm__ */", ""),
    "texts that tell of it": ("", 'if (n < 0) printf("asm %d", n);'),
    "words that hold it": ("#define PLASMA 3", "int asmuch = PLASMA, spasm = 2; n += asmuch + spasm;"),
    "macros that paste other words": ("#define V(n) acc##n", "float V(0) = 1, V(1) = 2; n += V(0) + V(1);"),
    "parts as parameters of a macro that pastes": ("#define J(a, s, m) a##s##m", "int xyz = 1; n += J(x, y, z);"),
    "parts as variables beside a macro that pastes": ("#define V(n) acc##n", "int a = 1, sm = 2; n += a + sm;"),
    "headers": ("#include <missing.h>\n#include \"also_missing.h\"", ""),
}  # fmt: skip


def unit(top: str, body: str, **more: object) -> BuildUnit:
    return BuildUnit("opencl", KERNEL % (top, body), "k.cl", (), (), ("f",), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", HOLDS)
def test_assembly_is_found_in_the_text_whatever_hides_it(what: str) -> None:
    assert assembly_in(unit(*HOLDS[what]))


@pytest.mark.parametrize("what", HOLDS_NONE)
def test_kernels_without_any_are_not_suspected(what: str) -> None:
    assert assembly_in(unit(*HOLDS_NONE[what])) == ""


@pytest.mark.parametrize("name", ["h.h", "deep/h.h"])
def test_headers_count_and_so_do_those_that_they_include(name: str, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "first.h").write_text(f'#include "{name}"\n')
    (tmp_path / name).write_text('int g(int n) { __asm__("" : "+r"(n)); return n; }\n')
    assert assembly_in(unit('#include "first.h"', "n = g(n);", include_paths=(tmp_path,)))


def test_macros_from_outside_count() -> None:
    source = KERNEL % ("#define J_(a, b) a##b\n#define J(a, b) J_(a, b)", 'J(as, TAIL)("nop");')
    given = BuildUnit("opencl", source, "k.cl", (("TAIL", "m"),), (), ("f",))
    assert assembly_in(given)
    assert assembly_in(BuildUnit("opencl", source, "k.cl", (), ("-DTAIL=m",), ("f",)))
    assert assembly_in(BuildUnit("opencl", KERNEL % ("", 'W("nop");'), "k.cl", (), ("-DW=__asm__",), ("f",)))
    assert not assembly_in(BuildUnit("opencl", source, "k.cl", (("TAIL", "x"),), (), ("f",)))
