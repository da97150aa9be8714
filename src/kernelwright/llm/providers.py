"""Real services, behind pydantic-ai: OpenAI and what is compatible with it, Anthropic, Google."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from kernelwright import knobs
from kernelwright.errors import (
    ModelAbandoned,
    ModelAuthFailed,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelReplyMalformed,
    ModelUnavailable,
)
from kernelwright.imports import require
from kernelwright.llm.base import ChatModel, ChatRequest, Finish, Reply, Usage, add_paid, readable, shortened, with_paid
from kernelwright.llm.body import Tidy, Unreadable, anthropic_message, completion, google_content, guard
from kernelwright.llm.chain import OUT_OF_TIME, ChainModel, Patience
from kernelwright.llm.names import ModelName, parse_models
from kernelwright.llm.pace import LONGEST_HOLD_S, Gates

REQUEST_TIMEOUT_S = 600.0
"""For one attempt; models that reason for long need minutes. A guess."""

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
"""For a network that is gone to let go of connections; then they are left to the end of the process."""

MOST_CHARACTERS = 400
"""A message quotes so many of a service's own words."""

SERVICES: Mapping[str, str] = MappingProxyType(
    {
        "openai": "https://api.openai.com/v1",
        "anthropic": "https://api.anthropic.com",
        "google": "https://generativelanguage.googleapis.com",
    }
)
"""Where the keys of these services go, whatever else the environment says."""

_SHAPES: Mapping[str, Tidy] = MappingProxyType(
    {"openai": completion, "anthropic": anthropic_message, "google": google_content}
)
_STUMBLES = (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, AssertionError, RecursionError)
"""What libraries raise over an answer of another shape than they expect; pydantic's errors are of `ValueError`."""

LEAST_KEY = 8
"""A shorter key is a placeholder that an endpoint of one's own is given; no service issues such."""

_NO_KEY = "no-key"
"""What an endpoint without a key gets: clients insist on one, local servers ignore it."""


def open_models(
    text: str,
    *,
    patience: Patience | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
    gates: Gates | None = None,
    left_s: Callable[[], float] = lambda: math.inf,
) -> ChatModel:
    """The models that `PROVIDER:NAME[,PROVIDER:NAME...]` names, tried in this order, with retries.

    `gates` keep the pace of each model, also where it is opened several times. `left_s` tells the seconds that the run
    has left: no request goes on for longer.

    Raises:
        UsageError: the text names no model.
        ModelAuthFailed: a key is missing in the environment.
        MissingDependency: the `llm` extra is not installed.
    """
    models = [ProviderModel(each, timeout_s=timeout_s, left_s=left_s) for each in parse_models(text)]
    return ChainModel(models, patience=patience, gates=gates, left_s=left_s)


class ProviderModel:
    """One model of one service. One attempt a call: retries are the chain's."""

    def __init__(
        self,
        name: ModelName,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Nothing is sent yet.

        Raises:
            ModelAuthFailed: there is no key for it.
            MissingDependency: the `llm` extra is not installed.
        """
        self._name = name
        self._timeout_s = timeout_s
        self._left_s = left_s
        self._key = knobs.model_key(name.provider, is_own_endpoint=name.url is not None)
        if self._key is None and name.url is None:
            variable = "GOOGLE_API_KEY" if name.provider == "google" else f"{name.provider.upper()}_API_KEY"
            raise ModelAuthFailed(
                f"there is no key for {name}",
                hint=f"set {variable} in the environment, or use an endpoint of yours: openai:NAME@URL",
            )
        self._exceptions = require("pydantic_ai.exceptions", purpose=f"--model {name}")
        self._messages = require("pydantic_ai.messages", purpose=f"--model {name}")
        self._takes_schemas = True
        self._loop = _LoopThread()
        self._client: Any = None
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._model = self._made()
            undo.pop_all()

    @property
    def name(self) -> str:
        """`PROVIDER:NAME`, with the URL of an own endpoint."""
        return str(self._name)

    def complete(self, request: ChatRequest) -> Reply:
        """One attempt at one reply.

        Raises:
            ModelAbandoned: the time of the run was over before it came.
            ModelError: there is none, and why.
        """
        if request.schema is not None and self._takes_schemas:
            try:
                return self._complete(request)
            except (ModelRefused, ModelReplyMalformed) as error:
                first = error
            try:  # what it dislikes is not told: ask once without the schema, and remember what works
                reply = self._complete(dataclasses.replace(request, schema=None))
            except ModelError as error:
                add_paid(error, [first])
                raise
            self._takes_schemas = False
            return with_paid(reply, [first])
        return self._complete(dataclasses.replace(request, schema=None))

    def _complete(self, request: ChatRequest) -> Reply:
        start_s = time.monotonic()
        left_s = self._left_s()
        history, settings, output = self._history(request), self._settings(request), self._output(request)
        try:
            try:
                response = self._loop.run(self._asked(history, settings, output, min(self._timeout_s, left_s)))
            except (self._exceptions.AgentRunError, self._exceptions.UserError, Unreadable) as error:
                # `from None`: the cause holds the request's headers.
                raise self._explained(error) from None
            except TimeoutError:
                raise self._abandoned() if left_s < self._timeout_s else self._timed_out() from None
            except _STUMBLES as error:
                raise self._malformed(f"{type(error).__name__}: {self._words(error)}") from None
            return self._read(response, time.monotonic() - start_s)
        except ModelError as error:
            error.seconds = time.monotonic() - start_s
            raise

    # -- inside --------------------------------------------------------------------------------------------------

    def _made(self) -> Any:
        name, purpose = self._name, f"--model {self._name}"
        httpx = require("httpx2", purpose=purpose)
        timeout = httpx.Timeout(self._timeout_s, connect=CONNECT_TIMEOUT_S)
        self._client = client = httpx.AsyncClient(
            timeout=timeout,
            follow_redirects=False,
            headers={"accept-encoding": "identity"},
            event_hooks={"response": [guard(httpx, _SHAPES[name.provider])]},
        )
        key = self._key or _NO_KEY
        if name.provider == "openai":
            provider = require("pydantic_ai.providers.openai", purpose=purpose).OpenAIProvider
            model = require("pydantic_ai.models.openai", purpose=purpose).OpenAIChatModel
            # A base URL from elsewhere in the environment must not receive OpenAI's key.
            url = name.url or SERVICES["openai"]
            return model(name.name, provider=provider(base_url=url, api_key=key, http_client=client))
        if name.provider == "anthropic":
            provider = require("pydantic_ai.providers.anthropic", purpose=purpose).AnthropicProvider
            model = require("pydantic_ai.models.anthropic", purpose=purpose).AnthropicModel
            return model(name.name, provider=provider(base_url=SERVICES["anthropic"], api_key=key, http_client=client))
        provider = require("pydantic_ai.providers.google", purpose=purpose).GoogleProvider
        model = require("pydantic_ai.models.google", purpose=purpose).GoogleModel
        return model(name.name, provider=provider(api_key=key, base_url=SERVICES["google"], http_client=client))

    async def _asked(self, history: list[Any], settings: dict[str, Any], output: dict[str, Any], most_s: float) -> Any:
        parameters = require("pydantic_ai.models", purpose="a request").ModelRequestParameters
        async with asyncio.timeout(most_s):
            return await self._model.request(history, settings, parameters(**output))

    def _history(self, request: ChatRequest) -> list[Any]:
        parts = self._messages
        history: list[Any] = []
        for index, each in enumerate(request.messages):
            if each.role == "assistant":
                history.append(parts.ModelResponse(parts=[parts.TextPart(readable(each.text))]))
                continue
            first = [parts.SystemPromptPart(readable(request.system))] if index == 0 and request.system else []
            text: Any = readable(each.text)
            cut = request.shared_characters if index == 0 and self._name.provider == "anthropic" else 0
            if request.caches_prefix and 0 < cut < len(text):
                text = [text[:cut], parts.CachePoint(), text[cut:]]  # what other requests of the run begin with too
            history.append(parts.ModelRequest(parts=[*first, parts.UserPromptPart(text)]))
        return history

    def _settings(self, request: ChatRequest) -> dict[str, Any]:
        settings: dict[str, Any] = {"max_tokens": request.max_tokens, "max_retries": 0, "timeout": self._timeout_s}
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        if request.seed is not None and self._name.url is not None:
            settings["seed"] = request.seed  # the large services ignore it, or refuse it
        if request.effort is not None:
            settings["thinking"] = request.effort
        if request.caches_prefix and self._name.provider == "anthropic":
            settings["cache"] = True  # the others cache the beginning of a prompt unasked
        return settings

    def _output(self, request: ChatRequest) -> dict[str, Any]:
        """A schema, as the service's own feature; what refuses it is asked without (see `complete`)."""
        if request.schema is None:
            return {}
        definition = require("pydantic_ai.output", purpose="a schema")
        schema = dict(request.schema)
        strict = True if self._name.provider == "openai" else None
        target = definition.OutputObjectDefinition(json_schema=schema, name=request.role, strict=strict)
        return {"output_mode": "native", "output_object": target}

    def _read(self, response: Any, seconds: float) -> Reply:
        texts = [part.content for part in response.parts if isinstance(part, self._messages.TextPart)]
        if not all(isinstance(each, str) for each in texts):
            raise self._malformed(f"its text is {str(texts)[:60]!r}")
        text = self._without_key("".join(texts))  # a service that repeats it must not put it into the record
        reason, usage = response.finish_reason, _usage(response.usage)
        error: ModelError | None = None
        if reason == "content_filter":
            error = ModelRefused(f"{self.name} does not answer this request: its filter", hint="use another model")
        elif not text.strip() and reason != "length":
            error = ModelReplyMalformed(f"{self.name} replied with no text", hint="use another model")
        if error is not None:
            if usage.input_tokens is not None and usage.output_tokens is not None:
                error.tokens = usage.input_tokens, usage.output_tokens
                error.cost_usd = self._cost(response)
            raise error
        finish: Finish = reason if reason in ("stop", "length") else "other"
        return Reply(shortened(readable(text)), self.name, usage, self._cost(response), seconds, finish)

    def _cost(self, response: Any) -> float | None:
        """By the price list of the library; None for endpoints, models and figures that it does not know."""
        if self._name.url is not None:
            return None
        try:
            return float(response.cost().total_price)
        except _STUMBLES:
            return None

    # -- errors --------------------------------------------------------------------------------------------------

    def _explained(self, error: Exception) -> ModelError:
        unread = _unreadable_behind(error)
        if unread is not None:
            return self._malformed(self._words(unread))
        known = self._exceptions
        words = self._words(error)
        match error:
            case known.ModelAuthenticationError() | known.ModelNotFoundError():
                return ModelAuthFailed(
                    f"{self.name} cannot be used ({_status(error)})",
                    hint="check the model's name, and that the key in the environment is valid and may use it",
                )
            case known.ModelQuotaExceededError():
                return ModelAuthFailed(f"the account of {self.name} has no credit left: {words}", hint="add credit")
            case known.ModelRateLimitError():
                wait_s = _retry_after_s(error)
                wait = "" if wait_s is None else f", which asks for none in {wait_s:g} s"
                limited = ModelRateLimited(f"too many requests to {self.name}{wait}", hint="resume later")
                limited.retry_after_s = wait_s
                limited.tokens = (0, 0)
                return limited
            case known.ModelTimeoutError() | known.ModelRequestTimeout():
                return self._timed_out()
            case known.ModelConnectionError():
                return ModelUnavailable(f"{self.name} cannot be reached: {words}", hint="check the URL and the network")
            case known.ModelUnavailableError() | known.ModelServerError():
                failed = ModelUnavailable(f"{self.name} failed: {words}", hint="resume later")
                failed.retry_after_s = _retry_after_s(error)
                return failed
            case known.ModelRequestRejectedError() | known.ContentFilterError():
                return self._refused(words)
        return self._explained_by_status(error, words)

    def _explained_by_status(self, error: Exception, words: str) -> ModelError:
        """Errors that the library puts into no category."""
        status = getattr(error, "status_code", None)
        if status in (401, 403, 404):
            return ModelAuthFailed(f"{self.name} cannot be used ({status})", hint="check the name and the key")
        if status in (408, 504):
            return self._timed_out()
        if status is not None and status >= 500:
            return ModelUnavailable(f"{self.name} failed: {words}", hint="resume later")
        if status is not None:
            return self._refused(words)
        return self._malformed(words)

    def _refused(self, words: str) -> ModelRefused:
        refused = ModelRefused(f"{self.name} refuses the request: {words}", hint="use another model or setting")
        refused.tokens = (0, 0)
        return refused

    def _malformed(self, words: str) -> ModelReplyMalformed:
        return ModelReplyMalformed(f"the reply of {self.name} cannot be read: {words}", hint="use another model")

    def _abandoned(self) -> ModelAbandoned:
        return ModelAbandoned(f"{OUT_OF_TIME} before {self.name} had answered", hint="give more time")

    def _timed_out(self) -> ModelUnavailable:
        return ModelUnavailable(f"no reply of {self.name} in {self._timeout_s:g} s", hint="resume later")

    def _words(self, error: Exception) -> str:
        """The service's own words, short, and without the key, which some services repeat."""
        return self._without_key(" ".join(readable(str(error)).split()))[:MOST_CHARACTERS]

    def _without_key(self, text: str) -> str:
        """The text with stars for the key; a placeholder, such as `x`, may be a name in a kernel, which stays."""
        return text.replace(self._key, "***") if self._key and len(self._key) >= LEAST_KEY else text

    def close(self) -> None:
        """Give up what other threads wait for, and close the connections."""
        self._loop.cancel()
        if self._client is not None:
            client, self._client = self._client, None
            with contextlib.suppress(TimeoutError):
                self._loop.run(client.aclose(), timeout_s=CLOSE_TIMEOUT_S)
        self._loop.close()


class _LoopThread:
    """One event loop in a thread of its own, so that requests from several threads share connections."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="model-requests", daemon=True)
        self._thread.start()
        self._under_way: set[Future[Any]] = set()

    def run(self, work: Coroutine[Any, Any, Any], *, timeout_s: float | None = None) -> Any:
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the model is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._under_way.add(future)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()  # Ctrl-C must not leave a request running that is paid for; nothing once it is done
            self._under_way.discard(future)

    def cancel(self) -> None:
        """End what is under way; whoever waits for it gets `CancelledError`."""
        for future in tuple(self._under_way):
            future.cancel()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5)
            if not self._loop.is_running():
                self._loop.close()


def _usage(usage: Any) -> Usage:
    if not usage.input_tokens and not usage.output_tokens:
        return Usage()
    return Usage(int(usage.input_tokens), int(usage.cache_read_tokens or 0), int(usage.output_tokens))


def _status(error: Exception) -> str:
    return f"status {getattr(error, 'status_code', 'unknown')}"


def _retry_after_s(error: Exception) -> float | None:
    """What the service asks for, a day at most; None: it asks for nothing that is a time."""
    value = getattr(error, "retry_after", None)
    if value is None or math.isnan(value):
        return None
    return min(max(0.0, float(value)), LONGEST_HOLD_S)


def _unreadable_behind(error: BaseException | None) -> Unreadable | None:
    """Libraries take what their client raises for a connection that failed; why it did is behind it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, Unreadable):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
