"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelwright.cli.main import main

Call = Callable[..., tuple[int, str, str]]
"""Calls a command with its words: exit status, standard output, standard error."""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def invoke(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return invoke
