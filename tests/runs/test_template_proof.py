"""A lifted template is proven before its landscape is trusted, and what the proof finds is told and acted upon."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busy import ignore_busy_machine_in_runs
from kernelwright.agent.base import Context, Declined, Draft, TemplateContext
from kernelwright.errors import UsageError
from kernelwright.evaluate.base import Reproduction
from kernelwright.optimization.nodes.proof import condition, inert_parameters, text_with
from kernelwright.optimization.nodes.proof_points import corners, differing, random_points
from kernelwright.optimization.optimize import optimize, resume_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Cost, Failed, Measurement, Passed
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.store.event import Evaluated, Exclusion
from kernelwright.template.model import Candidate
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine, SimulatedRunner
from kernelwright.tree.gain import GainPerCost
from kernelwright.tuning.settings import Budget, TuneSettings

LIFT = ScriptedTactic("lift", 1.0, "launch", values=(1, 2, 4, 8))


def settings(evaluations: int = 160, **changes: object) -> OptimizeSettings:
    tune = TuneSettings(budget=Budget(evaluations=evaluations), searcher="random", data_seed=1, comparison_rounds=10)
    return dataclasses.replace(OptimizeSettings(tune=tune), **changes)  # type: ignore[arg-type]


def wrong_at_eight(config: Config, workload: Workload) -> float | Failed:
    if config.get("LIFT") == 8:
        return Failed("check", "mismatch", "output y is wrong at 17")
    return workload.sizes["n"] * 1e-4 / config.get("LIFT", 1)  # type: ignore[operator]


def run(plain: Path, tmp_path: Path, **changes: object) -> OptimizeResult:
    agent = ScriptedAgent([ScriptedTactic("tile", 2.0)], lifted=LIFT)
    return optimize(
        plain,
        settings=settings(**changes),  # type: ignore[arg-type]
        run=tmp_path / "run",
        machine=SimulatedMachine(wrong_at_eight),
        agent=agent,
    )


# -- values that fail


def test_a_value_that_fails_at_a_corner_is_left_out_with_the_reason(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path)
    (proof,) = result.view.proofs
    assert [dict(each.values) for each in proof.excluded] == [{"LIFT": 8}]
    assert "output y is wrong at 17" in proof.excluded[0].reason
    assert result.tree[proof.index].is_working
    assert any("left out: LIFT=8" in finding for finding in result.tree[proof.index].tuning.findings)
    tuned = result.tuned(proof.index).view.evaluations
    assert sum(each.config["LIFT"] == 8 for each in tuned) == 1


def test_what_is_made_of_the_template_inherits_what_is_left_out(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path)
    child = next(node for node in result.tree if node.tactic == "tile")
    assert "LIFT != 8" in result.source(child.index)
    assert all(each.config["LIFT"] != 8 for each in result.tuned(child.index).view.evaluations)


def test_a_resumed_run_still_leaves_it_out(plain: Path, tmp_path: Path) -> None:
    class Impatient(ScriptedAgent):
        def code(self, context, idea):  # type: ignore[no-untyped-def]
            raise KeyboardInterrupt

    tactics = [ScriptedTactic("tile", 2.0)]
    first = optimize(
        plain,
        settings=settings(),
        run=tmp_path / "run",
        machine=SimulatedMachine(wrong_at_eight),
        agent=Impatient(tactics, lifted=LIFT),
    )
    assert first.reason == "interrupted"
    result = resume_optimize(
        tmp_path / "run", machine=SimulatedMachine(wrong_at_eight), agent=ScriptedAgent(tactics, lifted=LIFT)
    )
    assert len(result.view.proofs) == 1
    tuned = result.tuned(result.view.proofs[0].index).view.evaluations
    assert sum(each.config["LIFT"] == 8 for each in tuned) == 1


def test_without_points_nothing_is_tried_and_nothing_is_claimed(plain: Path, tmp_path: Path) -> None:
    (proof,) = run(plain, tmp_path, proof_points=0).view.proofs
    assert (proof.corner_count, proof.random_count, proof.excluded, proof.findings) == (0, 0, (), ())
    with pytest.raises(UsageError, match="proof_points"):
        settings(proof_points=-1)


def test_a_small_budget_is_not_spent_on_the_proof(plain: Path, tmp_path: Path) -> None:
    (proof,) = run(plain, tmp_path, evaluations=16).view.proofs
    assert proof.corner_count + proof.random_count <= 2


def test_excluded_values_become_a_constraint_of_the_header(plain: Path, tmp_path: Path) -> None:
    result = run(plain, tmp_path)
    from kernelwright.agent.base import Written

    written = Written(result.source(1), "opencl", "saxpy")
    text = text_with(written, [Exclusion({"LIFT": 4, "BLOCK": "a"}, "why")])
    assert "LIFT != 4 or BLOCK != 'a'" in text.replace('\\"', "'")
    assert condition(Exclusion({"ON": True}, "")) == "ON != 1"


# -- parameters that change nothing


def passed(index: int, same_as: int | None = None, time_ms: float = 1.0, **config: int) -> Evaluated:
    same = f"c{same_as}" if same_as is not None else None
    samples_ms = tuple(time_ms * (1 + 0.01 * step) for step in (-2, -1, 0, 0, 0, 1, 2))
    outcome = Passed((Measurement("w", samples_ms, "t"),), same_as=same)
    return Evaluated(index, f"c{index}", config, outcome, time_ms, Cost(), 0.0)


def test_a_parameter_with_the_same_machine_code_is_inert() -> None:
    found = inert_parameters([passed(0, A=1, B=1), passed(1, 0, A=2, B=1), passed(2, A=1, B=2)])
    assert found == {"A": "the same machine code and launches at 1, 2"}


def test_one_pair_that_differs_is_enough_to_matter() -> None:
    assert not inert_parameters([passed(0, A=1, B=1), passed(1, 0, A=2, B=1), passed(2, time_ms=1.5, A=4, B=1)])


def test_without_machine_code_times_tell_what_has_no_effect() -> None:
    events = [passed(2 * a + b, time_ms=1.0 + a + 0.005 * b, A=a, B=b) for a in range(3) for b in range(2)]
    assert inert_parameters(events) == {"B": "no effect beyond noise in 3 pairs, 0.3% on average"}
    assert not inert_parameters(events[:4]), "two pairs are too few"


# -- points


@st.composite
def spaces(draw: st.DrawFn) -> tuple[Space, Config]:
    count = draw(st.integers(1, 6))
    parameters = []
    for place in range(count):
        values = tuple(draw(st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=4, unique=True)))
        parameters.append(Parameter(f"P{place}", values, draw(st.sampled_from(values))))
    default = Config({each.name: each.default for each in parameters})
    limit = draw(st.integers(1, 64)) + sum(int(value) for value in default.values())
    text = " + ".join(each.name for each in parameters)
    space = Space.build(parameters, [Constraint("sum", Expression.parse(f"{text} <= {limit}"))])
    return space, default


@given(spaces(), st.integers(0, 10))
def test_corners_are_few_distinct_feasible_and_at_extremes(made: tuple[Space, Config], count: int) -> None:
    space, default = made
    found = corners(space, default, count=count)
    assert len(found) == len(set(found)) <= max(count, 0)
    for config in found:
        assert config in space
        assert config != default
        changed = differing(config, default)
        assert any(
            config[each.name] in (min(each.values), max(each.values))
            for each in space.parameters
            if each.name in changed
        )
    more = random_points(space, count=4, seed=1, exclude=[default, *found])
    assert not set(more) & {default, *found}


def test_every_parameter_is_at_an_extreme_once_where_there_is_room() -> None:
    parameters = [Parameter(f"P{place}", (1, 2, 4, 8), 1) for place in range(4)]
    default = Config({each.name: 1 for each in parameters})
    found = corners(Space.build(parameters, []), default, count=8)
    assert [config for config in found if len(differing(config, default)) == 1][:4]
    assert {each.name for each in parameters} == {
        name for config in found for name, value in differing(config, default).items() if value == 8
    }
    assert any(all(value == 8 for value in config.values()) for config in found)


# -- on a device


class LiftingWrongly(ScriptedAgent):
    """Lifts with a text that the test gives."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def template(self, context: TemplateContext) -> Draft | Declined:
        return Draft(dataclasses.replace(context.written, text=self._text), "lifted")


HEADER = """// /// kernelwright
// [parameters]
// BLOCK = { values = [16, 32, 64], default = 32 }
// ITEMS = { values = [1, 2, 4], default = 1 }
// IDLE = { values = [1, 2], default = 1 }
// [constraints]
// whole = "n % (BLOCK * ITEMS) == 0"
// needless = "ITEMS < 4"
// [launch]
// grid = ["n // (BLOCK * ITEMS)"]
// block = ["BLOCK"]
// ///
"""
BODY = """#if IDLE > 0
#endif
__kernel void saxpy(__global const float *x, __global float *y, float a, int n)
{
    int base = get_global_id(0) * ITEMS;
    for (int k = 0; k < ITEMS; k++)
        y[base + k] = %s;
}
"""


def lifted(plain: Path, tmp_path: Path, value: str) -> OptimizeResult:
    with pytest.MonkeyPatch.context() as patch:
        ignore_busy_machine_in_runs(patch)
        agent = LiftingWrongly(HEADER + BODY % value)
        return optimize(plain, settings=settings(80), run=tmp_path / "run", agent=agent)


@pytest.mark.thorough
@pytest.mark.opencl
def test_a_template_that_is_its_origin_writes_the_same_bytes(plain: Path, tmp_path: Path) -> None:
    result = lifted(plain, tmp_path, "a * x[base + k] + y[base + k]")
    (proof,) = result.view.proofs
    assert proof.reproduces == "bytes"
    assert proof.same_count == proof.compared_count >= 4
    assert not proof.excluded
    assert set(proof.loose) == {"needless"}
    assert proof.probed_count >= 2
    findings = result.tree[proof.index].tuning.findings
    assert any("the constraint needless excludes what works" in each for each in findings)


class Reproducer(SimulatedRunner):
    """A runner that says that the first templates differ from their origin."""

    def __init__(self, *arguments: object, different: int, **settings: object) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[arg-type]
        self.left = different
        self.held: list[str] = []

    def reproduce(self, original: Candidate, candidate: Candidate) -> Reproduction:
        self.held.append(candidate.template.source)
        self.left -= 1
        return Reproduction(8, 3, 2.5, "'y' is away") if self.left >= 0 else Reproduction(8, 8)


class ReproducingMachine(SimulatedMachine):
    different = 1

    def runner(self, problem, device, settings):  # type: ignore[no-untyped-def, override]
        self.made = Reproducer(problem, self._cost, noise=0.002, different=self.different)
        return self.made


class Repairing(ScriptedAgent):
    """Mends a template that computes something else, by another text."""

    def debug(self, context: Context, failure: Failed) -> Draft | Declined:
        self.calls.append(f"debug {failure.reason}")
        text = f"{context.written.text}#define MENDED 1\n"
        return Draft(dataclasses.replace(context.written, text=text), "mended")


def test_a_template_that_computes_something_else_is_a_failure_that_can_be_mended(plain: Path, tmp_path: Path) -> None:
    machine, agent = ReproducingMachine(lambda config, workload: 1.0), Repairing(lifted=LIFT)
    policy = GainPerCost(repairable_stages=frozenset({"check"}))
    result = optimize(plain, settings=settings(), run=tmp_path / "run", machine=machine, agent=agent, policy=policy)
    template = result.tree[1]
    assert template.failure is not None
    assert (template.status, template.failure.reason) == ("failed", "not-reproduced")
    assert "'y' is away" in template.failure.message
    assert agent.calls.count("debug not-reproduced") == 1
    assert result.tree[2].is_working
    assert len(machine.made.held) == 2
    assert [(proof.index, proof.reproduces) for proof in result.view.proofs] == [(2, "bytes")]


@pytest.mark.thorough
@pytest.mark.opencl
def test_a_value_that_is_wrong_on_the_device_is_left_out(plain: Path, tmp_path: Path) -> None:
    result = lifted(plain, tmp_path, "a * x[base + k] + y[base + k] + (BLOCK == 64)")
    (proof,) = result.view.proofs
    assert [dict(each.values) for each in proof.excluded] == [{"BLOCK": 64}]
    assert "mismatch" in proof.excluded[0].reason
