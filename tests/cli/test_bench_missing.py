"""`kernelwright bench` where the package beside this one is not installed, as from a wheel."""

import importlib.util

import pytest
import typer
from typer.testing import CliRunner

from kernelwright.cli.bench import add_bench
from kernelwright.errors import MissingDependency, UsageError
from kernelwright.optimization.settings import OptimizeSettings


@pytest.mark.parametrize("words", [["bench"], ["bench", "search", "recordings", "--repeats", "3"], ["bench", "--help"]])
def test_without_the_benchmarks_there_are_no_such_commands(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    app = typer.Typer(rich_markup_mode=None)
    add_bench(app)
    for name in ("other", "third"):
        app.command(name)(lambda: None)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert f"No such command '{words[0]}'" in result.output
    assert words[0] not in CliRunner().invoke(app, ["--help"]).output


def test_without_the_benchmarks_a_policy_to_compare_with_can_be_read_but_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    recorded = OptimizeSettings(policy="stark")
    assert OptimizeSettings.from_record(recorded.as_record()).policy == "stark"
    with pytest.raises(MissingDependency, match="'stark' is one to compare with"):
        recorded.selection_policy()
    with pytest.raises(UsageError, match=r"say one of default, gain, direct, lift$"):
        OptimizeSettings(policy="ε-greedy")
