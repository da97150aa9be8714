"""`init` writes what loads, says what it left out, and writes nothing otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.problem.load import load_problem
from kernelwright.template.load import load_template

TWO = """\
#include "helpers/scale.h"
__kernel void first(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = SCALE * x[i];
}
__kernel void second(__global float *z) { z[0] = 1; }
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(list(words))
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


def test_a_kernel_for_which_nothing_loads_is_refused_and_nothing_written(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second definition of a macro wins over the parameter."""
    redefined = "#ifndef BLOCK\n#define BLOCK 16\n#endif\n#undef BLOCK\n#define BLOCK 32\n"
    (in_tmp / "bad.cl").write_text(redefined + "__kernel void bad(__global float *y) { y[BLOCK] = 1; }\n")
    status, out, error = run(capsys, "init", "bad.cl")
    assert status == 2
    assert out == ""
    assert "no problem can be written for 'bad' of bad.cl" in error
    assert "defines BLOCK itself" in error
    assert "kernelwright-init-" not in error
    assert not (in_tmp / "bad").exists()


def test_headers_come_along_and_other_kernels_are_named(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "two.cl").write_text('// #include "commented.h"\n' + TWO)
    (in_tmp / "helpers").mkdir()
    (in_tmp / "helpers" / "scale.h").write_text('#include "../deep.h"\n#include "absent.h"\n')
    (in_tmp / "deep.h").write_text("#define SCALE 2\n")
    status, out, _ = run(capsys, "init", "two.cl", "--entry", "first", "--out", "p")
    assert status == 0
    assert (in_tmp / "p/helpers/scale.h").exists()
    assert (in_tmp / "p/deep.h").exists()
    assert "note: left out, with the arguments that only they take: second (line 7: z)" in out
    assert 'note: scale.h includes "absent.h", which is not beside it' in out
    assert "commented.h" not in out
    problem = load_problem(in_tmp / "p")
    assert load_template(problem).steps[0].arguments == ("x", "y", "n")
