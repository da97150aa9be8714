"""`--policy lift`: kernels with their numbers first, templates of the best of them afterwards, through the endpoint."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, answering_server
from test_compare_with_a_model import BEGIN, END, KERNEL, Script, is_direct, role_of

from kernelwright.insights.attempts import attempts_of
from kernelwright.llm.recorded import FILE_NAME, read_exchanges
from kernelwright.optimization.optimize import optimize, replay_optimize, resume_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tree.base import BudgetLeft, Expansion, SelectionPolicy, Stop
from kernelwright.tree.model import Tree
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import Machine

SUM = "a * x[base + k] + y[base + k]"
OTHER_SUM = "(a * x[base + k] + 0.5f * y[base + k]) + 0.5f * y[base + k]"
"""Rounded otherwise."""


def cost(config: Config, workload: Workload) -> float:
    """Kernels with their numbers take 1, templates down to a half of that."""
    return float(workload.sizes["n"]) * 1e-4 / {1: 0.9, 2: 1.5, 4: 2.0}.get(int(dict(config).get("ITEMS", 0)), 1.0)


class Lifting(Script):
    """Lifts the kernel that it is shown; `of_kernels` and `of_templates` are the sums that they compute."""

    def __init__(self, *, of_kernels: str = SUM, of_templates: str = SUM) -> None:
        super().__init__()
        self.of_kernels = of_kernels
        self.of_templates = of_templates

    def __call__(self, body: dict[str, Any]) -> Answer:
        if role_of(body) != "template":
            answer = super().__call__(body)
            return Answer(answer.text.replace(SUM, self.of_kernels))
        self.bodies.append(body)
        text = next(each["content"] for each in body["messages"] if each["role"] == "user")
        count = text.split("get_global_id(0) * ", 1)[1].split(";", 1)[0]
        header = (
            f'[parameters]\nITEMS = {{ values = [1, 2, 3, 4], default = {count}, why = "elements of a work-item" }}\n'
            '[launch]\ngrid = ["ceil_div(n, 32 * ITEMS)"]\nblock = ["32"]\n'
        )
        source = KERNEL.format(count="ITEMS").replace(SUM, self.of_templates)
        return Answer(f"Done.\n```c\n// {BEGIN}\n{source}// {END}\n```\n```toml\n{header}```\n")

    def roles(self) -> list[str]:
        return [f"{'kernel' if is_direct(body) else 'template'} {role_of(body)}" for body in self.bodies]


def chosen(
    url: str, *, attempts: int = 2, evaluations: int = 24, in_flight: int = 1, name: str = "lift"
) -> OptimizeSettings:
    tune = TuneSettings(budget=Budget(evaluations=evaluations), searcher="random", comparison_rounds=10, seed=5)
    return OptimizeSettings(
        tune=tune,
        model=f"openai:m@{url}",
        policy=name,
        in_flight=in_flight,
        proof_points=4,
        max_tokens=10**6,
        max_attempts=attempts,
        memory="off",
        roles={"analyses": False, "requests_in_flight": in_flight},
    )


def lifting(
    problem: Path,
    script: Callable[[dict[str, Any]], Answer],
    run: Path,
    machine: Machine,
    *,
    policy: SelectionPolicy | None = None,
    **settings: Any,
) -> OptimizeResult:
    with answering_server(script) as server:
        return optimize(problem, settings=chosen(server.url, **settings), run=run, machine=machine, policy=policy)


def shape(result: OptimizeResult) -> list[tuple[object, ...]]:
    return [(node.role, node.parent, node.status, node.best_value, node.tuning.evaluated_count) for node in result.tree]


def test_kernels_come_first_and_the_best_gets_parameters_that_are_searched(plain: Path, tmp_path: Path) -> None:
    script = Lifting()
    result = lifting(plain, script, tmp_path / "run", SimulatedMachine(cost))
    roles = script.roles()
    assert roles[:2] == ["kernel plan", "kernel code"]
    assert "template template" in roles
    lifted = [node for node in result.tree if node.role == "template"]
    assert lifted[0].is_working
    assert result.tree[lifted[0].parent or 0].role == "code"
    assert lifted[0].tuning.evaluated_count > 1
    best = result.tree.best
    assert best is not None
    assert dict(best.best_config)["ITEMS"] == 4


def test_lifting_is_no_attempt(plain: Path, tmp_path: Path) -> None:
    result = lifting(plain, Lifting(), tmp_path / "run", SimulatedMachine(cost), attempts=1)
    assert [node.role for node in result.tree][:3] == ["baseline", "code", "template"]


def test_what_cannot_be_lifted_is_asked_for_once(plain: Path, tmp_path: Path) -> None:
    script = Lifting()

    def unwilling(body: dict[str, Any]) -> Answer:
        if role_of(body) == "template":
            script.bodies.append(body)
            return Answer('{"give_up": "it has no numbers"}')
        return script(body)

    result = lifting(plain, unwilling, tmp_path / "run", SimulatedMachine(cost))
    refused = [node.parent for node in result.tree if node.role == "template" and node.status == "refused"]
    assert refused
    assert len(refused) == len(set(refused))


def test_the_run_replays(plain: Path, tmp_path: Path) -> None:
    result = lifting(plain, Lifting(), tmp_path / "run", SimulatedMachine(cost))
    again = replay_optimize(result.folder, run=tmp_path / "again")
    assert shape(again.result) == shape(result)


class KernelThenTemplate:
    """One kernel, whatever its speed, and its template."""

    @property
    def name(self) -> str:
        return "lift"

    def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
        del budget
        match len(tree):
            case 1:
                return Expansion(0, "expand", "the first")
            case 2:
                return Expansion(1, "lift", "its template")
        return Stop("exhausted", "both are there")


class NothingToSearch(Lifting):
    """Templates with one value for each number, another one each time."""

    def __call__(self, body: dict[str, Any]) -> Answer:
        answer = super().__call__(body)
        if role_of(body) != "template":
            return answer
        count = 30 + len(self.bodies)
        text = re.sub(r"values = .*?, why", f"values = [{count}], default = {count}, why", answer.text)
        return replace(answer, text=text)


class NoParameters(Lifting):
    def __call__(self, body: dict[str, Any]) -> Answer:
        answer = super().__call__(body)
        if role_of(body) != "template":
            return answer
        count = 30 + len(self.bodies)
        text = re.sub(r"\[parameters\]\n.*\n", "", answer.text).replace("ITEMS", str(count))
        return replace(answer, text=text)


@pytest.mark.parametrize("script", [NothingToSearch(), NoParameters()], ids=lambda each: type(each).__name__)
def test_no_kernel_is_lifted_twice_and_no_template_again(plain: Path, tmp_path: Path, script: Lifting) -> None:
    result = lifting(plain, script, tmp_path / "run", SimulatedMachine(cost), evaluations=40)
    lifted = [node for node in result.tree if node.role == "template"]
    assert lifted
    parents = [node.parent for node in lifted]
    assert len(parents) == len(set(parents))
    assert {result.tree[index or 0].role for index in parents} <= {"baseline", "code", "debug"}


def test_no_kernel_prompt_shows_parameters(plain: Path, tmp_path: Path) -> None:
    """Templates that were lifted meanwhile are shown with their best numbers."""

    class Early(KernelThenTemplate):
        def choose(self, tree: Tree, budget: BudgetLeft) -> Expansion | Stop:
            return Expansion(0, "expand", "another") if len(tree) == 3 else super().choose(tree, budget)

    script = Lifting()
    lifting(plain, script, tmp_path / "run", SimulatedMachine(cost), policy=Early())
    last = [body for body in script.bodies if is_direct(body)][-2:]
    for body in last:
        text = "\n".join(each["content"] for each in body["messages"])
        assert "[parameters]" not in text
    assert "#define ITEMS" in "\n".join(each["content"] for body in last for each in body["messages"])


def test_a_reply_that_lifts_is_told_of_its_kernel(plain: Path, tmp_path: Path) -> None:
    result = lifting(plain, Lifting(), tmp_path / "run", SimulatedMachine(cost), policy=KernelThenTemplate())
    asked = read_exchanges(result.folder / FILE_NAME)[0]
    assert [(each.request.role, each.request.node) for each in asked] == [("plan", 0), ("code", 0), ("template", 1)]


def test_lifting_that_failed_is_counted(plain: Path, tmp_path: Path) -> None:
    def unwilling(body: dict[str, Any]) -> Answer:
        return Answer('{"give_up": "it has no numbers"}') if role_of(body) == "template" else script(body)

    script = Lifting()
    result = lifting(plain, unwilling, tmp_path / "run", SimulatedMachine(cost), policy=KernelThenTemplate())
    figures = attempts_of(result.tree)
    assert (figures.attempt_count, figures.lift_count, figures.lifted_count) == (1, 1, 0)
    assert dict(figures.failures) == {"lint: declined": 1}


@pytest.mark.thorough
def test_killed_behind_any_record_the_same_run_comes_of_it(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on the disk at each durable write is resumed, and what comes of that is replayed."""
    run, copies = tmp_path / "run", tmp_path / "copies"
    append = RunFolder.append

    def kept(self: RunFolder, events: Sequence[Any]) -> None:
        append(self, events)
        if run in (self.path, *self.path.parents):
            shutil.copytree(run, copies / f"{len(list(copies.glob('*'))):03d}")

    copies.mkdir()
    script, known = Lifting(), dict[str, Answer]()

    def remembering(body: dict[str, Any]) -> Answer:
        key = json.dumps(body["messages"])
        if key not in known:
            known[key] = script(body)
        return known[key]

    with answering_server(remembering) as server:
        monkeypatch.setattr(RunFolder, "append", kept)
        settings = chosen(server.url, evaluations=10)
        wanted = shape(optimize(plain, settings=settings, run=run, machine=SimulatedMachine(cost, noise=0.0)))
        monkeypatch.setattr(RunFolder, "append", append)
        assert any(role == "template" for role, *_ in wanted)
        asked = len(known)
        for copy in sorted(copies.iterdir())[1:]:
            result = resume_optimize(copy, machine=SimulatedMachine(cost, noise=0.0))
            assert shape(result) == wanted, copy.name
            assert len(known) == asked, copy.name
            replay_optimize(copy, run=tmp_path / f"again-{copy.name}")


class LastFirst(Lifting):
    """Of three requests that are on their way together the last is answered first."""

    def __call__(self, body: dict[str, Any]) -> Answer:
        answer = super().__call__(body)
        return replace(answer, delay_s=(0.4, 0.2, 0.0)[(len(self.bodies) - 1) % 3])


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["lift", "gain"])
def test_a_run_with_several_in_flight_replays_whatever_was_ready_first(plain: Path, tmp_path: Path, name: str) -> None:
    result = lifting(
        plain,
        LastFirst(),
        tmp_path / "run",
        SimulatedMachine(cost),
        attempts=3,
        evaluations=40,
        in_flight=3,
        name=name,
    )
    assert sum(node.role == "code" for node in result.tree) == 3
    reasons = {node.failure.reason for node in result.tree if node.failure is not None}
    assert not reasons & {"duplicate", "no idea"}
    again = replay_optimize(result.folder, run=tmp_path / "again")
    assert again.differences == ()
    assert shape(again.result) == shape(result)


@pytest.mark.thorough
@pytest.mark.opencl
@pytest.mark.parametrize(("summed", "how"), [(OTHER_SUM, "bytes"), (SUM, "tolerance")])
def test_a_template_is_held_against_the_kernel_that_it_was_lifted_from(
    plain: Path, tmp_path: Path, summed: str, how: str
) -> None:
    """Not against the baseline, whose results differ from that kernel's in the last bits."""
    script = Lifting(of_kernels=OTHER_SUM, of_templates=summed)
    run = lifting(plain, script, tmp_path / "run", LocalMachine(), evaluations=6, policy=KernelThenTemplate())
    assert [(node.role, node.parent) for node in run.tree] == [("baseline", None), ("code", 0), ("template", 1)]
    assert [event.reproduces for event in RunView.read(run.folder).proofs] == [how]
