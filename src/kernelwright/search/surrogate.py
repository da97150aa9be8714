"""Surrogate search: a model guesses each config's time and chance of success.

While few evaluations are known, a Gaussian process on a sample of the space is the model; then an ensemble of effects
and trees. Each proposal maximises the expected improvement (of the logarithm of the value) times the probability that
the candidate works; with trees, over the time that evaluating it is expected to take.

Where earlier runs left enough priors, there is one model for each of them and one without; improvements are averaged by
how far each is believed (`transfer`). While one is believed, what it would try next takes turns with the proposals;
while that is open, so do the configs of the first design.

The model is refitted when something better was found and when the number of observations has grown by a fixed share, so
that the searcher's own time stays small; between refits, observations that brought no gain push the next proposals away
from themselves.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kernelwright.imports import require
from kernelwright.search.base import OptionInfo, SearcherInfo
from kernelwright.search.candidates import Candidates, Codes, Pool, Table, whole
from kernelwright.search.experts import Experts, Guessed
from kernelwright.search.forest import Data, Design, Floats, ForestFitter
from kernelwright.search.gaussian import GaussianProcess
from kernelwright.search.history import (
    PRIOR_COUNT,
    Batch,
    FreshOrder,
    History,
    RandomOrder,
    generator,
    opening,
)
from kernelwright.search.transfer import agreed, favourites, is_flat, sources_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelwright.problem.config import Config
    from kernelwright.search.base import ExpectedGain, Observation, Prior
    from kernelwright.space.feasible import Space

INFO = SearcherInfo(
    name="surrogate",
    summary="learns which configs are fast and which fail, and tries the most promising",
    options=(
        PRIOR_COUNT,
        OptionInfo(
            name="initial_count",
            default=48,
            description="evaluations that a Gaussian process proposes before trees do, where no earlier run is known",
            minimum=0,
        ),
        OptionInfo(
            name="tree_count",
            default=8,
            description="members of the model; more are steadier and slower",
            minimum=2,
        ),
        OptionInfo(
            name="refit_growth",
            default=1.15,
            description="refit when something better came, or observations have grown by this factor",
            minimum=1.0,
        ),
        OptionInfo(
            name="caution",
            default=2.0,
            description="factor on the model's deviation, which alone is too sure of the unseen; higher explores more",
            minimum=0.1,
        ),
        OptionInfo(
            name="exploration",
            default=0.0,
            description="gain (in the logarithm of the value) that an improvement must exceed; higher explores more",
            minimum=0.0,
        ),
        OptionInfo(
            name="cost_share",
            default=1.0,
            description="how far a config that takes long to evaluate must promise more: 1 in proportion, 0 not at all",
            minimum=0.0,
            maximum=1.0,
        ),
        OptionInfo(
            name="whole_limit",
            default=50_000,
            description="largest space of which every config is scored; above, a pool is",
            minimum=1,
        ),
        OptionInfo(
            name="pool_count",
            default=4000,
            description="random configs in the pool, next to all neighbours of the best",
            minimum=1,
        ),
        OptionInfo(
            name="without",
            default="",
            description="leave one part out, to measure what it is worth",
            choices=("", "process", "failures", "effects", "trees", "design", "neighbours", "penalty", "trust", "cost"),
        ),
    ),
)

PARTIAL_WEIGHT = 0.3
"""Weight of a raced observation in the fit: it certainly lost, but by how much is an estimate. A guess."""

CEILING_QUANTILE = 0.75
"""Times above this quantile of what was observed count as equal to it: how slow a slow config is does not matter, and
would otherwise be most of what the model explains. Chosen on the simulated objectives of `testing.synthetic`."""

TRANSFER_DESIGN = 4
"""How many configs, spread ones and the favourites of earlier runs in turn, come before the first model when there are
such runs: two of each is the least that shows whether what was fast there is fast here."""

EARLIER_COUNT = 40
"""Every other of the first so many evaluations is the next in the order of earlier runs, if they are fully believed;
later ones ever fewer, as the model learns what differs here. A guess."""

HOPELESS = 2.0
"""Favourites of earlier runs that take so many times the slowest of what else was measured wait. A guess: on the
convolution of the MI250X, 1 protected more from misleading runs and made a little less of helpful ones."""

SETTLED = 0.9
"""With this probability it is settled whether earlier runs help; until then the design goes on. A guess."""


STUCK_AFTER, STUCK_UNTIL = 12, 250
"""Once so many measurements in a row brought nothing better, the process proposes beside the trees, among so many
evaluations: its own time grows with their square. Guesses."""

SAMPLE_COUNT = 2000
"""The Gaussian process chooses from so many random configs, or all there are."""

NEIGHBOURED_COUNT = 5
"""The neighbours of so many of the best configs join a pool. A guess."""

SCORED_COUNT = 2000
"""The whole model scores so many candidates at most: those whose effects promise most."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What a model is fitted on, and what it is asked of."""

    observed: tuple[Observation, ...]
    table: Table
    """A table of all that was told; `data` and what follows are about what passed."""
    is_passed: npt.NDArray[np.bool_]
    data: Data
    best: float
    """The lowest logarithm that was measured in full."""
    here: list[Floats]
    """By source, its guess of what passed."""
    design: Design
    """The design of all that was told."""
    passed_design: Design
    candidates: Candidates
    guessed: list[Guessed]
    """By source, its guess of the candidates."""
    is_out: npt.NDArray[np.bool_]
    """Which candidates were told."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """What a fitted model says of its candidates; aligned along those that have a score."""

    places: npt.NDArray[np.intp]
    """Which candidates these are, ascending."""
    codes: Codes
    """Their value indices, shape (parameters, scored)."""
    scores: Floats
    """Expected improvement times the probability of success, at least 0."""


@dataclass(slots=True)
class _Scored:
    """What is thought of the candidates. The model is fitted when its opinion is first asked for."""

    candidates: Candidates
    model: Callable[[], _Scores]
    """Gives the same object each time."""
    beliefs: Floats
    """The probability of each hypothesis on earlier runs, the one that none helps first."""
    order: Floats | None
    """By what earlier runs would try first, lowest first, each as far as it is believed, for every candidate; infinite
    for what must not be asked, None without any."""
    lowered_count: int
    """How many observations, those the model is fitted on included, are taken into account."""
    doubt: Floats | None
    """The factor on the scores of what differs in so many parameters from what is struck out; None: it stays."""
    scores: Floats | None = None
    """The model's, lowered around what was struck out; -infinity for what must not be asked. None: not asked for."""
    struck: list[Config] = dataclasses.field(default_factory=list)
    """What `scores` do not take into account yet, in order."""

    def copy(self) -> _Scored:
        """One to strike out from freely."""
        order, scores = (None if each is None else each.copy() for each in (self.order, self.scores))
        return dataclasses.replace(self, order=order, scores=scores, struck=list(self.struck))

    def strike_out(self, config: Config) -> None:
        """Never give it, and lower what is near it."""
        self.struck.append(config)
        place = None if self.order is None else self.candidates.place_of(config)
        if self.order is not None and place is not None:
            self.order[place] = np.inf

    def favoured(self) -> Config | None:
        """The candidate that earlier runs would try first; None without them, or when all are struck out."""
        if self.order is None:
            return None
        place = int(self.order.argmin())
        return self.candidates.config_at(place) if np.isfinite(self.order[place]) else None

    def best(self) -> Config | None:
        """The candidate of the highest score, the first of equals; None when all are struck out."""
        model = self.model()
        if self.scores is None:
            self.scores = model.scores.copy()
        for config in self.struck:
            self._lower_around(config, model, self.scores)
        self.struck.clear()
        if not len(self.scores):
            return None
        position = int(self.scores.argmax())
        return self.candidates.config_at(int(model.places[position])) if self.scores[position] >= 0 else None

    def _lower_around(self, config: Config, model: _Scores, scores: Floats) -> None:
        """Strike `config` out, and lower what is near it: doubt halves with every parameter that differs."""
        if self.doubt is not None:
            own = self.candidates.codes_of(config)
            differing = (model.codes != own[:, None]).sum(axis=0, dtype=np.uint8)
            scores *= self.doubt.take(differing)
        place = self.candidates.place_of(config)
        if place is None:
            return
        position = int(model.places.searchsorted(place))
        if position < len(model.places) and model.places[position] == place:
            scores[position] = -np.inf


class SurrogateSearch:
    """Follows a Gaussian process at first, then an ensemble of trees.

    Ask costs a row of the process; later a fit and one prediction of the candidates when a refit is due, otherwise a
    few passes over their scores.
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int,
        default: Config | None = None,
        priors: Sequence[Prior] = (),
        prior_count: int = 10,
        initial_count: int = 48,
        tree_count: int = 8,
        refit_growth: float = 1.15,
        caution: float = 2.0,
        exploration: float = 0.0,
        cost_share: float = 1.0,
        whole_limit: int = 50_000,
        pool_count: int = 4000,
        without: str = "",
    ) -> None:
        purpose = "the surrogate searcher"
        self._fitter = ForestFitter(
            space.parameters, purpose=purpose, has_effects=without != "effects", has_trees=without != "trees"
        )
        require("scipy.special", purpose=purpose)  # said now, not in the middle of a run
        self._space = space
        self._seed = seed
        self._tree_count = tree_count
        self._refit_growth = refit_growth
        self._pool_count = pool_count
        self._without = without
        self._cost_share = cost_share if without != "cost" else 0.0
        self._history = History(space)
        self._fresh = FreshOrder(self._history, RandomOrder(space.feasible_count, seed).__getitem__)
        self._whole = whole(space) if space.feasible_count <= whole_limit else None
        self._pool: Pool | None = None
        self._doubt = 1.0 - np.exp2(-np.arange(len(space.parameters) + 1, dtype=np.float64))
        self._doubt[0] = 1.0  # a config itself is struck out, and 0 times infinity is nothing to compare
        sources = sources_of(space, priors, self._fitter, seed=seed, keep=prior_count)
        self._experts = Experts(
            self._fitter, tuple(sources), tree_count, caution, exploration, is_trusting=without == "trust"
        )
        self._whole_guesses = [] if self._whole is None else [Guessed.of(each, self._whole.table) for each in sources]
        modelled = {source.name for source in sources}
        by_source: dict[str, list[Prior]] = {}
        for prior in priors:
            by_source.setdefault(prior.source, []).append(prior)
        few = [
            prior for name, group in by_source.items() if name not in modelled and not is_flat(group) for prior in group
        ]
        first = opening(space, default=default, priors=few, prior_count=prior_count)
        spread_count = max(8, sum(len(parameter.values) > 1 for parameter in space.parameters) + 2)
        self._process = self._new_process() if initial_count and without != "process" else None
        """The first model, and beside earlier runs the one that does without them."""
        self._process_until = initial_count
        self._favoured: frozenset[Config] = frozenset()
        """The design's configs that earlier runs favour."""
        if sources:
            favoured = list(dict.fromkeys([*first[default is not None :], *favourites(sources, count=prior_count)]))
            self._favoured = frozenset(favoured)
            head = first[: default is not None]
            spreading = self._spread(spread_count, away_from=head)
            # Not a favourite of one run first: if it misleads, that may be the slowest config of all.
            head = head or agreed(space, sources) or spreading[:1]
            turns = itertools.chain.from_iterable(itertools.zip_longest(favoured, spreading))
            self._design = list(dict.fromkeys([*head, *(config for config in turns if config is not None)]))
            self._model_from = TRANSFER_DESIGN
        elif initial_count and without != "process":
            self._design, self._model_from = first, max(initial_count, len(first))
        else:
            self._design = [*first, *self._spread(spread_count, away_from=first)]
            self._model_from = len(self._design)
        self._caution, self._exploration = caution, exploration
        self._fit_count = 0
        """How many observations the model is fitted on: a fold over what was told."""
        self._cache: tuple[tuple[int, int], _Scored] | None = None

    def ask(self, count: int, pending: Sequence[Config] = ()) -> Sequence[Config]:
        """Up to `count` new configs; see `Searcher.ask`."""
        batch = Batch(self._history, count, pending)
        # As long as nothing has passed there is nothing to fit, and the design goes on.
        design_count = self._model_from if self._fit_count else len(self._design)
        for config in self._design:
            if batch.known_count >= design_count:
                break
            if not (config in self._favoured and self._is_disappointed()):
                batch.offer(config)
        if self._process is not None and not self._fit_count and not self._experts.sources:
            self._begin(batch, self._process)
        if self._fit_count and not batch.is_full and batch.known_count < self._space.feasible_count:
            self._propose(batch)
        batch.offer_all(self._fresh)
        return batch.chosen

    def tell(self, observations: Sequence[Observation]) -> None:
        """Take in finished evaluations; see `Searcher.tell`."""
        for observation in observations:
            best_before = self._history.best
            if not self._history.record(observation):
                continue
            count = self._history.count
            if count < self._model_from or self._history.best is None:
                continue
            is_due = count >= math.ceil(self._fit_count * self._refit_growth)
            if is_due or self._history.best != best_before:
                self._fit_count = count

    def expected_gain(self, count: int, *, confidence: float = 0.9) -> ExpectedGain | None:
        """What going on would bring; see `Forecaster.expected_gain`."""
        return self._history.expected_gain(count, confidence=confidence)

    def _is_disappointed(self) -> bool:
        """Whether what earlier runs favour took, where it was measured, more than `HOPELESS` times all else that was.

        The favourites of a misleading run may be the slowest configs of all; one is enough to pay for.
        """
        told = [(config in self._favoured, self._history[config].value or math.inf) for config in self._history]
        favoured = [value for is_favoured, value in told if is_favoured]
        others = [value for is_favoured, value in told if not is_favoured]
        return bool(favoured) and bool(others) and min(favoured) > HOPELESS * max(others)

    def _spread(self, count: int, *, away_from: Sequence[Config]) -> list[Config]:
        """Up to `count` configs of a random pool, each far from all before it and from those given."""
        if self._without == "design":
            return self._space.sample(count, generator(self._seed, 0), exclude=away_from)
        design: list[Config] = []
        pool = self._space.sample(64 * count, generator(self._seed, 0))
        places = self._space.encode(pool)
        nearest = np.full(len(pool), np.inf)
        for place in self._space.encode(away_from):
            nearest = np.minimum(nearest, np.abs(places - place).sum(axis=1))
        for _ in range(count):
            farthest = int(np.argmax(nearest))
            if nearest[farthest] <= 0:
                break
            design.append(pool[farthest])
            nearest = np.minimum(nearest, np.abs(places - places[farthest]).sum(axis=1))
        return design

    # -- the first model --------------------------------------------------------------------------------

    def _new_process(self) -> GaussianProcess:
        return GaussianProcess(self._space.parameters, self._sample.table.codes)

    @functools.cached_property
    def _sample(self) -> Candidates:
        """What the Gaussian process chooses from."""
        if self._whole is not None and len(self._whole.table) <= SAMPLE_COUNT:
            return self._whole
        pool = Pool(self._space, generator(self._seed, 5), count=SAMPLE_COUNT)
        return pool.candidates([], generator(self._seed, 6))

    def _begin(self, batch: Batch, process: GaussianProcess) -> None:
        """Fill the batch by the Gaussian process, whose design ends where trees take over."""
        best = self._history.best
        while not batch.is_full and (best is not None or batch.known_count < self._model_from):
            config = self._telling_most(batch, process)
            if config is None or not batch.offer(config):
                return

    def _telling_most(self, batch: Batch, process: GaussianProcess) -> Config | None:
        """What the Gaussian process proposes; what is in flight and chosen is believed at its mean."""
        sample, best = self._sample, self._history.best
        observed = [self._history[config] for config in self._history]
        held = observed if best is None else [o for o in observed if o.value is not None]
        noises = [1 / PARTIAL_WEIGHT if o.is_partial else 1.0 for o in held]
        believed = [config for config in (*batch.pending, *batch.chosen) if config in self._space]
        is_out = np.zeros(len(sample.table), dtype=bool)
        is_out[sample.places_of([*(o.config for o in observed), *believed])] = True
        rows = [sample.codes_of(config) for config in (*(o.config for o in held), *believed)]
        process.hold(np.array(rows).T, [*noises, *[1.0] * len(believed)])
        place = None
        if best is not None:
            targets = np.array([math.log(o.value) for o in held if o.value is not None])
            scores = self._hope(observed, sample.table) * process.gains(
                np.minimum(targets, quantile(targets, CEILING_QUANTILE)),
                best=math.log(self._history.value(best)) - self._exploration,
                caution=self._caution,
            )
            scores[is_out] = 0.0
            place = int(scores.argmax()) if scores.any() else None
        if place is None:
            place = process.telling(generator(self._seed, 7, batch.known_count), is_out)
        return None if place is None else sample.config_at(place)

    def _hope(self, observed: Sequence[Observation], candidates: Table) -> Floats:
        """The chance of success of each candidate; of what it costs too little is known yet."""
        is_passed = np.array([o.value is not None for o in observed])
        if is_passed.all() or self._without == "failures":
            return np.ones(len(candidates))
        with self._fitter.quickly():
            return self._chance(self._sample.table_of([o.config for o in observed]), is_passed, candidates)

    # -- the models -------------------------------------------------------------------------------------

    def _candidates(self) -> Candidates:
        """The configs that the model scores: all, or a random pool with the neighbours of the best."""
        if self._whole is not None:
            return self._whole
        if self._pool is None:
            self._pool = Pool(self._space, generator(self._seed, 2), count=self._pool_count)
        told = frozenset(itertools.islice(self._history, self._fit_count))
        best = [config for config in self._history.ranking() if config in told][:NEIGHBOURED_COUNT]
        return self._pool.candidates(
            best if self._without != "neighbours" else [], generator(self._seed, self._fit_count, 2)
        )

    def _told(self) -> _Told:
        """The first `_fit_count` observations, and the candidates of a model of them."""
        told = list(self._history)[: self._fit_count]
        observed = tuple(self._history[config] for config in told)
        passed = [(o, math.log(o.value)) for o in observed if o.value is not None]
        logarithms = np.array([logarithm for _, logarithm in passed])
        candidates = self._candidates()
        guessed = self._guessed(candidates)
        table = candidates.table_of(told)
        is_passed = np.array([o.value is not None for o in observed])
        passed_table = table if len(passed) == len(told) else table.at(np.flatnonzero(is_passed))
        places = candidates.places_of(told)
        if len(places) < len(told):
            here = [source.guess(table)[is_passed] for source in self._experts.sources]
        else:
            here = [each.guess[places[is_passed]] for each in guessed]
        data = Data(
            passed_table,
            np.minimum(logarithms, quantile(logarithms, CEILING_QUANTILE)),
            np.array([PARTIAL_WEIGHT if o.is_partial else 1.0 for o, _ in passed]),
        )
        is_out = np.zeros(len(candidates.table), dtype=bool)
        is_out[places] = True
        best = min(logarithm for o, logarithm in passed if not o.is_partial)
        design = self._fitter.design(table)
        passed_design = design if passed_table is table else self._fitter.design(passed_table)
        return _Told(observed, table, is_passed, data, best, here, design, passed_design, candidates, guessed, is_out)

    def _score(self) -> _Scored:
        """What is thought of the candidates, from the first `_fit_count` observations alone."""
        told = self._told()
        beliefs, order = self._experts.beliefs(told.data, told.here, told.passed_design), None
        if told.guessed:
            order = np.einsum("s,sc->c", beliefs[1:], np.array([each.places for each in told.guessed]))
            order[told.is_out] = np.inf
        return _Scored(
            told.candidates,
            functools.cache(lambda: self._model(told, beliefs)),
            beliefs,
            order,
            lowered_count=len(told.observed),
            doubt=self._doubt if self._without != "penalty" else None,
        )

    def _model(self, told: _Told, beliefs: Floats) -> _Scores:
        """Fit the model, and ask it about the candidates that promise most."""
        count = len(told.observed)
        with self._fitter.quickly():
            found = self._experts.improvement(
                told.data,
                told.candidates.table,
                weights=beliefs,
                is_out=told.is_out,
                count=max(SCORED_COUNT, math.ceil(self._refit_growth * count)),  # enough until the next fit
                best=told.best,
                design=told.passed_design,
                here=told.here,
                there=[each.single for each in told.guessed],
                rng_of=lambda number: generator(self._seed, 3, count, number),
            )
            scores = found.gains
            if told.data.table is not told.table and self._without != "failures":
                scores *= self._chance(told.table, told.is_passed, found.chosen)
            if self._cost_share:
                costs_s = np.array([o.cost_s for o in told.observed])
                scores /= self._costliness(told.table, costs_s, found.chosen, told.design)
        return _Scores(found.places, found.chosen.codes, scores)

    def _guessed(self, candidates: Candidates) -> list[Guessed]:
        """What each source says of the candidates."""
        if candidates is self._whole:
            return self._whole_guesses
        return [Guessed.of(source, candidates.table) for source in self._experts.sources]

    def _chance(self, table: Table, is_passed: npt.NDArray[np.bool_], candidates: Table) -> Floats:
        """The probability that each candidate passes, from all observations, failed ones too."""
        data = Data(table, is_passed.astype(np.float64), np.ones(len(table)))
        trees = self._fitter.trees(data, generator(self._seed, 4, len(table)), count=self._tree_count)
        chances = np.zeros((self._tree_count, len(candidates)), dtype=np.float32)
        trees.add_trees(chances, candidates.rows)
        # One success and one failure that were never seen keep the chance off 0 and 1.
        chance: Floats = (chances.mean(axis=0).astype(np.float64) * len(table) + 1) / (len(table) + 2)
        return chance

    def _costliness(self, table: Table, costs_s: Floats, candidates: Table, design: Design) -> Floats:
        """By what factor evaluating each candidate takes longer than the quickest, to the power of `cost_share`."""
        if not ((costs_s > 0) & np.isfinite(costs_s)).all():
            return np.ones(len(candidates))
        data = Data(table, np.log(costs_s), np.ones(len(costs_s)))
        logarithms = self._fitter.effects_alone(data, candidates, design=design)
        factors: Floats = np.exp(self._cost_share * (logarithms - logarithms.min(initial=np.inf)).astype(np.float64))
        return factors

    # -- the batch --------------------------------------------------------------------------------------

    def _scored(self) -> _Scored:
        """The model's scores, lowered around what was told since it was fitted; cached while no more is told."""
        key = (self._fit_count, self._history.replaced_count)
        if self._cache is None or self._cache[0] != key:
            self._cache = (key, self._score())
        scored = self._cache[1]
        since = list(self._history)[scored.lowered_count :]
        for config in since:
            scored.strike_out(config)
        scored.lowered_count += len(since)
        return scored

    def _propose(self, batch: Batch) -> None:
        """Fill the batch greedily by score, each choice lowering the scores around it (local penalisation)."""
        scored = self._scored()
        if batch.pending or batch.chosen or batch.missing_count > 1:  # else it is only read
            scored = scored.copy()
        for config in (*batch.pending, *batch.chosen):
            if config in self._space:
                scored.strike_out(config)
        while not batch.is_full:
            best = self._earlier(scored, batch) or self._by_process(scored.beliefs, batch) or scored.best()
            if best is None:
                return
            batch.offer(best)
            if not batch.is_full:
                scored.strike_out(best)

    def _by_process(self, beliefs: Floats, batch: Batch) -> Config | None:
        """What the Gaussian process proposes beside trees, where it is its turn."""
        place = batch.known_count
        share = self._share_of_process(float(beliefs[0]), place)
        if self._process is None or int(place * share) == int((place + 1) * share):
            return None
        return self._telling_most(batch, self._process)

    def _share_of_process(self, doubt: float, place: int) -> float:
        """How often the process proposes: 1 is always.

        As often as earlier runs are doubted, at most every other time while that is open; and every other time where
        nothing better has come for long, since trees stay where they agree.
        """
        if self._experts.sources and place < self._process_until and doubt > 1 - SETTLED:
            return 1.0 if doubt >= SETTLED else min(doubt, 0.5)
        is_stuck = self._history.passed_since_best >= STUCK_AFTER and place < STUCK_UNTIL
        return 0.5 if is_stuck else 0.0

    def _earlier(self, scored: _Scored, batch: Batch) -> Config | None:
        """What earlier runs would try next, where it is their turn."""
        share, place = 0.5 * float(1 - scored.beliefs[0]), batch.known_count
        return scored.favoured() if int(share * _turns(place)) != int(share * _turns(place + 1)) else None


def quantile(values: Floats, share: float) -> float:
    """As NumPy's, without its checks, which take longer than a sort."""
    ascending = np.sort(values)
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return float(ascending[low] + (place - low) * (ascending[high] - ascending[low]))


def _turns(place: int) -> float:
    """How many of the first `place` evaluations earlier runs may have a say in."""
    return place if place <= EARLIER_COUNT else EARLIER_COUNT * (1 + math.log(place / EARLIER_COUNT))
