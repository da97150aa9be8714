"""What every runner must do, as tests: subclass `RunnerContract` and say how to make the runner.

```python
class TestMine(RunnerContract):
    @pytest.fixture
    def subject(self, ...) -> RunnerSubject: ...
```
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.evaluate.base import EvaluationRequest, Runner
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.template.model import Candidate

RESULT_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class RunnerSubject:
    """A runner that is open and ready (its baseline calibrated, where it has one), with candidates for it."""

    runner: Runner
    good: Sequence[Candidate]
    """At least two that pass."""
    bad: Sequence[Candidate]
    """At least one that fails."""
    workloads: Sequence[str]


class RunnerContract:
    """The promises of `evaluate.base.Runner`."""

    def test_a_good_candidate_passes_with_samples_on_every_workload(self, subject: RunnerSubject) -> None:
        """Samples are positive."""
        outcome, _ = subject.runner.submit(EvaluationRequest(subject.good[0])).result(RESULT_TIMEOUT_S)
        assert isinstance(outcome, Passed)
        assert [each.workload for each in outcome.measurements] == list(subject.workloads)
        for measurement in outcome.measurements:
            assert measurement.samples_ms
            assert min(measurement.samples_ms) > 0

    def test_a_bad_candidate_is_a_value_and_the_runner_goes_on(self, subject: RunnerSubject) -> None:
        """A failure never raises, and the next candidate is evaluated as if nothing had been."""
        for candidate in subject.bad:
            outcome, _ = subject.runner.submit(EvaluationRequest(candidate)).result(RESULT_TIMEOUT_S)
            assert isinstance(outcome, Failed)
            assert outcome.reason
            assert outcome.message
        after, _ = subject.runner.submit(EvaluationRequest(subject.good[0])).result(RESULT_TIMEOUT_S)
        assert isinstance(after, Passed)

    def test_as_many_as_the_capacity_may_be_in_flight(self, subject: RunnerSubject) -> None:
        """Every future resolves, to what comes of the candidate that was submitted."""
        assert subject.runner.capacity >= 1
        pool = [*subject.good, *subject.bad]
        candidates = [pool[index % len(pool)] for index in range(subject.runner.capacity + 1)]
        futures = [subject.runner.submit(EvaluationRequest(candidate)) for candidate in candidates]
        passed = [isinstance(future.result(RESULT_TIMEOUT_S)[0], Passed) for future in futures]
        assert passed == [candidate in subject.good for candidate in candidates]

    def test_costs_are_told_and_evaluations_travel(self, subject: RunnerSubject) -> None:
        """No phase has a negative cost; an evaluation pickles."""
        evaluation = subject.runner.submit(EvaluationRequest(subject.good[1])).result(RESULT_TIMEOUT_S)
        _, cost = evaluation
        assert min(cost.build_s, cost.check_s, cost.time_s, cost.framework_s, cost.strategy_s) >= 0
        assert pickle.loads(pickle.dumps(evaluation)) == evaluation  # noqa: S301 - our own bytes

    def test_a_comparison_is_aligned_or_absent(self, subject: RunnerSubject) -> None:
        """One row a candidate in the order given, one sample a round."""
        comparison = subject.runner.compare(list(subject.good[:2]), rounds=6)
        if comparison is None:
            return  # a runner that cannot measure again says so by None
        assert comparison.candidate_ids == tuple(candidate.id for candidate in subject.good[:2])
        assert set(comparison.samples_ms) == set(subject.workloads)
        for rows in comparison.samples_ms.values():
            assert [len(row) for row in rows] == [6, 6]
            assert all(sample > 0 for row in rows for sample in row)
