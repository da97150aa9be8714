"""Comparisons of whole runs: interleaved, resumable, in pairs. Without a device: what rules make of a simulated one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.cli.output.tables import open_console
from kernelwright.errors import SpecError, StoreError, UsageError
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright_bench.compare.command import comparison_data, print_comparison
from kernelwright_bench.compare.run import Arm, Cell, CompareSettings, Missing, compare
from kernelwright_bench.compare.statistics import holm, mean_ratio, paired, sign_flip_p, spread, t_quantile


def cost(config: Config, workload: Workload) -> float:
    """Large groups pay."""
    return float(workload.sizes["n"]) * 1e-4 / (2.0 if dict(config).get("GROUP", 0) else 1.0)


def settings(*policies: str, repeats: int = 2, evaluations: int = 6, **changes: object) -> CompareSettings:
    tune = TuneSettings(budget=Budget(evaluations=evaluations), searcher="random", comparison_rounds=10)
    base = OptimizeSettings(tune=tune, proof_points=0)
    return CompareSettings(policies=policies, repeats=repeats, base=base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def problem(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Path:
    return write_saxpy(tmp_path / "saxpy")


class Told:
    """The cells in the order in which they ended."""

    def __init__(self) -> None:
        self.cells: list[Cell | Missing] = []

    def __call__(self, cell: Cell | Missing) -> None:
        self.cells.append(cell)


def test_repeats_are_interleaved_and_begin_with_another_arm_each_time(problem: Path, tmp_path: Path) -> None:
    told = Told()
    machine = SimulatedMachine(cost)
    done = compare([problem], settings("gain", "direct"), out=tmp_path / "out", machine=machine, on_cell=told)
    order = [(cell.repeat, cell.arm.policy) for cell in told.cells]
    assert order == [(0, "gain"), (0, "direct"), (1, "direct"), (1, "gain")]
    assert [row.arm.policy for row in done.rows] == ["gain", "direct"]
    assert done.rows[0].against_first is None
    assert done.rows[1].against_first is not None
    assert not done.missing


def test_direct_rewriting_searches_nothing(problem: Path, tmp_path: Path) -> None:
    done = compare([problem], settings("direct", repeats=1), out=tmp_path / "out", machine=SimulatedMachine(cost))
    folder = done.cells[0].folder
    lines = (folder / "events.jsonl").read_text().splitlines()
    assert done.cells[0].evaluation_count == done.cells[0].figures.attempt_count + _given(lines)
    assert not [line for line in lines if '"action": "tune"' in line or '"role": "template"' in line]


def _given(lines: list[str]) -> int:
    """Nodes that are there from the start."""
    return sum('"role": "given"' in line for line in lines)


def test_what_is_finished_is_not_run_again(problem: Path, tmp_path: Path) -> None:
    out, machine = tmp_path / "out", SimulatedMachine(cost)
    before = compare([problem], settings("gain", repeats=1), out=out, machine=machine)
    record = (before.cells[0].folder / "events.jsonl").read_bytes()
    again = compare([problem], settings("gain", "direct", repeats=2), out=out, machine=machine)
    assert (before.cells[0].folder / "events.jsonl").read_bytes() == record
    assert len(again.cells) == 4
    assert again.cells[0] == before.cells[0]


def test_other_settings_are_refused_and_named(problem: Path, tmp_path: Path) -> None:
    out, machine = tmp_path / "out", SimulatedMachine(cost)
    compare([problem], settings("gain", repeats=1), out=out, machine=machine)
    with pytest.raises(UsageError, match=r"other settings: .*evaluations"):
        compare([problem], settings("gain", repeats=1, evaluations=7), out=out, machine=machine)
    (out / "compare.json").write_text("{")
    with pytest.raises(StoreError, match="no record of a comparison"):
        compare([problem], settings("gain", repeats=1), out=out, machine=machine)


def test_a_run_that_cannot_end_leaves_the_others(problem: Path, tmp_path: Path) -> None:
    """A replay of another run has no replies for these prompts; rules need none."""
    recorded = Path(__file__).parents[1] / "agent" / "recordings" / "transpose"
    chosen = settings("gain", repeats=1, models=("rules", f"replay:{recorded}"))
    done = compare([problem], chosen, out=tmp_path / "out", machine=SimulatedMachine(cost))
    assert [cell.arm.model for cell in done.cells] == ["rules"]
    assert len(done.missing) == 1
    assert "no recorded reply" in done.missing[0].message
    data = json.loads(json.dumps(comparison_data(done)))
    assert data["missing"][0]["problem"] == "saxpy"


def test_wrong_words_are_refused_before_anything_runs(tmp_path: Path, problem: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'stark'"):
        settings("starck")
    with pytest.raises(UsageError, match="repeats is 0"):
        settings("gain", repeats=0)
    with pytest.raises(UsageError, match="memory"):
        settings("gain", memories=("of",))
    with pytest.raises(UsageError, match="no problem"):
        compare([], settings("gain"), out=tmp_path / "out")
    other = tmp_path / "other" / "saxpy"
    with pytest.raises(UsageError, match="two problems"):
        compare([problem, other / "problem.toml"], settings("gain"), out=tmp_path / "out")


@pytest.mark.parametrize(
    ("policies", "options", "words"),
    [
        (("default", "default"), {}, "the policy 'default' is named twice"),
        (("default", "stark", "gain"), {}, "'default' and 'gain' are the same policy"),
        (("gain",), {"models": ("rules", "openai:m", "rules")}, "the model 'rules' is named twice"),
        (("gain",), {"memories": ("off", "read", "off")}, "the memory 'off' is named twice"),
        ((), {}, "no policy is named"),
    ],
)
def test_what_would_be_compared_with_itself_is_refused(
    policies: tuple[str, ...], options: dict[str, tuple[str, ...]], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        settings(*policies, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", ["missing", "broken"])
def test_a_mistake_in_the_last_problem_is_told_before_anything_runs(
    problem: Path, tmp_path: Path, write_saxpy: Callable[..., Path], change: str
) -> None:
    told = Told()
    last = tmp_path / "last"
    if change == "broken":
        write_saxpy(last)
        (last / "saxpy.cl").write_text("")
    with pytest.raises(SpecError, match="does not exist" if change == "missing" else r"saxpy\.cl is empty"):
        compare(
            [problem, last],
            settings("gain"),
            out=tmp_path / "out",
            machine=SimulatedMachine(cost),
            on_cell=told,
        )
    assert not told.cells
    assert not (tmp_path / "out").exists()


def test_a_problem_that_is_named_twice_is_refused(problem: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is named twice"):
        compare([problem, problem / "problem.toml"], settings("gain"), out=tmp_path / "out")


def test_arms_are_all_combinations_and_their_folders_are_names() -> None:
    chosen = settings("default", "stark", models=("rules", "openai:m@http://h:1/v1"), memories=("off", "read"))
    assert len(chosen.arms) == 8
    assert chosen.arms[0] == Arm("gain", "rules", "off")
    folders = {arm.folder for arm in chosen.arms}
    assert len(folders) == 8
    assert all("/" not in each and ":" not in each for each in folders)


def test_arms_of_a_repeat_share_seed_and_inputs() -> None:
    chosen = settings("gain", "stark")
    one, other = (chosen.of(arm, 1).tune for arm in chosen.arms)
    assert (one.seed, one.data_seed) == (other.seed, other.data_seed)
    assert chosen.of(chosen.arms[0], 0).tune.data_seed != one.data_seed


def test_tables_name_every_arm(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = compare([problem], settings("gain", "tune-only"), out=tmp_path / "out", machine=SimulatedMachine(cost))
    print_comparison(done, open_console())
    text = capsys.readouterr().out
    assert "tune-only" in text
    assert "over the first" in text


# -- statistics


def test_intervals_and_tests_of_known_data() -> None:
    mean = mean_ratio([1.0, 4.0])
    assert mean.estimate == pytest.approx(2.0)
    assert mean_ratio([2.0]).low is None
    assert spread([2.0]) is None
    assert spread([1.0, 1.0]) == pytest.approx(1.0)
    assert sign_flip_p([1.0, 2.0, 3.0]) == pytest.approx(2 / 8)
    assert sign_flip_p([0.0, 0.0]) == 1.0
    assert paired([2.0, 2.0], [1.0, 1.0]).ratio.estimate == pytest.approx(2.0)
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_quantiles_fall_towards_the_normal_one() -> None:
    values = [t_quantile(degrees) for degrees in range(1, 400)]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(12.706)
    assert 1.96 <= values[-1] < 1.99


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=30))
def test_the_test_does_not_know_which_is_first(differences: list[float]) -> None:
    p = sign_flip_p(differences)
    assert 0 < p <= 1
    assert p == pytest.approx(sign_flip_p([-each for each in differences]))


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=12), st.floats(0.5, 2))
def test_means_scale(ratios: list[float], factor: float) -> None:
    assert mean_ratio([factor * each for each in ratios]).estimate == pytest.approx(
        factor * mean_ratio(ratios).estimate
    )
