"""Several roles at once: one agent, one recording, one account and one pace for all threads."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelwright.agent.base import Context, Plan, Task
from kernelwright.agent.model.agent import ModelAgent
from kernelwright.agent.written import written_template
from kernelwright.llm.account import Account, AccountedModel
from kernelwright.llm.base import ChatRequest, Reply, Usage
from kernelwright.llm.chain import ChainModel
from kernelwright.llm.pace import Gates, Pace
from kernelwright.llm.recorded import ExchangeLog, RecordedModel, read_exchanges
from kernelwright.problem.load.problem import load_problem
from kernelwright.template.load import load_baseline, load_template
from kernelwright.testing.simulated import SIMULATED_DEVICE
from kernelwright.tree.model import Node, Tree

THREADS = 8
PATIENCE_S = 300.0


class SlowModel:
    """Gives up with the number of the sample, once a second one was asked; knows how many asked at once."""

    name = "slow"

    def __init__(self) -> None:
        self.asked = self.now = self.most = 0
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)

    def complete(self, request: ChatRequest) -> Reply:
        with self._lock:
            self.asked += 1
            self.now += 1
            self.most = max(self.most, self.now)
            self._came.notify_all()
            self._came.wait_for(lambda: self.most > 1, PATIENCE_S)
        time.sleep(0.02)
        with self._lock:
            self.now -= 1
        return Reply(f'{{"give_up": "sample {request.sample}"}}', "slow", Usage(100, 0, 10), 0.01, 0.5)

    def close(self) -> None:
        pass


@pytest.fixture
def context(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Context:
    problem = load_problem(write_saxpy(tmp_path / "problem"))
    written = written_template(load_baseline(problem, load_template(problem)).template)
    node = Node(0, None, "baseline", "", "", "the kernel", "", None, "0" * 16, "opencl", (), status="working")
    return Context(Task(problem, SIMULATED_DEVICE), Tree((node,)), node, written)


def asked_at_once(agent: ModelAgent, context: Context, samples: list[int]) -> list[Plan]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda n: agent.plan(dataclasses.replace(context, sample=n)), samples))


def test_every_thread_gets_its_own_answer_and_each_is_recorded_and_paid_once(context: Context, tmp_path: Path) -> None:
    slow, account = SlowModel(), Account()
    recording = ExchangeLog(tmp_path / "replies.jsonl")
    chain = ChainModel([slow], gates=Gates(Pace(in_flight=3)))
    agent = ModelAgent(RecordedModel(recording, AccountedModel(chain, account)))
    samples = [n % 10 for n in range(40)]
    plans = asked_at_once(agent, context, samples)
    assert [plan.refused["model"] for plan in plans] == [f"sample {n}" for n in samples]
    assert slow.asked == 10, "the same request is asked once, however many want it"
    assert 1 < slow.most <= 3
    exchanges, size_bytes = read_exchanges(tmp_path / "replies.jsonl")
    assert size_bytes == (tmp_path / "replies.jsonl").stat().st_size
    assert sorted(each.request.sample for each in exchanges) == list(range(10))
    assert (account.total.requests, account.total.tokens) == (10, 1100)
    assert account.total.cost_usd == pytest.approx(0.1)
    assert account.by_role["plan"] == account.total == account.by_node[0]


def test_a_cap_holds_for_all_threads_but_for_what_is_under_way(context: Context, tmp_path: Path) -> None:
    slow, account = SlowModel(), Account(most_tokens=500)
    recording = ExchangeLog(tmp_path / "replies.jsonl")
    agent = ModelAgent(RecordedModel(recording, AccountedModel(slow, account)))
    plans = asked_at_once(agent, context, list(range(40)))
    assert 5 <= slow.asked <= 5 + THREADS
    assert sum("tokens of 500 are used" in plan.refused["model"] for plan in plans) == 40 - slow.asked
