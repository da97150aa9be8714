"""How often an agent's attempts work, what they cost, and what goes wrong: figures of one run, from its record alone.

```
figures = figures_of(result)
figures.correct_rate, figures.attempts_to_correct, figures.tokens_per_percent, figures.failures
```
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from kernelwright.llm.account import Account
from kernelwright.optimization.agent import account_of
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.tree.model import Node, Tree
from kernelwright.tree.moves import LIFTED_ROLE, attempts, lifted_template, works_at_last


@dataclass(frozen=True, slots=True)
class AttemptFigures:
    """Of one run, or of several added up."""

    attempt_count: int
    """Ideas that an agent was asked to carry out and repairs, declined ones too; what is there at the start is none."""
    correct_count: int
    """Of them, those that built, passed the check of their proof and were timed."""
    faster_count: int
    """Of the correct ones, those that were measured faster than what they were made from, during the search."""
    refused_count: int
    """Of the attempts, those that came to nothing before anything was built: declined, duplicates, no template."""
    repair_count: int
    repaired_count: int
    """Of the repairs, those that were correct."""
    lift_count: int
    """Kernels whose numbers an agent was asked to lift into parameters afterwards; they are no attempts."""
    lifted_count: int
    """Of them, those that became a template that reproduces its kernel; a repair that did it is no attempt either."""
    attempts_to_correct: int | None
    """Until the first that was correct, it included; None: none was."""
    failures: tuple[tuple[str, int], ...]
    """`stage: reason` with how often, the most common first, then by name."""
    tokens: int | None = None
    """Of all requests and replies; None: no model was asked."""
    cost_usd: float | None = None
    """None: no model was asked, or the price of a reply is not known."""
    gained_percent: float | None = None
    """By how many percent the accepted result is faster than the baseline; None: no result was accepted."""

    @property
    def correct_rate(self) -> float | None:
        """Correct attempts of all; None: there was none."""
        return self.correct_count / self.attempt_count if self.attempt_count else None

    @property
    def repair_rate(self) -> float | None:
        """Repairs that worked; None: there was none."""
        return self.repaired_count / self.repair_count if self.repair_count else None

    @property
    def tokens_per_percent(self) -> float | None:
        """Tokens for each percent of accepted speed; None: no model was asked, or nothing was accepted."""
        if self.tokens is None or not self.gained_percent:
            return None
        return self.tokens / self.gained_percent

    def as_data(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "attempts": self.attempt_count,
            "correct": self.correct_count,
            "correct_rate": self.correct_rate,
            "faster": self.faster_count,
            "refused": self.refused_count,
            "repairs": self.repair_count,
            "repaired": self.repaired_count,
            "lifts": self.lift_count,
            "lifted": self.lifted_count,
            "attempts_to_correct": self.attempts_to_correct,
            "tokens": self.tokens,
            "cost_usd": self.cost_usd,
            "gained_percent": self.gained_percent,
            "tokens_per_percent": self.tokens_per_percent,
            "failures": dict(self.failures),
        }


def attempts_of(tree: Tree, *, account: Account | None = None, speedup: float | None = None) -> AttemptFigures:
    """The figures of one run.

    Args:
        tree: of the run.
        account: of its models; None: none was asked.
        speedup: what the final comparison accepted, over the baseline; None: the baseline was kept.
    """
    judged = [node for node in attempts(tree) if node.status != "proposed" and not _mends_lifted(tree, node)]
    places = [place for place, node in enumerate(judged, 1) if node.is_working]
    repairs = [node for node in judged if node.role == "debug"]
    lifts = [node for node in tree if node.role == LIFTED_ROLE and node.tactic and node.status != "proposed"]
    gains = [tree.gain(node.index) for node in judged if node.is_working]
    return AttemptFigures(
        attempt_count=len(judged),
        correct_count=len(places),
        faster_count=sum(gain is not None and gain > 1 for gain in gains),
        refused_count=sum(node.status == "refused" for node in judged),
        repair_count=len(repairs),
        repaired_count=sum(node.is_working for node in repairs),
        lift_count=len(lifts),
        lifted_count=sum(works_at_last(tree, node) for node in lifts),
        attempts_to_correct=places[0] if places else None,
        failures=_counted(Counter(_failure(node) for node in (*judged, *lifts) if node.failure is not None)),
        tokens=account.total.tokens if account is not None else None,
        cost_usd=account.total.cost_usd if account is not None else None,
        gained_percent=100 * (speedup - 1) if speedup is not None and speedup > 1 else None,
    )


def _mends_lifted(tree: Tree, node: Node) -> bool:
    """Whether it is the repair of what was lifted after it was written."""
    template = lifted_template(tree, node)
    return template is not None and bool(template.tactic)


def common_failures(figures: list[AttemptFigures]) -> tuple[tuple[str, int], ...]:
    """The failures of several runs, the most common first, then by name."""
    total: Counter[str] = Counter()
    for each in figures:
        total.update(dict(each.failures))
    return _counted(total)


def _counted(found: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _failure(node: Node) -> str:
    assert node.failure is not None
    return f"{node.failure.stage}: {node.failure.reason}"


def accepted_speedup(result: OptimizeResult) -> float | None:
    """What the final comparison accepted over the baseline; None: the baseline is kept."""
    return result.speedup.estimate if result.is_gain and result.speedup is not None else None


def figures_of(result: OptimizeResult) -> AttemptFigures:
    """What the attempts of a run came to and cost."""
    account = account_of(result.folder) if result.folder is not None else None
    return attempts_of(result.tree, account=account, speedup=accepted_speedup(result))
