"""Runs to export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from recorded_runs import record_run_of


@pytest.fixture
def record_run(tmp_path: Path) -> Callable[..., Path]:
    """`recorded_runs.record_run_of`, into a folder of this test."""

    def record(problem: Path, configs: list[Mapping[str, object]], *, compare: bool = True, name: str = "run") -> Path:
        return record_run_of(problem, configs, tmp_path / name, compare=compare)

    return record
