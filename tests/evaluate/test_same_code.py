"""Machine code that is the same is measured once, and whoever is answered with that says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelwright.backend.base import Artifact, BuildUnit, PlanStep
from kernelwright.evaluate.base import EvaluationRequest, Incumbent
from kernelwright.evaluate.device.arena import BufferSpec, Job
from kernelwright.evaluate.device_queue.same_code import MeasuredCode, launch_id
from kernelwright.problem.outcome import Failed, Measurement, Passed

PASSED = Passed((Measurement("w", (1.0, 2.0), "a clock"),))
STOPPED = Passed((Measurement("w", (1.0,), "a clock", stopped_early=True),))
WRONG = Failed("check", "mismatch", "wrong")
INCUMBENT = Incumbent({"w": 1.0}, {"w": 1.0}, {"w": 1.0}, 1.0)


def built(binary_id="code", *, macro="1", grid=1, workload="w", scratch=0):
    unit = BuildUnit("cuda", "source", "k.cu", (("A", macro),), (), ("k",))
    plan = (PlanStep("k", (grid, 1, 1), (1, 1, 1), 0, ()),)
    artifact = Artifact(unit, "cuda:0", Path("folder"), {}, "", binary_id)
    return (Job(workload, artifact, plan, (BufferSpec("s", "scratch", scratch, b"\xff"),)),)


def request(name="a", **fields):
    return EvaluationRequest(SimpleNamespace(id=name), **fields)


@pytest.mark.parametrize(
    "other", [built("other"), built(grid=2), built(workload="v"), built(scratch=1), built(""), (*built(), *built())]
)
def test_another_launch_or_other_code_is_measured(other):
    known = MeasuredCode()
    known.add(built(), request(), PASSED)
    assert known.find(other, request("b")) is None


def test_the_same_code_from_another_source_is_answered_and_marked():
    known = MeasuredCode()
    known.add(built(), request("a"), PASSED)
    found = known.find(built(macro="2"), request("b"))
    assert found == replace(PASSED, same_as="a")
    assert launch_id(built()) == launch_id(built(macro="2"))


def test_failure_is_the_same_too_and_names_the_other():
    known = MeasuredCode()
    known.add(built(), request("a" * 20), WRONG)
    found = known.find(built(macro="2"), request("b"))
    assert (found.stage, found.reason) == ("check", "mismatch")
    assert found.message == f"wrong (the same machine code as {'a' * 12})"


def test_first_measurement_stays():
    known = MeasuredCode()
    known.add(built(), request("a"), PASSED)
    known.add(built(), request("b"), WRONG)
    assert known.find(built(), request("c")).same_as == "a"


def test_what_must_be_measured_is_measured():
    known = MeasuredCode()
    known.add(built(), request("a"), PASSED)
    assert known.find(built(), request("b", is_thorough=True)) is None
    assert known.find(built(), request("b", is_timed=False)) is None
    known = MeasuredCode()
    known.add(built(), request("a", is_thorough=True), PASSED)
    assert known.find(built(), request("b")) is None


def test_one_that_lost_a_race_answers_only_those_who_race():
    """The incumbent only becomes faster, so it would lose again."""
    known = MeasuredCode()
    known.add(built(), request("a"), STOPPED)
    assert known.find(built(), request("b")) is None
    assert known.find(built(), request("b", incumbent=INCUMBENT)).same_as == "a"
