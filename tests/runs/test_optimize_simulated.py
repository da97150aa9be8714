"""Both stages without a device and without a model: the tree, its budget, its record, its claims."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kernelwright.agent.base import Context, Declined, Draft
from kernelwright.cli.commands.optimize import optimize_summary
from kernelwright.cli.commands.show import print_run
from kernelwright.errors import StoreError, UsageError
from kernelwright.export.run import export_run
from kernelwright.insights.verdict_words import tree_verdict_text as verdict
from kernelwright.optimization.optimize import optimize, replay_optimize, resume_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Failed
from kernelwright.report.page import write_report
from kernelwright.results.optimize_result import OptimizeResult, tuned_run
from kernelwright.store.event import Event, Idea
from kernelwright.store.runs import list_runs
from kernelwright.store.view import RunView
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.listener import Progress, SilentListener
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import TuningProblem, replay
from kernelwright_bench.policies.stark import Stark

LIFT = ScriptedTactic("lift", 1.0, "launch")
VECTOR = ScriptedTactic("vector", 1.8, "map")
TILE = ScriptedTactic("tile", 3.0, "memory")
NESTED = ScriptedTactic("nested", 1.5, "memory", needs=("tile",))
USELESS = ScriptedTactic("useless", 2.5, "row")
WRONG = ScriptedTactic("wrong", 6.0, "reduction")


def cost(config: Config, workload: Workload) -> float | Failed:
    """Tactics help at the best values of their parameters, not at the defaults."""
    time_ms = workload.sizes["n"] * 1e-4
    gains = {"LIFT": (1.0, 1.1, 1.2), "VECTOR": (1.0, 1.5, 2.0), "TILE": (0.8, 2.0, 3.0), "NESTED": (1.0, 1.2, 1.6)}
    for name, values in gains.items():
        if name in config:
            time_ms /= dict(zip((1, 2, 4), values, strict=True))[config[name]]  # type: ignore[index]
    if "WRONG" in config:
        return Failed("check", "mismatch", "output y is wrong at 17", log="expected 1, found 2")
    if config.get("BIG") == 4:
        return Failed("resources", "too-much-local-memory", "it needs too much")
    return time_ms / 4 if "BIG" in config else time_ms


def machine(noise: float = 0.005) -> SimulatedMachine:
    return SimulatedMachine(cost, noise=noise)


def settings(evaluations: int = 120, **changes: object) -> OptimizeSettings:
    tune = TuneSettings(budget=Budget(evaluations=evaluations), searcher="random", data_seed=1, comparison_rounds=10)
    return dataclasses.replace(OptimizeSettings(tune=tune, memory="off"), **changes)  # type: ignore[arg-type]


def agent(*tactics: ScriptedTactic, lifted: ScriptedTactic | None = LIFT, plans_ahead: bool = True) -> ScriptedAgent:
    return ScriptedAgent(tactics, lifted=lifted, plans_ahead=plans_ahead)


def run(plain: Path, tmp_path: Path, *tactics: ScriptedTactic, **options: object) -> OptimizeResult:
    chosen = options.pop("agent", None) or agent(*tactics)
    return optimize(plain, settings=settings(**options), run=tmp_path / "run", machine=machine(), agent=chosen)  # type: ignore[arg-type]


# -- what comes out


def test_tactics_are_stacked_and_tuned(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path, VECTOR, TILE, NESTED, USELESS)
    assert result.is_gain
    assert result.winner is not None
    assert set(result.winner.tactics) >= {"lift", "vector", "tile"}
    assert result.speedup is not None
    assert result.speedup.estimate > 5
    assert result.best_config is not None
    assert result.best_config["TILE"] == 4


def test_the_path_says_what_every_step_brought(plain: Path, tmp_path: Path) -> None:
    path = run(plain, tmp_path, TILE, VECTOR).path
    assert [step.node.role for step in path[:2]] == ["baseline", "template"]
    steps = {step.node.tactic: step for step in path if step.node.tactic}
    assert steps["tile"].predicted_gain == 3.0
    for step in path[2:]:
        assert step.gain is not None
        assert step.total is not None
    product = 1.0
    for step in path[1:]:
        assert step.gain is not None
        product *= step.gain.estimate
    assert product == pytest.approx(path[-1].total.estimate, rel=0.02)  # type: ignore[union-attr]


def test_without_tactics_the_lifted_parameters_are_tuned(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path)
    assert [node.role for node in result.tree] == ["baseline", "template"]
    assert result.best_config == Config({"LIFT": 4})
    assert result.is_gain
    assert result.reason == "exhausted"


def test_with_nothing_to_do_the_baseline_is_kept_and_the_evidence_told(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path, agent=agent(lifted=None))
    assert result.winner is None
    assert "keep the baseline. Nothing could be changed" in verdict(result)


def test_a_gain_that_other_workloads_outweigh_is_kept_where_it_is(plain: Path, tmp_path: Path) -> None:
    first: list[str] = []

    def cost(config: Config, workload: Workload) -> float:
        first[:] = first or [workload.name]
        if not config:
            return 1.0
        return 0.5 if workload.name == first[0] else 3.0

    machine = SimulatedMachine(cost, noise=0.01)
    result = optimize(plain, settings=settings(), run=tmp_path / "run", machine=machine, agent=agent(TILE))
    assert not result.is_gain
    assert result.partial is not None
    assert [each.workload for each in result.partial.faster] == first
    assert result.winner is None
    assert result.used is not None
    assert result.used == result.fastest
    told = verdict(result)
    assert told.startswith("No gain over all workloads")
    assert f"on {first[0]} 2.0" in told or f"on {first[0]} 1.9" in told
    own = result.tuned(result.used.index)
    assert own.partial is not None
    assert own.partial.faster[0].speedup.confidence == result.partial.faster[0].speedup.confidence
    (header,) = export_run(tmp_path / "run", tmp_path / "export", formats=("header",))
    assert "no gain over all workloads" in header.read_text()


def test_without_a_gain_the_baseline_is_kept(plain: Path, tmp_path: Path) -> None:
    flat = SimulatedMachine(lambda config, workload: 1.0, noise=0.01)
    result = optimize(plain, settings=settings(), run=tmp_path / "run", machine=flat, agent=agent(USELESS, TILE))
    assert result.winner is None
    assert not result.is_gain
    assert "keep the baseline" in verdict(result)
    assert "structures and" in verdict(result)
    assert "1.0" in verdict(result) or "0.9" in verdict(result)
    with pytest.raises(StoreError, match="keep the baseline"):
        export_run(tmp_path / "run", tmp_path / "export")


# -- the order under a budget in seconds


def hurried(seconds: float) -> OptimizeSettings:
    """Simulated evaluations take no time, so that nothing of this is ever used up."""
    tune = TuneSettings(
        budget=Budget(seconds=seconds, evaluations=60), searcher="random", data_seed=1, comparison_rounds=10
    )
    return OptimizeSettings(tune=tune, memory="off")


def test_a_large_idea_comes_before_the_space_of_what_was_merely_lifted(plain: Path, tmp_path: Path) -> None:
    result = optimize(plain, settings=hurried(1e6), run=tmp_path / "run", machine=machine(), agent=agent(TILE, VECTOR))
    events = [*result.view.tree_events]
    first = next(each for each in events if each.kind == "action_chosen")
    assert (first.action, first.idea) == ("expand", "tile")
    waiting = result.view.proofs[0]
    assert waiting.is_deferred
    assert waiting.corner_count + waiting.random_count == 0
    tuned = any(each.kind == "action_chosen" and each.action == "tune" and each.node == 1 for each in events)
    proven = [each for each in result.view.proofs if not each.is_deferred]
    assert bool(proven) == tuned
    assert result.is_gain


def test_without_a_large_idea_the_space_is_proven_first(plain: Path, tmp_path: Path) -> None:
    small = ScriptedTactic("small", 1.3, "map")
    result = optimize(plain, settings=hurried(1e6), run=tmp_path / "run", machine=machine(), agent=agent(small))
    assert not result.view.proofs[0].is_deferred


def test_a_model_is_asked_as_before(plain: Path, tmp_path: Path) -> None:
    chosen = agent(TILE, plans_ahead=False)
    result = optimize(plain, settings=hurried(1e6), run=tmp_path / "run", machine=machine(), agent=chosen)
    assert not result.view.proofs[0].is_deferred


def test_a_proof_that_waited_is_made_before_its_space_is_searched_and_survives_a_replay(
    plain: Path, tmp_path: Path
) -> None:
    """A prediction that comes to nothing leaves the lifted template as what is to be tuned."""
    options = {"settings": hurried(1e6), "machine": machine(0.0)}
    result = optimize(plain, run=tmp_path / "run", agent=agent(USELESS), **options)  # type: ignore[arg-type]
    events = json.loads("[" + ",".join((tmp_path / "run" / "events.jsonl").read_text().splitlines()) + "]")
    order = [
        (each["kind"], each.get("action", ""))
        for each in events
        if each.get("index", each.get("node")) == 1 and each["kind"] in ("template_proven", "action_chosen")
    ]
    assert order[0] == ("template_proven", "")
    place = order.index(("action_chosen", "tune"))
    assert order[place + 1] == ("template_proven", "")
    assert [proof.is_deferred for proof in result.view.proofs] == [True, False]
    assert result.view.proofs[1].corner_count > 0
    again = replay_optimize(tmp_path / "run", run=tmp_path / "again", agent=agent(USELESS))
    assert _shape(again.result.tree) == _shape(result.tree)


def test_a_wrong_rewrite_never_wins_and_is_shown_with_its_log(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path, WRONG, VECTOR)
    wrong = next(node for node in result.tree if node.tactic == "wrong")
    assert wrong.failure is not None
    assert (wrong.status, wrong.failure.stage, wrong.failure.log) == ("failed", "check", "expected 1, found 2")
    assert result.winner is not None
    assert "wrong" not in result.winner.tactics


def test_a_failed_tactic_is_tried_once(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path, WRONG, VECTOR, TILE)
    assert [node.tactic for node in result.tree].count("wrong") == 1


def test_a_template_that_no_config_fits_is_refused_before_anything_is_built(plain: Path, tmp_path: Path) -> None:
    never = ScriptedTactic("never", 9.0, constraint="NEVER > 100")
    typo = ScriptedTactic("typo", 8.0, constraint="TYPOO > 1")
    result = run(plain, tmp_path, never, typo, VECTOR)
    refused = {node.tactic: node for node in result.tree if node.status == "refused"}
    assert set(refused) == {"never", "typo"}
    assert all(node.failure is not None and node.failure.stage == "lint" for node in refused.values())
    assert result.folder is not None
    assert not (result.folder / "nodes" / f"{refused['never'].index:03d}").exists()
    assert result.is_gain


def test_what_the_agent_declines_is_recorded_with_its_reason(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path, ScriptedTactic("shy", 9.0, declines="the loop is not understood"), VECTOR)
    shy = next(node for node in result.tree if node.tactic == "shy")
    assert shy.failure is not None
    assert shy.failure.message == "the loop is not understood"
    assert shy.status == "refused"


def test_the_same_template_is_not_evaluated_twice(plain: Path, tmp_path: Path) -> None:
    class Repeating(ScriptedAgent):
        def code(self, context: Context, idea: Idea) -> Draft | Declined:
            return super().code(context, dataclasses.replace(idea, key="original") if idea.key == "copy" else idea)

    chosen = Repeating([ScriptedTactic("original", 2.0, "map"), ScriptedTactic("copy", 2.0, "row")], lifted=LIFT)
    result = run(plain, tmp_path, agent=chosen)
    copies = [node for node in result.tree if node.failure is not None and node.failure.reason == "duplicate"]
    assert copies
    assert "the same template as node" in copies[0].failure.message  # type: ignore[union-attr]


def test_a_node_that_does_not_fit_is_mended(plain: Path, tmp_path: Path) -> None:
    big = ScriptedTactic("big", 4.0, values=(4,))
    other = ScriptedAgent([big], lifted=LIFT)
    result = run(plain, tmp_path, agent=other)
    node = next(node for node in result.tree if node.tactic == "big")
    assert node.failure is not None
    assert node.failure.stage == "resources"
    assert any(call.startswith("debug") for call in other.calls)


def test_a_default_that_does_not_fit_is_replaced_by_a_neighbour(plain: Path, tmp_path: Path) -> None:
    big = ScriptedTactic("big", 4.0, values=(4, 1))
    result = run(plain, tmp_path, big)
    node = next(node for node in result.tree if node.tactic == "big")
    assert node.is_working
    assert result.best_config is not None
    assert result.best_config["BIG"] == 1


# -- the problem's own template


def test_the_given_template_is_a_node_too(beatable_saxpy: Path, tmp_path: Path) -> None:
    result = optimize(
        beatable_saxpy, settings=settings(40), run=tmp_path / "run", machine=SimulatedMachine(_given), agent=agent()
    )
    given = next(node for node in result.tree if node.role == "given")
    assert result.winner == given
    assert result.best_config is not None
    assert result.best_config["BLOCK"] == 64
    assert [step.node.role for step in result.path] == ["baseline", "given"]


def test_what_is_made_from_the_given_template_keeps_its_kernel_and_options(
    beatable_saxpy: Path, tmp_path: Path
) -> None:
    slow = beatable_saxpy / "slow.cl"
    slow.write_text(slow.read_text().replace("saxpy", "slow_saxpy"))
    problem = beatable_saxpy / "problem.toml"
    text = problem.read_text().replace(
        'kernel = "slow.cl"', 'kernel = "slow.cl"\nentry = "slow_saxpy"\noptions = ["-w"]'
    )
    problem.write_text(text)
    result = optimize(
        beatable_saxpy, settings=settings(60), run=tmp_path / "run", machine=SimulatedMachine(_given), agent=agent(TILE)
    )
    made = {node.index: node for node in result.tree if node.tactic == "tile"}
    assert made
    for node in made.values():
        subject = TuningProblem.load(result.node_folder(node.index) / "problem" / "problem.toml")
        is_given = any(step.role == "given" for step in result.tree.path(node.index))
        assert subject.template.steps[0].entry == ("saxpy" if is_given else "slow_saxpy")
        assert subject.template.options == (() if is_given else ("-w",))
        assert subject.baseline.template.options == ("-w",)


def test_the_given_template_can_be_left_out(beatable_saxpy: Path, tmp_path: Path) -> None:
    chosen = settings(40, start="baseline")
    result = optimize(
        beatable_saxpy, settings=chosen, run=tmp_path / "run", machine=SimulatedMachine(_given), agent=agent()
    )
    assert {node.role for node in result.tree} == {"baseline", "template"}


def _given(config: Config, workload: Workload) -> float:
    return 0.3 if config.get("BLOCK") == 64 else 0.6 if "BLOCK" in config else 1.0


def test_a_template_without_a_baseline_is_the_root_and_is_tuned(saxpy: Path, tmp_path: Path) -> None:
    result = optimize(
        saxpy, settings=settings(40), run=tmp_path / "run", machine=SimulatedMachine(_own), agent=agent(lifted=None)
    )
    assert [node.role for node in result.tree] == ["baseline"]
    assert result.best_config is not None
    assert result.best_config["BLOCK"] == 64
    assert result.is_gain


def _own(config: Config, workload: Workload) -> float:
    return 0.5 if config.get("BLOCK") == 64 else 1.0


# -- budget, record, resumption


@pytest.mark.parametrize("evaluations", [5, 23, 60])
def test_the_budget_in_evaluations_is_kept(plain: Path, tmp_path: Path, evaluations: int) -> None:
    result = run(plain, tmp_path, VECTOR, TILE, NESTED, evaluations=evaluations)
    counted = sum(len(RunView.read(path).evaluations) for path in (tmp_path / "run" / "nodes").iterdir())
    proofs = len(result.tree)
    assert evaluations <= counted <= evaluations + proofs or result.reason != "budget"


def test_every_node_is_an_ordinary_run(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path, VECTOR, TILE)
    assert result.winner is not None
    folder = result.node_folder(result.winner.index)
    view = RunView.read(folder)
    assert view.comparison is not None
    assert view.fastest is not None
    assert view.fastest.config == result.best_config
    again = replay(folder, settings=settings().tune, run=tmp_path / "replay")
    assert again.view.best is not None
    assert result.tuned(result.winner.index).speedup is not None


def test_the_export_is_the_winners(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path, VECTOR, TILE)
    assert result.winner is not None
    files = {path.name: path for path in export_run(tmp_path / "run", tmp_path / "export")}
    assert "scripted_tile" in files["saxpy_template.cl"].read_text()
    summary = json.loads(files["saxpy.json"].read_text())
    assert summary["config" if "config" in summary else "best_config"] == dict(result.best_config or {})


def test_a_list_of_runs_shows_the_tree_as_one(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    optimize(plain, settings=settings(40), run=tmp_path / "runs" / "one", machine=machine(), agent=agent(TILE))
    (summary,) = list_runs(tmp_path / "runs")
    assert summary.state == "finished"
    assert summary.evaluation_count > 5
    assert summary.best_value is not None


def test_the_report_shows_every_structure(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path, WRONG, TILE, VECTOR)
    page = write_report(tmp_path / "run", tmp_path / "report.html").read_text()
    for node in result.tree:
        assert f'id="node-{node.index}"' in page
    assert "found 2" in page  # the log of the wrong one
    assert "scripted_tile" in page  # its diff
    assert "the script says so" in page


@pytest.mark.parametrize("after", [4, 9, 30])
def test_an_interrupted_run_has_a_report_too(plain: Path, tmp_path: Path, after: int) -> None:
    listener = Stopping(after, KeyboardInterrupt)
    optimize(plain, settings=settings(), run=tmp_path / "run", machine=machine(), agent=agent(TILE), listener=listener)
    assert "Structures" in write_report(tmp_path / "run", tmp_path / "report.html").read_text() or after == 4


def test_show_prints_the_tree(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(plain, tmp_path, WRONG, TILE)
    print_run(tmp_path / "run", is_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "failed at check: mismatch" in shown
    assert "<- fastest" in shown
    print_run(tmp_path / "run", is_json=True)
    assert json.loads(capsys.readouterr().out)["is_gain"]


def test_the_summary_is_json(plain: Path, tmp_path: Path) -> None:
    summary = json.loads(json.dumps(optimize_summary(run(plain, tmp_path, WRONG, TILE))))
    assert summary["is_gain"]
    assert [node["what"] for node in summary["nodes"]][:2] == ["baseline", "template"]


@pytest.mark.few(1)
@pytest.mark.parametrize("plans_ahead", [True, False])
def test_the_same_seed_gives_the_same_tree(plain: Path, tmp_path: Path, plans_ahead: bool) -> None:
    trees = []
    for name in ("one", "two"):
        chosen = agent(VECTOR, TILE, NESTED, USELESS, WRONG, plans_ahead=plans_ahead)
        options = {"settings": settings(80), "machine": machine(0.0), "agent": chosen}
        trees.append(optimize(plain, run=tmp_path / name, **options).tree)  # type: ignore[arg-type]
    assert _shape(trees[0]) == _shape(trees[1])


class Stopping(SilentListener):
    """Stops the run at its n-th event, as Ctrl-C or a kill does."""

    def __init__(self, after: int, error: type[BaseException]) -> None:
        self.left = after
        self.error = error

    def on_event(self, event: Event, progress: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


class Killed(BaseException):
    """Nothing handles this, like a kill."""


@pytest.mark.few(3)
@pytest.mark.parametrize("error", [KeyboardInterrupt, Killed])
@pytest.mark.parametrize("after", [3, 6, 12, 17, 31, 55])
def test_an_interrupted_run_ends_like_an_undisturbed_one(
    plain: Path, tmp_path: Path, after: int, error: type[BaseException]
) -> None:
    def tactics() -> ScriptedAgent:
        return agent(VECTOR, TILE, NESTED, WRONG)

    whole = optimize(plain, settings=settings(60), run=tmp_path / "whole", machine=machine(0.0), agent=tactics())
    options = {"settings": settings(60), "machine": machine(0.0), "agent": tactics()}
    listener = Stopping(after, error)
    try:
        first = optimize(plain, run=tmp_path / "cut", listener=listener, **options)  # type: ignore[arg-type]
    except Killed:
        pass
    else:
        assert first.reason == "interrupted"
    rest = resume_optimize(tmp_path / "cut", machine=machine(0.0), agent=tactics())
    assert rest.reason == whole.reason
    assert _shape(rest.tree) == _shape(whole.tree)
    assert rest.best_config == whole.best_config


def _shape(tree: object) -> list[object]:
    return [
        (n.parent, n.tactic, n.status, n.best_value, n.tuning.evaluated_count, dict(n.best_config))
        for n in tree  # type: ignore[attr-defined]
    ]


def test_a_finished_run_is_only_read_by_resume(plain: Path, tmp_path: Path) -> None:
    done = run(plain, tmp_path, TILE)
    before = (tmp_path / "run" / "events.jsonl").read_bytes()
    assert resume_optimize(tmp_path / "run", machine=machine()).view == done.view
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == before


def test_the_published_policy_runs_behind_the_same_seam(plain: Path, tmp_path: Path) -> None:
    result = optimize(
        plain,
        settings=settings(80),
        run=tmp_path / "run",
        machine=machine(),
        agent=agent(VECTOR, TILE, NESTED),
        policy=Stark(1),
    )
    assert result.is_gain
    assert any(action.action == "tune" for action in result.tree.actions)


def test_unknown_words_name_the_nearest() -> None:
    with pytest.raises(UsageError, match="gain"):
        settings(policy="gian")
    with pytest.raises(UsageError, match="openai:NAME"):
        settings(model="opanai:x")


def test_what_reads_one_search_reads_the_fastest_nodes(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path, TILE)
    assert result.fastest is not None
    assert tuned_run(tmp_path / "run") == result.node_folder(result.fastest.index)
    assert tuned_run(result.node_folder(1)) == result.node_folder(1)
