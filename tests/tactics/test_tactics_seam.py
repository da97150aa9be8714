"""The seam of tactics: drafts are headers that load, edits land where they belong, unfit subjects give reasons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tactic_runs import subject_of

from kernelwright.errors import SpecError
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem
from kernelwright.source.syntax import parse
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.tactics.base import DeviceFacts, Effect, NotApplicable, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder, declaration_start, top
from kernelwright.tactics.common.launches import extent
from kernelwright.tactics.registry import tactic
from kernelwright.template.header import Header, launch_step, scratch_argument, strip_header
from kernelwright.template.load import load_baseline, load_template, parse_header

EXAMPLES = Path(__file__).parents[2] / "src/kernelwright/examples"
CPU = DeviceFacts("cpu", warp_size=8, max_threads_per_block=4096, multiprocessors=4)

HEADER = Header(
    parameters=(
        Parameter("BLOCK", (32, 64), 64, 'threads, "side by side"'),
        Parameter("TYPE", ("float", "float4"), "float"),
        Parameter("FAST", (False, True), False),
        Parameter("SCALE", (0.5, 1.0), 1.0),
    ),
    constraints=(
        Constraint("fits", Expression.parse("BLOCK <= device.max_threads_per_block")),
        Constraint("wide", Expression.parse("TYPE == 'float' or n % 4 == 0")),
    ),
    steps=(launch_step("f", ("ceil_div(n, BLOCK)",), ("BLOCK",), None, ("x", "part")),),
    defines={"N": Expression.parse("n")},
    scratch=(scratch_argument("part", "float32", ("BLOCK",), "local"),),
    options=("-cl-mad-enable",),
)


def test_a_header_reads_back_as_it_was_written() -> None:
    header = parse_header(HEADER.render() + "int x;\n", Path("f.cl"))
    assert header == HEADER
    assert [(s.name, s.role, s.dtype) for s in header.scratch] == [("part", "local", "float32")]


def test_several_launches_read_back_in_order() -> None:
    steps = (launch_step("f", ("n",), ("1",), None, ("x",)), launch_step("g", ("1",), ("64", "2"), "256", ("x", "n")))
    header = parse_header(Header(steps=steps).render(), Path("f.cu"))
    assert header.steps == steps


@pytest.mark.parametrize("text", [
    "// /// kernelwright\n// [launch]\n// grid = [\"1\"]\n// ///\n",
    "/*\n/// kernelwright\n[launch]\n///\n*/\n",
    "/* /// kernelwright\n * [launch]\n * /// */\n",
])  # fmt: skip
def test_a_stripped_header_is_gone_and_the_rest_is_there(text: str) -> None:
    rest = strip_header(text + "\nint x; // 1\n")
    assert "kernelwright" not in rest
    assert "[launch]" not in rest
    assert rest.endswith("int x; // 1\n")
    assert rest.count("/*") == rest.count("*/")


def test_a_source_without_a_header_stays() -> None:
    assert strip_header("int x;\r\n// /// other\n") == "int x;\r\n// /// other\n"


@pytest.mark.parametrize(("source", "language", "start"), [
    ('#include <x>\nextern "C" __global__ void f(float *a) { a[0] = 1; }', "cuda", "extern"),
    ("int g;\ntemplate <typename T, int U = 4>\n__global__ void f(T *a) { a[0] = 1; }", "cuda", "template"),
    ('extern "C" {\n__global__ void f(float *a) { a[0] = 1; }\n}', "cuda", "__global__"),
    ("#define A 1\n/* ; */ __kernel __attribute__((reqd_work_group_size(8,1,1)))\n"
     "void f(__global float *a) { a[0] = A; }", "opencl", "__kernel"),
])  # fmt: skip
def test_a_declaration_starts_with_all_that_belongs_to_it(source: str, language: str, start: str) -> None:
    function = parse(source, language).kernels[0]  # type: ignore[arg-type]
    assert source.encode()[declaration_start(source, function) :].decode().startswith(start)


def test_the_top_is_behind_comments_and_before_includes() -> None:
    assert top("// a\n/* b */\n#include <c>\nint x;") == len("// a\n/* b */\n")


def _softmax() -> tuple[Problem, Subject]:
    problem = load_problem(EXAMPLES / "softmax" / "problem.toml")
    template = load_template(problem)
    baseline = load_baseline(problem, template).template
    header = Header(steps=baseline.steps, options=baseline.options)
    return problem, Subject.make(problem, baseline.source, header, CPU)


def test_a_subject_knows_its_kernel() -> None:
    _, subject = _softmax()
    assert subject.pattern.kind == "row-wise"
    assert str(subject.scalar("rows")) == "rows"
    assert subject.bindings[0]["x"] is not None


def test_a_subject_needs_a_launch_of_its_kernel() -> None:
    problem, subject = _softmax()
    with pytest.raises(SpecError, match="no launch of 'other'"):
        Subject.make(problem, subject.source, subject.header, CPU, entry="other")


def _plan(subject: Subject) -> Rewrite:
    plan = RewriteBuilder(subject, "test", "launch")
    name = plan.parameter("BLOCK", (32, 64), 64, "threads")
    plan.header = plan.header.relaunched("softmax", grid=(f"ceil_div(rows, {name})",), block=(name,))
    plan.prelude.append("// before the kernel\n")
    return plan.finish("It lifts.", Effect(1.0, "nothing"))


def test_a_finished_plan_is_a_template_that_loads(tmp_path: Path) -> None:
    _, subject = _softmax()
    rewrite = _plan(subject)
    header = parse_header(rewrite.file_text, tmp_path / "f.cl")
    assert [parameter.name for parameter in header.parameters] == ["BLOCK"]
    assert "// before the kernel\n__kernel void softmax" in rewrite.source
    child = subject.rewritten(rewrite)
    assert child.values_of("BLOCK") == (32, 64)
    assert child.history == ("test",)


def test_names_of_parameters_avoid_what_is_there() -> None:
    _, subject = _softmax()
    plan = RewriteBuilder(subject, "test", "launch")
    assert plan.fresh("rows") == "rows_2"
    assert plan.fresh("highest") == "highest_2"
    assert plan.fresh("NEW") == "NEW"
    assert plan.fresh("NEW") == "NEW_2"


def test_a_constraint_that_the_defaults_break_makes_a_tactic_unfit() -> None:
    def rule(subject: Subject) -> Rewrite:
        plan = RewriteBuilder(subject, "bad", "launch")
        plan.parameter("BLOCK", (3, 5), 3, "threads")
        plan.constraint("divides", "cols % BLOCK == 0")
        return plan.finish("It fails.", Effect(1.0, "nothing"))

    _, subject = _softmax()
    result = RuleTactic("bad", "launch", "Fails.", rule).apply(subject)
    assert isinstance(result, NotApplicable)
    assert "divides" in result.reason


def test_an_unfit_tactic_gives_its_reason() -> None:
    def rule(subject: Subject) -> Rewrite:
        raise Unfit("no loop", is_already_so=True)

    _, subject = _softmax()
    result = RuleTactic("none", "row", "Nothing.", rule).apply(subject)
    assert result == NotApplicable("none", "row", "no loop", is_already_so=True)


@pytest.mark.parametrize(("grid", "block", "total", "is_rounded_up"), [
    ("ceil_div(n, 256)", "256", "n", True),
    ("ceil_div( a * b , BLOCK)", "(BLOCK)", "a * b", True),
    ("(n + 255) // 256", "256", "n", True),
    ("ceil_div(n, 128)", "256", "(ceil_div(n, 128)) * (256)", False),
    ("tokens", "1", "tokens", False),
])  # fmt: skip
def test_what_a_launch_covers(grid: str, block: str, total: str, is_rounded_up: bool) -> None:
    found = extent(grid, block)
    assert (found.total, found.is_rounded_up) == (total, is_rounded_up)


@pytest.mark.parametrize("name", ["vector-map", "coarsen", "launch-shape"])
def test_a_parameter_that_decides_what_is_compiled_is_respected(name: str) -> None:
    """Only one way is analysed; another one may need the block as it is."""
    source = """#ifndef WAY
#define WAY 0
#endif
__kernel void f(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
#if WAY == 1
  if (i < n) y[i] = get_local_id(0);
#else
  if (i < n) y[i] = x[i];
#endif
}
"""
    arguments = {"x": "in float32 n", "y": "out float32 n", "n": "int32 =n"}
    subject = subject_of(source, arguments, ("ceil_div(n, 64)",), ("64",), [{"n": 100}])
    chosen = tactic(name)
    assert chosen is not None
    assert isinstance(chosen.apply(subject), Rewrite)
    varied = replace(subject, header=subject.header.with_parameters(Parameter("WAY", (0, 1), 0)))
    result = chosen.apply(varied)
    assert isinstance(result, NotApplicable)
    assert "WAY" in result.reason


SWITCHED = """__kernel void f(__global const float *x, __global float *y) {
  int i = get_global_id(0);
#ifdef TWICE
  y[2 * i] = y[2 * i + 1] = x[i];
#else
  y[i] = x[i];
#endif
}
"""


def test_what_a_header_declares_is_defined_wherever_the_source_only_asks_for_that() -> None:
    shapes = {"x": "in float32 n", "y": "out float32 2*n"}
    plain = subject_of(SWITCHED, shapes, ["n / 64"], ["64"], [{"n": 1024}])
    declared = replace(plain, header=replace(plain.header, defines={"TWICE": Expression.parse("n")}))
    writes = [
        [str(each.element) for each in subject.analysis.facts.accesses if each.array == "y"]
        for subject in (plain, declared)
    ]
    assert writes == [["global.x"], ["2*global.x + 1", "2*global.x"]]
    assert not plain.analysis.facts.opaque
