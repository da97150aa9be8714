"""Whatever a person's slip makes of the files, loading succeeds or complains; it never breaks in another way."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kernelwright.errors import UserError
from kernelwright.problem.load.problem import load_problem
from kernelwright.scaffold.declared_space import DeclaredSpace
from kernelwright.scaffold.problem_folder import scaffold_problem
from kernelwright.template.load import load_baseline, load_template, problem_files

PROBLEM = """\
kernel = "k.cl"
entry = "k"
reference = "r.py:f"
options = ["-w"]
[sizes]
half_ = "n // 2"
[arguments]
x = { role = "input", dtype = "float16", shape = ["n"], range = [0, 1] }
y = { role = "output", dtype = "int32", shape = ["n", 2] }
n = { role = "scalar", dtype = "uint8", value = "n" }
[tolerance]
y = { atol = 1 }
[work]
bytes = "4 * n"
[[workloads]]
n = 16
weight = 2
"""

SOURCE = """\
// /// kernelwright
// [parameters]
// BLOCK = { values = [4, 8], default = 8 }
// SLOTS = { powers_of_two = [1, 4], default = 2 }
// [constraints]
// some = "BLOCK * SLOTS <= n"
// [launch]
// grid = ["ceil_div(n, BLOCK)"]
// block = ["BLOCK"]
// [scratch]
// t = { role = "local", dtype = "int32", shape = ["SLOTS"] }
// ///
kernel void k(global const half *x, global int *y, uchar n, local int *t) { y[get_global_id(0)] = x[0]; }
"""

REFERENCE = "import os\ndef f(x):\n    return x\n"

PIECES = st.sampled_from(
    [*list("[]{}()\"',=.#\n/* 01-"), "\x00", "é", "n", "BLOCK", "true", "1e9", "0", "[[", "]]", "/// "]
)
EDITS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 700), st.integers(0, 12), PIECES), max_size=3)


def edited(text: str, start: int, length: int, piece: str) -> str:
    start %= len(text)
    return text[:start] + piece + text[start + length :]


@given(EDITS)
def test_any_edit_loads_or_is_refused(edits: list[tuple[int, int, int, str]]) -> None:
    texts = [PROBLEM, SOURCE, REFERENCE]
    for which, start, length, piece in edits:
        texts[which] = edited(texts[which], start, length, piece) or "\n"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in zip(("problem.toml", "k.cl", "r.py"), texts, strict=True):
            (folder / file).write_text(text)
        try:
            problem = load_problem(folder)
            template = load_template(problem)
            problem_files(problem, template, load_baseline(problem, template))
        except UserError as error:
            assert error.message  # noqa: PT017
            assert error.location is not None  # noqa: PT017


KERNEL = SOURCE[SOURCE.index("kernel void") :].replace(
    "y[", "local int *q = t; q[0] = n; if (n < 4) vstore4(x, 0, y); y["
)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 12), PIECES), max_size=3))
def test_any_kernel_gets_a_problem_that_loads_or_is_refused(edits: list[tuple[int, int, str]]) -> None:
    text = KERNEL
    for start, length, piece in edits:
        text = edited(text, start, length, piece) or "\n"
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "source.cl"
        source.write_text(text)
        try:
            scaffold = scaffold_problem(
                source, DeclaredSpace("k.json", (), (), grid=("1",), block=("?",), counts_threads=True)
            )
        except UserError:
            return
        folder = Path(name) / "out"
        folder.mkdir()
        for file, content in scaffold.files.items():
            (folder / file).write_text(content)
        problem = load_problem(folder)
        try:
            load_template(problem)
        except UserError:
            assert text != KERNEL, "only a kernel that is wrong itself may be refused"
