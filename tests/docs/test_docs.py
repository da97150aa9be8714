"""Documentation that says what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import typer.main

import kernelwright
from kernelwright.cli.main import app
from kernelwright.problem.load import load_problem
from kernelwright.search.registry import SEARCHERS
from kernelwright.template.load import load_template

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist_with_their_options(page: Path) -> None:
    root = typer.main.get_command(app)
    for line in re.findall(r"^(?:\$ )?kernelwright ([a-z].*)$", page.read_text(), re.MULTILINE):
        words = line.split("#")[0].split()
        command = root
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands"), f"no such command: {line}"
        known = {name for parameter in command.params for name in parameter.opts}
        for word in words:
            if word.startswith("--"):
                assert word.split("=")[0] in known, f"{word} in: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_parse_and_use_what_is_there(page: Path) -> None:
    for block in blocks(page, "python"):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kernelwright":
                assert hasattr(kernelwright, node.attr), node.attr


def test_the_problem_and_the_template_of_the_reference_page_load(tmp_path: Path) -> None:
    page = ROOT / "docs" / "files.md"
    (toml,) = blocks(page, "toml")
    (header,) = blocks(page, "c")
    (reference,) = blocks(page, "python")
    kernel = "__kernel void silu_and_mul(__global half *out, __global const half *x, int d"
    body = "{ int i = BLOCK + VEC + DEPTH + ROW + d; }\n"
    (tmp_path / "problem.toml").write_text(toml)
    (tmp_path / "reference.py").write_text(reference)
    (tmp_path / "baseline.cl").write_text(f"{kernel}) {{}}\n")
    (tmp_path / "silu_and_mul.cl").write_text(f"{header}{kernel}, __global float *partials) {body}")
    problem = load_problem(tmp_path)
    template = load_template(problem)
    assert problem.workloads[0].sizes["width"] == 2 * 11008
    assert [parameter.values for parameter in template.parameters] == [
        (32, 64, 128, 256), (1, 2, 4, 8), (1, 3, 5, 7, 9),
    ]  # fmt: skip


def test_the_options_of_searchers_are_all_told() -> None:
    text = (ROOT / "docs" / "howto-searchers.md").read_text()
    for info in SEARCHERS.values():
        assert f"`{info.name}`" in text
        for option in info.options:
            row = f"| `{info.name}` | `{option.name}` | `{option.default}` | {option.description} |"
            assert row in text or (option.name == "prior_count" and "`prior_count`" in text), row


def test_environment_variables_are_told() -> None:
    names = set(re.findall(r"KERNELWRIGHT_[A-Z]+(?:_[A-Z]+)*", (ROOT / "src/kernelwright/knobs.py").read_text()))
    text = "".join(page.read_text() for page in PAGES)
    assert names
    for name in names:
        assert name in text, name
