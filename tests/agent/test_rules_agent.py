"""The agent that needs no model, through the roles: what it proposes loads, and what it cannot do it says."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.agent.base import AnalyseContext, Context, Declined, Draft, Task, TemplateContext, Written
from kernelwright.agent.rules.agent import RulesAgent
from kernelwright.agent.rules.defaults import smaller_defaults
from kernelwright.agent.rules.landscape import findings
from kernelwright.agent.rules.subjects import device_facts, subject_of
from kernelwright.agent.written import written_template
from kernelwright.errors import InfrastructureError
from kernelwright.optimization import ahead
from kernelwright.optimization.ahead import work_ahead
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed
from kernelwright.search.base import Observation
from kernelwright.space.parameter import Parameter
from kernelwright.store.event import Idea
from kernelwright.tactics.base import Effect, Family, NotApplicable, Rewrite, Subject
from kernelwright.template.header import parse_header
from kernelwright.testing.simulated import SIMULATED_DEVICE
from kernelwright.tree.model import Node, Tree
from kernelwright.tuning.tune import TuningProblem as Loaded


class Adding:
    """A tactic that adds a comment and a parameter; `after` makes it depend on another one."""

    summary = "adds a line"

    def __init__(self, name: str, factor: float = 1.5, *, family: Family = "memory", after: str = "") -> None:
        self.name = name
        self.family: Family = family
        self._factor = factor
        self._after = after

    def apply(self, subject: Subject) -> Rewrite | NotApplicable:
        if self._after and self._after not in subject.history:
            return NotApplicable(self.name, self.family, f"it needs {self._after}")
        parameter = Parameter(self.name.upper(), (1, 2, 8), 8)
        return Rewrite(
            tactic=self.name,
            family=self.family,
            source=f"enum {{ k_{self.name} = {self.name.upper()} }};\n{subject.source}",
            header=subject.header.with_parameters(parameter),
            anchors=(),
            explanation=f"Adds {self.name}.",
            effect=Effect(self._factor, "so the test says"),
            added=(parameter.name,),
            properties=frozenset({"independent"}),
        )


class Broken(Adding):
    error: Exception = KeyError("a defect")

    def apply(self, subject: Subject) -> Rewrite | NotApplicable:
        raise self.error


class Counting(Adding):
    count = 0

    def apply(self, subject: Subject) -> Rewrite | NotApplicable:
        self.count += 1
        return super().apply(subject)


@pytest.fixture
def loaded(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Loaded:
    return Loaded.load(write_saxpy(tmp_path / "saxpy"))


def plan_context(loaded: Loaded) -> Context:
    node = Node(0, None, "baseline", "", "", "", "", None, "blob", "opencl", ())
    task = Task(loaded.problem, SIMULATED_DEVICE)
    return Context(task, Tree((node,)), node, written_template(loaded.template))


def code(agent: RulesAgent, context: Context, key: str) -> Draft | Declined:
    idea = Idea(key, "memory", "", "", 1.5)
    return agent.code(Context(context.task, context.tree, context.node, context.written), idea)


def test_ideas_are_ordered_by_what_they_promise_and_the_others_say_why_not(loaded: Loaded) -> None:
    agent = RulesAgent([Adding("a", 1.2), Adding("b", 1.1), Adding("c", 2.0, after="b"), Adding("d", 9.0, after="c")])
    plan = agent.plan(plan_context(loaded))
    assert [idea.key for idea in plan.ideas] == ["b", "a"]
    assert plan.refused == {"c": "it needs b", "d": "it needs c"}
    assert plan.ideas[0].promise == pytest.approx(1.1 * 2.0**0.5)  # with half of what c would gain after it
    assert plan.ideas[0].because == "so the test says"


def test_a_defect_of_one_tactic_is_told_and_the_others_go_on(loaded: Loaded) -> None:
    plan = RulesAgent([Broken("bad"), Adding("good")]).plan(plan_context(loaded))
    assert [idea.key for idea in plan.ideas] == ["good"]
    assert "KeyError" in plan.refused["bad"]


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device")])
def test_what_the_machine_lacks_is_no_defect_of_a_tactic(loaded: Loaded, error: Exception) -> None:
    tactic = Broken("bad")
    tactic.error = error
    with pytest.raises(InfrastructureError, match=type(error).__name__):
        RulesAgent([tactic, Adding("good")]).plan(plan_context(loaded))


def test_what_is_written_loads_as_a_template_and_can_be_built_upon(loaded: Loaded) -> None:
    agent, context = RulesAgent([Adding("a"), Adding("b", after="a")]), plan_context(loaded)
    draft = code(agent, context, "a")
    assert isinstance(draft, Draft)
    assert draft.written.tactics == ("a",)
    assert draft.written.properties == ("independent",)
    subject = subject_of(context.task, draft.written)
    assert {each.name for each in subject.header.parameters} == {"BLOCK", "ITEMS", "A"}
    assert subject.properties == {"independent"}
    assert [each.text for each in subject.header.steps[0].grid] == ["n // (BLOCK * ITEMS)"]
    again = agent.plan(Context(context.task, context.tree, context.node, draft.written))
    assert [idea.key for idea in again.ideas] == ["b"]
    assert again.refused["a"] == "it was applied before"


def test_what_is_planned_ahead_is_the_plan_and_is_not_made_again(loaded: Loaded) -> None:
    tactics = [Counting("lift", 1.0, family="launch"), Counting("a"), Counting("b")]
    context, agent = plan_context(loaded), RulesAgent(tactics)
    for work in work_ahead(agent, context.task, [context.written], searcher="random"):
        work()
    counts = [each.count for each in tactics]
    lifted = agent.template(TemplateContext(context.task, context.written))
    assert isinstance(lifted, Draft)
    plans = [agent.plan(dataclasses.replace(context, written=each)) for each in (context.written, lifted.written)]
    assert [each.count for each in tactics[1:]] == counts[1:]
    fresh = RulesAgent(tactics)
    assert plans == [
        fresh.plan(dataclasses.replace(context, written=each)) for each in (context.written, lifted.written)
    ]
    assert [each.key for each in plans[1].ideas] == ["a", "b"]


def test_planning_ahead_tells_no_failure_and_the_plan_that_is_asked_for_does(loaded: Loaded) -> None:
    tactic = Broken("bad")
    tactic.error = MemoryError()
    context, agent = plan_context(loaded), RulesAgent([tactic])
    for work in work_ahead(agent, context.task, [context.written], searcher="random"):
        work()
    with pytest.raises(InfrastructureError, match="MemoryError"):
        agent.plan(context)


def test_a_library_that_does_not_fit_is_not_told_ahead(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NumPy of another version than one was built for raises ValueError, not ImportError."""
    for name, text in (("unfit", "raise ValueError('numpy.dtype size changed')"), ("fit", "")):
        (tmp_path / f"{name}_library.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ahead, "SEARCHER_MODULES", ("unfit_library", "fit_library"))
    context = plan_context(loaded)
    for work in ahead.work_ahead(RulesAgent([]), context.task, [context.written], searcher="auto"):
        work()
    assert "fit_library" in sys.modules


def test_an_unknown_idea_is_declined(loaded: Loaded) -> None:
    assert isinstance(code(RulesAgent([]), plan_context(loaded), "gone"), Declined)


def test_lifting_is_applied_to_the_root_and_to_every_rewrite(loaded: Loaded) -> None:
    agent, context = RulesAgent([Adding("lift", 1.0, family="launch"), Adding("a")]), plan_context(loaded)
    assert [idea.key for idea in agent.plan(context).ideas] == ["a"]
    lifted = agent.template(TemplateContext(context.task, context.written))
    assert isinstance(lifted, Draft)
    assert lifted.written.tactics == ("lift",)
    assert isinstance(agent.template(TemplateContext(context.task, lifted.written)), Declined)
    draft = code(agent, context, "a")
    assert isinstance(draft, Draft)
    assert draft.written.tactics == ("a", "lift")
    after = code(agent, dataclasses.replace(context, written=lifted.written), "a")
    assert isinstance(after, Draft)
    assert after.written.tactics == ("lift", "a", "lift")  # a new launch may be lifted anew


def test_a_plain_kernel_gets_a_header_with_its_launch(loaded: Loaded) -> None:
    plain = loaded.template.source[loaded.template.source.index("#ifndef") :]
    kernel = loaded.problem.file.parent / "saxpy.cl"
    kernel.write_text(plain)
    written = written_template(Loaded.load(loaded.problem.file).template)
    header = parse_header(written.text, Path("x"), entry="saxpy")
    assert [extent.text for extent in header.steps[0].grid] == ["n // 32"]
    assert written.text.endswith(plain)


# -- repair


def debug(agent: RulesAgent, context: Context, stage: str) -> Draft | Declined:
    failure = Failed(stage, "too-much", "it needs too much")
    return agent.debug(Context(context.task, context.tree, context.node, context.written), failure)


def test_a_template_that_did_not_fit_starts_from_smaller_values(loaded: Loaded) -> None:
    context = plan_context(loaded)
    draft = debug(RulesAgent([]), context, "resources")
    assert isinstance(draft, Draft)
    defaults = {each.name: each.default for each in parse_header(draft.written.text, Path("x")).parameters}
    assert defaults == {"BLOCK": 16, "ITEMS": 1}
    assert smaller_defaults(draft.written.text, context.task, "saxpy") is None


def test_a_wrong_result_is_withdrawn(loaded: Loaded) -> None:
    assert isinstance(debug(RulesAgent([]), plan_context(loaded), "check"), Declined)


# -- landscapes


def landscape(loaded: Loaded, *observations: tuple[dict[str, int], float | None]) -> list[str]:
    parameters = (Parameter("A", (1, 2), 1), Parameter("B", (1, 2, 4), 1))
    told = [
        Observation(Config(config), value, None if value is not None else "launch:too-many-threads")
        for config, value in observations
    ]
    context = plan_context(loaded)
    return [str(each) for each in findings(AnalyseContext(context.task, context.node, parameters, told))]


def test_the_landscape_is_said_in_words(loaded: Loaded) -> None:
    rows: list[tuple[dict[str, int], float | None]] = [
        ({"A": a, "B": b}, 1.0 / b * (1 + 0.001 * a)) for a in (1, 2) for b in (1, 2, 4)
    ]
    said = landscape(loaded, *rows, *rows)
    assert said[0].startswith("B = 4 wins")
    assert "4.00x slower" in said[0]
    assert said[1].startswith("A does not matter")


def test_a_value_is_worth_what_the_best_configuration_with_it_is(loaded: Loaded) -> None:
    """A = 2 was tried with bad values of B only at first; its average is the worse, its best the better."""
    rows: list[tuple[dict[str, int], float | None]] = [({"A": 1, "B": b}, 1.0) for b in (1, 2, 4)] * 2
    rows += [({"A": 2, "B": 1}, 5.0)] * 5 + [({"A": 2, "B": 4}, 0.8)]
    assert "A = 2 wins (at its best, 1 is 1.25x slower)" in landscape(loaded, *rows)


def test_what_was_proven_to_change_nothing_is_not_said_to_matter(loaded: Loaded) -> None:
    rows = [Observation(Config({"A": a, "B": b}), float(a), None) for a in (1, 2) for b in (1, 2, 4)] * 2
    parameters = (Parameter("A", (1, 2), 1), Parameter("B", (1, 2, 4), 1))
    context = plan_context(loaded)
    proof = ("A changes nothing (the machine code is the same)",)
    said = [str(each) for each in findings(AnalyseContext(context.task, context.node, parameters, rows, proof))]
    assert said == [*proof, "B does not matter (the best with each of its values differ by 0%)"]


def test_few_measurements_say_nothing(loaded: Loaded) -> None:
    assert landscape(loaded, ({"A": 1, "B": 1}, 1.0), ({"A": 2, "B": 1}, 0.5)) == []


def test_what_all_failures_share_is_named(loaded: Loaded) -> None:
    rows: list[tuple[dict[str, int], float | None]] = [({"A": 1, "B": b}, 1.0) for b in (1, 2)]
    said = landscape(loaded, *rows, ({"A": 1, "B": 4}, None), ({"A": 2, "B": 4}, None))
    assert said == ["launch:too-many-threads whenever B = 4 (2 of 4)"]


class Replacing(Adding):
    """Takes the launch over: the template's own parameters are used nowhere afterwards."""

    def apply(self, subject: Subject) -> Rewrite | NotApplicable:
        draft = subject.header.with_parameters(Parameter("LANES", (1, 8), 8)).relaunched(
            "saxpy", grid=("n",), block=("LANES",)
        )
        source = "__kernel void saxpy(__global const float *x, __global float *y, float a, int n) { }\n"
        return Rewrite(self.name, self.family, source, draft, (), "Replaces.", Effect(2.0, ""), ("LANES",))


def test_parameters_that_nothing_uses_any_more_go_with_their_constraints(loaded: Loaded) -> None:
    draft = code(RulesAgent([Replacing("new")]), plan_context(loaded), "new")
    assert isinstance(draft, Draft)
    header = parse_header(draft.written.text, Path("x"))
    assert [each.name for each in header.parameters] == ["LANES"]
    assert header.constraints == ()


# -- several kernels


TWO = """// /// kernelwright
// [[launch]]
// entry = "saxpy"
// grid = ["n"]
// block = ["1"]
// [[launch]]
// entry = "again"
// grid = ["n"]
// block = ["1"]
// ///
__kernel void saxpy(__global const float *x, __global float *y, float a, int n) { y[get_global_id(0)] += 1.0f; }
__kernel void again(__global const float *x, __global float *y, float a, int n) { y[get_global_id(0)] += a; }
"""


def test_every_kernel_of_a_template_is_planned_for(loaded: Loaded) -> None:
    agent, context = RulesAgent([Adding("a"), Adding("b", after="a")]), plan_context(loaded)
    two = dataclasses.replace(context, written=Written(TWO, "opencl", "saxpy"))
    assert [idea.key for idea in agent.plan(two).ideas] == ["a", "a@again"]
    draft = code(agent, two, "a@again")
    assert isinstance(draft, Draft)
    assert draft.written.entry == "saxpy"
    assert draft.written.tactics == ("a@again",)
    assert draft.written.properties == ("independent@again",)
    after = dataclasses.replace(two, written=draft.written)
    assert {idea.key for idea in agent.plan(after).ideas} == {"a", "b@again"}
    assert subject_of(context.task, draft.written).properties == frozenset()
    assert subject_of(context.task, draft.written, "again").history == ("a",)


def test_a_template_that_does_not_parse_is_declined(loaded: Loaded) -> None:
    context = plan_context(loaded)
    broken = dataclasses.replace(context, written=Written("// /// kernelwright\n// oops\n", "opencl", "saxpy"))
    agent = RulesAgent([Adding("a")])
    assert agent.plan(broken).ideas == ()
    assert isinstance(code(agent, broken, "a"), Declined)
    assert isinstance(agent.template(TemplateContext(context.task, broken.written)), Declined)


@pytest.mark.parametrize(
    ("facts", "measured", "told"),
    [
        ({"memory_clock_khz": "3201000", "memory_bus_bits": "6144"}, None, 4.18e12),
        ({"memory_clock_khz": "3201000", "memory_bus_bits": "6144"}, 3e12, 3e12),
        ({"memory_clock_khz": "0", "memory_bus_bits": "6144"}, None, None),
        ({"memory_bus_bits": "wide"}, None, None),
    ],
)
def test_before_anything_is_measured_memory_has_the_rate_that_its_driver_tells(
    facts: dict[str, str], measured: float | None, told: float | None, loaded: Loaded
) -> None:
    device = dataclasses.replace(SIMULATED_DEVICE, facts=facts)
    found = device_facts(Task(loaded.problem, device, copy_bytes_per_s=measured)).copy_bytes_per_s
    assert found == (None if told is None else pytest.approx(told, rel=0.01))
