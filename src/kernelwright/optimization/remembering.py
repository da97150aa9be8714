"""What earlier runs have learnt, put to use in a run: in the order of ideas, in starting values, in a model's context.

What is used stands in the run's own log (`MemoryRecalled`), so a resumed or replayed run uses the same, whatever has
become of the library since.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelwright.agent.base import Agent, Context, Declined, Draft, Plan, Task, Written
from kernelwright.agent.composed import played
from kernelwright.agent.rules.subjects import subject_of
from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import KernelwrightError, SpecError, StoreError
from kernelwright.evaluate.data.layout import shape_of
from kernelwright.memory.lesson import Circumstances
from kernelwright.memory.library import Library, now
from kernelwright.memory.recall import (
    Recalled,
    believed_gain,
    example_for_model,
    model_words,
    predictions_of,
    recall,
    remembered_values,
)
from kernelwright.memory.text import label
from kernelwright.optimization.settings import REPLAY, OptimizeSettings
from kernelwright.problem.config import Value
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.model import Problem
from kernelwright.store.event import Idea, MemoryRecalled
from kernelwright.store.view import RunView
from kernelwright.version import VERSION

CACHED, STREAMING = 0.5, 4.0
"""Bytes of the workloads over the last cache's: below the first they stay in it, above the second they do not."""


def circumstances(task: Task, written: Written) -> Circumstances:
    """Under which circumstances a run's kernel is measured."""
    problem, device = task.problem, task.device
    outputs = list(problem.outputs)
    return Circumstances(
        pattern=pattern_of(task, written),
        language=written.language,
        device=label(device.name),  # as it is read back from the library
        architecture=architecture(device),
        shape=shape_class(problem, device),
        dtype=outputs[0].dtype if outputs else "unknown",
    )


def pattern_of(task: Task, written: Written) -> str:
    """The kernel's pattern, or that which it almost has; `generic` where it cannot be analysed."""
    try:
        pattern = subject_of(task, written).pattern
    except SpecError:
        return "generic"
    return pattern.near[0].kind if pattern.kind == "generic" and pattern.near else pattern.kind


def architecture(device: DeviceInfo) -> str:
    """`cpu`, `sm_90`, `opencl-gpu`, ...: devices between which a lesson may hold."""
    capability = device.limits.get("compute_capability")
    if capability:
        return f"sm_{capability}"
    return device.kind if device.kind in ("cpu", "simulated") else f"{device.backend}-{device.kind}"


def shape_class(problem: Problem, device: DeviceInfo) -> str:
    """The workloads' bytes, in the mean, against the device's last cache."""
    cache_bytes = device.limits.get("last_level_cache")
    if not cache_bytes:
        return "unknown"
    arrays = [each for each in problem.arguments if each.role in ("input", "inout", "output")]
    logs = []
    for workload in problem.workloads:
        total = sum(math.prod(shape_of(each, workload)) * DTYPES[each.dtype].item_bytes for each in arrays)
        logs.append(math.log(max(total, 1)))
    ratio = math.exp(sum(logs) / len(logs)) / cache_bytes if logs else 0.0
    return "cached" if ratio < CACHED else "near-cache" if ratio < STREAMING else "streaming"


def recalled_for(settings: OptimizeSettings, task: Task, written: Written) -> MemoryRecalled | None:
    """What a new run recalls; None where it is to recall nothing.

    A replay recalls what the replayed run did, never what the library holds now.

    Raises:
        StoreError: the library, or the replayed run, cannot be read.
    """
    if settings.model.startswith(REPLAY):
        folder = Path(settings.model.removeprefix(REPLAY))
        return RunView.read(folder).recalled if folder.is_dir() else None
    if settings.memory == "off":
        return None
    contents = Library().read()
    if not contents.standing:
        return None
    found = recall(contents.standing, circumstances(task, written), now=now(), version=VERSION)
    return MemoryRecalled(tuple(each.as_record() for each in found), contents.words) if found else None


def recalled_or_note(settings: OptimizeSettings, task: Task, written: Written) -> tuple[MemoryRecalled | None, str]:
    """The same; with why nothing could be recalled, instead of an error: a run does not need its memory."""
    try:
        return recalled_for(settings, task, written), ""
    except (StoreError, OSError) as error:
        message = error.message if isinstance(error, KernelwrightError) else str(error)
        return None, f"nothing is recalled: {message}"


class Remembered:
    """What a run recalls, ready for use; empty where it recalls nothing."""

    def __init__(self, event: MemoryRecalled | None) -> None:
        records = event.lessons if event is not None else ()
        self.lessons: tuple[Recalled, ...] = tuple(
            found for record in records if (found := Recalled.read(record)) is not None
        )

    def task(self, task: Task, *, entry: str) -> Task:
        """The task with what a model is told."""
        if not self.lessons:
            return task
        return dataclasses.replace(
            task, lessons=model_words(self.lessons), example=example_for_model(self.lessons, entry=entry)
        )

    def agent(self, agent: Agent) -> Agent:
        """The agent, its ideas in the order that experience suggests."""
        return _remembering(agent, self.lessons) if self.lessons else agent

    def predictions(self, model: str) -> tuple[tuple[str, float, float], ...]:
        """Family, predicted and measured gain of this model's earlier steps, the most relevant first."""
        return predictions_of(self.lessons, model)

    def start(self, tactics: Sequence[str]) -> Mapping[str, Value]:
        """Values at which the search of a template that was made by these tactics may begin."""
        return remembered_values(tactics, self.lessons)[0]


def _remembering(agent: Agent, lessons: Sequence[Recalled]) -> Agent:
    """The agent, but for what it plans, which is predicted anew from what was measured before."""

    def plan(context: Context) -> Plan:
        """Ideas that were measured before are ranked by that."""
        planned = agent.plan(context)
        ideas = [_corrected(each, lessons) for each in planned.ideas]
        if agent.plans_ahead:
            ideas.sort(key=lambda idea: -(idea.promise or idea.predicted_gain or 1.0))  # stable
        return dataclasses.replace(planned, ideas=tuple(ideas))

    def code(context: Context, idea: Idea) -> Draft | Declined:
        """With the corrected prediction."""
        draft = agent.code(context, idea)
        if isinstance(draft, Draft) and draft.predicted_gain is not None and idea.predicted_gain is not None:
            return dataclasses.replace(draft, predicted_gain=idea.predicted_gain, because=idea.because or draft.because)
        return draft

    return played(agent, plan=plan, code=code)


def _corrected(idea: Idea, lessons: Sequence[Recalled]) -> Idea:
    gain, used = believed_gain(idea.key.partition("@")[0], idea.predicted_gain, lessons)
    if not used or gain is None:
        return idea
    ratio = gain / idea.predicted_gain if idea.predicted_gain else 1.0
    promise = max(gain, 1.0, idea.promise * ratio) if idea.promise is not None else None
    because = "; ".join([idea.because.rstrip("."), *(f"before: {each.words}" for each in used[:2])])
    return dataclasses.replace(idea, predicted_gain=gain, promise=promise, because=because)
