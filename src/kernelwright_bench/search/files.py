"""Repeats on disk: what a long benchmark has done so far. What is there is added to, and never replaced by less.

A pair of a space and a strategy has a file `SPACE--STRATEGY.npz` once all its repeats are done; until then each repeat
is a file of its own, named by its seed, in the folder `SPACE--STRATEGY.parts`.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kernelwright.errors import Location, StoreError
from kernelwright.store.files import write_atomically
from kernelwright_bench.search.recordings import RecordedSpace
from kernelwright_bench.search.repeats import SpaceResult, Strategy
from kernelwright_bench.search.score import Repeat, Trajectory, baseline_of


def repeats_file(folder: Path, space: str, strategy: Strategy) -> Path:
    """Where the repeats of a strategy on a space are kept."""
    label = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", strategy.label)
    return folder / "repeats" / f"{space}--{label}.npz"


def save_repeat(folder: Path, recorded: RecordedSpace, strategy: Strategy, seed: int, repeat: Repeat) -> None:
    """Keep one repeat as soon as it is done."""
    file = _parts(repeats_file(folder, recorded.name, strategy)) / f"{seed}.npz"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, _content(recorded, strategy, [repeat]))


def save_repeats(folder: Path, recorded: RecordedSpace, result: SpaceResult) -> Path:
    """Keep all repeats of a result, in place of single ones. More that are there of the same pair stay.

    Raises:
        StoreError: what is there is damaged, or of another recording.
    """
    file = repeats_file(folder, result.space, result.strategy)
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_file() or len(_read(file, recorded)) < len(result.repeats):
        write_atomically(file, _content(recorded, result.strategy, result.repeats))
    shutil.rmtree(_parts(file), ignore_errors=True)
    return file


def load_seeds(folder: Path, recorded: RecordedSpace, strategy: Strategy) -> Mapping[int, Repeat]:
    """What was kept of a strategy on a space, by seed.

    Raises:
        StoreError: a file is damaged, or of another recording.
    """
    file = repeats_file(folder, recorded.name, strategy)
    found = dict(enumerate(_read(file, recorded))) if file.is_file() else {}
    for part in _parts(file).glob("*.npz"):
        if part.stem.isdecimal():
            found.setdefault(int(part.stem), _read(part, recorded)[0])
    return dict(sorted(found.items()))


def load_repeats(folder: Path, recorded: RecordedSpace, strategy: Strategy) -> SpaceResult | None:
    """What was kept of a strategy on a space; None when nothing was.

    Raises:
        StoreError: a file is damaged, or of another recording.
    """
    repeats = tuple(load_seeds(folder, recorded, strategy).values())
    if not repeats:
        return None
    return SpaceResult(recorded.name, strategy, baseline_of(recorded.time_ms, recorded.cost_s), repeats)


def _parts(file: Path) -> Path:
    return file.with_suffix(".parts")


def _fingerprint(recorded: RecordedSpace) -> str:
    """A digest of all that a repeat depends on: two recordings may have one name."""
    values = np.ascontiguousarray(np.stack([recorded.time_ms, recorded.cost_s]))
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


def _content(recorded: RecordedSpace, strategy: Strategy, repeats: Sequence[Repeat]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        strategy=json.dumps({"label": strategy.label}),
        recording=_fingerprint(recorded),
        lengths=np.array([len(repeat.is_new) for repeat in repeats]),
        own_s=np.array([repeat.own_s for repeat in repeats]),
        time_s=np.concatenate([repeat.trajectory.time_s for repeat in repeats]),
        best=np.concatenate([repeat.trajectory.best for repeat in repeats]),
        is_new=np.concatenate([repeat.is_new for repeat in repeats]),
    )
    return stream.getvalue()


def _read(file: Path, recorded: RecordedSpace) -> list[Repeat]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            ends = np.cumsum(arrays["lengths"])
            parts = [np.split(arrays[name], ends[:-1]) for name in ("time_s", "best", "is_new")]
            own_s = arrays["own_s"]
            # Older files do not say of which recording they are.
            recording = str(arrays["recording"]) if "recording" in arrays else _fingerprint(recorded)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise StoreError(
            f"kept repeats cannot be read: {error}", hint="delete the file", location=Location(file)
        ) from error
    if recording != _fingerprint(recorded):
        raise StoreError(
            f"these repeats are of another recording of the name {recorded.name!r}",
            hint="name another folder with --out",
            location=Location(file),
        )
    return [
        Repeat(Trajectory(time_s, best), is_new, float(seconds))
        for time_s, best, is_new, seconds in zip(*parts, own_s, strict=True)
    ]
