"""A recorded run with a model, replayed role by role: the same contexts make the same prompts, and these the same tree.

`recordings/transpose` is a run of `optimize examples/transpose --start baseline` on a CPU device, unedited: its events,
its blobs, its problem, and every request and reply. The nodes' own searches are left out. It shows that the optimiser
works, not what any model is worth. Whoever changes what a prompt says must record such a run anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from kernelwright.agent.base import CodeContext, DebugContext, Draft, PlanContext, Task, TemplateContext, Written
from kernelwright.agent.model.agent import ModelAgent
from kernelwright.backend.base import DeviceInfo
from kernelwright.llm.recorded import FILE_NAME, RecordedModel, Recording
from kernelwright.problem.load import load_problem
from kernelwright.store.event import Event, NodePlanned, NodeProposed, RunStarted, TreeEvent
from kernelwright.store.run_folder import RunFolder
from kernelwright.tree.model import Failure, Node, Tree

FOLDER = Path(__file__).parent / "recordings" / "transpose"


@pytest.fixture
def recorded() -> RunFolder:
    return RunFolder.open(FOLDER, writable=False)


def steps(folder: RunFolder) -> Iterator[tuple[Tree, TreeEvent]]:
    """Every event of the tree with the tree before it."""
    tree = Tree()
    for event in folder.read():
        if isinstance(event, get_args(TreeEvent)):
            yield tree, event  # type: ignore[misc]
            tree = tree.after([event])  # type: ignore[list-item]


def task_of(folder: RunFolder) -> Task:
    started = next(iter(folder.read()))
    assert isinstance(started, RunStarted)
    described: dict[str, Any] = dict(started.device)
    ceilings = {name: described.pop(name, None) for name in ("copy_bytes_per_s", "operations_per_s")}
    known = {name: described[name] for name in DeviceInfo.__dataclass_fields__ if name in described}
    return Task(load_problem(folder.problem_file), DeviceInfo(**known), **ceilings)


def written_of(folder: RunFolder, node: Node) -> Written:
    text = folder.blobs.get_text(node.source_blob)
    return Written(text, node.language, "transpose", node.tactics, node.properties)


def agent_of(folder: RunFolder) -> ModelAgent:
    model = RecordedModel(Recording(FOLDER / FILE_NAME, writable=False), None)
    return ModelAgent(model, source_of=lambda node: folder.blobs.get_text(node.source_blob) if node.source_blob else "")


def replayed(folder: RunFolder, tree: Tree, event: NodeProposed, task: Task) -> Draft | None:
    """What the role proposes now, asked as it was then; None for what no role has proposed."""
    agent = agent_of(folder)
    if event.role == "template":
        result = agent.template(TemplateContext(task, written_of(folder, tree[0])))
    elif event.role == "code" and event.parent is not None and event.source_blob:
        node = tree[event.parent]
        idea = next(each for each in node.ideas if each.key == event.tactic)
        result = agent.code(CodeContext(task, tree, node, written_of(folder, node), idea))
    elif event.role == "debug" and event.parent is not None and event.source_blob:
        node = tree[event.parent]
        failure = node.failure or Failure("", "", "")
        result = agent.debug(DebugContext(task, tree, node, written_of(folder, node), failure))
    else:
        return None
    assert isinstance(result, Draft), result
    return result


def test_every_plan_is_made_again(recorded: RunFolder) -> None:
    task, count = task_of(recorded), 0
    for tree, event in steps(recorded):
        if isinstance(event, NodePlanned):
            node = tree[event.index]
            plan = agent_of(recorded).plan(PlanContext(task, tree, node, written_of(recorded, node)))
            assert plan.ideas == event.ideas
            assert dict(plan.refused) == dict(event.refused)
            count += 1
    assert count >= 2


def test_every_source_is_written_again_bit_for_bit(recorded: RunFolder) -> None:
    task, count = task_of(recorded), 0
    for tree, event in steps(recorded):
        if isinstance(event, NodeProposed):
            draft = replayed(recorded, tree, event, task)
            if draft is not None:
                assert draft.written.text == recorded.blobs.get_text(event.source_blob)
                assert draft.written.tactics == event.tactics
                assert draft.explanation == event.instruction
                count += 1
    assert count >= 2


def test_a_model_made_it_faster(recorded: RunFolder) -> None:
    events: list[Event] = list(recorded.read())
    tree = Tree.of(event for event in events if isinstance(event, get_args(TreeEvent)))  # type: ignore[misc]
    assert tree.best is not None
    assert tree.best.role == "code"
    assert tree.best.best_value is not None
    assert tree.best.best_value < 0.8


def test_the_recording_holds_nothing_private() -> None:
    for file in FOLDER.rglob("*"):
        if file.is_file():
            text = file.read_bytes().lower()
            for word in (b"authorization", b"bearer ", b"sk-", b"api_key", b"/root", b"/home/"):
                assert word not in text, (file.name, word)
