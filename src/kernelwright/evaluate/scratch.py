"""Scratch folders in memory, named by the process that owns them, so that those of killed runs can be swept."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from kernelwright import knobs

_PREFIX = "kernelwright-"


def make_scratch() -> Path:
    """A new private folder; sweeps those whose owner is gone."""
    parent = knobs.scratch_dir() or Path(tempfile.gettempdir())
    sweep(parent)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))


def sweep(parent: Path) -> None:
    """Remove scratch folders of processes that no longer run."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc").exists():
            shutil.rmtree(folder, ignore_errors=True)
