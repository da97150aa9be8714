"""The OpenAI-compatible path against a server in this process: errors first."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gzip
import json
import time
import traceback
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest
from chat_server import Answer, ChatServer, chat_server, completion

from kernelwright.errors import (
    ModelAbandoned,
    ModelAuthFailed,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelReplyMalformed,
    ModelUnavailable,
    UsageError,
)
from kernelwright.llm import providers
from kernelwright.llm.account import Account, AccountedModel
from kernelwright.llm.base import MOST_REPLY_CHARACTERS, ChatRequest, Message
from kernelwright.llm.body import MOST_BODY_BYTES
from kernelwright.llm.chain import ChainModel, Clock, Patience
from kernelwright.llm.names import ModelName, parse_model, parse_models
from kernelwright.llm.providers import ProviderModel, open_models

pytest.importorskip("pydantic_ai", reason="needs the llm extra")

KEY = "sk-test-0123456789abcdef"


def ask(text: str = "hello", **changes: object) -> ChatRequest:
    return ChatRequest("plan", "you are careful", (Message("user", text),), **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "KERNELWRIGHT_MODEL_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERNELWRIGHT_MODEL_KEY", KEY)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as running:
        yield running


def provider(server: ChatServer, *answers: Answer, timeout_s: float = 120.0) -> ProviderModel:
    server.answers += answers
    return ProviderModel(ModelName("openai", "tiny", server.url), timeout_s=timeout_s)


def failure(server: ChatServer, answer: Answer, *, timeout_s: float = 120.0) -> ModelError:
    model = provider(server, answer, timeout_s=timeout_s)
    try:
        with pytest.raises(ModelError) as caught:
            model.complete(ask())
    finally:
        model.close()
    shown = "".join(traceback.format_exception(caught.value)) + (caught.value.hint or "")
    assert KEY not in shown
    assert caught.value.hint
    assert len(server.requests) == 1, "a provider makes one attempt"
    return caught.value


# -- failures


def test_a_wrong_key_is_said_without_the_key(server: ChatServer) -> None:
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}})
    assert isinstance(failure(server, Answer(status=401, body=body)), ModelAuthFailed)


def test_a_service_that_repeats_the_key_is_not_repeated(server: ChatServer) -> None:
    error = failure(server, Answer(status=400, body=json.dumps({"error": {"message": f"bad {KEY} {KEY}"}})))
    assert isinstance(error, ModelRefused)
    assert "***" in error.message


def test_a_placeholder_for_a_key_takes_no_letter_out_of_a_reply(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWRIGHT_MODEL_KEY", "x")
    model = provider(server, Answer("y[i] = max(x[i], 0);"))
    assert model.complete(ask()).text == "y[i] = max(x[i], 0);"
    model.close()


def test_a_rate_limit_tells_when_to_come_back(server: ChatServer) -> None:
    error = failure(server, Answer(status=429, headers={"retry-after": "7"}, body='{"error": {"message": "slow"}}'))
    assert isinstance(error, ModelRateLimited)
    assert error.retry_after_s == 7.0


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_service_that_fails_may_be_asked_again(server: ChatServer, status: int) -> None:
    assert isinstance(failure(server, Answer(status=status, body="oops")), ModelUnavailable)


def test_an_unknown_model_is_told_by_its_name(server: ChatServer) -> None:
    error = failure(server, Answer(status=404, body='{"error": {"message": "no model tiny"}}'))
    assert isinstance(error, ModelAuthFailed)
    assert "openai:tiny@" in error.message


def test_a_slow_service_times_out(server: ChatServer) -> None:
    assert isinstance(failure(server, Answer(delay_s=3.0), timeout_s=0.4), ModelUnavailable)


@pytest.mark.parametrize("body", ["", "no json", "[]", "{}", "null", "9" * 5000, "[" * 50_000, '{"a":' * 50_000])
def test_a_reply_that_is_none_is_malformed(server: ChatServer, body: str) -> None:
    assert isinstance(failure(server, Answer(body=body)), ModelReplyMalformed)


def whole(**changes: object) -> str:
    """A completion that is one but for these fields."""
    return json.dumps({**json.loads(completion(Answer(), {"model": "tiny"})), **changes})


CHOICE = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    "choices",
    [
        [],
        None,
        "x",
        5,
        {},
        [1],
        [None],
        [{}],
        [[]],
        [{**CHOICE, "message": None}],
        [{**CHOICE, "message": "hi"}],
        [{**CHOICE, "message": {"role": "assistant", "content": 5}}],
        [{**CHOICE, "message": {"role": "system", "content": "hi"}}],
        [{**CHOICE, "message": {"role": "assistant", "tool_calls": [{}]}}],
        [{**CHOICE, "logprobs": {"content": 5}}],
    ],
)
def test_a_completion_without_a_message_is_malformed(server: ChatServer, choices: object) -> None:
    assert isinstance(failure(server, Answer(body=whole(choices=choices))), ModelReplyMalformed)


def test_a_completion_that_is_nested_too_deeply_is_malformed(server: ChatServer) -> None:
    deep: object = 1
    for _ in range(500):  # few enough to be parsed, too many to be walked
        deep = [deep]
    assert isinstance(failure(server, Answer(body=whole(more=deep))), ModelReplyMalformed)


@pytest.mark.parametrize(
    "changes",
    [
        {"created": 10**30},
        {"created": -(10**18)},
        {"created": "yesterday"},
        {"created": None},
        {"usage": {"prompt_tokens": -100000, "completion_tokens": -5, "total_tokens": -100005}},
        {"usage": {"prompt_tokens": 10**30, "completion_tokens": 1, "total_tokens": 1}},
        {"usage": {"prompt_tokens": "many", "completion_tokens": 1.5, "total_tokens": None}},
        {"usage": {**(Answer().usage or {}), "prompt_tokens_details": {"cached_tokens": -1}}},
        {"usage": [1]},
        {"usage": "x"},
        {"choices": [{**CHOICE, "message": {**CHOICE["message"], "reasoning": [1], "reasoning_content": 5}}]},  # type: ignore[dict-item]
    ],
)
def test_figures_around_a_reply_that_cannot_be_are_left_out_in_silence(
    server: ChatServer, changes: dict[str, object]
) -> None:
    model = provider(server, Answer(body=whole(**changes)))
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            reply = model.complete(ask())
    finally:
        model.close()
    assert not [each.message for each in told if issubclass(each.category, UserWarning)]
    assert reply.text in ("fine", "hi")
    if "usage" in changes:
        assert reply.usage.total_tokens is None


USAGE = Answer().usage or {}


@pytest.mark.parametrize(
    "usage",
    [
        {**USAGE, "completion_tokens_after_first_per_sec": 336.7, "total_tokens_per_sec": 300.1},
        {**USAGE, "tokens_per_second": 300.0, "token_unit": "x", "is_token_exact": True, "max_tokens": -1},
        {**USAGE, "queue_time": 0.25, "cost": 1.5e-4, "token_speeds": [336.7], "token_times": {"first": 0.5}},
        {**USAGE, "completion_tokens_details": {"reasoning_tokens": 3.0, "per_sec": 1.5, "audio_tokens": "none"}},
        {**USAGE, "prompt_tokens": 100.0, "completion_tokens": 20.0, "total_tokens": 120.0},
        {**USAGE, "prompt_tokens_details": {"cached_tokens": 64.0}},
        {**USAGE, "total_tokens": None},
        {**USAGE, "total_tokens": 120.5},
        {name: value for name, value in USAGE.items() if name != "total_tokens"},
    ],
)
def test_what_else_a_service_tells_of_tokens_does_not_lose_those_that_are_counted(
    server: ChatServer, usage: dict[str, Any]
) -> None:
    model = provider(server, Answer(usage=usage))
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            read = model.complete(ask()).usage
    finally:
        model.close()
    assert (read.input_tokens, read.cached_tokens, read.output_tokens) == (100, 64, 20)
    assert not [each.message for each in told if issubclass(each.category, UserWarning)]


def test_half_a_character_is_replaced_and_a_conversation_with_one_can_be_sent(server: ChatServer) -> None:
    model = provider(server, Answer("half \ud800 and \U0001f600"), Answer())
    try:
        assert model.complete(ask()).text == "half \ufffd and \U0001f600"
        turns = (Message("user", "a"), Message("assistant", "b \udfff"), Message("user", "c"))
        assert model.complete(ChatRequest("code", "system", turns)).text == "fine"
    finally:
        model.close()
    assert server.requests[1]["messages"][2]["content"] == "b \ufffd"


@pytest.mark.parametrize(("packing", "wbits"), [("gzip", 31), ("deflate", 15)])
def test_an_answer_that_unpacks_to_too_much_is_malformed(server: ChatServer, packing: str, wbits: int) -> None:
    packer = zlib.compressobj(wbits=wbits)
    zeros = b"0" * 2**20
    data = b"".join([packer.compress(zeros) for _ in range(2 * MOST_BODY_BYTES // len(zeros))]) + packer.flush()
    assert len(data) < MOST_BODY_BYTES
    error = failure(server, Answer(body=data, headers={"content-encoding": packing}))
    assert isinstance(error, ModelReplyMalformed)
    assert f"longer than {MOST_BODY_BYTES} bytes" in error.message


def test_an_answer_of_too_many_bytes_is_malformed_before_its_end(server: ChatServer) -> None:
    body = whole(more="A" * 2 * MOST_BODY_BYTES)
    error = failure(server, Answer(body=body, stops_after=MOST_BODY_BYTES + 2**20))
    assert isinstance(error, ModelReplyMalformed)
    assert f"longer than {MOST_BODY_BYTES} bytes" in error.message


def test_a_packed_answer_is_read_and_one_that_is_packed_otherwise_refused(server: ChatServer) -> None:
    body = gzip.compress(whole().encode())
    model = provider(server, Answer(body=body, headers={"content-encoding": "gzip"}))
    assert model.complete(ask()).text == "fine"
    model.close()
    server.requests.clear()
    assert "packed as 'br'" in failure(server, Answer(body=body, headers={"content-encoding": "br"})).message


@pytest.mark.parametrize("status", [500, 429])
def test_a_failure_is_told_for_what_it_is_whatever_comes_with_it(server: ChatServer, status: int) -> None:
    body = gzip.compress(b"0" * 2**24)
    error = failure(server, Answer(status=status, body=body, headers={"content-encoding": "gzip"}))
    assert isinstance(error, ModelUnavailable if status == 500 else ModelRateLimited)


def test_a_text_that_is_too_long_is_kept_in_part_with_a_mark(server: ChatServer) -> None:
    model = provider(server, Answer("A" * (MOST_REPLY_CHARACTERS + 5000)))
    text = model.complete(ask()).text
    model.close()
    assert text[:MOST_REPLY_CHARACTERS] == "A" * MOST_REPLY_CHARACTERS
    assert "5000 more characters are left out" in text[MOST_REPLY_CHARACTERS:]


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [("100000", 86_400.0), ("Fri, 31 Dec 2099 23:59:59 GMT", 86_400.0), ("nan", None), ("1e400", None), ("soon", None)],
)
def test_a_wait_that_nobody_can_mean_is_clamped(server: ChatServer, asked: str, seconds: float | None) -> None:
    error = failure(server, Answer(status=429, headers={"retry-after": asked}, body="{}"))
    assert isinstance(error, ModelRateLimited)
    assert error.retry_after_s == seconds


@pytest.mark.parametrize("answer", [Answer(is_silent=True), Answer(stops_after=20)])
def test_the_time_of_a_run_ends_a_request(server: ChatServer, answer: Answer) -> None:
    server.answers.append(answer)
    model = ProviderModel(ModelName("openai", "tiny", server.url), left_s=lambda: 0.5)
    try:
        with pytest.raises(ModelAbandoned, match="the time of the run is over"):
            model.complete(ask())
    finally:
        model.close()


def test_an_empty_text_is_malformed(server: ChatServer) -> None:
    assert isinstance(failure(server, Answer(text="")), ModelReplyMalformed)


def test_a_redirect_is_not_followed_with_the_key(server: ChatServer) -> None:
    with chat_server() as other:
        failure(server, Answer(status=307, headers={"location": other.url + "/chat/completions"}, body=""))
        assert other.requests == []


def test_nobody_listens() -> None:
    with chat_server() as gone:
        url = gone.url
    model = ProviderModel(ModelName("openai", "tiny", url), timeout_s=60)
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        model.complete(ask())
    model.close()


@pytest.mark.parametrize("name", ["openai:gpt", "anthropic:claude", "google:gemini"])
def test_without_a_key_nothing_is_asked(name: str) -> None:
    with pytest.raises(ModelAuthFailed, match="no key") as caught:
        open_models(name)
    assert "_API_KEY" in (caught.value.hint or "")


# -- what works


def test_a_reply_with_its_usage(server: ChatServer) -> None:
    model = provider(server, Answer("the answer"))
    reply = model.complete(ask(temperature=0.3, max_tokens=55))
    model.close()
    assert (reply.text, reply.finish, reply.model) == ("the answer", "stop", f"openai:tiny@{server.url}")
    usage = reply.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (100, 64, 20)
    assert reply.cost_usd is None, "the price of an own endpoint is unknown, not nothing"
    sent = server.requests[0]
    assert sent["path"] == "/v1/chat/completions"
    assert [each["role"] for each in sent["messages"]] == ["system", "user"]
    assert sent["temperature"] == 0.3
    assert 55 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))
    assert server.keys == [f"Bearer {KEY}"]


def test_a_conversation_keeps_its_turns(server: ChatServer) -> None:
    model = provider(server)
    turns = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    model.complete(ChatRequest("code", "system", turns))
    model.close()
    sent = [(each["role"], each["content"]) for each in server.requests[0]["messages"]]
    assert sent == [("system", "system"), ("user", "a"), ("assistant", "b"), ("user", "c")]


def test_a_reply_that_was_cut_off_says_so(server: ChatServer) -> None:
    model = provider(server, Answer("half", finish="length"))
    assert model.complete(ask()).finish == "length"
    model.close()


def test_a_service_without_usage_leaves_it_unknown(server: ChatServer) -> None:
    model = provider(server, Answer(usage=None))
    assert model.complete(ask()).usage.total_tokens is None
    model.close()


def test_several_requests_are_in_flight_at_once(server: ChatServer) -> None:
    model = provider(server, *[Answer(f"reply {n}", beside=3) for n in range(4)])
    with ThreadPoolExecutor(4) as pool:
        texts = {each.text for each in pool.map(lambda n: model.complete(ask(str(n))), range(4))}
    model.close()
    assert texts == {f"reply {n}" for n in range(4)}
    assert server.most_in_flight == 4


def test_closing_gives_up_what_another_thread_waits_for(server: ChatServer) -> None:
    model = provider(server, Answer(is_silent=True))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(model.complete, ask())
        while not server.requests:
            time.sleep(0.01)
        model.close()
        with pytest.raises(CancelledError):
            waiting.result(timeout=300)


def test_a_chain_waits_as_it_is_asked_and_then_succeeds(server: ChatServer) -> None:
    waits: list[float] = []
    slow = Answer(status=429, headers={"retry-after": "3"}, body="{}")
    model = provider(server, slow, Answer(status=503, body="{}"), Answer("at last"))
    clock = Clock(now_s=lambda: float(sum(waits)), sleep_s=waits.append)
    chain = ChainModel([model], patience=Patience(first_wait_s=0.5), clock=clock)
    assert chain.complete(ask()).text == "at last"
    chain.close()
    assert 3.0 <= waits[0] < 3.2
    assert 1.0 <= waits[1] <= 1.5


def test_a_schema_is_sent_and_left_out_where_it_is_refused(server: ChatServer) -> None:
    model = provider(server, Answer("{}"), Answer(status=400, body='{"error": {"message": "response_format?"}}'))
    request = dataclasses.replace(ask(), schema={"type": "object", "properties": {}, "additionalProperties": False})
    for _ in range(3):
        model.complete(request)
    sent = [each.get("response_format", {}).get("type") for each in server.requests]
    assert sent == ["json_schema", "json_schema", None, None]
    model.close()


@pytest.mark.parametrize("second", ["hi", ""])
def test_an_empty_reply_to_a_schema_is_counted_with_the_one_without(server: ChatServer, second: str) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 5000, "total_tokens": 6000}
    account = Account()
    model = AccountedModel(provider(server, Answer("", usage=usage), Answer(second, usage=usage)), account)
    with contextlib.nullcontext() if second else pytest.raises(ModelReplyMalformed):
        model.complete(ask(schema={"type": "object"}))
    model.close()
    assert len(server.requests) == 2
    assert (account.total.input_tokens, account.total.output_tokens) == (2000, 10_000)


def test_an_empty_reply_to_a_schema_is_counted_where_the_request_without_comes_too_soon(server: ChatServer) -> None:
    limited = Answer(status=429, headers={"retry-after": "1"}, body="{}")
    waits: list[float] = []
    clock = Clock(now_s=lambda: float(sum(waits)), sleep_s=waits.append)
    chain = ChainModel([provider(server, Answer(""), limited, Answer("hi"))], clock=clock)
    usage = chain.complete(ask(schema={"type": "object"})).usage
    chain.close()
    assert (usage.input_tokens, usage.output_tokens) == (200, 40)


def test_a_request_that_is_refused_for_another_reason_is_refused(server: ChatServer) -> None:
    model = provider(server, Answer(status=400, body="{}"), Answer(status=400, body="{}"))
    with pytest.raises(ModelRefused):
        model.complete(dataclasses.replace(ask(), schema={"type": "object"}))
    assert len(server.requests) == 2
    model.complete(dataclasses.replace(ask(), schema={"type": "object"}))
    assert "response_format" in server.requests[2]  # nothing has shown that the schema was to blame
    model.close()


def test_openais_key_does_not_go_to_another_host(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai-own")
    monkeypatch.delenv("KERNELWRIGHT_MODEL_KEY")
    monkeypatch.setenv("KERNELWRIGHT_MODEL_URL", server.url)
    model = open_models("openai:tiny")
    assert model.complete(ask()).text == "fine"
    model.close()
    assert "sk-openai-own" not in server.keys[0]


ANTHROPIC = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "the answer"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1000, "output_tokens": 200, "cache_read_input_tokens": 500},
}
GOOGLE = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "the answer"}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 200, "totalTokenCount": 1200},
    "modelVersion": "gemini-2.5-pro",
}


def places(value: object, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where something stands in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*above, key)
        yield from places(each, (*above, key))


def with_other(value: Any, place: tuple[str | int, ...], other: object) -> Any:
    """The JSON value with something else at that place."""
    changed = copy.deepcopy(value)
    at = changed
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = other
    return changed


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("openai:tiny", json.loads(completion(Answer(), {"model": "tiny"}))),
        ("anthropic:claude-sonnet-4-5", ANTHROPIC),
        ("google:gemini-2.5-pro", GOOGLE),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nothing_at_any_place_of_an_answer_raises_anything_but_a_models_error(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch, name: str, body: dict[str, Any]
) -> None:
    provider_name = name.partition(":")[0]
    monkeypatch.setenv(f"{provider_name.upper()}_API_KEY", KEY)
    url = server.url if provider_name == "openai" else server.url.removesuffix("/v1")
    monkeypatch.setattr(providers, "SERVICES", {**providers.SERVICES, provider_name: url})
    model = ProviderModel(parse_model(name), timeout_s=120)
    try:
        for place in places(body):
            for other in (None, True, -1, 10**30, "\ud800", [], [1], {"type": "x"}):
                server.answers.append(Answer(body=json.dumps(with_other(body, place, other))))
                with contextlib.suppress(ModelError):
                    model.complete(ask())
    finally:
        model.close()
    assert server.answers == []


@pytest.mark.parametrize(
    ("name", "body", "place", "counts"),
    [
        ("anthropic:claude-sonnet-4-5", ANTHROPIC, "usage", {"input_tokens": 1000.0, "output_tokens": 200.0}),
        ("google:gemini-2.5-pro", GOOGLE, "usageMetadata", {"promptTokenCount": 1000.0, "candidatesTokenCount": 200.0}),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_counts_of_other_services_are_read_as_well_with_rates_beside_them(
    server: ChatServer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    body: dict[str, Any],
    place: str,
    counts: dict[str, float],
) -> None:
    provider_name = name.partition(":")[0]
    monkeypatch.setenv(f"{provider_name.upper()}_API_KEY", KEY)
    root = server.url.removesuffix("/v1")
    monkeypatch.setattr(providers, "SERVICES", {**providers.SERVICES, provider_name: root})
    server.answers.append(Answer(body=json.dumps({**body, place: {**counts, "outputTokensPerSec": 300.5}})))
    model = ProviderModel(parse_model(name), timeout_s=120)
    try:
        usage = model.complete(ask()).usage
    finally:
        model.close()
    assert (usage.input_tokens, usage.output_tokens) == (1000, 200)


@pytest.mark.parametrize(
    ("name", "variable", "body"),
    [
        ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY", ANTHROPIC),
        ("google:gemini-2.5-pro", "GOOGLE_API_KEY", GOOGLE),
    ],
)
def test_other_services_answer_behind_the_same_seam(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch, name: str, variable: str, body: dict[str, object]
) -> None:
    monkeypatch.setenv(variable, KEY)
    provider_name = name.partition(":")[0]
    root = server.url.removesuffix("/v1")
    monkeypatch.setattr(providers, "SERVICES", {**providers.SERVICES, provider_name: root})
    server.answers += [Answer(body=json.dumps(body)), Answer(status=429, headers={"retry-after": "4"}, body="{}")]
    model = ProviderModel(parse_model(name), timeout_s=120)
    try:
        reply = model.complete(ask(schema={"type": "object", "properties": {}}))
        with pytest.raises(ModelRateLimited) as caught:
            model.complete(ask())
    finally:
        model.close()
    assert (reply.text, reply.finish, reply.model) == ("the answer", "stop", name)
    assert reply.usage.output_tokens == 200
    assert reply.usage.input_tokens is not None
    assert reply.usage.input_tokens >= 1000
    assert reply.cost_usd is not None, "the price of a known model is known"
    assert reply.cost_usd > 0
    assert len(server.requests) == 2, "one attempt each"
    assert KEY not in str(caught.value)


# -- names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpt-5", "expected rules or PROVIDER:NAME"),
        ("opanai:gpt", "did you mean openai:NAME"),
        ("openai:", "names no model"),
        ("openai:x@ftp://a", "not the URL"),
        ("openai:x@http://me:secret@host/v1", "more than host, port and path"),
        ("openai:x@http://host/v1?key=secret", "more than host, port and path"),
        ("anthropic:x@http://host/v1", "takes no URL"),
        ("openai:a,", "expected rules or"),
    ],
)
def test_a_name_that_is_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_models(text)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_names_read_back() -> None:
    for text in ("openai:gpt-5", "openai:org/model:tag@http://host:8000/v1", "anthropic:claude", "google:gemini"):
        assert str(parse_model(text)) == text
