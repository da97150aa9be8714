"""Every request and reply on disk: so a run can be replayed, and a resumed run does not pay twice.

One exchange is one line of JSON with a checksum. A torn last line (a crash, a full disk) is cut off; other damage is
refused. Requests hold no key and no header, so neither does the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from kernelwright.errors import Location, ModelReplyMissing, StoreError
from kernelwright.json_text import read_json_text
from kernelwright.llm.base import (
    FAILURES,
    ChatModel,
    ChatRequest,
    Effort,
    Finish,
    Message,
    Reply,
    Usage,
    answer_of,
    failed_reply,
    readable,
)

FILE_NAME = "replies.jsonl"
"""In a run folder."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request with its reply."""

    request: ChatRequest
    reply: Reply


def encode(exchange: Exchange) -> bytes:
    """One line, newline included."""
    request = dataclasses.asdict(exchange.request)
    if request["seed"] is None:
        del request["seed"]  # as it was written before there were seeds
    data: dict[str, Any] = {
        "id": exchange.request.id,
        "request": request,
        "reply": dataclasses.asdict(exchange.reply),
    }
    if not exchange.reply.failure:
        del data["reply"]["failure"]  # as it was written before failures were
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return f"{zlib.crc32(text.encode()):08x} {text}\n".encode()


def decode(line: bytes) -> Exchange | None:
    """The exchange of one line; None when the line is not what was written."""
    try:
        checksum, _, text = line.decode("ascii").rstrip("\n").partition(" ")
        if checksum != f"{zlib.crc32(text.encode()):08x}":
            return None
        data = read_json_text(text)
        return Exchange(_request(data["request"]), _reply(data["reply"]))
    except (ValueError, KeyError, TypeError):
        return None


def _request(data: Mapping[str, Any]) -> ChatRequest:
    messages = tuple(Message(each["role"], readable(each["text"])) for each in data["messages"])
    return ChatRequest(
        role=data["role"],
        system=data["system"],
        messages=messages,
        temperature=data["temperature"],
        effort=cast("Effort | None", data["effort"]),
        max_tokens=data["max_tokens"],
        schema=data["schema"],
        caches_prefix=data["caches_prefix"],
        shared_characters=data.get("shared_characters", 0),
        sample=data["sample"],
        seed=data.get("seed"),
        node=data["node"],
    )


def _reply(data: Mapping[str, Any]) -> Reply:
    failure = data.get("failure", "")
    if failure and failure not in FAILURES:
        raise ValueError(failure)
    return Reply(
        text=readable(data["text"]),
        model=data["model"],
        usage=Usage(**data["usage"]),
        cost_usd=data["cost_usd"],
        seconds=data["seconds"],
        finish=cast("Finish", data["finish"]),
        failure=failure,
    )


def read_exchanges(path: Path) -> tuple[tuple[Exchange, ...], int]:
    """The whole exchanges of a file, in order, and how many bytes they are; what a crash left of a last one is not.

    Raises:
        StoreError: the file cannot be read, or a line before the last is damaged.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return (), 0
    except OSError as error:
        raise StoreError(f"the recorded replies cannot be read: {error}", location=Location(path)) from error
    found, size_bytes = [], 0
    for index, line in enumerate(lines):
        exchange = decode(line) if line.endswith(b"\n") else None
        if exchange is None:
            if index < len(lines) - 1:
                raise StoreError(
                    "this recorded reply is damaged",
                    hint="restore the file from a copy of the run folder",
                    location=Location(path, index + 1),
                )
            break
        found.append(exchange)
        size_bytes += len(line)
    return tuple(found), size_bytes


class ExchangeLog:
    """The exchanges of one run, in one file; safe to use from several threads of one process."""

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        """Read what is there.

        Raises:
            StoreError: it cannot be read, or is damaged before its last line.
        """
        self.path = path
        self._is_writable = writable
        self._lock = threading.Lock()
        self._exchanges, self._size_bytes = map(_listed, read_exchanges(path))
        self._by_id: dict[str, Reply] = {}
        for each in self._exchanges:
            self._by_id.setdefault(each.request.id, each.reply)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """In the order in which the replies came."""
        with self._lock:
            return tuple(self._exchanges)

    def lookup(self, request: ChatRequest) -> Reply | None:
        """The reply to this very request, None: not recorded."""
        with self._lock:
            return self._by_id.get(request.id)

    def append(self, exchange: Exchange) -> None:
        """Record one exchange; on the disk when it returns.

        Raises:
            StoreError: it cannot be written; the file is as it was.
        """
        if not self._is_writable:
            raise StoreError("the recording was opened for reading", location=Location(self.path))
        data = encode(exchange)
        with self._lock:
            try:
                self._write(data)
            except OSError as error:
                raise StoreError(f"a reply cannot be recorded: {error}", location=Location(self.path)) from error
            self._size_bytes += len(data)
            self._exchanges.append(exchange)
            self._by_id.setdefault(exchange.request.id, exchange.reply)

    def _write(self, data: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, self._size_bytes)  # what a crash left of a line
            os.lseek(descriptor, self._size_bytes, os.SEEK_SET)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, self._size_bytes)
            raise
        finally:
            os.close(descriptor)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class RecordedModel:
    """Answers from a recording; what is not in it is asked for, and recorded before anyone hears of it.

    So are failures that a run takes for an answer (`llm.base.FAILURES`); after all others the same is asked again.
    """

    def __init__(self, recording: ExchangeLog, model: ChatModel | None) -> None:
        """`model` None: a replay, which asks nobody."""
        self._recording = recording
        self._model = model
        self._lock = threading.Lock()
        self._in_flight: dict[str, Future[Reply]] = {}

    @property
    def name(self) -> str:
        """The model's, or `replay`."""
        return self._model.name if self._model is not None else "replay"

    def complete(self, request: ChatRequest) -> Reply:
        """The recorded reply, bit for bit, or a new one.

        The same request twice at the same time is asked once.

        Raises:
            ModelReplyMissing: a replay, and this request was not recorded.
            ModelError: as the model raises.
            StoreError: the reply cannot be recorded.
        """
        if self._model is None:
            known = self._recording.lookup(request)
            if known is None:
                raise self._missing(request)
            return answer_of(known)
        with self._lock:
            known = self._recording.lookup(request)
            if known is not None:
                return answer_of(known)
            running = self._in_flight.get(request.id)
            own = running is None
            future: Future[Reply] = running or Future()
            self._in_flight[request.id] = future
        return self._asked(request, future) if own else future.result()

    def _asked(self, request: ChatRequest, future: Future[Reply]) -> Reply:
        assert self._model is not None
        with contextlib.ExitStack() as after:
            after.callback(self._forget, request)
            after.push(functools.partial(_hand_on, future))
            try:
                reply = self._model.complete(request)
            except tuple(FAILURES.values()) as error:
                self._recording.append(Exchange(request, failed_reply(error, self._model.name)))
                raise
            self._recording.append(Exchange(request, reply))
            future.set_result(reply)
        return reply

    def _forget(self, request: ChatRequest) -> None:
        with self._lock:
            self._in_flight.pop(request.id, None)

    def _missing(self, request: ChatRequest) -> ModelReplyMissing:
        return _missing(self._recording, request)

    def close(self) -> None:
        """Close the model."""
        if self._model is not None:
            self._model.close()


def _hand_on(
    future: Future[Reply],
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
) -> None:
    """Whoever waits for the same reply must hear of an error, an interrupt too."""
    if error is not None:
        future.set_exception(error)


def _missing(recording: ExchangeLog, request: ChatRequest) -> ModelReplyMissing:
    same = [each for each in recording.exchanges if each.request.role == request.role]
    return ModelReplyMissing(
        f"no recorded reply to this {request.role} request {request.id} (of {len(same)} {request.role} replies)",
        hint="a replay needs the version, the problem, the settings and the measurements of the recorded run",
    )


class ReplayedModel:
    """Answers a whole run from its recording, also where a request is worded otherwise than it was, and says so.

    A request that is not recorded word by word gets the next reply that was recorded for the same role, node and turn:
    what was decided can then still be repeated after a prompt has changed.
    """

    def __init__(self, recording: ExchangeLog, tell: Callable[[str], None]) -> None:
        """`tell` hears of every request that is not as it was."""
        self._recording = recording
        self._tell = tell
        self._lock = threading.Lock()
        self._used: set[int] = set()

    @property
    def name(self) -> str:
        """`replay`."""
        return "replay"

    def complete(self, request: ChatRequest) -> Reply:
        """The recorded reply.

        Raises:
            ModelReplyMissing: there is none for this role, node and turn.
        """
        with self._lock:
            exchanges = self._recording.exchanges
            exact = [at for at, each in enumerate(exchanges) if each.request.id == request.id]
            alike = [
                at
                for at, each in enumerate(exchanges)
                if at not in self._used and _place(each.request) == _place(request)
            ]
            found = next(iter([*exact, *alike]), None)
            if found is None:
                raise self._not_asked(request)
            self._used.add(found)
            if not exact:
                self._tell(_otherwise(exchanges[found].request, request))
            return answer_of(exchanges[found].reply)

    def _not_asked(self, request: ChatRequest) -> ModelReplyMissing:
        """Names the question, and the one that the record has in its place."""
        left = (each for at, each in enumerate(self._recording.exchanges) if at not in self._used)
        then = next((_question(each.request) for each in left), "no more")
        return ModelReplyMissing(f"{_question(request)} is asked, which the recorded run did not ask; it asked {then}")

    def followed_by(self, request: ChatRequest, reply: Reply) -> str | None:
        """What the recorded run said next in this conversation; None: nothing, the reply was taken."""
        turns, place = len(request.messages), _place(request)[:3]
        for each in self._recording.exchanges:
            messages = each.request.messages
            if _place(each.request)[:3] == place and len(messages) == turns + 2 and messages[turns].text == reply.text:
                return messages[-1].text
        return None

    def close(self) -> None:
        """Nothing to give back."""


def _place(request: ChatRequest) -> tuple[str, int | None, int, int]:
    return request.role, request.node, request.sample, len(request.messages)


def _question(request: ChatRequest) -> str:
    """Which it is, as a person says it."""
    turn = len(request.messages) // 2 + 1
    again = f", turn {turn}" if turn > 1 else ""
    return f"the {request.role} question for node {request.node}{again}"


def _otherwise(recorded: ChatRequest, request: ChatRequest) -> str:
    """Where a request first differs from the recorded one."""
    what = f"the {request.role} request for node {request.node} is not worded as it was"
    for old, new in ((recorded.system, request.system), *_texts(recorded, request)):
        for number, (before, now) in enumerate(zip(old.splitlines(), new.splitlines(), strict=False), 1):
            if before != now:
                return f"{what}; first at line {number}: recorded {before[:80]!r}, now {now[:80]!r}"
        if old != new:
            return f"{what}; one is longer than the other"
    return f"{what} in its settings"


def _texts(recorded: ChatRequest, request: ChatRequest) -> list[tuple[str, str]]:
    return [(a.text, b.text) for a, b in zip(recorded.messages, request.messages, strict=False)]
