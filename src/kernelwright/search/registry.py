"""Every searcher by name, with its documented options.

```
searcher = create("auto", space, seed=7, default=template.default, budget_hint=200)
for info in SEARCHERS.values(): print(info.name, info.summary, info.options)
```
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kernelwright.errors import MissingDependency, UsageError
from kernelwright.imports import require
from kernelwright.search import evolution, local_search, orders, surrogate
from kernelwright.search.base import OptionInfo, Searcher, SearcherInfo
from kernelwright.search.history import PRIOR_COUNT, is_value

if TYPE_CHECKING:
    from kernelwright.problem.config import Config, Value
    from kernelwright.search.base import Prior
    from kernelwright.space.feasible import Space

AUTO = SearcherInfo(
    name="auto",
    summary="exhaustive where the budget covers the space, else surrogate, or evolution without scikit-learn",
    options=(PRIOR_COUNT,),
)

SEARCHERS: Mapping[str, SearcherInfo] = MappingProxyType(
    {
        info.name: info
        for info in (
            AUTO,
            surrogate.INFO,
            local_search.INFO,
            evolution.INFO,
            orders.RANDOM,
            orders.EXHAUSTIVE,
        )
    }
)
"""What a person may choose from, the recommended first."""

_CLASSES: Mapping[str, Callable[..., Searcher]] = MappingProxyType(
    {
        surrogate.INFO.name: surrogate.SurrogateSearch,
        local_search.INFO.name: local_search.LocalSearch,
        evolution.INFO.name: evolution.EvolutionSearch,
        orders.RANDOM.name: orders.RandomSearch,
        orders.EXHAUSTIVE.name: orders.ExhaustiveSearch,
    }
)

NO_OPTIONS: Mapping[str, Value] = MappingProxyType({})


def create(
    name: str,
    space: Space,
    *,
    seed: int,
    default: Config | None = None,
    options: Mapping[str, Value] = NO_OPTIONS,
    priors: Sequence[Prior] = (),
    budget_hint: int | None = None,
) -> Searcher:
    """A searcher on `space`, ready to be asked.

    Args:
        name: a key of `SEARCHERS`.
        space: the feasible set; searchers ask for nothing else.
        seed: decides every random choice, together with what is told.
        default: asked first, after moving it to the nearest feasible config.
        options: by name, as `SEARCHERS[name].options` documents them.
        priors: what earlier runs measured; every searcher tries the best of them right after the default.
        budget_hint: evaluations that will be made at most, if known; only `auto` looks at it.

    Raises:
        UsageError: an unknown searcher or option, an option of the wrong type or range, or a prior that is no value.
        MissingDependency: the searcher needs a package that is not installed.
    """
    info = known_searcher(name)
    resolved = check_options(info, options)
    odd = next((prior for prior in priors if not is_value(prior.value)), None)
    if odd is not None:
        raise UsageError(
            f"a prior from {odd.source!r} has the value {odd.value!r}, expected a positive finite number",
            hint="give None for a config that failed there",
        )
    if name == AUTO.name:
        name = choose(space.feasible_count, budget_hint=budget_hint)
    arguments: dict[str, Any] = dict(resolved)
    return _CLASSES[name](space, seed=seed, default=default, priors=priors, **arguments)


def known_searcher(name: str) -> SearcherInfo:
    """What is known of the searcher of that name.

    Raises:
        UsageError: there is none.
    """
    info = SEARCHERS.get(name)
    if info is None:
        raise UsageError(
            f"there is no searcher {name!r}" + _nearest(name, list(SEARCHERS)),
            hint=f"choose one of {', '.join(SEARCHERS)}",
        )
    return info


def choose(feasible_count: int, *, budget_hint: int | None) -> str:
    """The searcher that `auto` stands for, for a space of `feasible_count` configs.

    Measured on eight recorded spaces (`kernelwright bench search`; surrogate 100 repeats, the others 20): surrogate
    scores 0.82 on average and 0.65 at worst, evolution 0.61 and 0.09, local 0.45 and -0.23.
    """
    if budget_hint is not None and feasible_count <= budget_hint:
        return orders.EXHAUSTIVE.name
    try:
        require("sklearn.tree", purpose="the surrogate searcher")
    except MissingDependency:
        return evolution.INFO.name
    return surrogate.INFO.name


def check_options(info: SearcherInfo, given: Mapping[str, Value]) -> dict[str, Value]:
    """All options of a searcher, `given` over the defaults.

    Raises:
        UsageError: an unknown option (with the nearest known one), or a value of the wrong type or range.
    """
    known = {option.name: option for option in info.options}
    for name in given:
        if name not in known:
            raise UsageError(
                f"the searcher {info.name!r} has no option {name!r}" + _nearest(name, list(known)),
                hint=f"its options are {', '.join(known)}",
            )
    return info.resolve({name: _checked(info, known[name], value) for name, value in given.items()})


def _checked(info: SearcherInfo, option: OptionInfo, value: Value) -> Value:
    """`value` as the option's type, or an error that says what was expected."""
    wanted = type(option.default)
    if wanted is float and type(value) is int:
        value = float(value)
    where = f"option {option.name!r} of the searcher {info.name!r}"
    if type(value) is not wanted:
        raise UsageError(
            f"{where} is {value!r} ({type(value).__name__}), expected {wanted.__name__}",
            hint=option.description,
        )
    if option.choices and value not in option.choices:
        choices = [str(choice) for choice in option.choices]
        raise UsageError(
            f"{where} is {value!r}" + _nearest(str(value), choices),
            hint=f"choose one of {', '.join(choices)}",
        )
    if isinstance(value, int | float):
        is_low = option.minimum is not None and not value >= option.minimum
        is_high = option.maximum is not None and not value <= option.maximum
        if is_low or is_high:
            bounds = [f"at least {option.minimum:g}"] if option.minimum is not None else []
            bounds += [f"at most {option.maximum:g}"] if option.maximum is not None else []
            raise UsageError(f"{where} is {value!r}, expected {' and '.join(bounds)}", hint=option.description)
    return value


def _nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
