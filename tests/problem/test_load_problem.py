"""Problem files: what loads, and one clear complaint with its place for everything that does not."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kernelwright.errors import ReferenceFailed, SpecError, UserError
from kernelwright.identity import content_id
from kernelwright.problem.load.problem import load_problem
from kernelwright.template.load import load_template

PROBLEM = """\
name = "silu_and_mul"
kernel = "silu.cl"
entry = "silu"
reference = "reference.py:silu"
options = ["-cl-mad-enable"]

[arguments]
out = { role = "output", dtype = "float16", shape = ["tokens", "d"] }
x = { role = "input", dtype = "float16", shape = ["tokens", "2*d"], distribution = "uniform", range = [-2, 2] }
index = { role = "input", dtype = "int32", shape = ["tokens"] }
eps = { role = "scalar", dtype = "float32", value = 1e-6 }
d = { role = "scalar", dtype = "int32", value = "d" }

[launch]
grid = ["tokens"]
block = ["min(d // 8, 1024)"]

[tolerance]
out = { rtol = 1e-3, atol = 1e-3, because = "fp16 output" }

[work]
operations = "4 * tokens * d"

[[workloads]]
tokens = 1024
d = 11008
weight = 2

[[workloads]]
name = "small"
tokens = 16
d = 64
"""

REFERENCE = """\
import numpy as np


def silu(x, d):
    return x[:, :d] / (1 + np.exp(-x[:, :d])) * x[:, d:]
"""

SOURCE = "__kernel void silu(__global half *out) {}\n"


def write_problem(folder: Path, text: str = PROBLEM) -> Path:
    (folder / "problem.toml").write_text(text)
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "silu.cl").write_text(SOURCE)
    (folder / "wide.npy").unlink(missing_ok=True)
    np.save(folder / "wide.npy", np.zeros((3, 5), np.float32))
    np.save(folder / "complex.npy", np.zeros((3, 5), np.complex64))
    np.save(folder / "text.npy", np.zeros((3, 5), "U3"))
    np.savez(folder / "both.npz", a=np.zeros(3), b=np.zeros(3))
    (folder / "broken.npy").write_bytes(b"not an array")
    (folder / "sub").mkdir(exist_ok=True)
    return folder / "problem.toml"


@dataclass(frozen=True)
class Case:
    """One mistake: `old` in the good problem becomes `new`, and the complaint stands at `at`."""

    name: str
    old: str
    new: str
    message: str
    at: str
    hint: str = ""

    def __str__(self) -> str:
        return self.name


X_SHAPE = 'shape = ["tokens", "2*d"]'
X_FILL = 'distribution = "uniform", range = [-2, 2]'
D_LINE = 'd = { role = "scalar", dtype = "int32", value = "d" }'

BAD = [
    Case("unknown key", "[launch]", "[lunch]", "unknown key 'lunch'", "[lunch]", "did you mean 'launch'"),
    Case("parameters in the problem", "[work]", "[parameters]", "unknown key", "[parameters]", "header of the kernel"),
    Case("unknown key of an argument", "dtype = \"int32\", shape", "type = \"int32\", shape", "unknown key 'type'",
         "type = \"int32\", shape", "did you mean 'dtype'"),
    Case("unknown key of a launch", "grid =", "global =", "unknown key 'global'", "global =", "work-groups"),
    Case("unknown key of a tolerance", "rtol", "rtoll", "unknown key 'rtoll'", "rtoll", "did you mean 'rtol'"),
    Case("unknown key of the work", "operations", "operation", "unknown key", "operation", "'operations'"),
    Case("wrong type of a text", 'entry = "silu"', "entry = 3", "entry is an integer (3), expected a text", "3"),
    Case("wrong type of a table", "[launch]\ngrid", "launch = 3\n[lunch]\ngrid", "unknown key 'lunch'", "[lunch]"),
    Case("wrong type of a list", 'grid = ["tokens"]', 'grid = "tokens"', "expected a list of expressions", 'tokens"\n'),
    Case("wrong type in a list", 'options = ["-cl-mad-enable"]', "options = [3]", "options[0] is an integer", "3]"),
    Case("wrong type of an expression", 'value = "d"', "value = [1]", "expected an expression", "[1]"),
    Case("argument is no table", D_LINE, "d = 3", "arguments.d is an integer (3), expected a table", "3"),
    Case("NUL in a path", '"silu.cl"', '"silu\\u0000.cl"', "NUL", "silu\\u0000"),
    Case("NUL in an expression", 'value = "d"', 'value = "d\\u0000"', "", "d\\u0000"),
    Case("missing kernel file", '"silu.cl"', '"silo.cl"', "does not exist", "silo", "did you mean 'silu.cl'"),
    Case("missing reference file", '"reference.py:', '"referense.py:', "does not exist", "referense", "reference.py"),
    Case("kernel is a folder", '"silu.cl"', '"sub"', "is a folder", "sub"),
    Case("kernel in no known language", '"silu.cl"', '"wide.npy"', "no known language", "wide"),
    Case("empty path", '"silu.cl"', '""', "is empty", '"\nentry'),
    Case("path out of the folder", '"silu.cl"', '"../silu.cl"', "outside the problem's folder", "../", "copy"),
    Case("path out of the folder and back", '"silu.cl"', '"sub/../../x/silu.cl"', "outside", "sub/"),
    Case("absolute path", '"silu.cl"', '"/etc/passwd"', "outside the problem's folder", "/etc"),
    Case("no kernel", 'kernel = "silu.cl"\n', "", "'kernel' is missing", "name"),
    Case("no reference", 'reference = "reference.py:silu"\n', "", "'reference' is missing", "name"),
    Case("reference without function", "reference.py:silu", "reference.py", "cannot read reference", "reference.py"),
    Case("reference function misspelt", "reference.py:silu", "reference.py:silo", "defines no function 'silo'",
         "reference.py:silo", "did you mean 'silu'"),
    Case("empty entry", 'entry = "silu"', 'entry = " "', "entry is empty", ' "\nref'),
    Case("name that is no folder name", '"silu_and_mul"', '"../silu"', "cannot name a run folder", "../silu"),
    Case("name that is too long", '"silu_and_mul"', f'"{400 * "a"}"', "name has 400 letters", "aaa", "at most 100"),
    Case("no arguments", PROBLEM[PROBLEM.index("[arguments]") : PROBLEM.index("[launch]")], "",
         "'arguments' is missing",
         "name"),
    Case("unknown role", '"input", dtype = "int32"', '"inptu", dtype = "int32"', "unknown role", "inptu", "'input'"),
    Case("no role", 'role = "scalar", dtype = "int32"', 'dtype = "int32"', "'role' is missing", "d = {"),
    Case("no output", '"output"', '"scratch"', "no argument is an output", "[arguments]"),
    Case("unknown dtype", 'dtype = "int32", value', 'dtype = "int", value', "unknown dtype 'int'", 'int", value',
         "write 'int32'"),
    Case("no dtype", 'dtype = "int32", value', "value", "'dtype' is missing", "d = {"),
    Case("no shape", f', {X_SHAPE}', "", "'shape' is missing", "x = {"),
    Case("shape of too many extents", X_SHAPE, f"shape = [{', '.join('1' * 65)}]", "has 65 extents, more than 32",
         "1, 1", "join extents"),
    Case("empty shape", X_SHAPE, "shape = []", "the shape of 'x' is empty", "[]", 'shape = ["1"]'),
    Case("no line in arguments", PROBLEM[PROBLEM.index("out = {") : PROBLEM.index("[launch]")], "",
         "[arguments] is empty", "[arguments]", "for example x = {"),
    Case("complex data", X_FILL, 'file = "complex.npy"', "'complex.npy' holds complex64, which is no float16",
         "complex.npy", "files of their own"),
    Case("data that is text", X_FILL, 'file = "text.npy"', "which is no float16", "text.npy", "save the array as"),
    Case("an archive as data", X_FILL, 'file = "both.npz"', "'both.npz' is not a .npy file", "both.npz", "numpy.save"),
    Case("scalar with a shape", 'value = "d"', 'value = "d", shape = [1]', "has a shape", "[1]"),
    Case("scalar without value", ', value = "d"', "", "'value' is missing", "d = {", 'value = "d"'),
    Case("value of an output", 'shape = ["tokens", "d"]', 'shape = ["tokens", "d"], value = 1', "is output",
         "value = 1"),
    Case("range of an output", 'shape = ["tokens", "d"]', 'shape = ["tokens", "d"], range = [0, 1]', "is output",
         "range = [0"),
    Case("argument that is no identifier", "index =", '"in dex" =', "not an identifier", '"in dex"', "in_dex"),
    Case("argument with a reserved name", "index =", "lambda =", "reserved word", "lambda", "keep its own name"),
    Case("array with a size's name", "index =", "tokens =", "has the name of a size", "tokens = {"),
    Case("unknown name in a shape", '"2*d"', '"2*dd"', "unknown name 'dd'", 'dd"', "did you mean 'd'"),
    Case("device in a shape", '"2*d"', '"device.warp_size"', "unknown name 'device.warp_size'", "device"),
    Case("division by zero in a shape", '"2*d"', '"d // (d - 64)"', "workload 'small'", "d // (d - 64)"),
    Case("constant division by zero", '"2*d"', '"1 // 0"', "zero", "1 // 0"),
    Case("shape that is not whole", '"2*d"', '"d / 7"', "expected an integer of at least 1", "d / 7", "ceil_div"),
    Case("shape that is negative", '"2*d"', '"d - 64"', "is 0 on workload 'small'", "d - 64"),
    Case("shape that is a condition", '"2*d"', '"d > 1"', "is True", "d > 1"),
    Case("syntax of an expression", '"2*d"', '"2*"', "cannot read the expression", "2*"),
    Case("scalar beyond its dtype", 'dtype = "int32", value', 'dtype = "int8", value', "11008 does not fit int8",
         'd" }'),
    Case("scalar that is not whole", 'value = "d"', 'value = "d / 7"', "not a whole number", "d / 7"),
    Case("scalar that is a text", 'value = "d"', "value = \"'a'\"", "needs a number", "'a'"),
    Case("unknown distribution", '"uniform"', '"unifrom"', "unknown distribution", "unifrom", "'uniform'"),
    Case("float distribution of integers", 'shape = ["tokens"] }', 'shape = ["tokens"], distribution = "normal" }',
         "is for floats", "normal", "integers"),
    Case("special that is no boolean", X_FILL, 'special = "yes"', "expected true or false", "yes"),
    Case("special constant", X_FILL, "value = 2, special = true", "for arguments that are drawn", "special"),
    Case("special scalar", 'role = "scalar", ', 'role = "scalar", special = true, ', "'special' is for arguments that",
         "special"),
    Case("range of another distribution", '"uniform"', '"normal"', "'range' belongs to", "range = [-2"),
    Case("range with three ends", "range = [-2, 2]", "range = [-2, 2, 3]", "two numbers", "[-2, 2, 3]"),
    Case("range of texts", "range = [-2, 2]", 'range = ["a", 2]', "expected a number", 'a", 2'),
    Case("range upside down", "range = [-2, 2]", "range = [2, -2]", "is empty", "[2, -2]", "smaller number first"),
    Case("range beyond the dtype", "range = [-2, 2]", "range = [-2, 1e6]", "outside what float16 holds", "1e6"),
    Case("range that is endless", "range = [-2, 2]", "range = [-2, inf]", "finite number", "inf"),
    Case("range and file", X_FILL, 'file = "wide.npy", range = [0, 1]', "'range' belongs to", "range = [0"),
    Case("scale of uniform", "range = [-2, 2]", "scale = 3", "'scale' belongs to", "scale"),
    Case("scale of zero", X_FILL, "scale = 0", "scale is 0", "0 }"),
    Case("constant without value", '"uniform", range = [-2, 2]', '"constant"', "'value' is missing", "x = {"),
    Case("constant beyond the dtype", X_FILL, "value = 1e6", "outside what float16 holds", "1e6"),
    Case("file without a name", X_FILL, 'distribution = "file"', "'file' is missing", "x = {"),
    Case("data file that is missing", X_FILL, 'file = "wode.npy"', "does not exist", "wode", "'wide.npy'"),
    Case("data file that is none", X_FILL, 'file = "broken.npy"', "not a .npy file", "broken", "numpy.save"),
    Case("data file of another shape", X_FILL, 'file = "wide.npy"', "has the shape (3, 5)", "x = {"),
    Case("launch without grid", 'grid = ["tokens"]\n', "", "'grid' is missing", "[launch]", "work-groups"),
    Case("launch without block", 'block = ["min(d // 8, 1024)"]\n', "", "'block' is missing", "[launch]"),
    Case("grid of four extents", 'grid = ["tokens"]', "grid = [1, 1, 1, 1]", "has 4 extents", "[1, 1"),
    Case("empty grid", 'grid = ["tokens"]', "grid = []", "has 0 extents", "[]"),
    Case("launch without any entry", 'entry = "silu"\n', "", "'entry' is missing", "[launch]"),
    Case("tolerance of an input", "[tolerance]\nout", "[tolerance]\nx", "which is no output", "x = { rtol"),
    Case("negative tolerance", "rtol = 1e-3", "rtol = -1e-3", "rtol is -0.001", "-1e-3"),
    Case("empty tolerance", 'rtol = 1e-3, atol = 1e-3, ', "", "'rtol' is missing", "out = { because"),
    Case("unknown name in the work", '"4 * tokens * d"', '"4 * token"', "unknown name 'token'", 'token"', "'tokens'"),
    Case("negative work", '"4 * tokens * d"', '"0 - d"', "work.operations is -11008", "0 - d"),
    Case("absurdly many operations", '"4 * tokens * d"', '"2 ** 200"', "work.operations is 1.61e+60 on workload",
         "2 ** 200", "in sizes"),
    Case("absurdly many bytes", "operations = \"4 * tokens * d\"", 'bytes = "tokens * d * 10 ** 8"',
         "more than 1,000,000 times the 67,637,248 bytes of all arguments", "tokens * d * 10", "in sizes"),
    Case("no workloads", PROBLEM[PROBLEM.index("[[workloads]]") :], "", "'workloads' is missing", "name"),
    Case("workloads as one table", PROBLEM[PROBLEM.index("[[workloads]]") :], "[workloads]\nd = 1\n",
         "a list of tables", "[workloads]"),
    Case("size of zero", "tokens = 16", "tokens = 0", "size 'tokens' is 0", "0\nd = 64"),
    Case("negative size", "tokens = 16", "tokens = -1", "size 'tokens' is -1", "-1\n"),
    Case("size beyond 64 bits", "tokens = 16", "tokens = 9223372036854775808", "from 1 to 2^63", "9223372036854775808"),
    Case("size that is a float", "tokens = 16", "tokens = 16.0", "expected a positive integer", "16.0"),
    Case("size that is a boolean", "tokens = 16", "tokens = true", "a boolean (true)", "true"),
    Case("size that is a text", "tokens = 16", 'tokens = "16"', "expected a positive integer", '16"'),
    Case("size with a function's name", "tokens = 16", "max = 16", "is a function of expressions", "max = 16"),
    Case("weight of zero", "weight = 2", "weight = 0", "weight is 0", "0\n\n[[", "leave it out"),
    Case("negative weight", "weight = 2", "weight = -1", "weight is -1", "-1\n"),
    Case("weight that is a text", "weight = 2", 'weight = "2"', "expected a number", '2"'),
    Case("weight that is not finite", "weight = 2", "weight = nan", "expected a finite number", "nan"),
    Case("weight misspelt once", "weight = 2", "wieght = 2", "unknown key 'wieght'", "wieght", "'weight'"),
    Case("weight misspelt everywhere", PROBLEM[PROBLEM.index("weight = 2") :],
         "wieght = 2\n[[workloads]]\ntokens = 1\nd = 64\nwieght = 1\n",
         "unknown key 'wieght'", "wieght = 2", "'weight'"),
    Case("weight misspelt as a float", "weight = 2", "wieght = 0.5", "expected a positive integer", "0.5", "'weight'"),
    Case("size misspelt", "tokens = 16", "token = 16", "a size 'token' that the first workload does not have", "token",
         "did you mean 'tokens'"),
    Case("size forgotten", "tokens = 16\n", "", "no size 'tokens'", '[[workloads]]\nname'),
    Case("workload names repeated", 'name = "small"', 'name = "tokens=1024,d=11008"', "two workloads are called",
         'tokens=1024,d=11008"'),
    Case("same sizes twice without a name", 'name = "small"\ntokens = 16\nd = 64', "tokens = 1024\nd = 11008",
         "two workloads are called", "[[workloads]]\ntokens = 1024\nd = 11008\n", ""),
    Case("workload name that is no text", 'name = "small"', "name = 3", "expected a text", "3\n"),
    Case("workload name that is blank", 'name = "small"', 'name = ""', "no name for a workload", '"\ntokens'),
    Case("not TOML", "d = 64", "d = sixty", "not valid TOML", "sixty"),
    Case("baseline without kernel", "[work]", "[baseline]\nentry = \"x\"\n[work]", "'kernel' is missing", "[baseline]"),
    Case("unknown key of the baseline", "[work]", '[baseline]\nkernel = "silu.cl"\ngrid = []\n[work]',
         "unknown key 'grid'", "grid = []"),
    Case("circular sizes",
         "[work]", '[sizes]\na = "b + 1"\nb = "a + 1"\n[work]', "in a circle: (a needs b|b needs a)", "",
         "give one of them a number"),
    Case("derived size with an unknown name", "[work]", '[sizes]\na = "dd + 1"\n[work]', "unknown name 'dd'", "dd + 1",
         "did you mean 'd'"),
    Case("derived size set by a workload", "[work]", '[sizes]\nd = "tokens + 1"\n[work]', "computed in [sizes]",
         "d = 11008"),
    Case("derived size of zero", "[work]", '[sizes]\na = "tokens // 1000"\n[work]', "is 0 on workload 'small'",
         "tokens // 1000"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=str)
def test_a_mistake_is_named_with_its_place(case: Case, tmp_path: Path) -> None:
    assert case.old in PROBLEM, "the case changes nothing"
    text = PROBLEM.replace(case.old, case.new, 1)
    with pytest.raises(SpecError) as caught:
        load_problem(write_problem(tmp_path, text))
    error = caught.value
    pattern = case.message if "|" in case.message else re.escape(case.message)
    assert re.search(pattern, error.message)
    assert case.hint in (error.hint or "")
    assert error.exit_status == 2
    assert error.location is not None
    assert error.location.file.name == "problem.toml"
    place = text.split("\n")[error.location.line - 1 :]
    if case.at:
        assert "\n".join(place)[error.location.column - 1 :].startswith(case.at)


@pytest.mark.parametrize("key", ["workloads = []", "launch = []"])
def test_an_empty_list_of_tables_is_refused(key: str, tmp_path: Path) -> None:
    name = key.partition(" ")[0]
    text = re.sub(rf"\[+{name}\]+\n(?:\w.*\n)+\n?", "", PROBLEM)
    with pytest.raises(SpecError, match=f"{name} is") as caught:
        load_problem(write_problem(tmp_path, f"{key}\n{text}"))
    assert caught.value.location is not None
    assert caught.value.location.line == 1


def test_the_case_names_are_distinct() -> None:
    assert len({case.name for case in BAD}) == len(BAD)


def test_all_of_a_problem_is_read(tmp_path: Path) -> None:
    problem = load_problem(write_problem(tmp_path))
    assert problem.name == "silu_and_mul"
    assert problem.file == tmp_path / "problem.toml"
    assert [argument.name for argument in problem.arguments] == ["out", "x", "index", "eps", "d"]
    assert [argument.name for argument in problem.outputs] == ["out"]
    assert problem.arguments[1].distribution.low == -2
    assert problem.arguments[1].distribution.high == 2
    assert problem.arguments[2].distribution.kind == "integers"
    assert problem.kernel.language == "opencl"
    assert problem.kernel.options == ("-cl-mad-enable",)
    assert problem.kernel.steps[0].entry == "silu"
    assert problem.kernel.steps[0].arguments is None
    assert problem.kernel.steps[0].block[0].evaluate({"d": 64}) == 8
    assert problem.tolerances["out"].because == "fp16 output"
    assert [workload.name for workload in problem.workloads] == ["tokens=1024,d=11008", "small"]
    assert [workload.weight for workload in problem.workloads] == [2.0, 1.0]
    assert problem.size_names == ("tokens", "d")
    assert problem.work.operations is not None
    assert problem.work.bytes is None
    assert problem.baseline is None


def test_a_folder_is_its_problem_file(tmp_path: Path) -> None:
    write_problem(tmp_path)
    assert load_problem(tmp_path) == load_problem(str(tmp_path / "problem.toml"))


def test_a_relative_path_loads_as_the_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_problem(tmp_path)
    monkeypatch.chdir(tmp_path)
    problem = load_problem("problem.toml")
    assert problem.kernel.file == tmp_path / "silu.cl"
    assert str(problem.workloads[0].location) == "problem.toml:24:1"


def test_complaints_show_the_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_problem(tmp_path, PROBLEM.replace("tokens = 16", "tokens = 0"))
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(SpecError) as caught:
        load_problem(tmp_path.name)
    assert str(caught.value).startswith(f"{tmp_path.name}/problem.toml:31:10: size 'tokens' is 0")


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        ("nothing/here.toml", "does not exist", "create it"),
        ("problm.toml", "does not exist", "did you mean 'problem.toml'?"),
        ("sub", "holds no problem.toml", "kernelwright init"),
        ("silu.cl", "is a kernel source", "kernelwright init"),
        ("a\0b", "NUL", ""),
    ],
)
def test_a_wrong_path_is_explained(path: str, message: str, hint: str, tmp_path: Path) -> None:
    write_problem(tmp_path)
    with pytest.raises(SpecError, match=message) as caught:
        load_problem(f"{tmp_path}/{path}")
    assert hint in (caught.value.hint or "")


def test_a_syntax_error_in_the_reference_has_its_line(tmp_path: Path) -> None:
    file = write_problem(tmp_path)
    (tmp_path / "reference.py").write_text("import numpy\n\ndef silu(x:\n    return x\n")
    with pytest.raises(ReferenceFailed, match="Python syntax error") as caught:
        load_problem(file)
    assert caught.value.location is not None
    assert caught.value.location.file.name == "reference.py"
    assert caught.value.location.line == 3


@pytest.mark.parametrize(
    "text",
    [
        "from numpy import exp as silu\n",
        "from numpy import *\n",
        "try:\n    import torch\nexcept ImportError:\n    silu = abs\n",
        "if True:\n    def silu(x): return x\n",
        "silu = lambda x: x\n",
    ],
)
def test_a_reference_may_be_bound_in_any_way(text: str, tmp_path: Path) -> None:
    file = write_problem(tmp_path)
    (tmp_path / "reference.py").write_text(text)
    assert load_problem(file).reference.function == "silu"


def test_loading_never_runs_the_reference(tmp_path: Path) -> None:
    file = write_problem(tmp_path)
    (tmp_path / "reference.py").write_text("raise SystemExit('ran')\ndef silu(x): return x\n")
    load_problem(file)


def test_several_launches_keep_their_order_and_entries(tmp_path: Path) -> None:
    launches = """\
[[launch]]
entry = "first"
grid = [2]
block = ["tokens", 1, 4]
arguments = ["x", "out"]
[[launch]]
grid = ["d"]
block = [64]
shared_bytes = "4 * d"
"""
    start, end = PROBLEM.index("[launch]"), PROBLEM.index("[tolerance]")
    problem = load_problem(write_problem(tmp_path, PROBLEM[:start] + launches + PROBLEM[end:]))
    first, second = problem.kernel.steps
    assert (first.entry, second.entry) == ("first", "silu")
    assert first.arguments == ("x", "out")
    assert [extent.text for extent in first.block] == ["tokens", "1", "4"]
    assert second.shared_bytes is not None
    assert second.shared_bytes.evaluate({"d": 2}) == 8


def test_sizes_give_defaults_and_derived_values(tmp_path: Path) -> None:
    text = PROBLEM.replace("[work]", '[sizes]\nwide = "2 * half_"\nhalf_ = "d // 2"\ntokens = 5\n[work]')
    text = text.replace("tokens = 16\n", "")
    problem = load_problem(write_problem(tmp_path, text))
    first, second = problem.workloads
    assert list(first.sizes) == list(second.sizes) == ["tokens", "d", "half_", "wide"]
    assert first.sizes["tokens"] == 1024
    assert second.sizes == {"tokens": 5, "d": 64, "half_": 32, "wide": 64}
    assert first.name == "tokens=1024,d=11008"


def test_a_baseline_takes_entry_and_options_from_the_problem(tmp_path: Path) -> None:
    text = PROBLEM.replace("[work]", '[baseline]\nkernel = "silu.cl"\n[work]')
    baseline = load_problem(write_problem(tmp_path, text)).baseline
    assert baseline is not None
    assert baseline.entry == "silu"
    assert baseline.options == ("-cl-mad-enable",)
    own = text.replace('"silu.cl"\n[work]', '"silu.cl"\nentry = "plain"\noptions = []\n[work]')
    baseline = load_problem(write_problem(tmp_path, own)).baseline
    assert baseline is not None
    assert (baseline.entry, baseline.options) == ("plain", ())


@pytest.mark.parametrize(
    ("fill", "kind", "low", "high"),
    [
        ("", "normal", None, None),
        ("range = [0, 1]", "uniform", 0, 1),
        ("scale = 0.5", "normal", None, 0.5),
        ("value = 2", "constant", 2, 2),
        ('distribution = "integers", range = [0, 9]', "integers", 0, 9),
    ],
)
def test_inputs_are_filled_as_their_keys_say(
    fill: str, kind: str, low: float | None, high: float | None, tmp_path: Path
) -> None:
    text = PROBLEM.replace(", " + X_FILL, f", {fill}" if fill else "")
    distribution = load_problem(write_problem(tmp_path, text)).arguments[1].distribution
    assert (distribution.kind, distribution.low, distribution.high) == (kind, low, high)


def test_a_data_file_of_the_right_shape_is_taken(tmp_path: Path) -> None:
    text = PROBLEM.replace(X_FILL, 'file = "data.npy"')
    text = text[: text.rindex("[[workloads]]")].replace("tokens = 1024\nd = 11008", "tokens = 2\nd = 8")
    np.save(tmp_path / "data.npy", np.zeros((2, 16), np.float16))
    problem = load_problem(write_problem(tmp_path, text))
    assert problem.arguments[1].distribution.file == tmp_path / "data.npy"


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("kernel", 'kernel = "silu.cl"'),
        ("reference", 'reference = "reference.py:silu"'),
        ("arguments.x.file", 'file = "data.npy"'),
    ],
)
def test_a_link_that_leads_out_of_the_folder_is_refused_and_one_that_stays_is_not(
    key: str, written: str, tmp_path: Path
) -> None:
    text = PROBLEM.replace(X_FILL, 'file = "data.npy"')
    text = text[: text.rindex("[[workloads]]")].replace("tokens = 1024\nd = 11008", "tokens = 2\nd = 8")
    (tmp_path / "problem" / "inside").mkdir(parents=True)
    np.save(tmp_path / "problem" / "data.npy", np.zeros((2, 16), np.float16))
    problem = write_problem(tmp_path / "problem", text)
    file = tmp_path / "problem" / written.split('"')[1].partition(":")[0]
    place = written.partition('"')[0] + '"' + file.name
    (tmp_path / "reached").symlink_to(tmp_path / "problem")
    for target in (tmp_path / "problem" / "inside" / "real", tmp_path / f"outside{file.suffix}"):
        target.write_bytes(file.read_bytes())
        file.unlink()
        file.symlink_to(target)
        if target.parent == tmp_path:
            with pytest.raises(
                SpecError, match=f"{key} = .* is a link to .*outside.*, outside the problem's folder"
            ) as caught:
                load_problem(problem)
            assert "copy that file" in (caught.value.hint or "")
            assert caught.value.location is not None
            assert text.split("\n")[caught.value.location.line - 1].find(place) >= 0
        else:
            load_problem(problem)
            load_problem(tmp_path / "reached" / "problem.toml")


def test_a_pipe_in_the_place_of_a_file_is_named_as_one(tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    (tmp_path / "silu.cl").unlink()
    os.mkfifo(tmp_path / "silu.cl")
    with pytest.raises(SpecError, match=r"kernel = .silu\.cl. is a device or a pipe, expected kernel source") as caught:
        load_problem(problem)
    assert "did you mean" not in (caught.value.hint or "")


def test_an_empty_kernel_source_is_the_file_to_blame(tmp_path: Path) -> None:
    problem = write_problem(tmp_path, PROBLEM.replace('"min(d // 8, 1024)"', '"BLOCK"'))
    for text in ("", " \n\n"):
        (tmp_path / "silu.cl").write_text(text)
        with pytest.raises(SpecError, match=r"the kernel source silu\.cl is empty") as caught:
            load_template(load_problem(problem))
        assert "'silu'" in (caught.value.hint or "")


def test_scratch_and_local_shapes_may_use_parameters(tmp_path: Path) -> None:
    text = PROBLEM.replace("[launch]", 'tmp = { role = "local", dtype = "float32", shape = ["BLOCK"] }\n[launch]')
    assert load_problem(write_problem(tmp_path, text)).arguments[-1].role == "local"


def test_a_problem_without_a_name_is_called_as_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my kernel"
    folder.mkdir()
    problem = load_problem(write_problem(folder, PROBLEM.replace('name = "silu_and_mul"\n', "")))
    assert problem.name == "my_kernel"


def test_errors_survive_a_process_boundary(tmp_path: Path) -> None:
    import pickle

    with pytest.raises(UserError) as caught:
        load_problem(write_problem(tmp_path, PROBLEM.replace("tokens = 16", "tokens = 0")))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_problem_survives_a_process_boundary(tmp_path: Path) -> None:
    import pickle

    problem = load_problem(write_problem(tmp_path))
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert content_id(problem.workloads[0].sizes) == content_id(pickle.loads(pickle.dumps(problem)).workloads[0].sizes)


def test_special_values_are_asked_for_by_argument(tmp_path: Path) -> None:
    text = PROBLEM.replace("range = [-2, 2]", "range = [-2, 2], special = true")
    assert text != PROBLEM
    problem = load_problem(write_problem(tmp_path, text))
    assert [argument.name for argument in problem.inputs if argument.special] == ["x"]
