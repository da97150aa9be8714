"""`--policy lift`: kernels with their numbers first, templates of the best of them afterwards, through the endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, answering_server
from test_compare_with_a_model import BEGIN, END, KERNEL, Script, is_direct, role_of

from kernelwright.engine.machine import LocalMachine
from kernelwright.engine.optimize import optimize, replay_optimize
from kernelwright.engine.optimize_result import OptimizeResult
from kernelwright.engine.optimize_settings import OptimizeSettings
from kernelwright.engine.settings import Budget, TuneSettings
from kernelwright.engine.spool.client import SpoolMachine
from kernelwright.engine.tune import Machine
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.store.view import RunView
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tree.base import BudgetLeft, Expansion, SelectionPolicy, Stop
from kernelwright.tree.model import Tree

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


@pytest.fixture
def plain(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Path:
    folder = write_saxpy(tmp_path / "saxpy")
    source = (folder / "saxpy.cl").read_text()
    (folder / "saxpy.cl").write_text(source[source.index("__kernel") :].replace("ITEMS", "1"))
    return folder


def lifting(
    problem: Path,
    script: Callable[[dict[str, Any]], Answer],
    run: Path,
    machine: Machine | SpoolMachine,
    *,
    attempts: int = 2,
    evaluations: int = 24,
    policy: SelectionPolicy | None = None,
    in_flight: int = 1,
    name: str = "lift",
) -> OptimizeResult:
    tune = TuneSettings(budget=Budget(evaluations=evaluations), searcher="random", comparison_rounds=10, seed=5)
    with answering_server(script) as server:
        settings = OptimizeSettings(
            tune=tune,
            model=f"openai:m@{server.url}",
            policy=name,
            in_flight=in_flight,
            proof_points=4,
            max_tokens=10**6,
            max_attempts=attempts,
            memory="off",
            roles={"analyses": False, "requests_in_flight": in_flight},
        )
        return optimize(problem, settings=settings, run=run, machine=machine, policy=policy)


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
    assert [(node.role, node.status, node.best_value) for node in again.result.tree] == [
        (node.role, node.status, node.best_value) for node in result.tree
    ]


class LastFirst(Lifting):
    """Of requests that wait together the last is answered first, so that what was chosen first is ready last."""

    def __init__(self, together: int) -> None:
        super().__init__()
        self.together = together
        self.lock = threading.Lock()
        self.waiting: list[tuple[int, threading.Event]] = []
        self.count = 0

    def __call__(self, body: dict[str, Any]) -> Answer:
        turn = threading.Event()
        with self.lock:
            self.count += 1
            self.waiting.append((self.count, turn))
            if len(self.waiting) == self.together:
                self._next()
        turn.wait(0.3)  # fewer than `together` may be on their way
        with self.lock:
            self.waiting = [each for each in self.waiting if each[1] is not turn]
            answer = super().__call__(body)
            self._next()
        return answer

    def _next(self) -> None:
        if self.waiting:
            max(self.waiting)[1].set()


@pytest.mark.parametrize("name", ["lift", "gain"])
def test_a_run_with_several_in_flight_replays_whatever_was_ready_first(plain: Path, tmp_path: Path, name: str) -> None:
    result = lifting(
        plain,
        LastFirst(3),
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
    assert [(node.role, node.parent, node.best_value) for node in again.result.tree] == [
        (node.role, node.parent, node.best_value) for node in result.tree
    ]


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
