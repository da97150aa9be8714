"""What every command takes, and how the help of those with many options is laid out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kernelwright.cli.help import COMMANDS as TASKS
from kernelwright.cli.help import GROUPS, GroupedCommand
from kernelwright.cli.main import app

Call = Callable[..., tuple[int, str, str]]


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with its words; `bench`, which measures Kernelwright itself, is apart."""
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, nested in command.commands.items():
        if (*words, name) != ("bench",):
            yield from leaves(nested, (*words, name))


ROOT: Any = typer.main.get_command(app)
COMMANDS = dict(leaves(ROOT))
MANY_OPTIONS = {
    "optimize": ROOT.commands["optimize"],
    "tune": ROOT.commands["tune"],
    "bench compare": ROOT.commands["bench"].commands["compare"],
}
every_command = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


@every_command
def test_every_command_takes_the_standard_flags(words: tuple[str, ...], call: Call) -> None:
    flags = {name for parameter in COMMANDS[words].params for name in parameter.opts}
    assert {"--json", "--quiet", "-q"} <= flags
    short, long = call(*words, "-h"), call(*words, "--help")
    assert short == long
    assert short[::2] == (0, "")
    assert re.search(r"^  -h, --help ", short[1], re.MULTILINE)
    status, out, err = call(*words, "--version")
    assert (status, err) == (0, "")
    assert re.fullmatch(r"kernelwright \d+\.\d+\.\d+\S*\n", out)


def test_after_two_dashes_version_is_a_word_like_any_other(call: Call) -> None:
    status, out, err = call("show", "run", "--", "--version")
    assert (status, out) == (2, "")
    assert "--version" in err


@pytest.mark.parametrize("name", MANY_OPTIONS)
def test_help_of_many_options_shows_each_in_one_group(name: str, call: Call) -> None:
    command = MANY_OPTIONS[name]
    assert isinstance(command, GroupedCommand)
    grouped = {option for options in GROUPS.values() for option in options}
    assert {each.name for each in command.params if each.param_type_name == "option"} <= grouped
    out = call(*name.split(), "--help")[1]
    titles = re.findall(r"^(\S.*):$", out, re.MULTILINE)
    assert titles == ["Arguments", *(title for title in GROUPS if title in titles)]
    for each in command.params:
        if each.param_type_name == "option":
            assert len(re.findall(rf"^  .*{each.opts[0]}\b(?![-=])", out, re.MULTILINE)) >= 1


def test_groups_name_options_that_exist() -> None:
    known = {each.name for command in (*COMMANDS.values(), *MANY_OPTIONS.values()) for each in command.params}
    assert {name for names in GROUPS.values() for name in names} <= {*known, "help"}


def test_a_command_of_more_than_seven_options_shows_them_in_groups() -> None:
    for words, command in COMMANDS.items():
        options = [each for each in command.params if each.param_type_name == "option"]
        assert len(options) <= 7 or isinstance(command, GroupedCommand), words


def test_help_leads_to_optimize_and_has_every_command_once(call: Call) -> None:
    out = call("--help")[1]
    assert "kernelwright optimize" in " ".join(out.partition("Options:")[0].split())
    listed = re.findall(r"^  (\w+)  ", out.partition(f"{next(iter(TASKS))}:")[2], re.MULTILINE)
    assert listed[0] == "optimize"
    assert listed == [name for names in TASKS.values() for name in names]
    assert set(listed) == set(ROOT.commands)
    assert re.findall(r"^(\S.*):$", out, re.MULTILINE) == ["Options", *TASKS]


KERNEL = """__kernel void scale(__global const float *x, __global float *y, float a, int n)
{
    int i = get_global_id(0);
    if (i < n) y[i] = a * x[i];
}
"""


def test_quiet_leaves_the_result_and_json_has_all_of_it(call: Call, in_tmp: Path) -> None:
    (in_tmp / "scale.cl").write_text(KERNEL)
    loud, quiet = call("init", "scale.cl")[1], call("init", "scale.cl", "--out", "quiet", "-q")[1]
    assert "next: " in loud
    assert quiet.splitlines() == ["quiet/problem.toml", "quiet/scale.cl", "quiet/original.cl"]
    document = json.loads(call("init", "scale.cl", "--out", "other", "--json")[1])
    assert document.keys() == {"folder", "files", "inferred", "notes", "next"}
    assert all(Path(name).is_file() for name in document["files"])
    assert document["next"] == "kernelwright optimize other"


def test_quiet_of_one_command_is_not_that_of_the_next(call: Call, in_tmp: Path) -> None:
    (in_tmp / "scale.cl").write_text(KERNEL)
    assert "next: " not in call("init", "scale.cl", "-q")[1]
    assert "next: " in call("init", "scale.cl", "--force")[1]
