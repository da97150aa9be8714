"""Bad input of every kind: exactly one clear message, with file and line where a file is to blame; exit status 2."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelwright.cli.main import main

TOML, KERNEL, REFERENCE = "problem.toml", "saxpy.cl", "reference.py"


@dataclass(frozen=True)
class Mistake:
    """One change to a good problem, and what is said of it."""

    name: str
    file: str
    old: str
    new: str
    words: str
    """A pattern for the message."""
    place: str | None = None
    """Text on the line that must be named, in `place_file`; None: no line can be."""
    place_file: str | None = None
    """The file that is named; None: the changed one."""

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        text = path.read_text()
        assert self.old in text, "the table does not fit the problem"
        path.write_text(text.replace(self.old, self.new, 1))

    def location(self, folder: Path) -> str:
        """`FILE:LINE`, or `FILE`."""
        path = folder / (self.place_file or self.file)
        if self.place is None:
            return path.name
        (line,) = [number for number, text in enumerate(path.read_text().splitlines(), 1) if self.place in text]
        return f"{path.name}:{line}:"


FILES = [
    Mistake("unknown-key", TOML, "entry =", "entyr =", r"'entyr'.*\n.*'entry'", "entyr"),
    Mistake("unknown-table", TOML, "[launch]", "[lauch]", r"'lauch'.*\n.*'launch'", "lauch"),
    Mistake("unknown-argument-key", TOML, 'dtype = "float32", shape = ["n"]', 'dtype = "float32", shap = ["n"]',
            r"'shap'.*\n.*'shape'", "shap "),
    Mistake("unknown-role", TOML, 'role = "inout"', 'role = "inuot"', r"'inuot'.*\n?.*inout", "inuot"),
    Mistake("unknown-dtype", TOML, 'role = "scalar", dtype = "int32"', 'role = "scalar", dtype = "int23"', "int23",
            "int23"),
    Mistake("wrong-type", TOML, 'grid = ["n // 32"]', "grid = 32", "grid", "grid = 32"),
    Mistake("wrong-type-of-weight", TOML, "weight = 2", 'weight = "2"', "weight", "weight"),
    Mistake("negative-weight", TOML, "weight = 2", "weight = -2", "weight is -2", "weight"),
    Mistake("size-zero", TOML, "n = 4096", "n = 0", "size 'n' is 0", "n = 0"),
    Mistake("no-toml", TOML, "[launch]", "[launch", "TOML|expected|Expected", "[launch"),
    Mistake("missing-kernel", TOML, "saxpy.cl", "sapxy.cl", r"'sapxy.cl' does not exist\n.*'saxpy.cl'", "sapxy"),
    Mistake("missing-reference", TOML, "reference.py:", "refrence.py:", r"refrence.py.*\n.*reference.py", "refrence"),
    Mistake("missing-function", TOML, "reference.py:saxpy", "reference.py:sapxy", r"'sapxy'.*\n.*'saxpy'", "sapxy"),
    Mistake("missing-data", TOML, 'x = { role = "input", ',
            'x = { role = "input", distribution = "file", file = "x.npy", ', "x.npy", "x.npy"),
    Mistake("kernel-elsewhere", TOML, '"saxpy.cl"', '"../saxpy.cl"', "outside the problem's folder", "../saxpy"),
    Mistake("no-workloads", TOML, "[[workloads]]", "[[worklaods]]", "worklaods", None),
    Mistake("missing-entry", TOML, 'entry = "saxpy"', 'entry = "axpy"', r"'axpy'.*\n.*'saxpy'", 'entry = "axpy"'),
    Mistake("unknown-name", TOML, 'value = "n"', 'value = "m"', "'m'", 'value = "m"'),
    Mistake("circular-sizes", TOML, "[arguments]", '[sizes]\na_ = "b_ + 1"\nb_ = "a_ + 1"\n[arguments]', "in a circle",
            None),
    Mistake("python-in-expression", TOML, 'value = "n"', 'value = "__import__(\'os\')"', "__import__", "__import__"),
    Mistake("division-by-zero-in-shape", TOML, 'shape = ["n"]', 'shape = ["n // (n - n)"]', "division by zero",
            "n - n"),
    Mistake("scalar-too-large", TOML, 'value = "n"', 'value = "n * 2 ** 40"', "int32", "2 ** 40"),
    Mistake("huge-power", TOML, 'value = "n"', 'value = "9 ** 9 ** 9"', "bits|large|big", "9 ** 9"),
    Mistake("arguments-out-of-order", TOML, 'a = { role = "scalar", dtype = "float32", value = "2.5" }\n', "",
            "argument", "[launch]", KERNEL),
    Mistake("header-no-toml", KERNEL, "[constraints]", "[constraints", "TOML|expected|Expected", "[constraints"),
    Mistake("header-unknown-key", KERNEL, "default = 32", "defualt = 32", r"'defualt'.*\n.*'default'", "defualt"),
    Mistake("header-unknown-table", KERNEL, "[constraints]", "[constrains]", r"'constrains'.*\n.*'constraints'",
            "[constrains]"),
    Mistake("default-not-a-value", KERNEL, "default = 32", "default = 33", "33", "default = 33"),
    Mistake("default-breaks-constraint", KERNEL, '"n % (BLOCK * ITEMS) == 0"', '"BLOCK > 32"', "'whole'.*BLOCK = 32",
            "BLOCK > 32"),
    Mistake("unused-parameter", KERNEL, "// [constraints]",
            "// UNROLL = { values = [1, 2], default = 1 }\n// [constraints]", "'UNROLL' is used nowhere", "UNROLL"),
    Mistake("unknown-name-in-constraint", KERNEL, '"n % (BLOCK', '"n % (BLOKC', r"'BLOKC'.*(\n.*)*'BLOCK'", "BLOKC"),
    Mistake("parameter-defined-in-source", KERNEL, "#ifndef BLOCK\n#define BLOCK 32\n#endif", "#define BLOCK 32",
            "defines BLOCK itself", "#define BLOCK 32"),
    Mistake("division-by-zero-in-block", KERNEL, 'block = ["BLOCK"]', 'block = ["BLOCK * 32 // (32 - BLOCK)"]',
            "division by zero", "32 - BLOCK"),
    Mistake("wrong-argument-type", KERNEL, "float a, int n", "float a, float n", "'n'", None),
    Mistake("empty-space", KERNEL, '"n % (BLOCK * ITEMS) == 0"',
            '"BLOCK == 32 && ITEMS == 1"\n// never = "BLOCK > 32 || n < 64"', "never|whole", None),
    Mistake("reference-syntax", REFERENCE, "return a * x + y", "return a * x +", "syntax", "return a * x +"),
]  # fmt: skip


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, message, and standard output."""
    with pytest.raises(SystemExit) as exit_:
        main(words)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    said = captured.err[captured.err.index("kernelwright: ") :] if "kernelwright: " in captured.err else captured.err
    assert said.count("kernelwright: ") <= 1, "one message"
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, said, captured.out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("mistake", FILES, ids=lambda mistake: mistake.name)
def test_mistake_in_a_file_is_named_with_its_line(
    mistake: Mistake, saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake.apply(saxpy)
    before = contents(saxpy)
    status, said, out = run(["tune", str(saxpy), "--budget", "1"], capsys)
    assert status == 2
    assert re.search(mistake.words, said), said
    assert mistake.location(saxpy) in said
    assert out == ""
    assert not list(in_tmp.iterdir()), "something was written"
    assert contents(saxpy) == before


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize(
    "mistake",
    [
        Mistake("raises", REFERENCE, "return a * x + y", "raise KeyError('lost')", "KeyError.*lost", "raise KeyError"),
        Mistake(
            "raises-what-cannot-be-shown",
            REFERENCE,
            "def saxpy(x, y, a):\n    return a * x + y",
            "class Evil(BaseException):\n    def __str__(self): raise self\ndef saxpy(x, y, a): raise Evil",
            "raised Evil, whose text cannot be had",
            "def saxpy",
        ),
        Mistake(
            "nan",
            REFERENCE,
            "return a * x + y",
            "return a * x + y * float('nan')",
            "4096 of 4096 values are not finite",
            "reference =",
            TOML,
        ),
        Mistake(
            "other-shape",
            REFERENCE,
            "return a * x + y",
            "return (a * x + y)[:-1]",
            r"4095.*expected \(4096,\)",
            "reference =",
            TOML,
        ),
        Mistake("wrong-values", REFERENCE, "a * x + y", "a * x - y", "baseline is wrong.*'small'", "kernel =", TOML),
        Mistake("does-not-compile", KERNEL, "int base", "itn base", "does not build.*'itn'", "itn base"),
    ],
    ids=lambda mistake: mistake.name,
)
def test_mistake_that_only_running_shows_is_named_with_its_file(
    mistake: Mistake, saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake.apply(saxpy)
    status, said, out = run(["tune", str(saxpy), "--budget", "1", "--jobs", "1", "--searcher", "random"], capsys)
    assert status == 2
    assert re.search(mistake.words, said, re.DOTALL), said
    assert mistake.location(saxpy) in said
    assert out == ""
    assert not [path for path in in_tmp.rglob("*") if path.is_file()], "a run that never began is left"


def test_missing_problem(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "empty").mkdir()
    (in_tmp / "kernel.cl").write_text("__kernel void k(__global float *x) { x[0] = 1; }")
    for words, message in {
        "nowhere": "nowhere does not exist",
        "empty": "holds no problem.toml",
        "kernel.cl": "kernelwright init kernel.cl",
    }.items():
        status, said, _ = run(["tune", words], capsys)
        assert status == 2
        assert message in said


def test_a_file_that_is_no_text(saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (KERNEL, REFERENCE, TOML):
        (saxpy / name).write_bytes(b"\x7fELF\xff\xfe\x00\x01" * 20)
        status, said, _ = run(["tune", str(saxpy)], capsys)
        assert status == 2
        assert name in said


WORDS = {
    # Words after `tune SAXPY`, and what is said of them.
    "--budget abc": "'abc' in the budget 'abc'",
    "--budget -5": "'-5'",
    "--budget 0": "'0'",
    "--budget nan": "'nan'",
    "--budget 5parsecs": r"'5parsecs'.*no known unit",
    "--budget 2.5": "no known unit",
    "--budget 5m,": "''",
    "--option BLOCK": "'BLOCK' is not NAME=VALUE",
    "--option =3": "'=3' is not NAME=VALUE",
    "--searcher evolution --option population_cuont=5": r"'population_cuont'.*'population_count'",
    "--searcher evolution --option population_count=many": r"'many'.*expected int",
    "--searcher evolution --option population_count=-1": "at least",
    "--searcher evolutoin": r"'evolutoin'.*'evolution'",
    "--cache warm": r"'warm'.*hot or cold",
    "--device gpu:7": r"no device fits 'gpu:7'; there is opencl",
    "--replay nowhere": "there is no run nowhere",
    "--prior nowhere": "there is no run nowhere",
    "--jobs 0": "greater than or equal to 1",
    "--finalists 0": "greater than or equal to 1",
    "--rounds 2": "greater than or equal to 5",
    "--seed -1": "greater than or equal to 0",
    "--seed x": "valid integer",
    "--sed 1": r"No such option.*--seed",
    "extra": "unexpected extra argument",
}


@pytest.mark.parametrize("words", WORDS)
def test_words_of_tune_that_make_no_sense(
    words: str, saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said, out = run(["tune", str(saxpy), *words.split(" ")], capsys)
    assert status == 2
    assert re.search(WORDS[words], said, re.DOTALL), said
    assert out == ""
    assert not [path for path in in_tmp.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tnue x", "No such command 'tnue'"),
        ("tune", "Missing argument"),
        ("show", ""),
        ("show rnus", "No such command 'rnus'"),
        ("show run nowhere", "there is no run nowhere"),
        ("show run .", "is not a run folder"),
        ("show run a-file", "is a file; a run folder was expected"),
        ("show candidate . 0", "is not a run folder"),
        ("report .", "is not a run folder"),
        ("report nowhere --out r.html", "there is no run nowhere"),
        ("export .", "is not a run folder"),
        ("resume nowhere", "there is no run nowhere"),
        ("resume .", "is not a run folder"),
        ("resume a-file", "is a file; a run folder was expected"),
        ("init nowhere.cl", "nowhere.cl"),
        ("init .", "."),
        ("init a-file", "a-file"),
        ("init good.cl --entry other", "'other'"),
        ("init good.cl --out a-file", "cannot write the problem into a-file: a file lies where a folder is needed"),
        ("init good.cl --out a-file/below", "hint: say another --out"),
        ("dispatch nowhere --rounds 0", "'--rounds'"),
        ("init empty.cl", "empty.cl"),
        ("init broken.cl", "broken.cl"),
        ("doctor --jsno", "--json"),
    ],
)
def test_words_of_other_commands_that_make_no_sense(
    words: str, message: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "a-file").write_text("some text")
    (in_tmp / "good.cl").write_text("__kernel void k(__global float *x, int n) { x[get_global_id(0)] = n; }")
    (in_tmp / "empty.cl").write_text("")
    (in_tmp / "broken.cl").write_text("__kernel void k(__global float *x, int { x[0] = 1; }")
    before = contents(in_tmp)
    status, said, _ = run(words.split(), capsys)
    assert status == 2
    assert message in said
    assert contents(in_tmp) == before
