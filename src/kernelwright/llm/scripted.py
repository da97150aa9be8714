"""A model whose replies are written down: for tests, without a network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from kernelwright.errors import ModelUnavailable
from kernelwright.llm.base import ChatRequest, Reply, Usage

Answer = str | Reply | Exception
"""What a scripted model does: answer with a text or a whole reply, or raise."""


class ScriptedModel:
    """Answers in order, or by a function of the request; `requests` keeps what it was asked."""

    def __init__(self, answers: Sequence[Answer] | Callable[[ChatRequest], Answer], *, name: str = "scripted") -> None:
        self._answer = answers if callable(answers) else None
        self._waiting = [] if callable(answers) else list(answers)
        self._name = name
        self._lock = threading.Lock()
        self.requests: list[ChatRequest] = []

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    def complete(self, request: ChatRequest) -> Reply:
        """The next answer; `ModelUnavailable` when none is left."""
        with self._lock:
            self.requests.append(request)
            if self._answer is None and not self._waiting:
                raise ModelUnavailable(f"the script has no answer to request {len(self.requests)} ({request.role})")
            answer = self._answer(request) if self._answer else self._waiting.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Reply):
            return answer
        words = len(request.system.split()) + sum(len(each.text.split()) for each in request.messages)
        return Reply(answer, self._name, Usage(words, 0, len(answer.split())))

    def close(self) -> None:
        """Nothing to give back."""
