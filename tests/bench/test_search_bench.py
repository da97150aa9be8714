from __future__ import annotations

import dataclasses
import importlib.util
import json
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from recordings import cache_document, t4_document, write_recording

from kernelwright.cli.main import main
from kernelwright.errors import MissingDependency, StoreError, UsageError
from kernelwright_bench.search.files import load_repeats, load_seeds, repeats_file, save_repeat, save_repeats
from kernelwright_bench.search.intervals import Binned, holm, permutation_p, wilcoxon_p
from kernelwright_bench.search.leave_one_out import choose_without_each, leave_one_out, leave_one_out_table
from kernelwright_bench.search.plot import draw_html, draw_svg
from kernelwright_bench.search.priors import priors_of
from kernelwright_bench.search.recordings import RecordedSpace, load_recorded
from kernelwright_bench.search.repeats import SpaceResult, Strategy, pairs_of, run_benchmark, run_once, run_space
from kernelwright_bench.search.results import markdown, summarise
from kernelwright_bench.search.score import baseline_of
from short_command import COMMAND

HAS_OPTUNA = importlib.util.find_spec("optuna") is not None
HAS_KERNEL_TUNER = importlib.util.find_spec("kernel_tuner") is not None
needs_optuna = pytest.mark.skipif(not HAS_OPTUNA, reason="needs the package optuna")
needs_kernel_tuner = pytest.mark.skipif(not HAS_KERNEL_TUNER, reason="needs the package kernel_tuner")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> RecordedSpace:
    (recorded,) = load_recorded(write_recording(tmp_path_factory.mktemp("toy")))
    return recorded


@pytest.fixture(scope="module")
def plain(toy: RecordedSpace) -> SpaceResult:
    return run_space(toy, Strategy("random"), repeats=40)


@pytest.fixture(scope="module")
def better(toy: RecordedSpace) -> SpaceResult:
    """Random search that is told the recording itself: it begins with the best."""
    informed = run_space(toy, Strategy("random"), priors=priors_of(toy), repeats=6)
    return dataclasses.replace(informed, strategy=Strategy("random", priors_from="Sim"))


def run(words: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(["bench", *words])
    return int(left.value.code or 0)


# -- strategies on a recording ------------------------------------------------------------------------------


def test_failures_cost_time_but_do_not_count_as_values(toy: RecordedSpace) -> None:
    repeat = run_once(toy, Strategy("random"), seed=3, until_s=40.0)
    steps = np.diff(np.concatenate([[0.0], repeat.trajectory.time_s]))
    assert set(np.round(steps, 1)) <= {0.9, 1.0}
    assert 0 < repeat.own_s < 40, "without what the recording says that failures and values took"
    best = repeat.trajectory.best[~np.isnan(repeat.trajectory.best)]
    assert (np.diff(best) <= 0).all()


def test_random_search_scores_about_zero_and_a_perfect_prior_one(plain: SpaceResult, better: SpaceResult) -> None:
    assert abs(plain.score) < 0.5
    assert better.score > 0.9
    assert better.found_ratio == 1.0


def test_a_searcher_that_runs_out_of_configs_ends(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(cache_document(60)))
    (small,) = load_recorded(tmp_path)
    repeat = run_once(small, Strategy("local"), seed=0, until_s=1e9)
    assert len(repeat.is_new) == 60


def test_priors_come_from_another_device_of_the_same_kernel(tmp_path: Path) -> None:
    for device in ("One", "Two"):
        write_recording(tmp_path, device=device)
    (tmp_path / "cache.json").write_text(json.dumps(cache_document()))
    spaces = load_recorded(tmp_path)
    pairs = pairs_of(spaces, [Strategy("random"), Strategy("random", priors_from="One")])
    assert [(one.name, s.priors_from) for one, s in pairs if s.priors_from] == [("toy__Two", "One")]
    assert len(pairs) == 4


def test_processes_give_the_same_repeats_as_one(toy: RecordedSpace) -> None:
    strategy = Strategy("random")
    (parallel,) = run_benchmark([(toy, strategy)], known=[toy], repeats=12, jobs=2)
    alone = run_space(toy, strategy, repeats=12)
    for one, other in zip(parallel.trajectories, alone.trajectories, strict=True):
        both = min(len(one.best), len(other.best))  # own time is measured: the last evaluation may fall out
        assert abs(len(one.best) - len(other.best)) <= 1
        np.testing.assert_array_equal(one.best[:both], other.best[:both])


def test_unknown_strategies_are_refused() -> None:
    with pytest.raises(UsageError, match="no searcher 'nope'"):
        Strategy("nope").check()
    with pytest.raises(UsageError, match="no wrapped sampler"):
        Strategy("optuna:nope").check()


@pytest.mark.skipif(HAS_KERNEL_TUNER, reason="Kernel Tuner is installed")
def test_a_missing_tuner_is_said_to_be_missing() -> None:
    with pytest.raises(MissingDependency, match="kernel_tuner") as raised:
        Strategy("kernel-tuner:pso").check()
    assert "bench-search" in str(raised.value)


@needs_optuna
@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_optuna_asks_feasible_configs_once_each(tmp_path: Path, sampler: str) -> None:
    (tmp_path / "small.json").write_text(json.dumps(cache_document(80)))
    (small,) = load_recorded(tmp_path)
    Strategy(f"optuna:{sampler}").check()
    repeat = run_once(small, Strategy(f"optuna:{sampler}"), seed=1, until_s=60.0)
    steps = np.diff(np.concatenate([[0.0], repeat.trajectory.time_s]))
    assert 55 <= len(steps) <= 80
    assert (steps >= 0.75).all()


@needs_optuna
def test_optuna_exhausts_a_space_and_then_ends(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(cache_document(25)))
    (small,) = load_recorded(tmp_path)
    assert len(run_once(small, Strategy("optuna:random"), seed=1, until_s=1e6).is_new) == 25


@needs_kernel_tuner
def test_kernel_tuner_runs_on_a_recording_with_and_without_constraints(toy: RecordedSpace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'diff_evo'"):
        Strategy("kernel-tuner:diff_ev").check()
    (tmp_path / "cache.json").write_text(json.dumps(cache_document()))
    (free,) = load_recorded(tmp_path)
    for recorded in (toy, free):
        for name in ("random_sample", "genetic_algorithm"):
            strategy = Strategy(f"kernel-tuner:{name}")
            strategy.check()
            result = run_space(recorded, strategy, repeats=3)
            assert all((np.diff(t.time_s) >= 0).all() for t in result.trajectories)
            assert 0 < result.evaluation_count <= recorded.space.feasible_count
            assert -2 < result.score <= 1


# -- intervals and tests ------------------------------------------------------------------------------------


def test_intervals_hold_the_score_and_shrink_with_repeats(plain: SpaceResult) -> None:
    baseline, trajectories = plain.baseline, plain.trajectories
    wide = Binned.of(baseline, trajectories[:8]).deviations(np.random.default_rng(0))
    narrow = Binned.of(baseline, trajectories).deviations(np.random.default_rng(0))
    assert narrow.std() < 0.8 * wide.std()
    low, high = np.quantile(narrow, (0.025, 0.975))
    assert low < 0 < high


def test_the_coarse_score_is_near_the_score(plain: SpaceResult, better: SpaceResult) -> None:
    for result in (plain, better):
        binned = Binned.of(result.baseline, result.trajectories)
        assert binned.score(np.ones(binned.repeat_count)) == pytest.approx(result.score, abs=0.06)


def test_a_clear_lead_is_no_chance_and_no_lead_is(plain: SpaceResult, better: SpaceResult) -> None:
    rng = np.random.default_rng(0)
    first = Binned.of(plain.baseline, plain.trajectories[:20])
    second = Binned.of(plain.baseline, plain.trajectories[20:])
    good = Binned.of(better.baseline, better.trajectories)
    assert permutation_p([good], [first], rng, 500) < 0.01
    assert permutation_p([first], [good], rng, 500) > 0.9
    assert 0.01 < permutation_p([first], [second], rng, 500) < 0.99


def test_permutation_p_is_uniform_when_there_is_no_difference() -> None:
    """Of many comparisons of random search with itself, about a tenth has p below 0.1."""
    rng = np.random.default_rng(7)
    values = np.random.default_rng(8).lognormal(size=400)
    baseline = baseline_of(values, np.ones(400))
    cells = np.arange(1.0, baseline.budget_s * 1.1)
    below = 0
    for _ in range(60):
        ranks = np.minimum.accumulate(rng.integers(400, size=(16, len(cells))), axis=1).astype(float)
        ones = np.ones_like(ranks)
        first = Binned(baseline, cells, ones[:8], ranks[:8])
        second = Binned(baseline, cells, ones[8:], ranks[8:])
        below += permutation_p([first], [second], rng, 99) <= 0.1
    assert 0 <= below <= 15  # 6 expected; more than 15 has a chance of 0.0002


def test_eight_wins_of_eight_are_as_sure_as_eight_pairs_can_be() -> None:
    scores = [0.5 + 0.01 * k for k in range(8)]
    assert wilcoxon_p(scores, [0.1] * 8) == pytest.approx(1 / 256)
    assert wilcoxon_p([0.1] * 8, scores) == pytest.approx(1.0)
    assert wilcoxon_p(scores, scores) == 1.0


def test_holms_correction_is_the_textbooks() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_the_summary_compares_the_first_with_every_other(plain: SpaceResult, better: SpaceResult) -> None:
    summary = summarise([better, plain])
    (comparison,) = summary.comparisons
    assert (comparison.strategy, comparison.alternative) == ("random + Sim", "random")
    assert comparison.interval.low < comparison.difference < comparison.interval.high
    assert comparison.permutation_p < 0.01
    assert [mean.strategy for mean in summary.means] == ["random + Sim", "random"]
    assert summary.means[1].here.low < summary.means[1].score < summary.means[1].here.high
    text = markdown(summary)
    assert "| random + Sim | 1 | " in text
    assert "toy Sim" in text


# -- files, picture, leaving one out ------------------------------------------------------------------------


def test_repeats_are_the_same_after_writing_and_reading(
    tmp_path: Path, toy: RecordedSpace, better: SpaceResult
) -> None:
    assert load_repeats(tmp_path, toy, better.strategy) is None
    save_repeats(tmp_path, toy, better)
    again = load_repeats(tmp_path, toy, better.strategy)
    assert again is not None
    assert again.score == better.score
    assert again.own_ms == pytest.approx(better.own_ms)
    repeats_file(tmp_path, toy.name, better.strategy).write_bytes(b"torn")
    with pytest.raises(StoreError, match="cannot be read"):
        load_repeats(tmp_path, toy, better.strategy)


def test_single_repeats_are_kept_and_become_one_file(tmp_path: Path, toy: RecordedSpace, better: SpaceResult) -> None:
    for seed in (4, 0):
        save_repeat(tmp_path, toy, better.strategy, seed, better.repeats[seed])
    assert list(load_seeds(tmp_path, toy, better.strategy)) == [0, 4]
    save_repeats(tmp_path, toy, better)
    assert list(load_seeds(tmp_path, toy, better.strategy)) == list(range(6))
    assert [each.name for each in (tmp_path / "repeats").iterdir()] == ["toy__Sim--random-+-Sim.npz"]


def test_fewer_repeats_never_take_the_place_of_more(tmp_path: Path, toy: RecordedSpace, better: SpaceResult) -> None:
    file = save_repeats(tmp_path, toy, better)
    before = file.read_bytes()
    save_repeats(tmp_path, toy, dataclasses.replace(better, repeats=better.repeats[:2]))
    assert file.read_bytes() == before


def test_repeats_of_another_recording_of_the_same_name_are_refused(
    tmp_path: Path, toy: RecordedSpace, better: SpaceResult
) -> None:
    save_repeats(tmp_path, toy, better)
    other = dataclasses.replace(toy, time_ms=toy.time_ms * 2)
    for use in (load_seeds, lambda folder, one, _: save_repeats(folder, one, better)):
        with pytest.raises(StoreError, match="another recording of the name 'toy__Sim'"):
            use(tmp_path, other, better.strategy)


def test_what_is_kept_is_not_run_again(toy: RecordedSpace, better: SpaceResult) -> None:
    strategy = Strategy("random")
    kept = dict(enumerate(better.repeats[:3]))
    (result,) = run_benchmark([(toy, strategy)], known=[toy], repeats=4, kept=lambda _one, _strategy: kept)
    assert result.repeats[:3] == better.repeats[:3]
    assert len(result.repeats) == 4
    (whole,) = run_benchmark([(toy, strategy)], known=[toy], repeats=2, kept=lambda _one, _strategy: kept)
    assert whole.repeats == better.repeats[:3]


def test_the_picture_is_well_formed_and_stands_alone(plain: SpaceResult, better: SpaceResult) -> None:
    svg = draw_svg([better, plain])
    root = ET.fromstring(svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "random + Sim" in texts
    assert "toy Sim" in texts
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        for point in path.attrib["d"].strip("MZ").split("L"):
            if "V" in point or "H" in point or "h" in point:
                continue
            x, y = map(float, point.split())
            assert -1 <= x <= width + 1
            assert -1 <= y <= height + 1
    page = draw_html([better, plain], summarise([better, plain]))
    assert page.startswith("<!doctype html>")
    assert "<svg" in page


def test_options_are_chosen_without_the_space_they_are_scored_on() -> None:
    one, two = (("size", 1),), (("size", 2),)
    scores = {one: {"a": 0.9, "b": 0.1, "c": 0.2}, two: {"a": 0.2, "b": 0.5, "c": 0.4}}
    result = choose_without_each(scores, {"a": "a", "b": "b", "c": "c"})
    assert [row.chosen for row in result.rows] == [two, one, one]
    assert [row.score for row in result.rows] == [0.2, 0.1, 0.2]
    assert result.score == pytest.approx(0.5 / 3)
    assert result.fitted == (one, pytest.approx(0.4))
    grouped = choose_without_each(scores, {"a": "x", "b": "x", "c": "y"})
    assert [row.left_out for row in grouped.rows] == [("a", "b"), ("c",)]
    assert grouped.rows[0].score == pytest.approx(0.35)
    assert "| a, b | size = 2 | 0.350 | 0.500 |" in leave_one_out_table(grouped)
    with pytest.raises(UsageError, match="leaves nothing"):
        choose_without_each({one: {"a": 1.0}}, {"a": "a"})


def test_leaving_one_out_runs_every_option_on_every_space(tmp_path: Path) -> None:
    for device in ("One", "Two"):
        write_recording(tmp_path, device=device)
    result = leave_one_out(load_recorded(tmp_path), "random", {"prior_count": (5, 10)}, repeats=2)
    assert {options: set(by_space) for options, by_space in result.scores.items()} == {
        (("prior_count", 5),): {"toy__One", "toy__Two"},
        (("prior_count", 10),): {"toy__One", "toy__Two"},
    }


# -- the command --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_command_prints_scores_and_writes_a_folder_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_recording(tmp_path / "recordings", device="One")
    write_recording(folder, device="Two")
    (tmp_path / "t4.json").write_text(json.dumps(t4_document()))
    out = tmp_path / "out"
    words = ["search", str(folder), str(tmp_path / "t4.json"), "--repeats", "3", "--priors", "One", "--json"]
    words += ["--searcher", "local", "--searcher", "random", "--out", str(out), "--plot", str(tmp_path / "p.html")]
    assert run(words) == 0
    document = json.loads(capsys.readouterr().out)
    found = {(row["strategy"], row["space"]) for row in document["scores"]}
    assert ("local + One", "toy__Two") in found
    assert ("random", "t4__Some_Device") in found
    assert ("local + One", "toy__One") not in found
    assert document["environment"]["repeats"] == 3
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")
    assert {each.name for each in out.iterdir()} == {"repeats", "results.json", "results.md", "curves.svg"}
    before = {each: each.stat().st_mtime_ns for each in (out / "repeats").iterdir()}
    assert run([word for word in [*words, "--keep"] if word != "--json"]) == 0
    assert "mean score" in capsys.readouterr().out
    assert before == {each: each.stat().st_mtime_ns for each in (out / "repeats").iterdir()}


SEARCH_RANDOM = ["--searcher", "random", "--repeats", "2", "--json"]


@pytest.mark.thorough
def test_what_another_call_has_found_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_recording(tmp_path / "recordings")
    out = tmp_path / "out"
    words = ["search", str(folder), *SEARCH_RANDOM, "--out", str(out)]
    assert run(words) == 0
    first = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    capsys.readouterr()

    assert run(words) == 2
    assert "holds repeats already: 2 of random on toy__Sim" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == first

    # Another pair in the same folder, and more repeats of the first.
    other = write_recording(tmp_path / "others", device="Two")
    assert run(["search", str(other), *SEARCH_RANDOM, "--out", str(out)]) == 0
    assert run([*(word if word != "2" else "3" for word in words), "--keep"]) == 0
    assert {file: file.read_bytes() for file in first if file.parent == out} == {
        file: content for file, content in first.items() if file.parent == out
    }
    assert {file.name for file in out.glob("results*.json")} == {"results.json", "results-2.json", "results-3.json"}
    assert {file.name for file in out.glob("curves*.svg")} == {"curves.svg", "curves-2.svg", "curves-3.svg"}
    (toy,) = load_recorded(folder)
    assert list(load_seeds(out, toy, Strategy("random"))) == [0, 1, 2]


@pytest.mark.thorough
def test_a_pair_that_is_interrupted_keeps_its_repeats(tmp_path: Path) -> None:
    """Killed by Ctrl-C amid its repeats: those that were done are there, and `--keep` runs the others alone."""
    folder = write_recording(tmp_path / "recordings")
    out, parts = tmp_path / "out", tmp_path / "out" / "repeats" / "toy__Sim--surrogate.parts"
    words = [
        *COMMAND,
        "bench",
        "search",
        str(folder),
        "--searcher",
        "surrogate",
        "--repeats",
        "1000",
        "--out",
        str(out),
    ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 600
    while len(list(parts.glob("[0-9]*.npz"))) < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=300)[1]
    assert process.returncode == 130
    assert "the same command with --keep goes on" in told
    assert "Traceback" not in told
    (toy,) = load_recorded(folder)
    found = load_seeds(out, toy, Strategy("surrogate"))
    assert list(found) == list(range(len(found)))
    assert len(found) >= 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{empty}"], "no recorded space"),
        (["{torn}"], "recorded space"),
        (["{good}", "--space", "nothing"], "toy__Sim"),
        (["{good}", "--searcher", "surogate"], "no searcher 'surogate'"),
        (["{good}", "--priors", "H100"], "no recorded device"),
        (["{good}", "--plot", "curves.png"], "neither .svg nor .html"),
        (["{good}", "--keep"], "needs --out"),
        (["{good}", "--objective", "score"], "neither NAME=lowest nor NAME=highest"),
        (["{good}", "--objective", "score=best"], "neither NAME=lowest nor NAME=highest"),
    ],
)
def test_the_command_explains_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    folders = {"empty": tmp_path / "empty", "good": write_recording(tmp_path / "good"), "torn": tmp_path / "a__b.npz"}
    folders["empty"].mkdir()
    folders["torn"].write_bytes(b"PK\x03\x04")
    assert run(["search", *(word.format(**folders) for word in words)]) == 2
    assert message in capsys.readouterr().err


def test_the_space_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["space", "--space", "row-wise", "--limit", "20"]) == 0
    assert "| row-wise |" in capsys.readouterr().out
    assert run(["space", "--space", "nope"]) == 2
