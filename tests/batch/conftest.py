"""What tests of batches begin with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def problems(tmp_path: Path, write_saxpy: Callable[..., Path]) -> list[Path]:
    return [write_saxpy(tmp_path / name) for name in ("first", "second", "third")]
