"""The seam to language models.

```
reply = model.complete(ChatRequest("plan", system, (Message("user", text),), max_tokens=4000))
reply.text, reply.usage.output_tokens, reply.cost_usd        # None where the service does not tell
```

`complete` blocks; several threads may call it at once. It raises a `ModelError` whose class says what to do. Wrappers
of the same shape add what a run needs:

```
RecordedModel( AccountedModel( ChainModel( [provider, fallback] )))
  a reply that      caps, and     retries, waits,
  was paid for      who spent     the next provider
  is not asked      what
  for again
```
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol

from kernelwright.errors import (
    ModelAbandoned,
    ModelBudgetSpent,
    ModelError,
    ModelRefused,
    ModelReplyMalformed,
)
from kernelwright.identity import content_id

MOST_REPLY_CHARACTERS = 200_000
"""So many of a reply are kept; a longer one is no answer that anything here asks for."""

Effort = Literal["minimal", "low", "medium", "high"]
EFFORTS: tuple[Effort, ...] = ("minimal", "low", "medium", "high")

Finish = Literal["stop", "length", "other"]
"""Why a reply ends: the model was done, the limit of tokens cut it off, or something else."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a model is asked."""

    role: str
    """Who asks, for the accounts: `plan`, `code`, `debug`, `template`, `analyse`."""
    system: str
    messages: tuple[Message, ...]
    """From the user's first to the user's last."""
    temperature: float | None = None
    """None: the model's own; models that reason often take no other."""
    effort: Effort | None = None
    """How hard a model that reasons should think; None: its own."""
    max_tokens: int = 16_000
    schema: Mapping[str, Any] | None = None
    """JSON schema that the reply should follow, where the model can be told; the reply is parsed all the same."""
    caches_prefix: bool = True
    """Whether the beginning (system text and first message) comes again soon."""
    shared_characters: int = 0
    """How much of the first message other requests begin with too; for caches, not part of the identity."""
    sample: int = 0
    """Counts requests that are the same and shall have replies of their own."""
    seed: int | None = None
    """The run's seed, for services that draw by one; all requests share it, so it is not part of the identity."""
    node: int | None = None
    """The tree's node, for the accounts; not part of the identity."""

    @property
    def id(self) -> str:
        """Content id of everything that the reply may depend on, but for who answers."""
        return content_id(
            self.role,
            self.system,
            self.messages,
            self.temperature,
            self.effort,
            self.max_tokens,
            self.schema,
            self.sample,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply; None: the service does not say."""

    input_tokens: int | None = None
    """All of the request, those from the cache included."""
    cached_tokens: int | None = None
    """Tokens of the request that came from the service's cache."""
    output_tokens: int | None = None

    @property
    def total_tokens(self) -> int | None:
        """Request and reply; None: unknown."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered."""

    text: str
    model: str
    """Who answered, e.g. `openai:gpt-5`."""
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    """None: unknown, which is not nothing."""
    seconds: float = 0.0
    finish: Finish = "stop"
    failure: str = ""
    """Name of the error that there was instead of a reply, which `text` then tells; see `FAILURES`."""


FAILURES: Mapping[str, type[ModelError]] = MappingProxyType(
    {each.__name__: each for each in (ModelAbandoned, ModelBudgetSpent, ModelRefused, ModelReplyMalformed)}
)
"""Errors that a run takes for an answer, and goes on: they are recorded, so that a replay meets them too."""


def failed_reply(error: ModelError, model: str) -> Reply:
    """How an error of `FAILURES` is recorded and counted."""
    usage, cost_usd = Usage(), None
    if error.tokens is not None:
        usage = Usage(error.tokens[0], 0, error.tokens[1])
        cost_usd = error.cost_usd if any(error.tokens) else 0.0
    return Reply(readable(error.message), model, usage, cost_usd, error.seconds, "other", type(error).__name__)


def with_paid(reply: Reply, failed: Iterable[ModelError]) -> Reply:
    """The reply, with the tokens and the price of what came to nothing before it, as far as tokens were told."""
    inputs, outputs, cost_usd = _paid_for(failed)
    if not inputs and not outputs:
        return reply
    usage = replace(
        reply.usage,
        input_tokens=None if reply.usage.input_tokens is None else reply.usage.input_tokens + inputs,
        output_tokens=None if reply.usage.output_tokens is None else reply.usage.output_tokens + outputs,
    )
    total_usd = None if reply.cost_usd is None or cost_usd is None else reply.cost_usd + cost_usd
    return replace(reply, usage=usage, cost_usd=total_usd)


def add_paid(error: ModelError, failed: Iterable[ModelError]) -> None:
    """Count to an error whose own tokens are known what came to nothing before it."""
    if error.tokens is None:
        return
    inputs, outputs, cost_usd = _paid_for((error, *failed))
    error.tokens, error.cost_usd = (inputs, outputs), cost_usd


def _paid_for(failed: Iterable[ModelError]) -> tuple[int, int, float | None]:
    """Tokens in and out, and their price, if that of all of them is known."""
    told = [(error.tokens, error.cost_usd) for error in failed if error.tokens is not None and any(error.tokens)]
    prices = [cost_usd for _, cost_usd in told if cost_usd is not None]
    total_usd = sum(prices) if len(prices) == len(told) else None
    return sum(tokens[0] for tokens, _ in told), sum(tokens[1] for tokens, _ in told), total_usd


def answer_of(reply: Reply) -> Reply:
    """The reply.

    Raises:
        ModelError: it stands for that error.
    """
    if reply.failure:
        raise FAILURES[reply.failure](reply.text)
    return reply


def readable(text: str) -> str:
    """The text with a replacement character for each unpaired surrogate, which no request and no file can hold."""
    return _HALVES.sub("\N{REPLACEMENT CHARACTER}", text)


def shortened(text: str, most: int = MOST_REPLY_CHARACTERS) -> str:
    """The beginning of a text that is longer than this, with a mark; any other text as it is."""
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} more characters are left out]"


_HALVES = re.compile("[\ud800-\udfff]")


class ChatModel(Protocol):
    """Answers requests; safe to call from several threads."""

    @property
    def name(self) -> str:
        """As `--model` says it."""
        ...

    def complete(self, request: ChatRequest) -> Reply:
        """The reply to one request.

        Raises:
            ModelError: there is none; the class says why, the hint what to do.
        """
        ...

    def close(self) -> None:
        """Give connections and threads back; the model answers no more."""
        ...
