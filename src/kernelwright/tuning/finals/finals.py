"""The final comparison: the only measurements that a claim may stand on.

Search picks the best of many noisy numbers, which flatters the winner. So the finalists are checked again on every
dataset and measured again, interleaved with the baseline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from kernelwright.evaluate.base import EvaluationRequest, Paced, Runner
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.store.event import Evaluated, FinalistsCompared
from kernelwright.template.model import Candidate, Template
from kernelwright.tuning.finals.time_plan import FinalsPace
from kernelwright.tuning.objective import medians_ms


def ranked(evaluations: Sequence[Evaluated], *, count: int) -> list[Evaluated]:
    """Candidates for the finals: the best `count` overall, then the best of each workload, without repeats."""
    measured = [
        event
        for event in evaluations
        if isinstance(event.outcome, Passed) and not event.outcome.stopped_early and event.value is not None
    ]
    order = sorted(measured, key=lambda event: (event.value, event.index))
    chosen = {event.candidate_id: event for event in order[:count]}
    best: dict[str, tuple[float, Evaluated]] = {}
    for event in evaluations:
        if isinstance(event.outcome, Passed):
            complete = [each for each in event.outcome.measurements if not each.stopped_early]
            for workload, time_ms in medians_ms(complete).items():
                if workload not in best or time_ms < best[workload][0]:
                    best[workload] = (time_ms, event)
    for _, event in best.values():
        chosen.setdefault(event.candidate_id, event)
    return list(chosen.values())


def compare_finalists(
    runner: Runner,
    template: Template,
    baseline: Candidate,
    evaluations: Sequence[Evaluated],
    *,
    count: int,
    pace: FinalsPace,
    on_step: Callable[[], None] = lambda: None,
    now: Callable[[], float] = time.monotonic,
) -> FinalistsCompared | None:
    """Check the finalists on every dataset and measure those that pass, interleaved with the baseline.

    A finalist that fails the thorough check is rejected, and the next best takes its place. `pace` says how many there
    is time for, and how many rounds. None when nothing passed, when there is no time for one (`pace.is_short`), or when
    the runner cannot measure again (a replay).
    """
    rejected: dict[str, str] = {}
    accepted: dict[str, Evaluated] = {}
    pool, is_over = list(evaluations), False
    while not is_over:
        wanted = [event for event in ranked(pool, count=count) if event.candidate_id not in accepted]
        is_over = not wanted
        for event in wanted:
            is_over = not pace.may_check(list(accepted.values()), event)
            if is_over:
                break
            complete_calibration(runner, pace)
            start_s = now()
            reason = _reject(runner, Candidate(template, Config(event.config)))
            on_step()
            if reason:
                rejected[event.candidate_id] = reason
                pool = [each for each in pool if each.candidate_id != event.candidate_id]
            else:
                pace.note_check(now() - start_s)
                accepted[event.candidate_id] = event
    fitting, rounds = pace.fitting(list(accepted.values())) if accepted else (0, 0)
    if not fitting:
        return None
    chosen = [Candidate(template, Config(event.config)) for event in list(accepted.values())[:fitting]]
    comparison = runner.compare([baseline, *chosen], rounds=rounds)
    if comparison is None:
        return None
    finalists, asked = comparison.candidate_ids[1:], {each.id: each for each in chosen}
    configs: list[Mapping[str, object]] = [{}, *(dict(asked[each].config) for each in finalists)]
    return FinalistsCompared(
        candidate_ids=(baseline.id, *finalists),
        configs=tuple(configs),  # type: ignore[arg-type]
        samples_ms=comparison.samples_ms,
        rejected={**rejected, **comparison.rejected},
        conditions=comparison.conditions,
    )


def complete_calibration(runner: Runner, pace: FinalsPace | None) -> None:
    """Hold the baseline against the datasets that were left for later: no finalist is checked before."""
    if pace is not None and pace.costs.deferred_s and isinstance(runner, Paced):
        runner.complete()
        pace.note_completed()


def _reject(runner: Runner, candidate: Candidate) -> str | None:
    """Why a finalist may not win, or None."""
    outcome, _ = runner.submit(EvaluationRequest(candidate, is_thorough=True, is_timed=False)).result()
    return f"{outcome.stage}: {outcome.message}" if isinstance(outcome, Failed) else None
