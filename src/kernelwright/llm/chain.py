"""Retries, waits, deadlines, and the next provider when one fails; the pace of each model is kept (`llm.pace`)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.errors import ModelError, ModelRateLimited, ModelTimedOut, ModelUnavailable
from kernelwright.llm.base import ChatModel, ChatRequest, Reply
from kernelwright.llm.pace import Clock, Gates

_PASSING = (ModelRateLimited, ModelUnavailable, ModelTimedOut)
"""Failures that may be gone the next time; all others are the same again."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request is tried."""

    attempts: int = 4
    """At one provider. A guess."""
    first_wait_s: float = 1.0
    """Doubles with each attempt, and is spread by up to a half, so that requests in flight do not come back at once."""
    longest_wait_s: float = 60.0
    deadline_s: float = 900.0
    """For one request at all providers together; waiting for its turn does not count."""


@dataclass(slots=True)
class _Deadline:
    end_s: float


class ChainModel:
    """Asks the first model that answers."""

    def __init__(
        self,
        models: Sequence[ChatModel],
        *,
        patience: Patience | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        gates: Gates | None = None,
    ) -> None:
        """`gates` keep the pace of each model, also where other chains ask it."""
        if not models:
            raise ValueError("a chain needs at least one model")
        self._models = tuple(models)
        self._patience = patience or Patience()
        self._clock = clock or Clock()
        self._rng = rng or random.Random()
        self._gates = gates or Gates(clock=self._clock)

    @property
    def name(self) -> str:
        """All names, in order."""
        return ",".join(each.name for each in self._models)

    def complete(self, request: ChatRequest) -> Reply:
        """The reply of the first model that gives one.

        Raises:
            ModelError: none did; the last one's error, whose message says what all the others said.
        """
        told: list[str] = []
        last: ModelError | None = None
        deadline = _Deadline(self._clock.now_s() + self._patience.deadline_s)
        for model in self._models:
            try:
                return self._ask(model, request, deadline)
            except ModelError as error:
                told.append(f"{model.name}: {error.message}")
                last = error
        assert last is not None
        if len(told) > 1:
            last.message = "no model answered: " + "; ".join(told)
        raise last

    def _ask(self, model: ChatModel, request: ChatRequest, deadline: _Deadline) -> Reply:
        patience, attempt, gate = self._patience, 0, self._gates.of(model.name)
        while True:
            try:
                with gate.turn() as waited_s:
                    deadline.end_s += waited_s
                    return model.complete(request)
            except _PASSING as error:
                attempt += 1
                wait_s = self._wait_s(error, attempt)
                if isinstance(error, ModelRateLimited):
                    gate.hold(wait_s)  # what one thread is told holds for all
                if attempt >= patience.attempts or self._clock.now_s() + wait_s > deadline.end_s:
                    raise
                self._clock.sleep_s(wait_s)

    def _wait_s(self, error: ModelError, attempt: int) -> float:
        """What the service asks for, else longer each time."""
        asked_s = getattr(error, "retry_after_s", None)
        own_s = min(self._patience.first_wait_s * 2.0 ** (attempt - 1), self._patience.longest_wait_s)
        spread_s = own_s * (1 + self._rng.random() / 2)
        return spread_s if asked_s is None else max(float(asked_s), 0.0) + self._rng.random() * 0.1

    def close(self) -> None:
        """Close all of them."""
        for model in self._models:
            model.close()
