"""A run says when its times were taken on a device that was slowed down, or by different timers."""

from __future__ import annotations

import dataclasses

import pytest

from kernelwright.evaluate.base import Comparison
from kernelwright.problem.outcome import Conditions, Passed
from kernelwright.results.conditions import measurement_notes
from kernelwright.testing.simulated import SimulatedMachine, SimulatedRunner
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune

HOT = Conditions(3, 1200.0, 1500.0, 2600.0, 88.0, 690.0, ("power cap",))
COOL = Conditions(3, 1980.0, 1980.0, 2600.0, 50.0, 300.0)


class Machine(SimulatedMachine):
    """Gives every set of samples these conditions and timers, in turn."""

    def __init__(self, conditions, timers=("a clock",)):
        super().__init__(lambda config, workload: 1.0)
        self.conditions, self.timers = conditions, timers

    def runner(self, problem, device, settings):
        machine, count = self, iter(range(10_000))

        class Runner(SimulatedRunner):
            def _evaluate(self, candidate):
                outcome, cost = super()._evaluate(candidate)
                assert isinstance(outcome, Passed)
                number = next(count)
                measurements = tuple(
                    dataclasses.replace(
                        each,
                        conditions=machine.conditions[number % len(machine.conditions)],
                        timer=machine.timers[number % len(machine.timers)],
                    )
                    for each in outcome.measurements
                )
                return Passed(measurements), cost

            def compare(self, candidates, *, rounds):
                found = super().compare(candidates, rounds=rounds)
                conditions = machine.conditions[-1]
                return Comparison(
                    found.candidate_ids,
                    found.samples_ms,
                    conditions={name: conditions for name in found.samples_ms if conditions},
                )

        return Runner(problem, lambda config, workload: 1.0)


def notes(saxpy, tmp_path, machine):
    chosen = TuneSettings(budget=Budget(evaluations=5), searcher="random")
    view = tune(saxpy, settings=chosen, run=tmp_path / "run", machine=machine).view
    assert measurement_notes(view) == [note.text for note in view.notes]
    return [note.text for note in view.notes]


def test_throttling_is_noted_with_its_reason_and_clocks(saxpy, tmp_path):
    found = notes(saxpy, tmp_path, Machine([HOT, COOL]))
    assert len(found) == 1
    assert "power cap" in found[0]
    assert "between 1200 and 1980 MHz" in found[0]


def test_timers_that_differ_are_noted(saxpy, tmp_path):
    found = notes(saxpy, tmp_path, Machine([None], ["cuda-cupti", "cuda-events"]))
    assert len(found) == 1
    assert "cuda-events" in found[0]


@pytest.mark.parametrize("conditions", [[COOL], [None]])
def test_nothing_is_noted_of_a_quiet_machine(saxpy, tmp_path, conditions):
    assert notes(saxpy, tmp_path, Machine(conditions)) == []
