"""Policies by name, as `--policy` says them.

```
policy = create("gain", seed=0, has_model=True)
```
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelwright.errors import UsageError
from kernelwright.problem.outcome import STAGES
from kernelwright.tree.base import SelectionPolicy
from kernelwright.tree.gain import GainPerCost
from kernelwright.tree.others import BestOfN, Chance, Greedy, Reflexion, TuneOnly
from kernelwright.tree.stark import Stark

DIRECT = "direct"
"""The policy under which nothing is lifted into parameters: the agent's template role is not asked."""

LIFT = "lift"
"""The policy under which kernels are written without parameters, and the best lifted into templates afterwards."""

ALIASES: Mapping[str, str] = MappingProxyType({"default": "gain"})


@dataclass(frozen=True, slots=True)
class Described:
    """A policy that can be chosen."""

    words: str
    make: Callable[[int, bool], SelectionPolicy]
    """From a seed, and whether a model proposes: it mends every failure and can always plan again."""


def _gain(has_model: bool, *, tunes: bool = True, lifts: bool = False) -> GainPerCost:
    if not has_model:
        return GainPerCost(tunes=tunes)  # rules know a kernel's parameters as soon as they write it
    return GainPerCost(repairable_stages=frozenset(STAGES), has_model=True, tunes=tunes, lifts=lifts)


POLICIES: Mapping[str, Described] = MappingProxyType(
    {
        "gain": Described(
            "the default: the highest expected gain per cost, of templates from the start",
            lambda _, model: _gain(model),
        ),
        "stark": Described(
            "STARK's rule, each new node tuned first", lambda seed, model: Stark(seed, plans_again=model)
        ),
        "stark-untuned": Described(
            "STARK as published: nothing is tuned",
            lambda seed, model: Stark(seed, tune_evaluations=0, plans_again=model),
        ),
        "best-of-n": Described("independent samples of the start", lambda _, model: BestOfN(plans_again=model)),
        "reflexion": Described(
            "one line of attempts, failures repaired", lambda _, model: Reflexion(plans_again=model)
        ),
        "greedy": Described("the fastest node is built upon, no tree", lambda _, model: Greedy(plans_again=model)),
        DIRECT: Described(
            "rewriting without templates: one configuration for each node", lambda _, model: _gain(model, tunes=False)
        ),
        LIFT: Described(
            "as gain, of a model's kernels with their numbers, of which the best are lifted into templates",
            lambda _, model: _gain(model, lifts=True),
        ),
        "tune-only": Described("no new structures, parameters only", lambda _seed, _model: TuneOnly()),
        "random": Described("any possible action", lambda seed, model: Chance(seed, plans_again=model)),
    }
)


def create(name: str, *, seed: int = 0, has_model: bool = False) -> SelectionPolicy:
    """The policy of this name.

    Args:
        name: a key of `POLICIES`, or `default`.
        seed: of what is drawn.
        has_model: whether a language model proposes.

    Raises:
        UsageError: there is no such policy.
    """
    return POLICIES[known(name)].make(seed, has_model)


def known(name: str) -> str:
    """The name itself, aliases resolved.

    Raises:
        UsageError: there is no such policy.
    """
    name = ALIASES.get(name, name)
    if name not in POLICIES:
        names = [*ALIASES, *POLICIES]
        near = difflib.get_close_matches(name, names, 1, 0.4)
        more = f"did you mean {near[0]!r}?" if near else f"say one of {', '.join(names)}"
        raise UsageError(f"there is no policy {name!r}; {more}")
    return name
