from __future__ import annotations

from typing import TYPE_CHECKING

from kernelwright.search.registry import create
from kernelwright.search.surrogate import SurrogateSearch
from kernelwright.testing.contracts_search import SearcherContract

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelwright.problem.config import Config
    from kernelwright.search.base import Prior, Searcher
    from kernelwright.space.feasible import Space


class Registered(SearcherContract):
    name: str

    def make(self, space: Space, *, seed: int, default: Config | None = None, priors: Sequence[Prior] = ()) -> Searcher:
        return create(self.name, space, seed=seed, default=default, priors=priors)


class TestRandomSearch(Registered):
    name = "random"


class TestExhaustiveSearch(Registered):
    name = "exhaustive"
    is_seeded = False


class TestLocalSearch(Registered):
    name = "local"


class TestEvolutionSearch(Registered):
    name = "evolution"


class TestSurrogateSearch(Registered):
    name = "surrogate"


class TestSurrogateSearchOnAPool(SearcherContract):
    """As in a space too large to score every config."""

    def make(self, space: Space, *, seed: int, default: Config | None = None, priors: Sequence[Prior] = ()) -> Searcher:
        return SurrogateSearch(
            space, seed=seed, default=default, priors=priors, whole_limit=20, pool_count=30, tree_count=4
        )


class TestAutoSearch(Registered):
    name = "auto"


del SearcherContract, Registered  # only the classes above are to be collected
