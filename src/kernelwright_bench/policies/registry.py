"""The policies to compare with, by name; `kernelwright.tree.registry` finds them here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kernelwright.tree.base import SelectionPolicy
from kernelwright_bench.policies.published import BestOfN, Chance, Greedy, Reflexion, TuneOnly
from kernelwright_bench.policies.stark import Stark

_MAKERS: Mapping[str, Callable[[int, bool], SelectionPolicy]] = MappingProxyType(
    {
        "stark": lambda seed, model: Stark(seed, plans_again=model),
        "stark-untuned": lambda seed, model: Stark(seed, tune_evaluations=0, plans_again=model),
        "best-of-n": lambda _, model: BestOfN(plans_again=model),
        "reflexion": lambda _, model: Reflexion(plans_again=model),
        "greedy": lambda _, model: Greedy(plans_again=model),
        "tune-only": lambda _seed, _model: TuneOnly(),
        "random": lambda seed, model: Chance(seed, plans_again=model),
    }
)


def create(name: str, seed: int, has_model: bool) -> SelectionPolicy:
    """The policy of this name.

    Args:
        name: as `kernelwright.tree.registry` lists it.
        seed: of what is drawn.
        has_model: whether a language model proposes.
    """
    return _MAKERS[name](seed, has_model)
