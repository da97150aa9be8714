"""Policies by name, as `--policy` says them.

```
policy = create("gain", seed=0, has_model=True)
```
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelwright.errors import MissingDependency, UsageError
from kernelwright.problem.outcome import STAGES
from kernelwright.tree.base import SelectionPolicy
from kernelwright.tree.gain import GainPerCost

GAIN = "gain"
"""The default."""

DIRECT = "direct"
"""The policy under which nothing is lifted into parameters: the agent's template role is not asked."""

LIFT = "lift"
"""The policy under which kernels are written without parameters, and the best lifted into templates afterwards."""

BESIDE = "kernelwright_bench"
"""The package of the policies to compare with, which is in no wheel."""

ALIASES: Mapping[str, str] = MappingProxyType({"default": GAIN})


@dataclass(frozen=True, slots=True)
class _Described:
    """A policy that can be chosen."""

    words: str
    make: Callable[[int, bool], SelectionPolicy]
    """From a seed, and whether a model proposes: it mends every failure and can always plan again."""
    is_beside: bool = False
    """Its code is in the package of the policies to compare with."""


def _gain(has_model: bool, *, tunes: bool = True, lifts: bool = False) -> GainPerCost:
    if not has_model:
        return GainPerCost(tunes=tunes)  # rules know a kernel's parameters as soon as they write it
    return GainPerCost(repairable_stages=frozenset(STAGES), has_model=True, tunes=tunes, lifts=lifts)


def _is_installed() -> bool:
    return importlib.util.find_spec(BESIDE) is not None


def _beside(name: str, words: str) -> _Described:
    """A policy to compare with: runs made by it can be read everywhere, and made where its package is."""

    def make(seed: int, has_model: bool) -> SelectionPolicy:
        if not _is_installed():
            raise MissingDependency(
                f"policy {name!r} is one to compare with, and its package {BESIDE!r} is not installed",
                hint=f"take one of {', '.join((GAIN, DIRECT, LIFT))}",
            )
        policy: SelectionPolicy = importlib.import_module(f"{BESIDE}.policies.registry").create(name, seed, has_model)
        return policy

    return _Described(words, make, is_beside=True)


POLICIES: Mapping[str, _Described] = MappingProxyType(
    {
        GAIN: _Described(
            "the default: the highest expected gain per cost, of templates from the start",
            lambda _, model: _gain(model),
        ),
        "stark": _beside("stark", "STARK's rule, each new node tuned first"),
        "stark-untuned": _beside("stark-untuned", "STARK as published: nothing is tuned"),
        "best-of-n": _beside("best-of-n", "independent samples of the start"),
        "reflexion": _beside("reflexion", "one line of attempts, failures repaired"),
        "greedy": _beside("greedy", "the fastest node is built upon, no tree"),
        DIRECT: _Described(
            "rewriting without templates: one configuration for each node", lambda _, model: _gain(model, tunes=False)
        ),
        LIFT: _Described(
            "as gain, of a model's kernels with their numbers, of which the best are lifted into templates",
            lambda _, model: _gain(model, lifts=True),
        ),
        "tune-only": _beside("tune-only", "no new structures, parameters only"),
        "random": _beside("random", "any possible action"),
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
        MissingDependency: it is one to compare with, and those are not installed.
    """
    return POLICIES[known(name)].make(seed, has_model)


def known(name: str) -> str:
    """The name itself, aliases resolved.

    Raises:
        UsageError: there is no such policy.
    """
    name = ALIASES.get(name, name)
    if name not in POLICIES:
        names = [*ALIASES, *(each for each, policy in POLICIES.items() if _is_installed() or not policy.is_beside)]
        near = difflib.get_close_matches(name, names, 1, 0.4)
        more = f"did you mean {near[0]!r}?" if near else f"say one of {', '.join(names)}"
        raise UsageError(f"there is no policy {name!r}; {more}")
    return name
