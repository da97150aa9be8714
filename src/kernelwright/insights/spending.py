"""What a run of `optimize` has spent, by role, by node and in all: tokens, money, waiting for models, device, compiler.

Everything is added up from what is recorded: replies with their usage, and the cost of every evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelwright.llm.account import Spent
from kernelwright.optimization.agent import account_of
from kernelwright.problem.outcome import Cost
from kernelwright.store.event import Evaluated
from kernelwright.store.run_folder import NODES_FOLDER, RunFolder, is_run
from kernelwright.store.view import RunView
from kernelwright.tree.model import Tree


@dataclass(frozen=True, slots=True)
class _Spending:
    """A sum. Seconds of work that went on at the same time count each."""

    model: Spent = field(default_factory=Spent)
    """Replies that were asked for; all zero where none was."""
    device_s: float = 0.0
    """Seconds of checks and timing: the device was this run's."""
    build_s: float = 0.0
    """Seconds of compilers."""
    evaluations: int = 0
    attempts: int = 0
    """Structures that were proposed, refused ones included."""

    def plus(self, cost: Cost) -> _Spending:
        """With one more evaluation."""
        return replace(
            self,
            device_s=self.device_s + cost.check_s + cost.time_s,
            build_s=self.build_s + cost.build_s,
            evaluations=self.evaluations + 1,
        )


@dataclass(frozen=True, slots=True)
class _RunSpending:
    """The sums of a run."""

    total: _Spending
    """Everything, the baseline and all nodes; the final comparison's time is not recorded, and so not in it."""
    by_role: Mapping[str, _Spending]
    """By who proposed: replies of the role, and the evaluations of the nodes that it wrote."""
    by_node: Mapping[int, _Spending]
    """By node: replies that were asked for it, and its evaluations."""

    @property
    def device_text(self) -> str:
        """What evaluations have cost, all together and by who proposed."""
        total = self.total
        roles = ", ".join(f"{role} {each.device_s:.0f} s" for role, each in self.by_role.items() if each.evaluations)
        whose = f" ({roles})" if roles else ""
        return f"device: {total.device_s:.0f} s of checks and timing{whose}; {total.build_s:.0f} s of compilers"

    def as_data(self) -> dict[str, dict[str, float | None]]:
        """By role and node, for a script; money is null where a price is not known."""
        parts = {"all": self.total, **self.by_role, **{f"node {n}": each for n, each in self.by_node.items()}}
        return {
            name: {
                "requests": each.model.requests,
                "input_tokens": each.model.input_tokens,
                "output_tokens": each.model.output_tokens,
                "cost_usd": each.model.cost_usd,
                "model_s": each.model.seconds,
                "device_s": each.device_s,
                "build_s": each.build_s,
                "evaluations": each.evaluations,
                "attempts": each.attempts,
            }
            for name, each in parts.items()
        }


def spending_of(run: Path) -> _RunSpending:
    """What a run has spent so far.

    Raises:
        StoreError: the run, or a node's, cannot be read.
    """
    view = RunView.read(run)
    total, by_role, by_node = _Spending(), dict[str, _Spending](), dict[int, _Spending]()
    if view.baseline is not None:
        total = by_node[0] = by_role["baseline"] = replace(_Spending().plus(view.baseline.cost), evaluations=0)
    for node in Tree.of(view.tree_events):
        attempt = int(node.role in ("code", "debug"))
        own = by_node.get(node.index, _Spending())
        role = by_role.get(node.role, _Spending())
        for cost in _costs(run / NODES_FOLDER / f"{node.index:03d}"):
            own, role, total = own.plus(cost), role.plus(cost), total.plus(cost)
        by_node[node.index] = replace(own, attempts=own.attempts + attempt)
        by_role[node.role] = replace(role, attempts=role.attempts + attempt)
        total = replace(total, attempts=total.attempts + attempt)
    account = account_of(run)
    if account is not None:
        total = replace(total, model=account.total)
        for name, spent in account.by_role.items():
            by_role[name] = replace(by_role.get(name, _Spending()), model=spent)
        for index, spent in account.by_node.items():
            by_node[index] = replace(by_node.get(index, _Spending()), model=spent)
    return _RunSpending(total, by_role, by_node)


def _costs(folder: Path) -> list[Cost]:
    """The costs of a node's evaluations that were run; none where it has no run, or one without an event yet."""
    if not is_run(folder):
        return []
    with RunFolder.open(folder, writable=False) as run:
        return [event.cost for event in run.read() if isinstance(event, Evaluated) and event.source != "known"]
