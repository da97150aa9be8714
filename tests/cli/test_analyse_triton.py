"""`analyse` reads Triton files of several styles, runs nothing of them, and says that they cannot be tuned yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelwright.cli.main import main


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(["analyse", *map(str, words)])
    captured = capsys.readouterr()
    code = exit_.value.code
    return code if isinstance(code, int) else 0, captured.out, captured.err


def analysed(capsys: pytest.CaptureFixture[str], folder: Path, text: str, *words: str) -> str:
    file = folder / "kernels.py"
    file.write_text(text)
    status, out, err = call(capsys, file, *words)
    assert (status, err) == (0, "")
    return out


TUNED = '''"""A file as people write it; running it would fail at once."""
raise SystemExit("this file was run")
import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": size}, num_warps=4) for size in (64, 128)]


@triton.autotune(
    configs=[
        triton.Config({"BM": 64, "BN": 32}, num_warps=4, num_stages=3),
        triton.Config(kwargs=dict(BM=128, BN=32), num_warps=8, maxnreg=128),
        triton.Config({"BM": 32}, 2, 5),
    ],
    key=["M", "N"],
)
@triton.heuristics({"EVEN": lambda args: args["N"] % args["BN"] == 0})
@triton.jit
def product(a, b, M, N, stride: int, BM: tl.constexpr, BN: tl.constexpr = 16, *, EVEN: tl.constexpr = True):
    tl.store(a, helper(b))


@triton.autotune(CONFIGS, ["n"])
@triton.jit
def made(x, n, BLOCK: tl.constexpr):
    pass


@triton.jit
def helper(x):
    return x + 1


def launch(a, b):
    product[(8, 4)](a, b, 1, 2, 3, num_warps=4, num_stages=2)
    made[lambda meta: (triton.cdiv(8, meta["BLOCK"]),)](a, 8)
'''


def test_it_says_what_a_file_declares_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = analysed(capsys, tmp_path, TUNED)
    for line in (
        "kernels.py:20: kernel product (Triton)",
        "  a: argument",
        "  stride: int",
        "  BM: constexpr",
        "  BN: constexpr, default 16",
        "  EVEN: constexpr, default True",
        "  BM=64, BN=32, num_warps=4, num_stages=3",
        "  BM=128, BN=32, num_warps=8, maxnreg=128",
        "  BM=32, num_warps=2, num_stages=5",
        "  tuned anew when one of these changes: M, N",
        "  EVEN = lambda args: args['N'] % args['BN'] == 0",
        "  line 36: grid (8, 4), num_warps=4, num_stages=2",
        "calls\n  helper",
        "  made by code, which was not run: [triton.Config({'BLOCK': size}, num_warps=4)",
        "  tuned anew when one of these changes: n",
    ):
        assert f"{line}\n" in out or line in out, line
    assert "nothing of the file was run" in out.splitlines()[-1]


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (product,) = json.loads(analysed(capsys, tmp_path, TUNED, "--json", "--entry", "product"))
    assert product["configs"][0] == {"BM": "64", "BN": "32", "num_warps": "4", "num_stages": "3"}
    assert product["configs_code"] is None
    assert product["key"] == ["M", "N"]
    assert [each["name"] for each in product["parameters"] if each["is_constexpr"]] == ["BM", "BN", "EVEN"]
    assert product["launches"] == [{"line": "36", "grid": "(8, 4)", "num_warps": "4", "num_stages": "2"}]


@pytest.mark.parametrize(
    "text",
    [
        "import triton as tr\nimport triton.language as t\n@tr.jit\ndef k(x, B: t.constexpr): pass\n",
        "from triton import jit\nfrom triton.language import constexpr\n@jit\ndef k(x, B: constexpr): pass\n",
        "from triton import jit, language as tl\n@jit(noinline=True)\ndef k(x, B: tl.constexpr): pass\n",
        "from __future__ import annotations\nimport triton\nimport triton.language as tl\n"
        "@triton.jit\ndef k(x, B: 'tl.constexpr'): pass\n",
        "try:\n    import triton\n    import triton.language as tl\n    @triton.jit\n"
        "    def k(x, B: tl.constexpr): pass\nexcept ImportError:\n    k = None\n",
        "import triton\nimport triton.language as tl\ndef make():\n    @triton.jit\n"
        "    def k(x, B: tl.constexpr): pass\n    return k\n",
        "import triton, triton.language\n@triton.jit\ndef k(x, B: triton.language.constexpr): pass\n",
    ],
)
def test_kernels_are_found_however_the_file_imports(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = analysed(capsys, tmp_path, text)
    assert "kernel k (Triton)" in out
    assert "  x: argument\n  B: constexpr\n" in out


def test_what_only_running_the_file_would_tell_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = analysed(
        capsys,
        tmp_path,
        "import triton\nKEYS = ['n', 'm']\n@libentry()\n@triton.autotune(configs=configs(), key=KEYS)\n"
        "@triton.heuristics(values=table)\n@triton.jit\ndef k(x, *, n="
        + "-" * 150
        + "1, m=0x"
        + "f" * 5000
        + "): pass\n",
    )
    assert "made by code, which was not run: configs()" in out
    assert "tuned anew when one of these changes: n, m" in out
    assert "** = table" in out
    assert "other decorators, not understood\n  libentry()" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import triton\n\ndef (:\n", "kernels.py:3:5: this is no Python"),
        ("x = 1\n  y = 2\n", "kernels.py:2:"),
        ("import torch\nclass Model(torch.nn.Module): pass\n", "no @triton.jit function is defined here"),
        ("", "no @triton.jit function is defined here"),
        ("x = '\0'\n", "kernels.py:1: the kernel source holds a NUL character"),
        ("x = " + "~" * 20_000 + "1\n", "kernels.py"),
        ("x = " + "9" * 5_000 + "\n", "kernels.py"),
        ("__global__ void k(float *x) {}\n", "kernels.py:1:"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_by_its_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(text)
    status, out, err = call(capsys, file)
    assert (status, out) == (2, "")
    assert said in err.replace("\n", "")
    assert "Traceback" not in err


def test_a_kernel_that_is_not_there_names_those_that_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(TUNED)
    status, _, err = call(capsys, file, "--entry", "produkt")
    assert status == 2
    assert "no kernel 'produkt' is defined; there is product, made, helper" in err.replace("\n", "")
