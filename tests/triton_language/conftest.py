"""Writes a small Triton problem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from triton_problems import HEADER, KERNEL, PROBLEM

Maker = Callable[..., Path]


@pytest.fixture
def triton_problem(tmp_path: Path) -> Maker:
    """Writes the problem into a folder, with another header, kernel or problem file where one is given."""

    def make(*, header: str = HEADER, kernel: str = KERNEL, problem: str = PROBLEM) -> Path:
        folder = tmp_path / "scale"
        folder.mkdir(exist_ok=True)
        (folder / "scale.py").write_text(header + kernel)
        (folder / "problem.toml").write_text(problem)
        (folder / "reference.py").write_text(
            "def scale(x, factor):\n    return factor * x\n\n\ndef total(x):\n    return x.sum(keepdims=True)\n"
        )
        return folder

    return make
