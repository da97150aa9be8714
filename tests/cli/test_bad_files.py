"""A sweep of malformed problems: every key with every wrong type, hostile texts, numbers, names and files.

Each is refused before any device is looked for: exit status 2, one message that names the file and its line, no
traceback, nothing written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning import tune as engine_tune

TOML, KERNEL, REFERENCE = "problem.toml", "saxpy.cl", "reference.py"
FILES = (TOML, KERNEL, REFERENCE)

X = 'x = { role = "input", dtype = "float32", shape = ["n"] }'
BLOCK = 'BLOCK = { values = [16, 32, 64, 128], default = 32, why = "threads of a block" }'
CONSTRAINT = '"n % (BLOCK * ITEMS) == 0"'


@dataclass(frozen=True)
class Bad:
    """One malformed problem; `has_line`: whether a line can be named, not just a file."""

    name: str
    apply: Callable[[Path], None]
    words: str = ""
    has_line: bool = True


def put(file: str, old: str, new: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))

    return apply


def key(name: str, value: str) -> Callable[[Path], None]:
    """Write a top key, in place of the one that is there."""

    def apply(folder: Path) -> None:
        text = (folder / TOML).read_text()
        text = re.sub(rf"(?ms)^{name} = .*?\n", "", text)
        text = re.sub(rf"(?ms)^\[+{name}\]+\n.*?(?=^\[|\Z)", "", text)
        (folder / TOML).write_text(f"{name} = {value}\n{text}")

    return apply


def data(file: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / file).write_bytes(change((folder / file).read_bytes()))

    return apply


def link(file: str, target: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / file).unlink()
        (folder / file).symlink_to(target)

    return apply


def folder_instead(file: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / file).unlink()
        (folder / file).mkdir()

    return apply


def files() -> Iterator[Bad]:
    for file in FILES:
        is_toml = file == TOML
        yield Bad(f"{file}-utf16", data(file, lambda text: text.decode().encode("utf-16")), "not UTF-8")
        yield Bad(f"{file}-latin1", data(file, lambda text: text.replace(b"saxpy", b"sax\xe9", 1)), "not UTF-8")
        yield Bad(f"{file}-nul", data(file, lambda text: text + b"\0\0"), "NUL")
        yield Bad(f"{file}-empty", data(file, lambda text: b""), "", has_line=file != KERNEL)
        yield Bad(f"{file}-folder", folder_instead(file), "is a folder", has_line=not is_toml)
        yield Bad(f"{file}-dangling", link(file, "nowhere"), "not exist|holds no problem.toml", has_line=not is_toml)
        yield Bad(f"{file}-loop", link(file, file), "", has_line=not is_toml)
        yield Bad(f"{file}-device", link(file, "/dev/null"), "", has_line=not is_toml)
    yield Bad("carriage-returns-alone", data(TOML, lambda text: text.replace(b"\n", b"\r")), "TOML")
    yield Bad("nested-toml", data(TOML, lambda text: b"x = " + b"[" * 5000 + b"]" * 5000), "too deeply")
    for name, old in {"key": "entry =", "header": "[launch]", "inline": "n = 4096"}.items():
        parts = ".".join(["a", '"b.c"', "'d'", "e-1"] * 5000)
        new = {"key": f"{parts} = 1", "header": f"[{parts}]", "inline": f"n = {{ {parts} = 4096 }}"}[name]
        yield Bad(f"endless-{name}", put(TOML, old, f"{new}\n{old}"), "dotted key has more than 32 parts")
    yield Bad("endless-word", put(TOML, "entry =", f"{'e' * 1_000_000} = 1\nentry ="), "unknown key 'eeee")
    arguments = "".join(f'z{k} = {{ role = "scalar", dtype = "int32", value = "n" }}\n' for k in range(5000))
    yield Bad("endless-arguments", put(TOML, "n = { role", f"{arguments}n = {{ role"), "passes 5004 arguments")
    yield Bad("endless-number", put(TOML, "weight = 2", "weight = " + "9" * 5000), "too long")
    yield Bad("table-twice", put(TOML, "[launch]", "[arguments.x]\nz = 1\n[launch]"), "TOML")
    yield Bad("nested-python", data(REFERENCE, lambda text: b"x = " + b"(" * 5000 + b")" * 5000), "")
    yield Bad("deep-python", data(REFERENCE, lambda text: b"x = " + b"-" * 9000 + b"1"), "cannot parse", has_line=False)
    yield Bad("mixed-tabs", data(REFERENCE, lambda text: b"def saxpy():\n\tif 1:\n        return 1\n"), "syntax")
    yield Bad("reference-is-a-number", data(REFERENCE, lambda text: b"saxpy = 1\n"), "not a function: 1")
    yield Bad("reference-is-a-class", data(REFERENCE, lambda text: b"class saxpy: pass\n"), "is a class")
    yield Bad("reference-is-async", data(REFERENCE, lambda text: b"async def saxpy(): pass\n"), "async")
    yield Bad("no-kernel", data(KERNEL, lambda text: b"int f() { return 1; }\n"), "", has_line=True)


WRONG_TYPES = ("1", "1.5", "true", '"text"', "[]", "[1]", "{}", "{ a = 1 }", "1979-05-27")
TOP_KEYS = {
    # By key: the values of WRONG_TYPES that are right.
    "name": ('"text"',), "kernel": (), "entry": (), "reference": (), "options": ("[]",), "include_paths": ("[]",),
    "arguments": (), "baseline": (), "tolerance": ("{}",), "work": ("{}",), "sizes": ("{}", "{ a = 1 }"),
    "workloads": (),
}  # fmt: skip


def top_keys() -> Iterator[Bad]:
    for name, right in TOP_KEYS.items():
        for value in WRONG_TYPES:
            if value not in right:
                yield Bad(f"{name}={value}", key(name, value))
    for name, values in {
        "name": ('""', '" "', '"a/b"', '"../x"', '"-x"', '"é"', '"a\\u0000"'),
        "kernel": ('""', '"."', '"/etc/passwd"', '"saxpy.txt"', '"a\\nb.cl"', '"../saxpy.cl"'),
        "entry": ('""', '"sax py"', '"saxpy<"', '"saxpy<float>"', '"é"'),
        "reference": ('""', '"reference.py"', '":f"', '"reference.py:"', '"reference.py:1x"', '"saxpy.cl:f"'),
        "options": ('["a", 1]', '[""]', '["-DX={"]', '["-DX={n +}"]', '["-DX={nn}"]'),
        "include_paths": ('["absent"]', '["/usr"]', '[".."]', '[""]', '["saxpy.cl"]'),
        "tolerance": ("{ x = { rtol = 1 } }", "{ y = {} }", "{ y = { rtol = -1 } }", "{ y = { rtol = nan } }",
                      '{ y = { rtol = "1" } }', "{ y = { atoll = 1 } }", "{ y = { rtol = 1, because = 1 } }"),
        "sizes": ('{ m = "m + 1" }', '{ m = "q" }', '{ m = "n ** 40" }', "{ m = 1.5 }", "{ int = 1 }"),
        "work": ('{ operations = "-n" }', '{ operations = "BLOCK" }', '{ flops = "n" }', "{ bytes = [] }"),
    }.items():  # fmt: skip
        for value in values:
            yield Bad(f"{name}={value}", key(name, value))


ARGUMENTS = (
    "1", "[]", "{}", "{ role = 1 }",
    *(
        '{ role = "input", ' + rest + " }"
        for rest in (
            "dtype = 1", 'dtype = "float"', 'dtype = "float32"', 'dtype = "float32", shape = "n"',
            *(
                f'dtype = "float32", shape = {shape}'
                for shape in (
                    "[]", "[[]]", "[true]", "[-1]", '["-n"]', '["n - n"]', "[0]", "[1.5]", '["n / 3"]', '[""]',
                    '["n * 1e300 * 1e300"]', '["n * 2 ** 50"]', '["2 ** 62", "2 ** 62"]', '["n", "n", "n", "n", "n"]',
                    '["' + "n + " * 3000 + 'n"]', '["n; import os"]', '["n.real"]', '["[n]"]', '["lambda: n"]',
                    "[" + "1, " * 32 + "1]", "[" + "1, " * 70_000 + "1]", '["x"]',
                    '["' + "-" * 500 + 'n"]', '["n // 0"]', '["n if"]', "[nan]", "[1e400]",
                )
            ),
            *(
                f'dtype = "float32", shape = ["n"], {fill}'
                for fill in (
                    "range = [0]", "range = [nan, 1]", "range = [0, 1e40]", "range = [1, 0]", 'range = "0..1"',
                    'scale = "1"', "scale = 0", "scale = -1", "scale = 1e400", "value = true", "value = 1e39",
                    "file = 1", 'file = "."', 'file = "saxpy.cl"', 'file = "../x.npy"', "special = 1",
                    'special = "true"', "special = true, value = 1", 'distribution = "gauss"', "distribution = 1",
                    "colour = 1",
                )
            ),
        )
    ),
    '{ role = "scalar", dtype = "float32" }', '{ role = "scalar", dtype = "float32", value = [] }',
    "{ role = \"scalar\", dtype = \"float32\", value = \"'a'\" }", '{ role = "scalar", dtype = "int8", value = "n" }',
    '{ role = "scalar", dtype = "float32", value = "n", shape = ["n"] }', '{ role = "local", dtype = "float32" }',
    '{ role = "output", dtype = "float32", shape = ["n"], special = 1 }',
)  # fmt: skip

PARAMETERS = (
    "1", "[]", "{}", "{ values = [], default = 1 }", "{ values = 1, default = 1 }", "{ values = [16, 32] }",
    "{ values = [16, 16], default = 16 }", '{ values = [16, "a"], default = 16 }', "{ values = [[1]], default = [1] }",
    "{ values = [nan], default = nan }", "{ values = [inf], default = inf }", '{ values = [16], default = "16" }',
    "{ values = [true, 1], default = 1 }", "{ values = [16], range = [1, 2], default = 16 }",
    "{ range = [1], default = 1 }", "{ range = [4, 1], default = 1 }", "{ range = [1, 4, 0], default = 1 }",
    "{ range = [1, 4, -1], default = 1 }", "{ range = [1, 1e18], default = 1 }",
    "{ range = [1, 100000000000], default = 1 }", '{ range = ["a", "b"], default = 1 }',
    "{ powers_of_two = [3, 64], default = 4 }", "{ powers_of_two = [0, 64], default = 4 }",
    "{ powers_of_two = [64, 2], default = 4 }", "{ powers_of_two = [1, 1e300], default = 4 }",
    "{ values = [1979-05-27], default = 1 }", "{ values = [32], default = 32, why = 1 }",
    '{ values = [32], default = 32, wy = "x" }', '{ values = [""], default = "" }',
    "{ values = [" + "".join(f"{k}, " for k in range(200_000)) + "], default = 32 }",
    "{ values = [" + "".join(f'"v{k}", ' for k in range(200_000)) + "], default = 32 }",
    "{ values = [" + "".join(f"{k}, " for k in range(99_999)) + "5], default = 32 }",
    '{ values = ["a\\nb"], default = "a\\nb" }', '{ values = ["a\\u0000"], default = "a\\u0000" }',
    "{ values = [-32], default = -32 }", "{ values = [0], default = 0 }", "{ values = [32], default = true }",
)  # fmt: skip

CONDITIONS = (
    "1", "true", '""', "[]", "{}", '"n %"', '"n % 0 == 0"', '"n == 1"', '"BLOCK + (1"', '"device.foo > 1"',
    '"BLOCK = 32"', "\"'a' > 1\"", '"' + "BLOCK == 1 or " * 800 + 'True"', '"' + "-" * 500 + '1"',
    '"2 ** 100000 > 1"', '"1 << 100000 > 1"', '"n @ 2"', '"n if"', '"BLOCK & 1"', '"10 ** 400 * 1.0 > 1"',
    '"sqrt(-1) > 0"', '"log2(0) > 0"', '"open(\'/etc/passwd\')"', '"BLOCK.__class__"', '"min(BLOCK)"', '"BLOCKS > 1"',
    '"32u > 1"', '"BLOCK ? 1 : 0"',
)  # fmt: skip

EXTENTS = ("[]", '"n"', "[1, 1, 1, 1]", '["n", "n // 0"]', "[0]", "[-1]", '["1.5"]', '["BLOK"]', "[true]", "[[]]",
           '["x"]', '["\'a\'"]', "{}")  # fmt: skip

NAMES = ("int", "while", '"é"', '"x y"', '""', "lambda", "None", "device", "min", '"a.b"', "main", '"B-C"', "kernel")


def tables() -> Iterator[Bad]:
    for value in ARGUMENTS:
        yield Bad(f"x={value[:110]}", put(TOML, X, f"x = {value}"))
    for value in PARAMETERS:
        yield Bad(f"BLOCK={value}", put(KERNEL, BLOCK, f"BLOCK = {value}"))
    for value in CONDITIONS:
        yield Bad(f"constraint={value[:40]}", put(KERNEL, CONSTRAINT, value))
    for value in EXTENTS:
        yield Bad(f"grid={value}", put(KERNEL, 'grid = ["n // (BLOCK * ITEMS)"]', f"grid = {value}"))
        yield Bad(f"block={value}", put(KERNEL, 'block = ["BLOCK"]', f"block = {value}"))
    for name in NAMES:
        yield Bad(f"argument-{name}", put(TOML, X, X.replace("x =", f"{name} =", 1)))
        yield Bad(f"size-{name}", put(TOML, "n = 4096", f"n = 4096\n{name} = 3"))
        yield Bad(
            f"parameter-{name}", put(KERNEL, "// ITEMS", f"// {name} = {{ values = [1], default = 1 }}\n// ITEMS")
        )
    for name in ("n", "x", "y", "ITEMS", "saxpy", "__kernel", "get_global_id"):
        yield Bad(
            f"parameter-{name}", put(KERNEL, "// ITEMS", f"// {name} = {{ values = [1], default = 1 }}\n// ITEMS")
        )
    for value in ("-1", "0", "1.5", "true", '"4096"', "[]", "nan", "9223372036854775808", "9" * 23, "4096 4096", ""):
        yield Bad(f"n={value}", put(TOML, "n = 4096", f"n = {value}"))
    for value in ("0", "-1", "nan", "inf", '"2"', "[]", "true", "{}", "1e400"):
        yield Bad(f"weight={value}", put(TOML, "weight = 2", f"weight = {value}"))
    for value in ('""', '" "', "1", '"small"', '"a\\nb"', '"a\\u0007"'):
        yield Bad(f"workload={value}", put(TOML, 'name = "large"', f"name = {value}"))
    yield Bad("argument-twice", put(TOML, X, f"{X}\n{X}"))
    yield Bad("baseline-empty", put(TOML, "[launch]", "[baseline]\n[launch]"))
    yield Bad("header-twice", put(KERNEL, "#ifndef BLOCK", "// /// kernelwright\n// ///\n#ifndef BLOCK"))
    yield Bad("header-open", put(KERNEL, "// ///\n#ifndef", "#ifndef"))
    yield Bad("header-misspelt", put(KERNEL, "/// kernelwright", "/// kernelwrihgt"))
    yield Bad("header-line-without-prefix", put(KERNEL, "// [constraints]", "[constraints]"))
    for table in (
        "[defines]\n// Z = []", '[defines]\n// Z = "n"', '[scratch]\n// t = { role = "input" }', "[scratch]\n// t = 1",
        '[scratch]\n// t = { dtype = "float32", shape = ["-n"] }', 'options = ["-DX={"]',
    ):  # fmt: skip
        yield Bad(f"header-{table.split()[-1]}", put(KERNEL, "// [launch]", f"// {table}\n// [launch]"))


SWEEP = (*files(), *top_keys(), *tables())


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrongly accepted ends as a quick success, not as a long run."""
    monkeypatch.setattr(engine_tune, "LocalMachine", lambda: SimulatedMachine(lambda config, workload: 1.0))


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    captured = capsys.readouterr()
    assert isinstance(exit_.value.code, int | None)
    return exit_.value.code or 0, captured.err


@pytest.mark.parametrize("bad", SWEEP, ids=lambda bad: bad.name)
def test_what_is_malformed_is_refused_with_one_message_and_its_line(
    bad: Bad, saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad.apply(saxpy)
    status, said = run(["tune", str(saxpy), "--budget", "1", "--no-report"], capsys)
    assert status == 2, said
    assert "Traceback" not in said
    assert said.count("kernelwright: ") == 1
    message = said[said.index("kernelwright: ") :]
    place = r"(problem\.toml|saxpy\.cl|reference\.py)" + (r":\d+" if bad.has_line else "")
    assert re.search(place, message), message
    assert re.search(bad.words, message), message
    assert len(message) < 1500, "a message, not a dump"
    assert not list(in_tmp.iterdir()), "something was written"


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")], ids=["denied", "disk"]
)
def test_a_file_that_the_system_does_not_give_is_named(
    file: str,
    error: OSError,
    saxpy: Path,
    in_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == file:
            raise error
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    status, said = run(["tune", str(saxpy), "--budget", "1"], capsys)
    assert status == 2
    assert f"{file}: {error.strerror}" in said
    assert said.count("kernelwright: ") == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: b"\xef\xbb\xbf" + text, id="byte-order-mark"),
        pytest.param(lambda text: text.replace(b"\n", b"\r\n"), id="crlf"),
        pytest.param(lambda text: text + b"\n\n  \n", id="blank-lines"),
    ],
)
def test_what_editors_do_to_files_is_no_mistake(
    change: Callable[[bytes], bytes], saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in FILES:
        data(file, change)(saxpy)
    status, said = run(["tune", str(saxpy), "--budget", "2", "--no-report"], capsys)
    assert status == 0, said


WORDS = {
    # Words after the program's name, and a pattern for what is said.
    "tune :": "holds no problem.toml|not exist",
    "tune SAXPY/reference.py": "kernel source",
    "tune a-file": "TOML",
    "tune binary.toml": "UTF-8",
    "tune SAXPY --run a-file": "a-file",
    "tune SAXPY --run full": "full",
    "tune SAXPY --run /proc/nope": "nope",
    "tune SAXPY --run a-file/x": "a-file",
    "tune SAXPY --run=": "--run is empty",
    "tune SAXPY --device=": "--device is empty",
    "tune SAXPY --searcher=": "--searcher is empty",
    "tune SAXPY --jobs 100000000": "--jobs",
    "tune SAXPY --rounds 99999999999999999999": "--rounds",
    "tune SAXPY --budget=": "not an amount",
    "tune SAXPY --budget 1e400s": "not an amount",
    "tune SAXPY --budget gain<x%": "gain in percent",
    "tune SAXPY --budget gain<-1%": "gain in percent",
    "tune SAXPY --searcher random --option a=1": "no option 'a'",
    "tune SAXPY --prior a-file": "run folder was expected",
    "tune SAXPY --replay a-file": "run folder was expected",
    "tune SAXPY --json=1": "--json",
    "init .": "is a folder",
    "init a-file": "cannot read a signature",
    "init binary.cl": "UTF-8",
    "init loop.cl": "symbolic links",
    "init nul.cl": "NUL",
    "init pipe.cl": "pipe",
    "init good.cl --entry=": "no kernel ''",
    "init good.cl --out a-file": "a-file",
    "init bad.cl": "no kernel is defined",
    "init SAXPY/saxpy.cl": "already has a template header",
    "analyse a-file": "a-file",
    "analyse binary.cl": "UTF-8",
    "analyse nul.cl": "NUL",
    "report a-file": "run folder was expected",
    "export . --format nope": "'nope'",
    "export a-file": "run folder was expected",
    "show runs a-file": "is a file",
    "show run full": "not a run folder",
    "show candidate full 1": "not a run folder",
    "resume full": "not a run folder",
}


@pytest.mark.parametrize("words", WORDS)
def test_words_that_make_no_sense_are_refused_and_nothing_is_written(
    words: str, saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "a-file").write_text("text")
    for name in ("binary.toml", "binary.cl"):
        (in_tmp / name).write_bytes(b"\x7fELF\xff\0" * 9)
    (in_tmp / "full").mkdir()
    (in_tmp / "full" / "x").write_text("x")
    (in_tmp / "loop.cl").symlink_to("loop.cl")
    (in_tmp / "nul.cl").write_bytes(b"__kernel void k(__global float *x) { x[0] = 1; }\0")
    (in_tmp / "good.cl").write_text("__kernel void k(__global float *x, int n) { x[get_global_id(0)] = n; }")
    (in_tmp / "bad.cl").write_text("__kernel void k(__global float *x, int {")
    os.mkfifo(in_tmp / "pipe.cl")
    before = sorted(str(path) for path in in_tmp.rglob("*") if not path.is_dir())
    status, said = run([word.replace("SAXPY", str(saxpy)) for word in words.split(" ")], capsys)
    assert status == 2, said
    assert "Traceback" not in said
    assert said.count("kernelwright: ") <= 1
    assert re.search(WORDS[words], said), said
    assert sorted(str(path) for path in in_tmp.rglob("*") if not path.is_dir()) == before
