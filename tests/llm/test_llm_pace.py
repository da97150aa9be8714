"""The pace of a run: what is asked for is kept, by all threads together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelwright.errors import (
    ModelAbandoned,
    ModelAuthFailed,
    ModelBudgetSpent,
    ModelRateLimited,
    ModelUnavailable,
    UsageError,
)
from kernelwright.llm.base import ChatRequest, Message, Reply
from kernelwright.llm.chain import ChainModel, Patience
from kernelwright.llm.pace import Clock, Gate, Gates, NotYet, Pace
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


def limited(seconds: float) -> ModelRateLimited:
    error = ModelRateLimited("slow down")
    error.retry_after_s = seconds
    return error


def test_what_one_thread_is_told_by_a_service_keeps_all_others_from_asking() -> None:
    shared = SharedClock()
    gates = Gates(clock=shared.clock())
    asked_at, told_s = list[float](), 20.0

    def answer(request: ChatRequest) -> str | ModelRateLimited:
        asked_at.append(shared.at_s)
        return limited(told_s) if len(asked_at) == 1 else "fine"

    first = ChainModel(
        [ScriptedModel(answer, name="m")], patience=Patience(attempts=1), clock=shared.clock(), gates=gates
    )
    with pytest.raises(ModelRateLimited):
        first.complete(ask(1))
    ChainModel([ScriptedModel(answer, name="m")], clock=shared.clock(), gates=gates).complete(ask(2))
    assert asked_at[1] >= asked_at[0] + told_s


@pytest.mark.parametrize("seconds", [61.0, 1000.0, 100_000.0, 2.3e9, float("inf")])
def test_a_model_that_asks_for_a_long_wait_is_passed_over_and_not_asked_again(seconds: float) -> None:
    shared = SharedClock()
    first, second = ScriptedModel([limited(seconds)], name="a"), ScriptedModel(lambda _request: "fine", name="b")
    chain = ChainModel([first, second], clock=shared.clock())
    for number in range(5):
        assert chain.complete(ask(number)).model == "b"
    assert len(first.requests) == 1
    assert shared.at_s == 0


def test_a_short_wait_is_worth_the_first_model() -> None:
    shared = SharedClock()
    first, second = ScriptedModel([limited(30.0), "fine"], name="a"), ScriptedModel([], name="b")
    assert ChainModel([first, second], clock=shared.clock()).complete(ask(1)).model == "a"


def test_where_the_others_fail_a_longer_wait_is_worth_it() -> None:
    shared = SharedClock()
    first = ScriptedModel([limited(300.0), "fine"], name="a")
    second = ScriptedModel([ModelAuthFailed("no key")], name="b")
    assert ChainModel([first, second], clock=shared.clock()).complete(ask(1)).model == "a"
    assert shared.at_s >= 300


def test_a_model_alone_that_asks_for_a_day_ends_the_run_at_once_for_all_threads() -> None:
    shared = SharedClock()
    gates = Gates(clock=shared.clock())
    model = ScriptedModel([limited(2.3e9)], name="a")
    for number, words in ((1, "slow down"), (2, "asked for no request for another 86400 s")):
        with pytest.raises(ModelRateLimited, match=words):
            ChainModel([model], clock=shared.clock(), gates=gates).complete(ask(number))
    assert len(model.requests) == 1
    assert shared.at_s == 0


@pytest.mark.parametrize("answer", [limited(30.0), ModelUnavailable("down")])
def test_no_wait_is_longer_than_what_the_run_has_left(answer: Exception) -> None:
    shared = SharedClock()
    chain = ChainModel([ScriptedModel([answer] * 9, name="a")], clock=shared.clock(), left_s=lambda: 0.5)
    with pytest.raises(ModelBudgetSpent, match="the time of the run is over before a can be asked again"):
        chain.complete(ask(1))
    assert shared.at_s == 0


def test_a_model_that_may_not_be_asked_in_what_the_run_has_left_is_passed_over() -> None:
    shared = SharedClock()
    first, second = ScriptedModel([limited(30.0)], name="a"), ScriptedModel(["fine"], name="b")
    chain = ChainModel([first, second], clock=shared.clock(), left_s=lambda: 10.0)
    assert chain.complete(ask(1)).model == "b"
    assert shared.at_s == 0


def test_nothing_is_asked_when_the_time_of_the_run_is_over() -> None:
    model = ScriptedModel(["fine"], name="a")
    with pytest.raises(ModelBudgetSpent, match="a is not asked"):
        ChainModel([model], clock=SharedClock().clock(), left_s=lambda: 0.0).complete(ask(1))
    assert model.requests == []


def test_no_turn_is_waited_for_beyond_the_time_of_the_run() -> None:
    shared = SharedClock()
    gates = Gates(Pace(requests_per_minute=1), shared.clock())
    chain = ChainModel([ScriptedModel(["fine"], name="a")], clock=shared.clock(), gates=gates, left_s=lambda: 30.0)
    assert chain.complete(ask(1)).text == "fine"
    with pytest.raises(ModelBudgetSpent, match="the turn of a"):
        chain.complete(ask(2))
    assert shared.at_s == 0


def test_no_place_is_waited_for_beyond_the_time_of_the_run() -> None:
    gate = Gate(Pace(in_flight=1))
    with gate.turn(), pytest.raises(NotYet), gate.turn(0.01):
        pass
    with gate.turn(0.01):
        pass


def test_a_request_that_the_end_of_the_run_cut_off_goes_to_no_other_model() -> None:
    second = ScriptedModel(["fine"], name="b")
    chain = ChainModel([ScriptedModel([ModelAbandoned("over")], name="a"), second], clock=SharedClock().clock())
    with pytest.raises(ModelAbandoned):
        chain.complete(ask(1))
    assert second.requests == []


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
            at_work.wait(timeout=300)  # three at once, or nobody goes on
            with lock:
                counted["now"] -= 1
            return Reply("fine", "m")

        def close(self) -> None:
            pass

    chain = ChainModel([Slow()], gates=Gates(Pace(in_flight=3)))
    with ThreadPoolExecutor(9) as pool:
        assert len(list(pool.map(chain.complete, map(ask, range(9))))) == 9
    assert counted["most"] == 3
