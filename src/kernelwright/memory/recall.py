"""Which lessons are of use to a run, how much each of them counts, and what follows from them.

A lesson counts the more, the nearer its circumstances: the same pattern and language are a condition; the same device,
kind of shapes and element type count most; and every half year halves it.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.memory.lesson import Circumstances, Lesson
from kernelwright.problem.config import Value

HALF_LIFE_DAYS = 180.0
LEAST_RELEVANCE = 0.1
OTHER_DEVICE = 0.7
"""The weight of another device of the same architecture. A guess, as are the others below."""

OTHER_ARCHITECTURE = 0.3
OTHER_SHAPE = 0.6
OTHER_DTYPE = 0.8
OTHER_VERSION = 0.5
"""The weight of a failure of an earlier version of Kernelwright: it may have been mended."""

REPEATED = 2
"""So many failures of one kind say that something does not work; one may be an accident."""

MOST_LESSONS = 24
MOST_TEXTS = 2
OWN_WEIGHT = 1.0
"""What a tactic's own prediction counts. Predictions are off by a factor of two or three, measurements are not: one
from interleaved rounds counts `INTERLEAVED_WEIGHT` times its relevance, one from a search, which may have been short,
`SEARCH_WEIGHT` times. Guesses.
"""

INTERLEAVED_WEIGHT = 3.0
SEARCH_WEIGHT = 1.5
FAILED_BEFORE = 0.5
"""Which share of a predicted gain (in logarithms) is left of what has failed repeatedly."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """One lesson with how much it counts here, from 0 to 1."""

    lesson: Lesson
    relevance: float
    seen_count: int = 1
    """How many lessons say the same; of failures, at least `REPEATED`."""

    def as_record(self) -> dict[str, Any]:
        """JSON-ready, for the run's log."""
        return {**self.lesson.as_record(), "relevance": self.relevance, "seen_count": self.seen_count}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Recalled | None:
        """From a run's log, which may be a stranger's too."""
        lesson = Lesson.read(record)
        relevance, count = record.get("relevance"), record.get("seen_count", 1)
        if lesson is None or not isinstance(relevance, int | float) or not isinstance(count, int):
            return None
        return cls(lesson, min(max(float(relevance), 0.0), 1.0), max(count, 1))

    @property
    def words(self) -> str:
        """The claim with where it comes from."""
        often = f" ({self.seen_count} times)" if self.seen_count > 1 else ""
        return f"{self.lesson.words}{often} [{self.lesson.evidence}]"


def recall(
    lessons: Iterable[Lesson], where: Circumstances, *, now: datetime.datetime, version: str = ""
) -> tuple[Recalled, ...]:
    """What is of use under these circumstances, the most telling first, at most `MOST_LESSONS` of them."""
    found: list[Recalled] = []
    failures: dict[tuple[str, str, str], list[Recalled]] = {}
    for lesson in lessons:
        relevance = relevance_of(lesson, where, now=now, version=version)
        if lesson.expired or relevance < LEAST_RELEVANCE:
            continue
        each = Recalled(lesson, round(relevance, 4))
        if lesson.kind == "failure":
            failures.setdefault((lesson.key, lesson.stage, lesson.reason), []).append(each)
        else:
            found.append(each)
    for same in failures.values():
        if len({(each.lesson.run, each.lesson.node) for each in same}) >= REPEATED:
            latest = max(same, key=lambda each: (each.relevance, each.lesson.date))
            found.append(Recalled(latest.lesson, latest.relevance, len(same)))
    found.sort(key=_rank)
    return tuple(_with_few_texts(_one_a_claim(found)[:MOST_LESSONS]))


def relevance_of(lesson: Lesson, where: Circumstances, *, now: datetime.datetime, version: str = "") -> float:
    """How much a lesson counts, from 0 to 1; 0 for another pattern or language."""
    own = lesson.where
    if (own.pattern, own.language) != (where.pattern, where.language):
        return 0.0
    weight: float = 0.5 ** (lesson.age_days(now) / HALF_LIFE_DAYS)
    if own.device != where.device:
        weight *= OTHER_DEVICE if own.architecture == where.architecture else OTHER_ARCHITECTURE
    if (own.architecture == "cpu") != (where.architecture == "cpu"):
        return 0.0
    weight *= 1.0 if own.shape == where.shape else OTHER_SHAPE
    weight *= 1.0 if own.dtype == where.dtype else OTHER_DTYPE
    if lesson.kind == "failure" and version and lesson.version != version:
        weight *= OTHER_VERSION
    return weight


def believed_gain(
    key: str, predicted: float | None, recalled: Sequence[Recalled]
) -> tuple[float | None, list[Recalled]]:
    """A predicted gain corrected by what was measured of the same change before, and the lessons that did it.

    The mean of logarithms, the prediction counted as one lesson; what has failed repeatedly keeps a half.
    """
    total, weights, used = math.log(predicted) * OWN_WEIGHT if predicted else 0.0, OWN_WEIGHT if predicted else 0.0, []
    for each in recalled:
        lesson = each.lesson
        if lesson.key != key or lesson.kind != "step" or lesson.measured is None:
            continue
        is_claim = lesson.measured.interval is not None
        weight = each.relevance * (INTERLEAVED_WEIGHT if is_claim else SEARCH_WEIGHT)
        total, weights = total + weight * math.log(lesson.measured.estimate), weights + weight
        used.append(each)
    believed = math.exp(total / weights) if weights else None
    failed = [each for each in recalled if each.lesson.kind == "failure" and each.lesson.key == key]
    if failed and believed is not None and believed > 1:
        believed **= FAILED_BEFORE
    return (believed if used or failed else predicted), [*used, *failed]


def remembered_values(tactics: Sequence[str], recalled: Sequence[Recalled]) -> tuple[dict[str, Value], str]:
    """Values with which a template of the same making was fastest before, and where that was measured.

    The last tactic must be the same, because it made the parameters that are new; then the one with the most tactics
    in common counts, then the most relevant one. Empty: there is none, or no tactic made it: a person's own template.
    """
    if not tactics:
        return {}, ""
    best: tuple[tuple[bool, int, float], Recalled] | None = None
    for each in recalled:
        lesson = each.lesson
        if lesson.kind != "template" or lesson.claim != "works" or lesson.tactics[-1:] != tuple(tactics)[-1:]:
            continue
        rank = (lesson.tactics == tuple(tactics), len(set(lesson.tactics) & set(tactics)), each.relevance)
        if best is None or rank > best[0]:
            best = rank, each
    return ({}, "") if best is None else (dict(best[1].lesson.config), best[1].lesson.evidence)


def model_words(recalled: Sequence[Recalled]) -> tuple[str, ...]:
    """What a model is told, a sentence each.

    Words of a kernel's author reach a model only if a model has seen that kernel before: instructions and messages of
    runs by rules are left out, the rest is the library's own wording.
    """
    found = []
    for each in recalled:
        lesson = each.lesson
        told = each.words if lesson.model or lesson.kind != "failure" else _without_message(each)
        if lesson.model and lesson.instruction:
            told += f" What was done: {lesson.instruction}"
        found.append(told)
    return tuple(found)


def predictions_of(recalled: Sequence[Recalled], model: str) -> tuple[tuple[str, float, float], ...]:
    """Family, predicted and measured gain of what a model's earlier steps came to, the most relevant first."""
    return tuple(
        (each.lesson.family, each.lesson.predicted, each.lesson.measured.estimate)
        for each in recalled
        if each.lesson.kind == "step" and each.lesson.model == model and each.lesson.predicted and each.lesson.measured
    )


def example_for_model(recalled: Sequence[Recalled], *, entry: str) -> tuple[str, str] | None:
    """Name and text of the most relevant verified template that a model has seen before; None: none.

    A template of a kernel that is called like the one at hand is left out, as it would be the answer.
    """
    for each in recalled:
        lesson = each.lesson
        if lesson.kind == "template" and lesson.claim == "works" and lesson.model and lesson.text:
            if lesson.problem == entry:
                continue
            source = f"run {lesson.run[:8]} node {lesson.node}, {lesson.date[:10]}"
            return f"{lesson.problem} ({lesson.measured} as fast as its baseline, {source})", lesson.text
    return None


def _without_message(each: Recalled) -> str:
    lesson = each.lesson
    often = f" ({each.seen_count} times)" if each.seen_count > 1 else ""
    return (
        f"{lesson.key} on {lesson.where.pattern} kernels does not work because it fails at {lesson.stage}: "
        f"{lesson.reason}{often} [{lesson.evidence}]"
    )


def _rank(each: Recalled) -> tuple[float, str, str]:
    """What claims something comes before what does not; then by relevance, the latest first among equals."""
    certain = each.lesson.claim != "open"
    return (-each.relevance * (2 if certain else 1), _inverted(each.lesson.date), each.lesson.id)


def _inverted(date: str) -> str:
    return "".join(chr(0x10FF - ord(char)) for char in date if ord(char) < 0x10FF)


def _one_a_claim(found: Sequence[Recalled]) -> list[Recalled]:
    """The best of each kind, key, device and shapes; the same said again is counted, not repeated."""
    groups: dict[tuple[object, ...], list[Recalled]] = {}
    for each in found:
        lesson = each.lesson
        own = lesson.id if lesson.kind == "template" else lesson.claim
        groups.setdefault((lesson.kind, lesson.key, own, lesson.where), []).append(each)
    return [Recalled(same[0].lesson, same[0].relevance, max(len(same), same[0].seen_count)) for same in groups.values()]


def _with_few_texts(found: Sequence[Recalled]) -> list[Recalled]:
    left, kept = MOST_TEXTS, []
    for each in found:
        if each.lesson.text and left == 0:
            each = dataclasses.replace(each, lesson=dataclasses.replace(each.lesson, text=""))  # noqa: PLW2901
        elif each.lesson.text:
            left -= 1
        kept.append(each)
    return kept
