"""C text of expressions computes what Python computes."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelwright.errors import SpecError, UserError
from kernelwright.export.c_header.expression import CPrinter, Term, text_literal
from kernelwright.problem.expressions.expression import Expression

NAMES = {"a": Term("v[0]", "int"), "b": Term("v[1]", "int"), "c": Term("v[2]", "int"), "t": Term('"half"', "text")}
BINARY = ("+", "-", "*", "//", "%", "<", "<=", "==", "!=", ">", ">=", "and", "or")
CALLS = ("min", "max", "ceil_div", "round_up", "round_down", "gcd", "lcm")
UNARY = ("abs", "bit_length", "is_power_of_two", "next_power_of_two", "floor_log2", "int")


def random_text(generator: random.Random, depth: int) -> str:
    """An expression over a, b and c with small integers."""
    if depth == 0 or generator.random() < 0.15:
        return generator.choice(["a", "b", "c", str(generator.randint(-9, 9)), str(generator.randint(1, 64))])
    kind = generator.randrange(6)
    first, second = random_text(generator, depth - 1), random_text(generator, depth - 1)
    if kind <= 1:
        return f"({first} {generator.choice(BINARY)} {second})"
    if kind == 2:
        return f"{generator.choice(CALLS)}({first}, {second})"
    if kind == 3:
        return f"{generator.choice(UNARY)}({first})"
    if kind == 4:
        return f"({first} if {second} else {random_text(generator, depth - 1)})"
    return generator.choice(
        [
            f"(not {first})",
            f"(-{first})",
            f"({first} in (1, 2, {second}))",
            f"({first} << {generator.randint(0, 4)})",
            f"({first} >> {generator.randint(0, 4)})",
            f"({first} ** {generator.randint(0, 3)})",
            f"floor({first} / 7)",
            f"ceil({first} / (2 + abs({second})))",
            f"int({first} / 3)",
        ]
    )


def run_c(tmp_path: Path, printer: CPrinter, texts: list[str], rows: list[tuple[int, int, int]]) -> list[list[int]]:
    """Compile the C texts, with warnings as errors, and evaluate them for every row."""
    includes = "".join(f"#include <{name}>\n" for name in ("stdio.h", *printer.includes()))
    functions = "".join(
        f"static long long f{i}(const long long *v) {{ (void)v; return {text}; }}\n" for i, text in enumerate(texts)
    )
    calls = "".join(f'        printf("%lld ", f{i}(rows[r]));\n' for i in range(len(texts)))
    table = ",".join(f"{{{a}LL,{b}LL,{c}LL}}" for a, b, c in rows)
    (tmp_path / "check.c").write_text(
        f"{includes}{printer.helpers()}{functions}static const long long rows[][3] = {{{table}}};\n"
        f"int main(void) {{ int r; for (r = 0; r < {len(rows)}; ++r) {{\n{calls}"
        '        printf("\\n"); } return 0; }\n'
    )
    compiler = shutil.which("gcc") or pytest.skip("no gcc on this machine")
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-type-limits", "-O1"]
    subprocess.run([compiler, *flags, "-o", "check", "check.c", "-lm"], cwd=tmp_path, check=True, timeout=300)
    out = subprocess.run([tmp_path / "check"], capture_output=True, text=True, check=True, timeout=300).stdout
    return [[int(word) for word in line.split()] for line in out.splitlines()]


def test_random_expressions_give_the_same_integers_in_c_and_in_python(tmp_path: Path) -> None:
    generator = random.Random(20261121)
    rows = [tuple(generator.randint(-40, 200) for _ in range(3)) for _ in range(25)]
    expressions: list[Expression] = []
    while len(expressions) < 250:
        try:
            expressions.append(Expression.parse(random_text(generator, 3)))
        except SpecError:
            continue  # a constant part without a value, such as 1 // 0
    printer = CPrinter(NAMES)
    got = run_c(tmp_path, printer, [printer.whole(e) for e in expressions], rows)
    compared = 0
    for row, values in zip(rows, got, strict=True):
        names = dict(zip("abc", row, strict=True))
        for expression, value in zip(expressions, values, strict=True):
            try:
                wanted = expression.evaluate(names)
            except SpecError:
                continue  # no value in Python: C promises nothing but not to crash
            if -(2**40) < wanted < 2**40:
                assert value == int(wanted), (expression.text, names)
                compared += 1
    assert compared > 4000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("-7 // 2 + a", -4),
        ("-7 % 3 + a", 2),
        ("7 % -3 + a", -2),
        ("ceil_div(-7, 2) + a", -3),
        ("round_up(13, 8) + a", 16),
        ("int(2.9) + a", 2),
        ("floor(-0.5) + a", -1),
        ("ceil(0.25) + a", 1),
        ("int(7.5 // 2) + a", 3),
        ("int(-7.5 % 2) + a", 0),
        ("int(sqrt(17.0)) + a", 4),
        ("int(log2(1024)) + a", 10),
        ("int(2 ** 0.5 * 10) + a", 14),
        ("a if t == 'half' else 9", 0),
        ("5 if t != 'half' else 6", 6),
        ("t in ('float', 'half')", 1),
        ("1 < 3 < 2 or a == 0", 1),
        ("max(2.5, a) > 2", 1),
        ("True + True + a", 2),
    ],
)  # fmt: skip
def test_corner_cases_match_python(tmp_path: Path, text: str, wanted: int) -> None:
    expression = Expression.parse(text)
    assert int(expression.evaluate({"a": 0, "t": "half"})) == wanted
    printer = CPrinter(NAMES)
    assert run_c(tmp_path, printer, [printer.whole(expression)], [(0, 0, 0)]) == [[wanted]]


def test_operations_without_a_value_give_zero_and_do_not_crash(tmp_path: Path) -> None:
    printer = CPrinter(NAMES)
    texts = [
        printer.whole(Expression.parse(text))
        for text in ("a // b", "a % b", "ceil_div(a, b)", "int(a / b)", "floor_log2(b)")
    ]
    assert run_c(tmp_path, printer, texts, [(5, 0, 0)]) == [[0, 0, 0, 0, 0]]


def test_an_unknown_name_is_refused_with_the_expression() -> None:
    with pytest.raises(UserError, match=r"'n // warp'.*'warp'"):
        CPrinter({"n": Term("n", "int")}).whole(Expression.parse("n // warp"))


def test_a_text_cannot_become_a_number() -> None:
    with pytest.raises(UserError, match="text"):
        CPrinter(NAMES).whole(Expression.parse("t"))


def test_literals_cannot_leave_their_quotes() -> None:
    assert text_literal('a"; evil(); "\\\n?é') == '"a\\042; evil(); \\042\\134\\012\\077\\303\\251"'
