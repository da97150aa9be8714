"""What tests of whole runs with a model begin with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def plain(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Path:
    """A problem whose kernel has all of its numbers written out."""
    folder = write_saxpy(tmp_path / "saxpy")
    source = (folder / "saxpy.cl").read_text()
    (folder / "saxpy.cl").write_text(source[source.index("__kernel") :].replace("ITEMS", "1"))
    return folder
