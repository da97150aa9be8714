"""Who spent what: tokens, money and seconds by role and node, with caps."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kernelwright.errors import ModelBudgetSpent
from kernelwright.llm.base import FAILURES, ChatModel, ChatRequest, Reply, failed_reply


@dataclass(frozen=True, slots=True)
class Spent:
    """A sum over replies."""

    requests: int = 0
    failed: int = 0
    """Requests without a usable reply."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    unknown_tokens: int = 0
    """Replies that do not say how many tokens they were; they are missing in the sums."""
    known_cost_usd: float = 0.0
    """The cost of the replies whose price is known."""
    unknown_costs: int = 0
    """Replies whose price is not known."""
    seconds: float = 0.0
    """Seconds of waiting for models; requests in flight at the same time count each."""

    @property
    def cost_usd(self) -> float | None:
        """None when the price of any reply is unknown."""
        return None if self.unknown_costs else self.known_cost_usd

    @property
    def tokens(self) -> int:
        """The tokens of requests and replies, as far as known."""
        return self.input_tokens + self.output_tokens

    def plus(self, reply: Reply) -> Spent:
        """With one more reply."""
        usage = reply.usage
        return Spent(
            requests=self.requests + 1,
            failed=self.failed + bool(reply.failure),
            input_tokens=self.input_tokens + (usage.input_tokens or 0),
            cached_tokens=self.cached_tokens + (usage.cached_tokens or 0),
            output_tokens=self.output_tokens + (usage.output_tokens or 0),
            unknown_tokens=self.unknown_tokens + (usage.total_tokens is None),
            known_cost_usd=self.known_cost_usd + (reply.cost_usd or 0.0),
            unknown_costs=self.unknown_costs + (reply.cost_usd is None),
            seconds=self.seconds + reply.seconds,
        )


class Account:
    """Sums of one run; safe to use from several threads."""

    def __init__(
        self,
        paid: Iterable[tuple[ChatRequest, Reply]] = (),
        *,
        most_usd: float | None = None,
        most_tokens: int | None = None,
        most_requests: int | None = None,
    ) -> None:
        """Begin with what was `paid` before, e.g. by the session that a run is resumed from.

        Requests that are in flight when a cap is reached still end. None: no cap.

        Args:
            paid: requests with their replies.
            most_usd: the cap on money.
            most_tokens: the cap on tokens of requests and replies together.
            most_requests: the cap on requests.
        """
        self._most_usd, self._most_tokens, self._most_requests = most_usd, most_tokens, most_requests
        self._lock = threading.Lock()
        self._total = Spent()
        self._by_role: dict[str, Spent] = {}
        self._by_node: dict[int, Spent] = {}
        for request, reply in paid:
            self.charge(request, reply)

    @property
    def total(self) -> Spent:
        """Everything so far."""
        with self._lock:
            return replace(self._total)

    @property
    def by_role(self) -> Mapping[str, Spent]:
        """By who asked."""
        with self._lock:
            return dict(self._by_role)

    @property
    def by_node(self) -> Mapping[int, Spent]:
        """By the node that it was for."""
        with self._lock:
            return dict(self._by_node)

    def charge(self, request: ChatRequest, reply: Reply) -> None:
        """Count one reply; nothing for a request that a cap kept from being made."""
        if reply.failure == ModelBudgetSpent.__name__:
            return
        with self._lock:
            self._total = self._total.plus(reply)
            self._by_role[request.role] = self._by_role.get(request.role, Spent()).plus(reply)
            if request.node is not None:
                self._by_node[request.node] = self._by_node.get(request.node, Spent()).plus(reply)

    def spent_because(self) -> str | None:
        """Which cap is reached, in words; None: none."""
        total = self.total
        if self._most_requests is not None and total.requests >= self._most_requests:
            return f"{total.requests} requests of {self._most_requests} are made"
        if self._most_tokens is not None and total.unknown_tokens:
            return f"a reply does not say how many tokens it was, so a cap of {self._most_tokens} cannot be kept"
        if self._most_tokens is not None and total.tokens >= self._most_tokens:
            return f"{total.tokens} tokens of {self._most_tokens} are used"
        if self._most_usd is not None and total.unknown_costs:
            return f"the price of a reply is not known, so a cap of ${self._most_usd:g} cannot be kept"
        if self._most_usd is not None and total.known_cost_usd >= self._most_usd:
            return f"${total.known_cost_usd:.4f} of ${self._most_usd:g} are spent"
        return None

    def require(self) -> None:
        """Nothing, while no cap is reached.

        Raises:
            ModelBudgetSpent: one is.
        """
        reason = self.spent_because()
        if reason is not None:
            raise ModelBudgetSpent(
                f"no more requests: {reason}", hint="raise --max-cost or --max-tokens; what was found so far stands"
            )


class AccountedModel:
    """A model whose replies are counted, and which stops at the caps."""

    def __init__(self, model: ChatModel, account: Account) -> None:
        self._model = model
        self._account = account

    @property
    def name(self) -> str:
        """The model's."""
        return self._model.name

    def complete(self, request: ChatRequest) -> Reply:
        """The reply, counted.

        Raises:
            ModelBudgetSpent: a cap is reached; nothing was asked.
            ModelError: as the model raises; what came back unusable is counted too, with tokens that are not known.
        """
        self._account.require()
        try:
            reply = self._model.complete(request)
        except tuple(FAILURES.values()) as error:
            self._account.charge(request, failed_reply(error, self.name))
            raise
        self._account.charge(request, reply)
        return reply

    def close(self) -> None:
        """Close the model."""
        self._model.close()
