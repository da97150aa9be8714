"""Which config serves which sizes: the set cover, the rule, the probes, and all of it on a simulated device."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.backend.base import DeviceInfo
from kernelwright.cli.commands.dispatch import print_table
from kernelwright.cli.output.tables import open_console
from kernelwright.dispatching.cover import set_cost, smallest_cover
from kernelwright.dispatching.measure import probe_dispatch
from kernelwright.dispatching.probes import ShapeSpace, SizeRange, parse_range, spread, with_shapes
from kernelwright.dispatching.rule import (
    Case,
    Rule,
    choose,
    chosen_in,
    crossovers,
    fit_rule,
    readable_between,
)
from kernelwright.dispatching.table import DispatchTable, dispatch_table
from kernelwright.errors import BaselineFailed, StoreError, UsageError, UserError
from kernelwright.evaluate.base import Comparison
from kernelwright.export.run import export_run
from kernelwright.export.summary import dispatch_record
from kernelwright.problem.config import Config
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.outcome import Cost, Failed, Passed
from kernelwright.report.page import write_report
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate
from kernelwright.testing.simulated import CostFunction, SimulatedMachine, SimulatedRunner
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem, replay, tune
from tiers import examples

# Set cover

COSTS = st.integers(1, 5).flatmap(
    lambda things: st.lists(
        st.lists(st.sampled_from([0.0, 0.01, 0.05, 0.3, math.inf]), min_size=things, max_size=things),
        min_size=1,
        max_size=6,
    )
)


@given(COSTS)
def test_the_cover_is_complete_and_no_smaller_or_cheaper_one_exists(costs: list[list[float]]) -> None:
    covers = [frozenset(thing for thing, cost in enumerate(row) if cost <= 0.05) for row in costs]
    found = smallest_cover(covers, costs)
    wanted = frozenset[int]().union(*covers)
    assert frozenset[int]().union(*(covers[place] for place in found)) == wanted
    best = min(
        (
            (len(members), set_cost(costs, members) if members else (0, 0.0))
            for count in range(len(costs) + 1)
            for members in itertools.combinations(range(len(costs)), count)
            if wanted <= frozenset[int]().union(*(covers[place] for place in members))
        ),
    )
    assert (len(found), set_cost(costs, found) if found else (0, 0.0)) == best


def test_many_members_are_covered_greedily_in_no_time() -> None:
    covers = [frozenset({place, (place * 7 + 1) % 60, (place * 13 + 5) % 60}) for place in range(60)]
    costs = [[0.0 if thing in covers[place] else 1.0 for thing in range(60)] for place in range(60)]
    found = smallest_cover(covers, costs)
    assert frozenset[int]().union(*(covers[place] for place in found)) == frozenset(range(60))


# Rule

CASES = st.lists(
    st.tuples(
        st.integers(1, 5000),
        st.integers(1, 40),
        st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.5, math.inf]), min_size=3, max_size=3),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda each: each[:2],
)


def case(n: int, m: int, losses: Sequence[float], loss: float = 0.02) -> Case:
    best = min(each for each in losses) if any(map(math.isfinite, losses)) else 0.0
    shifted = tuple(each - best if math.isfinite(each) else each for each in losses)
    return Case({"n": n, "m": m}, shifted, tuple(each > loss for each in shifted))


@given(CASES)
@examples(60)
def test_a_rule_is_no_worse_than_one_config_for_all_and_its_thresholds_lie_in_measured_gaps(
    rows: list[tuple[int, int, list[float]]],
) -> None:
    cases = [case(*row) for row in rows]
    rule = fit_rule(cases, ["n", "m"])

    def over(rule: Rule) -> int:
        places = [(each, chosen_in(rule, each)) for each in cases]
        return sum(each.is_over[place] for each, place in places if place is not None)

    assert over(rule) <= over(fit_rule(cases, []))
    for depth, split in enumerate(crossovers(rule)):
        if split.divisor:
            assert {split.is_low(each.sizes) for each in cases} == {True, False}
            continue
        values = {math.prod(each.sizes[name] for name in split.sizes) for each in cases}
        assert split.below <= split.threshold < split.above
        assert {split.below, split.above} <= values
        if depth == 0:  # further down, other shapes may lie between
            assert not any(split.below < value < split.above for value in values)


def test_shapes_that_one_config_serves_need_no_question() -> None:
    cases = [case(n, 1, [0.01, 0.0, 0.5]) for n in (1, 10, 100)]
    assert isinstance(fit_rule(cases, ["n", "m"]), tuple)


def test_ragged_sizes_are_told_by_their_divisor_rather_than_by_a_hair() -> None:
    rows = [(n, [0.0, 0.5, 0.5] if n % 8 == 0 else [2.0, 0.0, 1.0]) for n in (256, 1024, 1023, 4096)]
    rule = fit_rule([case(n, 1, losses) for n, losses in rows], ["n", "m"])
    (split,) = crossovers(rule)
    assert split.divisor
    assert split.text() == "n % 16 == 0"
    assert choose(rule, {"n": 2047, "m": 1}, lambda place: True) == 1
    assert choose(rule, {"n": 2048, "m": 1}, lambda place: True) == 0


def test_a_product_of_sizes_is_asked_for_where_it_decides() -> None:
    cases = [case(n, m, [0.0, 0.4, 1.0] if n * m <= 400 else [0.4, 0.0, 1.0]) for n in (5, 20, 80) for m in (5, 20, 80)]
    rule = fit_rule(cases, ["n", "m"])
    splits = list(crossovers(rule))
    assert [split.sizes for split in splits] == [("n", "m")]
    assert choose(rule, {"n": 40, "m": 40}, lambda place: True) == 1
    assert choose(rule, {"n": 40, "m": 40}, lambda place: place == 2) == 2
    assert choose(rule, {"n": 40, "m": 40}, lambda place: False) is None


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_a_threshold_separates(below: int, more: int) -> None:
    assert below <= readable_between(below, below + more) < below + more


# Probes


def test_ranges_are_read_and_impossible_ones_refused() -> None:
    assert parse_range("n=64..4096:32") == ("n", SizeRange(64, 4096, 32))
    assert parse_range("n=1..9") == ("n", SizeRange(1, 9, 1))
    for text in ("n", "n=1", "n=1..x", "n=9..1", "n=0..5", "n=5..6:100"):
        with pytest.raises(UsageError):
            parse_range(text)


def test_probes_lie_between_and_beyond_are_new_and_fit_the_problem(saxpy: Path, tmp_path: Path) -> None:
    problem = load_problem(saxpy)
    space = ShapeSpace.of(problem)
    probes = spread(space, 5, lambda shape: True)
    sizes = [shape.sizes["n"] for shape in probes]
    assert len(set(sizes)) == 5
    assert not {4096, 65536} & set(sizes)
    assert any(4096 < n < 65536 for n in sizes)
    assert {2048, 131072} <= set(sizes)
    again = with_shapes(problem, probes, tmp_path / "probes")
    assert [(each.name, each.sizes) for each in again.workloads] == [(each.name, each.sizes) for each in probes]
    assert [each.text for each in again.arguments[0].shape] == ["n"]


def test_a_problem_file_with_a_byte_order_mark_is_probed_like_any(saxpy: Path, tmp_path: Path) -> None:
    file = saxpy / "problem.toml"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    problem = load_problem(saxpy)
    probes = spread(ShapeSpace.of(problem), 2, lambda shape: True)
    again = with_shapes(problem, probes, tmp_path / "probes")
    assert [each.name for each in again.workloads] == [each.name for each in probes]


def test_computed_sizes_follow_and_big_shapes_are_left_out(saxpy: Path, tmp_path: Path) -> None:
    file = saxpy / "problem.toml"
    file.write_text(file.read_text().replace("[[workloads]]", '[sizes]\nbytes = "4 * n"\n\n[[workloads]]', 1))
    space = ShapeSpace.of(load_problem(saxpy))
    assert space.free == ("n",)
    shape = space.workload({"n": 8192})
    assert shape is not None
    assert shape.sizes == {"n": 8192, "bytes": 32768}
    assert space.workload({"n": 2 * 65536 + 1}) is None
    with pytest.raises(UsageError, match="'bytes'"):
        ShapeSpace.of(load_problem(saxpy), {"bytes": SizeRange(1, 2)})
    wide = ShapeSpace.of(load_problem(saxpy), {"n": SizeRange(32, 2**20, 32)})
    found = {each.sizes["n"] for each in spread(wide, 8, lambda shape: True)}
    assert {32, 2**20} <= found


# All of it, simulated

CROSSOVER = 20000


def times(config: Config, workload: Workload) -> float:
    """BLOCK 16 is best up to `CROSSOVER`, 64 above it; the baseline is slow."""
    n, block, items = workload.sizes["n"], config.get("BLOCK", 32), config.get("ITEMS", 1)
    if not config:
        return 3e-4 * n
    assert isinstance(block, int)
    assert isinstance(items, int)
    best = 16 if n <= CROSSOVER else 64
    return 1e-4 * n * (1 + abs(block - best) / 64 + abs(items - 2) / 2)


def two_regimes(config: Config, workload: Workload) -> float | Failed:
    """As a simulated machine asks for it."""
    return times(config, workload)


def add_plain_baseline(saxpy: Path) -> None:
    """A baseline that is no config of the template."""
    source = (saxpy / "saxpy.cl").read_text()
    (saxpy / "plain.cl").write_text(source[source.index("#ifndef") :])
    with (saxpy / "problem.toml").open("a") as file:
        file.write('[baseline]\nkernel = "plain.cl"\nentry = "saxpy"\n')


def tuned(saxpy: Path, folder: Path, cost: CostFunction = two_regimes) -> tuple[Path, SimulatedMachine]:
    machine = SimulatedMachine(cost, noise=0.005)
    tune(saxpy, settings=TuneSettings(budget=Budget(), searcher="exhaustive"), run=folder, machine=machine)
    return folder, machine


def table_of(run: Path) -> DispatchTable:
    return dispatch_table(RunView.read(run), TuningProblem.load(run / "problem" / "problem.toml"))


def test_without_probes_the_table_stands_on_the_finalists_and_ends_at_the_tuned_sizes(
    saxpy: Path, tmp_path: Path
) -> None:
    run, _ = tuned(saxpy, tmp_path / "run")
    table = table_of(run)
    assert not table.is_probed
    assert table.select({"n": 4096}) == Config({"BLOCK": 16, "ITEMS": 2})
    assert table.select({"n": 65536}) == Config({"BLOCK": 64, "ITEMS": 2})
    assert table.select({"n": 8192}) is not None
    assert [table.select({"n": n}) for n in (2048, 131072, 4097)] == [None, None, None]
    assert max(table.losses(tuned=True)) <= 0.02


def test_probes_find_where_one_config_overtakes_the_other(saxpy: Path, tmp_path: Path) -> None:
    run, machine = tuned(saxpy, tmp_path / "run")
    returned = probe_dispatch(run, count=8, machine=machine)
    table = table_of(run)
    assert returned.rule_lines() == table.rule_lines()
    (split,) = crossovers(table.rule)
    assert split.below <= CROSSOVER < split.above
    assert split.above / split.below < 1.6, "the crossover was refined"
    assert table.is_probed
    assert max(table.losses(tuned=False)) < 0.05
    assert len(table.losses(tuned=False)) == len(table.held_out_losses) == 8
    assert table.select({"n": 2048}) == Config({"BLOCK": 16, "ITEMS": 2})
    assert table.select({"n": 131072}) == Config({"BLOCK": 64, "ITEMS": 2})


def test_a_config_near_enough_to_the_best_everywhere_serves_alone(saxpy: Path, tmp_path: Path) -> None:
    run, machine = tuned(saxpy, tmp_path / "run")
    few = probe_dispatch(run, count=4, loss=0.9, machine=machine)
    assert len(few.configs) == 1
    many = dispatch_table(RunView.read(run), TuningProblem.load(run / "problem" / "problem.toml"), loss=0.02)
    assert len(many.configs) == 2


def test_what_one_config_loses_is_not_known_where_none_was_measured_beside_it(
    saxpy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_plain_baseline(saxpy)

    def one(config: Config, workload: Workload) -> float | Failed:
        if config and dict(config) != {"BLOCK": 32, "ITEMS": 2}:
            return Failed("check", "mismatch", "y[0] is wrong", workload=workload.name)
        return (1e-4 if config else 3e-4) * workload.sizes["n"]

    run, machine = tuned(saxpy, tmp_path / "run", one)
    table = probe_dispatch(run, count=4, machine=machine)
    assert table.is_probed
    assert table.is_alone
    assert table.losses(tuned=True) == table.losses(tuned=False) == table.held_out_losses == ()
    assert dispatch_record(table)["losses"] == {"tuned": None, "probes": None, "held_out": None}
    print_table(table, open_console())
    shown = capsys.readouterr().out
    assert "one config only: no other one to compare with" in shown
    assert "%" not in shown
    export_run(run, tmp_path / "export", formats=("header",))
    (header,) = (tmp_path / "export").glob("*.h")
    assert "one config only: no other one to compare with" in " ".join(header.read_text().replace("//", "").split())
    assert " % in the mean" not in header.read_text()
    page = write_report(run, tmp_path / "report.html").read_text()
    assert "One config only: no other one to compare with" in page


def test_too_few_rounds_are_refused_before_a_device_is_asked_for(saxpy: Path, tmp_path: Path) -> None:
    class NoMachine(SimulatedMachine):
        def device(self, wanted: str | None, language: str) -> DeviceInfo:
            raise AssertionError("the device was asked for")

    run, _ = tuned(saxpy, tmp_path / "run")
    with pytest.raises(UsageError, match="rounds is 0, expected at least 5"):
        probe_dispatch(run, count=1, rounds=0, machine=NoMachine(two_regimes))


def test_where_the_baseline_is_the_fastest_it_serves(saxpy: Path, tmp_path: Path) -> None:
    add_plain_baseline(saxpy)

    def cost(config: Config, workload: Workload) -> float:
        small = workload.sizes["n"] <= 8192
        return (1.0 if small else 9.0) if not config else times(config, workload) + (3.0 if small else 0.0)

    run, machine = tuned(saxpy, tmp_path / "run", cost)
    table = probe_dispatch(run, count=6, machine=machine)
    assert None in table.configs
    assert table.select({"n": 4096}) is None
    assert not table.supports({"n": 4096})
    assert table.supports({"n": 65536})


def test_a_config_that_is_wrong_on_a_probe_is_out(saxpy: Path, tmp_path: Path) -> None:
    def cost(config: Config, workload: Workload) -> float | Failed:
        if workload.name.startswith("probe") and config.get("BLOCK") == 64:
            return Failed("check", "mismatch", "y[0] is wrong", workload=workload.name)
        return two_regimes(config, workload)

    run, machine = tuned(saxpy, tmp_path / "run", cost)
    table = probe_dispatch(run, count=4, machine=machine)
    assert all(config is None or config["BLOCK"] != 64 for config in table.configs)
    view = RunView.read(run)
    assert view.dispatch is not None
    assert any("y[0] is wrong" in reason for reason in view.dispatch.rejected.values())
    assert any("leaves out" in note.text for note in view.notes)


class DroppingMachine(SimulatedMachine):
    """A machine whose comparisons go on without a config that fails in them."""

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> SimulatedRunner:
        class Runner(SimulatedRunner):
            def compare(self, candidates: Sequence[Candidate], *, rounds: int) -> Comparison | None:
                left = [each for each in candidates if each.config.get("BLOCK") != 64]
                found = super().compare(left, rounds=rounds)
                gone = {each.id: "failed in the comparison" for each in candidates if each not in left}
                return dataclasses.replace(found, rejected=gone) if found is not None else None

        return Runner(problem, two_regimes, noise=0.005)


def test_a_config_that_fails_in_the_comparison_is_out_and_the_others_keep_their_times(
    saxpy: Path, tmp_path: Path
) -> None:
    run, _ = tuned(saxpy, tmp_path / "run")
    table = probe_dispatch(run, count=4, machine=DroppingMachine(two_regimes))
    assert all(config is None or config["BLOCK"] != 64 for config in table.configs)
    dispatch = RunView.read(run).dispatch
    assert dispatch is not None
    assert set(dispatch.rejected.values()) == {"failed in the comparison"}
    for name, rows in dispatch.samples_ms.items():
        for config, row in zip(dispatch.configs, rows, strict=True):
            if row and config:
                wanted = two_regimes(Config(config), Workload(name, dispatch.shapes[name]))
                assert median(row) == pytest.approx(wanted, rel=0.05)


class FailingMachine(SimulatedMachine):
    """A machine on which the baseline fails for some shapes."""

    def runner(self, problem: Problem, device: DeviceInfo, settings: TuneSettings) -> SimulatedRunner:
        class Runner(SimulatedRunner):
            def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
                for workload in problem.workloads:
                    if workload.sizes["n"] == 131072:
                        raise BaselineFailed(f"the baseline does not run on workload {workload.name!r}")
                return super().calibrate(baseline)

        return Runner(problem, two_regimes, noise=0.005)


def test_a_shape_on_which_the_baseline_fails_is_left_out_with_the_reason(saxpy: Path, tmp_path: Path) -> None:
    run, _ = tuned(saxpy, tmp_path / "run")
    table = probe_dispatch(run, count=8, machine=FailingMachine(two_regimes))
    view = RunView.read(run)
    assert view.dispatch is not None
    assert list(view.dispatch.skipped) == ["probe n=131072"]
    assert not table.domain.contains({"n": 131072})
    assert table.domain.contains({"n": 65536})


def test_ragged_sizes_join_the_domain_only_where_all_configs_are_right(saxpy: Path, tmp_path: Path) -> None:
    template = saxpy / "saxpy.cl"
    source = template.read_text().replace("n % (BLOCK * ITEMS) == 0", "BLOCK * ITEMS <= n")
    template.write_text(source.replace('"n // (BLOCK * ITEMS)"', '"ceil_div(n, BLOCK * ITEMS)"'))
    problem = saxpy / "problem.toml"
    problem.write_text(problem.read_text().replace('"n // 32"', '"ceil_div(n, 32)"'))

    def careless(config: Config, workload: Workload) -> float | Failed:
        if workload.sizes["n"] % 2 and config.get("BLOCK") == 64:
            return Failed("check", "out-of-bounds", "wrote past the end", workload=workload.name)
        return two_regimes(config, workload)

    right, machine = tuned(saxpy, tmp_path / "right")
    assert probe_dispatch(right, count=4, machine=machine).domain.ranges["n"].step == 1
    wrong, machine = tuned(saxpy, tmp_path / "wrong", careless)
    table = probe_dispatch(wrong, count=4, machine=machine)
    assert table.domain.ranges["n"].step > 1
    assert Config({"BLOCK": 64, "ITEMS": 2}) in table.configs
    view = RunView.read(wrong)
    assert view.dispatch is not None
    assert "wrote past the end" in view.dispatch.skipped["probe n=65535"]


def test_what_cannot_be_dispatched_is_said(saxpy: Path, tmp_path: Path) -> None:
    run, machine = tuned(saxpy, tmp_path / "run")
    with pytest.raises(UsageError):
        probe_dispatch(run, loss=2.0, machine=machine)
    with pytest.raises(UsageError, match="'m'"):
        probe_dispatch(run, ranges={"m": SizeRange(1, 2)}, machine=machine)
    with pytest.raises(StoreError):
        probe_dispatch(tmp_path / "nowhere", machine=machine)
    replay(run, settings=TuneSettings(budget=Budget(evaluations=3), searcher="random"), run=tmp_path / "replayed")
    with pytest.raises(StoreError, match="replay"):
        probe_dispatch(tmp_path / "replayed", machine=machine)
    assert RunView.read(run).dispatch is None


def test_a_run_in_which_nothing_passed_has_no_table(saxpy: Path, tmp_path: Path) -> None:
    source = (saxpy / "saxpy.cl").read_text()
    (saxpy / "plain.cl").write_text(source[source.index("#ifndef") :])
    with (saxpy / "problem.toml").open("a") as file:
        file.write('[baseline]\nkernel = "plain.cl"\nentry = "saxpy"\n')
    run, machine = tuned(
        saxpy, tmp_path / "run", lambda config, workload: Failed("check", "mismatch", "wrong") if config else 1.0
    )
    with pytest.raises(UserError, match="no config"):
        table_of(run)
    with pytest.raises(UserError, match="no config that passed"):
        probe_dispatch(run, machine=machine)
