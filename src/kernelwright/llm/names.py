"""Names of models: `PROVIDER:NAME`, `openai:NAME@URL`, and several with commas, the first that works."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from urllib.parse import urlsplit

from kernelwright import knobs
from kernelwright.errors import UsageError

PROVIDERS = ("openai", "anthropic", "google")


@dataclass(frozen=True, slots=True)
class ModelName:
    """One model at one service."""

    provider: str
    name: str
    url: str | None = None
    """Base URL of an endpoint that is compatible with OpenAI's; None: the provider's own."""

    def __str__(self) -> str:
        """As a person writes it."""
        return f"{self.provider}:{self.name}" + (f"@{self.url}" if self.url else "")


def parse_models(text: str) -> tuple[ModelName, ...]:
    """The models that a text names, in the order in which they are asked.

    Raises:
        UsageError: it is no such text.
    """
    return tuple(parse_model(each.strip()) for each in text.split(","))


def parse_model(text: str) -> ModelName:
    """One model; `openai:NAME` takes the base URL of `KERNELWRIGHT_MODEL_URL`, where that is set.

    Raises:
        UsageError: the provider is unknown, the name is missing, or the URL is none.
    """
    provider, colon, rest = text.partition(":")
    if not colon or provider not in PROVIDERS:
        near = difflib.get_close_matches(provider, PROVIDERS, 1, 0.5)
        raise UsageError(
            f"there is no model {text!r}, expected rules or PROVIDER:NAME",
            hint=f"did you mean {near[0]}:NAME?" if near else f"providers are {', '.join(PROVIDERS)}",
        )
    name, at, url = rest.partition("@")
    if not name or not name.isprintable() or " " in name:
        raise UsageError(f"{text!r} names no model", hint=f"say {provider}:NAME, NAME as the service calls it")
    if not at:
        own = knobs.model_url() if provider == "openai" else None
        return ModelName(provider, name, _checked_url(own) if own else None)
    if provider != "openai":
        raise UsageError(f"{provider} takes no URL, given {url!r}", hint="say openai:NAME@URL for an endpoint of yours")
    return ModelName(provider, name, _checked_url(url))


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not the URL of an endpoint", hint="e.g. http://localhost:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        # The name is written into the run folder; whatever is secret must not be in it.
        raise UsageError(
            "the URL of a model holds more than host, port and path",
            hint="put a key into KERNELWRIGHT_MODEL_KEY, not into the URL",
        )
    return url.rstrip("/")
