"""A node's folder holds a whole problem: any document comes back, and every node loads like any other problem."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.agent.written import written_template
from kernelwright.optimization.nodes.problem import node_files
from kernelwright.problem.toml.writing import to_toml
from kernelwright.template.load import problem_files
from kernelwright.tuning.tune import TuningProblem

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalar = st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | text
value = st.recursive(
    scalar, lambda each: st.lists(each, max_size=3) | st.dictionaries(text, each, max_size=3), max_leaves=8
)


@given(st.dictionaries(text, value, max_size=5))
def test_a_document_comes_back_from_its_text(document: dict[str, object]) -> None:
    assert tomllib.loads(to_toml(document)) == document


@pytest.mark.parametrize("is_beatable", [True, False])
def test_a_nodes_files_are_the_same_problem_with_its_template(
    tmp_path: Path, write_saxpy: Callable[..., Path], is_beatable: bool
) -> None:
    loaded = TuningProblem.load(write_saxpy(tmp_path / "saxpy", is_beatable=is_beatable))
    files = problem_files(loaded.problem, loaded.template, loaded.baseline)
    written = written_template(loaded.baseline.template)
    root = loaded.problem.baseline or loaded.problem.kernel
    folder = tmp_path / "node"
    folder.mkdir()
    for name, content in node_files(loaded.problem, files, text=written.text, options=("-w",), root=root).items():
        (folder / name).write_bytes(content)
    node = TuningProblem.load(folder / "problem.toml")
    assert node.template.source == written.text
    assert node.template.options == ("-w",)
    assert node.baseline.template.source == loaded.baseline.template.source
    assert node.baseline.template.options == ()
    assert node.baseline.id == loaded.baseline.id
    assert node.problem.workloads[1].weight == 2
    assert [each.name for each in node.problem.arguments] == ["x", "y", "a", "n"]
