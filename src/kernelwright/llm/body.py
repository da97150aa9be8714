"""What a service sends, before a library reads it: bounded in bytes and depth, and of a shape that libraries read.

```
client = httpx.AsyncClient(event_hooks={"response": [guard(httpx, tidied=completion)]})
```
Libraries unpack and parse whatever comes: two gigabytes that arrived as two megabytes, lists nested fifty thousand
deep, a completion without choices. None of that reaches them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeGuard

from kernelwright.json_text import read_json_text

MOST_BODY_BYTES = 8 * 2**20
"""The largest answer, packed and unpacked: forty times what is kept of a reply."""

MOST_ERROR_BYTES = 2**16
"""The largest answer that tells of a failure; the rest is left out."""

MOST_DEPTH = 100
"""The deepest nesting of lists and objects; what a service wraps a text in has ten."""

MOST_COUNT = 2**53
"""Tokens, and seconds since 1970, beyond which a number is none."""

_PACKED = ("", "identity", "gzip", "deflate")

Tidy = Callable[[dict[str, Any]], None]
"""Mends an answer in place, or raises `Unreadable`."""


class Unreadable(Exception):
    """An answer that is not handed to a library; the message says why."""


def guard(httpx: Any, tidied: Tidy) -> Callable[[Any], Awaitable[None]]:
    """A hook for responses of a client of the library `httpx`: whoever reads one reads it bounded and tidied.

    Answers that are no success are cut off where they are too long. Reading raises `Unreadable` for the others.
    """
    stream = type("GuardedStream", (_Guarded, httpx.AsyncByteStream), {})

    async def hook(response: Any) -> None:
        response.stream = stream(response, tidied)

    return hook


class _Guarded:
    """The stream of a response, read as a whole before any of it is given on."""

    def __init__(self, response: Any, tidied: Tidy) -> None:
        self._raw = response.stream
        self._tidied = tidied
        self._is_success = 200 <= response.status_code < 300
        self._packing = response.headers.get("content-encoding", "").strip().lower()
        if self._packing:
            del response.headers["content-encoding"]  # it is unpacked here, within bounds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if not self._is_success:
            body = await self._of_failure()
        else:
            body = readable_answer(await self._body(MOST_BODY_BYTES), self._tidied)
        if body:
            yield body

    async def _of_failure(self) -> bytes:
        try:
            return await self._body(MOST_ERROR_BYTES)
        except Unreadable:
            return b""

    async def _body(self, most: int) -> bytes:
        if self._packing not in _PACKED:
            raise Unreadable(f"it is packed as {self._packing[:40]!r}, which was not asked for")
        bag = _Bag(most, is_packed=self._packing in ("gzip", "deflate"))
        async for chunk in self._raw:
            bag.add(chunk)
        return bytes(bag.unpacked)

    async def aclose(self) -> None:
        await self._raw.aclose()


class _Bag:
    """Bytes of at most so many, packed or not."""

    def __init__(self, most: int, *, is_packed: bool) -> None:
        self.unpacked = bytearray()
        self._most = most
        self._read = 0
        self._unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32) if is_packed else None

    def add(self, chunk: bytes) -> None:
        self._read += len(chunk)
        if self._unpacker is not None:
            try:
                chunk = self._unpacker.decompress(chunk, self._most + 1 - len(self.unpacked))
            except zlib.error as error:
                raise Unreadable(f"it cannot be unpacked: {error}") from None
        self.unpacked += chunk
        if max(self._read, len(self.unpacked)) > self._most:
            raise Unreadable(f"it is longer than {self._most} bytes, the most that is read")


def readable_answer(body: bytes, tidied: Tidy) -> bytes:
    """The JSON object of an answer as a library may read it.

    Raises:
        Unreadable: it is none, or nested too deeply, or `tidied` finds nothing that it can mend.
    """
    try:
        data = read_json_text(body)
    except ValueError:
        raise Unreadable(f"it is no JSON: {body[:60]!r}") from None
    if not isinstance(data, dict):
        raise Unreadable(f"it is a JSON {type(data).__name__}, expected an object")
    if _is_deeper(data, MOST_DEPTH):
        raise Unreadable(f"its JSON is nested more than {MOST_DEPTH} deep")
    tidied(data)
    return json.dumps(data).encode()


def _is_deeper(data: Any, most: int) -> bool:
    level = [data]
    for _ in range(most):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


# -- shapes


def completion(data: dict[str, Any]) -> None:
    """OpenAI's chat completions, and what calls itself compatible.

    Raises:
        Unreadable: there is no choice with a message.
    """
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices:
        raise Unreadable(f"its choices are {str(choices)[:60]!r}, expected a list with a message")
    for choice in choices:
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            raise Unreadable(f"its choice is {str(choice)[:60]!r}, expected a message")
        for name in ("reasoning", "reasoning_content"):
            if not isinstance(message.get(name, ""), str):
                del message[name]
    if not _is_count(data.get("created")):
        data["created"] = 0
    usage = data.get("usage")
    if not _are_counts(usage, needed=("prompt_tokens", "completion_tokens"), used=("cached_tokens",)):
        data["usage"] = None
    elif not _is_count(usage.get("total_tokens")):
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


def anthropic_message(data: dict[str, Any]) -> None:
    """Anthropic's messages."""
    cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
    if not _are_counts(data.get("usage"), needed=("input_tokens", "output_tokens"), used=cached):
        data["usage"] = {"input_tokens": 0, "output_tokens": 0}


def google_content(data: dict[str, Any]) -> None:
    """Google's generated content."""
    asked = ("promptTokenCount", "toolUsePromptTokenCount", "cachedContentTokenCount")
    if not _are_counts(data.get("usageMetadata"), used=(*asked, "candidatesTokenCount", "thoughtsTokenCount")):
        data.pop("usageMetadata", None)


def _are_counts(usage: Any, *, needed: tuple[str, ...] = (), used: tuple[str, ...] = ()) -> TypeGuard[dict[str, Any]]:
    """Whether the tokens that are counted can be; all else that is said of tokens and is no count is taken out.

    Services tell of rates there, too, and of counts as `11.0`, which become whole.
    """
    if not isinstance(usage, dict):
        return False
    can_be = True
    details = [value for name, value in usage.items() if _is_of_tokens(name) and isinstance(value, dict)]
    for counts, is_detail in [(usage, False), *((each, True) for each in details)]:
        for name in [each for each in counts if is_detail or _is_of_tokens(each)]:
            value = counts[name]
            if isinstance(value, float) and value.is_integer():
                counts[name] = int(value)
            if _is_count(counts[name]) or value is None:
                continue
            if name in needed or name in used:
                can_be = False
            elif is_detail or not isinstance(value, dict | list):
                del counts[name]
    return can_be and all(_is_count(usage.get(name)) for name in needed)


def _is_of_tokens(name: str) -> bool:
    return "token" in name.lower()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNT
