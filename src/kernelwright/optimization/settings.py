"""What a person decides about an `optimize` run, beside what `tune` is told. Recorded in the run folder."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelwright.errors import UsageError
from kernelwright.llm.names import parse_models
from kernelwright.optimization.roles_file import roles_of
from kernelwright.remote.runners import check_runner
from kernelwright.search.registry import known_searcher
from kernelwright.store.event import RECORD_KEY
from kernelwright.tree.base import SelectionPolicy
from kernelwright.tree.registry import GAIN, LIFT, create, known
from kernelwright.tuning.settings import Budget, TuneSettings

REPLAY = "replay:"
"""Before a run folder in the place of a model: its recorded replies answer."""

DEFAULT_BUDGET_S = 120.0

UNTUNED = frozenset({"direct", "stark-untuned"})
"""Policies under which nothing is searched."""

WORTH_ASKING = 0.03
"""A model's run ends when nothing is expected to gain more, as a fraction. A guess: the noise of a search."""

REWRITTEN_BELOW = 0.2
"""A kernel that reaches less of the floor needs another structure: three of the first six replies of two recorded runs
went into templates of such kernels that were thrown away.
"""

REWRITTEN_BELOW_RATES = 0.05
"""The same where no floor is known, of measured rates: other work lowers them, and good kernels reach a tenth of them.
"""

MOST_IN_FLIGHT = 1000

SPOOL_IN_FLIGHT = 4
"""Structures under way where the device is behind a spool, unless said otherwise."""


def _share_that_counts(floor_share: float | None, rate_share: float | None) -> tuple[float | None, float]:
    """How near a kernel is to the device's limit, and up to which part it needs another structure."""
    if floor_share is not None:
        return floor_share, REWRITTEN_BELOW
    return rate_share, REWRITTEN_BELOW_RATES


@dataclass(frozen=True, slots=True)
class OptimizeSettings:
    """Everything that `optimize` can be told."""

    tune: TuneSettings = field(default_factory=lambda: TuneSettings(budget=Budget(seconds=DEFAULT_BUDGET_S)))
    """Its budget is the whole run's."""
    model: str = "rules"
    """Who proposes: `rules` needs no model; `PROVIDER:NAME`, several with commas; `replay:RUN`, recorded replies."""
    policy: str = "gain"
    """A name of `tree.registry`."""
    start: Literal["all", "baseline"] = "all"
    """`all`: the problem's own template is a node too, where it has one; `baseline`: only what the baseline becomes."""
    most_nodes: int = 100
    memory: Literal["on", "read", "off"] = "on"
    """What earlier runs have learnt: used and added to; only used; neither."""
    proof_points: int = 16
    """Corners and random points on which a lifted template is checked before its landscape is trusted; 0: none."""
    max_cost_usd: float | None = None
    """Most dollars for all replies of the run; None: no cap."""
    max_tokens: int | None = None
    """Most tokens of all requests and replies of the run; None: no cap."""
    max_attempts: int | None = None
    """Structures that an agent is asked for, repairs and refused ones included; None: no cap."""
    roles: Mapping[str, Any] = field(default_factory=dict)
    """Who plays which role, and how; the tables of a file of roles, see `optimization.roles_file`."""
    child_defaults: Literal["parent", "declared"] = "parent"
    """`parent`: what a model writes from a node begins at the node's best values where its parameters stay."""
    rest: Literal["policy", "best"] = "policy"
    """Whose parameters are tuned once no more structures may be asked for: the policy's choice, or the fastest's."""

    asking: Literal["sparing", "always"] = "sparing"
    """`sparing`: a model is asked, and a node tuned, only where `WORTH_ASKING` is expected; `always`: whatever is left.
    """
    runner: str = ""
    """Where devices are, see `remote.runners`; empty: here."""
    in_flight: int | None = None
    """Structures that are written, proven or searched beside each other; None: 1 here, `SPOOL_IN_FLIGHT` elsewhere."""
    part_evaluations: int = 24
    """Elsewhere: of a new structure, as many evaluations are asked for at once as its proof is."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything is started."""
        object.__setattr__(self, "policy", known(self.policy))
        known_searcher(self.tune.searcher)
        check_model(self.model, max_cost_usd=self.max_cost_usd, max_tokens=self.max_tokens)
        if self.max_attempts is not None and self.max_attempts < 1:
            raise UsageError(f"max_attempts is {self.max_attempts!r}, expected at least 1")
        if self.roles and self.model == "rules":
            raise UsageError("roles are played by models, and the model is 'rules'", hint="say --model PROVIDER:NAME")
        for name in roles_of(self.roles).models.values():
            check_model(name, max_cost_usd=self.max_cost_usd)
        if self.start not in ("all", "baseline"):
            raise UsageError(_unknown("start", self.start, ["all", "baseline"]))
        if self.memory not in ("on", "read", "off"):
            raise UsageError(_unknown("memory", self.memory, ["on", "read", "off"]))
        if self.proof_points < 0:
            raise UsageError(f"proof_points is {self.proof_points!r}, expected at least 0")
        check_runner(self.runner)
        for name, number in (("in_flight", self.in_flight), ("part_evaluations", self.part_evaluations)):
            if number is not None and not 1 <= number <= MOST_IN_FLIGHT:
                raise UsageError(f"{name} is {number!r}, expected 1 to {MOST_IN_FLIGHT}")
        if self.most_nodes < 1:
            raise UsageError(f"most_nodes is {self.most_nodes!r}, expected at least 1")

    def within(self, budget: Budget | None) -> OptimizeSettings:
        """The same with another budget; None: with its own."""
        return self if budget is None else dataclasses.replace(self, tune=dataclasses.replace(self.tune, budget=budget))

    @property
    def lifts_later(self) -> bool:
        """Whether kernels are written without parameters, and lifted into templates where the policy says so."""
        return self.policy == LIFT and self.model != "rules"

    @property
    def is_sparing(self) -> bool:
        """Whether each question to a model has to be worth it."""
        return self.model != "rules" and self.asking == "sparing"

    def is_rewritten_first(self, floor_share: float | None, rate_share: float | None = None) -> bool:
        """Whether a kernel is rewritten before its numbers are lifted into parameters.

        Args:
            floor_share: which part of what the device allows the baseline reaches; None: not known.
            rate_share: which part of the rates that were measured of memory and arithmetic, where they are no floor.
        """
        if not self.is_sparing or self.policy != GAIN:
            return False
        share, least = _share_that_counts(floor_share, rate_share)
        return share is not None and share <= least

    def why_first(self, floor_share: float | None, rate_share: float | None = None) -> str:
        """What the policy does first and why, in words; empty: it has no choice. Arguments as above."""
        if not self.is_sparing or self.policy != GAIN:
            return ""
        share, least = _share_that_counts(floor_share, rate_share)
        what = "of the floor" if floor_share is not None else "of the measured rates of memory and arithmetic"
        unknown = "how far it is from the device's limit is not known"
        reached = unknown if share is None else f"it reaches {share:.1%} {what}"
        if self.is_rewritten_first(floor_share, rate_share):
            return (
                f"the kernel is rewritten first and its numbers are not lifted: {reached}, "
                "which other numbers do not change much"
            )
        than = "" if share is None else f", more than {least:.0%}"
        return f"the kernel's numbers are lifted into parameters first: {reached}{than}"

    @property
    def least_gain_fraction(self) -> float | None:
        """The run ends when nothing is expected to gain more; None: the policy's own threshold."""
        own = self.tune.budget.min_expected_gain_fraction
        return WORTH_ASKING if own is None and self.is_sparing else own

    def in_flight_count(self, *, is_elsewhere: bool) -> int:
        """How many structures may be under way."""
        return self.in_flight or (SPOOL_IN_FLIGHT if is_elsewhere else 1)

    @property
    def first_part(self) -> int:
        """How far a structure is searched elsewhere together with its proof; policies that do not tune: not at all."""
        return 1 if self.policy in UNTUNED else self.part_evaluations

    def selection_policy(self) -> SelectionPolicy:
        """The policy with this run's seed."""
        return create(self.policy, seed=self.tune.seed, has_model=self.model != "rules")

    def as_record(self) -> dict[str, Any]:
        """JSON-ready, for the run folder."""
        names = (
            "model",
            "policy",
            "start",
            "most_nodes",
            "proof_points",
            "max_cost_usd",
            "max_tokens",
            "runner",
            "in_flight",
            "part_evaluations",
        )
        own = {
            name: getattr(self, name)
            for name in (*names, "max_attempts", "roles", "memory", "child_defaults", "rest", "asking")
        }
        return {**self.tune.as_record(), RECORD_KEY: own}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> OptimizeSettings:
        """The settings of a recorded run; fields that this version does not know are ignored."""
        known = {each.name for each in dataclasses.fields(cls)} - {"tune"}
        own = {name: value for name, value in dict(record.get(RECORD_KEY, {})).items() if name in known}
        own = {
            "child_defaults": "declared",
            "rest": "best",
            "asking": "always",
            **own,
        }  # of runs from before there was a choice
        return cls(tune=TuneSettings.from_record(record), **own)


def check_model(model: str, *, max_cost_usd: float | None = None, max_tokens: int | None = None) -> None:
    """Nothing, for a model that can be asked within these caps.

    Raises:
        UsageError: there is no such model, or a cap is none, or cannot be kept.
    """
    for name, cap in (("max_cost", max_cost_usd), ("max_tokens", max_tokens)):
        if cap is not None and not cap > 0:
            raise UsageError(f"{name} is {cap!r}, expected more than 0")
    if model == "rules" or model.startswith(REPLAY):
        return
    own = [each for each in parse_models(model) if each.url]
    if own and max_cost_usd is not None:
        raise UsageError(
            f"the price of {own[0]} is not known, so --max-cost cannot be kept", hint="say --max-tokens instead"
        )


def _unknown(what: str, given: str, known: list[str]) -> str:
    near = difflib.get_close_matches(given, known, 1, 0.4)
    return f"there is no {what} {given!r}; " + (f"did you mean {near[0]!r}?" if near else f"say {' or '.join(known)}")
