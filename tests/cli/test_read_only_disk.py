"""On a disk that cannot be written every command says which of its words names another place."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from kernelwright.cli.main import main


def read_only(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), "somewhere")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["worker", "--spool", "spool", "--create"], "--spool"),
        (["init", "good.cl", "--out", "out"], "--out"),
    ],
)
def test_the_hint_names_the_word_that_says_where(
    words: list[str], option: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "good.cl").write_text("__kernel void k(__global float *x, int n) { x[get_global_id(0)] = n; }")
    made = Path.mkdir

    def mkdir(path: Path, *args: object, **options: object) -> None:
        if path.absolute().is_relative_to(in_tmp):
            read_only()
        made(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "the file system is read-only" in said
    assert option in said
