"""The rule that says which config serves which sizes: thresholds and divisors of sizes that a person can read.

```
if tokens <= 512:
    config 1
elif d % 8 == 0:
    config 0
else:
    config 2
```

A leaf holds all configs in order of preference, and the first that is feasible for the sizes at hand serves them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

MAX_DEPTH = 4
"""Questions one after the other; more, and nobody reads the rule."""

MAX_DIVISOR = 16
"""The largest divisor that is asked for: as many elements as a thread takes with one access."""

NARROW_GAP = 1.05
"""Measured sizes this near to each other, as a ratio, differ rather in their divisors than in being smaller."""


Leaf = tuple[int, ...]
"""No further question: places of configs, the preferred first; all of the table's."""


@dataclass(frozen=True, slots=True)
class Split:
    """One question: is the product of these sizes at most the threshold, or a multiple of the divisor?"""

    sizes: tuple[str, ...]
    threshold: int
    below: int
    """The largest measured value that is not above the threshold."""
    above: int
    """The smallest measured value above it: somewhere between the two the better config changes."""
    low: Rule
    """For a yes."""
    high: Rule
    """For a no."""
    divisor: int = 0
    """Where it is not 0, it is asked for multiples of it, and the threshold means nothing."""

    def is_low(self, sizes: Mapping[str, int]) -> bool:
        """The answer for these sizes."""
        value = feature(self.sizes, sizes)
        return value % self.divisor == 0 if self.divisor else value <= self.threshold

    def text(self, name_of: Callable[[str], str] = str) -> str:
        """The question, as C and Python write it."""
        product = " * ".join(name_of(name) for name in self.sizes)
        return f"{product} % {self.divisor} == 0" if self.divisor else f"{product} <= {self.threshold}"


Rule = Leaf | Split


@dataclass(frozen=True, slots=True)
class Case:
    """One measured shape, for fitting."""

    sizes: Mapping[str, int]
    losses: tuple[float, ...]
    """By config: time over the best config's time, minus 1; infinite where it is not feasible."""
    is_over: tuple[bool, ...]
    """By config: whether it is slower than the chosen loss allows, and that is no accident."""


def feature(names: Sequence[str], sizes: Mapping[str, int]) -> int:
    """What a question compares."""
    return math.prod(sizes[name] for name in names)


def leaf_of(rule: Rule, sizes: Mapping[str, int]) -> Leaf:
    """Where the questions lead for these sizes."""
    while isinstance(rule, Split):
        rule = rule.low if rule.is_low(sizes) else rule.high
    return rule


def choose(rule: Rule, sizes: Mapping[str, int], is_feasible: Callable[[int], bool]) -> int | None:
    """The place of the config for these sizes; None when no config is feasible."""
    return next((place for place in leaf_of(rule, sizes) if is_feasible(place)), None)


def fit_rule(cases: Sequence[Case], size_names: Sequence[str]) -> Rule:
    """The rule that keeps the most shapes within the loss, then loses least; as few questions as that needs.

    Args:
        cases: the measured shapes, at least one, with as many configs each.
        size_names: the sizes that questions may ask for; also their product is asked for when there are several.
    """
    names = [name for name in size_names if len({case.sizes[name] for case in cases}) > 1]
    features = [(name,) for name in names] + ([tuple(names)] if len(names) > 1 else [])
    return _pruned(_grown(list(cases), features, MAX_DEPTH), list(cases))


def crossovers(rule: Rule) -> Iterator[Split]:
    """Every question of the rule, the first first."""
    if isinstance(rule, Split):
        yield rule
        yield from crossovers(rule.low)
        yield from crossovers(rule.high)


def rule_lines(rule: Rule, name_of: Callable[[int], str], indent: str = "") -> list[str]:
    """The rule as text, one line a question."""
    if isinstance(rule, tuple):
        return [f"{indent}{name_of(rule[0])}"]
    lines = [f"{indent}if {rule.text()}:"]
    lines += rule_lines(rule.low, name_of, indent + "    ")
    lines += [f"{indent}else:", *rule_lines(rule.high, name_of, indent + "    ")]
    return lines


_Score = tuple[int, float]
"""How many shapes are over the loss, and the sum of log losses."""


def _leaf(cases: Sequence[Case]) -> Leaf:
    def key(place: int) -> tuple[float, float, int]:
        feasible = [case for case in cases if math.isfinite(case.losses[place])]
        if not feasible:
            return math.inf, math.inf, place
        over = sum(case.is_over[place] for case in feasible) / len(feasible)
        return over, math.fsum(math.log1p(case.losses[place]) for case in feasible) / len(feasible), place

    return tuple(sorted(range(len(cases[0].losses)), key=key))


def _score(rule: Rule, cases: Sequence[Case]) -> _Score:
    over, lost = 0, 0.0
    for case in cases:
        place = chosen_in(rule, case)
        if place is not None:
            over += case.is_over[place]
            lost += math.log1p(case.losses[place])
    return over, lost


def chosen_in(rule: Rule, case: Case) -> int | None:
    """The config that the rule chooses for a measured shape."""
    return choose(rule, case.sizes, lambda place: math.isfinite(case.losses[place]))


def _grown(cases: list[Case], features: Sequence[tuple[str, ...]], depth: int) -> Rule:
    leaf = _leaf(cases)
    score = _score(leaf, cases)
    if depth == 0 or score[0] == 0:
        return leaf
    best: tuple[tuple[int, bool, float], Split] | None = None
    for split in _splits(cases, features):
        over, lost = _score(split, cases)
        key = over, 0 < split.above <= NARROW_GAP * split.below, lost
        if (over, lost) < score and (best is None or key < best[0]):
            best = key, split
    if best is None:
        return leaf
    split = best[1]
    low = [case for case in cases if split.is_low(case.sizes)]
    high = [case for case in cases if not split.is_low(case.sizes)]
    return replace(split, low=_grown(low, features, depth - 1), high=_grown(high, features, depth - 1))


def _splits(cases: Sequence[Case], features: Sequence[tuple[str, ...]]) -> Iterator[Split]:
    """Every question that separates the cases; of equally good ones the first is asked."""
    for names in features:
        values = sorted({feature(names, case.sizes) for case in cases})
        for below, above in itertools.pairwise(values):
            low = [case for case in cases if feature(names, case.sizes) <= below]
            high = [case for case in cases if feature(names, case.sizes) >= above]
            yield Split(names, readable_between(below, above), below, above, _leaf(low), _leaf(high))
    for names in features:
        if len(names) == 1:
            yield from _divisions(cases, names)


def _divisions(cases: Sequence[Case], names: tuple[str, ...]) -> Iterator[Split]:
    """Multiples of a power of two against the others, each separation by its largest divisor."""
    seen = set()
    divisor = MAX_DIVISOR
    while divisor > 1:
        low = [case for case in cases if feature(names, case.sizes) % divisor == 0]
        high = [case for case in cases if feature(names, case.sizes) % divisor]
        if low and high and len(low) not in seen:
            seen.add(len(low))
            yield Split(names, 0, 0, 0, _leaf(low), _leaf(high), divisor)
        divisor //= 2


def readable_between(below: int, above: int) -> int:
    """A threshold from `below` on, less than `above`, near their geometric mean, with as few digits as that allows."""
    middle = math.isqrt(below * above)
    for digits in range(1, 20):
        step = int(10 ** max(len(str(middle)) - digits, 0))
        rounded = (middle + step // 2) // step * step
        if below <= rounded < above and abs(math.log(rounded / middle)) <= math.log(above / below) / 8:
            return rounded
        if step == 1:
            break
    return max(below, min(middle, above - 1))


def _pruned(rule: Rule, cases: list[Case]) -> Rule:
    """Without the questions that keep no further shape within the loss."""
    if isinstance(rule, tuple):
        return rule
    low = [case for case in cases if rule.is_low(case.sizes)]
    high = [case for case in cases if not rule.is_low(case.sizes)]
    kept = replace(rule, low=_pruned(rule.low, low), high=_pruned(rule.high, high))
    leaf = _leaf(cases)
    return leaf if _score(leaf, cases)[0] <= _score(kept, cases)[0] else kept
