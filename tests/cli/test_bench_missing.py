"""`kernelwright bench` where the package beside this one is not installed, as from a wheel."""

import importlib.util

import pytest
import typer
from typer.testing import CliRunner

from kernelwright.cli.bench import PACKAGE, add_bench
from kernelwright.errors import MissingDependency


@pytest.mark.parametrize(
    "words", [["bench"], ["bench", "search", "recordings", "--repeats", "3"], ["bench", "--help"], ["compare", "p"]]
)
def test_without_the_benchmarks_every_bench_command_says_where_they_are(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    app = typer.Typer()
    add_bench(app)
    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, MissingDependency)
    assert PACKAGE in str(result.exception)
    assert "checkout" in str(result.exception)
