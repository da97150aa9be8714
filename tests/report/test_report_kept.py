"""A run that keeps its baseline says so everywhere, with why; what limits a claim is told with the claim."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelwright.backend.base import DeviceInfo
from kernelwright.cli.main import app
from kernelwright.evaluate.words import LooseTolerance
from kernelwright.insights.verdict_words import caveats
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.outcome import Failed
from kernelwright.report.page import render_report
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.event import Noted
from kernelwright.store.view import RunView
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import CostFunction, SimulatedMachine, SimulatedRunner
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune

LOOSE = LooseTolerance("large", "hostile", "y", 40.0)


class LooseRunner(SimulatedRunner):
    @property
    def notes(self) -> Sequence[str]:
        return (LOOSE.text, LooseTolerance("small", "declared", "y", 12.0).text)


class LooseMachine(SimulatedMachine):
    """Its baseline is inexact."""

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> SimulatedRunner:
        return LooseRunner(problem, self._cost, noise=self._noise, seed=self._seed)


def run_of(folder: Path, cost: CostFunction, problem: Path, machine: type[SimulatedMachine] = SimulatedMachine) -> Path:
    tune = TuneSettings(budget=Budget(evaluations=40), searcher="random", data_seed=1, comparison_rounds=10)
    optimize(
        problem,
        settings=OptimizeSettings(tune=tune, memory="off"),
        run=folder,
        machine=machine(cost, noise=0.004),
        agent=ScriptedAgent([ScriptedTactic("tile", 2.0), ScriptedTactic("wrong", 3.0, "row")]),
    )
    return folder


def even(config: Config, workload: Workload) -> float | Failed:
    """What every candidate gains on the small workload, it loses on the large one, which weighs twice as much."""
    if config.get("WRONG", 1) in (2, 4):
        return Failed("check", "mismatch", "output y is wrong")
    if not config:
        return 1.0
    return 0.8 if workload.name == "small" else 0.8**-0.5


def flat(config: Config, workload: Workload) -> float | Failed:
    """Nothing is gained anywhere."""
    del config, workload
    return 1.0


def better(config: Config, workload: Workload) -> float | Failed:
    del workload
    return 1.0 / float(config.get("TILE", 1))


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory, write_saxpy: Callable[..., Path]) -> Path:
    folder = write_saxpy(tmp_path_factory.mktemp("kept") / "saxpy")
    source = (folder / "saxpy.cl").read_text()
    (folder / "saxpy.cl").write_text(source[source.index("#ifndef") :])  # a plain kernel
    return folder


@pytest.fixture(scope="module")
def kept(problem: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("runs") / "kept", even, problem, LooseMachine)


@pytest.fixture(scope="module")
def lost(problem: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("runs") / "lost", flat, problem)


@pytest.fixture(scope="module")
def won(problem: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("runs") / "won", better, problem, LooseMachine)


def page(run: Path) -> str:
    return render_report(RunView.read(run))


def words(html: str) -> str:
    html = re.sub(r"<(style|script).*?</\1>", " ", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html)).replace("\u00a0", " ").replace("&#39;", "'")


def tiles(html: str) -> dict[str, str]:
    found = re.findall(
        r"<dt>(.*?)</dt><dd>(.*?)</dd>", html.split('<dl class="stats">')[1].split("</dl>", maxsplit=1)[0], re.DOTALL
    )
    return {name: words(value).strip() for name, value in found}


def said(*told: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in told], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", ["kept", "won"])
def test_the_figures_at_the_top_are_of_the_whole_run(name: str, request: pytest.FixtureRequest) -> None:
    run: Path = request.getfixturevalue(name)
    result = OptimizeResult.read(run)
    nodes = [node for node in result.tree if node.parent is not None]
    views = [RunView.read(path) for path in sorted((run / "nodes").iterdir())]
    count, failed = sum(len(view.evaluations) for view in views), sum(len(view.failed) for view in views)
    assert len(views) > 1
    assert count >= result.evaluated_count  # which leaves out where a structure failed at its default
    found = tiles(page(run))
    assert f"and {count} configurations were tried" in page(run)
    assert f"{count} configurations in all" in page(run)
    assert found["Structures"].startswith(f"{len(nodes)} {sum(node.is_working for node in nodes)} work")
    assert found["Configurations tried"].split()[0] == str(count)
    assert found["Failed"].split()[0] == str(failed)
    assert "of compilers" in found["Device"]
    assert found["Proposed by"].startswith("rules")
    assert "Feasible" not in found  # of one structure alone
    failures = page(run).split('<section id="failures">')[1].split("</section>")[0]
    if failed:
        assert f"{failed} of {count} evaluations failed" in failures
        assert re.search(r"node \d+, #\d+", failures)


def test_nothing_on_the_page_has_won_where_the_baseline_is_kept(kept: Path, lost: Path, won: Path) -> None:
    text = words(page(lost))
    assert "the baseline is kept" in text or "keep the baseline" in text
    assert "The baseline serves every shape" in text
    assert "kernelwright export" not in text
    for run in (kept, lost):
        text = words(page(run))
        for claim in ("Winning configuration", "Winner (ms)", "winner"):
            assert claim not in text, (claim, text[max(0, text.find(claim) - 60) :][:120])
        assert "Best configuration tried: no gain is shown" in text
        assert "Best tried (ms)" in text
    assert "Winning configuration" in words(page(won))
    assert "Winner (ms)" in words(page(won))


def test_a_gain_on_some_workloads_is_claimed_there_and_nowhere_else(kept: Path) -> None:
    text = words(page(kept))
    claim = r"No gain over all workloads. But on small 1\.2\d*x \[1\.\d+, 1\.\d+\] as fast as the baseline, with 95% "
    assert re.search(claim + "confidence over all finalists and workloads; use the baseline on large", text)
    assert "The baseline serves every shape" not in text
    assert "the baseline is kept" not in text


def test_a_workload_that_others_outweigh_is_named_on_the_page(kept: Path, won: Path) -> None:
    masthead = words(page(kept).split("</header>")[0])
    assert re.search(r"On small it is 1\.2\d*x \[1\.\d+, 1\.\d+\], which other workloads outweigh", masthead)
    assert "outweigh" not in page(won)


def test_sections_say_whether_they_are_of_one_structure_or_of_all(won: Path) -> None:
    html, winner = page(won), OptimizeResult.read(won).winner
    assert winner is not None
    for name, scope in (("convergence", f"node {winner.index}, "), ("failures", "all structures"), ("cost", "all str")):
        heading = html.split(f'<section id="{name}">')[1].split("</h2>")[0]
        assert f'<span class="scope">{scope}' in heading, name


@pytest.mark.parametrize("name", ["kept", "won"])
def test_a_tolerance_that_was_widened_is_told_with_the_verdict(name: str, request: pytest.FixtureRequest) -> None:
    run: Path = request.getfixturevalue(name)
    told = (
        "Checked loosely: the tolerance of 'y' was up to 40 times what its dtype needs (on large, small), because the "
        "baseline is that inexact; candidates may be as wrong as it is. Declare a [tolerance] to be stricter."
    )
    assert told in words(page(run).split("</header>")[0])
    shown = " ".join(said("show", "run", run).split())
    assert shown.index("baseline") < shown.index(f"warning: {told}")
    assert json.loads(said("show", "run", run, "--json"))["caveats"] == [told]


def test_a_tolerance_that_was_widened_is_in_the_exported_document(won: Path, tmp_path: Path) -> None:
    said("export", won, "--out", tmp_path, "--format", "json")
    document = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert document["caveats"] == list(caveats(RunView.read(won)))
    assert len(document["caveats"]) == 1
    assert LOOSE.text in [note["text"] for note in document["notes"]]


def test_a_loose_tolerance_is_read_back_from_its_note() -> None:
    for each in (LOOSE, LooseTolerance("it's", "special", "o'ut", 11.0)):
        found = LooseTolerance.read(each.text)
        assert found is not None
        assert found.factor == each.factor
        assert found.inputs == each.inputs
    assert LooseTolerance.read(LOOSE.text) == LOOSE
    assert LooseTolerance.read("workload 'large' was slow") is None


def test_data_that_nothing_was_judged_on_is_a_caveat(kept: Path) -> None:
    text = "workload 'large': no candidate is judged on the 'hostile' inputs, because the baseline itself fails there"
    view = RunView.read(kept)
    with_note = type(view).of([view.started, Noted("warning", text)])
    assert caveats(with_note) == (f"Not checked everywhere: {text}.",)


# -- the best candidate of a run that keeps its baseline


def test_the_best_of_a_run_that_keeps_its_baseline_is_the_baseline(lost: Path) -> None:
    view = RunView.read(lost)
    assert view.baseline is not None
    text = " ".join(said("show", "candidate", lost, "best").split())
    assert f"the baseline was kept: candidate {view.baseline.candidate_id}" in text
    assert "__kernel void saxpy" in text
    fastest = OptimizeResult.read(lost).fastest
    assert fastest is not None
    assert f"kernelwright show node {lost} {fastest.index}" in text
    document = json.loads(said("show", "candidate", lost, "best", "--json"))
    assert document["kept"] == "baseline"
    assert document["candidate_id"] == view.baseline.candidate_id
    assert "__kernel void saxpy" in document["source"]


def test_the_best_of_a_run_that_gains_on_some_workloads_is_what_is_used_there(kept: Path) -> None:
    used = OptimizeResult.read(kept).used
    assert used is not None
    text = " ".join(said("show", "candidate", kept, "best").split())
    assert "on some workloads only: on small 1.2" in text
    assert "use the baseline on large" in text
    document = json.loads(said("show", "candidate", kept, "best", "--json"))
    assert document["partial"]["config"] == document["config"]
    assert document["partial"]["baseline"] == ["large"]


def test_the_best_of_a_run_with_a_winner_is_the_winner(won: Path) -> None:
    view = RunView.read(won)
    assert view.fastest is not None
    assert view.fastest.candidate_id in said("show", "candidate", won, "best")


def test_a_run_where_nothing_works_keeps_its_baseline_too(problem: Path, tmp_path: Path) -> None:
    def only_the_baseline(config: Config, workload: Workload) -> float | Failed:
        return Failed("check", "mismatch", "output y is wrong") if config else float(workload.sizes["n"])

    run = run_of(tmp_path / "run", only_the_baseline, problem)
    text = said("show", "candidate", run, "best")
    assert "the baseline was kept" in text
    assert "__kernel void saxpy" in text
    html = page(run)
    assert "the baseline is kept" in words(html.split("</header>")[0])
    assert "Nothing evaluated" not in words(html)
    assert int(tiles(html)["Failed"].split()[0]) > 0


def test_the_best_of_a_search_in_which_nothing_passed_is_the_baseline(saxpy: Path, tmp_path: Path) -> None:
    source = (saxpy / "saxpy.cl").read_text()
    (saxpy / "plain.cl").write_text(source[source.index("#ifndef") :])
    with (saxpy / "problem.toml").open("a") as file:
        file.write('\n[baseline]\nkernel = "plain.cl"\n')

    def cost(config: Config, workload: Workload) -> float | Failed:
        return Failed("build", "compile-error", "no") if config else float(workload.sizes["n"])

    settings = TuneSettings(budget=Budget(evaluations=4), searcher="random", data_seed=1)
    tune(saxpy, settings=settings, run=tmp_path / "run", machine=SimulatedMachine(cost))
    text = " ".join(said("show", "candidate", tmp_path / "run", "best").split())
    assert "the baseline was kept" in text
    assert "No configuration passed; nothing to recommend." in text
    assert "__kernel void saxpy" in text
    json_text = said("show", "candidate", tmp_path / "run", "best", "--json")
    assert json.loads(json_text)["nearest"] is None


def test_a_workload_whose_own_best_is_another_structure_names_it(problem: Path, tmp_path: Path) -> None:
    def by_structure(config: Config, workload: Workload) -> float | Failed:
        if "WRONG" in config:  # slow on the small workload, fast on the large one, which counts double
            return 2.0 if workload.name == "small" else 0.2
        return 0.5 if "TILE" in config and workload.name == "small" else 1.0

    run = run_of(tmp_path / "run", by_structure, problem)
    result = OptimizeResult.read(run)
    assert result.winner is not None
    comparison, special = result.view.comparison, result.view.winner_per_workload["small"]
    assert comparison is not None
    node = comparison.nodes[comparison.candidate_ids.index(special.candidate_id, 1)]
    assert node != result.winner.index
    table = words(page(run).split('<section id="workloads">')[1].split("</section>")[0])
    assert f"node {node}: " in table
