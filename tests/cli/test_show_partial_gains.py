"""`show` tells a gain that holds on some workloads only, as the report and the story do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelwright.cli.main import main
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.results.tune_result import TuneResult
from kernelwright.store.view import RunView
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune


def cost(config: Config, workload: Workload) -> float:
    """Three times as fast on the large workload, and slower than that helps on the small one."""
    if not config or set(config) == {"LIFT"}:
        return 1.2 if config else 1.0
    return 0.33 if workload.sizes["n"] > 10_000 else 50.0


def told(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture
def tuned(beatable_saxpy: Path, tmp_path: Path) -> Path:
    settings = TuneSettings(budget=Budget(evaluations=8), searcher="random", data_seed=1, comparison_rounds=20)
    tune(beatable_saxpy, settings=settings, run=tmp_path / "run", machine=SimulatedMachine(cost, noise=0.01))
    return tmp_path / "run"


@pytest.fixture
def tree(tmp_path: Path, write_saxpy: Callable[..., Path]) -> OptimizeResult:
    folder = write_saxpy(tmp_path / "plain")
    source = (folder / "saxpy.cl").read_text()
    (folder / "saxpy.cl").write_text(source[source.index("#ifndef") :])
    search = TuneSettings(budget=Budget(evaluations=40), searcher="random", data_seed=1, comparison_rounds=20)
    return optimize(
        folder,
        settings=OptimizeSettings(tune=search, memory="off"),
        run=tmp_path / "tree",
        machine=SimulatedMachine(cost, noise=0.01),
        agent=ScriptedAgent([ScriptedTactic("tile", 3.0, "memory")], lifted=ScriptedTactic("lift", 1.0, "launch")),
    )


def test_the_best_candidate_is_the_one_that_is_used_on_some_workloads(
    tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partial = TuneResult(RunView.read(tuned)).partial
    assert partial is not None
    text = told(capsys, "show", "candidate", tuned, "best")
    assert f"candidate {partial.candidate_id} " in text
    assert f"on some workloads only: {partial.words}" in text
    document: dict[str, Any] = json.loads(told(capsys, "show", "candidate", tuned, "best", "--json"))
    assert document["candidate_id"] == partial.candidate_id
    assert list(document["partial"]["faster"]) == ["large"]
    assert document["partial"]["baseline"] == ["small"]


def test_of_a_tree_the_best_candidate_is_so_too_and_its_node_tells_it(
    tree: OptimizeResult, capsys: pytest.CaptureFixture[str]
) -> None:
    partial, used, folder = tree.partial, tree.used, tree.folder
    assert not tree.is_gain
    assert partial is not None
    assert used is not None
    text = told(capsys, "show", "candidate", folder, "best")
    assert "the baseline was kept" not in text
    assert f"candidate {partial.candidate_id} " in text
    assert f"on some workloads only: {partial.words}" in text
    node = told(capsys, "show", "node", folder, used.index)
    assert f"on some workloads only: {partial.claim}; nothing is claimed on small" in node
    assert "small" in json.loads(told(capsys, "show", "node", folder, used.index, "--json"))["partial"]["baseline"]


def test_what_is_no_gain_anywhere_is_not_told_as_one(tree: OptimizeResult, capsys: pytest.CaptureFixture[str]) -> None:
    (lifted,) = [node for node in tree.tree if node.tactics == ("lift",)]
    for index in (0, lifted.index):
        assert "on some workloads only" not in told(capsys, "show", "node", tree.folder, index)


def test_a_gain_over_all_workloads_needs_no_such_words(
    beatable_saxpy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = TuneSettings(budget=Budget(evaluations=8), searcher="random", data_seed=1, comparison_rounds=20)
    machine = SimulatedMachine(lambda config, _: 0.5 if config else 1.0, noise=0.01)
    result = tune(beatable_saxpy, settings=settings, run=tmp_path / "all", machine=machine)
    assert result.is_gain
    assert "on some workloads only" not in told(capsys, "show", "candidate", tmp_path / "all", "best")
    assert json.loads(told(capsys, "show", "candidate", tmp_path / "all", "best", "--json"))["partial"] is None
