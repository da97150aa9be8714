"""What a run has spent: every reply and evaluation counted once, for its role, its node and in all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.errors import StoreError
from kernelwright.insights.spending import spending_of
from kernelwright.llm.base import ChatRequest, Message, Reply, Usage
from kernelwright.llm.recorded import FILE_NAME, Exchange, encode
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.store.view import RunView
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings


@pytest.fixture
def run(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Path:
    tune = TuneSettings(budget=Budget(evaluations=24), searcher="random")
    machine = SimulatedMachine(lambda config, workload: 1.0 + len(config))
    optimize(
        write_saxpy(tmp_path / "problem"),
        settings=OptimizeSettings(tune=tune, memory="off"),
        run=tmp_path / "run",
        machine=machine,
    )
    return tmp_path / "run"


def test_a_run_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        spending_of(tmp_path)


def test_evaluations_are_counted_once_for_role_and_node(run: Path) -> None:
    spending = spending_of(run)
    logs = [RunView.read(each).evaluations for each in sorted((run / "nodes").iterdir())]
    measured = [event for events in logs for event in events if event.source != "known"]
    assert spending.total.evaluations == len(measured) > 10
    for parts in (spending.by_role, spending.by_node):
        assert sum(each.evaluations for each in parts.values()) == len(measured)
    baseline = RunView.read(run).baseline
    assert baseline is not None
    costs = [baseline.cost, *(event.cost for event in measured)]
    assert spending.total.device_s == pytest.approx(sum(each.check_s + each.time_s for each in costs))
    assert spending.total.device_s == pytest.approx(sum(each.device_s for each in spending.by_node.values()))
    assert spending.total.model.requests == 0
    assert spending.total.attempts == sum(each.attempts for each in spending.by_node.values())


def test_money_is_unknown_where_one_price_is(run: Path) -> None:
    def exchange(role: str, node: int, cost_usd: float | None) -> Exchange:
        request = ChatRequest(role, "system", (Message("user", f"{role} {node}"),), node=node)
        return Exchange(request, Reply("text", "m", Usage(100, 0, 10), cost_usd, 2.0))

    exchanges = [exchange("plan", 1, 0.5), exchange("code", 1, 0.25), exchange("plan", 0, None)]
    (run / FILE_NAME).write_bytes(b"".join(map(encode, exchanges)))
    spending = spending_of(run)
    assert spending.total.model.cost_usd is None
    assert spending.by_role["plan"].model.cost_usd is None
    assert spending.by_role["code"].model.cost_usd == 0.25
    assert spending.by_node[1].model.cost_usd == 0.75
    assert (spending.total.model.tokens, spending.total.model.seconds) == (330, 6.0)
    assert json.dumps(dataclasses.asdict(spending.total))
