"""What the exported header says of its choice is what the choice was made by, and what the console says."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from rich.console import Console

from kernelwright.cli.output.tables import print_workloads
from kernelwright.export.run import export_run
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune

SETTINGS = TuneSettings(budget=Budget(evaluations=8), searcher="random", data_seed=1, comparison_rounds=20)


def words_of(run: Path, folder: Path) -> str:
    """The comments of the header, as one line."""
    (header,) = export_run(run, folder, formats=["header"])
    lines = [line.removeprefix("//").strip() for line in header.read_text().splitlines() if line.startswith("//")]
    return " ".join(lines)


def tuned(problem: Path, tmp_path: Path, large_ms: float, small_ms: float) -> Path:
    """A run whose configs take so long on each workload, where the baseline takes 1 ms."""

    def cost(config: Config, workload: Workload) -> float:
        return 1.0 if not config else large_ms if workload.sizes["n"] > 10_000 else small_ms

    tune(problem, settings=SETTINGS, run=tmp_path / "run", machine=SimulatedMachine(cost, noise=0.005))
    return tmp_path / "run"


NULL = "NULL is returned outside the domain, where the rule comes to the baseline, and where no config is left."


def test_the_baseline_that_is_chosen_for_a_shape_is_said_with_the_reason(beatable_saxpy: Path, tmp_path: Path) -> None:
    words = words_of(tuned(beatable_saxpy, tmp_path, 0.2, 1.5), tmp_path / "out")
    assert NULL in words
    assert "the baseline: because on a measured shape every config here surely loses more than 2 %, and it" in words
    assert "a larger loss counts only where it is sure" in words


def test_without_the_baseline_in_the_table_the_rule_never_comes_to_it(beatable_saxpy: Path, tmp_path: Path) -> None:
    words = words_of(tuned(beatable_saxpy, tmp_path, 0.2, 0.2), tmp_path / "out")
    assert NULL in words
    assert "the baseline:" not in words
    assert "one of these loses at most 2 % against the fastest of the baseline and the configs of this source" in words


def test_a_config_for_some_workloads_is_said_to_be_for_those_where_it_is_sure(
    beatable_saxpy: Path, tmp_path: Path
) -> None:
    words = words_of(tuned(beatable_saxpy, tmp_path, 0.3, 50.0), tmp_path / "out")
    assert "the baseline: where no config is surely faster" in words
    assert "Used where it is surely faster than the baseline." in words


def test_times_of_the_search_are_not_said_to_be_compared(
    saxpy: Path, record_run: Callable[..., Path], tmp_path: Path
) -> None:
    words = words_of(record_run(saxpy, [{"BLOCK": 16}, {"BLOCK": 64}], compare=False), tmp_path / "out")
    assert "what the search measured of this source and the baseline, which was not compared again" in words
    assert "where it is sure" not in words


Gains = Mapping[str, tuple[float, float]]
"""By what was done last, how many times as fast on the large workload, and on the small one."""
TWO_WINNERS: Gains = {"": (1.0, 1.0), "ALPHA": (6.0, 1.5), "BETA": (4.0, 2.0)}
"""One structure is the fastest over all, the other on the small workload."""
BEATEN_BY_THE_BASELINE: Gains = {"": (0.3, 0.3), "ALPHA": (1.3, 0.5), "BETA": (1.1, 0.526)}
"""On the small workload one structure is less slow than the other, which is faster on the large one alone."""


@pytest.fixture
def with_gains(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Callable[[Gains], OptimizeResult]:
    """A run of two structures with such gains."""

    def run(gains: Gains) -> OptimizeResult:
        folder = write_saxpy(tmp_path / "plain")
        source = (folder / "saxpy.cl").read_text()
        (folder / "saxpy.cl").write_text(source[source.index("#ifndef") :])

        def cost(config: Config, workload: Workload) -> float:
            if not config:
                return 10.0
            last = next((name for name in ("BETA", "ALPHA") if name in config), "")
            return 10.0 / gains[last][0 if workload.sizes["n"] > 10_000 else 1]

        tactics = [ScriptedTactic("alpha", 6.0, "map"), ScriptedTactic("beta", 4.0, "memory")]
        search = TuneSettings(budget=Budget(evaluations=60), searcher="random", data_seed=1, comparison_rounds=10)
        return optimize(
            folder,
            settings=OptimizeSettings(tune=search, memory="off"),
            run=tmp_path / "run",
            machine=SimulatedMachine(cost, noise=0.005),
            agent=ScriptedAgent(tactics, lifted=ScriptedTactic("lift", 1.0, "launch")),
        )

    return run


def own_best(result: OptimizeResult, workload: str) -> tuple[int, int]:
    """Of the fastest finalist on a workload: its place, and its node."""
    comparison = result.view.comparison
    assert comparison is not None
    place = comparison.candidate_ids.index(result.view.winner_per_workload[workload].candidate_id, 1)
    return place, comparison.nodes[place]


def rows_with_nodes(result: OptimizeResult) -> list[str]:
    """The first words of the console's rows that name a node."""
    console = Console(width=200, file=io.StringIO())
    print_workloads(result.compared, console, elsewhere=result.own_best_elsewhere)
    assert isinstance(console.file, io.StringIO)
    return [line.split()[0] for line in console.file.getvalue().splitlines() if "node " in line]


def test_a_structure_that_the_baseline_beats_is_not_told_to_be_faster(
    with_gains: Callable[[Gains], OptimizeResult], tmp_path: Path
) -> None:
    result = with_gains(BEATEN_BY_THE_BASELINE)
    assert result.partial is not None
    assert result.fastest is not None
    assert result.folder is not None
    ((workload),) = result.partial.others
    assert own_best(result, workload)[1] != result.fastest.index
    assert result.own_best_elsewhere == {}
    assert "another structure" not in words_of(result.folder, tmp_path / "out")
    assert rows_with_nodes(result) == []


def test_a_structure_that_is_not_surely_faster_than_the_exported_one_is_not_told(
    with_gains: Callable[[Gains], OptimizeResult],
) -> None:
    result = with_gains(TWO_WINNERS)
    ((workload, node),) = result.own_best_elsewhere.items()
    comparison, fastest = result.view.comparison, result.fastest
    assert comparison is not None
    assert fastest is not None
    place, _ = own_best(result, workload)
    times = list(comparison.samples_ms[workload])
    for each in range(1, len(times)):
        if comparison.nodes[each] == fastest.index:  # faster in every third round, slower in the others
            times[each] = tuple(ms * (0.9 if at % 3 == 0 else 1.01) for at, ms in enumerate(times[place]))
    close = dataclasses.replace(comparison, samples_ms={**comparison.samples_ms, workload: tuple(times)})
    changed = OptimizeResult(dataclasses.replace(result.view, comparison=close))
    assert own_best(changed, workload) == (place, node)
    assert changed.fastest == fastest
    assert changed.own_best_elsewhere == {}


def test_a_workloads_own_best_of_another_structure_is_told_by_header_and_console_alike(
    with_gains: Callable[[Gains], OptimizeResult], tmp_path: Path
) -> None:
    result = with_gains(TWO_WINNERS)
    assert result.winner is not None
    assert result.folder is not None
    assert "alpha" in result.winner.tactics
    ((workload, node),) = result.own_best_elsewhere.items()
    assert "beta" in result.tree[node].tactics
    words = words_of(result.folder, tmp_path / "out")
    assert (
        f"On {workload} another structure, node {node}, which this file does not hold, was surely faster than" in words
    )
    assert rows_with_nodes(result) == [workload.split()[0]]
