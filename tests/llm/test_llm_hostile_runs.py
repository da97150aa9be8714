"""Whole runs with services that are silent, or answer with what is no answer: each ends in words, and repeats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, answering_server
from test_compare_with_a_model import Script, cost, role_of

from kernelwright.errors import ModelRateLimited
from kernelwright.insights.verdict_words import kept_because
from kernelwright.llm.base import MOST_REPLY_CHARACTERS
from kernelwright.llm.recorded import FILE_NAME, read_exchanges
from kernelwright.optimization.agent import account_of
from kernelwright.optimization.optimize import optimize, replay_optimize, resume_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings

Answering = Callable[[dict[str, Any]], Answer]

SILENT = Answer(is_silent=True)
EMPTY = {"id": "x", "object": "chat.completion", "created": 1, "model": "x", "choices": []}
NO_CHOICES = Answer(body=json.dumps(EMPTY))


def chosen(url: str, *, budget: Budget, max_tokens: int | None = None) -> OptimizeSettings:
    return OptimizeSettings(
        tune=TuneSettings(budget=budget, searcher="random", comparison_rounds=10, seed=5),
        model=f"openai:m@{url}",
        proof_points=0,
        max_tokens=max_tokens,
        max_attempts=1,
        memory="off",
        roles={"analyses": False},
    )


def run_with(
    answering: Answering, problem: Path, run: Path, budget: Budget | None = None, **changes: Any
) -> OptimizeResult:
    with answering_server(answering) as server:
        settings = chosen(server.url, budget=budget or Budget(evaluations=12), **changes)
        return optimize(problem, settings=settings, run=run, machine=SimulatedMachine(cost))


def always(answer: Answer) -> Answering:
    return lambda _body: answer


def after_the_template(answer: Answer) -> Answering:
    script = Script()
    return lambda body: script(body) if role_of(body) == "template" else answer


def replies(run: Path) -> list[str]:
    return [each.reply.failure for each in read_exchanges(run / FILE_NAME)[0]]


@pytest.mark.parametrize("answer", [SILENT, Answer(stops_after=20)])
def test_a_run_ends_with_its_budget_whatever_it_waits_for(plain: Path, tmp_path: Path, answer: Answer) -> None:
    result = run_with(always(answer), plain, tmp_path / "run", Budget(seconds=2.0))
    assert result.reason == "budget"
    failures = replies(tmp_path / "run")
    assert set(failures) <= {"ModelAbandoned", "ModelBudgetSpent"}
    words = kept_because(result)
    assert words.startswith("Nothing was changed in it; ")
    assert "the time of the run is over" in words
    account = account_of(tmp_path / "run")
    assert account is not None
    cut_off = failures.count("ModelAbandoned")
    assert (account.total.failed, account.total.unknown_tokens) == (cut_off, cut_off)


@pytest.mark.parametrize(
    ("answering", "budget"),
    [
        (always(SILENT), Budget(seconds=2.0)),
        (after_the_template(SILENT), Budget(seconds=4.0)),
        (always(NO_CHOICES), Budget(evaluations=12)),
        (after_the_template(NO_CHOICES), Budget(evaluations=12)),
    ],
)
def test_what_came_to_nothing_is_repeated_from_the_record(
    plain: Path, tmp_path: Path, answering: Answering, budget: Budget
) -> None:
    result = run_with(answering, plain, tmp_path / "run", budget)
    again = replay_optimize(tmp_path / "run", run=tmp_path / "again")
    assert again.differences == ()
    assert [node.status for node in again.result.tree] == [node.status for node in result.tree]


def test_a_verdict_says_that_no_reply_could_be_read(plain: Path, tmp_path: Path) -> None:
    words = kept_because(run_with(always(NO_CHOICES), plain, tmp_path / "run"))
    assert "to the model came to nothing" in words
    assert "its choices are '[]'" in words
    assert "reason of each tactic" not in words


def test_a_verdict_says_that_a_cap_could_not_be_kept(plain: Path, tmp_path: Path) -> None:
    negative = {"prompt_tokens": -5, "completion_tokens": -5, "total_tokens": -10}
    result = run_with(always(Answer("nope", usage=negative)), plain, tmp_path / "run", max_tokens=10_000)
    assert "so a cap of 10000 cannot be kept" in kept_because(result)


def test_a_service_that_asks_for_a_day_ends_the_run_in_words(plain: Path, tmp_path: Path) -> None:
    answer = Answer(status=429, headers={"retry-after": "100000"}, body="{}")
    with pytest.raises(ModelRateLimited, match="asks for none in 86400 s") as caught:
        run_with(always(answer), plain, tmp_path / "run")
    assert "kernelwright resume" in (caught.value.hint or "")


def test_half_a_character_in_a_reply_ends_no_run(plain: Path, tmp_path: Path) -> None:
    result = run_with(always(Answer("nope \ud800 nope")), plain, tmp_path / "run")
    assert result.reason is not None
    asked = [each.request for each in read_exchanges(tmp_path / "run" / FILE_NAME)[0]]
    assert any("nope \ufffd nope" in each.text for request in asked for each in request.messages)
    assert resume_optimize(tmp_path / "run", machine=SimulatedMachine(cost)).reason == result.reason


def test_of_a_reply_that_is_too_long_little_goes_back_and_a_part_is_recorded(plain: Path, tmp_path: Path) -> None:
    bodies: list[str] = []

    def answering(body: dict[str, Any]) -> Answer:
        bodies.append(json.dumps(body))
        return Answer("A" * 5 * MOST_REPLY_CHARACTERS)

    run_with(answering, plain, tmp_path / "run")
    corrections = [each for each in bodies if "is too long" in each]
    assert corrections
    assert max(map(len, corrections)) < len(bodies[0]) + MOST_REPLY_CHARACTERS / 10
    exchanges, _ = read_exchanges(tmp_path / "run" / FILE_NAME)
    assert max(len(each.reply.text) for each in exchanges) < MOST_REPLY_CHARACTERS + 100
