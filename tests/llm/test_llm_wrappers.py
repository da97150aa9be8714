"""Chain, account and recording: what a run puts around a model."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.errors import (
    ModelAbandoned,
    ModelAuthFailed,
    ModelBudgetSpent,
    ModelError,
    ModelRateLimited,
    ModelReplyMalformed,
    ModelReplyMissing,
    ModelUnavailable,
    StoreError,
)
from kernelwright.llm.account import Account, AccountedModel
from kernelwright.llm.base import FAILURES, ChatRequest, Message, Reply, Usage
from kernelwright.llm.chain import ChainModel, Clock, Patience
from kernelwright.llm.recorded import (
    Exchange,
    ExchangeLog,
    RecordedModel,
    ReplayedModel,
    decode,
    encode,
    read_exchanges,
)
from kernelwright.llm.scripted import ScriptedModel
from tiers import examples


def ask(text: str = "hello", role: str = "plan", **changes: object) -> ChatRequest:
    return ChatRequest(role, "system", (Message("user", text),), **changes)  # type: ignore[arg-type]


class FakeClock:
    def __init__(self) -> None:
        self.at_s = 0.0
        self.waits: list[float] = []

    def sleep_s(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.at_s += seconds

    def clock(self) -> Clock:
        return Clock(lambda: self.at_s, self.sleep_s)


# -- chain


def test_waits_grow_and_attempts_end() -> None:
    clock, model = FakeClock(), ScriptedModel([ModelUnavailable("down")] * 9)
    chain = ChainModel([model], patience=Patience(attempts=4), clock=clock.clock(), rng=random.Random(1))
    with pytest.raises(ModelUnavailable):
        chain.complete(ask())
    assert len(model.requests) == 4
    assert [1 <= clock.waits[0] <= 1.5, 2 <= clock.waits[1] <= 3, 4 <= clock.waits[2] <= 6] == [True] * 3


def test_the_deadline_ends_waiting_before_it_begins() -> None:
    limited = ModelRateLimited("slow")
    limited.retry_after_s = 1000.0
    clock = FakeClock()
    chain = ChainModel([ScriptedModel([limited])], patience=Patience(deadline_s=900), clock=clock.clock())
    with pytest.raises(ModelRateLimited):
        chain.complete(ask())
    assert clock.waits == []


def test_a_wrong_key_is_not_tried_again_but_the_next_provider_is() -> None:
    first, second = ScriptedModel([ModelAuthFailed("no")], name="a"), ScriptedModel(["yes"], name="b")
    chain = ChainModel([first, second], clock=FakeClock().clock())
    assert chain.complete(ask()).text == "yes"
    assert len(first.requests) == 1
    assert chain.name == "a,b"


def test_when_nobody_answers_everybody_is_named() -> None:
    models = [ScriptedModel([ModelAuthFailed("no key")], name="a"), ScriptedModel([ModelAuthFailed("bad")], name="b")]
    with pytest.raises(ModelAuthFailed, match="a: no key; b: bad"):
        ChainModel(models, clock=FakeClock().clock()).complete(ask())


@pytest.mark.parametrize(("asked_s", "other_takes_s"), [(65, 1), (65, 10), (65, 70), (120, 70), (800, 790)])
def test_a_model_that_was_passed_over_is_asked_however_short_its_hold_has_become(
    asked_s: float, other_takes_s: float
) -> None:
    clock = FakeClock()
    limited = ModelRateLimited("not now")
    limited.retry_after_s = asked_s

    def slowly(request: ChatRequest) -> str:
        clock.at_s += other_takes_s
        raise ModelAuthFailed("down")

    first = ScriptedModel([limited, "back"], name="a")
    chain = ChainModel([first, other := ScriptedModel(slowly, name="b")], clock=clock.clock())
    assert chain.complete(ask()).text == "back"
    assert clock.at_s >= asked_s, "what the service asked for is kept to"
    assert (len(first.requests), len(other.requests)) == (2, 1)


def paid_for_nothing(tokens: tuple[int, int], cost_usd: float | None = None) -> ModelError:
    error = ModelReplyMalformed("no text")
    error.tokens, error.cost_usd = tokens, cost_usd
    return error


@pytest.mark.parametrize("cost_usd", [0.25, None])
def test_what_came_to_nothing_counts_to_the_reply_of_the_model_that_is_asked_next(cost_usd: float | None) -> None:
    models = [ScriptedModel([paid_for_nothing((100, 7), cost_usd)], name="a"), ScriptedModel([reply()], name="b")]
    account = Account()
    counted = AccountedModel(ChainModel(models, clock=FakeClock().clock()), account)
    assert counted.complete(ask()).text == "x"
    total = account.total
    assert (total.requests, total.input_tokens, total.output_tokens, total.cached_tokens) == (1, 110, 17, 4)
    assert total.cost_usd == (None if cost_usd is None else 0.75)


def test_where_nobody_answers_what_all_were_paid_counts() -> None:
    models = [ScriptedModel([paid_for_nothing((100, 7), 0.25)], name="a")]
    models += [ScriptedModel([ModelUnavailable("down"), paid_for_nothing((50, 1), 0.5)], name="b")]
    account = Account()
    with pytest.raises(ModelReplyMalformed):
        AccountedModel(ChainModel(models, clock=FakeClock().clock()), account).complete(ask())
    total = account.total
    assert (total.failed, total.input_tokens, total.output_tokens, total.cost_usd) == (1, 150, 8, 0.75)


# -- account


def reply(tokens: int = 10, cost: float | None = 0.5) -> Reply:
    return Reply("x", "m", Usage(tokens, 4, tokens), cost, seconds=2.0)


@pytest.mark.parametrize(
    ("caps", "words"),
    [
        ({"most_requests": 2}, "2 requests of 2"),
        ({"most_tokens": 40}, "40 tokens of 40"),
        ({"most_usd": 1.0}, r"\$1.0000 of \$1 are spent"),
    ],
)
def test_a_cap_stops_before_the_next_request(caps: dict[str, Any], words: str) -> None:
    account, model = Account(**caps), ScriptedModel([reply()] * 9)
    counted = AccountedModel(model, account)
    counted.complete(ask())
    counted.complete(ask())
    with pytest.raises(ModelBudgetSpent, match=words):
        counted.complete(ask())
    assert len(model.requests) == 2


@pytest.mark.parametrize("caps", [{"most_tokens": 10_000}, {"most_usd": 10.0}])
def test_a_cap_that_cannot_be_kept_stops_and_says_so(caps: dict[str, Any]) -> None:
    counted = AccountedModel(ScriptedModel([Reply("x", "m")] * 2), Account(**caps))
    counted.complete(ask())
    with pytest.raises(ModelBudgetSpent, match="cannot be kept"):
        counted.complete(ask())


def test_an_unknown_price_is_not_nothing() -> None:
    account = Account(paid=[(ask(), reply()), (ask(), reply(cost=None))])
    assert account.total.cost_usd is None
    assert account.total.known_cost_usd == 0.5


def test_sums_by_role_and_node() -> None:
    account = Account()
    account.charge(ask(node=3), reply())
    account.charge(ask(role="code", node=3), reply(20))
    account.charge(ask(role="code"), reply(30))
    assert account.total.tokens == 120
    assert {role: spent.tokens for role, spent in account.by_role.items()} == {"plan": 20, "code": 100}
    assert account.by_node[3].requests == 2
    assert account.total.seconds == 6.0
    assert account.total.cached_tokens == 12


# -- recording


def test_a_torn_last_line_is_cut_off_and_the_next_reply_recorded(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    lines = [encode(Exchange(ask(str(n)), reply())) for n in range(3)]
    path.write_bytes(lines[0] + lines[1] + lines[2][:50])
    recording = ExchangeLog(path)
    assert len(recording.exchanges) == 2
    recording.append(Exchange(ask("9"), reply()))
    assert path.read_bytes() == lines[0] + lines[1] + encode(Exchange(ask("9"), reply()))


@pytest.mark.parametrize("tail", [b"\x00" * 100, b"\n", b"deadbeef {}\n", b"\xff\xfe\n"])
def test_any_torn_tail_is_left_out(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_bytes(encode(Exchange(ask(), reply())) + tail)
    assert len(ExchangeLog(path).exchanges) == 1


def test_damage_in_the_middle_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    lines = [encode(Exchange(ask(str(n)), reply())) for n in range(3)]
    path.write_bytes(lines[0] + lines[1].replace(b"plan", b"plan2") + lines[2])
    with pytest.raises(StoreError) as caught:
        ExchangeLog(path)
    assert caught.value.location is not None
    assert caught.value.location.line == 2


def test_a_reply_is_paid_for_once(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    first = RecordedModel(ExchangeLog(path), ScriptedModel(["one"]))
    assert first.complete(ask()).text == "one"
    resumed = RecordedModel(ExchangeLog(path), model := ScriptedModel([]))
    assert resumed.complete(ask()).text == "one"
    assert resumed.complete(ask(node=7)).text == "one", "the node is for the accounts only"
    assert model.requests == []
    with pytest.raises(ModelUnavailable):
        resumed.complete(ask(sample=1))


def test_a_replay_asks_nobody(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    RecordedModel(ExchangeLog(path), ScriptedModel(["one"])).complete(ask())
    replay = RecordedModel(ExchangeLog(path, writable=False), None)
    assert replay.complete(ask()).text == "one"
    with pytest.raises(ModelReplyMissing, match="of 1 plan replies"):
        replay.complete(ask("other"))


def test_the_same_request_at_the_same_time_is_asked_once(tmp_path: Path) -> None:
    begun = threading.Event()

    def slowly(request: ChatRequest) -> str:
        begun.set()
        time.sleep(0.1)
        return "one"

    model = ScriptedModel(slowly)
    recorded = RecordedModel(ExchangeLog(tmp_path / "r"), model)
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: recorded.complete(ask()), range(4)))
    assert begun.is_set()
    assert {each.text for each in replies} == {"one"}
    assert len(model.requests) == 1


def test_a_failure_that_may_pass_is_heard_by_all_who_wait_and_not_recorded(tmp_path: Path) -> None:
    recorded = RecordedModel(ExchangeLog(tmp_path / "r"), ScriptedModel([ModelUnavailable("late"), "now"]))
    with pytest.raises(ModelError):
        recorded.complete(ask())
    assert recorded.complete(ask()).text == "now"
    assert len(read_exchanges(tmp_path / "r")[0]) == 1


@pytest.mark.parametrize("kind", list(FAILURES.values()))
def test_a_failure_that_a_run_goes_on_from_is_repeated_by_a_replay_and_not_asked_for_again(
    tmp_path: Path, kind: type[ModelError]
) -> None:
    path = tmp_path / "replies.jsonl"
    model = ScriptedModel([kind("the \ud800 of it")])
    with pytest.raises(kind):
        RecordedModel(ExchangeLog(path), model).complete(ask())
    told: list[str] = []
    again = RecordedModel(ExchangeLog(path), model)
    for repeated in (again, RecordedModel(ExchangeLog(path), None), ReplayedModel(ExchangeLog(path), told.append)):
        with pytest.raises(kind, match="the \ufffd of it"):
            repeated.complete(ask())
    assert len(model.requests) == 1
    assert told == []


def test_what_an_unusable_request_has_cost_counts_now_and_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    empty = ModelReplyMalformed("no text")
    empty.tokens = (100, 7)
    errors = [ModelAbandoned("over"), empty, ModelBudgetSpent("a cap")]
    account = Account()
    model = RecordedModel(ExchangeLog(path), AccountedModel(ScriptedModel(errors), account))
    for number in range(3):
        with pytest.raises(ModelError):
            model.complete(ask(str(number)))
    resumed = Account(paid=[(each.request, each.reply) for each in ExchangeLog(path).exchanges])
    for total in (account.total, resumed.total):
        assert (total.requests, total.failed, total.unknown_tokens, total.tokens) == (2, 2, 1, 107)
        assert total.cost_usd is None


def test_half_a_character_that_was_recorded_is_replaced_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    conversation = (Message("user", "a"), Message("assistant", "b \ud800"), Message("user", "c"))
    old = [Exchange(ask("first"), Reply("b \ud800", "m")), Exchange(ChatRequest("plan", "s", conversation), reply())]
    path.write_bytes(b"".join(map(encode, old)))
    read = RecordedModel(ExchangeLog(path), None)
    assert read.complete(ask("first")).text == "b \ufffd"
    mended = (conversation[0], Message("assistant", "b \ufffd"), conversation[2])
    assert read.complete(ChatRequest("plan", "s", mended)).text == "x"


def test_the_account_of_a_resumed_run_begins_with_what_was_paid(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    RecordedModel(ExchangeLog(path), ScriptedModel([reply()])).complete(ask())
    recording = ExchangeLog(path)
    account = Account([(each.request, each.reply) for each in recording.exchanges], most_requests=1)
    model = RecordedModel(recording, AccountedModel(ScriptedModel(["no"]), account))
    assert model.complete(ask()).text == "x"
    with pytest.raises(ModelBudgetSpent):
        model.complete(ask("new"))


texts = st.text(max_size=80)


@examples(60)
@given(texts, texts, st.none() | st.floats(0, 2), st.integers(0, 3), st.none() | st.floats(0, 9), texts)
def test_exchanges_read_back_bit_for_bit(
    system: str, user: str, temperature: float | None, sample: int, cost: float | None, answer: str
) -> None:
    request = ChatRequest(
        "code", system, (Message("user", user),), temperature=temperature, sample=sample, schema={"type": "object"}
    )
    exchange = Exchange(request, Reply(answer, "m", Usage(1, None, 2), cost, 0.1, "length"))
    assert decode(encode(exchange)) == exchange


@examples(60)
@given(st.binary(max_size=200))
def test_no_bytes_raise(line: bytes) -> None:
    assert decode(line) is None
