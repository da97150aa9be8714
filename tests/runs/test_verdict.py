"""The verdict: the rule and all words follow from one value, and words never deny the interval beside them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kernelwright.cli.commands.optimize import optimize_summary
from kernelwright.cli.main import app
from kernelwright.cli.output.tables import summary
from kernelwright.errors import StoreError
from kernelwright.evaluate.statistics import least_rounds
from kernelwright.evaluate.words import interval_text
from kernelwright.export.run import export_run
from kernelwright.insights.verdict_words import claim_text, outweighed_words, tree_verdict_text, verdict_text
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.report.page import render_report
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.results.tune_result import TuneResult
from kernelwright.results.verdict import Kind, Verdict, decide
from kernelwright.store.event import FinalistsCompared, RunFinished, SessionStarted
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.testing.sample_runs import sample_events
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune

SPEEDS = {"above": (2.0, 2.2), "around": (0.8, 1.25), "below": (0.5, 0.55), "hardly": (1.0, 1.000_000_4)}
"""Of a finalist over the baseline, in odd and in even rounds."""
BOUNDS = re.compile(r"([0-9.]+)x? \[([0-9.]+), ([0-9.]+)\]")

Samples = Sequence[Sequence[Sequence[float]]]
"""By workload and finalist: the speedup in each round."""


def compared(event: FinalistsCompared, speeds: Samples, *, own_id: bool = False) -> FinalistsCompared:
    """`event` with other samples: the baseline takes 1 ms, and slowly more, in every round."""
    names, count = list(event.samples_ms), len(speeds[0])
    drift = [1.0 + 0.01 * k for k in range(len(speeds[0][0]))]
    table = {
        name: (tuple(drift), *(tuple(d / s for d, s in zip(drift, row, strict=True)) for row in rows))
        for name, rows in zip(names, speeds, strict=True)
    }
    base = event.candidate_ids[0]
    return dataclasses.replace(
        event,
        candidate_ids=(base, *(base if own_id and k == 0 else f"c{k}" for k in range(count))),
        configs=({}, *(event.configs[1] for _ in range(count))),
        nodes=(0, *(event.nodes[1] for _ in range(count))) if event.nodes else (),
        samples_ms=table,
        rejected={},
    )


def rows(kinds: Sequence[Sequence[str]], rounds: int) -> Samples:
    """By workload, the kinds of the finalists."""
    return [[[SPEEDS[kind][k % 2] for k in range(rounds)] for kind in finalists] for finalists in kinds]


def printed(text: str) -> tuple[float, float]:
    """The bounds of the first interval in a text."""
    found = BOUNDS.search(text)
    assert found, text
    return float(found[2]), float(found[3])


def assert_agrees(verdict: Verdict, text: str, finalists: int, workloads: int) -> None:
    """What is said, what is claimed, and the interval that is printed beside it, are one."""
    low, high = printed(interval_text(verdict.speedup))
    is_enough = verdict.rounds >= least_rounds(finalists)
    is_itself = verdict.kind is Kind.ITSELF
    assert verdict.is_gain == (low > 1 and is_enough and not is_itself), text
    if verdict.kind is not Kind.SOME:
        assert interval_text(verdict.speedup) in text
    assert ("as fast as the baseline, with 95% confidence over all finalists." in text) == verdict.is_gain
    assert ("No significant gain" in text) == (verdict.kind is Kind.OPEN)
    assert ("contains 1" in text) <= (low <= 1 <= high), text
    assert ("lies below 1" in text) <= (high < 1), text
    assert ("lies above 1" in text) <= (low > 1), text
    told = re.search(r"(\d+) rounds? (?:is|are) too few for a claim over .*: at least (\d+) are needed", text)
    if verdict.kind is Kind.TOO_FEW:
        assert told
        assert not is_enough
    if told:
        assert int(told[1]) == verdict.rounds < int(told[2])
        assert int(told[2]) in (least_rounds(finalists), least_rounds(finalists * workloads))
    assert_agrees_by_workload(verdict, text, finalists, workloads)


def assert_agrees_by_workload(verdict: Verdict, text: str, finalists: int, workloads: int) -> None:
    """A workload is left to the baseline only where its own printed interval, or the rounds, do not show a gain."""
    is_enough = verdict.rounds >= least_rounds(finalists * workloads)
    above = [each.workload for each in verdict.workloads if printed(interval_text(each.speedup))[0] > 1]
    if verdict.kind is Kind.ITSELF:
        assert all(each.finding == "no claim" for each in verdict.workloads)
    elif is_enough:
        assert [each.workload for each in verdict.workloads if each.finding == "faster"] == above
    if verdict.kind is Kind.SOME:
        assert verdict.partial is not None
        assert is_enough
        assert [each.workload for each in verdict.partial.faster] == above
        assert set(verdict.partial.others).isdisjoint(above)
        assert verdict.partial.others
        assert "No gain over all workloads" in text
    elif above and verdict.kind in (Kind.OPEN, Kind.SLOWER):
        assert not is_enough, text
        assert "too few for a claim" in text
    if "outweigh" in outweighed_words(verdict):
        assert any(printed(interval_text(each.speedup))[1] < 1 for each in verdict.workloads)


FEW = ("above", "around", "below", "hardly")


@pytest.fixture(scope="module")
def tuned() -> Callable[[int], RunView]:
    views = {count: RunView.of(sample_events(evaluations=40, workloads=count)) for count in (1, 2, 3)}
    return views.__getitem__


@pytest.mark.few(9)
@pytest.mark.parametrize("rounds", [1, 2, 5, 6, 7, 8, 9, 10, 20])
@pytest.mark.parametrize("workloads", [1, 2, 3])
def test_words_and_rule_agree_in_every_case(tuned: Callable[[int], RunView], rounds: int, workloads: int) -> None:
    view, kinds = tuned(workloads), set()
    assert view.comparison is not None
    for finalists in (1, 2):
        for case in itertools.product(itertools.product(FEW, repeat=finalists), repeat=workloads):
            if workloads == 3 and finalists == 2 and len({each[1] for each in case}) > 1:
                continue  # the second is the same everywhere: 256 cases instead of 4096
            for own_id in (False, True):
                comparison = compared(view.comparison, rows(case, rounds), own_id=own_id)
                result = TuneResult(dataclasses.replace(view, comparison=comparison))
                assert_agrees(result.verdict, verdict_text(result), finalists, workloads)
                assert_agrees_with_all(result)
                kinds.add(result.verdict.kind)
    wanted = {Kind.OPEN, Kind.ITSELF} | ({Kind.SLOWER} if rounds > 0 else set())
    wanted |= {Kind.GAIN} if rounds >= 6 else {Kind.TOO_FEW}
    wanted |= {Kind.TOO_FEW} if rounds < least_rounds(2) else set()
    wanted |= {Kind.SOME} if workloads > 1 and rounds >= least_rounds(workloads) else set()
    assert kinds >= wanted


def assert_agrees_with_all(result: TuneResult) -> None:
    """Table, JSON and clause of an export say what the verdict says."""
    verdict, data = result.verdict, summary(result)
    assert (data["is_gain"], data["kind"]) == (verdict.is_gain, verdict.kind.value)
    assert data["verdict"] == verdict_text(result)
    assert [row["finding"] for row in data["workloads"]] == [each.finding for each in verdict.workloads]
    assert (data["partial"] is not None) == (verdict.kind is Kind.SOME)
    clause = claim_text(result)
    assert clause.startswith(("no ", "about ")) != verdict.is_gain
    assert ("too few" in clause) == ("too few" in data["verdict"])


SPEED = st.one_of(st.floats(0.2, 5.0), st.floats(1 - 3e-6, 1 + 3e-6))


@given(data=st.data(), rounds=st.integers(1, 24), finalists=st.integers(1, 6), workloads=st.integers(1, 3))
def test_words_and_rule_agree_for_any_samples(
    tuned: Callable[[int], RunView], data: st.DataObject, rounds: int, finalists: int, workloads: int
) -> None:
    view = tuned(workloads)
    level = data.draw(st.lists(SPEED, min_size=finalists * workloads, max_size=finalists * workloads))
    spread = data.draw(st.sampled_from([0.0, 1e-7, 1e-3, 0.3]))
    speeds = [
        [[level[w * finalists + f] * math.exp(spread * math.sin(7 * k + f)) for k in range(rounds)]
         for f in range(finalists)]
        for w in range(workloads)
    ]  # fmt: skip
    assert view.comparison is not None
    result = TuneResult(dataclasses.replace(view, comparison=compared(view.comparison, speeds)))
    assert_agrees(result.verdict, verdict_text(result), finalists, workloads)
    assert_agrees_with_all(result)


def test_a_finalist_whose_gain_is_sure_is_claimed_though_another_looks_faster(
    tuned: Callable[[int], RunView],
) -> None:
    view = tuned(2)
    assert view.comparison is not None
    jumpy = [0.9, 4.0, 4.0, 4.0] * 5
    speeds = [[jumpy, [2.0] * 20], [[0.3, 4.0] * 10, [2.0] * 20]]
    result = TuneResult(dataclasses.replace(view, comparison=compared(view.comparison, speeds)))
    assert result.view.fastest is not None
    assert result.leader is not None
    assert (result.view.fastest.candidate_id, result.leader.candidate_id) == ("c0", "c1")
    assert result.is_gain


# -- runs on the disk, and what is said of them everywhere


def beaten(config: object, workload: object) -> float:
    del workload
    return 0.5 if config else 1.0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, write_saxpy: Callable[..., Path]) -> dict[str, Path]:
    """A finished run of `tune` and one of `optimize`."""
    folder = tmp_path_factory.mktemp("verdict")
    search = TuneSettings(budget=Budget(evaluations=24), searcher="random", data_seed=1, comparison_rounds=10)
    tune(write_saxpy(folder / "tunable"), settings=search, run=folder / "tune", machine=SimulatedMachine(beaten))
    optimize(
        write_saxpy(folder / "plain"),
        settings=OptimizeSettings(tune=search, memory="off"),
        run=folder / "optimize",
        machine=SimulatedMachine(beaten),
        agent=ScriptedAgent([ScriptedTactic("tile", 2.0)]),
    )
    return {"tune": folder / "tune", "optimize": folder / "optimize"}


def recorded(run: Path, folder: Path, case: Sequence[Sequence[str]], rounds: int, *, how: str) -> Path:
    """A copy of a run whose last comparison is this one, made by the session that is meant by `how`."""
    shutil.copytree(run, folder)
    old = RunView.read(folder).comparison
    assert old is not None
    new = compared(old, rows(case, rounds))
    new = dataclasses.replace(  # candidates that the run knows, so that all can be shown and exported
        new, candidate_ids=(old.candidate_ids[0], *(old.candidate_ids[1], *new.candidate_ids[2:])[: len(case[0])])
    )
    with RunFolder.open(folder, writable=True) as log:
        resumed = [SessionStarted(1.0, 2, spent_s=1.0)] if how != "one session" else []
        log.append([*resumed, new, *([RunFinished("budget", 2.0)] if how != "killed again" else [])])
    return folder


def said(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code in (0, 2), result.output
    return " ".join(result.output.split())


def test_few_rounds_over_rivals_are_raised_so_that_a_gain_can_be_claimed(
    write_saxpy: Callable[..., Path], tmp_path: Path
) -> None:
    """One finalist was asked for, and its rivals are compared too: more intervals than six rounds can support."""
    problem = write_saxpy(tmp_path / "plain")
    source = (problem / "saxpy.cl").read_text()
    (problem / "saxpy.cl").write_text(source[source.index("#ifndef") :])
    search = TuneSettings(
        budget=Budget(evaluations=40), searcher="random", data_seed=1, finalists=1, comparison_rounds=6
    )
    result = optimize(
        problem,
        settings=OptimizeSettings(tune=search, memory="off"),
        run=tmp_path / "run",
        machine=SimulatedMachine(beaten, noise=0.01),
        agent=ScriptedAgent([ScriptedTactic("tile", 2.0), ScriptedTactic("vector", 2.0)]),
    )
    verdict = result.verdict
    assert verdict.finalists > 1
    assert verdict.rounds == least_rounds(verdict.finalists * len(result.workloads)) > 6
    assert result.is_gain
    assert [note.level for note in result.view.notes if "rounds, not 6 (--rounds)" in note.text] == ["info"]


CASES = [
    (("above",), ("above",)),
    (("around",), ("above",)),
    (("below",), ("above",)),
    (("below",), ("below",)),
    (("around",), ("around",)),
    (("above", "around"), ("above", "around")),
]


@pytest.mark.few(6)
@pytest.mark.parametrize("command", ["tune", "optimize"])
@pytest.mark.parametrize("rounds", [6, 20])
@pytest.mark.parametrize("case", CASES)
def test_console_page_data_and_export_say_the_same(
    command: str, rounds: int, case: tuple[tuple[str, ...], ...], runs: dict[str, Path], tmp_path: Path
) -> None:
    texts = []
    for how in ("one session", "resumed", "killed again"):
        run = recorded(runs[command], tmp_path / how.replace(" ", "-"), case, rounds, how=how)
        view = RunView.read(run)
        verdict, finalists = decide(view), len(case[0])
        tree = OptimizeResult(view) if command == "optimize" else None
        text = verdict_text(TuneResult(view)) if tree is None else tree_verdict_text(tree)
        assert_agrees(verdict, text, finalists, 2)
        assert " ".join(text.split()) in said("show", "run", run)
        data = json.loads(CliRunner().invoke(app, ["show", "run", str(run), "--json"]).output)
        assert (data["verdict"], data["kind"]) == (text, verdict.kind.value)
        assert data == json.loads(json.dumps(optimize_summary(tree) if tree else summary(TuneResult(view))))
        assert_page_agrees(render_report(view), verdict)
        assert_export_agrees(run, verdict, tmp_path / f"export-{how}")
        texts.append(text)
    assert len(set(texts)) == 1, "who recorded it does not matter"


def assert_page_agrees(html: str, verdict: Verdict) -> None:
    head = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", html.split("</header>", maxsplit=1)[0].split("<h1>")[1]))
    claims = {"gain": "as fast as the baseline", "some workloads": "No gain over all workloads. But"}
    claims |= {"no significant gain": "No significant gain", "too few rounds": "No claim (measured"}
    claims |= {"slower": "as the baseline: keep the baseline", "baseline itself": "No gain"}
    assert claims[verdict.kind.value] in head
    own = f"as fast {claims['slower']}" if verdict.kind is Kind.SLOWER else claims[verdict.kind.value]
    assert all(words not in head or words in own for words in claims.values())
    assert ("too few for a claim" in head) == (verdict.kind is Kind.TOO_FEW or bool(verdict.unclaimed))
    assert ("Winning configuration" in html) == verdict.is_gain


def assert_export_agrees(run: Path, verdict: Verdict, out: Path) -> None:
    if verdict.keeps_baseline and (run / "nodes").is_dir():
        with pytest.raises(StoreError, match=re.escape(f"({verdict.kind})")):
            export_run(run, out, formats=("json",))
        return
    (written,) = export_run(run, out, formats=("json",))
    document = json.loads(written.read_text())
    assert document["claim"] == claim_text(TuneResult(RunView.read(run)))
    assert document["is_gain"] == verdict.is_gain
