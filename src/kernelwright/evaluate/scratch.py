"""Scratch folders in memory, named by the process that owns them, so that those of killed runs can be swept."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from kernelwright import knobs
from kernelwright.errors import StoreError

_PREFIX = "kernelwright-"


def make_scratch() -> Path:
    """A new private folder; sweeps those whose owner is gone.

    Raises:
        StoreError: it cannot be made.
    """
    parent = knobs.scratch_dir() or Path(tempfile.gettempdir())
    sweep(parent)
    try:
        return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
    except OSError as error:
        raise StoreError(
            f"no scratch folder can be made in {parent}: {error.strerror or error}",
            hint="set KERNELWRIGHT_SCRATCH_DIR to a folder that can be written",
        ) from error


def sweep(parent: Path) -> None:
    """Remove scratch folders of processes that no longer run."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc").exists():
            shutil.rmtree(folder, ignore_errors=True)
