"""Recorded runs of `optimize` with a model, repeated whole, offline: whatever decides decides again.

Each folder of `recordings` is a run on a CPU device, or, where its name says so, on an H100 behind a spool with
several structures under way: events, blobs, problem, every request and reply, and the nodes' own logs, without their
copies of the problem. Replies came through an OpenAI-compatible endpoint; some are wrong on purpose, so that complaints
and repairs are in the record. The runs show that the optimiser works, not what any model is worth. A request that is
worded otherwise by now is answered by what was recorded for its role, node and turn; whoever changes what is decided
must record anew.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kernelwright.llm.recorded import FILE_NAME, read_exchanges
from kernelwright.optimization.optimize import replay_optimize
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.tree.model import Tree

FOLDERS = sorted(each.parent for each in (Path(__file__).parent / "recordings").glob("*/events.jsonl"))
every_recording = pytest.mark.parametrize("folder", FOLDERS, ids=lambda each: each.name)

TIMES = {
    "elapsed_s",
    "spent_s",
    "time_s",
    "process_id",
    "run_id",
    "created",
    "version",
    "environment",
    "settings",
    "choice",
}


def events_of(folder: Path) -> list[dict[str, Any]]:
    """Every event as JSON, without times, ids and what a later version records besides."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(each) for key, each in value.items() if key not in TIMES}
        return [strip(each) for each in value] if isinstance(value, list) else value

    with RunFolder.open(folder, writable=False) as run:
        return [strip(json.loads(json.dumps(dataclasses.asdict(each), default=str))) for each in run.read()]


def test_there_are_recordings() -> None:
    assert FOLDERS


@pytest.mark.few(2)
@every_recording
def test_a_recorded_run_is_repeated_event_by_event(folder: Path, tmp_path: Path) -> None:
    replay = replay_optimize(folder, run=tmp_path / "again")
    assert events_of(tmp_path / "again")[1:] == events_of(folder)[1:]
    assert replay.event_count == len(events_of(folder))
    assert read_exchanges(tmp_path / "again" / FILE_NAME) == read_exchanges(folder / FILE_NAME)
    for node in replay.result.tree:
        if node.source_blob:
            source = tmp_path / "again" / "blobs" / node.source_blob
            assert source.read_bytes() == (folder / "blobs" / node.source_blob).read_bytes()


@every_recording
def test_what_a_model_wrote_was_the_fastest_that_the_search_found(folder: Path) -> None:
    """Whether it is faster beyond noise is another matter, which the recorded comparison says."""
    tree = Tree.of(RunView.read(folder).tree_events)
    assert tree.best is not None
    assert any(node.role in ("code", "debug") for node in tree.path(tree.best.index))
    assert tree.best.best_value is not None
    assert tree.best.best_value < 0.8


def test_replies_that_could_not_be_used_went_back() -> None:
    exchanges = [each for folder in FOLDERS for each in read_exchanges(folder / FILE_NAME)[0]]
    assert {each.request.role for each in exchanges} >= {"template", "plan", "code", "debug", "analyse"}
    assert any(len(each.request.messages) > 1 for each in exchanges)


@every_recording
def test_a_recording_holds_nothing_private(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            text = file.read_bytes().lower()
            for word in (b"authorization", b"bearer ", b"sk-", b"api_key", b"/root", b"/home/", b"/tmp/", b"/work"):
                assert word not in text, (file.name, word)
