"""Puts this folder's helpers on the path; a problem that a whole run takes little time for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def beatable_saxpy(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Path:
    """The small workload alone: what is killed, and when, does not depend on how much there is to compute."""
    return write_saxpy(tmp_path / "saxpy", is_beatable=True, is_small=True)
