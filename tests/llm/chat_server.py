"""A small OpenAI-compatible server in this process, whose answers are a list."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """What the server does with one request."""

    text: str = "fine"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | bytes | None = None
    """Instead of a completion."""
    finish: str = "stop"
    usage: dict[str, Any] | None = field(
        default_factory=lambda: {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 64},
        }
    )
    delay_s: float = 0.0
    beside: int = 0
    """So many others must have come in before it is answered."""
    is_silent: bool = False
    """Nothing comes until the server is closed."""
    stops_after: int | None = None
    """Bytes of the body; then nothing comes until the server is closed."""


class ChatServer:
    def __init__(self, answers: list[Answer] | Callable[[dict[str, Any]], Answer]) -> None:
        """Answers in this order, or as a function of the request's body says."""
        self.answer_to = answers if callable(answers) else None
        self.answers = [] if callable(answers) else list(answers)
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.is_over = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with server.lock:
                    server.requests.append({"path": self.path, **body})
                    server.keys.append(self.headers.get("authorization", ""))
                    if server.answer_to is not None:
                        answer = server.answer_to(body)
                    else:
                        answer = server.answers.pop(0) if server.answers else Answer()
                    server.in_flight += 1
                    server.most_in_flight = max(server.most_in_flight, server.in_flight)
                while len(server.requests) <= answer.beside and not server.is_over.is_set():
                    time.sleep(0.01)
                time.sleep(answer.delay_s)
                if answer.is_silent:
                    server.is_over.wait()
                with server.lock:
                    server.in_flight -= 1
                text = answer.body if answer.body is not None else completion(answer, body)
                data = text if isinstance(text, bytes) else text.encode()
                try:
                    self.send_response(answer.status)
                    for name, value in {"content-type": "application/json", **answer.headers}.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data[: answer.stops_after])
                    if answer.stops_after is not None:
                        self.wfile.flush()
                        server.is_over.wait()
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client has given up

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def close(self) -> None:
        self.is_over.set()
        self._http.shutdown()
        self._http.server_close()


def completion(answer: Answer, body: dict[str, Any]) -> str:
    message = {"role": "assistant", "content": answer.text}
    choice = {"index": 0, "message": message, "finish_reason": answer.finish}
    return json.dumps(
        {
            "id": "chat-1",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": body.get("model"),
            "choices": [choice],
            "usage": answer.usage,
        }
    )


@contextmanager
def answering_server(answer_to: Callable[[dict[str, Any]], Answer]) -> Iterator[ChatServer]:
    """A server whose answers are a function of the request's body."""
    server = ChatServer(answer_to)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def chat_server(*answers: Answer) -> Iterator[ChatServer]:
    server = ChatServer(list(answers))
    try:
        yield server
    finally:
        server.close()
