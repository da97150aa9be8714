"""Repeats on disk: what a long benchmark has done so far, one file for each strategy and space."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import numpy as np

from kernelwright.errors import Location, StoreError
from kernelwright_bench.search.recordings import RecordedSpace
from kernelwright_bench.search.repeats import SpaceResult, Strategy
from kernelwright_bench.search.score import Repeat, Trajectory, baseline_of


def repeats_file(folder: Path, space: str, strategy: Strategy) -> Path:
    """Where the repeats of a strategy on a space are kept."""
    label = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", strategy.label)
    return folder / "repeats" / f"{space}--{label}.npz"


def save_repeats(folder: Path, result: SpaceResult) -> Path:
    """Keep a result's repeats; what was there of the same strategy and space is replaced."""
    file = repeats_file(folder, result.space, result.strategy)
    file.parent.mkdir(parents=True, exist_ok=True)
    lengths = [len(repeat.is_new) for repeat in result.repeats]
    with file.open("wb") as stream:
        np.savez_compressed(
            stream,
            strategy=json.dumps({"label": result.strategy.label}),
            lengths=np.array(lengths),
            own_s=np.array([repeat.own_s for repeat in result.repeats]),
            time_s=np.concatenate([repeat.trajectory.time_s for repeat in result.repeats]),
            best=np.concatenate([repeat.trajectory.best for repeat in result.repeats]),
            is_new=np.concatenate([repeat.is_new for repeat in result.repeats]),
        )
    return file


def load_repeats(folder: Path, recorded: RecordedSpace, strategy: Strategy) -> SpaceResult | None:
    """What was kept of a strategy on a space; None when nothing was.

    Raises:
        StoreError: the file is damaged.
    """
    file = repeats_file(folder, recorded.name, strategy)
    if not file.is_file():
        return None
    try:
        with np.load(file, allow_pickle=False) as arrays:
            ends = np.cumsum(arrays["lengths"])
            parts = [np.split(arrays[name], ends[:-1]) for name in ("time_s", "best", "is_new")]
            own_s = arrays["own_s"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise StoreError(
            f"kept repeats cannot be read: {error}", hint="delete the file", location=Location(file)
        ) from error
    repeats = tuple(
        Repeat(Trajectory(time_s, best), is_new, float(seconds))
        for time_s, best, is_new, seconds in zip(*parts, own_s, strict=True)
    )
    return SpaceResult(recorded.name, strategy, baseline_of(recorded.time_ms, recorded.cost_s), repeats)
