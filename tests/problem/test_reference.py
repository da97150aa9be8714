"""The reference: what it gets, what it may return, and every way in which it can be wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernelwright.errors import ReferenceFailed
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem, ReferenceSpec
from kernelwright.problem.reference import call_reference, load_reference
from kernelwright.problem.reference_file import reference_files

PROBLEM = """\
kernel = "k.cl"
entry = "k"
reference = "reference.py:f"
[arguments]
y = { role = "output", dtype = "float16", shape = ["n", "m"] }
x = { role = "input", dtype = "float16", shape = ["n", "m"] }
z = { role = "inout", dtype = "int32", shape = ["n"] }
flags = { role = "input", dtype = "bool", shape = ["n"] }
alpha = { role = "scalar", dtype = "float32", value = 0.1 }
count = { role = "scalar", dtype = "uint8", value = "n" }
is_on = { role = "scalar", dtype = "bool", value = "n > 1" }
[[workloads]]
n = 2
m = 3
"""

GOOD = "def f(x, z):\n    return x * 2, z\n"

Array = npt.NDArray[Any]


def make(folder: Path, reference: str = GOOD) -> Problem:
    (folder / "problem.toml").write_text(PROBLEM)
    (folder / "k.cl").write_text("__kernel void k() {}")
    (folder / "reference.py").write_text(reference)
    return load_problem(folder)


def inputs() -> dict[str, Array]:
    return {
        "x": np.arange(6, dtype=np.float16).reshape(2, 3),
        "z": np.array([1, 2], np.int32),
        "flags": np.array([True, False]),
    }


def run(folder: Path, reference: str) -> Mapping[str, Array]:
    problem = make(folder, reference)
    return call_reference(load_reference(problem.reference), problem, problem.workloads[0], inputs())


def fails(folder: Path, reference: str, message: str) -> ReferenceFailed:
    with pytest.raises(ReferenceFailed, match=message) as caught:
        run(folder, reference)
    assert caught.value.exit_status == 2
    return caught.value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "returned None"),
        ("return x", "returned 1 arrays, expected 2: y, z"),
        ("return x, z, z", "returned 3 arrays"),
        ("return {'y': x}", "returned no 'z'"),
        ("return {'y': x, 'zz': z}", "returned 'zz', which is no output"),
        ("return x[0], z", r"the shape \(3,\) for output 'y' on workload 'n=2,m=3', expected \(2, 3\) \(n, m\)"),
        ("return x.T, z", r"the shape \(3, 2\)"),
        ("return 1.0, z", r"the shape \(\)"),
        ("return 'a', z", "returned an array of <U1"),
        ("return x * 1j, z", "complex"),
        ("return [[1], [2, 3]], z", "expected an array of numbers"),
        ("return x / 0, z", r"inf in output 'y'.*at index \[0, 1\]|nan in output 'y'.*at index \[0, 0\]"),
        ("x[1, 2] = float('nan'); return x, z", r"nan in output 'y'.*at index \[1, 2\] \(1 of 6 values"),
        ("return x, z * float('inf')", "inf in output 'z'"),
    ],
)
def test_a_wrong_result_is_named(body: str, message: str, tmp_path: Path) -> None:
    fails(tmp_path, f"def f(x, z):\n    {body}\n", message)


def test_an_exception_is_reported_at_the_users_innermost_line(tmp_path: Path) -> None:
    text = "import numpy as np\n\ndef g(x):\n    return np.reshape(x, (7,))\n\ndef f(x, z):\n    return g(x), z\n"
    error = fails(tmp_path, text, "on workload 'n=2,m=3', raised ValueError: cannot reshape")
    assert error.location is not None
    assert (error.location.file.name, error.location.line) == ("reference.py", 4)


@pytest.mark.parametrize("cause", ["error", "ValueError('of another')"])
def test_an_exception_that_is_its_own_cause_is_reported_as_any_other(cause: str, tmp_path: Path) -> None:
    """`raise error from error` is legal."""
    text = f"""import json
def f(x, z):
    try:
        json.loads("{{")
    except ValueError as error:
        cause = {cause}
        cause.__cause__ = error
        raise error from cause
"""
    error = fails(tmp_path, text, "raised JSONDecodeError: Expecting property name")
    assert error.location is not None
    assert error.location.line == 4


def test_leaving_the_process_is_an_exception_too(tmp_path: Path) -> None:
    fails(tmp_path, "import sys\ndef f(x):\n    sys.exit(0)\n", "raised SystemExit: 0")
    fails(tmp_path, "def f(x):\n    raise KeyboardInterrupt\n", "raised KeyboardInterrupt")


UNSHOWABLE = """
class Evil(BaseException):
    def __str__(self):
        raise Evil
    __repr__ = __str__
class Unshowable(Exception):
    def __str__(self):
        raise KeyError
class Lazy:
    def __array__(self, *args, **kwargs):
        raise Evil
"""


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise GeneratorExit", "raised GeneratorExit"),
        ("raise type('Mine', (BaseException,), {})('lost')", "raised Mine: lost"),
        ("raise BaseExceptionGroup('several', [KeyboardInterrupt()])", r"raised BaseExceptionGroup: several \(1 "),
        ("raise Evil", "raised Evil, whose text cannot be had: that raised Evil"),
        ("raise Unshowable", "raised Unshowable, whose text cannot be had: that raised KeyError"),
        ("raise ValueError('x' * 1_000_000)", r"raised ValueError: x{2000}\.\.\.$"),
        ("return Lazy(), z", "raised Evil"),
    ],
)
def test_whatever_a_reference_raises_is_one_message(statement: str, message: str, tmp_path: Path) -> None:
    error = fails(tmp_path, f"{UNSHOWABLE}\ndef f(x, z):\n    {statement}\n", message)
    assert error.location is not None
    assert error.location.line in (11, 14)
    if statement.startswith("raise"):
        problem = make(tmp_path, f"{UNSHOWABLE}\n{statement}\ndef f(x, z): pass\n")
        with pytest.raises(ReferenceFailed, match=message):
            load_reference(problem.reference)


def test_a_reference_that_is_not_filled_in_says_so(tmp_path: Path) -> None:
    error = fails(tmp_path, "def f(x):\n    raise NotImplementedError('fill in f')\n", "NotImplementedError: fill in f")
    assert "fill in the reference" in (error.hint or "")


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("import numpy\n1 / 0\ndef f(x): pass\n", "importing the reference raised ZeroDivisionError", 2),
        ("import not_there\ndef f(x): pass\n", "ModuleNotFoundError", 1),
    ],
)
def test_a_file_that_cannot_be_imported_has_its_line(text: str, message: str, line: int, tmp_path: Path) -> None:
    problem = make(tmp_path, text)
    with pytest.raises(ReferenceFailed, match=message) as caught:
        load_reference(problem.reference)
    assert caught.value.location is not None
    assert caught.value.location.line == line


def test_a_syntax_error_in_an_imported_neighbour_has_its_file(tmp_path: Path) -> None:
    (tmp_path / "neighbour_a.py").write_text("x = 1\ny = = 2\n")
    problem = make(tmp_path, "import neighbour_a\ndef f(x): pass\n")
    with pytest.raises(ReferenceFailed, match="Python syntax error") as caught:
        load_reference(problem.reference)
    assert caught.value.location is not None
    assert (caught.value.location.file.name, caught.value.location.line) == ("neighbour_a.py", 2)


def test_a_missing_function_names_the_nearest(tmp_path: Path) -> None:
    make(tmp_path, "def soft(x): pass\ndef f(x): pass\nnumber = int('3')\n")
    with pytest.raises(ReferenceFailed, match="'softt' does not exist") as caught:
        load_reference(ReferenceSpec(tmp_path / "reference.py", "softt"))
    assert caught.value.hint == "did you mean 'soft'?"
    with pytest.raises(ReferenceFailed, match="'number' is not a function"):
        load_reference(ReferenceSpec(tmp_path / "reference.py", "number"))


@pytest.mark.parametrize(
    ("parameter", "message", "hint"),
    [
        ("xx", "asks for 'xx', which is no input, scalar or size", "did you mean 'x'?"),
        ("y", "asks for 'y', which is an output", "return the output instead"),
        ("alfa", "asks for 'alfa'", "did you mean 'alpha'?"),
    ],
)
def test_an_unknown_parameter_names_the_nearest(parameter: str, message: str, hint: str, tmp_path: Path) -> None:
    error = fails(tmp_path, f"\n\ndef f(z, {parameter}):\n    return z\n", message)
    assert hint in (error.hint or "")
    assert error.location is not None
    assert error.location.line == 3


def test_arguments_come_exact_and_by_name(tmp_path: Path) -> None:
    text = """
import numpy as np
def f(m, alpha, x, flags, z, count, is_on, /, *, n, other=5):
    assert x.dtype == np.float64 and z.dtype == np.int64 and flags.dtype == np.bool_
    assert alpha == float(np.float32(0.1)) and type(alpha) is float
    assert (n, m, count, other) == (2, 3, 2, 5) and is_on is True
    return x, z
"""
    results = run(tmp_path, text)
    assert results["y"].dtype == np.float64
    np.testing.assert_array_equal(results["y"], inputs()["x"])


def test_everything_can_be_asked_for_at_once(tmp_path: Path) -> None:
    text = "def f(**named):\n    assert sorted(named) == sorted(%r), named\n    return named['x'], named['z']\n"
    run(tmp_path, text % ["x", "z", "flags", "alpha", "count", "is_on"])


@pytest.mark.parametrize("result", ["(x, z)", "[x, z]", "{'z': z, 'y': x}", "(x.tolist(), z.tolist())"])
def test_results_may_come_as_tuple_list_or_dict(result: str, tmp_path: Path) -> None:
    results = run(tmp_path, f"def f(x, z):\n    return {result}\n")
    assert list(results) == ["y", "z"]
    np.testing.assert_array_equal(results["z"], [1, 2])


def test_one_value_may_come_as_a_number(tmp_path: Path) -> None:
    make(tmp_path)
    text = PROBLEM.replace('shape = ["n", "m"] }\nx', "shape = [1] }\nx").replace("inout", "input")
    (tmp_path / "problem.toml").write_text(text)
    (tmp_path / "reference.py").write_text("def f(x):\n    return x.sum()\n")
    problem = load_problem(tmp_path)
    results = call_reference(load_reference(problem.reference), problem, problem.workloads[0], inputs())
    assert results["y"].tolist() == [15.0]


def test_what_the_reference_does_to_its_inputs_does_not_matter(tmp_path: Path) -> None:
    problem = make(tmp_path, "def f(x, z):\n    x *= 2\n    z += 1\n    return x, z\n")
    given = inputs()
    given["x"] = given["x"].astype(np.float64)
    for values in given.values():
        values.setflags(write=False)
    results = call_reference(load_reference(problem.reference), problem, problem.workloads[0], given)
    np.testing.assert_array_equal(results["y"], 2 * inputs()["x"])
    np.testing.assert_array_equal(given["x"], inputs()["x"])


def test_a_reference_may_import_its_neighbours_and_leaves_no_cache(tmp_path: Path) -> None:
    (tmp_path / "neighbour_b.py").write_text("def twice(x):\n    import neighbour_c\n    return x * neighbour_c.TWO\n")
    (tmp_path / "neighbour_c.py").write_text("TWO = 2\n")
    results = run(tmp_path, "import neighbour_b\ndef f(x, z):\n    return neighbour_b.twice(x), z\n")
    assert results["y"][1, 2] == 10
    assert not (tmp_path / "__pycache__").exists()
    assert str(tmp_path) not in sys.path


def test_a_copy_of_a_problem_needs_the_neighbours_it_imports(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for name in ("a.py", "b.py", "unused.py", "package/__init__.py", "package/c.py"):
        (tmp_path / name).write_text("import b\nfrom package import c\n" if name == "a.py" else "X = 1\n")
    problem = make(tmp_path, "import os, a\nimport numpy.linalg\ndef f(x): pass\n")
    names = sorted(path.relative_to(tmp_path).as_posix() for path in reference_files(problem.reference))
    assert names == ["a.py", "b.py", "package/__init__.py", "package/c.py", "reference.py"]


class Tensor:
    """As much of a tensor as the conversion touches."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def __mul__(self, other: float) -> Tensor:
        return Tensor(self.values * other)

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def is_floating_point(self) -> bool:
        return self.values.dtype.kind == "f"

    def double(self) -> Tensor:
        return Tensor(self.values.astype(np.float64))

    def numpy(self) -> Array:
        return self.values


Tensor.__module__ = "torch"


@pytest.mark.parametrize("statement", ["import torch", "import torch as t", "from torch import from_numpy"])
def test_a_file_that_imports_torch_gets_tensors(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = ModuleType("torch")

    def from_numpy(values: Array) -> Tensor:
        return Tensor(values)

    from_numpy.__module__ = "torch"
    torch.from_numpy = from_numpy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    text = f"{statement}\ndef f(x, z, alpha):\n    assert type(x).__name__ == 'Tensor'\n    return x * 2, z\n"
    results = run(tmp_path, text)
    np.testing.assert_array_equal(results["y"], 2 * inputs()["x"])


def test_torch_elsewhere_in_the_process_does_not_make_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    run(tmp_path, "def f(x, z):\n    assert type(x).__name__ == 'ndarray'\n    return x, z\n")
