"""What `export_run` writes, through the files themselves."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from exported_operators import write_scale
from recorded_runs import LIMITS

from kernelwright.backend.base import DeviceInfo, ScalarArgument
from kernelwright.dispatching.table import dispatch_table
from kernelwright.errors import StoreError, UsageError, UserError
from kernelwright.evaluate.builds.render import render_workload
from kernelwright.export.autotuning.t1 import import_t1
from kernelwright.export.autotuning.t4 import import_t4
from kernelwright.export.run import export_run, formats_for
from kernelwright.problem.config import Config
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate
from kernelwright.tuning.tune import TuningProblem

RecordRun = Callable[..., Path]

TRICKY = """// /// kernelwright
// options = ["-cl-mad-enable"]
// [parameters]
// BLOCK = { values = [32, 64, 128], default = 64 }
// SCALE = { values = [0.5, 2.0], default = 0.5 }
// FAST = { values = [false, true], default = false }
// TYPE = { values = ["float", "double"], default = "float" }
// [constraints]
// power = "is_power_of_two(BLOCK)"
// whole = "n % 4 == 0 or TYPE == 'float'"
// wide = "BLOCK <= 4 * public"
// [defines]
// ROW = "public * 2"
// DOUBLED = "BLOCK * 2"
// [scratch]
// parts = { dtype = "float64", shape = ["ceil_div(n, BLOCK)", "3"] }
// flags = { dtype = "uint8", shape = ["BLOCK + 1"] }
// tile = { role = "local", dtype = "float32", shape = ["BLOCK", "2"] }
// [[launch]]
// entry = "first"
// grid = ["ceil_div(n, BLOCK) if FAST else n", "max(1, public // 3)"]
// block = ["BLOCK if TYPE == 'float' else BLOCK // 2"]
// arguments = ["x", "parts", "n", "tile", "alpha", "wide"]
// [[launch]]
// entry = "first"
// grid = ["ceil(n * SCALE / BLOCK)"]
// block = ["min(BLOCK, device.warp_size * 2)"]
// arguments = ["x", "parts", "n", "tile", "alpha", "wide"]
// [[launch]]
// entry = "last"
// grid = [1]
// block = [1]
// arguments = ["flags", "parts", "y", "beta", "eps"]
// ///
#ifndef BLOCK
#define BLOCK 64
#endif
#ifndef SCALE
#define SCALE 0.5
#endif
#ifndef FAST
#define FAST 0
#endif
#ifndef TYPE
#define TYPE float
#endif
#ifndef ROW
#define ROW 1
#endif
#ifndef DOUBLED
#define DOUBLED 128
#endif
__kernel void first(__global const float *x, __global double *parts, int n, __local float *tile, ushort alpha,
                    ulong wide)
{
    for (int i = get_global_id(0); i < n; i += DOUBLED) parts[i] = (TYPE)SCALE * x[i] + ROW + FAST + alpha + wide;
}
__kernel void last(__global uchar *flags, __global const double *parts, __global float *y, ushort beta, float eps)
{
    y[0] = parts[0] + beta + eps;
    flags[0] = BLOCK;
}
"""

TRICKY_PROBLEM = """name = "tricky-one.v2"
kernel = "tricky.cl"
entry = "first"
reference = "reference.py:first"

[arguments]
x = { role = "input", dtype = "float32", shape = ["n"] }
y = { role = "output", dtype = "float32", shape = ["n"] }
n = { role = "scalar", dtype = "int32", value = "n" }
alpha = { role = "scalar", dtype = "float16", value = "1 / sqrt(n) - 0.02" }
wide = { role = "scalar", dtype = "uint64", value = "n * public" }
beta = { role = "scalar", dtype = "bfloat16", value = "n / 7" }
eps = { role = "scalar", dtype = "float32", value = "1e-5" }

[[workloads]]
name = "a \\\\"
n = 64
public = 32

[[workloads]]
name = "b"
n = 4096
public = 128
"""


TRICKY_CONFIGS: list[Mapping[str, object]] = [
    {"BLOCK": 32, "TYPE": "double", "FAST": True},
    {"BLOCK": 128, "SCALE": 2.0},
    {"BLOCK": 64, "FAST": True},
]


@pytest.fixture
def tricky(tmp_path: Path) -> Path:
    """Every type of value, a size called like a word of C++, defines, and two launches of one kernel."""
    folder = tmp_path / "tricky"
    folder.mkdir()
    (folder / "tricky.cl").write_text(TRICKY)
    (folder / "problem.toml").write_text(TRICKY_PROBLEM)
    (folder / "reference.py").write_text("def first(x, n):\n    return x\n")
    return folder


@pytest.fixture
def tricky_run(tricky: Path, record_run: RecordRun) -> Path:
    return record_run(tricky, TRICKY_CONFIGS)


@pytest.fixture
def saxpy_run(saxpy: Path, record_run: RecordRun) -> Path:
    return record_run(saxpy, [{"BLOCK": 16}, {"BLOCK": 64}, {"BLOCK": 128, "ITEMS": 2}])


def compiler(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"no {name} on this machine")


# Failure paths


def test_an_unknown_format_names_the_nearest(saxpy_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'sourcs'") as caught:
        export_run(saxpy_run, tmp_path / "out", formats=["json", "sourcs"])
    assert "did you mean 'source'?" in str(caught.value)
    assert caught.value.exit_status == 2
    assert not (tmp_path / "out").exists()


def test_no_format_is_an_error(saxpy_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no export format"):
        export_run(saxpy_run, tmp_path, formats=[])


@pytest.mark.parametrize("name", ["source", "header", "json"])
def test_without_a_winner_nothing_is_written(saxpy: Path, record_run: RecordRun, tmp_path: Path, name: str) -> None:
    run = record_run(saxpy, [])
    with pytest.raises(UserError, match="no winner") as caught:
        export_run(run, tmp_path / "out", formats=["t4", name])
    assert caught.value.exit_status == 2
    assert not (tmp_path / "out").exists()


def test_results_and_space_are_exported_without_a_winner(saxpy: Path, record_run: RecordRun, tmp_path: Path) -> None:
    assert len(export_run(record_run(saxpy, []), tmp_path / "out", formats=["t4", "t1"])) == 2


def test_an_unwritable_folder_is_a_store_error(saxpy_run: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StoreError, match="taken") as caught:
        export_run(saxpy_run, tmp_path / "taken", formats=["json"])
    assert caught.value.exit_status == 2


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        export_run(tmp_path / "nowhere", tmp_path / "out", formats=["json"])


# Source


def test_the_source_compiles_on_its_own_and_says_what_it_is(saxpy_run: Path, tmp_path: Path) -> None:
    (path,) = export_run(saxpy_run, tmp_path / "out", formats=["source"])
    text = path.read_text()
    assert path.name == "saxpy.cl"
    assert "\n#ifndef BLOCK\n#define BLOCK 64\n#endif\n#ifndef ITEMS\n#define ITEMS 1\n#endif\n" in text
    assert "Made-up device" in text
    assert "interleaved rounds" in text
    stub = "#define __kernel\n#define __global\nint get_global_id(int);\n"
    (tmp_path / "unit.c").write_text(stub + text)
    subprocess.run([compiler("gcc"), "-std=c99", "-fsyntax-only", "unit.c"], cwd=tmp_path, check=True, timeout=300)


def test_the_exported_source_is_no_template_any_more(saxpy_run: Path, saxpy: Path, tmp_path: Path) -> None:
    """Its values are fixed: nothing but the exported header should give it others."""
    (path,) = export_run(saxpy_run, tmp_path / "out", formats=["source"])
    (saxpy / "saxpy.cl").write_text(path.read_text())
    subject = TuningProblem.load(load_problem(saxpy))
    assert subject.template.parameters == ()


def test_a_define_that_depends_on_the_workload_can_be_given_from_outside(tricky_run: Path, tmp_path: Path) -> None:
    (path,) = export_run(tricky_run, tmp_path / "out", formats=["source"])
    text = path.read_text()
    assert "/* ROW depends on the sizes: 256 for b */\n#ifndef ROW\n#define ROW 64\n#endif\n" in text
    assert not any(line.startswith("//") and line.endswith("\\") for line in text.splitlines())


# Header


def build(tmp_path: Path, language: str, headers: list[Path], body: str) -> Path:
    """Compile a program that includes the headers, with every warning an error."""
    includes = "".join(f'#include "{header}"\n' for header in headers)
    suffix, name, standard = ("c", "gcc", "-std=c99") if language == "c" else ("cpp", "g++", "-std=c++17")
    file, program = tmp_path / f"main.{suffix}", tmp_path / f"program_{suffix}"
    file.write_text(f"#include <stdio.h>\n{includes}{body}")
    flags = [standard, "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run([compiler(name), *flags, "-o", program, file, "-lm"], check=True, timeout=300)
    return program


@pytest.mark.parametrize("language", ["c", "c++"])
def test_headers_of_several_runs_compile_together_without_warnings(
    saxpy_run: Path, tricky: Path, record_run: RecordRun, tmp_path: Path, language: str
) -> None:
    other = record_run(tricky, [{"BLOCK": 32}], name="other", compare=False)
    headers = [export_run(run, tmp_path / "out", formats=["header"])[0] for run in (saxpy_run, other)]
    body = (
        "int main(void) {\n    kernelwright_saxpy_sizes sizes = { 65536 };\n"
        "    const kernelwright_saxpy_config *config = kernelwright_saxpy_select(&sizes);\n"
        '    printf("%d %lld", KERNELWRIGHT_SAXPY_BLOCK, config->BLOCK_);\n    return 0;\n}\n'
    )
    program = build(tmp_path, language, headers, body)
    out = subprocess.run([program], capture_output=True, text=True, check=True, timeout=300).stdout
    assert out == "64 64"


def test_constants_are_those_of_the_general_winner(tricky_run: Path, tmp_path: Path) -> None:
    text = export_run(tricky_run, tmp_path / "out", formats=["header"])[0].read_text()
    winner = RunView.read(tricky_run).fastest
    assert winner is not None
    assert f"#define KERNELWRIGHT_TRICKY_ONE_V2_BLOCK {winner.config['BLOCK']}\n" in text
    assert f'#define KERNELWRIGHT_TRICKY_ONE_V2_TYPE "{winner.config["TYPE"]}"\n' in text


PROBE = """
static void show(kernelwright_tricky_one_v2_launch launch)
{
    int i, k;
    printf(" | %s %lld %lld %lld %lld %lld %lld %lld", launch.entry, launch.grid[0], launch.grid[1], launch.grid[2],
           launch.block[0], launch.block[1], launch.block[2], launch.shared_bytes);
    for (i = 0; i < launch.argument_count; ++i) {
        kernelwright_argument argument = launch.arguments[i];
        printf(" %s/%s/%d/%lld/", argument.name, argument.type, argument.role, argument.bytes);
        for (k = 0; k < 8 && k < argument.bytes && argument.role == KERNELWRIGHT_SCALAR; ++k)
            printf("%02x", argument.value[k]);
    }
}

int main(void) {
    long long n, size;
    while (scanf("%lld %lld", &n, &size) == 2) {
        kernelwright_tricky_one_v2_sizes sizes = { n, size };
        const kernelwright_tricky_one_v2_config *config = kernelwright_tricky_one_v2_select(&sizes);
        if (kernelwright_tricky_one_v2_supports(&sizes) != (config != NULL)) return 1;
        if (config == NULL) {
            printf("none\\n");
        } else {
            printf("%s %lld %lld %d", config->build_options, kernelwright_tricky_one_v2_define_ROW(config, &sizes),
                   kernelwright_tricky_one_v2_scratch_bytes(config, &sizes),
                   kernelwright_tricky_one_v2_is_feasible(config, &sizes));
            show(kernelwright_tricky_one_v2_launch_first(config, &sizes));
            show(kernelwright_tricky_one_v2_launch_first_again1(config, &sizes));
            show(kernelwright_tricky_one_v2_launch_last(config, &sizes));
            printf("\\n");
        }
    }
    return 0;
}
"""

LIMITS_BY_NAME = {f"device.{name}": value for name, value in LIMITS.items()}
ROLES = ("input", "output", "inout", "scratch", "local", "scalar")


def rendered_line(subject: TuningProblem, config: Config, sizes: Mapping[str, int]) -> str:
    """What the program should print, from what the evaluation itself would launch."""
    workload = Workload("asked", sizes)
    device = DeviceInfo("made-up", "made-up:0", "Made up", "gpu", LIMITS)
    candidate = Candidate(subject.template, config)
    rendered = render_workload(candidate, subject.problem, workload, device)
    macros = dict(rendered.unit.macros)
    words = ["-cl-mad-enable", *(f"-D{name}={text}" for name, text in macros.items() if name != "ROW")]
    options = " ".join([*words, f"-DKERNELWRIGHT_TUNED_{subject.template.identity}=kw{candidate.id}"])
    scratch = sum(-(-count // 256) * 256 for count in rendered.scratch_bytes.values())
    known = {each.name: each for each in (*subject.problem.arguments, *subject.template.scratch)}
    parts = [f"{options} {macros['ROW']} {scratch} 1"]
    for step in rendered.plan:
        words = [f"{step.entry}_kw{candidate.id}", *map(str, step.grid), *map(str, step.block), str(step.shared_bytes)]
        for each in step.arguments:
            declared = known[each.name]
            data = each.data if isinstance(each, ScalarArgument) else b""
            count = len(data) if isinstance(each, ScalarArgument) else each.byte_count
            spelled = (*DTYPES[declared.dtype].c_names["opencl"], declared.dtype)[0]
            words.append(f"{each.name}/{spelled}/{ROLES.index(declared.role)}/{count}/{data.hex()}")
        parts.append(" ".join(words))
    return " | ".join(parts)


@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("compare", [True, False])
def test_selection_and_launches_equal_python_for_random_sizes(
    tricky: Path, record_run: RecordRun, tmp_path: Path, language: str, compare: bool
) -> None:
    run = record_run(tricky, TRICKY_CONFIGS, compare=compare)
    (header,) = export_run(run, tmp_path / "out", formats=["header"])
    program = build(tmp_path, language, [header], PROBE)
    view = RunView.read(run)
    subject = TuningProblem.load(run / "problem" / "problem.toml")
    table = dispatch_table(view, subject)
    generator = random.Random(7)
    asked = [{"n": 64, "public": 32}, {"n": 4096, "public": 128}, {"n": 4096, "public": 1}]
    for _ in range(400):  # the domain's steps are 64 and 32
        n, public = generator.randint(1, 64 * 66), generator.randint(1, 150)
        is_stepped = generator.random() < 0.8
        asked.append({"n": n // 64 * 64 if is_stepped else n, "public": public // 32 * 32 if is_stepped else public})
    text = "".join(f"{sizes['n']} {sizes['public']}\n" for sizes in asked)
    lines = subprocess.run(
        [program], input=text, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    seen: set[Config | None] = set()
    for sizes, line in zip(asked, lines, strict=True):
        config = table.select(sizes)
        assert line == ("none" if config is None else rendered_line(subject, config, sizes)), sizes
        seen.add(config)
    assert len(seen) > 2, "the sizes must reach several configs, and none"


def test_outside_of_what_was_measured_no_config_is_chosen(saxpy_run: Path, tmp_path: Path) -> None:
    (header,) = export_run(saxpy_run, tmp_path / "out", formats=["header"])
    asked = {4096: 1, 65536: 1, 8192: 1, 4095: 0, 4097: 0, 2048: 0, 131072: 0, 6000: 0}
    tests = "".join(
        f"    {{ kernelwright_saxpy_sizes s = {{ {n} }}; bad += kernelwright_saxpy_supports(&s) != {wanted}; }}\n"
        for n, wanted in asked.items()
    )
    program = build(tmp_path, "c", [header], f"int main(void) {{\n    int bad = 0;\n{tests}    return bad;\n}}\n")
    assert subprocess.run([program], check=False, timeout=300).returncode == 0


# JSON, T4, T1


def test_the_summary_holds_the_config_and_every_interval(saxpy_run: Path, tmp_path: Path) -> None:
    (path,) = export_run(saxpy_run, tmp_path / "out", formats=["json"])
    summary = json.loads(path.read_text())
    assert summary["config"] == {"BLOCK": 64, "ITEMS": 1}
    assert summary["default"] == {"BLOCK": 32, "ITEMS": 1}
    assert [each["name"] for each in summary["workloads"]] == ["small", "large"]
    for interval in [summary["speedup"], *(each["speedup"] for each in summary["workloads"])]:
        assert interval["low"] <= interval["estimate"] <= interval["high"]
    assert summary["workloads"][0]["best"]["config"] == {"BLOCK": 128, "ITEMS": 2}
    assert summary["counts"]["failed"] == {"build": {"compile-error": 1}}


def test_an_uncompared_run_is_exported_as_an_estimate(saxpy: Path, record_run: RecordRun, tmp_path: Path) -> None:
    run = record_run(saxpy, [{"BLOCK": 16}], compare=False)
    source, summary = export_run(run, tmp_path / "out", formats=["source", "json"])
    assert json.loads(summary.read_text())["speedup"] is None
    assert "an estimate of the search" in source.read_text()


# Required fields and words of the T4 results schema (1.0.0 and 1.1.0), written out here
T4_REQUIRED = {"configuration", "times", "invalidity", "correctness"}
T4_INVALIDITY = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
T4_TIMES = {"compilation_time", "framework", "search_algorithm", "validation"}


def test_t4_results_have_what_the_schema_requires(saxpy_run: Path, tmp_path: Path) -> None:
    (path,) = export_run(saxpy_run, tmp_path / "out", formats=["t4"])
    document = json.loads(path.read_text())
    assert document["schema_version"].count(".") == 2
    assert document["metadata"]["timeunit"] == "milliseconds"
    assert document["metadata"]["compute_api"] == "OpenCL"
    assert len(document["results"]) == 4
    for result in document["results"]:
        assert result.keys() >= T4_REQUIRED
        assert result["invalidity"] in T4_INVALIDITY
        assert result["correctness"] in (0, 1)
        assert all(isinstance(result["times"][name], float) for name in T4_TIMES)
        assert isinstance(result["times"]["runtimes"], list)
        assert result["objectives"] == ["time"]
        assert all(isinstance(line["unit"], str) and isinstance(line["name"], str) for line in result["measurements"])
    assert [result["invalidity"] for result in document["results"]] == ["correct"] * 3 + ["compile"]


def test_t4_results_come_back_as_they_went(saxpy: Path, record_run: RecordRun, tmp_path: Path) -> None:
    text = (saxpy / "problem.toml").read_text()
    (saxpy / "problem.toml").write_text(text.partition('[[workloads]]\nname = "large"')[0])
    run = record_run(saxpy, [{"BLOCK": 16}, {"BLOCK": 64}])
    (path,) = export_run(run, tmp_path / "out", formats=["t4"])
    imported, view = import_t4(path), RunView.read(run)
    for ours, theirs in zip(view.evaluations, imported.results, strict=True):
        assert dict(theirs.config) == dict(ours.config)
        assert theirs.cost.build_s == pytest.approx(ours.cost.build_s)
        assert theirs.cost.check_s == pytest.approx(ours.cost.check_s)
        if isinstance(ours.outcome, Passed):
            assert isinstance(theirs.outcome, Passed)
            assert theirs.outcome.measurements[0].samples_ms == ours.outcome.measurements[0].samples_ms
        else:
            assert isinstance(theirs.outcome, Failed)
            assert theirs.outcome.stage == ours.outcome.stage
            assert theirs.time_ms is None


def test_the_t1_space_is_the_space_that_was_searched(tricky_run: Path, tmp_path: Path) -> None:
    (path,) = export_run(tricky_run, tmp_path / "out", formats=["t1"])
    document = json.loads(path.read_text())
    assert document.keys() >= {"ConfigurationSpace", "KernelSpecification"}
    assert document["KernelSpecification"].keys() >= {"Language", "KernelName", "KernelFile", "GlobalSize", "LocalSize"}
    assert document["Kernelwright"]["UntranslatedConditions"] == []
    assert len(document["Kernelwright"]["Steps"]) == 3
    parameters, constraints, metadata = import_t1(path)
    subject = TuningProblem.load(tricky_run / "problem" / "problem.toml")
    assert [(p.name, p.values, p.default) for p in parameters] == [
        (p.name, p.values, p.default) for p in subject.template.parameters
    ]
    assert metadata.kernel_name == "first"
    count = 0
    for values in itertools.product(*(p.values for p in parameters)):
        config = dict(zip((p.name for p in parameters), values, strict=True))
        wanted = all(
            constraint.expression.evaluate({**LIMITS_BY_NAME, **workload.sizes, **config})
            for constraint in subject.template.constraints
            for workload in subject.problem.workloads
        )
        assert all(constraint.expression.evaluate(config) for constraint in constraints) == wanted, config
        count += wanted
    assert count > 0


def test_every_format_is_written_once_and_replaced_whole(saxpy_run: Path, tmp_path: Path) -> None:
    first = export_run(saxpy_run, tmp_path / "out", formats=[*formats_for("opencl"), "json"])
    again = export_run(saxpy_run, tmp_path / "out")
    assert first == again
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in first)


EXAMPLES = Path(__file__).resolve().parents[2] / "src/kernelwright/examples"
PROBLEMS = sorted(file.parent.relative_to(EXAMPLES).as_posix() for file in EXAMPLES.rglob("problem.toml"))


@pytest.mark.few(6)
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_header_of_every_example_compiles_and_supports_what_was_tuned(
    name: str, record_run: RecordRun, tmp_path: Path
) -> None:
    run = record_run(EXAMPLES / name, [{}])
    (header,) = export_run(run, tmp_path / "out", formats=["header"])
    subject = TuningProblem.load(run / "problem" / "problem.toml")
    tests = "".join(
        f"    {{ {header.stem}_sizes s = {{ {', '.join(map(str, workload.sizes.values()))} }}; "
        f"bad += !{header.stem}_supports(&s); }}\n"
        for workload in subject.problem.workloads
    )
    body = f"int main(void) {{\n    int bad = 0;\n{tests}    return bad;\n}}\n"
    for language in ("c", "c++"):
        program = build(tmp_path, language, [header], body)
        assert subprocess.run([program], check=False, timeout=300).returncode == 0


def test_the_header_of_a_cuda_problem_tells_shared_memory_and_constants(record_run: RecordRun, tmp_path: Path) -> None:
    run = record_run(write_scale(tmp_path / "scale"), [{"BLOCK": 256, "VEC": 4}])
    (header,) = export_run(run, tmp_path / "out", formats=["header"])
    body = """int main(void) {
    kernelwright_scale_rows_sizes sizes = { 64, 128, 64 };
    const kernelwright_scale_rows_config *config = kernelwright_scale_rows_select(&sizes);
    kernelwright_scale_rows_launch first = kernelwright_scale_rows_launch_sum_rows(config, &sizes);
    kernelwright_scale_rows_launch second = kernelwright_scale_rows_launch_scale_rows_VEC_(config, &sizes);
    printf("%lld %s %s %s %lld", first.shared_bytes, second.entry, second.constants[0].variable,
           second.constants[0].name, second.constants[0].bytes);
    return first.constants[0].variable != NULL;
}
"""
    for language in ("c", "c++"):
        program = build(tmp_path, language, [header], body)
        done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=300)
        shared, entry, *rest = done.stdout.split()
        assert re.fullmatch(r"scale_rows_kw[0-9a-f]+<VEC>", entry)
        assert [shared, *rest] == ["1024", "table", "weight", "256"]
