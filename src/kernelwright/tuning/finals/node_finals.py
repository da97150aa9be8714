"""The final comparison over all nodes: the best candidates, and for each step on the winner's path its best."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelwright.evaluate.base import EvaluationRequest, Runner
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.store.event import Evaluated, FinalistsCompared
from kernelwright.template.model import Candidate, Template
from kernelwright.tree.model import Tree
from kernelwright.tuning.finals.finals import complete_calibration, ranked
from kernelwright.tuning.finals.time_plan import FinalsPace, claiming_rounds

RIVAL = 1.25
"""A node whose best takes at most so many times as long as the best of all may still be the faster one. A guess."""

RIVAL_COUNT = 3


@dataclass(frozen=True, slots=True)
class Entrant:
    """A candidate with the node that it belongs to."""

    node: int
    candidate: Candidate
    event: Evaluated


def entrants(
    tree: Tree, evaluations: Mapping[int, Sequence[Evaluated]], templates: Mapping[int, Template], *, count: int
) -> list[Entrant]:
    """Who is measured again, in the order in which they are let in while there is time.

    The best; the best of other nodes that are near it, because the search's noise may hide which structure is faster;
    the best `count` of all nodes and the best of each workload; the best of each node on the winner's path.
    """
    owner: dict[str, int] = {}
    pool: list[Evaluated] = []
    for index, events in evaluations.items():
        for event in events:
            if event.candidate_id not in owner:
                owner[event.candidate_id] = index
                pool.append(dataclasses.replace(event, index=len(pool)))
    order = ranked(pool, count=count)
    if order:
        best = _best_of_nodes(pool, owner)
        first = order[0]
        rivals = sorted(best.values(), key=lambda event: (event.value, event.index))
        rivals = [event for event in rivals if event.value and first.value and event.value <= RIVAL * first.value]
        path = [best[node.index] for node in reversed(tree.path(owner[first.candidate_id])) if node.index in best]
        order = [first, *rivals[:RIVAL_COUNT], *order, *path]
    chosen: dict[str, Evaluated] = {}
    for event in order:
        chosen.setdefault(event.candidate_id, event)
    return [
        Entrant(owner[each], Candidate(templates[owner[each]], Config(event.config)), event)
        for each, event in chosen.items()
    ]


def _best_of_nodes(pool: Sequence[Evaluated], owner: Mapping[str, int]) -> dict[int, Evaluated]:
    best: dict[int, Evaluated] = {}
    for event in pool:
        if isinstance(event.outcome, Passed) and event.value is not None:
            index = owner[event.candidate_id]
            known = best.get(index)
            if known is None or known.value is None or event.value < known.value:
                best[index] = event
    return best


def compare_entrants(
    runner: Runner,
    baseline: Candidate,
    choose: Callable[[frozenset[str]], Sequence[Entrant]],
    *,
    rounds: int,
    on_step: Callable[[], None],
    is_late: Callable[[], bool],
    pace: FinalsPace | None = None,
    now: Callable[[], float] = time.monotonic,
) -> FinalistsCompared | None:
    """Check entrants on every dataset and measure those that pass, interleaved with the baseline.

    Args:
        runner: measures.
        baseline: row 0 of the comparison.
        choose: the entrants when these candidate ids are left out; asked again when one is rejected.
        rounds: of the comparison; more where a claim over so many entrants needs more.
        on_step: called after every check.
        is_late: once true, no more are taken in than there are, but one at least; without a `pace`.
        pace: says instead how many entrants there is time for, and how many rounds; it may be none.
        now: tells seconds.
    """
    rejected: dict[str, str] = {}
    accepted: dict[str, Entrant] = {}

    def is_over(each: Entrant) -> bool:
        if pace is not None:
            return not pace.may_check([other.event for other in accepted.values()], each.event)
        return bool(accepted) and is_late()

    is_late_now = False
    while not is_late_now:
        wanted = [each for each in choose(frozenset(rejected)) if each.candidate.id not in accepted]
        is_late_now = not wanted
        for each in wanted:
            is_late_now = is_over(each)
            if is_late_now:
                break
            complete_calibration(runner, pace)
            start_s = now()
            outcome = runner.submit(EvaluationRequest(each.candidate, is_thorough=True, is_timed=False)).result()[0]
            on_step()
            if isinstance(outcome, Failed):
                rejected[each.candidate.id] = f"{outcome.stage}: {outcome.message}"
                continue
            accepted[each.candidate.id] = each
            if pace is not None:
                pace.note_check(now() - start_s)
    chosen = list(accepted.values())
    if pace is not None and chosen:
        fitting, rounds = pace.fitting([each.event for each in chosen])
        chosen = chosen[:fitting]
    rounds = claiming_rounds(rounds, len(chosen))
    if not chosen:
        return None
    comparison = runner.compare([baseline, *(each.candidate for each in chosen)], rounds=rounds)
    if comparison is None:
        return None
    finalists = comparison.candidate_ids[1:]
    return FinalistsCompared(
        candidate_ids=(baseline.id, *finalists),
        configs=({}, *(dict(accepted[each].candidate.config) for each in finalists)),
        samples_ms=comparison.samples_ms,
        rejected={**rejected, **comparison.rejected},
        nodes=(0, *(accepted[each].node for each in finalists)),
    )
