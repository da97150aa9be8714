"""What commands print: names that can be copied, lines that say something new, and what went wrong with the budget."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kernelwright.backend.base import DeviceInfo
from kernelwright.cli.commands.show import run_lines
from kernelwright.cli.commands.tune import REPLAY_AGAIN, stopping_in_words
from kernelwright.cli.main import main
from kernelwright.cli.output.progress import PlainView
from kernelwright.cli.output.tables import interval_text, print_figures
from kernelwright.errors import SpecError, StopRun, StoreError
from kernelwright.evaluate.statistics import ConfidenceInterval, least_rounds
from kernelwright.evaluate.words import ORIGINAL_IS_REFERENCE
from kernelwright.insights.verdict_words import claim_text
from kernelwright.insights.verdict_words import verdict_text as verdict
from kernelwright.problem.config import Config
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Workload
from kernelwright.results.tune_result import TuneResult
from kernelwright.store.event import ActionChosen, NodeJudged, NodeProposed, NodeTuned, Noted, RunFinished
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.device_limits import check_memory
from kernelwright.tuning.listener import Progress
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import replay, tune

LONG = "per_token_group_quant_fp8_with_a_long_name-20261121-120000"


def cost(config: Config, workload: Workload) -> float:
    return 1.0 if config.get("BLOCK", 32) == 64 else 3.0


def test_show_runs_gives_names_in_full_however_narrow_the_terminal_is(
    saxpy: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(
        saxpy,
        settings=TuneSettings(budget=Budget(evaluations=4)),
        run=in_tmp / "runs" / LONG,
        machine=SimulatedMachine(cost),
    )
    device = str(RunView.read(in_tmp / "runs" / LONG).started.device["name"])
    for columns in ("20", "80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit):
            main(["show", "runs", "runs"])
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].split()[0] == LONG
        assert all(len(line) <= max(int(columns), len(LONG)) for line in lines[:2])
        assert any(device in line for line in lines), "the device is named at every width"


def test_show_runs_shows_a_figure_only_where_the_run_claims_it(
    saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def flat(config: Config, workload: Workload) -> float:
        return 3.0

    settings = TuneSettings(budget=Budget(evaluations=16), searcher="exhaustive")
    runs = {"gain": cost, "flat": flat, "few-rounds": cost}
    for name, times in runs.items():
        tune(saxpy, settings=settings, run=in_tmp / "runs" / name, machine=SimulatedMachine(times, noise=0.001))
    compared_in(in_tmp / "runs" / "few-rounds", rounds=5)
    with pytest.raises(SystemExit):
        main(["show", "runs", "runs", "--json"])
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["gain"]["claim"] == "gain"
    assert found["gain"]["speedup"]["low"] > 1
    claims = {name: (found[name]["claim"], found[name]["speedup"]) for name in ("flat", "few-rounds")}
    assert claims == {"flat": ("no gain", None), "few-rounds": ("too few rounds", None)}
    assert found["flat"]["best_value"] is not None, "what the search found best is data all the same"
    with pytest.raises(SystemExit):
        main(["show", "runs", "runs"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert re.search(r"\d\.\d+x", lines["gain"])
    assert not any(re.search(r"\dx", lines[name]) for name in ("flat", "few-rounds"))


texts = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=90)


@given(rows=st.lists(st.tuples(*[texts] * 6), min_size=1, max_size=4), width=st.integers(1, 200))
def test_run_lines_fit_the_width_unless_a_name_does_not(rows: list[tuple[str, ...]], width: int) -> None:
    lines = run_lines(rows, width=width)
    assert len(lines) == len(rows) + 1
    longest = max(len(row[0]) for row in rows)
    for line, row in zip(lines[1:], rows, strict=True):
        assert line.split()[0] == row[0]
        assert len(line) <= max(width, longest)
    if width >= 6 * 92:
        assert all(text in line for line, row in zip(lines[1:], rows, strict=True) for text in row)


def test_plain_progress_says_nothing_twice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("kernelwright.cli.output.progress.PLAIN_INTERVAL_S", -1.0)
    view = PlainView()
    for phase in ("prepare", "baseline", "baseline", "baseline", "compare", "compare", "compare"):
        view.on_progress(Progress(phase=phase, spent_s=1.0))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(set(lines)) == 3


def proposed(**changes: object) -> NodeProposed:
    event = NodeProposed(
        index=2, parent=1, role="code", tactic="rows", family="rows", instruction="LANES threads share a row",
        because="", predicted_gain=6.0, source_blob="",
    )  # fmt: skip
    return dataclasses.replace(event, **changes)  # type: ignore[arg-type]


def test_progress_says_what_is_happening_in_plain_words_with_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    expand = Progress(phase="expand", spent_s=10.0, budget_s=40.0, node_count=2)
    reason = "predicted 6.00x; 3.51x believed, works with 75%"
    for event in (
        ActionChosen(1, "expand", reason, idea="rows"),
        proposed(),
        proposed(index=1, parent=0, tactic="", role="template", predicted_gain=None),
        NodeJudged(2, "working", 0.2),
        ActionChosen(0, "tune", reason),
        ActionChosen(2, "lift", reason),
        ActionChosen(2, "repair", reason),
        Noted("warning", f"{ORIGINAL_IS_REFERENCE}, run in float64"),
        NodeTuned(2, 1, 0, 0.125, {}, 0.0, "budget"),
    ):
        view.on_event(event, expand)
    searching = Progress(
        phase="search", evaluated_count=7, failed_count=1, best_speedup=8.0, spent_s=14.0, budget_s=40.0, node_count=3,
        doing="searching node 2 (rows)",
    )  # fmt: skip
    view.on_progress(searching)
    view.on_progress(dataclasses.replace(searching, phase="compare", doing="", spent_s=31.0))
    assert capsys.readouterr().err.splitlines() == [
        "trying rows on node 1, 30s left",
        "node 2: rows on node 1, predicted 6.00x: LANES threads share a row",
        "node 1: template on the baseline: LANES threads share a row",
        "node 2: works, about 5.00x at its default",
        "searching the parameters of the baseline, 30s left",
        "making parameters of the numbers in node 2, 30s left",
        "repairing node 2, 30s left",
        "node 2: 8.00x so far, to be confirmed, after 1 configuration",
        "searching node 2 (rows); in all 7 configurations tried, 1 failed, 0.5/s, 8.00x so far, to be confirmed, "
        "26s left",
        "comparing the fastest with the baseline, in turns, 9s left",
    ]


def test_the_level_of_confidence_is_named_once(saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def flat(config: Config, workload: Workload) -> float:
        return 3.0

    settings = TuneSettings(budget=Budget(evaluations=16), searcher="exhaustive")
    for name, times in (("gain", cost), ("flat", flat)):
        tune(saxpy, settings=settings, run=in_tmp / name, machine=SimulatedMachine(times, noise=0.001))
        with pytest.raises(SystemExit):
            main(["show", "run", name])
        out = capsys.readouterr().out
        assert out.count("95%") == 1, name
    source = claim_text(TuneResult(RunView.read(in_tmp / "gain")))
    assert re.search(r"\(95 % interval for all \d finalists together, ", source)
    few = claim_text(compared_in(in_tmp / "gain", rounds=5))
    assert re.search(r"no claim: .*\(9\d\.\d+ % interval|no claim: .*\(\d+(\.\d+)? % interval", few)
    assert "95 %" not in few, "so few rounds cannot give it"


def lines_of_replay(folder: Path, recorded: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    replay(recorded, settings=TuneSettings(budget=Budget(evaluations=3)), run=folder, listener=PlainView())
    return capsys.readouterr().err.splitlines()


def test_a_replay_opens_once_and_ends(saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = TuneSettings(budget=Budget(evaluations=6))
    tune(saxpy, settings=settings, run=in_tmp / "run", machine=SimulatedMachine(cost))
    lines = lines_of_replay(in_tmp / "replay", in_tmp / "run", capsys)
    assert lines[0].startswith("reading the problem")
    assert [line for line in lines[1:] if "reading the problem" in line] == []
    assert lines[-1] == "done"


def test_phases_that_are_over_are_not_told_again(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    for phase in ("prepare", "baseline", "prepare", "baseline", "expand", "baseline", "compare", "done", "prepare"):
        view.on_progress(Progress(phase=phase, spent_s=1.0))
    lines = capsys.readouterr().err.splitlines()
    words = ["reading", "checking", "looking", "comparing", "done", "reading"]
    assert [line.split()[0] for line in lines] == words, "another run may follow in the same view"


def test_a_baseline_that_used_up_the_budget_is_named_with_what_to_do(saxpy: Path, in_tmp: Path) -> None:
    settings = TuneSettings(budget=Budget(seconds=1e-3))
    result = tune(saxpy, settings=settings, run=in_tmp / "run", machine=SimulatedMachine(cost))
    (note,) = [note.text for note in result.view.notes if "baseline took" in note.text]
    assert "of the budget of 0.001 s, so it is exceeded" in note
    assert "--budget" in note
    assert result.view.evaluations
    enough = tune(
        saxpy, settings=TuneSettings(budget=Budget(seconds=60.0, evaluations=3)), run=in_tmp / "other",
        machine=SimulatedMachine(cost),
    )  # fmt: skip
    assert not [note for note in enough.view.notes if "baseline took" in note.text]


def compared_in(run: Path, *, rounds: int) -> TuneResult:
    """Make a run's last comparison one of so few rounds, as other versions may have recorded it."""
    comparison = RunView.read(run).comparison
    assert comparison is not None
    cut = {name: tuple(row[:rounds] for row in rows) for name, rows in comparison.samples_ms.items()}
    with RunFolder.open(run, writable=True) as folder:
        folder.append([dataclasses.replace(comparison, samples_ms=cut), RunFinished("budget", 1.0)])
    return TuneResult(RunView.read(run))


def test_rounds_that_could_support_no_claim_are_raised_and_told_of(saxpy: Path, in_tmp: Path) -> None:
    settings = TuneSettings(budget=Budget(evaluations=16), comparison_rounds=5, searcher="exhaustive")
    result = tune(saxpy, settings=settings, run=in_tmp / "run", machine=SimulatedMachine(cost, noise=0.001))
    assert result.is_gain
    assert result.view.comparison is not None
    finalists = len(result.view.comparison.candidate_ids) - 1
    (note,) = [note.text for note in result.view.notes if "--rounds" in note.text]
    rounds = least_rounds(finalists * len(result.workloads))
    assert f"{finalists} finalists took {rounds} rounds, not 5 (--rounds)" in note


def test_a_gain_that_few_rounds_cannot_prove_is_not_said_to_contain_one(saxpy: Path, in_tmp: Path) -> None:
    settings = TuneSettings(budget=Budget(evaluations=16), searcher="exhaustive")
    tune(saxpy, settings=settings, run=in_tmp / "run", machine=SimulatedMachine(cost, noise=0.001))
    result = compared_in(in_tmp / "run", rounds=5)
    assert result.speedup is not None
    assert result.speedup.low > 1
    assert not result.is_gain
    assert "No claim" in verdict(result)
    assert "--rounds" in verdict(result)
    assert "contains 1" not in verdict(result)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"global_memory": 1 << 19}, "all arguments together take 0.000488 GiB|has 0.000488 GiB"),
        ({"global_memory": 1 << 30, "max_allocation": 1 << 17}, "'x' takes 0.000244 GiB on workload 'large'"),
    ],
)
def test_a_workload_that_the_device_cannot_hold_is_refused_before_anything_is_filled(
    limits: dict[str, int], words: str, saxpy: Path
) -> None:
    problem = load_problem(saxpy)
    device = DeviceInfo("opencl", "opencl:x:0", "Tiny", "cpu", limits)
    if "max_allocation" not in limits:
        check_memory(problem, device)  # two arrays of 256 KiB: just enough
        device = DeviceInfo("opencl", "opencl:x:0", "Tiny", "cpu", {"global_memory": (1 << 19) - 1})
    with pytest.raises(SpecError, match=words) as caught:
        check_memory(problem, device)
    assert caught.value.location is not None
    assert caught.value.location.line > 0


NAMES = ("prefill " + "x" * 60, "decode")
FIGURES = ("0.001234", "12.34", "1.234e+05", "1.23x [1.20, 1.26]", "0.001234 ms (1.23x)", "97% (memory)")


@pytest.mark.parametrize("columns", [20, 60, 80, 100, 200])
def test_figures_are_never_cut_however_narrow_the_terminal_is(columns: int) -> None:
    console = Console(width=columns, file=io.StringIO(), force_terminal=False)
    print_figures(("workload", "a", "b", "c", "d", "e", "f"), [(name, *FIGURES) for name in NAMES], console, least=5)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    assert all(text.count(figure) >= 2 for figure in FIGURES[:4])
    if columns >= 100:
        assert all(len(line) <= columns for line in text.splitlines())
    if columns == 200:
        assert all(figure in text for figure in FIGURES)
        assert all(name in text for name in NAMES)


def test_a_result_in_a_pipe_has_all_its_numbers(
    saxpy: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    tune(
        saxpy,
        settings=TuneSettings(budget=Budget(evaluations=4)),
        run=in_tmp / "run",
        machine=SimulatedMachine(cost),
    )
    with pytest.raises(SystemExit):
        main(["show", "run", "run"])
    text = capsys.readouterr().out
    assert "…" not in text
    assert "shape's own best" in text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.0039, 1.21, "1.100x [1.004, 1.210]"),
        (0.9, 0.9996, "1.1000x [0.9000, 0.9996]"),
        (1.0, 1.2, "1.10x [1.00, 1.20]"),
        (1.2, 1.26, "1.10x [1.20, 1.26]"),
    ],
)
def test_an_interval_beside_one_never_reads_as_one(low: float, high: float, text: str) -> None:
    assert interval_text(ConfidenceInterval(1.1, low, high, 0.95)) == text


def test_a_replay_of_another_problem_is_refused(
    saxpy: Path, in_tmp: Path, write_saxpy: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    tune(
        saxpy,
        settings=TuneSettings(budget=Budget(evaluations=4)),
        run=in_tmp / "run",
        machine=SimulatedMachine(cost),
    )
    other = write_saxpy(in_tmp / "other")
    renamed = write_saxpy(in_tmp / "renamed")
    (other / "saxpy.cl").write_text((other / "saxpy.cl").read_text() + "// changed\n")
    (renamed / "problem.toml").write_text((renamed / "problem.toml").read_text().replace('"saxpy"', '"daxpy"', 1))
    words = ["--replay", "run", "--budget", "2", "--no-report"]
    for problem, said in ((other, "saxpy.cl"), (renamed, "'saxpy'")):
        with pytest.raises(SystemExit) as ended:
            main(["tune", str(problem), *words])
        assert ended.value.code == 2
        assert (
            f"is not what run recorded: that was {'other contents of ' if problem == other else 'the problem '}{said}"
            in (capsys.readouterr().err)
        )
    for problem in (saxpy, in_tmp / "run" / "problem"):
        with pytest.raises(SystemExit) as ended:
            main(["tune", str(problem), *words])
        assert ended.value.code == 0
    assert not any(path.name.startswith("daxpy") for path in (in_tmp / "runs").iterdir())


def test_a_device_and_a_replay_exclude_each_other(
    saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", str(saxpy), "--replay", "run", "--device", "gpu"])
    assert ended.value.code == 2
    assert "--device gpu has no effect with --replay" in capsys.readouterr().err


def test_suggested_commands_can_be_pasted_whatever_the_path(
    in_tmp: Path, saxpy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "k 4.cl").write_text("__kernel void k(__global float *y, int n) { y[get_global_id(0)] = 1.0f; }\n")
    with pytest.raises(SystemExit):
        main(["init", "k 4.cl", "--out", "my kernel"])
    assert "kernelwright optimize 'my kernel'" in capsys.readouterr().out
    settings = TuneSettings(budget=Budget(evaluations=2))
    tune(saxpy, settings=settings, run=in_tmp / "my run", machine=SimulatedMachine(cost))
    with pytest.raises(StoreError) as caught:
        tune(saxpy, settings=settings, run=in_tmp / "my run", machine=SimulatedMachine(cost))
    assert f"kernelwright resume '{in_tmp / 'my run'}'" in (caught.value.hint or "")


def test_a_folder_of_runs_that_is_not_there_is_an_error(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["show", "runs", "nowhere"])
    assert ended.value.code == 2
    assert "there is no folder nowhere" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["show", "runs"])
    assert ended.value.code in (0, None)


def test_an_interrupt_names_the_run_to_continue_where_there_is_one(saxpy: Path, in_tmp: Path) -> None:
    run = in_tmp / "my run"
    with pytest.raises(StopRun, match="nothing was recorded yet"), stopping_in_words(run):
        raise KeyboardInterrupt
    run.mkdir()
    (run / "events.jsonl").write_text('{"half of an event')
    with pytest.raises(StopRun, match="nothing was recorded yet"), stopping_in_words(run):
        raise KeyboardInterrupt
    shutil.rmtree(run)
    tune(saxpy, settings=TuneSettings(budget=Budget(evaluations=2)), run=run, machine=SimulatedMachine(cost))
    with pytest.raises(StopRun) as caught, stopping_in_words(run):
        raise KeyboardInterrupt
    assert caught.value.hint == f"continue with `kernelwright resume '{run}'`"


def test_an_interrupt_names_the_run_that_was_made_meanwhile_where_nobody_named_one(saxpy: Path, in_tmp: Path) -> None:
    settings = TuneSettings(budget=Budget(evaluations=2))
    before = tune(saxpy, settings=settings, machine=SimulatedMachine(cost)).folder
    with pytest.raises(StopRun, match="nothing was recorded yet"), stopping_in_words():
        raise KeyboardInterrupt
    made: Path | None = None

    def interrupted() -> None:
        nonlocal made
        made = tune(saxpy, settings=settings, machine=SimulatedMachine(cost)).folder
        raise KeyboardInterrupt

    with pytest.raises(StopRun) as caught, stopping_in_words():
        interrupted()
    assert made != before
    assert caught.value.hint == f"continue with `kernelwright resume {made}`"
    with pytest.raises(StopRun, match="start it again"), stopping_in_words(made, advice=REPLAY_AGAIN):
        raise KeyboardInterrupt


def test_an_interrupt_does_not_name_the_run_of_another_command(
    saxpy: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TuneSettings(budget=Budget(evaluations=2))

    def of_another(*, is_ours_begun: bool) -> Path | None:
        with monkeypatch.context() as another:
            another.setattr("os.getpid", lambda: 1)
            tune(saxpy, settings=settings, machine=SimulatedMachine(cost))
        Path("runs/zz-not-begun").mkdir(exist_ok=True)
        own = tune(saxpy, settings=settings, machine=SimulatedMachine(cost)) if is_ours_begun else None
        raise KeyboardInterrupt(str(own.folder) if own else "")

    with pytest.raises(StopRun, match="nothing was recorded yet"), stopping_in_words():
        of_another(is_ours_begun=False)
    with pytest.raises(StopRun) as caught, stopping_in_words():
        of_another(is_ours_begun=True)
    assert caught.value.__context__ is not None
    assert caught.value.hint == f"continue with `kernelwright resume {caught.value.__context__}`"


def test_the_list_of_commands_fits_eighty_columns_in_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["--help"], ["show", "--help"], ["bench", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
        listed = capsys.readouterr().out.partition("-h, --help")[2]
        assert len(listed.splitlines()) > 4
        assert "..." not in listed
