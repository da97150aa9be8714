"""A workspace with the plain matmul, and its tools; no SDK is needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelwright.examples import example_folder
from kernelwright.mcp_tools.jobs import Jobs
from kernelwright.mcp_tools.tools import Tools
from kernelwright.mcp_tools.workspace import Workspace

SMALL = """
[[workloads]]
name = "small"
m = 128
n = 128
k = 128
"""


def write_matmul(folder: Path) -> Path:
    """The example with one small workload, so that a test is short."""
    shutil.copytree(example_folder("matmul"), folder)
    problem = folder / "problem.toml"
    text = problem.read_text()
    problem.write_text(text[: text.index("[[workloads]]")] + SMALL.lstrip())
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    root.mkdir()
    write_matmul(root / "matmul")
    return root


@pytest.fixture
def tools(root: Path, tmp_path: Path) -> Iterator[Tools]:
    workspace = Workspace(root)
    jobs = Jobs(workspace.private, 3000.0)
    yield Tools(workspace, jobs, runs=tmp_path / "runs")
    jobs.close()
    workspace.close()


@pytest.fixture
def told() -> Callable[[str], dict[str, Any]]:
    """An answer as data: small, and with what to do next."""

    def read(answer: str) -> dict[str, Any]:
        assert len(answer.encode()) <= 2000
        document: dict[str, Any] = json.loads(answer)
        assert document["next"]
        return document

    return read
