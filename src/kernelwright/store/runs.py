"""The runs in a folder, each in a line: for people who look for one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernelwright.errors import StoreError
from kernelwright.store.lock import is_locked
from kernelwright.store.run_folder import runs_in
from kernelwright.store.view import RunView


@dataclass(frozen=True, slots=True)
class _RunSummary:
    """One line of a list of runs."""

    name: str
    folder: Path
    problem_name: str
    device_name: str
    created: str
    """ISO 8601, UTC; empty when unreadable."""
    evaluation_count: int
    best_value: float | None
    """The winner's time relative to the baseline, lower is better; None: no winner."""
    state: Literal["running", "finished", "interrupted", "unreadable"]
    """`interrupted` also after a crash: such a run can be resumed."""
    complaint: str = ""
    """Why it is unreadable."""


def list_runs(folder: Path) -> list[_RunSummary]:
    """The runs in `folder`, oldest first, those that cannot be read included; empty when there is no such folder.

    Raises:
        StoreError: `folder` exists but cannot be listed.
    """
    summaries = []
    for path in runs_in(Path(folder)):
        is_live = is_locked(path / "lock")
        try:
            summaries.append(_summary(path, RunView.read(path), is_live=is_live))
        except StoreError as error:
            state: Literal["running", "unreadable"] = "running" if is_live else "unreadable"
            summaries.append(_RunSummary(path.name, path, "", "", "", 0, None, state, error.message))
    return sorted(summaries, key=lambda summary: (summary.created, summary.name))


def _summary(path: Path, view: RunView, *, is_live: bool) -> _RunSummary:
    is_finished = view.finished is not None and view.finished.reason != "interrupted"
    return _RunSummary(
        name=path.name,
        folder=path,
        problem_name=view.started.problem_name,
        device_name=str(view.started.device.get("name", "")),
        created=view.started.created,
        evaluation_count=view.evaluated_count,
        best_value=view.fastest.ratio if view.fastest is not None else None,
        state="running" if is_live else "finished" if is_finished else "interrupted",
    )
