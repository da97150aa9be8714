"""`kernelwright analyse`, as a person or a script uses it."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import pytest

from kernelwright.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "src/kernelwright/examples"


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(["analyse", *map(str, words)])
    captured = capsys.readouterr()
    code = exit_.value.code
    return code if isinstance(code, int) else 0, captured.out, captured.err


def test_it_says_what_a_kernel_does(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, EXAMPLES / "softmax" / "baseline.cl")
    assert status == 0
    assert "pattern: row-wise, normalisation (certain)" in out
    assert "The row is walked 3 times." in out
    assert "line 9: read x[cols*row + col] (strided by cols)" in out
    assert "line 13: sum into total over col, within the thread" in out
    assert "not understood" not in out


def test_of_a_problem_it_shows_the_baseline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = EXAMPLES / "softmax"
    shown = call(capsys, folder / "baseline.cl")[1]
    assert call(capsys, folder)[1] == call(capsys, folder / "problem.toml")[1]
    assert "The row is walked 3 times." in shown
    assert call(capsys, folder)[1].splitlines()[1:] == shown.splitlines()[1:]
    status, _, error = call(capsys, tmp_path)
    assert status == 2
    assert "problem.toml" in error


def test_every_kernel_of_a_file_is_shown_or_the_chosen_one(capsys: pytest.CaptureFixture[str]) -> None:
    file = EXAMPLES / "reduction" / "baseline.cl"
    assert call(capsys, file)[1].count("pattern: whole reduction") == 2
    assert "sum_blocks" not in call(capsys, file, "--entry", "sum_sums")[1].splitlines()[0]


def test_json_has_every_fact_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    file = EXAMPLES / "matmul" / "baseline.cl"
    status, out, _ = call(capsys, file, "--json")
    (document,) = json.loads(out)
    assert status == 0
    assert document["pattern"]["kind"] == "contraction"
    assert document["accesses"][0]["form"] == {"global.y": "k", "p": "1", "1": "0"}
    span = document["accesses"][2]["span"]
    assert file.read_bytes()[span["start"] : span["end"]] == b"c[row * n + col] = sum"
    assert span["line"] == 13
    assert document["loops"][0]["bound"] == "k"
    assert document["opaque"] == []


def test_what_is_not_understood_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.cu"
    file.write_text("__global__ void k(float *x) {\n  x[threadIdx.x] = mine(x[0]);\n}\n")
    _, out, _ = call(capsys, file)
    assert "not understood, not to be touched\n  line 2: calls 'mine'" in out
    assert "pattern: generic" in out


@pytest.mark.parametrize(
    ("name", "text", "words", "complaint"),
    [
        ("k.cl", "int x;", (), "no kernel is defined here"),
        ("k.cl", "__kernel void f() {}", ("--entry", "g"), "no kernel 'g' is defined; there is f"),
        ("k.py", "x = 1", (), "cannot analyse k.py"),
        ("k.txt", "", (), "cannot analyse k.txt"),
    ],
)
def test_complaints_name_the_file(
    name: str, text: str, words: tuple[str, ...], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text(text)
    status, _, err = call(capsys, file, *words)
    assert status == 2
    assert complaint in err
    assert name in err


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, tmp_path / "none.cl")
    assert status == 2
    assert "does not exist" in err


def chain(step: str, first: str = "x") -> str:
    """Sixty macros, each made of the one before."""
    return f"#define X0 {first}\n" + "".join(f"#define X{k} {step.replace('@', f'X{k - 1}')}\n" for k in range(1, 60))


EXPLODING = {
    "tokens": (chain("@ @ @ @", ";"), "X59"),
    "arguments": ("#define D(x) x x\n", "D(" * 60 + ";" + ")" * 60),
    "wide-arguments": (f"#define D(x) {'x ' * 1000}\n", "D(" * 60 + ";" + ")" * 60),
    "pasted": ("#define P(a, b) a##b\n#define D(a) P(a, a)\n" + chain("D(@)"), "int X59;"),
    "pasted-wide": (f"#define P(a) {' ## '.join('a' * 1000)}\n#define D(a) P(a)\n" + chain("D(@)"), "int X59;"),
    "texts": ("#define T(x) #x #x\n#define S(x) T(x)\n" + chain("S(@)"), "__constant char *s = X59;"),
    "texts-wide": (f"#define T(x) {'#x ' * 1000}\n#define S(x) T(x)\n" + chain("S(@)"), "__constant char *s = X59;"),
    "condition": (chain("@ @ @ @", "+ 1") + "#if 0 X59\n#define OTHER\n#endif\n", ""),
    "defines": ("".join(f"#define X{k + 1} X{k}\n" for k in range(20_000)), ""),
}


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.few(7)
@pytest.mark.parametrize("macros", EXPLODING)
@pytest.mark.parametrize("command", ["analyse", "init"])
def test_macros_that_explode_end_in_words_and_not_in_all_the_memory(
    command: str, macros: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    definitions, use = EXPLODING[macros]
    file = in_tmp / "k.cl"
    file.write_text(f"{definitions}__kernel void k(__global float *x) {{ {use} x[get_global_id(0)] = 1; }}\n")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 30), limits[1]))
    try:
        with pytest.raises(SystemExit) as exit_:
            main([command, str(file)])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert exit_.value.code in (0, None, 2)
    assert len(capsys.readouterr().err) < 2000
