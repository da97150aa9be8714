"""Figures of attempts: from a recorded run, and from trees made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelwright.insights.attempts import attempts_of, common_failures, figures_of
from kernelwright.llm.account import Account
from kernelwright.llm.base import ChatRequest, Message, Reply, Usage
from kernelwright.llm.recorded import FILE_NAME
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.event import NodeJudged, NodeProposed, TreeEvent
from kernelwright.tree.model import Tree

RECORDED = Path(__file__).parents[1] / "agent" / "recordings"


def attempt(index: int, parent: int, role: str, status: str, stage: str = "", reason: str = "") -> list[TreeEvent]:
    value = 0.5 if status == "working" else None
    return [
        NodeProposed(index, parent, role, f"t{index}", "", "", "", None, "b", "opencl"),  # type: ignore[arg-type]
        NodeJudged(index, status, value, stage, reason, "told"),  # type: ignore[arg-type]
    ]


def start() -> list[TreeEvent]:
    return [
        NodeProposed(0, None, "baseline", "", "", "", "", None, "b", "opencl"),
        NodeJudged(0, "working", 1.0),
        *attempt(1, 0, "template", "working"),
    ]


def test_the_figures_of_a_recorded_run_without_a_claim() -> None:
    """Four attempts with a model: one correct, three declined; its interval contains 1, so nothing was accepted."""
    folder = RECORDED / "transpose"
    figures = figures_of(OptimizeResult.read(folder))
    assert (figures.attempt_count, figures.correct_count, figures.refused_count) == (4, 1, 3)
    assert figures.correct_rate == 0.25
    assert (figures.attempts_to_correct, figures.faster_count) == (1, 1)
    assert figures.failures == (("lint: declined", 3),)
    assert figures.repair_rate is None
    assert (figures.gained_percent, figures.tokens_per_percent) == (None, None)
    assert figures.tokens == tokens_of(folder)


def test_the_figures_of_a_recorded_run_with_a_repair() -> None:
    """A failure, its repair, a slower structure that works, one that was declined; and a claim."""
    folder = RECORDED / "transpose-repaired"
    result = OptimizeResult.read(folder)
    figures = figures_of(result)
    assert (figures.attempt_count, figures.correct_count, figures.refused_count) == (4, 2, 1)
    assert (figures.attempts_to_correct, figures.faster_count) == (2, 1)
    assert (figures.repair_count, figures.repaired_count, figures.repair_rate) == (1, 1, 1.0)
    assert figures.failures == (("check: unwritten", 1), ("lint: declined", 1))
    assert result.speedup is not None
    percent = 100 * (result.speedup.estimate - 1)
    assert figures.gained_percent == pytest.approx(percent)
    assert figures.tokens_per_percent == pytest.approx(tokens_of(folder) / percent)


def tokens_of(folder: Path) -> int:
    """Of all recorded replies, counted from the file itself."""
    usages = [json.loads(line.partition(" ")[2])["reply"]["usage"] for line in (folder / FILE_NAME).open()]
    return sum(each["input_tokens"] + each["output_tokens"] for each in usages)


def test_what_is_there_at_the_start_is_no_attempt() -> None:
    figures = attempts_of(Tree.of(start()))
    assert figures.attempt_count == 0
    assert figures.correct_rate is None
    assert figures.attempts_to_correct is None
    assert figures.tokens is None


def test_failures_repairs_and_the_first_that_works() -> None:
    events = [
        *start(),
        *attempt(2, 1, "code", "failed", "build", "compile-error"),
        *attempt(3, 2, "debug", "failed", "check", "mismatch"),
        *attempt(4, 3, "debug", "working"),
        *attempt(5, 1, "code", "refused", "lint", "duplicate"),
        *attempt(6, 1, "code", "failed", "check", "mismatch"),
        NodeProposed(7, 1, "code", "t7", "", "", "", None, "b", "opencl"),
    ]
    figures = attempts_of(Tree.of(events))
    assert (figures.attempt_count, figures.correct_count, figures.attempts_to_correct) == (5, 1, 3)
    assert (figures.repair_count, figures.repaired_count, figures.repair_rate) == (2, 1, 0.5)
    assert figures.failures == (("check: mismatch", 2), ("build: compile-error", 1), ("lint: duplicate", 1))
    assert common_failures([figures, figures])[0] == ("check: mismatch", 4)


def test_tokens_are_counted_for_accepted_speed_alone() -> None:
    account = Account()
    request = ChatRequest("plan", "system", (Message("user", "text"),))
    account.charge(request, Reply("answer", "model", Usage(900, None, 100)))
    tree = Tree.of([*start(), *attempt(2, 1, "code", "working")])
    assert attempts_of(tree, account=account, speedup=1.5).tokens_per_percent == pytest.approx(20.0)
    kept = attempts_of(tree, account=account, speedup=None)
    assert (kept.tokens, kept.tokens_per_percent) == (1000, None)
    assert attempts_of(tree, speedup=1.5).tokens_per_percent is None
