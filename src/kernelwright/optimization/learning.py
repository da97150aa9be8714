"""What a run of `optimize` has taught: its measured steps, its failures, and the template that won, as lessons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from kernelwright.agent.base import Task, Written
from kernelwright.errors import StoreError
from kernelwright.memory.lesson import MOST_TEMPLATE, Circumstances, Kind, Lesson, Measured
from kernelwright.memory.library import Library
from kernelwright.optimization.remembering import circumstances
from kernelwright.optimization.settings import REPLAY, OptimizeSettings
from kernelwright.problem.config import Value
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.tree.model import Node
from kernelwright.tree.moves import NO_IDEA
from kernelwright.version import VERSION

LEAST_EVALUATIONS = 4
"""A node that was searched less says little about its idea."""

NOTHING: Mapping[str, Value] = MappingProxyType({})

NOT_FAILURES = frozenset({"duplicate", "declined", NO_IDEA})


def learn(result: OptimizeResult, task: Task, written: Written, *, settings: OptimizeSettings, proposer: str) -> str:
    """Keep what a run has taught, if it is to be kept; gives why it could not be, in words, else nothing.

    Args:
        result: the run, its final comparison made.
        task: the run's.
        written: its baseline.
        settings: the run's; a replay teaches nothing.
        proposer: the agent's name.
    """
    if settings.memory != "on" or settings.model.startswith(REPLAY):
        return ""
    model = "" if proposer == "rules" else proposer
    try:
        Library().add(lessons_of(result, circumstances(task, written), model=model))
    except (StoreError, OSError) as error:
        message = error.message if isinstance(error, StoreError) else str(error)
        return f"nothing is remembered: {message}"
    return ""


def lessons_of(result: OptimizeResult, where: Circumstances, *, model: str) -> tuple[Lesson, ...]:
    """Everything that is worth keeping of a run whose final comparison is made.

    Args:
        result: the run.
        where: its circumstances.
        model: who proposed; empty: rules.
    """
    made = [*_steps(result, where, model), *_failures(result, where, model), *_templates(result, where, model)]
    return tuple(lesson for each in made if (lesson := Lesson.read(each.as_record())) is not None)


def _steps(result: OptimizeResult, where: Circumstances, model: str) -> Iterator[Lesson]:
    for node in result.tree:
        if node.parent is None or not node.is_working or node.role not in ("code", "debug", "template"):
            continue
        interval, gain = result.step_interval(node.index), result.tree.gain(node.index)
        if interval is not None:
            measured = Measured.of(interval)
        elif gain is not None and gain > 0 and node.tuning.evaluated_count >= LEAST_EVALUATIONS:
            measured = Measured(gain)
        else:
            continue
        yield _lesson(result, node, where, model, "step", measured=measured)


def _failures(result: OptimizeResult, where: Circumstances, model: str) -> Iterator[Lesson]:
    for node in result.tree:
        failure = node.failure
        if node.parent is None or failure is None or not node.source_blob or failure.reason in NOT_FAILURES:
            continue
        yield _lesson(result, node, where, model, "failure")


def _templates(result: OptimizeResult, where: Circumstances, model: str) -> Iterator[Lesson]:
    """The best config of each node on the winner's path that beats the baseline; the winner's with its text."""
    if not result.is_gain:
        return
    for step in result.path[1:]:
        node = step.node
        config = result.compared_config(node.index)
        if step.total is None or step.total.side != "above" or not config:
            continue
        text = ""
        if result.fastest is not None and node.index == result.fastest.index:
            try:
                text = result.source(node.index)
            except StoreError:
                text = ""
        yield _lesson(
            result,
            node,
            where,
            model,
            "template",
            measured=Measured.of(step.total),
            config=dict(config),
            text=text if len(text) <= MOST_TEMPLATE else "",
        )


def _lesson(
    result: OptimizeResult,
    node: Node,
    where: Circumstances,
    model: str,
    kind: Kind,
    *,
    measured: Measured | None = None,
    config: Mapping[str, Value] = NOTHING,
    text: str = "",
) -> Lesson:
    started, failure = result.view.started, node.failure
    key = (node.tactic or node.role).partition("@")[0]
    return Lesson(
        kind=kind,
        key=key,
        where=where,
        run=started.run_id,
        node=node.index,
        date=started.created,
        family=node.family,
        problem=started.problem_name,
        version=VERSION,
        model=model,
        instruction=node.instruction,
        predicted=node.predicted_gain,
        measured=measured,
        stage=failure.stage if failure is not None else "",
        reason=failure.reason if failure is not None else "",
        message=failure.message if failure is not None else "",
        tactics=node.tactics if kind == "template" else (),
        config=config,
        text=text,
    )
