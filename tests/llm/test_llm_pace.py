"""The pace of a run: what is asked for is kept, by all threads together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelwright.errors import ModelRateLimited, UsageError
from kernelwright.llm.base import ChatRequest, Message, Reply
from kernelwright.llm.chain import ChainModel, Patience
from kernelwright.llm.pace import Clock, Gate, Gates, Pace
from kernelwright.llm.scripted import ScriptedModel


class SharedClock:
    """Seconds that pass when somebody sleeps; threads see the same."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self._lock = threading.Lock()

    def sleep_s(self, seconds: float) -> None:
        with self._lock:
            self.at_s += seconds

    def clock(self) -> Clock:
        return Clock(lambda: self.at_s, self.sleep_s)


def ask(number: int) -> ChatRequest:
    return ChatRequest("plan", "system", (Message("user", str(number)),))


@pytest.mark.parametrize("pace", [{"requests_per_minute": 0}, {"in_flight": 0}, {"in_flight": True}])
def test_a_pace_that_lets_nothing_through_is_refused(pace: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Pace(**pace)


def test_no_minute_has_more_requests_than_allowed() -> None:
    shared, begun = SharedClock(), list[float]()
    gate = Gate(Pace(requests_per_minute=3), shared.clock())
    for _ in range(8):
        with gate.turn():
            begun.append(shared.at_s)
        shared.at_s += 1
    for start in begun:
        assert sum(start <= each < start + 60 for each in begun) <= 3
    assert begun[:4] == [0, 1, 2, 60]


def test_a_wait_that_one_thread_is_told_holds_for_all() -> None:
    shared = SharedClock()
    gates = Gates(clock=shared.clock())
    limited = ModelRateLimited("slow down")
    limited.retry_after_s = 20.0
    first = ChainModel([ScriptedModel([limited, "later"], name="m")], clock=shared.clock(), gates=gates)
    first.complete(ask(1))
    gates.of("m").hold(30.0)
    second_at: list[float] = []

    def second(request: ChatRequest) -> str:
        second_at.append(shared.at_s)
        return "fine"

    now_s = shared.at_s
    ChainModel([ScriptedModel(second, name="m")], clock=shared.clock(), gates=gates).complete(ask(2))
    assert second_at[0] >= now_s + 30.0


def test_waiting_for_a_turn_does_not_count_against_the_deadline() -> None:
    shared = SharedClock()
    gates = Gates(Pace(requests_per_minute=1), shared.clock())
    model = ScriptedModel(lambda _request: "fine", name="m")
    chain = ChainModel([model], patience=Patience(deadline_s=5), clock=shared.clock(), gates=gates)
    for number in range(4):
        assert chain.complete(ask(number)).text == "fine"
    assert shared.at_s >= 180


def test_no_more_are_in_flight_than_allowed() -> None:
    counted = {"now": 0, "most": 0}
    lock, at_work = threading.Lock(), threading.Barrier(3)

    class Slow:
        name = "m"

        def complete(self, request: ChatRequest) -> Reply:
            with lock:
                counted["now"] += 1
                counted["most"] = max(counted["most"], counted["now"])
            at_work.wait(timeout=20)  # three at once, or nobody goes on
            with lock:
                counted["now"] -= 1
            return Reply("fine", "m")

        def close(self) -> None:
            pass

    chain = ChainModel([Slow()], gates=Gates(Pace(in_flight=3)))
    with ThreadPoolExecutor(9) as pool:
        assert len(list(pool.map(chain.complete, map(ask, range(9))))) == 9
    assert counted["most"] == 3
