"""What a strategy is told before it starts: other devices' recordings, or deliberately misleading ones.

A word says which:

- a device: its recording of the same kernel;
- `others`: those of every other device, each a source of its own;
- `reversed`, `shuffled`, `constant`: made from the space's own recording, with fast and slow exchanged, with values
  dealt out at random, or all equal. They are the worst that a searcher can be told, and show what trust costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelwright.search.base import Prior
from kernelwright_bench.search.recordings import RecordedSpace

OTHERS = "others"
MISLEADING = ("reversed", "shuffled", "constant")
WORDS = (OTHERS, *MISLEADING)

_SHUFFLE_SEED = 5


def sources_for(recorded: RecordedSpace, word: str, known: Sequence[RecordedSpace]) -> tuple[RecordedSpace, ...]:
    """The recordings that `word` means for this space; empty where there is none."""
    if word in MISLEADING:
        return (recorded,)
    related = [one for one in known if one.kernel == recorded.kernel and one.device != recorded.device]
    return tuple(one for one in related if word in (OTHERS, one.device))


def priors_for(word: str, sources: Sequence[RecordedSpace]) -> list[Prior]:
    """The priors of `sources_for`."""
    if word in MISLEADING:
        (own,) = sources
        return _misleading(word, priors_of(own))
    return [prior for one in sources for prior in priors_of(one)]


def priors_of(recorded: RecordedSpace) -> list[Prior]:
    """A recording as priors for another device; failures too."""
    observations = (recorded.observe(config) for config in recorded.space.iterate())
    return [Prior(o.config, o.value, f"recorded on {recorded.device}") for o in observations]


def _misleading(word: str, priors: Sequence[Prior]) -> list[Prior]:
    passed = [prior for prior in priors if prior.value is not None]
    values = np.array([prior.value for prior in passed])
    if word == "reversed":
        changed = np.empty_like(values)
        changed[np.argsort(values)] = np.sort(values)[::-1]
    elif word == "shuffled":
        changed = np.random.default_rng(_SHUFFLE_SEED).permutation(values)
    else:
        changed = np.full(len(values), np.median(values))
    return [
        Prior(prior.config, float(value), f"misleading ({word})") for prior, value in zip(passed, changed, strict=True)
    ]
