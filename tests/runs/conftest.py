"""What tests of whole runs begin with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def plain(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Path:
    """A problem whose kernel has no parameters at all."""
    folder = write_saxpy(tmp_path / "plain")
    source = (folder / "saxpy.cl").read_text()
    (folder / "saxpy.cl").write_text(source[source.index("#ifndef") :])
    return folder
