"""No honest kernel is refused, whatever order or formula it takes; kernels that compute with a little less all are."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from honest_kernels import honest_kernels
from honest_problems import CASES, write_problem
from near_faults import near_faults

from busy import ignore_busy_machine
from kernelwright.evaluate.base import EvaluationRequest
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Outcome
from kernelwright.template.load import template_of_text
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

HONEST, FAULTS = honest_kernels(), near_faults()


def outcomes_of(problem: str, folder: Path, data_seed: int) -> dict[tuple[str, str], Outcome]:
    """By problem and style, what a finalist's check on all datasets says."""
    subject = TuningProblem.load(write_problem(problem, folder / problem))
    machine = LocalMachine()
    settings = TuneSettings(seconds_per_measurement=0.1, data_seed=data_seed)
    found: dict[tuple[str, str], Outcome] = {}
    with machine.runner(subject.problem, machine.device(None, "opencl"), settings) as runner:
        ignore_busy_machine(runner)
        runner.calibrate(subject.baseline)
        for key, source in {**HONEST, **FAULTS}.items():
            if key[0] == problem:
                template = template_of_text(subject.problem, source, spec=subject.problem.kernel)
                request = EvaluationRequest(Candidate(template, Config({})), is_thorough=True, is_timed=False)
                found[key] = runner.submit(request).result()[0]
    return found


def test_there_are_forty_honest_kernels_in_many_orders_and_a_fault_beside_most() -> None:
    assert len(HONEST) >= 40
    assert {problem for problem, _ in HONEST} == CASES.keys()
    assert len({problem for problem, _ in FAULTS}) >= 15


@pytest.mark.opencl
@pytest.mark.few(2)
@pytest.mark.parametrize(
    "problem", ["gelu_line", *(name for name in CASES if name not in ("gelu_line", "sums")), "sums"]
)
def test_honest_kernels_pass_on_all_datasets_and_near_faults_do_not(problem: str, tmp_path: Path) -> None:
    seed = secrets.randbelow(1 << 32)
    outcomes = outcomes_of(problem, tmp_path, seed)
    refused = {key: each.message for key, each in outcomes.items() if key in HONEST and isinstance(each, Failed)}
    assert refused == {}, f"data seed {seed}"
    for key in outcomes.keys() & FAULTS.keys():
        outcome = outcomes[key]
        assert isinstance(outcome, Failed), (key, seed)
        assert outcome.stage == "check", outcome.message
