"""Retries, waits, deadlines, and the next provider when one fails; the pace of each model is kept (`llm.pace`).

A model that may not be asked for longer than is worth a wait is passed over for the next one:

```
               the next is asked after    with no other                   never
hold           60 s                       900 s                           beyond what the run has left
retries        4, or 900 s                the same
```
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernelwright.errors import ModelAbandoned, ModelBudgetSpent, ModelError, ModelRateLimited, ModelUnavailable
from kernelwright.llm.base import ChatModel, ChatRequest, Reply, add_paid, with_paid
from kernelwright.llm.pace import LONGEST_HOLD_S, Clock, Gate, Gates, NotYet

_PASSING = (ModelRateLimited, ModelUnavailable)
"""Failures that may be gone the next time; all others are the same again."""

OUT_OF_TIME = "the time of the run is over"
"""What is said where nothing more is asked because of it."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request is tried."""

    attempts: int = 4
    """At one provider. A guess."""
    first_wait_s: float = 1.0
    """Doubles with each attempt, and is spread by up to a half, so that requests in flight do not come back at once."""
    longest_wait_s: float = 60.0
    """Between two attempts, where the service does not say; and where it does, while another model can be asked."""
    deadline_s: float = 900.0
    """For one request at all providers together; waiting for its turn does not count. No hold is waited for longer."""


@dataclass(slots=True)
class _Asking:
    """What is known while one request is tried."""

    end_s: float
    passed_over: list[ChatModel] = field(default_factory=list)
    """Those that asked for a longer hold than was worth a wait then; it may be short by now."""
    failed: list[ModelError] = field(default_factory=list)
    """What was paid for and came to nothing is counted to the reply, or to the last error."""


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
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Ask nobody yet.

        Args:
            models: in the order in which they are asked.
            patience: how long a request is tried.
            clock: tells the time, and sleeps.
            rng: spreads waits.
            gates: keep the pace of each model, also where other chains ask it.
            left_s: seconds that the run has left; no wait is longer.
        """
        if not models:
            raise ValueError("a chain needs at least one model")
        self._models = tuple(models)
        self._patience = patience or Patience()
        self._clock = clock or Clock()
        self._rng = rng or random.Random()
        self._gates = gates or Gates(clock=self._clock)
        self._left_s = left_s

    @property
    def name(self) -> str:
        """All names, in order."""
        return ",".join(each.name for each in self._models)

    def complete(self, request: ChatRequest) -> Reply:
        """The reply of the first model that gives one.

        Raises:
            ModelBudgetSpent: the time of the run was over, or would be before a model may be asked.
            ModelError: none did; the last one's error, whose message says what all the others said.
        """
        told: dict[str, ModelError] = {}
        asking = _Asking(self._clock.now_s() + self._patience.deadline_s)
        longest_s = self._patience.longest_wait_s if len(self._models) > 1 else self._patience.deadline_s
        for model in self._models:
            try:
                return self._ask(model, request, asking, longest_s)
            except ModelAbandoned:
                raise
            except ModelError as error:
                told[model.name] = error
        for model in tuple(asking.passed_over) if len(self._models) > 1 else ():
            try:  # nobody else has answered: now it is worth a longer wait
                return self._ask(model, request, asking, self._patience.deadline_s)
            except ModelAbandoned:
                raise
            except ModelError as error:
                told[model.name] = error
        last = _last_of(told)
        add_paid(last, [each for each in asking.failed if each is not last])
        raise last

    def _ask(self, model: ChatModel, request: ChatRequest, asking: _Asking, longest_s: float) -> Reply:
        """Try one model, and wait for it, but for no hold that is longer than that."""
        patience, attempt, gate = self._patience, 0, self._gates.of(model.name)
        while True:
            if self._left_s() <= 0:
                raise ModelBudgetSpent(f"{OUT_OF_TIME}: {model.name} is not asked", hint="give more time")
            try:
                with gate.turn(self._left_s(), most_held_s=longest_s) as waited_s:
                    asking.end_s += waited_s
                    return with_paid(model.complete(request), asking.failed)
            except NotYet as error:
                if error.is_held:
                    asking.passed_over.append(model)
                raise self._too_late(model, gate, error) from None
            except ModelError as error:
                asking.failed.append(error)
                if not isinstance(error, _PASSING):
                    raise
                attempt += 1
                wait_s = self._wait_s(error, attempt)
                if isinstance(error, ModelRateLimited):
                    gate.hold(wait_s)  # what one thread is told holds for all
                    if wait_s > longest_s:
                        asking.passed_over.append(model)
                is_late = wait_s > longest_s or self._clock.now_s() + wait_s > asking.end_s
                if attempt >= patience.attempts or is_late:
                    raise
                if wait_s > self._left_s():
                    words = f"{OUT_OF_TIME} before {model.name} can be asked again in {wait_s:.0f} s: {error.message}"
                    raise ModelBudgetSpent(words, hint="give more time") from None
                self._clock.sleep_s(wait_s)

    def _too_late(self, model: ChatModel, gate: Gate, error: NotYet) -> ModelError:
        if not error.is_held:
            return ModelBudgetSpent(f"{OUT_OF_TIME} before it is the turn of {model.name}", hint="give more time")
        limited = ModelRateLimited(
            f"{model.name} asked for no request for another {gate.held_s:.0f} s",
            hint="resume later, or name a model that is asked instead: --model A,B",
        )
        limited.retry_after_s = gate.held_s
        return limited

    def _wait_s(self, error: ModelError, attempt: int) -> float:
        """What the service asks for, a day at most; else longer each time."""
        asked_s = getattr(error, "retry_after_s", None)
        own_s = min(self._patience.first_wait_s * 2.0 ** (attempt - 1), self._patience.longest_wait_s)
        spread_s = min(own_s * (1 + self._rng.random() / 2), self._patience.longest_wait_s)
        if asked_s is None or math.isnan(asked_s):
            return spread_s
        return min(max(float(asked_s), 0.0), LONGEST_HOLD_S) + self._rng.random() * 0.1

    def close(self) -> None:
        """Close all of them."""
        for model in self._models:
            model.close()


def _last_of(told: dict[str, ModelError]) -> ModelError:
    """The error of a chain: of the time that is over, if that was one, else the last."""
    errors = list(told.values())
    chosen = next((each for each in errors if isinstance(each, ModelBudgetSpent)), errors[-1])
    if len(told) > 1:
        chosen.message = "no model answered: " + "; ".join(f"{name}: {each.message}" for name, each in told.items())
    return chosen
